//! Programs that grow, in the shapes that huge page studies use.
//!
//! | name | shape | full size | after |
//! |---|---|---|---|
//! | `growing-server` | each request fills a page and reads 16 random places | 800 MiB | a server that takes data in |
//! | `thp-ubmk` | touches a mapping page by page, then random reads | 4 GiB | `thp_ubmk` of CBMM (ATC 2022) |
//!
//! Each request, and each touch, is timed.
//!
//! Both map their memory by themselves and record into memory that was touched before. Time between requests (`think`)
//! is spent, not slept.

use std::hint::black_box;
use std::time::{Duration, Instant};

use pagemill_kernel::Linux;
use pagemill_kernel::memory::anonymous::Anonymous;

use crate::program::{Outcome, Params, Program, Report};
use pagemill_kernel::memory::smaps::Usage;
use pagemill_model::Pid;
use pagemill_model::random::Random;

/// The programs.
pub const PROGRAMS: [Program; 2] = [
    Program {
        name: "growing-server",
        summary: "each request fills a new page and reads 16 random places; every request timed (fixed work)",
        takes: "scale think seed",
        work: growing_server,
    },
    Program {
        name: "thp-ubmk",
        summary: "touches a mapping page by page, every touch timed, then random reads (fixed work)",
        takes: "scale think seed",
        work: thp_ubmk,
    },
];

const PAGE: usize = pagemill_model::page::BASE as usize;
const LINE: usize = 64;

/// How long each of a known number of things took.
struct Latencies(Vec<u32>);

impl Latencies {
    /// Room for `count`, touched, so that recording takes no fault.
    fn with_room(count: usize) -> Self {
        let mut times = vec![1_u32; count];
        times.clear();
        Self(times)
    }

    #[inline]
    fn record(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Percentiles in microseconds, and the sum in seconds.
    fn metrics(mut self) -> Vec<(&'static str, f64)> {
        let sum: u64 = self.0.iter().copied().map(u64::from).sum();
        self.0.sort_unstable();
        let at = |share: f64| {
            let index = (self.0.len() as f64 * share) as usize;
            f64::from(self.0[index.min(self.0.len() - 1)]) / 1e3
        };
        vec![
            ("in_request_s", sum as f64 / 1e9),
            ("p50_us", at(0.5)),
            ("p90_us", at(0.9)),
            ("p99_us", at(0.99)),
            ("p99_9_us", at(0.999)),
            ("p99_99_us", at(0.9999)),
            ("p99_999_us", at(0.99999)),
            ("max_us", at(1.0)),
        ]
    }
}

/// Of times, and of this process, whose faults were so many at first and whose memory is that in the end.
fn metrics(
    times: Latencies,
    pages: usize,
    faults: f64,
    (huge, resident, later): (f64, f64, f64),
) -> Vec<(&'static str, f64)> {
    let mut metrics = times.metrics();
    metrics.extend([
        ("huge_bytes", huge),
        ("resident_bytes", resident),
        ("faults", later - faults),
        ("size_bytes", (pages * PAGE) as f64),
    ]);
    metrics
}

/// Of this process: huge and resident bytes, and minor faults.
fn own_memory() -> (f64, f64, f64) {
    let (linux, own) = (Linux::live(), Pid::own());
    let figure = |figure: Option<u64>| figure.map_or(f64::NAN, |figure| figure as f64);
    let usage = linux.smaps_rollup(own).ok();
    let faults = linux.stat(own).ok().map(|stat| stat.minor_faults);
    let of = |field: fn(&Usage) -> Option<u64>| figure(usage.as_ref().and_then(field));
    (of(|usage| usage.anon_huge_pages), of(|usage| usage.rss), figure(faults))
}

fn spend(time: Duration) {
    if !time.is_zero() {
        let began = Instant::now();
        while began.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

fn growing_server(params: &Params) -> Outcome {
    const FULL: usize = 800 << 20;
    const READS: usize = 16;
    let pages = params.scaled(FULL / PAGE);
    let mut latencies = Latencies::with_room(pages);
    let memory = Anonymous::map(pages * PAGE, 0)?;
    let mut random = Random::new(params.seed);
    let mut seen = 0_u64;
    let (_, _, faults) = own_memory();
    let began = Instant::now();
    for page in 0..pages {
        spend(params.think);
        let asked = Instant::now();
        let end = (page + 1) * PAGE;
        for line in (page * PAGE..end).step_by(LINE) {
            memory.write(line, page as u64);
        }
        for _ in 0..READS {
            let place = random.index(end / LINE) * LINE;
            seen = seen.wrapping_add(memory.read(place));
        }
        latencies.record(asked.elapsed());
    }
    let seconds = began.elapsed().as_secs_f64();
    black_box(seen);
    let memory_used = own_memory();
    let wrong = (0..pages).filter(|page| {
        let mut lines = (page * PAGE..(page + 1) * PAGE).step_by(LINE);
        !lines.all(|line| memory.read(line) == *page as u64)
    });
    let wrong = wrong.count();
    if wrong > 0 {
        return Err(format!("{wrong} of {pages} pages do not hold what was written").into());
    }
    Ok(Report {
        operations: pages as u64,
        seconds,
        metrics: metrics(latencies, pages, faults, memory_used),
        check: format!("all lines of {pages} pages hold what was written"),
    })
}

fn thp_ubmk(params: &Params) -> Outcome {
    const FULL: usize = 4 << 30;
    /// Random reads for each page touched.
    const READS: usize = 2;
    let pages = params.scaled(FULL / PAGE);
    let mut latencies = Latencies::with_room(pages);
    let memory = Anonymous::map(pages * PAGE, 0)?;
    let (_, _, faults) = own_memory();
    let began = Instant::now();
    for page in 0..pages {
        spend(params.think);
        let asked = Instant::now();
        memory.write(page * PAGE, page as u64 | 1);
        latencies.record(asked.elapsed());
    }
    let touched = began.elapsed().as_secs_f64();
    let memory_used = own_memory();
    let mut random = Random::new(params.seed);
    // Each read waits for the one before.
    let mut place = 0;
    for _ in 0..pages * READS {
        place = (random.index(pages) + (memory.read(place) & 1) as usize - 1) * PAGE;
    }
    let seconds = began.elapsed().as_secs_f64();
    if (0..pages).any(|page| memory.read(page * PAGE) != page as u64 | 1) {
        return Err("a page does not hold what was written".into());
    }
    let mut metrics = metrics(latencies, pages, faults, memory_used);
    metrics.push(("touch_s", touched));
    metrics.push(("read_ns", (seconds - touched) * 1e9 / (pages * READS) as f64));
    Ok(Report {
        operations: pages as u64,
        seconds,
        metrics,
        check: format!("{pages} pages hold what was written"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_check_what_they_wrote_and_time_each_step() {
        for program in &PROGRAMS {
            let params = Params { scale: 0.001, ..Params::default() };
            let report = program.run(&params).unwrap();
            let metric = |name| report.metrics.iter().find(|m| m.0 == name).unwrap().1;
            assert!(metric("p50_us") <= metric("p99_us") && metric("p99_us") <= metric("max_us"));
            assert!(metric("in_request_s") <= report.seconds);
            assert_eq!(metric("size_bytes") as u64, report.operations * 4096);
        }
    }

    #[test]
    fn think_time_is_spent() {
        let params =
            Params { scale: 0.0001, think: Duration::from_micros(500), ..Params::default() };
        let report = growing_server(&params).unwrap();
        assert!(report.seconds >= report.operations as f64 * 500e-6);
    }
}
