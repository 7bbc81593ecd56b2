//! Signs of life of this process, counted in memory that whoever watches it has too ([`crate::process::keeper`]).
//!
//! To be given within each bound that a wait has, by code that knows no watcher.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static COUNT: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// A sign of life.
pub fn beat() {
    // SAFETY: null, or from the `&'static AtomicU64` that `count_in` was given.
    if let Some(count) = unsafe { COUNT.load(Ordering::Relaxed).as_ref() } {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Signs of life are counted here from now on.
pub(crate) fn count_in(count: &'static AtomicU64) {
    COUNT.store((&raw const *count).cast_mut(), Ordering::Relaxed);
}
