//! The compaction engine on real memory of this kernel: threads, system calls, devices and children
//! use live objects while groups are committed, and every byte is checked.
//!
//! What a test needs and does not have it names, and skips. Miri knows neither these system calls nor page tables.

#![cfg(not(miri))]

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

/// How long a test waits for what it is about. On an idle machine a few seconds are plenty.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether a test's loop goes on: for `least`, and from then on until it has seen enough. What is asserted afterwards
/// is what was seen, never how fast it came.
fn goes_on(begin: Instant, least: Duration, enough: bool) -> bool {
    let elapsed = begin.elapsed();
    elapsed < least || !enough && elapsed < PATIENCE
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
    /// Writes of all threads.
    written: AtomicU64,
}

impl Objects {
    /// Each slot is live with the given share in a thousand.
    fn new(spans: usize, pages: usize, slot_size: usize, per_mille: usize) -> Self {
        Self::on(Region::new(spans, pages, slot_size, false), per_mille)
    }

    fn on(region: Region, per_mille: usize) -> Self {
        let (spans, pages) = (region.spans(), region.pages);
        let slots = spans * region.slots;
        let objects = Self {
            region,
            writes: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            live: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            written: AtomicU64::new(0),
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
        self.written.fetch_add(1, Relaxed);
    }

    /// Words of the slot that are not what was written last.
    fn wrong(&self, span: usize, slot: usize) -> usize {
        let expected = value(span, slot, self.writes[self.index(span, slot)].load(Relaxed));
        let start = self.region.at(span, slot);
        // SAFETY: the slot is live and belongs to the caller's thread, or nobody writes it now.
        let read = |word: usize| unsafe { start.add(word).read_volatile() };
        (0..self.region.words()).filter(|word| read(*word) != expected).count()
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

    /// Frees two of three live slots of this thread's share.
    fn thin(&self, thread: usize, threads: usize) {
        let mut random = Random(7);
        for span in 0..self.region.spans() {
            for slot in 0..self.region.slots {
                let index = self.index(span, slot);
                if index % threads == thread
                    && random.below(3) > 0
                    && self.live[index].swap(false, Relaxed)
                {
                    self.region.free(span, slot);
                }
            }
        }
    }

    /// Takes so many in a thousand slots of this thread's share, as far as they are not taken or blocked.
    fn refill(&self, thread: usize, threads: usize, per_mille: usize) {
        let mut random = Random(9);
        for span in 0..self.region.spans() {
            for slot in 0..self.region.slots {
                let index = self.index(span, slot);
                if index % threads == thread
                    && random.below(1000) < per_mille
                    && !self.live[index].load(Relaxed)
                    && self.region.take(span, slot)
                {
                    self.fill(span, slot, 1);
                    self.live[index].store(true, Relaxed);
                }
            }
        }
    }

    /// Writes, checks, frees and takes slots of this thread's share until told to stop; returns the wrong words.
    fn churn(&self, thread: usize, threads: usize, stop: &AtomicBool, pace: u64) -> usize {
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
        wrong
    }
}

fn stats() -> &'static StatsPage {
    Box::leak(Box::new(StatsPage::zeroed()))
}

fn report(name: &str, stats: &StatsPage) {
    println!(
        "{name}: passes {} groups {} merged {} KiB saved {} KiB released {} KiB unmerged {} aborted {} \
         pauses {:?} longest {} us, compaction {} ms, degraded {:#x}",
        stats.passes.load(Relaxed),
        stats.groups.load(Relaxed),
        stats.merged_bytes.load(Relaxed) >> 10,
        stats.saved_bytes.load(Relaxed) >> 10,
        stats.released_bytes.load(Relaxed) >> 10,
        stats.unmerged_pages.load(Relaxed),
        stats.aborted_groups.load(Relaxed),
        pauses(stats),
        stats.longest_pause_ns.load(Relaxed) / 1000,
        stats.compact_ns.load(Relaxed) / 1_000_000,
        stats.degraded.load(Relaxed),
    );
}

/// Two scans, and a whole pass in slices of half a millisecond; every other one is urgent.
fn pass(engine: &mut Compactor<'_, &Region, &LibcKernel, LibcOs>) {
    let urgent = engine.passes() % 2 == 1;
    engine.scan_for(urgent);
    engine.scan_for(urgent);
    engine.begin(urgent);
    while engine.step(500_000) == Progress::More {
        // As the helper thread does: the next slice begins with a fresh share of the CPU.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Pauses by length: below 0.26 ms, 1 ms, 2 ms, and more.
fn pauses(stats: &StatsPage) -> [u64; 4] {
    let mut counts = [0; 4];
    for (bucket, count) in stats.pauses.iter().enumerate() {
        let ends = [1u64 << 17, 1 << 19, 1 << 20];
        let class = ends.iter().filter(|end| 1 << bucket > **end).count();
        counts[class] += count.load(Relaxed);
    }
    counts
}

#[test]
fn memory_comes_back_and_contents_stay() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    // The big class of the Redis test: 256 bytes, 9.2 % live; and one that straddles pages.
    for (slot_size, pages, per_mille) in [(256, 16, 92), (240, 15, 92), (512, 16, 92), (64, 4, 60)]
    {
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
        // Pages of images count once they are mapped again, which reading every object does.
        assert_eq!(objects.wrong_in_all(), 0);
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

/// What is told while a pass runs counted merged pages as ordinary memory and as images (316 MiB where there were 190
/// to 222).
#[test]
fn the_footprint_is_right_between_the_slices_of_a_pass() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    for backend in [Backend::Remap, Backend::Ksm] {
        let _settings = match backend {
            Backend::Ksm => {
                let values = [("sleep_millisecs", "5"), ("pages_to_scan", "20000"), ("run", "1")];
                match KsmSettings::set(&values) {
                    Ok(settings) => Some(settings),
                    Err(reason) => return println!("skipped: KSM cannot be set: {reason}"),
                }
            }
            _ => None,
        };
        let objects = Objects::new(1000, 16, 256, 92);
        let len = 1000 * 16 * PAGE;
        // Every page of the region has been touched; what the test itself uses hardly changes.
        let beside = rollup("Pss:") - len as u64;
        let stats = stats();
        // SAFETY: the kernel is this process's, and the region is changed by the engine only.
        let mut engine =
            unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, backend) };
        let (mut told_most, mut over, mut under, mut looks) = (0, 0, 0, 0);
        let mut look = |engine: &Compactor<'_, &Region, &LibcKernel, LibcOs>| {
            // Pages of an image are mapped when they are read, and the kernel's figure is of what is mapped.
            assert_eq!(objects.wrong_in_all(), 0);
            let told = stats.footprint_bytes.load(Relaxed);
            let seen = rollup("Pss:").saturating_sub(beside);
            engine.publish();
            // `ksmd` goes on meanwhile: the kernel's figure belongs between the two.
            let again = stats.footprint_bytes.load(Relaxed);
            over = over.max(told.min(again).saturating_sub(seen));
            under = under.max(seen.saturating_sub(told.max(again)));
            told_most = told_most.max(told);
            looks += 1;
            told
        };
        engine.scan();
        let before = look(&engine);
        assert!(before.abs_diff(len as u64) < 1 << 20, "{before} of {len}");
        let begin = Instant::now();
        let mut least = before;
        while goes_on(begin, Duration::ZERO, least < before / 2) {
            engine.scan();
            engine.scan();
            engine.begin(false);
            while engine.step(2_000_000) == Progress::More {
                least = least.min(look(&engine));
            }
            least = least.min(look(&engine));
            std::thread::sleep(Duration::from_millis(100));
        }
        report(&format!("{backend:?}"), stats);
        println!(
            "  {looks} looks: {before} at first, {least} at last, {told_most} at most; {over} over, {under} under"
        );
        assert!(looks > 5 && least < before / 2, "{looks} looks, {before} -> {least}");
        // A hundredth of the region; with `ksmd`, which merges page by page meanwhile, a twentieth.
        let bound = len as u64 / if backend == Backend::Ksm { 20 } else { 100 };
        assert!(over <= bound, "{over} bytes told that are not there, {bound} allowed");
        // The engine's tables are there too. `ksmd` may begin with a page of each group, and its count has pages that
        // were given back until it comes by.
        let late = match backend {
            Backend::Ksm => {
                stats.groups.load(Relaxed) * PAGE as u64 + stats.released_bytes.load(Relaxed)
            }
            _ => 0,
        };
        let less = bound + len as u64 / 50 + late;
        assert!(under <= less, "{under} bytes there that are not told, {less} allowed");
        assert!(told_most <= before + bound, "{told_most} told, {before} at the start");
        assert_eq!(stats.footprint_peak_bytes.load(Relaxed), told_most.max(before));
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
        let filled = objects.written.load(Relaxed);
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
            let written = || objects.written.load(Relaxed) - filled;
            let paused = || pauses(stats).iter().sum::<u64>();
            while goes_on(begin, Duration::from_millis(2500), written() > 1000 && paused() > 100) {
                pass(&mut engine);
            }
            stop.store(true, Relaxed);
            let wrong: usize =
                threads.into_iter().map(|t| t.join().expect("a writer does not panic")).sum();
            let writes = written();
            report(if claim_pins { "moved aside" } else { "write-protected" }, stats);
            println!(
                "  {writes} writes, {wrong} wrong words, {} moved, {} moves refused",
                kernel.moved.load(Relaxed),
                kernel.refused.load(Relaxed)
            );
            assert_eq!(wrong, 0);
            assert_eq!(objects.wrong_in_all(), 0);
            assert!(writes > 1000 && paused() > 100, "{writes} writes, {} pauses", paused());
        });
    }
}

