//! `_Fork(3)`, which runs no handlers: wrapped, so that the heap's own are around it all the same.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::{fork, libc, start, tls};

type Fork = unsafe extern "C" fn() -> c_int;

/// The C library's `_Fork`, found when the library is loaded: looking it up may allocate, and `_Fork` may be called
/// where nothing may.
static REAL: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn find_real() {
    REAL.store(libc::next_definition(c"_Fork"), Ordering::Release);
}

/// `_Fork(3)`: fork without handlers, except the heap's own.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    let mut real = REAL.load(Ordering::Acquire);
    if real.is_null() {
        find_real();
        real = REAL.load(Ordering::Acquire);
    }
    if real.is_null() {
        libc::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: `_Fork` takes nothing and returns a process number.
    let real = unsafe { core::mem::transmute::<*mut core::ffi::c_void, Fork>(real) };
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
