//! The memory of running processes, a program with all that it has started, looked at again and again.
//!
//! `bytes` is the sum of their proportional set sizes (PSS), each page of a memfd once: what the pages that several of
//! them map take is shared out between them, and what the memfds of our heap hold in no page table is added
//! ([`pagemill_kernel::memory::memfd`]). Swapped memory is not in it, and stands beside.
//!
//! A look walks the page tables of the processes, and holds their mapping locks for reading meanwhile. So pauses
//! between looks grow with what a look took: [`Watch::pause`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pagemill_analysis::statistics::mean_over_time;
use pagemill_kernel::process::same_memory;
use pagemill_kernel::{Linux, memory::memfd};
use pagemill_model::Pid;

/// Memory at one moment, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Since the start.
    pub seconds: f64,
    /// Of all: PSS, each page of a memfd once.
    pub bytes: u64,
    /// The part that belongs to no file.
    pub anonymous: u64,
    /// The part that shows files.
    pub file: u64,
    /// The part that is shared memory, memfds among it.
    pub shared: u64,
    /// In swap.
    pub swap: u64,
    /// Anonymous memory on huge pages.
    pub huge: u64,
    /// Anonymous pages that were not accessed since [`Linux::clear_referenced`], or since they were made, at the least:
    /// all of those that were accessed may be anonymous.
    pub untouched: u64,
    /// What `MADV_FREE` lets the kernel take back, and it has not.
    pub lazy_free: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Processes.
    pub processes: u64,
    /// Threads.
    pub threads: u64,
    /// How long all threads until then were ready and waited for a CPU, where a [`Watch`] looked and the kernel says.
    pub waited: Option<Duration>,
    /// The largest of the processes.
    pub largest: Pid,
}

/// One look at these processes; none if there is nothing to see of any. One that has the memory of the one that started
/// it (before it executes a program, as after vfork(2), or for good) has none besides.
pub fn sample(linux: &Linux, pids: &[Pid]) -> Option<Memory> {
    let mut sum = Memory::default();
    let (mut held, mut files, mut most) = (0, BTreeSet::new(), 0);
    let mut counted = BTreeSet::new();
    for &pid in pids {
        let stat = linux.stat(pid).ok();
        let parent =
            stat.as_ref().map(|stat| stat.parent).filter(|parent| counted.contains(parent));
        counted.insert(pid);
        if parent.is_some_and(|parent| same_memory(pid, parent) == Some(true)) {
            continue;
        }
        // Whoever ends meanwhile, or may not be looked at, has no memory here.
        let Ok(usage) = linux.smaps_rollup(pid) else { continue };
        let Some(pss) = usage.pss.filter(|pss| *pss > 0) else { continue };
        sum.processes += 1;
        sum.bytes += pss;
        sum.anonymous += usage.pss_anon.or(usage.anonymous).unwrap_or(0);
        sum.file += usage.pss_file.unwrap_or(0);
        sum.shared += usage.pss_shmem.unwrap_or(0);
        sum.swap += usage.swap_pss.unwrap_or(0);
        sum.huge += usage.anon_huge_pages.unwrap_or(0);
        let anonymous = usage.anonymous.unwrap_or(0);
        sum.untouched += anonymous.saturating_sub(usage.referenced.unwrap_or(u64::MAX));
        sum.lazy_free += usage.lazy_free.unwrap_or(0);
        if pss > most {
            (most, sum.largest) = (pss, pid);
        }
        if let Ok(status) = linux.status(pid) {
            sum.page_tables += status.page_tables.unwrap_or(0);
        }
        sum.threads += stat.map_or(0, |stat| stat.threads);
        let Ok(mut maps) = linux.maps(pid) else { continue };
        maps.retain(|map| map.name.starts_with("/memfd:") && files.insert(map.inode));
        held += linux.memfd_held(pid, &maps).unwrap_or(0);
    }
    let unmapped = memfd::unmapped(held, Some(sum.shared));
    sum.bytes += unmapped;
    sum.shared += unmapped;
    (sum.processes > 0).then_some(sum)
}

