//! What the environment asked for, as all may read it once the heap has started.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use pagemill_preload_sys::sys;

use crate::environment::Settings;

const COLD: u32 = 0;
const STARTING: u32 = 1;
const READY: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(COLD);

struct Shared(UnsafeCell<Settings>);

// SAFETY: written by the one thread that starts the heap, before STATE becomes READY; only read afterwards.
unsafe impl Sync for Shared {}

static SETTINGS: Shared = Shared(UnsafeCell::new(Settings::DEFAULT));

/// What the environment asked for; the defaults before the start.
pub(crate) fn get() -> &'static Settings {
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

/// Whether the calling thread is the one that starts the heap, which then calls [`set`] and [`done`]. Otherwise it has
/// started when this returns.
pub(crate) fn begin() -> bool {
    match STATE.compare_exchange(COLD, STARTING, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => true,
        Err(READY) => false,
        Err(_) => {
            while !ready() {
                sys::futex_wait(&STATE, STARTING, None);
            }
            false
        }
    }
}

/// Sets what [`get`] returns once the start is [`done`].
///
/// # Safety
/// [`begin`] said that the calling thread starts the heap, and it is not [`done`].
pub(crate) unsafe fn set(settings: Settings) -> &'static Settings {
    // SAFETY: the caller alone won the exchange, and readers wait for READY.
    unsafe {
        *SETTINGS.0.get() = settings;
        &*SETTINGS.0.get()
    }
}

/// The heap has started.
pub(crate) fn done() {
    STATE.store(READY, Ordering::Release);
    sys::futex_wake(&STATE, u32::MAX >> 1);
}
