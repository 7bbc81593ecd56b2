//! The functions of the C library that are seen on their way.
//!
//! | function | why |
//! |---|---|
//! | `free` | tells when there may be a heap worth it |
//! | `prctl` | comes before a filter of system calls: from then on there is no thread of ours |

use core::ffi::{c_int, c_ulong, c_void};
use core::sync::atomic::Ordering;

use pagemill_preload_sys::interposed::comes_before_filter;
use pagemill_preload_sys::next::{next_definitions, real};

use crate::gate;

next_definitions! {
    FREE = c"free",
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

pagemill_preload_sys::interposed::prctl_after!(before_prctl);

fn before_prctl(option: c_int, _: c_ulong, _: c_ulong) {
    if comes_before_filter(option) {
        gate::close();
    }
}
