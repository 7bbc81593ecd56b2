//! The start: at the first call of any function, by whichever thread makes it.
//!
//! That is usually the dynamic loader, before any constructor has run and before the C library knows its environment. So
//! everything is found without it: the environment and the auxiliary vector on the initial stack, or in `/proc/self`.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagemill_heap::stats;

use crate::environment::{self, Settings};
use crate::{HEAP, fork, helper, namespace, pagemill_stats, say, sys, thread};

const COLD: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(COLD);

struct Shared(UnsafeCell<Settings>);

// SAFETY: written by the one thread that starts the heap, before STATE becomes READY; only read afterwards.
unsafe impl Sync for Shared {}

static SETTINGS: Shared = Shared(UnsafeCell::new(Settings::DEFAULT));

/// What the environment asked for; the defaults before the start.
pub(crate) fn settings() -> &'static Settings {
    static DEFAULT: Settings = Settings::DEFAULT;
    if ready() {
        // SAFETY: nothing writes the settings once the state is READY.
        unsafe { &*SETTINGS.0.get() }
    } else {
        &DEFAULT
    }
}

/// Whether the heap has started.
pub(crate) fn ready() -> bool {
    STATE.load(Ordering::Acquire) == READY
}

/// Returns when the heap has started.
#[inline]
pub(crate) fn ensure() {
    if STATE.load(Ordering::Acquire) != READY {
        start();
    }
}

#[cold]
#[inline(never)]
fn start() {
    match STATE.compare_exchange(COLD, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        Err(READY) => return,
        Err(_) => {
            while STATE.load(Ordering::Acquire) != READY {
                sys::futex_wait(&STATE, STARTING, None);
            }
            return;
        }
    }
    let found = environment::read();
    // SAFETY: this thread alone won the exchange, and readers wait for READY.
    let settings = unsafe { &mut *SETTINGS.0.get() };
    *settings = found.settings;
    HEAP.os().set_page_size(found.page_size);
    HEAP.start(settings.config, &pagemill_stats);
    if let Some(period) = settings.period_ms {
        helper::set_period_ms(period);
    }
    publish();
    thread::prepare();
    fork::mark();
    STATE.store(READY, Ordering::Release);
    sys::futex_wake(&STATE, u32::MAX >> 1);

    // From here on the heap works: what follows may allocate.
    fork::register();
    for unusable in settings.unusable() {
        let (variable, value, valid) = (unusable.variable, unusable.value(), unusable.valid);
        say::unusable(format_args!(
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

/// Runs when the library is loaded: a program that never allocates has a heap with statistics too.
extern "C" fn at_load() {
    ensure();
    fork::find_real();
    namespace::find_real();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
