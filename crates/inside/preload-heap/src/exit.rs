//! The end of a thread: its cache goes back to the heap. `thread.rs` has the picture.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use pagemill_heap::Cache;
use pagemill_preload_sys::libc;

use crate::heap::HEAP;
use crate::{interim, tls};

pub(crate) const FRESH: usize = 0;
pub(crate) const ATTACHED: usize = 1;
const CLOSING: usize = 2;
pub(crate) const CLOSED: usize = 3;

/// Stands for "there is no key".
const NO_KEY: u32 = u32::MAX;

static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Makes the key; once, at the start.
pub(crate) fn prepare() {
    KEY.store(libc::thread_key(leave).unwrap_or(NO_KEY), Ordering::Relaxed);
}

/// The key, by whose value a thread's exit is told; `None` if there is none.
pub(crate) fn key() -> Option<u32> {
    Some(KEY.load(Ordering::Relaxed)).filter(|key| *key != NO_KEY)
}

/// The key's destructor.
unsafe extern "C" fn leave(value: *mut c_void) {
    let key = KEY.load(Ordering::Relaxed);
    if tls::state() == ATTACHED {
        tls::set_state(CLOSING);
        if libc::set_thread_value(key, value) {
            return;
        }
    }
    close(value.cast());
}

/// Gives the calling thread's cache back, for good.
pub(crate) fn close(cache: *mut Cache) {
    tls::set_cache(core::ptr::null_mut());
    tls::set_state(CLOSED);
    // A thread that ends in a handler which interrupted it within the heap leaves its cache behind.
    // SAFETY: the cache is this thread's, and the only reference to it was cleared.
    interim::within(|| unsafe { HEAP.detach(cache) });
}
