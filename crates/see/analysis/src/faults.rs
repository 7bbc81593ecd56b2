//! The story of a process's page faults: how many, how long, of which kind, when, where, and what the
//! time of the slow ones went into.
//!
//! Terms:
//! - a **category** is the one word that says most about a fault; the first that fits of: major,
//!   reclaim, compaction, huge, larger, huge page refused, copy on write, new page, mapped (nothing was
//!   allocated). Where only the kind of the kernel's counters is known: major or minor.
//! - a **slow** fault took the recording's threshold or longer and has a row; all are counted.
//! - a **cold host page** is inferred: clearing took more than twice a warm first touch for each small page,
//!   and 5 us or more, so the host had to find the memory first.
//!
//! Always true: the categories' faults add up to all faults that were timed; the parts of the slow faults'
//! time add up to no more than all of it.

use std::collections::BTreeMap;

use pagemill_model::fault::Flags;
use pagemill_model::page::BASE;
use pagemill_model::{Event, Fault, FaultSetup, Fold, MappingSample, Nanos, Pid, latency, named};

use crate::addresses::{self, ProcessAddress, Ranges};
use crate::again::{RepeatFold, Repeats};
use crate::latency::Histogram;
use crate::spikes::{Inconclusive, SpikeFold, Spikes, are_fine};
use pagemill_model::sums::{add, sum};

/// Losses from which on percentiles are not to be believed.
pub const LOSS_LIMIT: f64 = 0.01;
/// The least time after the allocation for which a cold host page is inferred.
const COLD_FLOOR: u64 = 5_000;

/// A file is read in pieces of so many bytes about.
const READ: u64 = 64 << 10;

/// What a fault may take that fills a huge page, ns.
const HUGE_FAULT: u64 = 1_000_000;

/// The shortest interval of the timeline.
const SHORTEST: Nanos = Nanos(50_000_000);

named! {
    /// The word that says most about a fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Category {
        /// Needed I/O.
        Major = "major",
        /// Memory was reclaimed for it.
        Reclaim = "reclaim",
        /// Memory was compacted for it.
        Compaction = "compaction",
        /// A huge page.
        Huge = "huge page",
        /// A page larger than the smallest.
        Larger = "larger page",
        /// A huge page was asked for, and a small one given.
        HugeRefused = "huge page refused",
        /// A shared page was copied.
        CopyOnWrite = "copy on write",
        /// A small page.
        NewPage = "new page",
        /// A page that was there was mapped.
        Mapped = "mapped",
        /// Not major; no more is known.
        Minor = "minor",
    }
}

impl Category {
    /// The category of a fault; `details` says whether more than major or minor is known.
    pub fn of(flags: Flags, details: bool) -> Self {
        let any = |bits: u64| flags.0 & bits != 0;
        match () {
            () if any(Flags::MAJOR) => Self::Major,
            () if !details => Self::Minor,
            () if any(Flags::RECLAIM) => Self::Reclaim,
            () if any(Flags::COMPACTION) => Self::Compaction,
            () if any(Flags::HUGE) => Self::Huge,
            () if any(Flags::LARGE) => Self::Larger,
            () if any(Flags::HUGE_FAILED) => Self::HugeRefused,
            () if flags.has(Flags::PROTECTION | Flags::WRITE) => Self::CopyOnWrite,
            () if any(Flags::BASE) => Self::NewPage,
            () => Self::Mapped,
        }
    }
}

named! {
    /// What most of a fault's time went into.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Cause {
        /// Reading a file or swap.
        Io = "reading a file or swap",
        /// Compaction.
        Compaction = "compaction",
        /// Direct reclaim.
        Reclaim = "reclaim",
        /// Copying a page that a fork, or a private file, left shared.
        Copy = "copying a shared page",
        /// Clearing the page and mapping it.
        Zeroing = "zeroing and mapping the page",
        /// The same, of memory that the host had to find first.
        Host = "waiting for the host's memory",
        /// Sleeping until somebody else, a userfaultfd's reader for example, has filled the page.
        Asleep = "sleeping until another thread fills the page",
        /// Waiting for locks of the kernel that others held.
        Locks = "waiting for a lock",
        /// Ready to run, while others had the CPUs.
        Cpu = "waiting for a CPU",
        /// Lookup and allocation.
        Lookup = "lookup, allocation",
        /// Lookup, allocation, waiting for locks or a CPU: a recording that does not tell them apart.
        Waiting = "lookup, allocation, locks",
        /// Not measured.
        Unknown = "of a cause that only BPF tells",
    }
}

