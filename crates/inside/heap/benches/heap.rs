//! What the facade costs a call, on real memory: `cargo bench -p pagemill-heap --bench heap`.

#[path = "../tests/support/mod.rs"]
#[expect(dead_code, reason = "the rest is for the benches of compaction")]
mod support;

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use pagemill_heap::Heap;
use pagemill_heap::config::{Config, NAMES};
use pagemill_heap::stats::StatsPage;
use support::LibcOs;

static STATS: StatsPage = StatsPage::zeroed();

fn bench(criterion: &mut Criterion) {
    for name in NAMES {
        let heap: &Heap<LibcOs> = Box::leak(Box::new(Heap::new(LibcOs)));
        heap.start(Config::parse(name.as_bytes()).unwrap_or(Config::DEFAULT), &STATS);
        let cache = heap.attach();
        let mut group = criterion.benchmark_group(name);
        group.bench_function("allocate and free 64 B", |bencher| {
            // SAFETY: the cache is this thread's, and each object is freed once.
            bencher.iter(|| unsafe { heap.free(cache, black_box(heap.allocate(cache, 64))) });
        });
        group.bench_function("1,000 of 240 B and back", |bencher| {
            // SAFETY: as above.
            bencher.iter(|| unsafe {
                let objects: [_; 1000] = std::array::from_fn(|_| heap.allocate(cache, 240));
                for object in objects {
                    heap.free(cache, black_box(object));
                }
            });
        });
        group.bench_function("free by another cache", |bencher| {
            let other = heap.attach();
            bencher.iter_batched(
                // SAFETY: as above; this thread owns both caches.
                || (0..200).map(|_| unsafe { heap.allocate(cache, 64) }).collect::<Vec<_>>(),
                |objects| {
                    for object in objects {
                        // SAFETY: as above.
                        unsafe { heap.free(other, object) };
                    }
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function("100 KiB and 2 MiB", |bencher| {
            // SAFETY: as above.
            bencher.iter(|| unsafe {
                let (medium, large) =
                    (heap.allocate(cache, 100 << 10), heap.allocate(cache, 2 << 20));
                heap.free(cache, black_box(medium));
                heap.free(cache, black_box(large));
            });
        });
        group.finish();
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
