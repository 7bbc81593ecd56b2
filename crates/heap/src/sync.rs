//! Locks and atomics; under `cfg(loom)` the atomics are loom's, so that a model test can explore
//! every interleaving of the very code that runs.
//!
//! A lock is one futex word:
//!
//! ```text
//!  0 free   1 held   2 held, and someone may sleep
//! ```
//!
//! Holds last tens of nanoseconds, so a waiter spins for a moment before it sleeps.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use crate::os::Os;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Times a waiter looks at the word before it sleeps.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// A futex lock.
#[derive(Debug)]
pub struct Lock {
    word: AtomicU32,
}

impl Lock {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(FREE) }
    }

    /// A free lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(FREE) }
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn acquire<O: Os>(&self, os: &O) {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.acquire_contended(os);
        }
    }

    #[cold]
    #[inline(never)]
    fn acquire_contended<O: Os>(&self, os: &O) {
        for _ in 0..SPINS {
            if self.word.load(Ordering::Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            os.wait(&self.word, CONTENDED);
        }
    }

    /// Whether `word` is the lock's.
    pub fn is(&self, word: &AtomicU32) -> bool {
        core::ptr::eq(&raw const self.word, word)
    }

    /// Gives the lock up.
    #[inline]
    pub fn release<O: Os>(&self, os: &O) {
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            os.wake(&self.word);
        }
    }

    /// Makes the lock free whoever held it: for the child of a fork, in which no other thread lives.
    pub fn reset(&self) {
        self.word.store(FREE, Ordering::Release);
    }
}

/// A value that only the holder of its lock can reach.
#[derive(Debug)]
pub struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached through a guard, of which there is one at a time.
unsafe impl<T: Send> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// A free lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// A free lock around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock until the guard is dropped.
    #[inline]
    pub fn lock<'a, O: Os>(&'a self, os: &'a O) -> Guard<'a, T, O> {
        self.lock.acquire(os);
        Guard { locked: self, os }
    }

    /// The lock itself, for the fork handlers.
    pub fn raw(&self) -> &Lock {
        &self.lock
    }
}

/// The right to a [`Locked`] value.
#[derive(Debug)]
pub struct Guard<'a, T, O: Os> {
    locked: &'a Locked<T>,
    os: &'a O,
}

impl<T, O: Os> Deref for Guard<'_, T, O> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held for as long as the guard lives, so nobody else has the value.
        unsafe { &*self.locked.value.get() }
    }
}

impl<T, O: Os> DerefMut for Guard<'_, T, O> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; the guard is borrowed mutably, so there is one reference.
        unsafe { &mut *self.locked.value.get() }
    }
}

impl<T, O: Os> Drop for Guard<'_, T, O> {
    #[inline]
    fn drop(&mut self) {
        self.locked.lock.release(self.os);
    }
}
