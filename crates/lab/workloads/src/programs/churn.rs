//! `churn`: how long can one call of malloc or free take while the heap is being fragmented?
//!
//! Fill with 600,000 objects of 240 bytes, free a random three quarters, then six rounds in each
//! of which every survivor's place is freed once and filled anew with 240 or 492 bytes. Each call
//! is timed by the wall clock. From a call of 100 us or more, the time that the thread waited for
//! a CPU is taken off (read every 64 calls and at each such call); what is left is execution and
//! blocking, which is what an allocator can be blamed for. On a virtual machine, time stolen by
//! the host is still in it: compare arms of one run.
//!
//! Check: every object carries its own number, first and last byte, when it is freed.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use super::pauses::{Pauses, RunDelay};
use crate::program::{Outcome, Params, Report, own_pss};
use pagemill_model::random::{Random, mix};

const OBJECTS: usize = 600_000;
const ROUNDS: usize = 6;
const SMALL: usize = 240;
const LARGE: usize = 492;
const SLOW: Duration = Duration::from_micros(100);
/// Bucket 20 begins at 2^20 ns, about a millisecond.
const MILLISECOND_BUCKET: usize = 20;

/// Times single calls.
struct Clock {
    allocations: Pauses,
    frees: Pauses,
    delay: RunDelay,
    seen: Duration,
    calls: u32,
}

impl Clock {
    fn new() -> Self {
        let delay = RunDelay::of_this_thread();
        let seen = delay.read();
        Self { allocations: Pauses::default(), frees: Pauses::default(), delay, seen, calls: 0 }
    }

    /// The duration that a call is charged, given the wall time it took.
    #[inline]
    fn charge(&mut self, wall: Duration) -> Duration {
        self.calls = self.calls.wrapping_add(1);
        let slow = wall >= SLOW;
        if !slow && !self.calls.is_multiple_of(64) {
            return wall;
        }
        let now = self.delay.read();
        let waited = now.saturating_sub(self.seen);
        self.seen = now;
        if slow { wall.saturating_sub(waited) } else { wall }
    }

    #[inline]
    fn allocate(&mut self, size: usize) -> Vec<u8> {
        let before = Instant::now();
        let block = black_box(Vec::with_capacity(size));
        let took = self.charge(before.elapsed());
        self.allocations.record(took);
        block
    }

    #[inline]
    fn free(&mut self, block: Vec<u8>) {
        let before = Instant::now();
        drop(black_box(block));
        let took = self.charge(before.elapsed());
        self.frees.record(took);
    }
}

struct Objects {
    clock: Clock,
    damaged: u64,
    made: u64,
}

impl Objects {
    fn make(&mut self, size: usize) -> (u64, Vec<u8>) {
        self.made += 1;
        let number = self.made;
        let mut block = self.clock.allocate(size);
        block.resize(size, mix(number) as u8);
        (number, block)
    }

    fn free(&mut self, (number, block): (u64, Vec<u8>)) {
        let byte = mix(number) as u8;
        if block[0] != byte || block[block.len() - 1] != byte {
            self.damaged += 1;
        }
        self.clock.free(block);
    }
}

pub(super) fn run(params: &Params) -> Outcome {
    let count = params.scaled(OBJECTS);
    let mut random = Random::new(params.seed);
    let mut objects = Objects { clock: Clock::new(), damaged: 0, made: 0 };
    let mut live: Vec<(u64, Vec<u8>)> = Vec::with_capacity(count);
    let started = Instant::now();
    for _ in 0..count {
        let object = objects.make(SMALL);
        live.push(object);
    }
    let full_pss = own_pss();
    random.shuffle(&mut live);
    for object in live.split_off(count.div_ceil(4)) {
        objects.free(object);
    }
    for _ in 0..ROUNDS {
        for _ in 0..live.len() {
            let place = random.index(live.len());
            let size = if random.bits() & 1 == 0 { SMALL } else { LARGE };
            let old = live.swap_remove(place);
            objects.free(old);
            let new = objects.make(size);
            live.push(new);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    thread::sleep(params.hold);
    let end_pss = own_pss();
    let live_bytes: usize = live.iter().map(|(_, block)| block.len()).sum();
    let live_count = live.len();
    // Frees after the idle time count too: they may meet compacted pages.
    for object in live {
        objects.free(object);
    }
    let Objects { clock, damaged, .. } = objects;
    if damaged > 0 {
        return Err(format!("{damaged} objects lost their bytes").into());
    }
    let longest = clock.allocations.longest().max(clock.frees.longest());
    let over = |pauses: &Pauses| pauses.at_least_bucket(MILLISECOND_BUCKET) as f64;
    let mut metrics = vec![
        ("longest_call_us", longest.as_nanos() as f64 / 1e3),
        ("longest_malloc_us", clock.allocations.longest().as_nanos() as f64 / 1e3),
        ("longest_free_us", clock.frees.longest().as_nanos() as f64 / 1e3),
        ("malloc_mean_ns", clock.allocations.mean_nanos()),
        ("free_mean_ns", clock.frees.mean_nanos()),
        ("malloc_p999_below_ns", clock.allocations.quantile_upper_nanos(0.999) as f64),
        ("calls_over_1ms", over(&clock.allocations) + over(&clock.frees)),
        ("live_bytes", live_bytes as f64),
    ];
    metrics.extend(full_pss.map(|bytes| ("full_pss_bytes", bytes)));
    metrics.extend(end_pss.map(|bytes| ("end_pss_bytes", bytes)));
    Ok(Report {
        operations: clock.allocations.calls() + clock.frees.calls(),
        seconds,
        metrics,
        check: format!("{live_count} live objects at the end, every object held its bytes"),
    })
}
