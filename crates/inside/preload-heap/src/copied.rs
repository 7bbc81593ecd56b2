//! Copies of the process: what a child does first, and a page that the kernel wipes in one that no handler told.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use pagemill_preload_sys::sys;

use crate::heap::HEAP;
use crate::helper::work;
use crate::stats::pagemill_stats;
use crate::{refresh, tls};

/// What the page holds in the process that marked it.
const MARK: u32 = 0x5041_4745;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// Makes and marks the page; once, at the start. Without it (an old kernel) only the handlers work.
pub(crate) fn mark() {
    use pagemill_heap::os::Os;
    let len = HEAP.os().page_size();
    let page = sys::map_anonymous(len, sys::PROT_READ | sys::PROT_WRITE, 0);
    if page.is_null() {
        return;
    }
    // SAFETY: a new private page that holds nothing yet.
    if sys::failed(unsafe { sys::advise(page, len, sys::MADV_WIPEONFORK) }) {
        // SAFETY: as above; nobody knows the page.
        unsafe { sys::unmap(page, len) };
        return;
    }
    let page = page.cast::<AtomicU32>();
    // SAFETY: a page holds and aligns the word, and it is never unmapped.
    unsafe { (*page).store(MARK, Ordering::Relaxed) };
    PAGE.store(page, Ordering::Release);
}

/// If this process is a copy that no handler told: makes the locks new. Whether it was one.
pub(crate) fn repair() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: the page is never unmapped once it is stored.
    if page.is_null() || unsafe { (*page).load(Ordering::Relaxed) } == MARK {
        return false;
    }
    renew(false);
    true
}

/// What every child does first; `told`: the handlers were around the fork.
pub(crate) fn renew(told: bool) {
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: as in `repair`.
        unsafe { (*page).store(MARK, Ordering::Relaxed) };
    }
    tls::set_fork(tls::NO_FORK);
    // SAFETY: a copy of a process has one thread, this one.
    unsafe { HEAP.reinitialise_locks() };
    pagemill_stats.pid.store(u64::from(sys::pid()), Ordering::Relaxed);
    // What the parent offered to `ksmd` is not offered once more by the copy.
    pagemill_stats.ksm_offered.store(0, Ordering::Relaxed);
    work::forget(told);
    refresh::forget();
}
