//! A pass cut into the smallest slices: it does what a whole one does, and a program that goes on between two
//! slices keeps every byte. On ordinary memory: what would be mapped is copied.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use proptest::prelude::*;

use super::groups::END;
use super::memory::{Memory, PAGE};
use super::{
    BarrierSupport, Bits, Compactor, Image, Kernel, Progress, Registration, SpanView, Spans, Sys,
    pagemap,
};
use crate::os::Os;
use crate::stats::{Backend, StatsPage};
use crate::trigger::AGAIN;

/// Bytes of a slot and pages of a span, by class: one that begins at each page, one that straddles, small ones.
const CLASSES: [(usize, usize); 4] = [(256, 16), (240, 15), (512, 16), (32, 2)];

#[derive(Clone, Copy)]
struct Span {
    start: usize,
    class: usize,
    live: Bits,
    blocked: u16,
}

impl Span {
    fn slots(&self) -> usize {
        let (size, pages) = CLASSES[self.class];
        pages * PAGE / size
    }

    fn is_live(&self, slot: usize) -> bool {
        self.live[slot / 64] >> (slot % 64) & 1 == 1
    }

    fn is_blocked(&self, slot: usize) -> bool {
        let (size, _) = CLASSES[self.class];
        let pages = slot * size / PAGE..=((slot + 1) * size - 1) / PAGE;
        pages.into_iter().any(|page| self.blocked >> page & 1 == 1)
    }
}

/// Chunks begin where they do in every world, so that plans can be compared.
fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, super::CHUNK).expect("a power of two")
}

/// A heap and a kernel.
struct World {
    start: *mut u8,
    len: usize,
    spans: RefCell<Vec<Span>>,
    images: RefCell<Vec<Vec<u8>>>,
    /// What was mapped: place, length, image and place in it.
    mapped: RefCell<Vec<(usize, usize, i32, usize)>>,
    clock: Cell<u64>,
    /// Whether somebody always waits for what is frozen.
    waited: Cell<bool>,
    /// What the page map says of each page.
    entry: Cell<u64>,
    /// Nanoseconds that a mapping takes, since it waits for a reader of the address space.
    slow: Cell<u64>,
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.start, layout(self.len)) };
    }
}

impl World {
    /// Spans side by side, each with its class and with live slots by a share in a thousand.
    fn new(shapes: &[(usize, u32)], random: &mut impl FnMut() -> u32) -> Self {
        let len = shapes.iter().map(|&(class, _)| CLASSES[class].1 * PAGE).sum();
        // SAFETY: there are spans.
        let start = unsafe { alloc_zeroed(layout(len)) };
        let world = Self {
            start,
            len,
            spans: RefCell::default(),
            images: RefCell::default(),
            mapped: RefCell::default(),
            clock: Cell::new(0),
            waited: Cell::new(false),
            slow: Cell::new(0),
            entry: Cell::new(pagemap::PRESENT | pagemap::FILE),
        };
        let mut at = start.expose_provenance();
        for &(class, share) in shapes {
            let mut span = Span { start: at, class, live: [0; 4], blocked: 0 };
            for slot in 0..span.slots() {
                span.live[slot / 64] |= u64::from(random() % 1000 < share) << (slot % 64);
            }
            world.spans.borrow_mut().push(span);
            for slot in (0..span.slots()).filter(|slot| span.is_live(*slot)) {
                world.fill(span, slot);
            }
            at += CLASSES[class].1 * PAGE;
        }
        world
    }

    fn word(&self, span: Span, slot: usize, word: usize) -> *mut usize {
        let at = span.start + slot * CLASSES[span.class].0 + word * size_of::<usize>();
        std::ptr::with_exposed_provenance_mut(at)
    }

    fn fill(&self, span: Span, slot: usize) {
        for word in 0..CLASSES[span.class].0 / size_of::<usize>() {
            let at = self.word(span, slot, word);
            // SAFETY: the slot is live and lies in the world's memory.
            unsafe { at.write(at.addr()) };
        }
    }

    fn is_whole(&self) -> bool {
        self.spans.borrow().iter().all(|span| {
            (0..span.slots()).filter(|slot| span.is_live(*slot)).all(|slot| {
                (0..CLASSES[span.class].0 / size_of::<usize>()).all(|word| {
                    let at = self.word(*span, slot, word);
                    // SAFETY: as for `fill`.
                    unsafe { at.read() == at.addr() }
                })
            })
        })
    }

