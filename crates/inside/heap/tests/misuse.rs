//! Errors of the program are named, whatever the way to them.
#![cfg(not(loom))]

mod common;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use common::{FakeOs, heap};
use pagemill_heap::config::NAMES;
use pagemill_heap::{Cache, Heap};

/// What `f` does wrong, in the words of the fake operating system; empty if nothing was noticed.
fn misuse(config: &str, f: impl Fn(&Heap<FakeOs>, *mut Cache)) -> String {
    let heap = heap(4096, config);
    let cache = heap.attach();
    let outcome = catch_unwind(AssertUnwindSafe(|| f(&heap, cache)));
    // A lock may be held by the unwound call; nothing of the heap is used from here on.
    outcome
        .err()
        .and_then(|payload| payload.downcast::<String>().ok())
        .map_or_else(String::new, |s| *s)
}

fn is_named(config: &str, what: &str, f: impl Fn(&Heap<FakeOs>, *mut Cache)) {
    let message = misuse(config, f);
    assert!(message.starts_with(what), "{config}: expected {what}, got {message:?}");
}

#[test]
fn a_second_free_is_named_at_once() {
    for config in NAMES {
        for size in [1, 16, 100, 5000, 32_768, 40_000, 700_000, 5_000_000] {
            // SAFETY: the second free is the error that the test is about.
            is_named(config, "DoubleFree", |heap, cache| unsafe {
                let object = heap.allocate(cache, size);
                heap.free(cache, object);
                heap.free(cache, object);
            });
        }
    }
}

#[test]
fn a_second_free_is_named_after_the_first_reached_the_class() {
    for config in NAMES {
        // SAFETY: as above.
        is_named(config, "DoubleFree", |heap, cache| unsafe {
            let kept = heap.allocate(cache, 64);
            let object = heap.allocate(cache, 64);
            heap.free(cache, object);
            heap.trim(cache);
            heap.free(cache, object);
            heap.free(cache, kept);
        });
    }
}

#[test]
fn a_second_free_by_another_thread_is_named() {
    for config in NAMES {
        // SAFETY: as above.
        is_named(config, "DoubleFree", |heap, cache| unsafe {
            let other = heap.attach();
            let object = heap.allocate(cache, 48);
            heap.free(cache, object);
            heap.free(other, object);
        });
        // SAFETY: as above.
        is_named(config, "DoubleFree", |heap, cache| unsafe {
            let object = heap.allocate(cache, 48);
            heap.free(cache, object);
            heap.free(std::ptr::null_mut(), object);
        });
    }
}

#[test]
fn resizing_a_freed_object_is_a_double_free() {
    for config in NAMES {
        for size in [20, 3000, 40_000, 5_000_000] {
            // SAFETY: the resize is the error that the test is about.
            is_named(config, "DoubleFree", |heap, cache| unsafe {
                let object = heap.allocate(cache, size);
                heap.free(cache, object);
                heap.reallocate(cache, object, size + 1);
            });
        }
    }
}

#[test]
fn a_pointer_into_an_object_is_wild() {
    for config in NAMES {
        for (size, offset) in [
            (64, 16),
            (64, 1),
            (5000, 4096),
            (40_000, 4096),
            (40_000, 16),
            (6_000_000, 4096),
            (1_000_000, 500_000),
        ] {
            // SAFETY: the free is the error that the test is about.
            is_named(config, "WildFree", |heap, cache| unsafe {
                let object = heap.allocate(cache, size);
                heap.free(cache, object.wrapping_add(offset));
            });
        }
    }
}

#[test]
fn memory_of_others_is_wild() {
    for config in NAMES {
        for address in [16, 0x1234_5678, usize::MAX - 15, 1 << 47] {
            // SAFETY: as above.
            is_named(config, "WildFree", |heap, cache| unsafe {
                heap.free(cache, std::ptr::without_provenance_mut(address));
            });
        }
        let mut local = [0_u64; 4];
        let local = local.as_mut_ptr().cast::<u8>().expose_provenance();
        // SAFETY: as above.
        is_named(config, "WildFree", |heap, cache| unsafe {
            heap.reallocate(cache, std::ptr::with_exposed_provenance_mut(local), 10);
        });
        is_named(config, "WildFree", |heap, _| {
            heap.usable_size(std::ptr::with_exposed_provenance(local));
        });
    }
}

