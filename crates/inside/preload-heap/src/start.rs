//! The start: at the first call of any function, by whichever thread makes it.
//!
//! That is usually the dynamic loader, before any constructor has run and before the C library knows its environment.
//! So everything is found without it: the environment and the auxiliary vector on the initial stack, or in
//! `/proc/self`.

use core::sync::atomic::{AtomicU64, Ordering};

use pagemill_heap::stats;
use pagemill_preload_sys::sys;

use crate::heap::HEAP;
use crate::helper::state;
use crate::stats::pagemill_stats;
use crate::{copied, diagnostics, environment, exit, fork, settings};

/// Returns when the heap has started.
#[inline]
pub(crate) fn ensure() {
    if !settings::ready() {
        start();
    }
}

#[cold]
#[inline(never)]
fn start() {
    if !settings::begin() {
        return;
    }
    let found = environment::read();
    // SAFETY: this thread starts the heap.
    let settings = unsafe { settings::set(found.settings) };
    HEAP.os().set_page_size(found.page_size);
    HEAP.start(settings.config, &pagemill_stats);
    if let Some(period) = settings.period_ms {
        state::set_period_ms(period);
    }
    publish();
    exit::prepare();
    copied::mark();
    settings::done();

    // From here on the heap works: what follows may allocate.
    fork::register();
    for unusable in settings.unusable() {
        let (variable, value, valid) = (unusable.variable, unusable.value(), unusable.valid);
        diagnostics::unusable(format_args!(
            "{variable}={value} cannot be used; the default holds: {valid}"
        ));
    }
}

/// Fills in the head of the statistics page; the magic number last, by which readers know that it is there.
fn publish() {
    let store = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
    store(&pagemill_stats.version, stats::VERSION);
    store(&pagemill_stats.size, size_of::<stats::StatsPage>() as u64);
    store(&pagemill_stats.pid, u64::from(sys::pid()));
    store(&pagemill_stats.started_ns, sys::clock(sys::CLOCK_MONOTONIC));
    pagemill_stats.magic.store(stats::MAGIC, Ordering::Release);
}