/// Frees most of what is merged, and has an engine plan its files again; how many images it closed in doing so.
fn renew(
    engine: &mut Compactor<'_, &Region, &LibcKernel, LibcOs>,
    objects: &Objects,
    shares: std::ops::Range<usize>,
    threads: usize,
) -> u64 {
    pass(engine);
    shares.for_each(|thread| objects.thin(thread, threads));
    let closed = engine.kernel().closed.load(Relaxed);
    engine.settings.again = true;
    // Every other one is urgent.
    (0..3).for_each(|_| pass(engine));
    engine.settings.again = false;
    engine.kernel().closed.load(Relaxed) - closed
}

#[test]
fn what_half_died_takes_less_memory_when_it_is_planned_again() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    let objects = Objects::new(1000, 16, 256, 92);
    let stats = stats();
    // SAFETY: the kernel is this process's, and the region is changed by the engine only.
    let mut engine =
        unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
    let seen = || {
        // Pages of images count once they are mapped again.
        assert_eq!(objects.wrong_in_all(), 0);
        (rollup("Pss:"), stats.footprint_bytes.load(Relaxed))
    };
    (0..2).for_each(|_| pass(&mut engine));
    let merged = seen();
    let (begin, mut closed) = (Instant::now(), renew(&mut engine, &objects, 0..1, 1));
    let mut renewed = seen();
    // What is frozen for too long on a busy machine is let go.
    while goes_on(begin, Duration::ZERO, closed > 0 && renewed.1 < merged.1 / 3 * 2) {
        closed += renew(&mut engine, &objects, 0..0, 1);
        renewed = seen();
    }
    report("planned again", stats);
    println!("  {merged:?} became {renewed:?}, {closed} images closed");
    assert!(closed > 0);
    assert!(renewed.1 < merged.1 / 3 * 2, "{merged:?} became {renewed:?}");
    assert!(renewed.0 < merged.0, "{merged:?} became {renewed:?}");
    let (told, there) = (merged.1 - renewed.1, merged.0 - renewed.0);
    assert!(told.abs_diff(there) < told / 4 + (1 << 20), "{told} told, {there} there");
    assert_eq!(engine.dissolve_all(), 0);
    assert_eq!(objects.region.blocked_pages(), 0);
    assert_eq!(objects.wrong_in_all(), 0);
}

