//! When the thread begins, and that it is not there where it may not be.
//!
//! Objects that are given back are looked at by their address: one in [`ONE_IN`] by a hash of it, and all large ones.
//! Most of those write one word that threads share, and one in [`EVERY`] asks the kernel how far the heap has grown.
//! What is looked at costs no lock and no allocation; `pthread_create` allocates, which is why it is called from here,
//! where the program holds no lock of malloc's.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pagemill_preload_sys::helper::{FAILED, OFF};
use pagemill_preload_sys::libc;
use pagemill_preload_sys::sys::{self, linux};

use crate::watch::{self, HELPER};

/// So many objects that are given back, by address, are one that is looked at.
const ONE_IN: usize = 16;
/// So many that are looked at are one for which the kernel is asked.
const EVERY: u32 = 16;
/// An object of so many bytes is always looked at.
const LARGE: usize = 64 << 10;
/// A heap that is worth a thread, bytes beyond what it was at load.
const WORTH: usize = 8 << 20;
/// Memory of a program of several threads, whose arenas are not where the first one grows, at its highest, KiB.
const WORTH_OF_THREADS_KIB: u64 = 32 << 10;
/// Stack of the thread, if the program's thread-local storage leaves it room in that.
const STACK: usize = 256 << 10;

/// Whether the program's malloc is glibc's.
static OPEN: AtomicBool = AtomicBool::new(false);
/// The process that this is known to be: neither a child of `vfork`, which has its parent's memory, nor one of a raw
/// `clone`, of which nobody told.
static PID: AtomicU32 = AtomicU32::new(0);
/// End of the heap when the library was loaded.
static BREAK: AtomicUsize = AtomicUsize::new(0);
static LOOKED: AtomicU32 = AtomicU32::new(0);
/// Bytes at which the kernel was last asked of the memory of a program of threads.
static THREADS: AtomicU64 = AtomicU64::new(0);

/// Opens the gate if there is something behind it: `free`, the program's, is that of glibc's own malloc.
pub(crate) fn open(free: *mut c_void) {
    let trim = libc::next_definition(c"malloc_trim");
    if trim.is_null() || free.is_null() || library_of(trim) != library_of(free) {
        return;
    }
    watch::TRIM.store(trim.addr(), Ordering::Relaxed);
    BREAK.store(program_break(), Ordering::Relaxed);
    PID.store(sys::pid(), Ordering::Relaxed);
    libc::at_fork(nothing, nothing, in_child);
    OPEN.store(true, Ordering::Release);
}

/// Start of the library that an address is in; null if that cannot be found out.
fn library_of(address: *mut c_void) -> *mut c_void {
    /// `Dl_info`: file name, start, symbol's name, its address.
    type Info = [*mut c_void; 4];
    type Lookup = unsafe extern "C" fn(*const c_void, *mut Info) -> c_int;
    let mut info: Info = [core::ptr::null_mut(); 4];
    let Some(lookup) = libc::function!("dladdr", Lookup) else { return core::ptr::null_mut() };
    // SAFETY: it reads the loader's tables and writes one Dl_info, which is four pointers.
    if unsafe { lookup(address, &raw mut info) } == 0 { core::ptr::null_mut() } else { info[1] }
}

/// Where the heap ends.
fn program_break() -> usize {
    // SAFETY: asked for an impossible end, the kernel changes nothing and tells the one there is.
    unsafe { sys::call(linux::__NR_brk, []) as usize }
}

unsafe extern "C" fn nothing() {}

unsafe extern "C" fn in_child() {
    PID.store(sys::pid(), Ordering::Relaxed);
    HELPER.thread.store(0, Ordering::Relaxed);
    if HELPER.state.load(Ordering::Relaxed) != FAILED {
        HELPER.state.store(OFF, Ordering::Release);
    }
}

/// An object is given back.
///
/// # Safety
/// It is an object of malloc's.
#[inline(always)]
pub(crate) unsafe fn pass(memory: *mut c_void) {
    if HELPER.state.load(Ordering::Relaxed) != OFF || !OPEN.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: the gate is open, so malloc is glibc's: the word before an object is its size, with three bits of flags.
    let size = unsafe { memory.cast::<usize>().sub(1).read() };
    let hash = memory.addr().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    if size >= LARGE || hash.is_multiple_of(ONE_IN) {
        sample(size >= LARGE);
    }
}

