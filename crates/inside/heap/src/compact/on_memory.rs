//! What the models that the engine is tested on have in common: an operating system whose memory is the standard
//! allocator's, and a kernel that copies what it would map. Macros, because the locks around them are loom's in one
//! test and the standard library's in the other, and this file is part of both.

/// What an `Os` does with memory; pages of `PAGE` bytes, a clock that stands.
macro_rules! os_on_memory {
    () => {
        fn page_size(&self) -> usize {
            PAGE
        }

        fn map(&self, len: usize, align: usize) -> *mut u8 {
            assert_eq!(align, PAGE);
            let layout = std::alloc::Layout::from_size_align(len, PAGE).expect("a power of two");
            // SAFETY: the engine maps no empty range.
            unsafe { std::alloc::alloc_zeroed(layout) }
        }

        unsafe fn unmap(&self, start: *mut u8, len: usize) {
            let layout = std::alloc::Layout::from_size_align(len, PAGE).expect("a power of two");
            // SAFETY: whole ranges come back, allocated with this layout.
            unsafe { std::alloc::dealloc(start, layout) };
        }

        unsafe fn decommit(&self, _: *mut u8, _: usize) {}

        unsafe fn remap(&self, start: *mut u8, old: usize, new: usize) -> *mut u8 {
            let moved = self.map(new, PAGE);
            // SAFETY: both are at least that long, and the old one is not used again.
            unsafe {
                moved.copy_from_nonoverlapping(start, old.min(new));
                self.unmap(start, old);
            }
            moved
        }

        fn now_ns(&self) -> u64 {
            0
        }

        fn entropy(&self) -> u64 {
            1
        }

        fn misuse(&self, what: Misuse, object: *mut u8) -> ! {
            panic!("{what:?} of {object:?}")
        }
    };
}

/// What a `Kernel` does whose images are `self.images`, vectors of bytes, that maps by copying unless `self.maps` says
/// no, and whose page map has `self.entry` everywhere.
macro_rules! kernel_on_memory {
    () => {
        fn cpu_ns(&self) -> u64 {
            0
        }

        fn register(&self, _: usize, _: usize, _: Registration) -> Sys<()> {
            Ok(())
        }

        fn unregister(&self, _: usize, _: usize) -> Sys<()> {
            Ok(())
        }

        unsafe fn move_pages(&self, _: usize, _: usize, _: usize) -> usize {
            0
        }

        fn wait_for_space(&self, _: usize) {}

        fn image_create(&self, len: usize) -> Sys<Image> {
            let mut images = self.images.borrow_mut();
            images.push(vec![0; len]);
            Ok(Image(images.len() as i32 - 1))
        }

        fn image_write(&self, image: Image, offset: usize, from: &[u8]) -> Sys<()> {
            let image = &mut self.images.borrow_mut()[image.0 as usize];
            image[offset..offset + from.len()].copy_from_slice(from);
            Ok(())
        }

        fn image_close(&self, _: Image) {}

        unsafe fn map_image(&self, at: usize, len: usize, image: Image, offset: usize) -> Sys<()> {
            self.maps(at, len, image, offset)?;
            let image = &self.images.borrow()[image.0 as usize][offset..offset + len];
            let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
            // SAFETY: the range lies in the model's memory.
            unsafe { at.copy_from(image.as_ptr(), len) };
            Ok(())
        }

        unsafe fn map_anonymous(&self, at: usize, len: usize) -> Sys<()> {
            // SAFETY: as above.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_bytes(0, len) };
            Ok(())
        }

        unsafe fn replace(&self, from: usize, at: usize, len: usize) -> Sys<()> {
            let from = std::ptr::with_exposed_provenance_mut::<u8>(from);
            // SAFETY: the engine made the first range with the model's `Os`, which takes it back here as `mremap` does.
            unsafe {
                std::ptr::with_exposed_provenance_mut::<u8>(at).copy_from(from, len);
                self.os().unmap(from, len);
            }
            Ok(())
        }

        unsafe fn decommit(&self, start: usize, len: usize) {
            // SAFETY: as for `map_anonymous`.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).write_bytes(0, len) };
        }

        fn split_huge_pages(&self, _: usize, _: usize) {}

        fn mergeable(&self, _: usize, _: usize) -> Sys<()> {
            Ok(())
        }

        fn pagemap(&self, _: usize, entries: &mut [u64]) -> Sys<()> {
            entries.fill(self.entry());
            Ok(())
        }

        fn pin_risk(&self) -> bool {
            false
        }

        fn map_count(&self) -> usize {
            0
        }

        fn max_map_count(&self) -> usize {
            65_530
        }
    };
}
