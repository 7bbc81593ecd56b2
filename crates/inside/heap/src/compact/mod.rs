//! Compaction: what it needs from the heap and from the kernel, and the engine that does it.
//!
//! Terms: a **unit** is a run of pages inside a span; a **group** is a set of units whose live
//! bytes are disjoint; an **image** is the physical copy that the units of a group share.
//!
//! The engine knows spans through [`Spans`] and the kernel through [`Kernel`]; it owns no thread,
//! takes no lock but those behind `Spans`, and allocates its tables through [`crate::os::Os`].
//!
//! ```text
//!  aliases, batch, census, groups, offers, pass   what is known: of units, of spans, of images, of a pass
//!    └─► state                           the engine's own, and what every stage needs
//!          └─► scan, classes, extents, renew, remap, ksm, release, restore, footprint     a stage each
//!                └─► engine              goes through them
//! ```

use core::ops::Range;

use crate::size::CHUNK;

mod batch;
mod census;
mod classes;
mod copy;
mod engine;
mod footprint;
mod ksm;
mod offers;
#[cfg(test)]
#[macro_use]
mod on_memory;
mod aliases;
mod extents;
mod groups;
#[cfg(test)]
mod memory;
mod pages;
mod pass;
mod release;
mod remap;
mod renew;
mod restore;
mod scan;
#[cfg(test)]
mod slices;
mod sort;
mod state;
mod table;

pub use census::Scan;
pub use state::{Compactor, Progress, Settings};

/// A system call's error number (positive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What a system call gave.
pub type Sys<T> = Result<T, Errno>;

/// One bit a slot of a span.
pub type Bits = [u64; 4];

/// What the engine sees of a span at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanView {
    /// Address of its first page.
    pub start: usize,
    /// Size class: spans of one class have slots of one size.
    pub class: u16,
    /// Bytes of a slot; slot `i` begins at `start + i * slot_size`.
    pub slot_size: u32,
    /// Slots in the span, at most 256.
    pub slots: u16,
    /// Pages in the span, at most 16 pages of 4 KiB (64 KiB).
    pub pages: u8,
    /// Slots that are allocated or in some thread's cache.
    pub live: Bits,
    /// Slots that may not be handed out, because compaction owns a page that they overlap.
    pub blocked: Bits,
    /// A bit a page: may hold memory, or is the engine's business. A clear bit: it holds none.
    pub resident: u16,
    /// Changes whenever the descriptor is used for another span.
    pub generation: u32,
}

/// What the engine needs from the heap.
///
/// # Safety
/// The engine reads, overwrites and remaps memory on the word of an implementation, so:
/// - the pages of a span that [`Spans::inspect`] describes are mapped, private and anonymous,
///   unless the engine itself has mapped something else there;
/// - while a range of pages is blocked, no slot that overlaps it is handed out, the span keeps its
///   generation and its pages are neither unmapped, decommitted nor given to another span, even
///   when the last live slot is freed;
/// - a slot whose live bit is clear while it is blocked is touched by nobody but the engine.
pub unsafe trait Spans {
    /// Names a span; may be stale, which `inspect` and `block` recognise.
    type Ref: Copy + PartialEq;

    /// Number of descriptors; [`Spans::at`] accepts indexes below it. Only grows.
    fn count(&self) -> usize;

    /// The span of this index, or `None` if the descriptor is not in use for small objects.
    fn at(&self, index: usize) -> Option<Self::Ref>;

    /// The span's state, or `None` if it is no longer a span of small objects.
    fn inspect(&self, span: Self::Ref) -> Option<SpanView>;

    /// Blocks the slots that overlap `pages` and returns the live bits of the whole span as they
    /// were at that moment. `None` if the generation is another one, the span is no more, a thread
    /// allocates from it directly, or one of *these pages* is blocked already. A slot that
    /// straddles into a page blocked earlier is no obstacle.
    fn block(&self, span: Self::Ref, generation: u32, pages: Range<u8>) -> Option<Bits>;

    /// Takes the block off `pages`; a slot that also overlaps a page still blocked stays blocked.
    /// An empty span without blocked pages goes back to the page heap.
    fn unblock(&self, span: Self::Ref, generation: u32, pages: Range<u8>);