    fn os(&self) -> &Memory {
        &Memory
    }

    fn entry(&self) -> u64 {
        self.entry.get()
    }

    /// Notes that an image is mapped, which takes its time.
    fn maps(&self, at: usize, len: usize, image: Image, offset: usize) -> Sys<()> {
        self.mapped.borrow_mut().push((at - self.start.addr(), len, image.0, offset));
        self.clock.set(self.clock.get() + self.slow.get());
        Ok(())
    }

    /// The program frees a slot, or takes one that is neither live nor blocked.
    fn act(&self, random: &mut impl FnMut() -> u32) {
        let mut spans = self.spans.borrow_mut();
        let count = spans.len();
        let span = &mut spans[random() as usize % count];
        let slot = random() as usize % span.slots();
        let bit = 1 << (slot % 64);
        if span.is_live(slot) {
            span.live[slot / 64] &= !bit;
        } else if !span.is_blocked(slot) {
            span.live[slot / 64] |= bit;
            self.fill(*span, slot);
        }
    }
}

fn bits_of(pages: &Range<u8>) -> u16 {
    (((1u32 << (pages.end - pages.start)) - 1) << pages.start) as u16
}

// SAFETY: the memory is the world's own; `act` is all that hands out slots, and none that is blocked.
unsafe impl Spans for &World {
    type Ref = usize;

    fn count(&self) -> usize {
        self.spans.borrow().len()
    }

    fn at(&self, index: usize) -> Option<usize> {
        Some(index)
    }

    fn inspect(&self, span: usize) -> Option<SpanView> {
        let span = self.spans.borrow()[span];
        let (slot_size, pages) = CLASSES[span.class];
        let blocked = (0..span.slots()).filter(|slot| span.is_blocked(*slot));
        Some(SpanView {
            start: span.start,
            class: span.class as u16,
            slot_size: slot_size as u32,
            slots: span.slots() as u16,
            pages: pages as u8,
            live: span.live,
            blocked: blocked.fold([0; 4], |mut bits, slot| {
                bits[slot / 64] |= 1 << (slot % 64);
                bits
            }),
            resident: u16::MAX,
            generation: 0,
        })
    }

    fn block(&self, span: usize, _: u32, pages: Range<u8>) -> Option<Bits> {
        let span = &mut self.spans.borrow_mut()[span];
        let free = span.blocked & bits_of(&pages) == 0;
        span.blocked |= bits_of(&pages);
        free.then_some(span.live)
    }

    fn unblock(&self, span: usize, _: u32, pages: Range<u8>) {
        self.spans.borrow_mut()[span].blocked &= !bits_of(&pages);
    }

    fn purge(&self, _: u64, _: bool) -> usize {
        0
    }
}

impl Kernel for &World {
    kernel_on_memory!();

    fn now_ns(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn barrier(&self) -> BarrierSupport {
        BarrierSupport::SingleThread
    }

    fn write_protect(&self, _: usize, _: usize, _: bool) -> Sys<()> {
        Ok(())
    }

    fn waiters(&self) -> usize {
        usize::from(self.waited.get())
    }

    fn wake(&self, _: usize, _: usize) {}
}

/// Numbers from a seed.
fn random(seed: u64) -> impl FnMut() -> u32 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    }
}

/// Two scans and a pass, in slices of at least so many nanoseconds of the world's clock, which ticks at each reading;
/// `between` runs between two slices.
fn pass<'a>(
    engine: &mut Compactor<'a, &'a World, &'a World, Memory>,
    slice_ns: u64,
    mut between: impl FnMut(),
) {
    for _ in 0..2 {
        engine.begin_scan(false);
        while engine.scan_step(slice_ns) == Progress::More {
            between();
        }
    }
    engine.begin(false);
    while engine.step(slice_ns) == Progress::More {
        between();
    }
}

fn engine<'a>(
    world: &'a World,
    stats: &'a StatsPage,
) -> Compactor<'a, &'a World, &'a World, Memory> {
    // SAFETY: the world is this thread's alone and changed between two slices only.
    unsafe { Compactor::new(world, world, &Memory, stats, Backend::Remap) }
}

