//! Every interleaving of refill, flush and the compactor's handshake on one class, and of the whole engine with a
//! program: `RUSTFLAGS="--cfg loom" cargo test -p pagemill-heap --test loom --release`.
//!
//! The memory of a slot is a cell that loom watches: it may be touched by whoever the slot was handed to, and by the
//! compactor while the slot is blocked and not live. Two of them at once, or one without the lock's ordering, is a
//! failure.
#![cfg(loom)]

#[macro_use]
#[path = "../src/compact/on_memory.rs"]
mod on_memory;

#[path = "loom/engine.rs"]
mod engine;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use pagemill_heap::model::{Batch, Central, Returns, Span};
use pagemill_heap::os::{Misuse, Os};
use pagemill_heap::{SpanRef, size};

/// An operating system with a futex, and memory for the engine's tables; a wait that nobody ends is a deadlock that
/// loom reports.
struct Waits {
    sleepers: Mutex<()>,
    woken: Condvar,
}

impl Waits {
    fn new() -> Self {
        Self { sleepers: Mutex::new(()), woken: Condvar::new() }
    }
}

/// The marks of free slots are of no part in what is explored.
fn nobody(_: &Span, _: u16) {}

impl Os for Waits {
    os_on_memory!();

    fn wait(&self, word: &AtomicU64, expected: u64) {
        let guard = self.sleepers.lock().expect("no failure in a thread");
        if word.load(Ordering::Relaxed) == expected {
            drop(self.woken.wait(guard).expect("no failure in a thread"));
        }
    }

    fn wake(&self, _: &AtomicU64) {
        let _guard = self.sleepers.lock().expect("no failure in a thread");
        self.woken.notify_one();
    }
}

/// The largest class: two slots a span, of eight pages each.
const CLASS: usize = size::CLASSES - 1;
const PAGE: usize = 4096;

struct Class {
    os: Waits,
    central: Central,
    span: SpanRef,
    slots: [UnsafeCell<u32>; 2],
}

// SAFETY: the cells are what the test is about; loom checks that they are not raced for.
unsafe impl Sync for Class {}
// SAFETY: as above.
unsafe impl Send for Class {}

impl Class {
    fn new() -> Arc<Self> {
        let span = Box::leak(Box::new(Span::new()));
        span.set_start(1 << 20);
        span.set_granules(16);
        span.become_small(CLASS, 2, 0);
        let class = Self {
            os: Waits::new(),
            central: Central::new(),
            span: SpanRef::new(span),
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
        };
        // The page map knows a span before its class does; whoever finds it there may not block it yet.
        let (generation, asked) = (class.span.get().generation(), |_: &Span| ());
        let early =
            class.central.block(&class.os, CLASS, class.span, generation, 0..8, PAGE, asked);
        assert!(early.is_none());
        class.central.take(&class.os, Some(class.span), 0, 0, PAGE, &mut Batch::new(), nobody);
        Arc::new(class)
    }

    fn touch(&self, slot: usize) {
        // SAFETY: loom reports it if anybody else may be doing the same.
        self.slots[slot].with_mut(|value| unsafe { *value += 1 });
    }

    /// A refill of one slot, a use of it and a flush.
    fn use_one(&self) {
        let mut batch = Batch::new();
        if self.central.take(&self.os, None, 1, 0, PAGE, &mut batch, nobody) == 1 {
            let slot = batch.words()[0].mask.trailing_zeros() as usize;
            self.touch(slot);
            let mut returns = Returns::new();
            // SAFETY: it is one slot.
            assert_eq!(unsafe { returns.add(self.span, slot / 64, 1 << (slot % 64)) }, 0);
            let given = self.central.give(&self.os, returns.words());
            assert!(given.double.is_none() && given.empty.is_null());
        }
    }

    /// The compactor on the pages of the first slot.
    fn compact(&self) {
        let generation = self.span.get().generation();
        let (pages, asked) = (0..8, |_: &Span| ());
        let blocked =
            self.central.block(&self.os, CLASS, self.span, generation, pages.clone(), PAGE, asked);
        if let Some(live) = blocked {
            if live[0] & 1 == 0 {
                self.touch(0);
            }
            let done =
                self.central.unblock(&self.os, CLASS, self.span, generation, pages, PAGE, asked);
            assert!(done.is_some_and(|empty| empty.is_null()));
        }
    }

    fn is_whole(&self) {
        let span = self.span.get();
        assert_eq!((span.live_count(), span.live_bits(), span.blocked_bits()), (0, [0; 4], [0; 4]));
        assert_eq!(self.central.live(), 0);
        let mut batch = Batch::new();
        assert_eq!(self.central.take(&self.os, None, 2, 0, PAGE, &mut batch, nobody), 2);
    }
}

fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 10_000;
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

#[test]
fn two_threads_never_hold_one_slot() {
    explore(3, || {
        let class = Class::new();
        let other = class.clone();
        let thread = thread::spawn(move || {
            other.use_one();
            other.use_one();
        });
        class.use_one();
        thread.join().expect("no failure in the thread");
        class.is_whole();
    });
}

#[test]
fn the_compactor_alone_touches_blocked_free_slots() {
    explore(3, || {
        let class = Class::new();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let class = class.clone();
                thread::spawn(move || class.use_one())
            })
            .collect();
        class.compact();
        for thread in threads {
            thread.join().expect("no failure in the thread");
        }
        class.is_whole();
    });
}

#[test]
fn a_held_back_slot_is_freed_once() {
    explore(3, || {
        let class = Class::new();
        let mut batch = Batch::new();
        assert_eq!(class.central.take(&class.os, None, 1, 0, PAGE, &mut batch, nobody), 1);
        let other = class.clone();
        let thread = thread::spawn(move || other.central.hold(&other.os, other.span, 0));
        let here = class.central.hold(&class.os, class.span, 0);
        let there = thread.join().expect("no failure in the thread");
        assert!(here != there, "of two frees exactly one is right");
        class.central.release(&class.os, class.span, 0);
        class.is_whole();
    });
}