#[test]
fn no_write_is_lost_while_files_are_planned_again() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    writes_while_files_are_planned_again(&kernel);
    // What is in an image cannot be moved aside, and stays where it is.
    kernel.claim_pins.store(kernel.moves, Relaxed);
    writes_while_files_are_planned_again(&kernel);
}

fn writes_while_files_are_planned_again(kernel: &LibcKernel) {
    let pins = kernel.claim_pins.load(Relaxed);
    let objects = Objects::new(600, 15, 240, 80);
    let filled = objects.written.load(Relaxed);
    let stop = AtomicBool::new(false);
    let stats = stats();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (objects, stop) = (&objects, &stop);
                scope.spawn(move || objects.churn(thread, 8, stop, 64))
            })
            .collect();
        // SAFETY: the kernel is this process's, and the region is changed by the engine only.
        let mut engine =
            unsafe { Compactor::new(&objects.region, kernel, &LibcOs, stats, Backend::Remap) };
        engine.settings.mapping_price = 0;
        engine.settings.work_price = 0;
        let (begin, mut closed) = (Instant::now(), 0);
        let written = || objects.written.load(Relaxed) - filled;
        let enough = |closed| written() > 1000 && (closed > 3 || pins);
        while goes_on(begin, Duration::from_millis(2500), enough(closed)) {
            for thread in 2..8 {
                objects.refill(thread, 8, 80);
            }
            closed += renew(&mut engine, &objects, 2..8, 8);
            engine.dissolve_all();
        }
        stop.store(true, Relaxed);
        let wrong: usize =
            threads.into_iter().map(|t| t.join().expect("a writer does not panic")).sum();
        report("planned again", stats);
        println!("  {} writes, {wrong} wrong words, {closed} images closed", written());
        assert_eq!(wrong, 0);
        assert_eq!(objects.wrong_in_all(), 0);
        assert!(enough(closed), "{} writes, {closed} closed", written());
    });
}