#[test]
fn a_pause_in_which_nobody_waits_is_no_stall() {
    for waited in [false, true] {
        let world = World::new(&[(0, 30); if cfg!(miri) { 8 } else { 40 }], &mut random(5));
        world.waited.set(waited);
        let stats = StatsPage::zeroed();
        let mut engine = engine(&world, &stats);
        pass(&mut engine, u64::MAX, || {});
        let sum =
            |counters: &[AtomicU64]| counters.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        assert!(sum(&stats.pauses) > 0);
        assert_eq!(sum(&stats.stalls) > 0, waited);
        assert_eq!(stats.longest_stall_ns.load(Relaxed) > 0, waited);
        engine.end();
    }
}

#[test]
fn a_pass_that_is_cut_short_merges_nothing_more_and_the_next_one_goes_on() {
    let saved_after = |slices: usize| {
        let world = World::new(&[(0, 30); if cfg!(miri) { 8 } else { 60 }], &mut random(5));
        let stats = StatsPage::zeroed();
        let mut engine = engine(&world, &stats);
        for _ in 0..2 {
            engine.scan();
        }
        engine.begin(false);
        for _ in 0..slices {
            engine.step(1);
        }
        engine.cut_short();
        let saved = engine.saved_bytes();
        while engine.step(1) == Progress::More {}
        assert_eq!(engine.saved_bytes(), saved, "cut after {slices} slices");
        pass(&mut engine, 1, || {});
        let rest = engine.saved_bytes();
        assert!(world.is_whole());
        assert_eq!(engine.dissolve_all(), 0);
        assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
        engine.end();
        (saved, rest)
    };
    let slices =
        if cfg!(miri) { vec![0, 9] } else { (0..60).chain((60..400).step_by(7)).collect() };
    let saved: Vec<_> = slices.into_iter().map(saved_after).collect();
    assert!(saved.is_sorted_by_key(|(saved, _)| *saved), "{saved:?}");
    assert_eq!(saved[0].0, 0);
    assert!(saved.iter().all(|(_, rest)| *rest > 0));
    let most = saved.last().map_or(0, |(saved, _)| *saved);
    assert!(cfg!(miri) || saved.iter().any(|(saved, _)| (1..most).contains(saved)), "{saved:?}");
}

/// What a pass over many sparse spans saves and how long its longest pause is, in nanoseconds, where a mapping takes
/// `slow`.
fn slowed(slow: u64) -> (u64, u64) {
    let world = World::new(&[(0, 90); 60], &mut random(5));
    world.slow.set(slow);
    let stats = StatsPage::zeroed();
    let mut engine = engine(&world, &stats);
    pass(&mut engine, u64::MAX, || {});
    let saved = engine.saved_bytes();
    assert!(world.is_whole());
    assert_eq!(engine.dissolve_all(), 0);
    assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
    let longest = stats.longest_pause_ns.load(Relaxed);
    engine.end();
    (saved, longest)
}

#[test]
#[cfg_attr(miri, ignore = "takes an hour there, and is about sizes")]
fn what_is_frozen_for_long_is_let_go_and_frozen_again_later() {
    let (saved, quick) = slowed(0);
    assert!(saved > 0 && quick < 10_000, "the world's clock ticks once a reading: {quick}");
    // Batches are let go, groups are not.
    let (same, longest) = slowed(60_000);
    assert_eq!(same, saved);
    assert!(
        longest < 1_000_000,
        "{longest} ns, though a batch has up to {} ranges",
        super::batch::BATCH
    );
    // Groups are, too: five mappings at most, where some have more.
    let (some, longest) = slowed(300_000);
    assert!(some > 0 && some < saved, "{some} of {saved}");
    assert!(longest < 1_200_000, "{longest} ns");
}

/// Redis at rest stayed at 162 MiB for 100 MiB of data on a machine where a mapping takes 40 us: five of them were as
/// many as might be frozen at once, so no image was shared by more, where fifteen extents would have fitted.
#[test]
#[cfg_attr(miri, ignore = "takes an hour there, and is about sizes")]
fn more_units_share_an_image_than_may_be_frozen_at_once() {
    let merged = |unit_ns: u64, shapes: &[(usize, u32)]| {
        let world = World::new(shapes, &mut random(5));
        let stats = StatsPage::zeroed();
        let mut engine = engine(&world, &stats);
        engine.settings.work_price = 0;
        engine.settings.extent_work_price = 0;
        engine.unit_ns = unit_ns;
        pass(&mut engine, u64::MAX, || {});
        assert!(world.is_whole());
        let merged = (engine.saved_bytes(), engine.groups.live, engine.groups.image_pages);
        let batches = stats.pauses.iter().map(|count| count.load(Relaxed)).sum::<u64>();
        assert_eq!(engine.dissolve_all(), 0);
        assert!(world.is_whole());
        assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
        engine.end();
        (merged, batches)
    };
    // Extents, and units of a class too dense for them.
    for shapes in [[(0, 20); 60], [(2, 90); 60]] {
        let (quick, few) = merged(1, &shapes);
        let (slow, many) = merged(1 << 40, &shapes);
        assert_eq!(slow, quick);
        assert!(many > few, "{many} parts of {few} groups");
    }
}