#[test]
fn an_object_that_was_never_written_is_not_taken_for_a_freed_one() {
    for config in NAMES {
        // SAFETY: plain use.
        let message = misuse(config, |heap, cache| unsafe {
            for _ in 0..1000 {
                let objects: [_; 40] = std::array::from_fn(|_| heap.allocate(cache, 32));
                for object in objects {
                    heap.free(cache, object);
                }
            }
        });
        assert_eq!(message, "");
    }
}

#[test]
fn hardened_mode_names_writes_past_the_end() {
    for size in [1, 8, 24, 100, 4000, 20_000, 40_001, 70_001] {
        // SAFETY: the write is the error that the test is about; it stays within the memory behind the object.
        is_named("h", "Overflow", |heap, cache| unsafe {
            let object = heap.allocate(cache, size);
            object.add(size).write(object.add(size).read() ^ 1);
            heap.free(cache, object);
        });
    }
}

#[test]
fn hardened_mode_names_sized_frees_of_another_size() {
    for (size, named) in [(100, 4000), (4000, 3999), (70_001, 70_000), (24, 25)] {
        // SAFETY: plain use.
        is_named("h", "WrongSize", |heap, cache| unsafe {
            let object = heap.allocate(cache, size);
            heap.check_size(object, size);
            heap.check_size(object, named);
        });
    }
}

#[test]
fn hardened_mode_names_writes_after_a_free() {
    // SAFETY: the write is the error that the test is about; the memory is still mapped.
    is_named("h", "UseAfterFree", |heap, cache| unsafe {
        let object = heap.allocate(cache, 100);
        heap.free(cache, object);
        object.add(50).write(1);
        // It is found when the object leaves the quarantine.
        for _ in 0..20_000 {
            let other = heap.allocate(cache, 1000);
            heap.free(cache, other);
        }
    });
}

#[test]
fn hardened_mode_does_not_hand_freed_memory_out_at_once() {
    let heap = heap(4096, "h");
    // SAFETY: plain use.
    unsafe {
        let object = heap.allocate(std::ptr::null_mut(), 100);
        heap.free(std::ptr::null_mut(), object);
        for _ in 0..1000 {
            assert_ne!(heap.allocate(std::ptr::null_mut(), 100), object);
        }
    }
}