/// One of the longest faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Moment {
    /// When it ended, since the recording began.
    pub at: Nanos,
    /// How long it took.
    pub latency: Nanos,
    /// The process.
    pub pid: Option<u64>,
    /// The thread.
    pub tid: Option<u64>,
    /// The address that was touched.
    pub address: Option<u64>,
    /// What lay there.
    pub place: String,
    /// The kind of fault.
    pub category: Category,
    /// What most of its time went into.
    pub cause: Cause,
}

/// Longest faults that are kept.
pub const WORST: usize = 10;

/// What the faults add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultView {
    /// All faults counted.
    pub counted: u64,
    /// Those that were timed.
    pub all: Histogram,
    /// The same by category; those with the most time first.
    pub categories: Vec<(Category, Histogram)>,
    /// From the header's start to the last event.
    pub duration: Nanos,
    /// Longest fault with a row, exact.
    pub longest: Option<Nanos>,
    /// The longest faults with a row, the longest first; at most [`WORST`].
    pub worst: Vec<Moment>,
    /// Of the length that was asked for.
    pub spikes: Option<Spikes>,
    /// Whether several threads of a process had faults that have a row.
    pub several_threads: bool,
    /// Where the slow faults' time went.
    pub slow: Slow,
    /// Slow reads of files or swap, and those of 64 KiB that had been read before.
    pub read: Repeats,
    /// Slow first touches of a page, and those at an address that had one before: it was given back in between.
    pub filled: Repeats,
    /// Shorter ones that were close upon each other: how many, and their time.
    pub short: (u64, Nanos),
    /// Slow faults by mapping, those with the most time first.
    pub mappings: Vec<(String, PerMapping)>,
    /// Faults in each interval: seconds since the start, faults a second, longest bucket in ns.
    pub timeline: Vec<(f64, f64, Option<Nanos>)>,
}

/// Slow faults together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slow {
    /// How many.
    pub faults: u64,
    /// Their time.
    pub time: Nanos,
    /// In compaction.
    pub compaction: Nanos,
    /// In reclaim.
    pub reclaim: Nanos,
    /// Waiting for locks.
    pub locks: Nanos,
    /// Waiting for a CPU.
    pub cpu: Nanos,
    /// Whether it is known what of the rest were such waits.
    pub waits_known: bool,
    /// Reading a file or swap: of major faults all that is not told by one of those above.
    pub reading: Nanos,
    /// After the last allocation, where the host had the memory.
    pub clearing: Nanos,
    /// After the last allocation, where it did not.
    pub cold: Nanos,
    /// Faults of that kind.
    pub cold_faults: u64,
    /// After the last allocation, where the thread slept until another one had filled the page.
    pub asleep: Nanos,
}

impl FaultView {
    /// The longest of `times`, all faults or a category's: exact where it is the longest of the rows, else the middle
    /// of its bucket.
    pub fn longest_of(&self, times: &Histogram) -> Option<Nanos> {
        let bucket = times.max()?;
        let exact = self.longest.filter(|exact| latency::middle(latency::bucket(*exact)) == bucket);
        Some(exact.unwrap_or(bucket))
    }