/// Long spans with few live slots and short ones with many, side by side.
#[test]
#[cfg_attr(miri, ignore = "takes an hour there, and is about sizes")]
fn extents_end_where_a_mapping_costs_less_than_the_pages_of_a_poorer_image() {
    let shapes = [(0, 27), (3, 27), (3, 27)].repeat(100);
    let merged = |price: u32, mappings: usize| {
        let world = World::new(&shapes, &mut random(5));
        let stats = StatsPage::zeroed();
        let mut engine = engine(&world, &stats);
        engine.settings.work_price = 0;
        engine.settings.extent_work_price = 0;
        engine.settings.extent_price = price;
        engine.settings.mappings = mappings;
        pass(&mut engine, u64::MAX, || {});
        assert!(world.is_whole());
        let merged = (engine.groups.mappings as usize, engine.saved_bytes());
        engine.end();
        merged
    };
    let (few, saved) = merged(16_000, usize::MAX);
    let (many, more) = merged(1000, usize::MAX);
    assert!(many > few && more > saved, "{few} mappings save {saved}, {many} {more}");
    // Where there are no more, all the memory takes part nevertheless. What lies behind the last is a mapping too.
    let (held, kept) = merged(1000, few + 1);
    assert!(held <= few && kept > saved / 10 * 8, "{held} mappings save {kept}, {few} {saved}");
}

fn ksm<'a>(world: &'a World, stats: &'a StatsPage) -> Compactor<'a, &'a World, &'a World, Memory> {
    // SAFETY: as for `engine`.
    unsafe { Compactor::new(world, world, &Memory, stats, Backend::Ksm) }
}

/// Redis at rest held 7 MiB of images of sparse pages beside 8 MiB of dead slots in dense pages.
#[test]
#[cfg_attr(miri, ignore = "takes an hour there, and is about sizes")]
fn sparse_pages_need_no_memory_where_dense_ones_have_room() {
    let shapes = [[(2, 880); 100].as_slice(), &[(0, 40); 60], &[(3, 40); 60]].concat();
    let world = World::new(&shapes, &mut random(5));
    let stats = StatsPage::zeroed();
    let mut engine = ksm(&world, &stats);
    pass(&mut engine, u64::MAX, || {});
    let (units, images) = (engine.groups.units, engine.groups.image_pages);
    assert!(images > 40, "{units} units share {images} pages");
    engine.settings.settled = true;
    for _ in 0..3 {
        pass(&mut engine, u64::MAX, || {});
    }
    let loose = engine.groups.units - engine.groups.firm_units;
    assert_eq!(loose, units, "what was merged before it had settled stays");
    engine.settings.again = true;
    for _ in 0..3 {
        pass(&mut engine, u64::MAX, || {});
    }
    let groups = &engine.groups;
    assert_eq!((groups.firm_units, groups.firm_pages), (groups.units, groups.image_pages));
    let merged = groups.merged.iter().filter(|unit| unit.group != END);
    let hosts = merged.filter(|unit| unit.span < 100).count() as u64;
    let own = groups.image_pages - hosts;
    assert!(own < images / 3, "{own} pages of {images} are left, {hosts} hosts");
    assert!(groups.units - hosts >= units);
    assert!(world.is_whole());
    assert_eq!(engine.dissolve_all(), 0);
    assert!(world.is_whole());
    assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
    assert_eq!((engine.groups.firm_units, engine.groups.firm_pages), (0, 0));
    engine.end();
}

