//! Namespaces that only a process of one thread may enter: the helper ends before the call and starts again after it.
//!
//! The kernel refuses `unshare` of a user namespace, of the address space and of signal handlers, and `setns` into a
//! user or time namespace, to a process of several threads. A program that has one thread of its own must not learn
//! that the heap has another. So the two functions are wrapped; a raw system call cannot be seen and is refused.
//!
//! What was merged stays merged without the helper. A new one starts when the heap next grows and takes the
//! engine over as a forked child does.

use core::ffi::c_int;

use pagemill_preload_sys::next::{known, next_definitions};

use crate::helper::state;
use crate::{libc, sys};

type Unshare = unsafe extern "C" fn(c_int) -> c_int;
type Setns = unsafe extern "C" fn(c_int, c_int) -> c_int;

// Found when the library is loaded: looking one up may allocate and so start a helper.
next_definitions! {
    UNSHARE = c"unshare",
    SETNS = c"setns",
}

/// Makes `call` without the helper if it needs a single thread.
fn alone(needed: bool, call: impl Fn() -> c_int) -> c_int {
    if needed { state::without(call) } else { call() }
}

/// `unshare(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    alone(sys::unshare_needs_one_thread(flags), || match known!(UNSHARE, Unshare) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(flags) },
        None => libc::answer(sys::unshare(flags)) as c_int,
    })
}

/// `setns(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    alone(sys::set_namespace_needs_one_thread(fd, kind), || match known!(SETNS, Setns) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(fd, kind) },
        None => libc::answer(sys::set_namespace(fd, kind)) as c_int,
    })
}
