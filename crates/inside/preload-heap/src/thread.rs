//! Threads: when one gets its cache and when it gives it back.
//!
//! ```text
//!  fresh ──first call──► attached ──exit, 1st round──► closing ──2nd round──► closed
//!    └──────── no key, or no memory ─────────────────────────────────────────────┘
//! ```
//!
//! A thread is attached at its first malloc. A `pthread` key's destructor tells of its exit; other keys' destructors may run after
//! it and free more, so the first round only arms the key again and the cache goes with the second. What the C library
//! frees after that, and what a thread does while it has no cache, goes to the heap without one: slower, never leaked.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};

use pagemill_heap::Cache;

use crate::{HEAP, libc, start, sys, tls};

const FRESH: usize = 0;
const ATTACHED: usize = 1;
const CLOSING: usize = 2;
const CLOSED: usize = 3;

/// Stands for "there is no key".
const NO_KEY: u32 = u32::MAX;

static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// Makes the key; once, at the start.
pub(crate) fn prepare() {
    KEY.store(libc::thread_key(leave).unwrap_or(NO_KEY), Ordering::Relaxed);
}

/// The calling thread's cache; made now if it is fresh. Null if it has none.
#[inline(always)]
pub(crate) fn cache() -> *mut Cache {
    let cache = tls::cache();
    if cache.is_null() { without_cache() } else { cache }
}

/// The first call of a thread, and every call of one that is closed.
#[cold]
#[inline(never)]
fn without_cache() -> *mut Cache {
    start::ensure();
    if tls::state() != FRESH {
        return core::ptr::null_mut();
    }
    let key = KEY.load(Ordering::Relaxed);
    // Without a key nobody tells of a thread's exit. The main thread's is the process's.
    if key == NO_KEY && sys::pid() != sys::tid() {
        tls::set_state(CLOSED);
        return core::ptr::null_mut();
    }
    // From here on a call from within (a signal handler, or calloc by pthread_setspecific for a late key)
    // finds the state changed and does not come here again.
    tls::set_state(ATTACHED);
    let cache = HEAP.attach();
    if cache.is_null() {
        tls::set_state(FRESH);
        return cache;
    }
    tls::set_cache(cache);
    if key != NO_KEY && !libc::set_thread_value(key, cache.cast()) {
        close(cache);
        return core::ptr::null_mut();
    }
    cache
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

fn close(cache: *mut Cache) {
    tls::set_cache(core::ptr::null_mut());
    tls::set_state(CLOSED);
    // SAFETY: the cache is this thread's, and the only reference to it was cleared.
    unsafe { HEAP.detach(cache) };
}
