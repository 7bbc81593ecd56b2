//! The compaction engine on real memory of this kernel: threads, system calls, devices and children
//! use live objects while groups are committed, and every byte is checked.
//!
//! What a test needs and does not have it names, and skips.

mod support;

use std::fs;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pagemill_heap::compact::{Compactor, Progress};
use pagemill_heap::stats::{Backend, StatsPage};
use support::{LibcKernel, LibcOs, PAGE, Random, Region, clock, rollup};

/// Tests that fork, count mappings or set KSM take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kernel() -> Option<LibcKernel> {
    match LibcKernel::new() {
        Ok(kernel) => Some(kernel),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

/// The value that every word of a slot has at a given count of writes.
fn value(span: usize, slot: usize, writes: u64) -> u64 {
    (((span as u64) << 20) | ((slot as u64) << 8)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ writes
}

/// A region with live slots, and how often each was written.
struct Objects {
    region: Region,
    writes: Vec<AtomicU64>,
    live: Vec<AtomicBool>,
}

impl Objects {
    /// Each slot is live with the given share in a thousand.
    fn new(spans: usize, pages: usize, slot_size: usize, per_mille: usize) -> Self {
        let region = Region::new(spans, pages, slot_size);
        let slots = spans * region.slots;
        let objects = Self {
            region,
            writes: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            live: (0..slots).map(|_| AtomicBool::new(false)).collect(),
        };
        // Every byte is touched first, as in a heap that was full once.
        // SAFETY: the region is at least this long and not used yet.
        unsafe {
            (objects.region.start as *mut u8).write_bytes(0xEE, spans * pages * PAGE);
        }
        let mut random = Random(0x1234_5678_9ABC_DEF1);
        for span in 0..spans {
            for slot in 0..objects.region.slots {
                if random.below(1000) < per_mille && objects.region.take(span, slot) {
                    objects.fill(span, slot, 0);
                    objects.live[objects.index(span, slot)].store(true, Relaxed);
                }
            }
        }
        objects
    }

    fn index(&self, span: usize, slot: usize) -> usize {
        span * self.region.slots + slot
    }

    fn fill(&self, span: usize, slot: usize, writes: u64) {
        for word in 0..self.region.words() {
            // SAFETY: the slot is live and belongs to the caller's thread.
            unsafe {
                self.region.at(span, slot).add(word).write_volatile(value(span, slot, writes));
            }
        }
        self.writes[self.index(span, slot)].store(writes, Relaxed);
    }

    /// Words of the slot that are not what was written last.
    fn wrong(&self, span: usize, slot: usize) -> usize {
        let expected = value(span, slot, self.writes[self.index(span, slot)].load(Relaxed));
        (0..self.region.words())
            // SAFETY: the slot is live and belongs to the caller's thread.
            .filter(|word| unsafe { self.region.at(span, slot).add(*word).read_volatile() } != expected)
            .count()
    }

    fn wrong_in_all(&self) -> usize {
        let mut wrong = 0;
        for span in 0..self.region.spans() {
            for slot in 0..self.region.slots {
                if self.live[self.index(span, slot)].load(Relaxed) {
                    wrong += self.wrong(span, slot);
                }
            }
        }
        wrong
    }

    /// Writes, checks, frees and takes slots of this thread's share until told to stop; returns writes and
    /// wrong words.
    fn churn(&self, thread: usize, threads: usize, stop: &AtomicBool, pace: u64) -> (u64, usize) {
        let mut random = Random(77 + thread as u64);
        let (mut writes, mut wrong) = (0, 0);
        while !stop.load(Relaxed) {
            let span = random.below(self.region.spans());
            let slot = random.below(self.region.slots);
            let index = self.index(span, slot);
            if index % threads != thread {
                continue;
            }
            if self.live[index].load(Relaxed) {
                wrong += self.wrong(span, slot);
                if random.below(16) == 0 {
                    self.live[index].store(false, Relaxed);
                    self.region.free(span, slot);
                } else {
                    self.fill(span, slot, writes + 1);
                    writes += 1;
                }
            } else if random.below(12) == 0 && self.region.take(span, slot) {
                self.fill(span, slot, writes + 1);
                self.live[index].store(true, Relaxed);
                writes += 1;
            }
            if pace != 0 && writes % pace == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        (writes, wrong)
    }
}

fn stats() -> &'static StatsPage {
    Box::leak(Box::new(StatsPage::zeroed()))
}

fn report(name: &str, stats: &StatsPage) {
    println!(
        "{name}: passes {} groups {} merged {} KiB saved {} KiB released {} KiB unmerged {} aborted {} \
         longest pause {} us, compaction {} ms, degraded {:#x}",
        stats.passes.load(Relaxed),
        stats.groups.load(Relaxed),
        stats.merged_bytes.load(Relaxed) >> 10,
        stats.saved_bytes.load(Relaxed) >> 10,
        stats.released_bytes.load(Relaxed) >> 10,
        stats.unmerged_pages.load(Relaxed),
        stats.aborted_groups.load(Relaxed),
        stats.longest_pause_ns.load(Relaxed) / 1000,
        stats.compact_ns.load(Relaxed) / 1_000_000,
        stats.degraded.load(Relaxed),
    );
}

/// Two scans, and a whole pass in slices of half a millisecond.
fn pass(engine: &mut Compactor<'_, &Region, &LibcKernel, LibcOs>) {
    engine.scan();
    engine.scan();
    engine.begin(true);
    while engine.step(500_000) == Progress::More {}
}

#[test]
fn memory_comes_back_and_contents_stay() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    // The big class of the Redis test: 256 bytes, 9.2 % live; and one that straddles pages.
    for (slot_size, pages, per_mille) in [(256, 16, 92), (240, 15, 92), (512, 16, 92), (64, 4, 60)] {
        let objects = Objects::new(1000, pages, slot_size, per_mille);
        let stats = stats();
        let before = rollup("Pss:");
        let maps = pagemill_heap::compact::Kernel::map_count(&&kernel);
        // SAFETY: the kernel is this process's, and the region is changed by the engine only.
        let mut engine =
            unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
        let cpu = clock(libc::CLOCK_THREAD_CPUTIME_ID);
        pass(&mut engine);
        let cpu = clock(libc::CLOCK_THREAD_CPUTIME_ID) - cpu;
        let after = rollup("Pss:");
        let maps = pagemill_heap::compact::Kernel::map_count(&&kernel) - maps;
        report(&format!("{slot_size} B"), stats);
        println!(
            "  Pss {} -> {} KiB, {maps} mappings, {} ms of CPU, {:?}",
            before >> 10,
            after >> 10,
            cpu / 1_000_000,
            engine.last_scan()
        );
        assert_eq!(objects.wrong_in_all(), 0);
        let told = stats.saved_bytes.load(Relaxed) + stats.released_bytes.load(Relaxed);
        assert!(told > 1 << 20, "the engine saved {told} bytes");
        let seen = before.saturating_sub(after);
        assert!(
            seen.abs_diff(told) < told / 10 + (1 << 20),
            "the engine says that it saved {told} bytes, the kernel {seen}"
        );
        assert!(engine.saved_bytes() > 0);
    }
}

#[test]
fn no_write_is_lost_while_threads_write() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    for claim_pins in [false, true] {
        if claim_pins && !kernel.moves {
            println!("skipped: this kernel has no UFFDIO_MOVE");
            continue;
        }
        kernel.claim_pins.store(claim_pins, Relaxed);
        let objects = Objects::new(600, 15, 240, 80);
        let stop = AtomicBool::new(false);
        let stats = stats();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let (objects, stop) = (&objects, &stop);
                    scope.spawn(move || objects.churn(thread, 3, stop, 64))
                })
                .collect();
            // SAFETY: the kernel is this process's, and the region is changed by the engine only.
            let mut engine =
                unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
            engine.settings.mapping_price = 0;
            engine.settings.work_price = 0;
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(2500) {
                pass(&mut engine);
            }
            stop.store(true, Relaxed);
            let (mut writes, mut wrong) = (0, 0);
            for thread in threads {
                let (w, bad) = thread.join().expect("a writer does not panic");
                writes += w;
                wrong += bad;
            }
            report(if claim_pins { "moved aside" } else { "write-protected" }, stats);
            println!(
                "  {writes} writes, {wrong} wrong words, {} moved, {} moves refused",
                kernel.moved.load(Relaxed),
                kernel.refused.load(Relaxed)
            );
            assert_eq!(wrong, 0);
            assert_eq!(objects.wrong_in_all(), 0);
            assert!(writes > 1000 && stats.merged_bytes.load(Relaxed) > 0);
        });
    }
}