    /// Why it cannot be told that faults explain no stalls of `spikes`, if so.
    pub fn inconclusive(&self, setup: &FaultSetup, spikes: &Spikes) -> Option<Inconclusive> {
        if spikes.faults + spikes.bursts > 0 {
            return None;
        }
        if self.all.total() == 0 && self.counted > 0 {
            return Some(Inconclusive::Untimed);
        }
        if setup.lost_rows > 0 || loss(setup) > LOSS_LIMIT {
            return Some(Inconclusive::Lost(setup.lost.saturating_add(setup.lost_rows)));
        }
        if let Some(untimed) = self.in_calls(setup)
            && untimed.saturating_mul(HUGE_FAULT) >= spikes.length.0 / 2
        {
            return Some(Inconclusive::InCalls(untimed, self.counted));
        }
        let faults = self.all.total().saturating_sub(self.slow.faults);
        let took = Nanos(self.all.sum().0.saturating_sub(self.slow.time.0));
        let few = setup.threshold.0 == 0 || faults == 0 || took.0 < spikes.length.0 / 2;
        let told = few || are_fine(setup.sum, spikes.length);
        (!told).then_some(Inconclusive::Short(faults, took))
    }

    /// The faults that were not timed, for the kernel made them inside of a system call, where they are more than the
    /// arguments of programs that are started take.
    pub fn in_calls(&self, setup: &FaultSetup) -> Option<u64> {
        /// 4 MiB of small pages.
        const MANY: u64 = 1024;
        /// A program takes fewer of its faults for its arguments.
        const PART: u64 = 4;
        let untimed = setup.untimed.min(self.counted);
        let many = untimed >= MANY || untimed > self.counted / PART;
        (self.all.total() > 0 && many).then_some(untimed)
    }
}

impl Slow {
    /// What is left: lookup and allocation, and waiting where that is not known.
    pub fn remainder(&self) -> Nanos {
        let waits = [self.locks, self.cpu, self.reading];
        let known = [self.compaction, self.reclaim, self.clearing, self.cold, self.asleep];
        let known = sum(known.into_iter().chain(waits).map(|part| part.0));
        Nanos(self.time.0.saturating_sub(known))
    }
}

/// Slow faults of one mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerMapping {
    /// How many.
    pub faults: u64,
    /// Their time.
    pub time: Nanos,
    /// The longest.
    pub longest: Nanos,
}

/// Whether several threads of a process fault.
#[derive(Clone, Debug, Default)]
struct Threads {
    /// The first thread of each process that did, of so many processes as are told apart.
    first: BTreeMap<u64, u64>,
    several: bool,
}

impl Threads {
    /// A thread of a process had a fault.
    fn fault(&mut self, pid: Option<u64>, tid: Option<u64>) {
        const PROCESSES: usize = 1024;
        let (Some(pid), Some(tid)) = (pid, tid) else { return };
        if self.first.len() < PROCESSES || self.first.contains_key(&pid) {
            self.several |= *self.first.entry(pid).or_insert(tid) != tid;
        }
    }
}

/// Folds faults into a [`FaultView`].
#[derive(Clone, Debug, Default)]
pub struct FaultFold {
    details: bool,
    touch: Option<Nanos>,
    started: Nanos,
    end: Nanos,
    untimed: u64,
    categories: BTreeMap<Category, Histogram>,
    longest: Option<Nanos>,
    slow: Slow,
    short: (u64, Nanos),
    worst: Vec<Moment>,
    spikes: Option<SpikeFold>,
    threads: Threads,
    read: RepeatFold,
    filled: RepeatFold,
    /// Mappings of each process by first address: first address after it, label.
    layout: Ranges<String>,
    mappings: BTreeMap<String, PerMapping>,
    intervals: BTreeMap<Nanos, (u64, Option<u32>)>,
}

/// What a fault's time went into, ns. Together they are its latency, whatever a recording says.
struct FaultParts {
    compaction: u64,
    reclaim: u64,
    locks: u64,
    cpu: u64,
    /// Clearing or copying the page, and mapping it.
    filling: u64,
    rest: u64,
}

impl FaultParts {
    fn of(fault: &Fault) -> Self {
        let mut rest = fault.latency.0;
        let mut part = |told: Option<Nanos>| {
            let part = told.map_or(0, |told| told.0).min(rest);
            rest -= part;
            part
        };
        let [compaction, reclaim] = [fault.compaction, fault.reclaim].map(&mut part);
        let [locks, cpu] = [fault.locks, fault.waited].map(&mut part);
        let filling = part(fault.after_allocation);
        Self { compaction, reclaim, locks, cpu, filling, rest }
    }
}

