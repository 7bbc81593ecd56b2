//! The heap against a model: random calls, contents checked at every step, no two objects overlap.
#![cfg(not(loom))]

mod common;

use std::collections::BTreeMap;

use common::{FakeOs, heap};
use pagemill_heap::{Cache, Heap};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Zeroed(usize),
    Aligned(u32, usize),
    Free(usize),
    Reallocate(usize, usize),
    Purge(u64),
    Trim,
    Null,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        8 => 0_usize..600,
        4 => 600_usize..40_000,
        2 => 30_000_usize..1_200_000,
        1 => 1_000_000_usize..3_000_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => size().prop_map(Step::Allocate),
        2 => size().prop_map(Step::Zeroed),
        2 => (0_u32..=16, size()).prop_map(|(shift, size)| Step::Aligned(shift, size)),
        8 => any::<usize>().prop_map(Step::Free),
        4 => (any::<usize>(), size()).prop_map(|(which, size)| Step::Reallocate(which, size)),
        1 => (0_u64..2_000_000_000).prop_map(Step::Purge),
        1 => Just(Step::Trim),
        1 => Just(Step::Null),
    ]
}

/// The objects that should exist: address to size and fill byte.
struct Model<'a> {
    heap: &'a Heap<FakeOs>,
    cache: *mut Cache,
    objects: BTreeMap<usize, (*mut u8, usize, u8)>,
    fill: u8,
}

impl Model<'_> {
    fn add(&mut self, object: *mut u8, size: usize) {
        assert!(!object.is_null());
        let usable = self.heap.usable_size(object);
        assert!(usable >= size, "{usable} {size}");
        assert!(self.heap.owns(object));
        let at = object.addr();
        assert_eq!(at % 16, 0);
        if let Some((_, &(before, len, _))) = self.objects.range(..=at).next_back() {
            assert!(before.addr() + len.max(1) <= at, "overlaps the object below");
        }
        if let Some((&after, _)) = self.objects.range(at..).next() {
            assert!(at + usable <= after, "overlaps the object above");
        }
        self.fill = self.fill.wrapping_add(1);
        // SAFETY: the object is at least this long.
        unsafe { object.write_bytes(self.fill, size) };
        self.objects.insert(at, (object, size, self.fill));
    }

    fn check(&self, object: *mut u8, size: usize, fill: u8) {
        // SAFETY: the object is at least this long and was filled.
        let bytes = unsafe { std::slice::from_raw_parts(object, size) };
        assert!(bytes.iter().all(|&byte| byte == fill), "contents changed");
    }

    fn pick(&mut self, which: usize) -> Option<(*mut u8, usize, u8)> {
        let count = self.objects.len();
        let key = *self.objects.keys().nth(which.checked_rem(count)?)?;
        self.objects.remove(&key)
    }

    fn run(&mut self, step: Step) {
        // A null cache, as during the end of a thread, must work for every call.
        let cache = self.cache;
        // SAFETY: the cache is null or this thread's; objects are used as the model says.
        unsafe {
            match step {
                Step::Allocate(size) => self.add(self.heap.allocate(cache, size), size),
                Step::Zeroed(size) => {
                    let object = self.heap.allocate_zeroed(cache, size);
                    self.check(object, size, 0);
                    self.add(object, size);
                }
                Step::Aligned(shift, size) => {
                    let object = self.heap.allocate_aligned(cache, 1 << shift, size);
                    assert_eq!(object.addr() % (1 << shift), 0);
                    self.add(object, size);
                }
                Step::Free(which) => {
                    if let Some((object, size, fill)) = self.pick(which) {
                        self.check(object, size, fill);
                        self.heap.free(cache, object);
                    }
                }
                Step::Reallocate(which, new) => {
                    if let Some((object, size, fill)) = self.pick(which) {
                        let moved = self.heap.reallocate(cache, object, new);
                        self.check(moved, size.min(new), fill);
                        self.add(moved, new);
                    }
                }
                Step::Purge(after) => {
                    let os = self.heap.os();
                    let now = os.clock.load(std::sync::atomic::Ordering::Relaxed) + after;
                    os.clock.store(now, std::sync::atomic::Ordering::Relaxed);
                    self.heap.purge(now);
                }
                Step::Trim => {
                    self.heap.trim(cache);
                }
                Step::Null => self.cache = std::ptr::null_mut(),
            }
        }
    }
}

fn differ(page: usize, config: &str, steps: Vec<Step>) {
    let heap = heap(page, config);
    let cache = heap.attach();
    let mut model = Model { heap: &heap, cache, objects: BTreeMap::new(), fill: 0 };
    for step in steps {
        let null = matches!(step, Step::Null);
        model.run(step);
        // Only the steps right after `Null` run without a cache.
        if !null {
            model.cache = cache;
        }
    }
    for (object, size, fill) in std::mem::take(&mut model.objects).into_values() {
        model.check(object, size, fill);
        // SAFETY: the object is freed once.
        unsafe { heap.free(cache, object) };
    }
    // SAFETY: the cache is this thread's and not used afterwards.
    unsafe {
        heap.trim(cache);
        heap.detach(cache);
    }
    let totals = heap.totals();
    assert_eq!((totals.live, totals.cached, totals.free_slots), (0, 0, 0), "{totals:?}");
    assert_eq!((totals.large_count, totals.dirty, totals.threads), (0, 0, 0), "{totals:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 48 }))]

    #[test]
    fn random_calls_agree_with_the_model(
        steps in prop::collection::vec(step(), 1..if cfg!(miri) { 40 } else { 600 }),
        page in prop::sample::select(vec![4096, 16384, 65536]),
        config in prop::sample::select(pagemill_heap::config::NAMES.to_vec()),
    ) {
        differ(page, config, steps);
    }
}
