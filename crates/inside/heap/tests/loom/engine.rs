//! The planner and the engine, as they run, beside a thread that takes a slot, writes it and frees another one.
//!
//! Two sparse spans whose live slots fit together: the engine plans to merge them, and what it saw may be out of date
//! when it blocks them. Memory is real and the kernel a model: what would be mapped is copied, and who writes to a
//! frozen page waits. If the engine merged by its plan alone, without looking again at what is live once the spans are
//! blocked, the slot that was taken meanwhile would have two owners and one of them the other's bytes.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr::with_exposed_provenance_mut as pointer;

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use pagemill_heap::compact::{
    BarrierSupport, Bits, Compactor, Errno, Image, Kernel, Progress, Registration, SpanView, Spans,
    Sys, pagemap,
};
use pagemill_heap::model::{Batch, Central, Span};
use pagemill_heap::os::Os;
use pagemill_heap::stats::{Backend, StatsPage};
use pagemill_heap::{SpanRef, size};

use super::{PAGE, Waits, explore, nobody};

/// Two slots a page, and spans of 16 pages.
const SLOT: usize = 2048;
const PAGES: usize = 16;

/// One span, a gap, another span; all in one chunk.
const LEN: usize = 3 * PAGES * PAGE;

/// Live slots: on the same pages, and nowhere the same.
const FIRST: u64 = 1 << 1 | 1 << 9 | 1 << 17 | 1 << 25;
const SECOND: u64 = 1 | 1 << 8 | 1 << 16 | 1 << 24;

struct Memory(*mut u8);

impl Memory {
    fn layout() -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(LEN, 2 << 20).expect("a power of two")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.0, Self::layout()) };
    }
}

struct World {
    os: Waits,
    class: usize,
    central: Central,
    spans: [SpanRef; 2],
    /// Given back with the rest.
    _memory: Memory,
    /// Pages that may not be written, and who waits for that.
    frozen: Mutex<Vec<Range<usize>>>,
    thawed: Condvar,
    images: RefCell<Vec<Vec<u8>>>,
    /// Whether nothing can be mapped, so that what was frozen is let go.
    refuses: bool,
}

// SAFETY: loom runs one thread at a time; what is shared without a lock is the heap's memory, which this test is about,
// and the images, which only the engine's thread touches.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn entry(&self) -> u64 {
        pagemap::PRESENT | pagemap::FILE
    }

    fn new(refuses: bool) -> Arc<Self> {
        // SAFETY: the layout is not empty.
        let memory = Memory(unsafe { std::alloc::alloc_zeroed(Memory::layout()) });
        let class = size::class_of(SLOT);
        let start = memory.0.expose_provenance();
        let os = Waits::new();
        let central = Central::new();
        let spans = [(0, FIRST), (2, SECOND)].map(|(place, live)| {
            let span = Box::leak(Box::new(Span::new()));
            span.set_start(start + place * PAGES * PAGE);
            span.set_granules(PAGES as _);
            span.become_small(class, PAGES * PAGE / SLOT, 0);
            span.set_live(0, live);
            span.set_live_count(live.count_ones() as u16);
            let span = SpanRef::new(span);
            central.take(&os, Some(span), 0, 0, PAGE, &mut Batch::new(), nobody);
            span
        });
        let frozen = Mutex::new(Vec::new());
        let images = RefCell::default();
        let thawed = Condvar::new();
        let world =
            Self { os, class, central, spans, _memory: memory, frozen, thawed, images, refuses };
        for span in world.spans {
            (0..32).filter(|slot| span.get().live(0) >> slot & 1 == 1).for_each(|slot| {
                // SAFETY: the slot is live and nobody else runs yet.
                unsafe { world.slot(span, slot).write(world.value(span, slot)) };
            });
        }
        Arc::new(world)
    }

    fn os(&self) -> &Waits {
        &self.os
    }

    fn maps(&self, _: usize, _: usize, _: Image, _: usize) -> Sys<()> {
        if self.refuses { Err(Errno(12)) } else { Ok(()) }
    }

    fn slot(&self, span: SpanRef, slot: usize) -> *mut usize {
        pointer(span.get().start() + slot * SLOT)
    }

    /// What the owner of a slot wrote to it.
    fn value(&self, span: SpanRef, slot: usize) -> usize {
        span.get().start() + slot * SLOT + 1
    }

    /// A write by the program, which waits while the page is frozen.
    fn write(&self, span: SpanRef, slot: usize) {
        let at = self.slot(span, slot);
        let mut frozen = self.frozen.lock().expect("no failure in a thread");
        while frozen.iter().any(|range| range.contains(&at.addr())) {
            frozen = self.thawed.wait(frozen).expect("no failure in a thread");
        }
        // SAFETY: the slot is the writer's.
        unsafe { at.write(self.value(span, slot)) };
    }

    fn holds(&self, span: SpanRef, slot: usize) -> bool {
        // SAFETY: the slot is live, and nobody writes it now.
        unsafe { self.slot(span, slot).read() == self.value(span, slot) }
    }

    fn is_whole(&self) -> bool {
        self.spans.iter().all(|span| {
            (0..32)
                .filter(|slot| span.get().live(0) >> slot & 1 == 1)
                .all(|slot| self.holds(*span, slot))
        })
    }

    fn thaw(&self, start: usize) {
        let mut frozen = self.frozen.lock().expect("no failure in a thread");
        frozen.retain(|range| range.start != start);
        self.thawed.notify_all();
    }
}

