//! Threads: when one gets its cache and when it gives it back.
//!
//! ```text
//!  fresh ──first call──► attached ──exit, 1st round──► closing ──2nd round──► closed
//!    └──────── no key, or no memory ─────────────────────────────────────────────┘
//! ```
//!
//! A thread is attached at its first malloc. A `pthread` key's destructor tells of its exit; other keys' destructors
//! may run after it and free more, so the first round only arms the key again and the cache goes with the second. What
//! the C library frees after that, and what a thread does while it has no cache, goes to the heap without one: slower,
//! never leaked.

use pagemill_heap::Cache;
use pagemill_preload_sys::{libc, sys};

use crate::exit::{self, ATTACHED, CLOSED, FRESH};
use crate::heap::HEAP;
use crate::{interim, start, tls};

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
    let key = exit::key();
    // Without a key nobody tells of a thread's exit. The main thread's is the process's.
    if key.is_none() && sys::pid() != sys::tid() {
        tls::set_state(CLOSED);
        return core::ptr::null_mut();
    }
    // From here on a call from within (a signal handler, or calloc by pthread_setspecific for a late key)
    // finds the state changed and does not come here again.
    tls::set_state(ATTACHED);
    let cache = interim::within(|| HEAP.attach()).unwrap_or(core::ptr::null_mut());
    if cache.is_null() {
        tls::set_state(FRESH);
        return cache;
    }
    tls::set_cache(cache);
    if key.is_some_and(|key| !libc::set_thread_value(key, cache.cast())) {
        exit::close(cache);
        return core::ptr::null_mut();
    }
    cache
}