impl FaultFold {
    /// A fold for a recording that was made like this and began at `started`.
    pub fn new(setup: &FaultSetup, started: Nanos) -> Self {
        Self { details: setup.details, touch: setup.touch, started, ..Self::default() }
    }

    /// How faults are measured is known by now.
    pub fn know(&mut self, setup: &FaultSetup) {
        (self.details, self.touch) = (setup.details, setup.touch);
    }

    /// The same, which looks for what explains stalls of a length, too.
    pub fn with_spikes(self, length: Option<Nanos>) -> Self {
        Self { spikes: length.map(SpikeFold::new), ..self }
    }

    /// Whether a fault is one of the longest so far.
    pub fn is_among_the_worst(&self, fault: &Fault) -> bool {
        self.worst.len() < WORST
            || self.worst.last().is_some_and(|last| fault.latency > last.latency)
    }

    /// What most of a fault's time went into.
    pub fn cause(&self, fault: &Fault) -> Cause {
        let flags = Flags(fault.flags.unwrap_or(0));
        let category = Category::of(flags, self.details);
        if category == Category::Major {
            return Cause::Io;
        }
        if !self.details {
            return Cause::Unknown;
        }
        let FaultParts { compaction, reclaim, locks, cpu, filling, rest } = FaultParts::of(fault);
        let fill = match category {
            _ if flags.has(Flags::SLEPT) => Cause::Asleep,
            Category::CopyOnWrite => Cause::Copy,
            _ if is_cold(self.touch, filling, flags) => Cause::Host,
            _ => Cause::Zeroing,
        };
        let left = match fault.waited {
            Some(_) => Cause::Lookup,
            None => Cause::Waiting,
        };
        let parts = [
            (rest, left),
            (cpu, Cause::Cpu),
            (locks, Cause::Locks),
            (filling, fill),
            (reclaim, Cause::Reclaim),
            (compaction, Cause::Compaction),
        ];
        parts.into_iter().max_by_key(|(time, _)| *time).map_or(Cause::Unknown, |(_, cause)| cause)
    }

    /// Keeps a fault if it is one of the longest.
    fn rank(&mut self, fault: &Fault) {
        if !self.is_among_the_worst(fault) {
            return;
        }
        let place = fault.pid.zip(fault.address).map(|(pid, at)| self.label(Pid::told(pid), at));
        let moment = Moment {
            at: fault.time.since(self.started),
            latency: fault.latency,
            pid: fault.pid,
            tid: fault.tid,
            address: fault.address,
            place: place.unwrap_or_else(|| "unknown".into()),
            category: Category::of(Flags(fault.flags.unwrap_or(0)), self.details),
            cause: self.cause(fault),
        };
        let after = self.worst.partition_point(|other| other.latency >= moment.latency);
        self.worst.insert(after, moment);
        self.worst.truncate(WORST);
    }

    fn fault(&mut self, fault: &Fault) {
        let flags = Flags(fault.flags.unwrap_or(0));
        self.rank(fault);
        self.threads.fault(fault.pid, fault.tid);
        if let Some(spikes) = &mut self.spikes {
            spikes.fault(fault);
        }
        self.longest = self.longest.max(Some(fault.latency));
        let touch = self.touch;
        let cold_after = |after| is_cold(touch, after, flags);
        let slow = &mut self.slow;
        slow.faults += 1;
        add(&mut slow.time.0, fault.latency.0);
        let parts = FaultParts::of(fault);
        add(&mut slow.compaction.0, parts.compaction);
        add(&mut slow.reclaim.0, parts.reclaim);
        add(&mut slow.locks.0, parts.locks);
        add(&mut slow.cpu.0, parts.cpu);
        slow.waits_known |= fault.waited.is_some();
        if flags.has(Flags::MAJOR) {
            add(&mut slow.reading.0, parts.filling.saturating_add(parts.rest));
        } else if flags.has(Flags::SLEPT) {
            add(&mut slow.asleep.0, parts.filling);
        } else if cold_after(parts.filling) {
            add(&mut slow.cold.0, parts.filling);
            slow.cold_faults += 1;
        } else {
            add(&mut slow.clearing.0, parts.filling);
        }
        if let (Some(pid), Some(address)) = (fault.pid.map(Pid::told), fault.address) {
            if flags.has(Flags::MAJOR) {
                self.read.fault(pid, address, READ, fault.time);
            } else if self.brings_memory(flags) {
                self.filled.fault(pid, address, BASE, fault.time);
            }
            let name = self.label(pid, address);
            let mapping = self.mappings.entry(name).or_default();
            mapping.faults += 1;
            add(&mut mapping.time.0, fault.latency.0);
            mapping.longest = mapping.longest.max(fault.latency);
        }
    }

