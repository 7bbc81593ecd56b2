//! What the compactor relies on: blocked slots are not handed out, blocked spans stay, pages come back as ordinary
//! memory.
#![cfg(not(loom))]

mod common;

use std::collections::BTreeSet;
use std::ptr::null_mut;

use common::{FakeOs, heap, heap_with};
use pagemill_heap::stats::StatsPage;
use pagemill_heap::{Heap, SpanRef, SpanView};
use proptest::prelude::*;

/// The descriptors that there are.
fn spans(heap: &Heap<FakeOs>) -> impl Iterator<Item = SpanRef> + '_ {
    (0..heap.span_count()).filter_map(|index| heap.span_at(index))
}

fn overlaps(view: &SpanView, page: usize, pages: &std::ops::Range<u8>, object: *mut u8) -> bool {
    let at = object.addr().wrapping_sub(view.start.addr());
    let size = view.slot_size as usize;
    at < usize::from(view.slots) * size
        && at < usize::from(pages.end) * page
        && at + size > usize::from(pages.start) * page
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    #[test]
    fn nothing_on_a_blocked_page_is_handed_out(
        size in 1_usize..3000,
        count in 1_usize..400,
        keep in 1_usize..8,
        first in 0_u8..16,
        len in 1_u8..=16,
        level in 0_usize..3,
    ) {
        let page = 4096;
        let heap = heap(page, ["0y", "1y", "2y"][level]);
        let cache = heap.attach();
        // SAFETY: plain use of the heap by one thread.
        unsafe {
            let objects: Vec<_> = (0..count).map(|_| heap.allocate(cache, size)).collect();
            let mut live = BTreeSet::new();
            for (index, &object) in objects.iter().enumerate() {
                if index % keep == 0 { live.insert(object); } else { heap.free(cache, object); }
            }
            heap.trim(cache);
            let mut blocked = Vec::new();
            for span in spans(&heap) {
                let Some(view) = heap.inspect(span) else { continue };
                for slot in 0..usize::from(view.slots) {
                    let object = view.start.wrapping_add(slot * view.slot_size as usize);
                    prop_assert_eq!(view.live[slot / 64] >> (slot % 64) & 1 == 1, live.contains(&object));
                }
                let pages = first.min(view.pages - 1)..(first.min(view.pages - 1) + len).min(view.pages);
                prop_assert_eq!(heap.block(span, view.generation, pages.clone()), Some(view.live));
                prop_assert_eq!(heap.block(span, view.generation, pages.clone()), None, "blocked twice");
                prop_assert_eq!(heap.block(span, view.generation + 1, 0..1), None, "wrong generation");
                blocked.push((span, view, pages));
            }
            let more: Vec<_> = (0..count).map(|_| heap.allocate(cache, size)).collect();
            for &object in &more {
                prop_assert!(!blocked.iter().any(|(_, view, pages)| overlaps(view, page, pages, object)));
            }
            // Every object dies: the blocked spans stay, and are empty.
            for object in more.into_iter().chain(live) {
                heap.free(cache, object);
            }
            heap.trim(cache);
            for (span, view, pages) in &blocked {
                let now = heap.inspect(*span).expect("a blocked span stays");
                prop_assert_eq!((now.start, now.generation, now.live), (view.start, view.generation, [0; 4]));
                prop_assert!(heap.unblock(*span, view.generation, pages.clone()));
            }
            heap.trim(cache);
            prop_assert!(spans(&heap).all(|span| heap.inspect(span).is_none()));
            heap.detach(cache);
        }
    }

    #[test]
    fn only_wholly_free_pages_are_released_and_they_read_as_zero(
        size in 1_usize..2000,
        keep in 2_usize..40,
        page in prop::sample::select(vec![4096_usize, 16384, 65536]),
    ) {
        let heap = heap(page, "1y");
        let cache = heap.attach();
        // SAFETY: plain use of the heap by one thread.
        unsafe {
            let objects: Vec<_> = (0..1000).map(|_| {
                let object = heap.allocate(cache, size);
                object.write_bytes(0x5a, size);
                object
            }).collect();
            for (index, &object) in objects.iter().enumerate() {
                if index % keep != 0 { heap.free(cache, object); }
            }
            heap.trim(cache);
            for span in spans(&heap) {
                let Some(view) = heap.inspect(span) else { continue };
                let given = heap.release_pages(span, view.generation);
                let after = heap.inspect(span).expect("a partial span stays");
                prop_assert_eq!(given, (view.resident.count_ones() - after.resident.count_ones()) as usize * page);
                prop_assert_eq!(heap.release_pages(span, view.generation), 0);
            }
            for (index, &object) in objects.iter().enumerate() {
                if index % keep == 0 {
                    prop_assert!(std::slice::from_raw_parts(object, size).iter().all(|&byte| byte == 0x5a));
                    heap.free(cache, object);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]

    /// Freed spans counted as resident with all their pages, given back before or never touched: 20 MiB of 107 as a
    /// program began to rest.
    #[test]
    fn free_memory_that_holds_none_is_not_said_to_be_resident(
        size in 1_usize..3000,
        rounds in prop::collection::vec((1_usize..600, 2_usize..30), 1..6),
    ) {
        let page = 4096;
        let heap = heap(page, "1y");
        let mut objects = Vec::new();
        // SAFETY: plain use of the heap by one thread, without a cache.
        unsafe {
            for (count, keep) in rounds {
                objects.extend((0..count).map(|_| heap.allocate(null_mut(), size)));
                let mut index = 0;
                objects.retain(|&object| {
                    index += 1;
                    let stays = index % keep == 0;
                    if !stays { heap.free(null_mut(), object); }
                    stays
                });
                let dirty = heap.totals().dirty;
                let given: usize = spans(&heap)
                    .filter_map(|span| heap.inspect(span).map(|view| (span, view.generation)))
                    .map(|(span, generation)| heap.release_pages(span, generation))
                    .sum();
                let absent = absent_pages(&heap);
                let mapped: usize = spans_bytes(&heap);
                prop_assert_eq!(heap.totals().dirty, dirty, "{} bytes given back from spans", given);
                for object in objects.drain(..) {
                    heap.free(null_mut(), object);
                }
                let freed = mapped - spans_bytes(&heap);
                let left = absent - absent_pages(&heap);
                prop_assert_eq!(heap.totals().dirty, dirty + freed - left * page);
            }
            heap.trim(null_mut());
            prop_assert_eq!(heap.totals().dirty, 0);
        }
    }
}

/// Pages of spans that hold no memory.
fn absent_pages(heap: &Heap<FakeOs>) -> usize {
    spans(heap)
        .filter_map(|span| heap.inspect(span))
        .map(|view| {
            usize::from(view.pages) - view.resident.count_ones().min(view.pages.into()) as usize
        })
        .sum()
}

/// Bytes of spans.
fn spans_bytes(heap: &Heap<FakeOs>) -> usize {
    spans(heap)
        .filter_map(|span| heap.inspect(span))
        .map(|view| usize::from(view.pages) * 4096)
        .sum()
}

#[test]
fn frees_on_blocked_pages_do_not_write_to_them() {
    let heap = heap(4096, "1y");
    let cache = heap.attach();
    // SAFETY: plain use, except for the reads of freed memory, which stays mapped because it is blocked.
    unsafe {
        let objects: Vec<_> = (0..64).map(|_| heap.allocate(cache, 64)).collect();
        for &object in &objects {
            object.write_bytes(0x77, 64);
        }
        for span in spans(&heap) {
            if let Some(view) = heap.inspect(span) {
                heap.block(span, view.generation, 0..view.pages).expect("not blocked before");
            }
        }
        for &object in &objects {
            heap.free(cache, object);
            assert!(std::slice::from_raw_parts(object, 64).iter().all(|&byte| byte == 0x77));
        }
    }
}

#[test]
fn the_statistics_count_what_is_resident() {
    static STATS: StatsPage = StatsPage::zeroed();
    let read = |field: &std::sync::atomic::AtomicU64| {
        field.load(std::sync::atomic::Ordering::Relaxed) as usize
    };
    let heap = heap_with(4096, "0y", &STATS);
    let cache = heap.attach();
    // SAFETY: plain use.
    unsafe {
        // One object of a 64 KiB span makes a few pages resident, not sixteen.
        let object = heap.allocate(cache, 1000);
        heap.refresh(false);
        assert!(
            (1000..=8 * 1024).contains(&read(&STATS.footprint_bytes)),
            "{}",
            read(&STATS.footprint_bytes)
        );
        assert!(
            read(&STATS.live_bytes) >= 1024 && read(&STATS.cached_bytes) < read(&STATS.live_bytes)
        );
        assert_eq!((read(&STATS.threads), STATS.occupancy.iter().map(read).sum::<usize>()), (1, 1));
        let large = heap.allocate(cache, 100_000);
        heap.refresh(false);
        assert_eq!(read(&STATS.large_bytes), 102_400);
        heap.free(cache, large);
        heap.free(cache, object);
        heap.refresh(false);
        assert_eq!((read(&STATS.large_bytes), read(&STATS.dirty_bytes)), (0, 102_400));
        heap.trim(cache);
        heap.detach(cache);
        heap.refresh(false);
        assert_eq!(
            read(&STATS.live_bytes) + read(&STATS.footprint_bytes) + read(&STATS.threads),
            0
        );
    }
}