/// A Redis whose `ksmd` had no CPU held 6 MiB that were offered and not merged, for ever: at rest no pass was due.
#[test]
#[cfg_attr(miri, ignore = "takes an hour there, and is about sizes")]
fn what_ksmd_left_over_is_offered_again() {
    let world = World::new(&[(0, 40); 40], &mut random(5));
    let stats = StatsPage::zeroed();
    let mut engine = ksm(&world, &stats);
    pass(&mut engine, u64::MAX, || {});
    let units = engine.groups.units;
    let mut judge = |entry: u64, seconds: u64| {
        world.entry.set(entry);
        world.clock.set(world.clock.get() + seconds * 1_000_000_000);
        engine.begin_judging();
        while engine.step(0) == Progress::More {}
        engine.groups.units
    };
    assert_eq!(judge(pagemap::PRESENT, 1), units, "seen to be merged");
    assert_eq!(judge(pagemap::PRESENT | pagemap::EXCLUSIVE, 1), 0, "not any more");
    world.clock.set(world.clock.get() + 10_000_000_000);
    let offered = stats.ksm_offered.load(Relaxed);
    pass(&mut engine, u64::MAX, || {});
    assert_eq!(engine.groups.units, units);
    assert_eq!(stats.ksm_offered.load(Relaxed), offered + units);
    assert!(world.is_whole());
    engine.end();
}

/// How many pages a pass takes out of groups is bounded, and a pass that is cut short leaves nothing blocked.
#[test]
#[cfg_attr(miri, ignore = "takes an hour there, and is about sizes")]
fn what_was_merged_in_haste_is_merged_again_some_at_a_time() {
    let world = World::new(&[[(0, 40); 600].as_slice(), &[(2, 880); 40]].concat(), &mut random(5));
    let stats = StatsPage::zeroed();
    let mut engine = ksm(&world, &stats);
    pass(&mut engine, u64::MAX, || {});
    let units = engine.groups.units;
    assert!(units > u64::from(AGAIN), "{units}");
    (engine.settings.settled, engine.settings.again) = (true, true);
    engine.begin(false);
    let mut least = units;
    while engine.step(0) == Progress::More {
        least = least.min(engine.groups.units);
    }
    assert!((units - u64::from(AGAIN)..units).contains(&least), "{least} of {units}");
    assert!(engine.groups.firm_units > 0 && engine.groups.firm_units < engine.groups.units);
    engine.begin(false);
    for _ in 0..40 {
        engine.step(0);
    }
    engine.cut_short();
    while engine.step(0) == Progress::More {}
    assert!(world.is_whole());
    assert_eq!(engine.dissolve_all(), 0);
    assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
    engine.end();
}

/// A heap that was merged while three times as much lived, at rest since, and its engine.
fn half_dead<'a>(
    world: &'a World,
    stats: &'a StatsPage,
) -> Compactor<'a, &'a World, &'a World, Memory> {
    let mut engine = engine(world, stats);
    engine.settings.mapping_price = 1;
    (engine.settings.work_price, engine.settings.extent_work_price) = (0, 0);
    pass(&mut engine, u64::MAX, || {});
    let mut random = random(7);
    for span in world.spans.borrow_mut().iter_mut() {
        for slot in 0..span.slots() {
            span.live[slot / 64] &= !(u64::from(!random().is_multiple_of(3)) << (slot % 64));
        }
    }
    pass(&mut engine, u64::MAX, || {});
    engine.settings.again = true;
    engine
}

fn sparse_world(pairs: usize) -> World {
    World::new(&[(0, 30), (3, 30)].repeat(pairs), &mut random(5))
}

/// A Redis whose load was starved of CPU stayed at 133 MiB for 100 MiB of data: what was merged among its evictions
/// half died, in files that have others.
#[test]
#[cfg_attr(miri, ignore = "takes an hour there, and is about sizes")]
fn files_of_which_little_lives_are_planned_again() {
    let (world, stats) = (sparse_world(500), StatsPage::zeroed());
    let mut engine = half_dead(&world, &stats);
    let (held, units) = (engine.groups.held_pages, engine.groups.merged_pages);
    let live: u64 = engine.scan().live_bytes;
    pass(&mut engine, u64::MAX, || {});
    let again = engine.groups.held_pages;
    assert!(again < held / 3 * 2, "{held} pages became {again}");
    assert!(again * (PAGE as u64) < live * 2, "{again} pages for {live} bytes");
    assert!(engine.groups.merged_pages > units / 2);
    assert!(world.is_whole());
    let files = engine.groups.segments.iter().filter(|segment| segment.image.is_some());
    let held: u32 = files.map(|segment| segment.held).sum();
    assert_eq!(u64::from(held), again);
    // Once is enough.
    let mapped = world.mapped.borrow().len();
    for _ in 0..3 {
        pass(&mut engine, u64::MAX, || {});
    }
    assert_eq!(world.mapped.borrow().len(), mapped);
    assert_eq!(engine.dissolve_all(), 0);
    assert_eq!(engine.groups.held_pages, 0);
    assert_eq!((engine.groups.mappings, engine.groups.touched_pages), (0, 0));
    assert!(world.is_whole());
    assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
    engine.end();
}