    /// Whether it was the first touch of a page since it was mapped.
    fn brings_memory(&self, flags: Flags) -> bool {
        let category = Category::of(flags, self.details);
        let new = [Category::NewPage, Category::Huge, Category::Larger, Category::HugeRefused];
        new.contains(&category)
    }

    /// What lay at an address. The heap grows upwards, other new memory downwards from what is there: an address that
    /// no look has seen is the heap's if it is nearer to the heap than to the next mapping above it.
    pub fn label(&self, pid: Pid, address: u64) -> String {
        let at = |address| ProcessAddress::new(pid, address);
        let below = self.layout.range(at(0)..=at(address)).next_back();
        let Some((_, (end, name))) = below else { return "unknown".into() };
        let above = self.layout.range(at(address)..=at(u64::MAX)).next();
        let above = above.map(|(at, _)| at.address);
        let grown = name == "[heap]"
            && above.is_none_or(|start| address.saturating_sub(*end) < start - address);
        if address < *end || grown { name.clone() } else { "unknown".into() }
    }

    fn mapping(&mut self, row: &MappingSample) {
        let (Some(pid), Some(start), Some(end)) = (row.pid.map(Pid::told), row.start, row.end)
        else {
            return;
        };
        if start >= end {
            return;
        }
        let at = ProcessAddress::new(pid, start);
        addresses::lay(&mut self.layout, at, (end, label(row)));
    }
}

/// Whether so long after the allocation says that the host had to find the memory. `touch`: a warm first touch.
fn is_cold(touch: Option<Nanos>, after: u64, flags: Flags) -> bool {
    let warm = touch
        .map(|touch| touch.0.saturating_mul(2_u64.checked_shl(flags.order()).unwrap_or(u64::MAX)));
    warm.is_some_and(|warm| after > warm.max(COLD_FLOOR))
}

/// What a mapping is called in reports: its name, or what kind of anonymous memory it is.
pub fn label(row: &MappingSample) -> String {
    let name = row.name.clone().unwrap_or_default();
    if !name.is_empty() {
        return name;
    }
    let size = row.end.unwrap_or(0).saturating_sub(row.start.unwrap_or(0));
    let shared = row.permissions.as_ref().is_some_and(|permissions| permissions.ends_with('s'));
    let kind = if shared { "shared" } else { "anonymous" };
    // One word for mappings of a kind, or a program with a thousand of them has a thousand lines.
    let class = match size {
        0..0x20_0000 => "below 2 MiB",
        0x20_0000..0x400_0000 => "2 to 64 MiB",
        0x400_0000..0x4000_0000 => "64 MiB to 1 GiB",
        _ => "1 GiB and above",
    };
    format!("{kind}, {class}")
}

impl Fold for FaultFold {
    type View = FaultView;

    fn event(&mut self, event: &Event) {
        match event {
            Event::Fault(fault) => self.fault(fault),
            Event::FaultSum(sum) => {
                self.threads.fault(sum.pid, sum.tid);
                add(&mut self.short.0, sum.faults.unwrap_or(0));
                add(&mut self.short.1.0, sum.took.map_or(0, |took| took.0));
                if let Some(spikes) = &mut self.spikes {
                    spikes.sum(sum);
                }
            }
            Event::Mapping(row) => self.mapping(row),
            Event::FaultCounts(row) => {
                let flags = Flags(row.flags.unwrap_or(0));
                let counts = row.counts.as_deref().unwrap_or_default();
                let interval = self.intervals.entry(row.time).or_default();
                let all = sum(counts.iter().copied());
                add(&mut interval.0, all);
                let Some(buckets) = &row.buckets else {
                    add(&mut self.untimed, all);
                    return self.end = self.end.max(row.time);
                };
                let histogram =
                    self.categories.entry(Category::of(flags, self.details)).or_default();
                for (bucket, count) in buckets.iter().zip(counts) {
                    let bucket = u32::try_from(*bucket).unwrap_or(u32::MAX);
                    histogram.add(bucket, *count);
                    interval.1 = interval.1.max(Some(bucket));
                }
            }
            _ => return,
        }
        self.end = self.end.max(event.time());
    }

