//! `_Fork(3)`, which runs no handlers: wrapped, so that the heap's own are around it all the same.

use core::ffi::c_int;

use pagemill_preload_sys::libc;
use pagemill_preload_sys::next::{next_definitions, real};

use crate::{fork, start, tls};

// Found when the library is loaded: looking it up may allocate, and `_Fork` may be called where nothing may.
next_definitions! {
    FORK = c"_Fork",
}

/// `_Fork(3)`: fork without handlers, except the heap's own.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    let Some(real) = real!(FORK, unsafe extern "C" fn() -> c_int) else {
        libc::set_errno(libc::ENOSYS);
        return -1;
    };
    start::ensure();
    if tls::fork() != tls::NO_FORK {
        // SAFETY: the handlers of `fork` are around this call already.
        return unsafe { real() };
    }
    // SAFETY: the same steps in the same order as the C library's fork.
    unsafe {
        fork::before();
        let child = real();
        if child == 0 {
            fork::in_child()
        } else {
            fork::in_parent()
        }
        child
    }
}
