//! Locks: each is one futex word.
//!
//! ```text
//!  0 free   1 held   2 held, and someone may sleep
//! ```
//!
//! Holds last tens of nanoseconds, so a waiter spins for a moment before it sleeps.
//!
//! Beside it stands who holds it ([`Os::thread`]), for a fork in a signal handler: the handler may have interrupted its
//! own thread while that held locks, and waiting for those would never end. The owner is written right after the lock
//! is taken and cleared right before it is given up. A lock that is held and has no owner is between these two
//! instructions, with nothing begun or all done: in the child of a fork it may be made free also if it is the forking
//! thread's own.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::compiler_fence;

use crate::os::Os;
use crate::sync::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Times a waiter looks at the word before it sleeps.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// Added to the owner of a lock that was taken for a fork; threads' numbers are even.
const FOR_FORK: usize = 1;

/// How long a fork waits for a lock that nobody owns, and between two looks at one.
const UNOWNED_NS: u64 = 20_000_000;
const LOOK_NS: u64 = 1_000_000;

/// A futex lock.
#[derive(Debug)]
pub struct Lock {
    word: AtomicU32,
    /// No part of what a model explores: only the thread itself asks whether it is the owner.
    owner: core::sync::atomic::AtomicUsize,
}

impl Lock {
    /// A free lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(FREE), owner: core::sync::atomic::AtomicUsize::new(0) }
    }

    /// A free lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(FREE), owner: core::sync::atomic::AtomicUsize::new(0) }
    }

    /// Takes the lock, waiting for it if need be.
    #[inline]
    pub fn acquire<O: Os>(&self, os: &O) {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.acquire_contended(os);
        }
        self.own(os.thread());
    }

    #[inline]
    fn own(&self, owner: usize) {
        self.owner.store(owner, Ordering::Relaxed);
        // What the holder does begins after it has said who it is, as a signal handler of its thread sees it.
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn disown(&self) {
        compiler_fence(Ordering::SeqCst);
        self.owner.store(0, Ordering::Relaxed);
    }

    /// Whether the calling thread holds it: in a signal handler, whether it interrupted the holder.
    pub fn is_mine<O: Os>(&self, os: &O) -> bool {
        let me = os.thread();
        me != 0 && self.owner.load(Ordering::Relaxed) == me
    }

    /// Whether somebody holds it and has not said who: for some instructions, and for as long as a signal handler runs
    /// that interrupted its thread at these.
    pub fn is_unowned(&self) -> bool {
        self.word.load(Ordering::Relaxed) != FREE && self.owner.load(Ordering::Relaxed) == 0
    }

    /// For a fork: takes the lock, unless the calling thread holds it or others do until `deadline` (by
    /// [`Os::now_ns`]).
    pub fn acquire_for_fork<O: Os>(&self, os: &O, deadline: u64) -> bool {
        if self.is_mine(os) {
            return true;
        }
        for _ in 0..SPINS {
            if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                self.own(os.thread() | FOR_FORK);
                return true;
            }
            core::hint::spin_loop();
        }
        let mut unowned_until = u64::MAX;
        // From here on as a waiter does: others may sleep, too, of whom this one, woken in their place, knows nothing.
        // Whoever gives the lock up has to wake them.
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            let now = os.now_ns();
            unowned_until = match self.owner.load(Ordering::Relaxed) {
                0 => unowned_until.min(now.saturating_add(UNOWNED_NS)),
                _ => u64::MAX,
            };
            if now >= deadline.min(unowned_until) {
                // The lock may have been given up to this one.
                os.wake(&self.word);
                return false;
            }
            os.wait_at_most(&self.word, CONTENDED, LOOK_NS);
        }
        self.own(os.thread() | FOR_FORK);
        true
    }

    /// After a fork, in the parent: gives up a lock that was taken for it.
    pub fn release_after_fork<O: Os>(&self, os: &O) {
        if self.owner.load(Ordering::Relaxed) == os.thread() | FOR_FORK {
            self.release(os);
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
        self.disown();
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            os.wake(&self.word);
        }
    }

    /// For the child of a fork, in which no other thread lives: makes the lock free, unless the calling thread itself
    /// held it before the handler that forked interrupted it, and will give it up.
    pub fn reset<O: Os>(&self, os: &O) {
        if !self.is_mine(os) {
            self.owner.store(0, Ordering::Relaxed);
            self.word.store(FREE, Ordering::Release);
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

    /// An operating system of one thread, and without memory.
    struct OneThread;

    impl Os for OneThread {
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

        fn wait(&self, _: &AtomicU32, _: u32) {}

        fn wake(&self, _: &AtomicU32) {}

        fn thread(&self) -> usize {
            2
        }

        fn entropy(&self) -> u64 {
            1
        }

        fn misuse(&self, what: Misuse, object: *mut u8) -> ! {
            panic!("{what:?} of {object:?}")
        }
    }

    /// A handler that forked where it had interrupted its thread between taking the lock and saying so waited ten
    /// seconds for the helper, which waited for that lock.
    #[test]
    fn a_lock_is_unowned_while_its_holder_has_not_said_so() {
        let (lock, os) = (Lock::new(), OneThread);
        assert!(!lock.is_unowned());
        lock.acquire(&os);
        assert!(lock.is_mine(&os) && !lock.is_unowned());
        lock.disown();
        assert!(!lock.is_mine(&os) && lock.is_unowned());
        lock.release(&os);
        assert!(!lock.is_unowned());
    }
}