    fn view(&self) -> FaultView {
        let mut all = Histogram::default();
        self.categories.values().for_each(|histogram| all.merge(histogram));
        let mut categories: Vec<_> =
            self.categories.iter().map(|(category, times)| (*category, times.clone())).collect();
        categories.sort_by_key(|(_, times)| std::cmp::Reverse(times.sum()));
        let mut mappings: Vec<_> =
            self.mappings.iter().map(|(name, mapping)| (name.clone(), *mapping)).collect();
        mappings.sort_by_key(|(_, mapping)| std::cmp::Reverse(mapping.time));
        // Intervals that are too short for a rate are counted with the next one.
        let mut before = self.started;
        let (mut number, mut highest) = (0, None);
        let timeline = self.intervals.iter().filter_map(|(time, (count, longest))| {
            add(&mut number, *count);
            highest = highest.max(*longest);
            let length = time.since(before);
            (length >= SHORTEST).then(|| {
                before = *time;
                let rate = std::mem::take(&mut number) as f64 / length.seconds();
                let longest = highest.take().map(latency::middle);
                (time.since(self.started).seconds(), rate, longest)
            })
        });
        FaultView {
            counted: all.total().saturating_add(self.untimed),
            timeline: timeline.collect(),
            all,
            categories,
            duration: self.end.since(self.started),
            longest: self.longest,
            worst: self.worst.clone(),
            spikes: self.spikes.as_ref().map(|fold| fold.spikes().since(self.started)),
            several_threads: self.threads.several,
            slow: self.slow,
            read: self.read.repeats,
            filled: self.filled.repeats,
            short: self.short,
            mappings,
        }
    }
}

/// Share of the faults that were lost; percentiles are refused above [`LOSS_LIMIT`].
pub fn loss(setup: &FaultSetup) -> f64 {
    let lost = setup.lost as f64;
    if lost == 0.0 { 0.0 } else { lost / (lost + setup.counted as f64) }
}

#[cfg(test)]
mod tests {
    use pagemill_model::fault::SUM;

    use super::*;

    fn counts(seconds: u64, flags: u64, buckets: &[(u64, u64)]) -> Event {
        Event::FaultCounts(Box::new(pagemill_model::FaultCounts {
            time: Nanos(seconds * 1_000_000_000),
            flags: Some(flags),
            buckets: Some(buckets.iter().map(|(bucket, _)| *bucket).collect()),
            counts: Some(buckets.iter().map(|(_, count)| *count).collect()),
        }))
    }

    fn fold(events: &[Event]) -> FaultView {
        let setup = FaultSetup { details: true, touch: Some(Nanos(1000)), ..FaultSetup::default() };
        let mut fold = FaultFold::new(&setup, Nanos(0));
        events.iter().for_each(|event| fold.event(event));
        fold.view()
    }

    /// Once, all faults together had a shorter longest one than a category, because rows had been removed or were
    /// rounded.
    #[test]
    fn the_longest_of_all_is_that_of_a_category() {
        let mut fold =
            FaultFold::new(&FaultSetup { details: true, ..Default::default() }, Nanos(0));
        let bucket = |ns: u64| u64::from(latency::bucket(Nanos(ns)));
        fold.event(&counts(1, Flags::BASE, &[(bucket(1000), 9), (bucket(40_000), 1)]));
        fold.event(&counts(1, Flags::MAJOR, &[(bucket(300_000), 1)]));
        let row = |ns| Event::Fault(Box::new(Fault { latency: Nanos(ns), ..Fault::default() }));
        fold.event(&row(40_000));
        let longest = |fold: &FaultFold| {
            let view = fold.view();
            let each = view.categories.iter().map(|(_, times)| view.longest_of(times));
            assert_eq!(view.longest_of(&view.all), each.clone().max().flatten());
            each.collect::<Vec<_>>()
        };
        let middle = latency::middle(latency::bucket(Nanos(300_000)));
        assert_eq!(longest(&fold), [Some(middle), Some(Nanos(40_000))]);
        fold.event(&row(300_001));
        assert!(longest(&fold).contains(&Some(Nanos(300_001))));
    }