#[test]
fn system_calls_write_into_objects_without_errors() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    let objects = Objects::new(400, 16, 256, 90);
    let stop = AtomicBool::new(false);
    let (stats, calls) = (stats(), AtomicU64::new(0));
    // /dev/zero by read and pread, and a pipe, into live objects that nobody else writes.
    let work = |thread: usize| {
        let zero = fs::File::open("/dev/zero").expect("/dev/zero opens");
        let mut pipe = [0; 2];
        // SAFETY: `pipe` has room for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let mut random = Random(500 + thread as u64);
        let mut errors = 0;
        while !stop.load(Relaxed) {
            let (span, slot) = (random.below(400), random.below(objects.region.slots));
            let index = objects.index(span, slot);
            if index % 2 != thread || !objects.live[index].load(Relaxed) {
                continue;
            }
            let to = objects.region.at(span, slot);
            let len = objects.region.slot_size;
            let kind = random.below(3);
            // SAFETY: the slot is live, belongs to this thread and is `len` bytes long.
            let n = unsafe {
                match kind {
                    0 => libc::read(zero.as_raw_fd(), to.cast(), len),
                    1 => libc::pread(zero.as_raw_fd(), to.cast(), len, 0),
                    _ => {
                        let bytes = vec![0x5Au8; len];
                        libc::write(pipe[1], bytes.as_ptr().cast(), len);
                        libc::read(pipe[0], to.cast(), len)
                    }
                }
            };
            let expected = if kind == 2 { 0x5A5A_5A5A_5A5A_5A5A } else { 0 };
            errors += usize::from(n != len as isize);
            // SAFETY: as above.
            let wrong =
                (0..len / 8).filter(|w| unsafe { to.add(*w).read_volatile() } != expected).count();
            errors += wrong;
            objects.fill(span, slot, calls.fetch_add(1, Relaxed));
            // Slow enough that merging finds pages that are not written at once.
            std::thread::sleep(Duration::from_micros(20));
        }
        errors
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|thread| scope.spawn(move || work(thread))).collect();
        // SAFETY: the kernel is this process's, and the region is changed by the engine only.
        let mut engine =
            unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
        let begin = Instant::now();
        while goes_on(begin, Duration::from_secs(2), calls.load(Relaxed) > 1000) {
            pass(&mut engine);
        }
        stop.store(true, Relaxed);
        let errors: usize = threads.into_iter().map(|t| t.join().expect("no panic")).sum();
        report("system calls", stats);
        println!("  {} calls, {errors} errors or wrong words", calls.load(Relaxed));
        assert_eq!(errors, 0);
        assert_eq!(objects.wrong_in_all(), 0);
        assert!(calls.load(Relaxed) > 1000);
    });
}