// SAFETY: spans are never given another meaning here, and `Central` hands out no slot of a blocked page.
unsafe impl Spans for &World {
    type Ref = SpanRef;

    fn count(&self) -> usize {
        self.spans.len()
    }

    fn at(&self, index: usize) -> Option<SpanRef> {
        self.spans.get(index).copied()
    }

    fn inspect(&self, span: SpanRef) -> Option<SpanView> {
        self.central.with(&self.os, self.class, span, None, |this| SpanView {
            start: this.start(),
            class: self.class as u16,
            slot_size: this.slot_size(),
            slots: this.slots(),
            pages: PAGES as u8,
            live: this.live_bits(),
            blocked: this.blocked_bits(),
            resident: this.resident(),
            generation: this.generation(),
        })
    }

    fn block(&self, span: SpanRef, generation: u32, pages: Range<u8>) -> Option<Bits> {
        self.central.block(&self.os, self.class, span, generation, pages, PAGE, |_| ())
    }

    fn unblock(&self, span: SpanRef, generation: u32, pages: Range<u8>) {
        self.central.unblock(&self.os, self.class, span, generation, pages, PAGE, |_| ());
    }

    fn purge(&self, _: u64, _: bool) -> usize {
        0
    }
}

impl Kernel for &World {
    kernel_on_memory!();

    fn now_ns(&self) -> u64 {
        0
    }

    fn barrier(&self) -> BarrierSupport {
        BarrierSupport::WriteProtect { moves: false }
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Sys<()> {
        if on {
            let mut frozen = self.frozen.lock().expect("no failure in a thread");
            frozen.push(start..start + len);
        } else {
            self.thaw(start);
        }
        Ok(())
    }

    fn waiters(&self) -> usize {
        0
    }

    fn wake(&self, start: usize, _: usize) {
        self.thaw(start);
    }
}

/// A pass in the smallest slices; bytes that it saved.
fn compact(world: &World) -> u64 {
    let stats = StatsPage::zeroed();
    // SAFETY: the kernel is the model of this world, and nobody else remaps anything in it.
    let mut engine = unsafe { Compactor::new(world, world, &world.os, &stats, Backend::Remap) };
    engine.scan();
    engine.begin(false);
    while engine.step(0) == Progress::More {}
    let saved = engine.saved_bytes();
    engine.end();
    saved
}

/// Compacts beside `program`; bytes that were saved.
fn compact_beside(world: &Arc<World>, program: impl FnOnce()) -> u64 {
    /// Words of stack: the engine keeps a batch there.
    const STACK: usize = 1 << 16;
    let (saved, other) = (Arc::new(Mutex::new(0)), world.clone());
    let result = saved.clone();
    let engine = thread::Builder::new().stack_size(STACK).spawn(move || {
        *result.lock().expect("no failure in a thread") = compact(&other);
    });
    program();
    engine.expect("loom makes the thread").join().expect("no failure in the thread");
    assert!(world.is_whole(), "a live slot lost its bytes");
    *saved.lock().expect("no failure in a thread")
}

#[test]
fn a_slot_taken_while_its_span_is_planned_keeps_its_bytes() {
    explore(2, || {
        let world = World::new(false);
        compact_beside(&world, || {
            // The second span is in front: its slot 1 is where the first one's is live.
            let mut batch = Batch::new();
            if world.central.take(&world.os, None, 1, 1, PAGE, &mut batch, nobody) == 1 {
                let word = batch.words()[0];
                world.write(word.span(), word.mask.trailing_zeros() as usize);
            }
        });
    });
}

#[test]
fn a_slot_freed_while_its_span_is_merged_harms_no_other() {
    explore(2, || {
        let world = World::new(false);
        let saved = compact_beside(&world, || {
            let given = world.central.give_one(&world.os, world.spans[0], 1);
            assert!(given.double.is_none() && given.empty.is_null());
        });
        assert!(saved > 0, "fewer live slots fit together as well");
    });
}

#[test]
fn a_write_that_waited_for_a_frozen_page_is_kept_whether_it_was_mapped_or_let_go() {
    for refuses in [false, true] {
        explore(2, move || {
            let world = World::new(refuses);
            let (span, slot) = (world.spans[0], 1);
            // SAFETY: the slot is live and nobody else runs yet.
            unsafe { world.slot(span, slot).write(0) };
            let saved = compact_beside(&world, || world.write(span, slot));
            assert_eq!(saved > 0, !refuses);
        });
    }
}