/// Looks at a program and all that it has started, paced.
pub struct Watch<'a> {
    linux: &'a Linux,
    begun: Instant,
    /// What the last look took.
    took: Duration,
    /// How long the threads of each process were ready and waited for a CPU, at its most: those that end take what
    /// they waited with them.
    waited: BTreeMap<Pid, Duration>,
}

impl<'a> Watch<'a> {
    /// Time between two looks, at the least and at the most.
    const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(250));
    /// Time between two looks, in times of what one takes: looks take 4 % of the time of one CPU at the most.
    const SHARE: u32 = 25;
    /// Threads of a process that are asked how long they waited, at the most.
    const THREADS: usize = 64;

    /// Of what starts now.
    pub fn begin(linux: &'a Linux) -> Self {
        Self { linux, begun: Instant::now(), took: Duration::ZERO, waited: BTreeMap::new() }
    }

    /// One look.
    pub fn sample(&mut self, roots: &[Pid]) -> Option<Memory> {
        let now = Instant::now();
        let pids = self.linux.descendants(roots);
        let seen = sample(self.linux, &pids);
        for pid in pids {
            let Some(waited) = self.linux.waited(pid, Pid(0), Self::THREADS) else { continue };
            let most = self.waited.entry(pid).or_default();
            *most = waited.max(*most);
        }
        self.took = now.elapsed();
        let waited = (!self.waited.is_empty()).then(|| self.waited.values().sum());
        seen.map(|memory| Memory { seconds: (now - self.begun).as_secs_f64(), waited, ..memory })
    }

    /// The time since it began, seconds.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// How long to wait before the next.
    pub fn pause(&self) -> Duration {
        (self.took * Self::SHARE).clamp(Self::PAUSE.0, Self::PAUSE.1)
    }
}

/// A run has come near its highest when it has this share of it.
const NEAR: f64 = 0.9;

/// The mean over time of a program that has grown, bytes: from the first look with nine tenths of the highest on
/// (trapezoids, for looks are not exactly equidistant), to where it begins to end. How long it takes to grow is not in
/// it, or who fills memory slowly would seem to need less; nor how long it takes to free it all before it exits, or who
/// frees slowly would. None without a look.
pub fn mean(looks: &[Memory]) -> Option<f64> {
    let most = looks.iter().map(|look| look.bytes).max()?;
    let near = looks.iter().position(|look| look.bytes as f64 >= most as f64 * NEAR)?;
    over(&looks[near..=ending(looks).max(near)])
}

/// The mean over time from the first look on, to where it begins to end, bytes: how long it takes to grow is in it, and
/// which of several peaks is the highest is not. None without a look.
pub fn whole_mean(looks: &[Memory]) -> Option<f64> {
    looks.get(..=ending(looks)).and_then(over)
}

fn over(looks: &[Memory]) -> Option<f64> {
    mean_over_time(looks, |look| (look.seconds, look.bytes as f64))
}

/// What is left when a program has freed its memory differs by less from look to look, as a share.
const LEVEL: f64 = 0.1;
/// It stays there for a shorter time than that of its fall, or than this share of the run.
const BRIEF: f64 = 0.05;

