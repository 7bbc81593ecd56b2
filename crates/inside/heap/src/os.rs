//! The seam to the operating system: what the heap needs from it, as a trait so that tests and
//! Miri run on ordinary memory.
//!
//! Nothing here may allocate through the heap, and nothing may change `errno`: `free` must keep it
//! (POSIX 2024).

use crate::sync::AtomicU64;

/// A use of the heap that is an error of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The object was freed before.
    DoubleFree,
    /// The pointer is not the start of an object of this heap.
    WildFree,
    /// Memory past the end of an object was written (hardened mode).
    Overflow,
    /// Memory just before or behind an object was written (hardened mode).
    OutOfBounds,
    /// A freed object was written (hardened mode).
    UseAfterFree,
    /// A sized free named another size than the object was allocated with (hardened mode).
    WrongSize,
}

/// The operating system, as the heap sees it.
pub trait Os: Sync {
    /// Size of a page in bytes; a power of two that does not change.
    fn page_size(&self) -> usize;

    /// Takes `len` bytes of zeroed, private, anonymous memory at a multiple of `align` (both
    /// multiples of the page size); null if there is none.
    fn map(&self, len: usize, align: usize) -> *mut u8;

    /// As [`Os::map`], for the heap's own tables: they are reserved at once and taken as needed.
    fn map_tables(&self, len: usize, align: usize) -> *mut u8 {
        self.map(len, align)
    }

    /// As [`Os::map`], for chunks: memory that compaction may work on and that is never [remapped](Os::remap).
    fn map_chunks(&self, len: usize, align: usize) -> *mut u8 {
        self.map(len, align)
    }

    /// Gives a mapping, or a page-aligned part of one, back.
    ///
    /// # Safety
    /// `start..start + len` came from [`Os::map`] or [`Os::remap`] and nothing uses it any more.
    unsafe fn unmap(&self, start: *mut u8, len: usize);

    /// Gives the memory behind whole pages back; they stay mapped and read as zero.
    ///
    /// # Safety
    /// As [`Os::unmap`], except that the range may be used again afterwards.
    unsafe fn decommit(&self, start: *mut u8, len: usize);

    /// Makes whole pages inaccessible until they are unmapped, and gives the memory behind them back; `false` if that
    /// cannot be done, which the caller puts up with.
    ///
    /// # Safety
    /// As [`Os::unmap`].
    unsafe fn guard(&self, start: *mut u8, len: usize) -> bool {
        let _ = (start, len);
        false
    }

    /// Grows or shrinks a mapping, moving it if need be; null (and nothing changed) on failure.
    ///
    /// # Safety
    /// `start..start + old` is one whole mapping from [`Os::map`] or [`Os::remap`]; on success only the
    /// returned address may be used.
    unsafe fn remap(&self, start: *mut u8, old: usize, new: usize) -> *mut u8;

    /// A monotonic clock in nanoseconds; a coarse one will do.
    fn now_ns(&self) -> u64;

    /// Sleeps while the lower half of `word` holds that of `expected`; may wake for no reason.
    fn wait(&self, word: &AtomicU64, expected: u64);

    /// As [`Os::wait`], for about `ns` at the most.
    fn wait_at_most(&self, word: &AtomicU64, expected: u64, ns: u64) {
        let _ = ns;
        self.wait(word, expected);
    }

    /// A multiple of eight that is the calling thread's alone while it lives; 0 where threads are not told apart. It is
    /// the same in the child of a fork.
    #[inline]
    fn thread(&self) -> usize {
        0
    }

    /// Wakes one sleeper on `word`.
    fn wake(&self, word: &AtomicU64);

    /// Called when a thread leaves the slow path of allocating or freeing, holding no lock of the heap: once every few
    /// tens of small objects, and for each large one. Must be cheap and must not allocate through the heap.
    fn on_slow_path(&self) {}

    /// Unpredictable bits, for keys and seeds.
    fn entropy(&self) -> u64;

    /// Names the error and ends the program; allocates nothing.
    fn misuse(&self, what: Misuse, object: *mut u8) -> !;
}