    #[test]
    fn categories_add_up_and_the_one_with_the_most_time_is_first() {
        let huge = Flags::WRITE | Flags::HUGE | Flags::ANONYMOUS;
        let view = fold(&[
            counts(1, Flags::WRITE | Flags::BASE, &[(160, 90)]),
            counts(1, huge | Flags::COMPACTION, &[(700, 1)]),
            counts(2, huge, &[(400, 9)]),
        ]);
        assert_eq!((view.counted, view.all.total()), (100, 100));
        let names: Vec<_> = view.categories.iter().map(|(category, _)| category.name()).collect();
        assert_eq!(names, ["compaction", "huge page", "new page"]);
        assert_eq!(view.timeline.len(), 2);
        assert_eq!((view.timeline[0].1, view.timeline[1].1), (91.0, 9.0));
    }

    #[test]
    fn time_after_the_allocation_is_cold_when_clearing_cannot_take_that_long() {
        let fault = |latency, after, order: u64| {
            Event::Fault(Box::new(Fault {
                latency: Nanos(latency),
                after_allocation: Some(Nanos(after)),
                compaction: Some(Nanos(500)),
                flags: Some(order << 24),
                ..Fault::default()
            }))
        };
        // A small page in 4 us is warm, in 11 us cold; a huge one in 900 us warm, in 5 ms cold.
        let view = fold(&[
            fault(6_000, 4_000, 0),
            fault(12_000, 11_000, 0),
            fault(901_000, 900_000, 9),
            fault(5_010_000, 5_000_000, 9),
        ]);
        let slow = view.slow;
        assert_eq!((slow.faults, slow.cold_faults), (4, 2));
        assert_eq!((slow.cold, slow.clearing), (Nanos(5_011_000), Nanos(904_000)));
        assert_eq!(slow.remainder(), Nanos(14_000 - 2_000));
        assert_eq!(view.longest, Some(Nanos(5_010_000)));
    }

    #[test]
    fn waits_are_told_apart_where_they_are_known_and_parts_never_exceed_the_whole() {
        let fault =
            |told: Fault| Fault { latency: Nanos(1000), flags: told.flags.or(Some(0)), ..told };
        let [locks, cpu] = [Some(Nanos(600)), Some(Nanos(100))];
        let long = Some(Nanos(5000));
        let known = [
            (Fault { locks, waited: cpu, ..Fault::default() }, Cause::Locks),
            (Fault { locks: cpu, waited: locks, ..Fault::default() }, Cause::Cpu),
            (Fault { locks: cpu, waited: cpu, ..Fault::default() }, Cause::Lookup),
            (Fault::default(), Cause::Waiting),
            (
                Fault { locks, waited: long, after_allocation: long, ..Fault::default() },
                Cause::Locks,
            ),
            (
                Fault { flags: Some(Flags::SLEPT), after_allocation: long, ..Fault::default() },
                Cause::Asleep,
            ),
        ];
        let setup = FaultSetup { details: true, ..FaultSetup::default() };
        for (told, cause) in known {
            let (told, mut fold) = (fault(told), FaultFold::new(&setup, Nanos(0)));
            assert_eq!(fold.cause(&told), cause, "{told:?}");
            fold.fault(&told);
            let slow = fold.view().slow;
            assert_eq!(slow.waits_known, told.waited.is_some());
            let Slow { locks, cpu, clearing, cold, asleep, .. } = slow;
            let parts = [locks, cpu, clearing, cold, asleep, slow.remainder()];
            assert_eq!(parts.iter().map(|part| part.0).sum::<u64>(), 1000, "{slow:?}");
        }
    }

