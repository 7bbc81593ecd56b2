//! An operating system made of ordinary memory, for the tests: pages of any size, limits that can be
//! reached, and a clock that is turned by hand.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pagemill_heap::Heap;
use pagemill_heap::config::Config;
use pagemill_heap::os::{Misuse, Os};
use pagemill_heap::stats::StatsPage;

/// The fake.
#[derive(Debug)]
pub struct FakeOs {
    page: usize,
    /// Start of each mapping (or of what is left of it) to its end, and how it was allocated.
    mappings: Mutex<BTreeMap<usize, (usize, usize, Layout)>>,
    /// Bytes that may still be mapped.
    pub left: AtomicUsize,
    /// Whether mappings lie four GiB from each other; such are never given back.
    pub apart: AtomicBool,
    pub decommitted: AtomicUsize,
    pub clock: AtomicU64,
    seed: AtomicU64,
}

impl FakeOs {
    pub fn new(page: usize) -> Self {
        #[cfg(not(miri))]
        keep_within_four_gib();
        Self {
            page,
            mappings: Mutex::new(BTreeMap::new()),
            left: AtomicUsize::new(usize::MAX / 2),
            apart: AtomicBool::new(false),
            decommitted: AtomicUsize::new(0),
            clock: AtomicU64::new(1),
            seed: AtomicU64::new(0x9e37_79b9),
        }
    }
}

impl Os for FakeOs {
    fn page_size(&self) -> usize {
        self.page
    }

    fn map(&self, len: usize, align: usize) -> *mut u8 {
        assert!(
            len > 0 && len.is_multiple_of(self.page) && align.is_multiple_of(self.page),
            "{len} {align}"
        );
        if self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len))
            .is_err()
        {
            return std::ptr::null_mut();
        }
        if self.apart.load(Ordering::Relaxed) {
            return map_apart(len, align);
        }
        let layout = Layout::from_size_align(len, align).expect("a power of two");
        // SAFETY: the layout is not empty.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!start.is_null());
        let at = start.expose_provenance();
        self.mappings.lock().expect("not poisoned").insert(at, (at + len, at, layout));
        start
    }

    unsafe fn unmap(&self, start: *mut u8, len: usize) {
        if self.apart.load(Ordering::Relaxed) {
            return;
        }
        let at = start.addr();
        let mut mappings = self.mappings.lock().expect("not poisoned");
        let (&base, &(end, _, layout)) = mappings.range(..=at).next_back().expect("a mapping");
        assert!(
            at + len <= end && len > 0 && len.is_multiple_of(self.page),
            "unmap of what is not mapped"
        );
        self.left.fetch_add(len, Ordering::Relaxed);
        if base == at && end == at + len && layout.size() == len {
            mappings.remove(&base);
            // SAFETY: allocated with this layout and wholly given back.
            unsafe { std::alloc::dealloc(start, layout) };
        } else {
            // SAFETY: within a live allocation. A part of one cannot be given back; it is poisoned.
            unsafe { start.write_bytes(0xee, len) };
        }
    }

    unsafe fn decommit(&self, start: *mut u8, len: usize) {
        assert!(start.addr().is_multiple_of(self.page) && len.is_multiple_of(self.page));
        self.decommitted.fetch_add(len, Ordering::Relaxed);
        // SAFETY: the caller owns these pages.
        unsafe { start.write_bytes(0, len) };
    }

    unsafe fn remap(&self, start: *mut u8, old: usize, new: usize) -> *mut u8 {
        let moved = self.map(new, self.page);
        if !moved.is_null() {
            // SAFETY: both are that long and distinct.
            unsafe {
                moved.copy_from_nonoverlapping(start, old.min(new));
                self.unmap(start, old);
            }
        }
        moved
    }

    fn now_ns(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn wait(&self, _: &AtomicU64, _: u64) {
        std::thread::yield_now();
    }

    fn wake(&self, _: &AtomicU64) {}

    fn entropy(&self) -> u64 {
        self.seed
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
    }

    fn misuse(&self, what: Misuse, object: *mut u8) -> ! {
        panic!("{what:?} of {object:p}");
    }
}

/// Lets the C library take all that is mapped here from one part of the address space that no 4 GiB border crosses:
/// each 4 GiB in use cost the page map 8 MiB of what may be mapped.
#[cfg(not(miri))]
fn keep_within_four_gib() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    const ROOM: usize = 2 << 30;
    ONCE.call_once(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping replaces nothing, and only a part of it goes; the other call takes numbers only.
        unsafe {
            // Neither does anything come from the C library's own heaps, which lie gigabytes away.
            libc::mallopt(libc::M_MMAP_THRESHOLD, 4096);
            // The kernel gives addresses downwards: the next end where this one ends, or at the border below.
            let next = libc::mmap(std::ptr::null_mut(), ROOM, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(next, libc::MAP_FAILED);
            let border = (next.addr() + ROOM) >> 32 << 32;
            if border <= next.addr() {
                libc::munmap(next, ROOM);
            } else {
                libc::munmap(next, border - next.addr());
            }
        }
    });
}

/// A mapping with four GiB of unused address space behind it.
fn map_apart(len: usize, align: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new private anonymous mapping replaces nothing.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), len + align + (4 << 30), access, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast::<u8>().map_addr(|address| address.next_multiple_of(align))
}

impl Drop for FakeOs {
    fn drop(&mut self) {
        for (_, (_, at, layout)) in std::mem::take(self.mappings.get_mut().expect("not poisoned")) {
            // SAFETY: allocated with this layout; the heap over it is gone.
            unsafe { std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(at), layout) };
        }
    }
}

/// A started heap.
pub fn heap(page: usize, config: &str) -> Box<Heap<FakeOs>> {
    static STATS: StatsPage = StatsPage::zeroed();
    heap_with(page, config, &STATS)
}

/// As [`heap`], with a statistics page of its own.
pub fn heap_with(page: usize, config: &str, stats: &'static StatsPage) -> Box<Heap<FakeOs>> {
    let heap = Box::new(Heap::new(FakeOs::new(page)));
    heap.start(Config::parse(config.as_bytes()).expect("a configuration"), stats);
    heap
}
