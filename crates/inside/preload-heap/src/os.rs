//! The heap's operating system: Linux by system calls.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pagemill_heap::os::{Misuse, Os};
use pagemill_heap::stats::degraded;
use pagemill_preload_sys::sys;

use crate::stats::pagemill_stats;
use crate::vma_stripe::{self, VMA_STRIPE};
use crate::{diagnostics, tls};

/// What the heap's system tells whoever knows the heap.
pub(crate) trait Hooks {
    /// So many bytes are mapped for it: more than before. Perhaps called under a lock of the heap.
    fn grown(mapped: usize);

    /// Puts in order a process that is a copy no handler told of; whether it is one.
    fn repair_copy() -> bool;

    /// Whether who waits on this word waits for compaction.
    fn compacts_under(word: &AtomicU64) -> bool;

    /// A thread leaves its slow path; `now_ns` tells the time, coarsely.
    fn on_slow_path(now_ns: impl Fn() -> u64);
}

/// Linux, as the heap sees it.
#[derive(Debug)]
pub(crate) struct Linux<H> {
    /// Zero before it is told. A byte of the heap that is not zero from the start on would make all of it a mapping of
    /// the library's file, whose pages the kernel reads in around those that are used.
    page_size: AtomicUsize,
    mapped: AtomicUsize,
    hooks: PhantomData<fn() -> H>,
}

impl<H> Linux<H> {
    /// Before the start: 4 KiB pages, nothing mapped.
    pub(crate) const fn new() -> Self {
        Self { page_size: AtomicUsize::new(0), mapped: AtomicUsize::new(0), hooks: PhantomData }
    }

    /// Sets the page size that the kernel told the process at its start.
    pub(crate) fn set_page_size(&self, size: usize) {
        self.page_size.store(size, Ordering::Relaxed);
    }
}

const READ_WRITE: usize = sys::PROT_READ | sys::PROT_WRITE;

/// Bytes mapped beyond which mappings are too many to be worth it: 4,096 of them, a sixteenth of the kernel's default
/// limit.
const STRIPED: usize = 4096 * VMA_STRIPE;

/// Gives each stripe of new memory its kind. What cannot be changed (map count) stays as it is.
fn cut_into_stripes(start: *mut u8, len: usize) {
    let (begin, end) = (start.addr(), start.addr() + len);
    let mut at = begin;
    while at < end {
        let next = ((at / VMA_STRIPE + 1) * VMA_STRIPE).min(end);
        let flags = vma_stripe::flags(at);
        if flags != 0 {
            // SAFETY: new anonymous memory that nobody knows yet becomes the same again.
            unsafe { sys::map_over(at, next - at, flags, None) };
        }
        at = next;
    }
}

/// The half of a word that the kernel looks at.
fn futex(word: &AtomicU64) -> &AtomicU32 {
    const { assert!(cfg!(target_endian = "little"), "the lower half comes first") };
    // SAFETY: it is within the word, aligned, and atomic; here only its address is used.
    unsafe { &*word.as_ptr().cast::<AtomicU32>() }
}

impl<H: Hooks> Os for Linux<H> {
    #[inline]
    fn page_size(&self) -> usize {
        match self.page_size.load(Ordering::Relaxed) {
            0 => 4096,
            size => size,
        }
    }

    fn map(&self, len: usize, align: usize) -> *mut u8 {
        let start = self.map_tables(len, align);
        if !start.is_null() {
            let mapped = self.mapped.fetch_add(len, Ordering::Relaxed) + len;
            H::grown(mapped);
        }
        start
    }

    fn map_tables(&self, len: usize, align: usize) -> *mut u8 {
        H::repair_copy();
        let start = map_aligned(len, align, self.page_size());
        if start.is_null() {
            pagemill_stats.degraded.fetch_or(degraded::NO_MEMORY, Ordering::Relaxed);
        }
        start
    }

    fn map_chunks(&self, len: usize, align: usize) -> *mut u8 {
        let start = self.map(len, align);
        if !start.is_null() && self.mapped.load(Ordering::Relaxed) <= STRIPED {
            cut_into_stripes(start, len);
        }
        start
    }

    unsafe fn unmap(&self, start: *mut u8, len: usize) {
        // SAFETY: the caller's promise. A failure (the map count is used up by the split) leaves the range
        // mapped and unused: then at least its memory goes back.
        unsafe {
            if sys::failed(sys::unmap(start, len)) {
                sys::advise(start, len, sys::MADV_DONTNEED);
            }
        }
        self.mapped.fetch_sub(len, Ordering::Relaxed);
    }