/// What a child finds wrong in objects that nobody writes, as its exit status.
fn child_status(objects: &Objects, quiet: usize) -> i32 {
    let wrong: usize = (0..quiet)
        .flat_map(|span| (0..objects.region.slots).map(move |slot| (span, slot)))
        .filter(|(span, slot)| objects.live[objects.index(*span, *slot)].load(Relaxed))
        .map(|(span, slot)| objects.wrong(span, slot))
        .sum();
    i32::from(wrong != 0)
}

#[test]
fn children_of_fork_and_clone_see_what_their_parent_had() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    // Groups of a few units, and of so many that bytes are added to an image which children map.
    for share in [90, 25] {
        children_of_a_heap(&kernel, share);
    }
}

/// Children are made while a heap with one slot in so many thousands live is compacted.
fn children_of_a_heap(kernel: &LibcKernel, share: usize) {
    let objects = Objects::new(500, 16, 256, share);
    let stop = AtomicBool::new(false);
    let (stats, forks) = (stats(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let mut failed = 0;
            while !stop.load(Relaxed) {
                let raw = forks.fetch_add(1, Relaxed) % 2 == 1;
                // SAFETY: the child only reads memory, sleeps and exits without running anything else.
                let child = unsafe {
                    if raw {
                        libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t
                    } else {
                        libc::fork()
                    }
                };
                if child == 0 {
                    // The parent goes on compacting and dissolving meanwhile.
                    // SAFETY: as above.
                    unsafe {
                        let first = child_status(&objects, 500);
                        libc::usleep(3000);
                        libc::_exit(first | child_status(&objects, 500) << 1);
                    }
                }
                assert!(child > 0, "fork fails");
                let mut status = 0;
                // SAFETY: the child exists and `status` is a valid place.
                unsafe { libc::waitpid(child, &mut status, 0) };
                failed += u64::from(status != 0);
            }
            failed
        });
        let begin = Instant::now();
        let (mut merged, mut closed) = (0, 0);
        let enough = |merged: u64, closed| merged > 50 && closed > 0 && forks.load(Relaxed) > 20;
        while goes_on(begin, Duration::from_secs(3), enough(merged, closed)) {
            // SAFETY: the kernel is this process's, and the region is changed by the engine only.
            let mut engine =
                unsafe { Compactor::new(&objects.region, kernel, &LibcOs, stats, Backend::Remap) };
            pass(&mut engine);
            merged += stats.groups.load(Relaxed);
            closed += renew(&mut engine, &objects, 0..1, 1);
            engine.dissolve_all();
            assert_eq!(objects.region.blocked_pages(), 0, "all is unblocked at the end");
            engine.end();
            objects.refill(0, 1, share);
        }
        stop.store(true, Relaxed);
        let failed = storm.join().expect("no panic");
        report("forks", stats);
        println!(
            "  {} children, {failed} of them saw wrong bytes, {merged} groups",
            forks.load(Relaxed)
        );
        assert_eq!(failed, 0);
        assert_eq!(objects.wrong_in_all(), 0);
        assert!(enough(merged, closed), "{merged} groups, {closed} images closed");
    });
}