    /// Blocked pages of a span (a bit each) hold no memory.
    fn set_absent(&self, span: Self::Ref, generation: u32, pages: u16) {
        let _ = (span, generation, pages);
    }

    /// Gives free pages of the page heap back that have aged (all of them if `all`); returns bytes.
    fn purge(&self, now_ns: u64, all: bool) -> usize;

    /// Resident bytes of the heap's that are in no span: large objects and free pages.
    fn beside(&self) -> usize {
        0
    }
}

/// Names an image file; what the number means is the implementation's affair (a descriptor).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image(pub i32);

/// How a range is registered with the userfaultfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// For write protection (pages that were never touched included).
    WriteProtect,
    /// For write protection and for faults on missing pages, which [`Kernel::move_pages`] needs
    /// so that nobody sees the hole.
    Missing,
}

/// Bits of an entry of `/proc/<pid>/pagemap` (`Documentation/admin-guide/mm/pagemap.rst`).
pub mod pagemap {
    /// The page is in memory.
    pub const PRESENT: u64 = 1 << 63;
    /// The page is in swap.
    pub const SWAPPED: u64 = 1 << 62;
    /// The page belongs to a file (an image) or to shared memory.
    pub const FILE: u64 = 1 << 61;
    /// The page is mapped once, by this process.
    pub const EXCLUSIVE: u64 = 1 << 56;
}

/// What barrier the kernel and the process's rights allow; see [`Kernel::barrier`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierSupport {
    /// No userfaultfd that stops kernel writers: nothing may be remapped unless the process has one
    /// thread and that thread is the one that compacts.
    Nothing,
    /// The caller is the process's only thread: nobody can write meanwhile.
    SingleThread,
    /// `UFFDIO_WRITEPROTECT`, and whether `UFFDIO_MOVE` exists too (Linux 6.8).
    WriteProtect {
        /// `UFFDIO_MOVE` works.
        moves: bool,
    },
}

/// The kernel operations of compaction. One call is one system call unless it says otherwise; none
/// allocates from the heap. Addresses and lengths are multiples of the page size.
pub trait Kernel {
    /// `CLOCK_MONOTONIC` in nanoseconds, fine enough for microseconds.
    fn now_ns(&self) -> u64;

    /// CPU time of the calling thread in nanoseconds.
    fn cpu_ns(&self) -> u64;

    /// What can stop writers. Asked once a pass.
    fn barrier(&self) -> BarrierSupport;

    /// `UFFDIO_REGISTER`.
    ///
    /// # Errors
    /// As the ioctl.
    fn register(&self, start: usize, len: usize, how: Registration) -> Sys<()>;

    /// `UFFDIO_UNREGISTER`, which also wakes waiters.
    ///
    /// # Errors
    /// As the ioctl.
    fn unregister(&self, start: usize, len: usize) -> Sys<()>;

    /// `UFFDIO_WRITEPROTECT`: with `on`, writers (user and kernel) to the range sleep until
    /// [`Kernel::wake`]; without, the range is writable again and they are woken.
    ///
    /// # Errors
    /// As the ioctl.
    fn write_protect(&self, start: usize, len: usize, on: bool) -> Sys<()>;

    /// `UFFDIO_MOVE` of `len` bytes, holes in the source allowed. Returns the bytes moved: fewer than
    /// `len` if a page could not be moved (`EBUSY`: pinned, or shared with a child).
    ///
    /// # Safety
    /// Both ranges are private anonymous mappings, `to` is unpopulated, and both are registered.
    unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> usize;

    /// How many began to wait for a page that is write-protected or moved since the last call, at least (messages of
    /// the userfaultfd, read without waiting).
    fn waiters(&self) -> usize;

    /// Waits until nobody holds the address space in a way that would make [`Kernel::map_image`] wait, `own` being a
    /// page of the engine's: who reads the memory use of a large mapping holds it for milliseconds, and waiting is
    /// better done before pages are frozen than meanwhile.
    fn wait_for_space(&self, own: usize);

