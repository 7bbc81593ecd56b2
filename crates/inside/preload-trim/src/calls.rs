//! The functions of the C library that are seen on their way.
//!
//! | function | why |
//! |---|---|
//! | `free` | tells when there may be a heap worth it |
//! | `unshare`, `setns` | refused to a process of several threads; the thread ends before, and may begin again after |
//! | `prctl` | comes before a filter of system calls: from then on there is no thread of ours |

use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::Ordering;

use pagemill_preload_sys::libc::answer;
use pagemill_preload_sys::next::{next_definitions, real};
use pagemill_preload_sys::sys;

use crate::gate;

next_definitions! {
    FREE = c"free",
    UNSHARE = c"unshare",
    SETNS = c"setns",
    PRCTL = c"prctl",
}

/// Where the next `free` is.
pub(crate) fn next_free() -> *mut c_void {
    FREE.load(Ordering::Acquire)
}

/// `free(3)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    type Free = unsafe extern "C" fn(*mut c_void);
    if memory.is_null() {
        return;
    }
    // SAFETY: it is being freed, so it is still an object of malloc.
    unsafe { gate::pass(memory) };
    // What a look-up of this very function frees is left, for nobody can free it yet.
    if let Some(real) = real!(FREE, Free) {
        // SAFETY: the caller's promise.
        unsafe { real(memory) };
    }
}

/// `unshare(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    type Unshare = unsafe extern "C" fn(c_int) -> c_int;
    let call = || match real!(UNSHARE, Unshare) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(flags) },
        None => answer(sys::unshare(flags)) as c_int,
    };
    if sys::unshare_needs_one_thread(flags) { gate::without(call) } else { call() }
}

/// `setns(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    type Enter = unsafe extern "C" fn(c_int, c_int) -> c_int;
    let call = || match real!(SETNS, Enter) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(fd, kind) },
        None => answer(sys::set_namespace(fd, kind)) as c_int,
    };
    if sys::set_namespace_needs_one_thread(fd, kind) { gate::without(call) } else { call() }
}

/// `prctl(2)`.
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
    const PR_SET_SECCOMP: c_int = 22;
    /// What comes before a filter of whoever is not root.
    const PR_SET_NO_NEW_PRIVS: c_int = 38;
    if matches!(option, PR_SET_SECCOMP | PR_SET_NO_NEW_PRIVS) {
        gate::close();
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