#[test]
fn devices_write_into_objects_that_are_moved_aside() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    if !kernel.moves {
        println!("skipped: this kernel has no UFFDIO_MOVE (needs Linux 6.8)");
        return;
    }
    let path = std::env::temp_dir().join(format!("pagemill-direct-{}", std::process::id()));
    let pattern: Vec<u8> = (0..1 << 20).map(|i: usize| (i / 512) as u8 ^ 0xA5).collect();
    fs::write(&path, &pattern).expect("the file is written");
    let name = std::ffi::CString::new(path.to_str().expect("a plain path")).expect("no NUL");
    // SAFETY: a C string and flags.
    let fd = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_DIRECT) };
    if fd < 0 {
        println!("skipped: no O_DIRECT on {path:?}: {}", std::io::Error::last_os_error());
        fs::remove_file(&path).expect("the file is there");
        return;
    }
    kernel.claim_pins.store(true, Relaxed);
    let objects = Objects::new(400, 16, 512, 90);
    let stop = AtomicBool::new(false);
    let (stats, reads) = (stats(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut random = Random(9);
            let mut errors = 0;
            while !stop.load(Relaxed) {
                let (span, slot) = (random.below(400), random.below(objects.region.slots));
                if !objects.live[objects.index(span, slot)].load(Relaxed) {
                    continue;
                }
                let to = objects.region.at(span, slot);
                let block = random.below(2048);
                // SAFETY: the slot is live, nobody else writes it, and it is 512 bytes long.
                let n = unsafe { libc::pread(fd, to.cast(), 512, block as i64 * 512) };
                let expected = u64::from_ne_bytes([block as u8 ^ 0xA5; 8]);
                // SAFETY: as above.
                let wrong = (0..64).filter(|w| unsafe { to.add(*w).read_volatile() } != expected);
                errors += wrong.count() + usize::from(n != 512);
                objects.fill(span, slot, reads.fetch_add(1, Relaxed));
            }
            errors
        });
        // SAFETY: the kernel is this process's, and the region is changed by the engine only.
        let mut engine =
            unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
        let begin = Instant::now();
        let enough = || kernel.moved.load(Relaxed) > 0 && reads.load(Relaxed) > 100;
        while goes_on(begin, Duration::from_secs(2), enough()) {
            pass(&mut engine);
            kernel.claim_pins.store(false, Relaxed);
            // Without a reader in flight units could leave; with one only the path for pins is safe.
            kernel.claim_pins.store(true, Relaxed);
        }
        stop.store(true, Relaxed);
        let errors = reader.join().expect("no panic");
        report("direct reads", stats);
        println!(
            "  {} reads, {errors} errors or wrong words; {} KiB moved, {} moves refused",
            reads.load(Relaxed),
            kernel.moved.load(Relaxed) >> 10,
            kernel.refused.load(Relaxed)
        );
        assert_eq!(errors, 0);
        assert_eq!(objects.wrong_in_all(), 0);
        assert!(kernel.moved.load(Relaxed) > 0 && reads.load(Relaxed) > 100);
    });
    // SAFETY: the descriptor was opened above.
    unsafe { libc::close(fd) };
    fs::remove_file(&path).expect("the file is there");
}

/// KSM's settings, put back at the end; until then every other test of this machine that sets them waits.
struct KsmSettings {
    old: Vec<(&'static str, String)>,
    _turn: fs::File,
}

impl KsmSettings {
    const ROOT: &'static str = "/sys/kernel/mm/ksm/";

    fn set(values: &[(&'static str, &str)]) -> Result<Self, String> {
        let path = format!("{}run", Self::ROOT);
        let locked = fs::File::open(&path).and_then(|file| file.lock().map(|()| file));
        let turn = locked.map_err(|e| format!("{path}: {e}"))?;
        // Made first, so that a setting that is refused puts the ones before it back.
        let mut settings = Self { old: Vec::new(), _turn: turn };
        for (name, value) in values {
            let path = format!("{}{name}", Self::ROOT);
            let before = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
            fs::write(&path, value).map_err(|e| format!("{path}: {e}"))?;
            settings.old.push((*name, before.trim().to_owned()));
        }
        Ok(settings)
    }
}

impl Drop for KsmSettings {
    fn drop(&mut self) {
        for (name, value) in self.old.iter().rev() {
            if let Err(error) = fs::write(format!("{}{name}", Self::ROOT), value) {
                println!("cannot restore {name}: {error}");
            }
        }
    }
}

#[test]
fn ksm_merges_while_threads_write() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    let settings =
        KsmSettings::set(&[("sleep_millisecs", "5"), ("pages_to_scan", "20000"), ("run", "1")]);
    let _settings = match settings {
        Ok(settings) => settings,
        Err(reason) => return println!("skipped: KSM cannot be set: {reason}"),
    };
    let objects = Objects::new(700, 16, 256, 92);
    let filled = objects.written.load(Relaxed);
    let stop = AtomicBool::new(false);
    let stats = stats();
    let before = rollup("Pss:");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let (objects, stop) = (&objects, &stop);
                scope.spawn(move || objects.churn(thread, 2, stop, 1))
            })
            .collect();
        // SAFETY: the kernel is this process's, and the region is changed by the engine only.
        let mut engine =
            unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Ksm) };
        let begin = Instant::now();
        let mut least = before;
        let written = || objects.written.load(Relaxed) - filled;
        let enough = |least: u64| before.saturating_sub(least) > 8 << 20 && written() > 1000;
        while goes_on(begin, Duration::from_secs(4), enough(least)) {
            pass(&mut engine);
            std::thread::sleep(Duration::from_millis(200));
            least = least.min(rollup("Pss:"));
        }
        stop.store(true, Relaxed);
        let wrong: usize =
            threads.into_iter().map(|t| t.join().expect("a writer does not panic")).sum();
        let writes = written();
        report("ksm", stats);
        println!(
            "  Pss {} -> at best {} KiB, {writes} writes, {wrong} wrong words, {} pages pending",
            before >> 10,
            least >> 10,
            stats.ksm_pending.load(Relaxed)
        );
        assert_eq!(wrong, 0);
        assert_eq!(objects.wrong_in_all(), 0);
        assert!(writes > 1000);
        assert!(before - least > 8 << 20, "KSM gave {} bytes back", before - least);
    });
}