#[cold]
fn sample(large: bool) {
    // Threads may lose each other's counts: it is a matter of how often.
    let looked = LOOKED.load(Ordering::Relaxed).wrapping_add(1);
    LOOKED.store(looked, Ordering::Relaxed);
    if (large || looked.is_multiple_of(EVERY)) && worth() {
        begin();
    }
}

/// Whether there is a heap worth a thread.
fn worth() -> bool {
    if sys::pid() != PID.load(Ordering::Relaxed) {
        return false;
    }
    if program_break().saturating_sub(BREAK.load(Ordering::Relaxed)) >= WORTH {
        return true;
    }
    has_threads() && most_kib() >= WORTH_OF_THREADS_KIB
}

/// Whether the program has started threads.
fn has_threads() -> bool {
    let place = libc::weak!("__libc_single_threaded");
    // SAFETY: a byte of the C library's (2.32), for as long as the process lives; threads may write it.
    place != 0 && unsafe { core::ptr::with_exposed_provenance::<u8>(place).read_volatile() } == 0
}

/// The most memory that the process has had, KiB.
fn most_kib() -> u64 {
    /// `struct rusage`: two times of two words, then the maximum resident set, in 18 words.
    const WORDS: usize = 18;
    const MOST: usize = 4;
    let known = THREADS.load(Ordering::Relaxed);
    if known >= WORTH_OF_THREADS_KIB {
        return known;
    }
    let mut usage = [0_u64; WORDS];
    // SAFETY: the kernel writes one struct rusage, which is as long.
    unsafe { sys::call(linux::__NR_getrusage, [0, (&raw mut usage).addr()]) };
    THREADS.store(usage[MOST], Ordering::Relaxed);
    usage[MOST]
}

/// Room for a `pthread_attr_t`, which is 56 bytes on x86-64 and 64 on aarch64.
#[repr(align(16))]
struct Attributes {
    _room: [u8; 128],
}

/// Begins the thread, if nobody else does.
#[cold]
fn begin() {
    type Entry = extern "C" fn(*mut c_void) -> *mut c_void;
    type Create = unsafe extern "C" fn(*mut usize, *const Attributes, Entry, *mut c_void) -> c_int;
    type Change = unsafe extern "C" fn(*mut Attributes) -> c_int;
    type Set = unsafe extern "C" fn(*mut Attributes, usize) -> c_int;
    type SetState = unsafe extern "C" fn(*mut Attributes, c_int) -> c_int;
    const DETACHED: c_int = 1;
    /// Signals 32 and 33 are the C library's own: by them it cancels threads, and changes the user of all of them.
    const OWN: u64 = 3 << 31;
    if !HELPER.claim() {
        return;
    }
    let begun = (|| {
        let create = libc::function!("pthread_create", Create)?;
        let initialise = libc::function!("pthread_attr_init", Change)?;
        let destroy = libc::function!("pthread_attr_destroy", Change)?;
        let set_stack = libc::function!("pthread_attr_setstacksize", Set)?;
        let set_state = libc::function!("pthread_attr_setdetachstate", SetState)?;
        let mut attributes = Attributes { _room: [0; 128] };
        let mut thread = 0;
        let errno = libc::errno_place();
        // SAFETY: the thread's own errno.
        let before = errno.map(|place| unsafe { *place });
        let mask = sys::set_signal_mask(!OWN);
        // SAFETY: the C library's functions, as it documents them; the room is larger than what they write, and the
        // entry is never unloaded.
        let failed = unsafe {
            initialise(&raw mut attributes);
            set_state(&raw mut attributes, DETACHED);
            set_stack(&raw mut attributes, STACK);
            let failed = create(&raw mut thread, &attributes, watch::run, core::ptr::null_mut());
            destroy(&raw mut attributes);
            failed
        };
        sys::set_signal_mask(mask);
        if let Some(before) = before {
            libc::set_errno(before);
        }
        (failed == 0).then_some(())
    })();
    if begun.is_none() {
        HELPER.state.store(FAILED, Ordering::Release);
    }
}

/// Makes `call`, which is refused to a process of several threads, while there is none of ours.
pub(crate) fn without(call: impl Fn() -> c_int) -> c_int {
    HELPER.without(call).0
}

/// There is no thread from here on.
pub(crate) fn close() {
    let end = HELPER.end();
    let state = &HELPER.state;
    if end {
        state.store(FAILED, Ordering::Release);
    } else {
        let _ = state.compare_exchange(OFF, FAILED, Ordering::AcqRel, Ordering::Relaxed);
    }
}
