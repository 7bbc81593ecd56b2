//! Many threads: objects freed by others than their makers, threads that come and go, forks at any moment.
#![cfg(not(loom))]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{FakeOs, heap};
use pagemill_heap::{Cache, Heap, SpanRef};

/// The descriptors that there are.
fn spans(heap: &Heap<FakeOs>) -> impl Iterator<Item = SpanRef> + '_ {
    (0..heap.span_count()).filter_map(|index| heap.span_at(index))
}

/// Of 4,096 objects of 64 bytes that `maker` allocates and `freer` frees, each time, how many of the last lie right
/// behind the one before them.
fn in_order(heap: &Heap<FakeOs>, maker: *mut Cache, freer: *mut Cache) -> usize {
    let mut found = 0;
    for _ in 0..4 {
        // SAFETY: the caches are this thread's, and so are the objects, until they are freed.
        let objects: Vec<_> = (0..4096).map(|_| unsafe { heap.allocate(maker, 64) }).collect();
        found = objects.windows(2).filter(|two| two[0].wrapping_add(64) == two[1]).count();
        // SAFETY: as above.
        objects.into_iter().for_each(|object| unsafe { heap.free(freer, object) });
    }
    found
}

/// A consumer that reads what another processor has written waits for each object if they come in random order:
/// `xmalloc` with producers and consumers on different processors made half as many calls as else.
#[test]
fn what_others_free_is_handed_out_in_order_and_else_shuffled() {
    let heap = heap(4096, "1y");
    let (maker, freer) = (heap.attach(), heap.attach());
    let own = in_order(&heap, maker, maker);
    assert!(own < 4096 / 8, "{own} of 4,096 in order, where they are shuffled");
    let others = in_order(&heap, maker, freer);
    assert!(others > 4096 * 3 / 4, "only {others} of 4,096 in order");
    // SAFETY: not used afterwards; a null cache is allowed.
    unsafe {
        heap.detach(maker);
        heap.detach(freer);
        heap.trim(std::ptr::null_mut());
    }
    let totals = heap.totals();
    assert_eq!((totals.live, totals.cached), (0, 0), "{totals:?}");
}

struct Object(*mut u8, usize, u8);

// SAFETY: an object is owned by whoever holds this value.
unsafe impl Send for Object {}

fn number(state: &mut u64) -> usize {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    (*state >> 33) as usize
}

/// Allocates, exchanges objects with the other threads through `pool`, checks and frees.
fn churn(heap: &Heap<FakeOs>, pool: &Mutex<Vec<Object>>, seed: u64, steps: usize) {
    let mut state = seed;
    let mut cache = heap.attach();
    for step in 0..steps {
        let roll = number(&mut state);
        // SAFETY: the cache is this thread's; each object is used by its holder alone.
        unsafe {
            let makes = !roll.is_multiple_of(3);
            if makes {
                let size = if roll % 50 == 1 {
                    number(&mut state) % 200_000
                } else {
                    number(&mut state) % 900
                };
                let object = heap.allocate(cache, size);
                assert!(!object.is_null());
                let fill = number(&mut state) as u8;
                object.write_bytes(fill, size);
                pool.lock().expect("not poisoned").push(Object(object, size, fill));
            }
            let taken = {
                let mut pool = pool.lock().expect("not poisoned");
                let len = pool.len();
                if len > 500 || (len > 0 && !makes) {
                    Some(pool.swap_remove(roll % len))
                } else {
                    None
                }
            };
            if let Some(Object(object, size, fill)) = taken {
                assert!(std::slice::from_raw_parts(object, size).iter().all(|&byte| byte == fill));
                heap.free(cache, object);
            }
            if step % 500 == 499 {
                heap.detach(cache);
                cache = heap.attach();
            }
        }
    }
    // SAFETY: not used afterwards.
    unsafe { heap.detach(cache) };
}

fn release(heap: &Heap<FakeOs>, pool: Mutex<Vec<Object>>) {
    for Object(object, size, fill) in pool.into_inner().expect("not poisoned") {
        // SAFETY: the threads are gone; the objects are this thread's.
        unsafe {
            assert!(std::slice::from_raw_parts(object, size).iter().all(|&byte| byte == fill));
            heap.free(std::ptr::null_mut(), object);
        }
    }
    // SAFETY: a null cache is allowed.
    unsafe { heap.trim(std::ptr::null_mut()) };
    let totals = heap.totals();
    assert_eq!(
        (totals.live, totals.cached, totals.free_slots, totals.threads),
        (0, 0, 0, 0),
        "{totals:?}"
    );
}

#[test]
fn threads_free_each_others_objects() {
    for config in ["0n", "1y", "2n", "h"] {
        let heap = heap(4096, config);
        let pool = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (heap, pool) = (&heap, &pool);
                scope.spawn(move || churn(heap, pool, seed, if cfg!(miri) { 60 } else { 20_000 }));
            }
        });
        release(&heap, pool);
    }
}

#[test]
fn compaction_and_purging_go_on_beside_the_threads() {
    let heap = heap(4096, "1y");
    let pool = Mutex::new(Vec::new());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for span in spans(&heap) {
                    let Some(view) = heap.inspect(span) else { continue };
                    let Some(_) = heap.block(span, view.generation, 0..view.pages) else {
                        continue;
                    };
                    std::thread::yield_now();
                    assert!(heap.unblock(span, view.generation, 0..view.pages));
                    heap.release_pages(span, view.generation);
                }
                heap.refresh(false);
                heap.purge(heap.os().clock.fetch_add(100_000_000, Ordering::Relaxed));
            }
        });
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                let (heap, pool) = (&heap, &pool);
                scope.spawn(move || churn(heap, pool, seed, if cfg!(miri) { 60 } else { 20_000 }))
            })
            .collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        ends.into_iter().for_each(|end| end.unwrap());
    });
    release(&heap, pool);
}

#[test]
fn the_locks_can_be_taken_around_a_fork() {
    let heap = heap(4096, "1y");
    let pool = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (heap, pool) = (&heap, &pool);
        scope.spawn(move || churn(heap, pool, 1, if cfg!(miri) { 60 } else { 20_000 }));
        for _ in 0..if cfg!(miri) { 5 } else { 200 } {
            heap.lock_all(|| false);
            // SAFETY: taken above.
            unsafe { heap.unlock_all() };
        }
    });
    heap.lock_all(|| false);
    // SAFETY: the other thread is gone.
    unsafe { heap.reinitialise_locks() };
    release(&heap, pool);
}

#[test]
fn the_first_start_wins_and_others_wait_for_it() {
    static STATS: pagemill_heap::stats::StatsPage = pagemill_heap::stats::StatsPage::zeroed();
    let heap = Heap::new(FakeOs::new(4096));
    std::thread::scope(|scope| {
        for name in ["0n", "1n", "2n", "1y"] {
            let heap = &heap;
            scope.spawn(move || {
                heap.start(pagemill_heap::config::Config::parse(name.as_bytes()).unwrap(), &STATS);
                assert!(heap.started());
            });
        }
    });
}