/// Bytes of this process's memory that are offered to `ksmd`.
fn offered_to_ksmd() -> usize {
    let maps = fs::read_to_string("/proc/self/smaps").expect("smaps can be read");
    let mut size = 0;
    let mut offered = 0;
    for line in maps.lines() {
        if let Some(value) = line.strip_prefix("Size:") {
            let kib = value.split_whitespace().next().expect("a size has a number");
            size = kib.parse::<usize>().expect("a number") << 10;
        } else if line.starts_with("VmFlags:") && line.contains(" mg") {
            offered += size;
        }
    }
    offered
}

#[test]
fn a_pass_offers_no_more_pages_to_ksmd_than_it_may_and_little_else() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    // 19 MiB, nine of a hundred slots live; ksmd need not run.
    let objects = Objects::new(300, 16, 256, 92);
    let stats = stats();
    // SAFETY: the kernel is this process's, and the region is changed by the engine only.
    let mut engine =
        unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Ksm) };
    let before = offered_to_ksmd();
    engine.settings.offers = 500;
    for passes in 1..=2 {
        pass(&mut engine);
        if stats.degraded.load(Relaxed) & pagemill_heap::stats::degraded::NO_KSM != 0 {
            return println!("skipped: this kernel has no KSM");
        }
        let pages = stats.ksm_offered.load(Relaxed) as usize;
        let bytes = offered_to_ksmd() - before;
        assert!((passes * 100..=passes * 500).contains(&pages), "{pages} pages in pass {passes}");
        assert!(bytes >= pages * PAGE, "{bytes} bytes for {pages} pages");
        assert!(bytes <= 4 * passes * 500 * PAGE, "{bytes} bytes for {pages} pages");
    }
    let offered = stats.ksm_offered.load(Relaxed);
    engine.settings.offers = 0;
    pass(&mut engine);
    assert_eq!(stats.ksm_offered.load(Relaxed), offered);
    assert_eq!(objects.wrong_in_all(), 0);
    assert_eq!(engine.dissolve_all(), 0);
    assert_eq!(objects.wrong_in_all(), 0);
}

#[test]
fn every_failure_leaves_the_heap_whole() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    for (claim_pins, backend) in
        [(false, Backend::Remap), (true, Backend::Remap), (false, Backend::Ksm)]
    {
        kernel.claim_pins.store(claim_pins && kernel.moves, Relaxed);
        let objects = Objects::new(300, 16, 256, 90);
        let filled = objects.written.load(Relaxed);
        let stop = AtomicBool::new(false);
        let stats = stats();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| objects.churn(0, 1, &stop, 8));
            // SAFETY: the kernel is this process's, and the region is changed by the engine only.
            let mut engine =
                unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, backend) };
            kernel.fail_one_in.store(5, Relaxed);
            for _ in 0..6 {
                pass(&mut engine);
            }
            kernel.fail_one_in.store(0, Relaxed);
            stop.store(true, Relaxed);
            let wrong = writer.join().expect("a writer does not panic");
            let writes = objects.written.load(Relaxed) - filled;
            report("failures", stats);
            println!("  {} calls failed, {writes} writes", kernel.failed.load(Relaxed));
            assert_eq!(wrong + objects.wrong_in_all(), 0);
            assert!(kernel.failed.load(Relaxed) > 0);
            kernel.claim_pins.store(false, Relaxed);
            assert_eq!(engine.dissolve_all(), 0, "every unit can leave when nothing fails");
            assert_eq!(objects.region.blocked_pages(), 0, "nothing stays blocked");
            assert_eq!(objects.wrong_in_all(), 0);
        });
    }
}

