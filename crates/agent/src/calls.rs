//! The C library's functions that are watched. Each does what the C library's does and nothing else that the program could see.
//!
//! | function | why |
//! |---|---|
//! | `mmap`, `mmap64` | a new mapping is looked at when it is made, not when the helper next looks around; one with no room for a huge page is advised at once, so that its faults bring 64 KiB |
//! | `madvise`, `prctl` | where the program does not want huge pages |
//! | `mremap` | refused for a range of two mappings: what we advised in part is advised as a whole then |
//! | `mlockall` | locked memory is not added to: the helper ends |
//! | `unshare`, `setns` | refused to a process of several threads; the helper ends before and starts again after |
//!
//! The C library's own calls (malloc's `mmap` and `brk`) do not come by here; the helper finds what they map by itself.

use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use pagemill_huge::HUGE;

use crate::{helper, kernel, libc, notes, sys};

type Symbol = AtomicPtr<c_void>;

static MMAP: Symbol = AtomicPtr::new(core::ptr::null_mut());
static MMAP64: Symbol = AtomicPtr::new(core::ptr::null_mut());
static MREMAP: Symbol = AtomicPtr::new(core::ptr::null_mut());
static MADVISE: Symbol = AtomicPtr::new(core::ptr::null_mut());
static PRCTL: Symbol = AtomicPtr::new(core::ptr::null_mut());
static MLOCKALL: Symbol = AtomicPtr::new(core::ptr::null_mut());
static UNSHARE: Symbol = AtomicPtr::new(core::ptr::null_mut());
static SETNS: Symbol = AtomicPtr::new(core::ptr::null_mut());

/// Looks up the next definitions, while there is one thread: a look-up may allocate.
pub(crate) fn find_real() {
    let symbols = [
        (&MMAP, c"mmap"),
        (&MMAP64, c"mmap64"),
        (&MREMAP, c"mremap"),
        (&MADVISE, c"madvise"),
        (&PRCTL, c"prctl"),
        (&MLOCKALL, c"mlockall"),
        (&UNSHARE, c"unshare"),
        (&SETNS, c"setns"),
    ];
    for (place, name) in symbols {
        place.store(libc::next_definition(name), Ordering::Release);
    }
}

/// What the C library's functions return: the result, or -1 and `errno`.
fn answer(result: isize) -> isize {
    if sys::failed(result) {
        libc::set_errno(-result as c_int);
        return -1;
    }
    result
}

/// "Bad address".
const EFAULT: c_int = 14;

/// The calling thread's `errno`.
fn errno() -> Option<c_int> {
    // SAFETY: the address of the thread's own errno.
    libc::errno_place().map(|place| unsafe { *place })
}

/// The next definition as a function of this type, if it was found.
macro_rules! real {
    ($symbol:ident, $type:ty) => {{
        let address = $symbol.load(Ordering::Acquire);
        // SAFETY: a symbol of this name is, by the C library's interface, a function of this type; `Option` of a
        // function pointer is null for none.
        unsafe { core::mem::transmute::<*mut c_void, Option<$type>>(address) }
    }};
}

type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, c_long) -> *mut c_void;

/// The smallest mapping that is looked at when it is made.
const LEAST: usize = 1 << 20;

/// The smallest mapping that is worth larger pages.
const LEAST_ADVISED: usize = 64 << 10;

/// The smallest mapping whose first pages are waited for, a millisecond at most: they take the place of its first
/// faults, which would take as long.
const WAITED_FOR: usize = 64 << 20;

/// Notes a mapping of memory that may grow into.
fn note(mapped: *mut c_void, len: usize, protection: c_int, flags: c_int) {
    const MAP_GROWSDOWN: c_int = 0x100;
    const MAP_HUGETLB: c_int = 0x4_0000;
    const MAP_STACK: c_int = 0x2_0000;
    let wanted = sys::MAP_PRIVATE as c_int | sys::MAP_ANONYMOUS as c_int;
    let other = 1 | MAP_GROWSDOWN | MAP_HUGETLB | MAP_STACK;
    let grows = flags & (wanted | other) == wanted && protection & sys::PROT_WRITE as c_int != 0;
    if !grows || len < LEAST_ADVISED || mapped.addr() == usize::MAX {
        return;
    }
    let (start, end) = (mapped.addr() as u64, (mapped.addr() + len) as u64);
    if len < HUGE as usize && notes::advises_small() && !notes::is_refused(start, end) {
        kernel::want_huge(start, len as u64);
        notes::mapped_small(len);
    } else if len >= LEAST {
        let note = notes::mapped(mapped.addr(), len);
        helper::wanted();
        if len >= WAITED_FOR {
            helper::wait_for(note);
        }
    }
}