#[test]
fn hardened_mode_reports_exact_sizes() {
    let heap = heap(4096, "h");
    for size in (0..70_000).step_by(97) {
        // SAFETY: plain use.
        unsafe {
            let object = heap.allocate(std::ptr::null_mut(), size);
            assert_eq!(heap.usable_size(object), size);
            heap.check_size(object, size);
            heap.free(std::ptr::null_mut(), object);
            for align in [32, 256, 8192] {
                let object = heap.allocate_aligned(std::ptr::null_mut(), align, size);
                heap.check_size(object, size);
                heap.free(std::ptr::null_mut(), object);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps by the kernel")]
fn objects_four_gibibytes_apart_are_freed_and_checked_alike() {
    /// Objects in several chunks, of which no two are in the same 4 GiB.
    fn objects(heap: &Heap<FakeOs>, cache: *mut Cache) -> Vec<*mut u8> {
        heap.os().apart.store(true, Ordering::Relaxed);
        // SAFETY: plain use.
        let objects: Vec<_> = (0..10_000).map(|_| unsafe { heap.allocate(cache, 500) }).collect();
        let highs: BTreeSet<_> = objects.iter().map(|object| object.addr() >> 32).collect();
        assert!(highs.len() > 1, "{highs:x?}");
        objects
    }
    for config in NAMES {
        // SAFETY: plain use.
        let message = misuse(config, |heap, cache| unsafe {
            let objects = objects(heap, cache);
            let (first, second) = objects.split_at(objects.len() / 2);
            for (&one, &other) in first.iter().zip(second) {
                heap.free(cache, one);
                heap.free(cache, other);
            }
        });
        assert_eq!(message, "", "{config}");
        // SAFETY: the second free is the error that the test is about.
        is_named(config, "DoubleFree", |heap, cache| unsafe {
            let objects = objects(heap, cache);
            heap.free(cache, objects[0]);
            heap.free(cache, objects[objects.len() - 1]);
            heap.free(cache, objects[0]);
        });
        // SAFETY: the wild free is the error that the test is about.
        is_named(config, "WildFree", |heap, cache| unsafe {
            let objects = objects(heap, cache);
            heap.free(cache, objects[objects.len() - 1]);
            heap.free(cache, objects[0].wrapping_add(8));
        });
    }
}

/// Frees around the only object of a heap, of what the program was never given.
fn around(config: &str, size: usize) {
    let heap = heap(4096, config);
    let caches = [heap.attach(), heap.attach(), std::ptr::null_mut()];
    // SAFETY: plain use.
    let object = unsafe { heap.allocate(caches[0], size) };
    let slot = heap.usable_size(object).next_multiple_of(16) as isize;
    let slots = [1, 2, 3, 5, 14, -1, -2, -14, 255, -255].map(|slots| slots * slot);
    for offset in slots.into_iter().chain([16, 4096, -4096, 8192, 65_520]) {
        for cache in caches {
            if offset.unsigned_abs() < 65_536 {
                let other = object.wrapping_offset(offset);
                // SAFETY: the free is the error that the test is about, and is named before anything has changed.
                let named = catch_unwind(AssertUnwindSafe(|| unsafe { heap.free(cache, other) }));
                assert!(named.is_err(), "{config} {size} {offset}");
            }
        }
    }
}

/// `free(p + 4096)` of an object of 4096 bytes put a slot of its span into the cache a second time, and malloc gave it
/// to two owners.
#[test]
#[cfg_attr(miri, ignore = "hundreds of heaps")]
fn a_free_of_what_was_never_handed_out_is_named() {
    for config in NAMES {
        for size in [16, 48, 64, 112, 1024, 2048, 4096, 5120, 20_480, 32_768] {
            around(config, size);
        }
    }
}

/// Whatever is freed, right or wrong, no two owners have one address: a model of which slots the program holds decides
/// which frees are right, and every other is to be named before anything has changed.
#[test]
fn wrong_frees_are_named_and_right_ones_are_not_in_a_heap_at_work() {
    let rounds = if cfg!(miri) { 200 } else { 10_000 };
    for (config, seed) in NAMES.iter().flat_map(|config| [(config, 1_u64), (config, 2)]) {
        let heap = heap(4096, config);
        let caches = [heap.attach(), heap.attach(), std::ptr::null_mut()];
        let mut held = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % bound.max(1)
        };
        for round in 0..rounds {
            let cache = caches[below(caches.len())];
            // Waves, so that spans fill and empty.
            let grows = below(8) < if round / 1000 % 2 == 0 { 5 } else { 3 };
            // SAFETY: objects are used as the model says, except for the errors that the test is about, of which each
            // is named, and named before it takes a lock or changes anything.
            unsafe {
                if grows || held.is_empty() {
                    let size = [16, 40, 64, 500, 1024, 4096, 9000][below(7)];
                    let object = heap.allocate(cache, size);
                    assert!(held.insert(object), "{config}: two owners of {object:p}");
                    seen.insert(object);
                } else {
                    let index = below(held.len().min(64));
                    let object = *held.iter().nth(index).expect("below the length");
                    held.remove(&object);
                    heap.free(cache, object);
                }
                if round % 4 == 0 {
                    let other = *seen.iter().nth(below(seen.len().min(256))).expect("not empty");
                    let other = other.wrapping_add([0, 16, 64, 1024, 4096, 8192][below(6)]);
                    if !held.contains(&other) && *config != "h" {
                        let named = catch_unwind(AssertUnwindSafe(|| heap.free(cache, other)));
                        assert!(named.is_err(), "{config}: a free of {other:p} was taken");
                    }
                }
                if round % 97 == 0 {
                    heap.trim(cache);
                    let clock = &heap.os().clock;
                    heap.purge(clock.fetch_add(2_000_000_000, Ordering::Relaxed));
                }
            }
        }
    }
}