#[test]
fn huge_pages_are_split_and_come_back() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    let before = rollup("AnonHugePages:");
    let objects = Objects::on(Region::new(500, 16, 256, true), 92);
    let huge = rollup("AnonHugePages:") - before;
    if huge < 8 << 20 {
        println!("skipped: the kernel gave {} KiB of huge pages", huge >> 10);
        return;
    }
    let stats = stats();
    let before = rollup("Pss:");
    // SAFETY: the kernel is this process's, and the region is changed by the engine only.
    let mut engine =
        unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
    pass(&mut engine);
    assert_eq!(objects.wrong_in_all(), 0);
    let after = rollup("Pss:");
    report("huge pages", stats);
    println!("  {} KiB of huge pages; Pss {} -> {} KiB", huge >> 10, before >> 10, after >> 10);
    assert!(before - after > (500 * 16 * PAGE / 2) as u64, "{} bytes came back", before - after);
}

#[test]
fn dead_units_become_ordinary_memory() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    let objects = Objects::new(400, 16, 256, 90);
    let stats = stats();
    let maps = || pagemill_heap::compact::Kernel::map_count(&&kernel);
    let before = maps();
    // SAFETY: the kernel is this process's, and the region is changed by the engine only.
    let mut engine =
        unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
    pass(&mut engine);
    let merged = maps();
    assert!(merged > before + 100, "{before} mappings became {merged}");
    for span in 0..400 {
        for slot in 0..objects.region.slots {
            if objects.live[objects.index(span, slot)].swap(false, Relaxed) {
                objects.region.free(span, slot);
            }
        }
    }
    pass(&mut engine);
    assert_eq!(stats.groups.load(Relaxed), 0);
    assert_eq!(objects.region.blocked_pages(), 0);
    assert!(maps() < before + 40, "{before} mappings before, {merged} merged, {} after", maps());
    // All of it can be used again.
    for span in 0..400 {
        for slot in 0..objects.region.slots {
            assert!(objects.region.take(span, slot));
            objects.fill(span, slot, 3);
            objects.live[objects.index(span, slot)].store(true, Relaxed);
        }
    }
    assert_eq!(objects.wrong_in_all(), 0);
}

#[test]
fn a_single_thread_needs_no_barrier() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    kernel.alone.store(true, Relaxed);
    let objects = Objects::new(300, 16, 256, 92);
    let stats = stats();
    // SAFETY: nobody but this thread touches the region, so for the region the process has one thread.
    let mut engine =
        unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
    pass(&mut engine);
    report("alone", stats);
    assert!(engine.saved_bytes() > 8 << 20);
    assert_eq!(objects.wrong_in_all(), 0);
    assert_eq!(engine.dissolve_all(), 0);
    assert_eq!(objects.wrong_in_all(), 0);
}

#[test]
fn a_child_goes_on_with_what_its_parent_merged() {
    let _turn = turn();
    let Some(kernel) = kernel() else { return };
    let objects = Objects::new(300, 16, 256, 92);
    let stats = stats();
    // SAFETY: the kernel is this process's, and the region is changed by the engine only.
    let mut engine =
        unsafe { Compactor::new(&objects.region, &kernel, &LibcOs, stats, Backend::Remap) };
    pass(&mut engine);
    let blocked = objects.region.blocked_pages();
    assert!(blocked > 1000);
    // SAFETY: the child has one thread, which runs the engine and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut whole = kernel.forked();
        engine.forked(&kernel);
        whole &= engine.dissolve_all() == 0 && objects.region.blocked_pages() == 0;
        whole &= objects.wrong_in_all() == 0;
        pass(&mut engine);
        whole &= engine.saved_bytes() > 8 << 20 && objects.wrong_in_all() == 0;
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if whole { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child exists and `status` is a valid place.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child compacts on its own");
    assert_eq!(objects.region.blocked_pages(), blocked);
    assert_eq!(engine.dissolve_all(), 0);
    assert_eq!(objects.wrong_in_all(), 0);
}