/// The last look before the program frees its memory to end: before a fall by half or more, that ends with the run, or
/// close to it. A fall after which it goes on is none. The last look, where there is no such fall.
fn ending(looks: &[Memory]) -> usize {
    let Some((last, before)) = looks.split_last() else { return 0 };
    let level = last.bytes as f64 * (1.0 + LEVEL);
    let bottom = before.iter().rposition(|look| look.bytes as f64 > level).map_or(0, |at| at + 1);
    let falls = |at: &usize| looks[at - 1].bytes <= looks[*at].bytes;
    let top = (1..=bottom).rev().find(falls).unwrap_or(0);
    let (fall, rest) =
        (looks[bottom].seconds - looks[top].seconds, last.seconds - looks[bottom].seconds);
    let deep = looks[top].bytes >= last.bytes.saturating_mul(2);
    if deep && rest <= fall.max(last.seconds * BRIEF) { top } else { looks.len() - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_mean_is_weighted_by_time_and_begins_when_memory_is_filled() {
        let at = |seconds, bytes| Memory { seconds, bytes, ..Memory::default() };
        let looks = [at(0.0, 10), at(7.0, 180), at(8.0, 200), at(18.0, 200), at(19.0, 110)];
        let (filled, rest) = (190.0 + 10.0 * 200.0, 155.0);
        assert!((mean(&looks).unwrap() - (filled + rest) / 12.0).abs() < 1e-9);
        let slowly = [at(0.0, 10), at(70.0, 180), at(71.0, 200), at(81.0, 200), at(82.0, 110)];
        assert_eq!(mean(&looks), mean(&slowly), "however long it takes");
        assert_eq!(mean(&looks[..1]), Some(10.0));
        assert_eq!(mean(&[]), None);
    }

    /// An interpreter that frees its objects one by one before it exits.
    #[test]
    fn what_a_program_frees_to_end_is_not_in_the_mean_and_what_it_frees_to_go_on_is() {
        let at = |seconds, bytes| Memory { seconds, bytes, ..Memory::default() };
        let run = |end: &[(f64, u64)]| {
            let grown = [(0.0, 10), (0.5, 780), (0.6, 780), (0.7, 790), (0.8, 790)];
            mean(&grown.iter().chain(end).map(|&(s, b)| at(s, b)).collect::<Vec<_>>()).unwrap()
        };
        let without = run(&[]);
        for end in [
            &[(0.83, 640), (0.86, 400), (0.89, 130), (0.92, 130)][..],
            &[(0.83, 780), (0.93, 640), (0.99, 400), (1.2, 130)],
            &[(0.83, 130), (0.85, 129)],
        ] {
            assert!((run(end) - without).abs() < 12.0, "{end:?}: {} {without}", run(end));
        }
        // It goes on with what is left, or frees less than half.
        assert!(run(&[(0.83, 130), (1.5, 130)]) < 0.5 * without);
        assert!(run(&[(0.83, 640), (0.86, 130), (1.0, 130)]) < 0.75 * without);
        assert!(run(&[(0.9, 600), (1.0, 500), (1.1, 400)]) < 0.9 * without);
        // A heap that gives memory back step by step while the program works.
        assert!(run(&[(1.0, 700), (1.2, 500), (1.4, 420)]) < 0.85 * without);
    }

    proptest::proptest! {
        #[test]
        fn a_mean_lies_between_the_least_and_the_most(
            looks in proptest::collection::vec((1_u32..100, 0_u64..1000), 1..30),
        ) {
            let mut now = 0.0;
            let looks: Vec<Memory> = looks.into_iter().map(|(wait, bytes)| {
                now += f64::from(wait) / 100.0;
                Memory { seconds: now, bytes, ..Memory::default() }
            }).collect();
            let mean = mean(&looks).unwrap();
            let bytes = || looks.iter().map(|look| look.bytes as f64);
            proptest::prop_assert!(mean <= bytes().fold(0.0, f64::max));
            proptest::prop_assert!(mean >= bytes().fold(f64::INFINITY, f64::min));
            proptest::prop_assert!(ending(&looks) < looks.len());
        }
    }

    #[test]
    fn what_a_program_starts_is_looked_at_with_it() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'read line; exit 0'; exit 0"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let linux = Linux::live();
        let mut watch = Watch::begin(&linux);
        let end = Instant::now() + Duration::from_secs(60);
        let both = loop {
            let seen = watch.sample(&[Pid(shell.id())]);
            if let Some(seen) = seen.filter(|seen| seen.processes == 2) {
                break seen;
            }
            assert!(Instant::now() < end, "{seen:?}");
            std::thread::sleep(watch.pause());
        };
        let one = sample(&linux, &[Pid(shell.id())]).unwrap();
        assert!(one.bytes < both.bytes && both.threads == 2, "{one:?} {both:?}");
        assert!(both.anonymous + both.file + both.shared <= both.bytes + 8192, "{both:?}");
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
        assert_eq!(watch.sample(&[Pid(shell.id())]), None);
    }
}
