//! What a pass over the big class of the Redis test costs and gives, by the price of a mapping, on real
//! memory of this kernel.
//!
//! `cargo bench -p pagemill-heap --bench compact`

#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagemill_heap::compact::{Compactor, Kernel, Progress};
use pagemill_heap::stats::{Backend, StatsPage};
use support::{LibcKernel, LibcOs, PAGE, Random, Region, clock, rollup};

/// The shortest of five forks, in microseconds.
fn fork_us() -> u64 {
    let fork = || {
        let begin = clock(libc::CLOCK_MONOTONIC);
        // SAFETY: the child exits at once; the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            let time = clock(libc::CLOCK_MONOTONIC) - begin;
            libc::waitpid(child, std::ptr::null_mut(), 0);
            time / 1000
        }
    };
    (0..5).map(|_| fork()).min().unwrap_or(0)
}

fn main() {
    let kernel = match LibcKernel::new() {
        Ok(kernel) => kernel,
        Err(reason) => return println!("skipped: {reason}"),
    };
    println!("43,744 pages, 16 slots a page, 9.2 % live: remap by the price of a mapping");
    println!(
        "price  groups  mappings  Pss before  after MiB  saved  CPU ms  us/page  fork us  after  p99 us"
    );
    for price in [0, 256, 512, 1024, 2048, 4096, 8192] {
        let region = Region::new(2734, 16, 256, false);
        let mut random = Random(0x1234_5678_9ABC_DEF1);
        let base = rollup("Pss:");
        // SAFETY: the region is this long and not used yet.
        unsafe { (region.start as *mut u8).write_bytes(7, 2734 * 16 * PAGE) };
        for span in 0..2734 {
            for slot in 0..256 {
                if random.below(1000) < 92 {
                    region.take(span, slot);
                }
            }
        }
        let before = rollup("Pss:") - base;
        let fork_before = fork_us();
        let maps = (&kernel).map_count();
        let stats = Box::new(StatsPage::zeroed());
        // SAFETY: the kernel is this process's, and the region is changed by the engine only.
        let mut engine =
            unsafe { Compactor::new(&region, &kernel, &LibcOs, &stats, Backend::Remap) };
        engine.settings.mapping_price = price;
        engine.settings.mappings = 60_000;
        let begin = clock(libc::CLOCK_THREAD_CPUTIME_ID);
        engine.scan();
        engine.scan();
        engine.begin(false);
        while engine.step(500_000) == Progress::More {
            std::thread::sleep(Duration::from_micros(200));
        }
        let cpu = clock(libc::CLOCK_THREAD_CPUTIME_ID) - begin;
        let maps = (&kernel).map_count() - maps;
        for page in 0..2734 * 16 {
            // SAFETY: the page lies in the region.
            unsafe { ((region.start + page * PAGE) as *const u8).read_volatile() };
        }
        let after = rollup("Pss:") - base;
        let groups: u64 = stats.pauses.iter().map(|count| count.load(Relaxed)).sum();
        let mut left = groups / 100;
        let p99 = (0..40usize).rev().find(|bucket| {
            let count = stats.pauses[*bucket].load(Relaxed);
            let found = count > left;
            left = left.saturating_sub(count);
            found
        });
        println!(
            "{price:>5} {:>7} {maps:>9} {:>11.1} {:>10.1} {:>6.1} {:>7.1} {:>8.2} {fork_before:>8} {:>6} {:>7}",
            stats.groups.load(Relaxed),
            before as f64 / 1048576.0,
            after as f64 / 1048576.0,
            engine.saved_bytes() as f64 / 1048576.0,
            cpu as f64 / 1e6,
            cpu as f64 / 1e3 / (2734.0 * 16.0),
            fork_us(),
            (2u64 << p99.unwrap_or(0)) / 1000,
        );
        engine.end();
    }
}
