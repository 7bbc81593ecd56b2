//! Locks: each is one word, of which the lower half is a futex.
//!
//! ```text
//!  0 free     63 .. 3  who holds it (Os::thread)     2 for a fork     1 someone may sleep     0 held
//! ```
//!
//! Holds last tens of nanoseconds, so a waiter spins for a moment before it sleeps.
//!
//! One instruction takes the lock and says for whom, for a fork in a signal handler: the handler may have interrupted
//! its own thread while that held locks, and waiting for those would never end.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::os::Os;
use crate::sync::{AtomicU64, Ordering};

const FREE: u64 = 0;
/// The parts of the word of a lock that is held; threads' numbers have none of these bits.
const HELD: u64 = 1;
const CONTENDED: u64 = 2;
const FOR_FORK: u64 = 4;

/// Times a waiter looks at the word before it sleeps.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// How long a fork sleeps for a lock between two looks at whether it should go on.
const LOOK_NS: u64 = 1_000_000;

/// A futex lock.
#[derive(Debug)]
pub struct Lock(AtomicU64);

fn held_by<O: Os>(os: &O) -> u64 {
    os.thread() as u64 | HELD
}

impl Lock {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU64::new(FREE))
    }

    /// A free lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU64::new(FREE))
    }

    #[inline]
    fn try_acquire(&self, held: u64) -> bool {
        self.0.compare_exchange(FREE, held, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// As [`Lock::try_acquire`], some times.
    fn spin(&self, held: u64) -> bool {
        (0..SPINS).any(|_| {
            core::hint::spin_loop();
            self.0.load(Ordering::Relaxed) == FREE && self.try_acquire(held)
        })
    }

    /// Takes the lock if it is free; else what it holds while the caller sleeps, of which whoever gives it up knows.
    fn acquire_or_contend(&self, held: u64) -> Option<u64> {
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            let (next, order) = match seen {
                // Others may sleep, too, of whom this one knows nothing.
                FREE => (held | CONTENDED, Ordering::Acquire),
                _ => (seen | CONTENDED, Ordering::Relaxed),
            };
            if seen == next || self.0.compare_exchange(seen, next, order, Ordering::Relaxed).is_ok()
            {
                return (seen != FREE).then_some(next);
            }
        }
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn acquire<O: Os>(&self, os: &O) {
        let held = held_by(os);
        if !self.try_acquire(held) {
            self.acquire_contended(os, held);
        }
    }

    #[cold]
    #[inline(never)]
    fn acquire_contended<O: Os>(&self, os: &O, held: u64) {
        if !self.spin(held) {
            while let Some(seen) = self.acquire_or_contend(held) {
                os.wait(&self.0, seen);
            }
        }
    }

    /// Whether the calling thread holds it: in a signal handler, whether it interrupted the holder.
    pub fn is_mine<O: Os>(&self, os: &O) -> bool {
        let held = held_by(os);
        held != HELD && self.0.load(Ordering::Relaxed) & !CONTENDED == held
    }

    /// Whether the calling thread holds it, as [`Lock::is_mine`], and another may sleep until it is given up.
    pub fn is_awaited<O: Os>(&self, os: &O) -> bool {
        self.is_mine(os) && self.0.load(Ordering::Relaxed) & CONTENDED != 0
    }

    /// For a fork: takes the lock, unless the calling thread holds it or others do until `in_vain`.
    pub fn acquire_for_fork<O: Os>(&self, os: &O, in_vain: impl Fn() -> bool) -> bool {
        let held = held_by(os) | FOR_FORK;
        if self.is_mine(os) || self.try_acquire(held) || self.spin(held) {
            return true;
        }
        while let Some(seen) = self.acquire_or_contend(held) {
            if in_vain() {
                // The lock may have been given up to this one.
                os.wake(&self.0);
                return false;
            }
            os.wait_at_most(&self.0, seen, LOOK_NS);
        }
        true
    }

    /// After a fork, in the parent: gives up a lock that was taken for it.
    pub fn release_after_fork<O: Os>(&self, os: &O) {
        if self.0.load(Ordering::Relaxed) & !CONTENDED == held_by(os) | FOR_FORK {
            self.release(os);
        }
    }

    /// Whether `word` is the lock's.
    pub fn is(&self, word: &AtomicU64) -> bool {
        core::ptr::eq(&raw const self.0, word)
    }

    /// Gives the lock up.
    #[inline]
    pub fn release<O: Os>(&self, os: &O) {
        if self.0.swap(FREE, Ordering::Release) & CONTENDED != 0 {
            os.wake(&self.0);
        }
    }

    /// For the child of a fork, in which no other thread lives: makes the lock free, unless the calling thread itself
    /// held it before the handler that forked interrupted it, and will give it up.
    pub fn reset<O: Os>(&self, os: &O) {
        if !self.is_mine(os) {
            self.0.store(FREE, Ordering::Release);
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::os::Misuse;

    /// An operating system without memory whose current thread has this number.
    struct Threads(core::cell::Cell<usize>);

    // SAFETY: each test has its own, on one thread.
    unsafe impl Sync for Threads {}

    impl Os for Threads {
        fn page_size(&self) -> usize {
            4096
        }

        fn map(&self, _: usize, _: usize) -> *mut u8 {
            core::ptr::null_mut()
        }

        unsafe fn unmap(&self, _: *mut u8, _: usize) {}

        unsafe fn decommit(&self, _: *mut u8, _: usize) {}

        unsafe fn remap(&self, _: *mut u8, _: usize, _: usize) -> *mut u8 {
            core::ptr::null_mut()
        }

        fn now_ns(&self) -> u64 {
            0
        }

        fn wait(&self, _: &AtomicU64, _: u64) {}

        fn wake(&self, _: &AtomicU64) {}

        fn thread(&self) -> usize {
            self.0.get()
        }

        fn entropy(&self) -> u64 {
            1
        }

        fn misuse(&self, what: Misuse, object: *mut u8) -> ! {
            panic!("{what:?} of {object:?}")
        }
    }

    /// Between taking a lock and saying so a thread was interrupted by a handler that forked: again and again, as the
    /// next signal came while that looked for half a millisecond whether somebody would say so.
    #[test]
    fn a_lock_says_whose_it_is_as_long_as_it_is_held() {
        let (lock, os) = (Lock::new(), Threads(8.into()));
        lock.acquire(&os);
        assert!(lock.is_mine(&os) && !lock.is_awaited(&os));
        os.0.set(16);
        assert!(!lock.is_mine(&os));
        assert!(!lock.acquire_for_fork(&os, || true), "it is another thread's");
        assert!(!lock.is_awaited(&os), "by a thread that does not hold it");
        lock.reset(&os);
        os.0.set(8);
        assert!(!lock.is_mine(&os), "the thread that held it is not in the child");
    }

    #[test]
    fn who_forks_within_a_lock_keeps_it_and_knows_who_waits() {
        let (lock, os) = (Lock::new(), Threads(8.into()));
        lock.acquire(&os);
        os.0.set(16);
        assert!(!lock.acquire_for_fork(&os, || true));
        os.0.set(8);
        assert!(lock.is_mine(&os) && lock.is_awaited(&os));
        assert!(lock.acquire_for_fork(&os, || unreachable!("it is had")));
        lock.release_after_fork(&os);
        lock.reset(&os);
        assert!(lock.is_mine(&os), "it is given up by whom the handler interrupted");
        lock.release(&os);
        assert!(!lock.is_mine(&os));
    }

    #[test]
    fn a_lock_that_was_taken_for_a_fork_goes_with_it() {
        let (lock, os) = (Lock::new(), Threads(8.into()));
        assert!(lock.acquire_for_fork(&os, || unreachable!("it is free")));
        assert!(!lock.is_mine(&os), "nobody was interrupted within it");
        lock.release_after_fork(&os);
        assert!(lock.acquire_for_fork(&os, || unreachable!("it is free")));
    }
}