    unsafe fn decommit(&self, start: *mut u8, len: usize) {
        // SAFETY: the caller's promise. Locked memory (mlockall) refuses with EINVAL: such a program has asked for its
        // memory to stay, so the bytes are cleared by hand, as the contract says that they read as zero.
        unsafe {
            if sys::failed(sys::advise(start, len, sys::MADV_DONTNEED)) {
                core::ptr::write_bytes(start, 0, len);
            }
        }
    }

    unsafe fn guard(&self, start: *mut u8, len: usize) -> bool {
        // SAFETY: the caller's promise.
        !sys::failed(unsafe { sys::forbid(start, len) })
    }

    unsafe fn remap(&self, start: *mut u8, old: usize, new: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let moved = unsafe { sys::remap(start, old, new) };
        if !moved.is_null() {
            self.mapped.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
        }
        moved
    }

    fn now_ns(&self) -> u64 {
        sys::clock(sys::CLOCK_MONOTONIC_COARSE)
    }

    fn wait(&self, word: &AtomicU64, expected: u64) {
        // A lock that a thread of the parent held is never released in a copy of the process.
        if H::repair_copy() {
            return;
        }
        if !H::compacts_under(word) {
            sys::futex_wait(futex(word), expected as u32, None);
            return;
        }
        let begin = sys::clock(sys::CLOCK_MONOTONIC);
        sys::futex_wait(futex(word), expected as u32, None);
        pagemill_stats.stalled(sys::clock(sys::CLOCK_MONOTONIC).wrapping_sub(begin));
    }

    fn wait_at_most(&self, word: &AtomicU64, expected: u64, ns: u64) {
        if !H::repair_copy() {
            sys::futex_wait(futex(word), expected as u32, Some(sys::Timespec::from_ns(ns)));
        }
    }

    #[inline]
    fn thread(&self) -> usize {
        tls::thread_pointer()
    }

    fn wake(&self, word: &AtomicU64) {
        sys::futex_wake(futex(word), 1);
    }

    #[inline]
    fn on_slow_path(&self) {
        H::on_slow_path(|| self.now_ns());
    }

    fn entropy(&self) -> u64 {
        let mut bytes = [0; 8];
        if sys::random(&mut bytes) == 8 {
            return u64::from_ne_bytes(bytes);
        }
        // Before the kernel's pool is ready, or where a filter forbids it: the clock and the random
        // placement of the stack.
        let place = (&raw const bytes).addr() as u64;
        (sys::clock(sys::CLOCK_MONOTONIC) ^ place.rotate_left(32))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn misuse(&self, what: Misuse, object: *mut u8) -> ! {
        let (name, why) = match what {
            Misuse::DoubleFree => ("double free of", "this object was freed before"),
            Misuse::WildFree => ("wild free of", "no object of this heap starts here"),
            Misuse::Overflow => ("overflow of", "memory past the end of this object was written"),
            Misuse::OutOfBounds => (
                "out of bounds write beside",
                "memory just before or behind this object was written",
            ),
            Misuse::WrongSize => {
                ("wrong size at the free of", "this object was allocated with another size")
            }
            Misuse::UseAfterFree => {
                ("use after free of", "this object was written after it was freed")
            }
        };
        diagnostics::line(format_args!(
            "{name} {object:p}: {why}; the program is stopped (SIGABRT)"
        ));
        sys::abort()
    }
}

/// Zeroed private memory at a multiple of `align`, or null.
fn map_aligned(len: usize, align: usize, page: usize) -> *mut u8 {
    let start = sys::map_anonymous(len, READ_WRITE, 0);
    if start.is_null() || start.addr().is_multiple_of(align) {
        return start;
    }
    // SAFETY: the mapping is new and nobody knows it.
    unsafe { sys::unmap(start, len) };
    let Some(wide) = len.checked_add(align - page) else { return core::ptr::null_mut() };
    let start = sys::map_anonymous(wide, READ_WRITE, 0);
    if start.is_null() {
        return start;
    }
    let before = start.addr().next_multiple_of(align) - start.addr();
    let after = wide - len - before;
    // SAFETY: both ends lie in the new mapping, outside the part that is returned. If the kernel
    // refuses to cut (map count), they merely stay.
    unsafe {
        let aligned = start.add(before);
        if before > 0 {
            sys::unmap(start, before);
        }
        if after > 0 {
            sys::unmap(aligned.add(len), after);
        }
        aligned
    }
}