/// `mmap` by the next definition, or without one by the system call; the mapping is noted.
///
/// # Safety
/// As for `mmap`.
unsafe fn map_noted(
    real: Option<Map>,
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    let mapped = match real {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(at, len, protection, flags, fd, offset) },
        // SAFETY: the caller's promise.
        None => unsafe { map(at, len, protection, flags, fd, offset) },
    };
    note(mapped, len, protection, flags);
    mapped
}

/// `mmap(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    let real = real!(MMAP, Map);
    // SAFETY: the caller's promise.
    unsafe { map_noted(real, at, len, protection, flags, fd, offset) }
}

/// `mmap64`, which is `mmap` on 64-bit machines.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    let real = real!(MMAP64, Map);
    // SAFETY: the caller's promise.
    unsafe { map_noted(real, at, len, protection, flags, fd, offset) }
}

/// The system call, for a call that comes before the next definition was looked up.
///
/// # Safety
/// As for `mmap`.
unsafe fn map(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    let arguments =
        [at.addr(), len, protection as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: the caller's promise.
    answer(unsafe { kernel::map(arguments) }) as *mut c_void
}

/// `mremap(2)`; the C declaration takes the new address only with `MREMAP_FIXED`, and passes it as here.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    type Remap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
    let call = || match real!(MREMAP, Remap) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(old, old_len, new_len, flags, new) },
        None => {
            let arguments = [old.addr(), old_len, new_len, flags as usize, new.addr()];
            // SAFETY: the caller's promise.
            answer(unsafe { kernel::remap(arguments) }) as *mut c_void
        }
    };
    let before = errno();
    let moved = call();
    let (start, len) = (old.addr() as u64, old_len as u64);
    let split = moved.addr() == usize::MAX && errno() == Some(EFAULT);
    if !split || !kernel::has_advised() || notes::is_refused(start, start + len) {
        return moved;
    }
    kernel::want_huge(start, len);
    let moved = call();
    if let Some(before) = before.filter(|_| moved.addr() != usize::MAX) {
        libc::set_errno(before);
    }
    moved
}

/// `madvise(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    type Advise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
    if advice == sys::MADV_NOHUGEPAGE as c_int {
        notes::refused(start.addr(), len);
    }
    match real!(MADVISE, Advise) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(start, len, advice) },
        // SAFETY: the caller's promise.
        None => answer(unsafe { sys::advise(start.cast(), len, advice as usize) }) as c_int,
    }
}

/// `prctl(2)`; the C declaration takes any number of further arguments, and passes them as here.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    type Control = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    const PR_SET_THP_DISABLE: c_int = 41;
    if option == PR_SET_THP_DISABLE && a != 0 && b == 0 {
        notes::refused_all();
    }
    match real!(PRCTL, Control) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(option, a, b, c, d) },
        None => {
            let [a, b, c, d] = [a, b, c, d].map(|word| word as usize);
            // SAFETY: the caller's promise.
            answer(unsafe { sys::prctl(option as usize, a, b, c, d) }) as c_int
        }
    }
}

/// `mlockall(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    type Lock = unsafe extern "C" fn(c_int) -> c_int;
    helper::retire();
    match real!(MLOCKALL, Lock) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(flags) },
        None => answer(-(libc::ENOSYS as isize)) as c_int,
    }
}

/// `unshare(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    type Unshare = unsafe extern "C" fn(c_int) -> c_int;
    /// New user namespace, CLONE_THREAD, CLONE_SIGHAND, CLONE_VM.
    const SINGLE: c_int = 0x1000_0000 | 0x1_0000 | 0x800 | 0x100;
    let call = || match real!(UNSHARE, Unshare) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(flags) },
        None => answer(sys::unshare(flags)) as c_int,
    };
    if flags & SINGLE != 0 { helper::without(call) } else { call() }
}

/// `setns(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    type Enter = unsafe extern "C" fn(c_int, c_int) -> c_int;
    /// User and time namespaces.
    const SINGLE: c_int = 0x1000_0000 | 0x80;
    // Kind 0 takes whatever the descriptor is.
    let entered = if kind == 0 { sys::namespace_kind(fd) } else { kind };
    let call = || match real!(SETNS, Enter) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(fd, kind) },
        None => answer(sys::set_namespace(fd, kind)) as c_int,
    };
    if entered & SINGLE != 0 { helper::without(call) } else { call() }
}