    /// `UFFDIO_WAKE`: wakes those who sleep on the range.
    fn wake(&self, start: usize, len: usize);

    /// A new image file of `len` bytes (`memfd_create`, close-on-exec, then `ftruncate`), all holes.
    ///
    /// # Errors
    /// As the calls.
    fn image_create(&self, len: usize) -> Sys<Image>;

    /// Writes whole pages into an image (`pwrite`; all of it or an error).
    ///
    /// # Errors
    /// As the call; `ENOSPC` for a short write.
    fn image_write(&self, image: Image, offset: usize, from: &[u8]) -> Sys<()>;

    /// Closes an image. Its memory lasts as long as some process maps it.
    fn image_close(&self, image: Image);

    /// Maps `image` from `offset` over `at..at + len`: private, readable and writable, in one step
    /// (`mmap(MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE)`).
    ///
    /// # Errors
    /// As the call; nothing is changed then.
    ///
    /// # Safety
    /// The range belongs to the heap, and the image holds the bytes of every live slot in it.
    unsafe fn map_image(&self, at: usize, len: usize, image: Image, offset: usize) -> Sys<()>;

    /// Maps fresh private anonymous memory over the range, with the flags that the heap gives its
    /// chunks (`MADV_NOHUGEPAGE` if the engine asked [`Kernel::split_huge_pages`] for it).
    ///
    /// # Errors
    /// As the call; nothing is changed then.
    ///
    /// # Safety
    /// The range belongs to the heap and holds no live slot.
    unsafe fn map_anonymous(&self, at: usize, len: usize) -> Sys<()>;

    /// Moves the mapping at `from` over `at` in one step (`mremap(MREMAP_MAYMOVE | MREMAP_FIXED)`).
    ///
    /// # Errors
    /// As the call; nothing is changed then.
    ///
    /// # Safety
    /// `from..from + len` is a private anonymous mapping of the engine that holds the bytes of every
    /// live slot in `at..at + len`, which belongs to the heap.
    unsafe fn replace(&self, from: usize, at: usize, len: usize) -> Sys<()>;

    /// `MADV_DONTNEED`: the range reads as zero afterwards.
    ///
    /// # Safety
    /// The range is anonymous memory of the heap and holds no live slot.
    unsafe fn decommit(&self, start: usize, len: usize);

    /// The same for many ranges (address and length), in one call where the kernel has one.
    ///
    /// # Safety
    /// As [`Kernel::decommit`], for each.
    unsafe fn decommit_all(&self, ranges: &[(usize, usize)]) {
        for &(start, len) in ranges {
            // SAFETY: the caller's promise.
            unsafe { self.decommit(start, len) };
        }
    }

    /// Prepares a chunk for compaction: no huge pages in it from now on, and existing ones split, so
    /// that single pages can be given back (`MADV_NOHUGEPAGE`, then `MADV_COLD` on one page of each
    /// huge page).
    fn split_huge_pages(&self, start: usize, len: usize);

    /// `MADV_MERGEABLE`.
    ///
    /// # Errors
    /// As the call: `EINVAL` where the kernel has no KSM.
    fn mergeable(&self, start: usize, len: usize) -> Sys<()>;

    /// Pages of this process that `ksmd` has merged (`/proc/<pid>/ksm_merging_pages`); `None` if the kernel does not
    /// say.
    fn ksm_merged(&self) -> Option<u64> {
        None
    }

    /// Reads one entry of `/proc/<pid>/pagemap` a page, from the page at `start`.
    ///
    /// # Errors
    /// As `pread`.
    fn pagemap(&self, start: usize, entries: &mut [u64]) -> Sys<()>;

    /// Whether the process holds anything that can keep user pages pinned for a device to write:
    /// io_uring, AIO rings, descriptors opened with `O_DIRECT`, RDMA, VFIO, DRI. Several system
    /// calls; asked while pages are write-protected, so that no new pin can begin meanwhile.
    fn pin_risk(&self) -> bool;

    /// Mappings that the process has now (`/proc/<pid>/maps`).
    fn map_count(&self) -> usize;

    /// `vm.max_map_count`.
    fn max_map_count(&self) -> usize;
}