    fn mapping(start: u64, end: u64, name: &str) -> Event {
        Event::Mapping(Box::new(MappingSample {
            pid: Some(1),
            start: Some(start),
            end: Some(end),
            name: Some(name.into()),
            ..MappingSample::default()
        }))
    }

    fn at(address: u64) -> Event {
        Event::Fault(Box::new(Fault {
            latency: Nanos(10),
            pid: Some(1),
            address: Some(address),
            ..Fault::default()
        }))
    }

    #[test]
    fn new_memory_beside_the_heap_is_its_own_and_below_a_library_is_not() {
        let view = fold(&[
            mapping(0x1000, 0x9000, "[heap]"),
            mapping(0x70_0000, 0x80_0000, "library"),
            at(0xa000),
            at(0x6f_f000),
        ]);
        let names: Vec<_> =
            view.mappings.iter().map(|(name, m)| (name.as_str(), m.faults)).collect();
        assert_eq!(names, [("[heap]", 1), ("unknown", 1)]);
    }

    #[test]
    fn a_mapping_that_replaces_another_gets_the_faults_after_it() {
        let view = fold(&[
            mapping(0x1000, 0x9000, "old"),
            at(0x2000),
            mapping(0x2000, 0x4000, "new"),
            at(0x2000),
            at(0x3fff),
            at(0x4000),
        ]);
        let names: Vec<_> =
            view.mappings.iter().map(|(name, m)| (name.as_str(), m.faults)).collect();
        assert_eq!(names, [("new", 2), ("old", 1), ("unknown", 1)]);
    }

    #[test]
    fn what_lies_below_the_threshold_is_not_denied_unless_it_is_known_or_too_little() {
        const MS: u64 = 1_000_000;
        let mut all = Histogram::default();
        all.add(pagemill_model::latency::bucket(Nanos(2000)), 6000);
        let view = FaultView { counted: 6000, all, ..FaultView::default() };
        let setup = FaultSetup { threshold: Nanos(10_000), ..FaultSetup::default() };
        let why = |setup: &FaultSetup, length: u64, bursts| {
            view.inconclusive(setup, &Spikes { length: Nanos(length), bursts, ..Spikes::default() })
        };
        assert!(matches!(
            why(&setup, 5 * MS, 0),
            Some(Inconclusive::Short(6000, Nanos(12_000_000..)))
        ));
        assert_eq!(why(&setup, 5 * MS, 1), None, "there is a burst");
        assert_eq!(why(&setup, 100 * MS, 0), None, "all together are no half of it");
        let with_sums = FaultSetup { sum: Some(SUM), ..setup.clone() };
        assert_eq!(why(&with_sums, 5 * MS, 0), None);
        assert!(why(&with_sums, MS / 10, 0).is_some(), "sums are too coarse");
        let each = FaultSetup { threshold: Nanos(0), ..setup.clone() };
        assert_eq!(why(&each, MS / 10, 0), None, "each has a row");
        let lost = FaultSetup { lost_rows: 3, ..with_sums.clone() };
        assert_eq!(why(&lost, 5 * MS, 0), Some(Inconclusive::Lost(3)));
        let populates = FaultSetup { untimed: 5999, ..with_sums.clone() };
        assert_eq!(why(&populates, 50 * MS, 0), Some(Inconclusive::InCalls(5999, 6000)));
        assert_eq!(why(&populates, 50 * MS, 1), None, "something explains them");
        let starts = FaultSetup { untimed: 8, ..with_sums.clone() };
        assert_eq!(why(&starts, 5 * MS, 0), None, "arguments of execve");
        let untimed = FaultView { counted: 9, ..FaultView::default() };
        let spikes = Spikes { length: Nanos(MS), ..Spikes::default() };
        assert_eq!(untimed.inconclusive(&setup, &spikes), Some(Inconclusive::Untimed));
        assert_eq!(
            FaultView::default().inconclusive(&setup, &spikes),
            None,
            "there were no faults"
        );
    }
}