/// Each page is in one group all the time, the old or the new, whenever the program begins to work again.
#[test]
fn planning_again_can_be_cut_short_anywhere() {
    let cut = |slices: usize| {
        let (world, stats) = (sparse_world(if cfg!(miri) { 4 } else { 120 }), StatsPage::zeroed());
        let mut engine = half_dead(&world, &stats);
        let mut random = random(slices as u64);
        engine.scan();
        engine.begin(false);
        for _ in 0..slices {
            engine.step(1);
            world.act(&mut random);
        }
        engine.cut_short();
        while engine.step(1) == Progress::More {}
        for unit in engine.groups.merged.iter().filter(|unit| unit.group != END) {
            let pages = bits_of(&(unit.page..unit.page + unit.pages));
            let note = &engine.notes[unit.span as usize];
            assert_eq!(note.merged & pages, pages);
            assert_eq!(world.spans.borrow()[unit.span as usize].blocked & pages, pages);
        }
        let units = engine.groups.merged.iter().filter(|unit| unit.group != END);
        let pages: u64 = units.map(|unit| u64::from(unit.pages)).sum();
        assert_eq!(pages, engine.groups.merged_pages, "no page twice");
        assert!(world.is_whole(), "cut after {slices} slices");
        pass(&mut engine, 1, || world.act(&mut random));
        assert!(world.is_whole());
        assert_eq!(engine.dissolve_all(), 0);
        assert!(world.is_whole());
        assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
        engine.end();
    };
    let slices = if cfg!(miri) { vec![3] } else { (0..40).chain((40..900).step_by(23)).collect() };
    slices.into_iter().for_each(cut);
}

fn shapes() -> impl Strategy<Value = Vec<(usize, u32)>> {
    prop::collection::vec(
        (0..CLASSES.len(), prop_oneof![2u32..250, 250u32..1000]),
        4..if cfg!(miri) { 6 } else { 40 },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 24 }))]

    #[test]
    fn a_sliced_pass_maps_what_a_whole_one_maps(shapes in shapes(), seed in any::<u64>()) {
        let (whole, sliced) =
            (World::new(&shapes, &mut random(seed)), World::new(&shapes, &mut random(seed)));
        let stats = [StatsPage::zeroed(), StatsPage::zeroed()];
        let (mut one, mut other) = (engine(&whole, &stats[0]), engine(&sliced, &stats[1]));
        pass(&mut one, u64::MAX, || panic!("a whole pass is one slice"));
        let mut slices = 0;
        pass(&mut other, 0, || slices += 1);
        prop_assert!(slices > 3);
        prop_assert!(*whole.mapped.borrow() == *sliced.mapped.borrow());
        prop_assert_eq!(one.saved_bytes(), other.saved_bytes());
        prop_assert!(whole.is_whole() && sliced.is_whole());
        one.end();
        other.end();
    }

    #[test]
    fn a_program_that_goes_on_between_slices_keeps_every_byte(
        shapes in shapes(), seed in any::<u64>(), acts in 1usize..40, merges in any::<bool>(),
    ) {
        let mut random = random(seed);
        let world = World::new(&shapes, &mut random);
        let stats = StatsPage::zeroed();
        let mut engine = if merges { ksm(&world, &stats) } else { engine(&world, &stats) };
        for number in 0..4 {
            (engine.settings.settled, engine.settings.again) = (number > 0, number > 1);
            pass(&mut engine, 0, || {
                for _ in 0..acts {
                    world.act(&mut random);
                }
            });
            prop_assert!(world.is_whole());
        }
        prop_assert_eq!(engine.dissolve_all(), 0);
        prop_assert!(world.is_whole());
        prop_assert!(world.spans.borrow().iter().all(|span| span.blocked == 0));
        engine.end();
    }
}
