//! The story of a heap: samples of it folded into memory over time, pauses and costs.
//!
//! Terms:
//! - **fragmentation score** = 1 - live / footprint, in [0, 1]: the share of the heap's physical
//!   memory that holds nothing of the program. 0 is perfect; 0.6 means that 60 % could go. Where
//!   merged memory or pages that were never touched make the footprint smaller than the live
//!   bytes, the score is 0.
//! - **mean occupancy** = average live share of small-object spans, each span weighing the same,
//!   each bucket of the histogram counting as its middle.
//! - **ksmd's share**: `ksmd` works for every process and the kernel keeps no account of whom.
//!   Between two samples this process is charged ksmd's CPU time times its share of the pages that
//!   ksmd looks at (`ksm_items / ksm_items_all` of the later sample).
//! - an **epoch** is the life of one heap: a process that executes another program starts another
//!   heap, whose totals begin at zero again.
//!
//! Always true: a total over the recording is never negative and never forgets an epoch; a value
//! that was measured nowhere is `None`; means weigh each sample by the time until the next one.

mod rest;

use std::ops::Range;

use pagemill_model::{Bytes, Event, Fold, HeapSample, Nanos};

use pagemill_model::sums::{add, sum};

use rest::RestFold;

/// Shares at which pauses are reported.
pub const PAUSE_SHARES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

/// What the samples add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeapView {
    /// Samples seen.
    pub samples: u64,
    /// From the first sample to the last.
    pub duration: Nanos,
    /// Memory of the process: its proportional set size and what its memfds hold that no page table has.
    pub memory: Option<Summary>,
    /// What of it only the process can give back: anonymous and shared memory, swapped out or not.
    pub held: Option<Summary>,
    /// Proportional set size of the process.
    pub pss: Option<Summary>,
    /// Resident set size, which counts aliases twice.
    pub rss: Option<Summary>,
    /// Highest resident set size of the process's life by the kernel, what lay between two samples in it, too.
    pub peak_rss: Option<Bytes>,
    /// Charge of its cgroup, kernel memory included.
    pub cgroup: Option<Summary>,
    /// Kernel memory in that charge.
    pub cgroup_kernel: Option<Summary>,
    /// Physical bytes behind the heap.
    pub footprint: Option<Summary>,
    /// Bytes allocated.
    pub live: Option<Summary>,
    /// Fragmentation score.
    pub score: Option<Summary>,
    /// Mean occupancy of spans at the last sample that has it.
    pub occupancy: Option<f64>,
    /// Times for which pages could not be written.
    pub pauses: Option<Pauses>,
    /// Times for which a thread of the program waited because of compaction.
    pub stalls: Option<Pauses>,
    /// CPU time of the process during the recording.
    pub cpu: Option<Nanos>,
    /// Its share of ksmd's.
    pub ksmd_cpu: Option<Nanos>,
    /// CPU time of the heap's helper thread (part of `cpu`).
    pub helper_cpu: Option<Nanos>,
    /// Wall time of compaction.
    pub compact: Option<Nanos>,
    /// Compaction passes.
    pub passes: Option<u64>,
    /// Pages that lost their sharing.
    pub unmerged_pages: Option<u64>,
    /// Groups given up.
    pub aborted_groups: Option<u64>,
    /// The last sample with a heap in it, or else the last one.
    pub last: Option<HeapSample>,
    /// What the process's own malloc said, the last time it was asked.
    pub malloc: Option<Malloc>,
    /// The last time that the process had nine tenths of its highest memory or more.
    pub plateau: Option<Plateau>,
    /// What processes that it started held, at the moment at which that was most.
    pub children: Option<Children>,
}

/// What the processes that a process has started hold, and theirs, at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Children {
    /// When, since the first sample.
    pub at: Nanos,
    /// How many they were.
    pub processes: u64,
    /// Their memory, shared pages once.
    pub memory: Bytes,
    /// That of the process itself.
    pub own: Bytes,
    /// The one that held most.
    pub largest: Option<u64>,
}

impl Children {
    /// Of one sample, `at` after the first; `own`: the memory of the process. None where nobody looked.
    pub fn of(sample: &HeapSample, own: Bytes, at: Nanos) -> Option<Self> {
        let processes = sample.children.filter(|count| *count > 0)?;
        let (memory, largest) = (sample.children_pss?, sample.largest_child);
        Some(Self { at, processes, memory, own, largest })
    }

    /// Whether they hold so much that who looks at the process alone misses something.
    pub fn matter(&self) -> bool {
        const LEAST: u64 = 4 << 20;
        const PART: f64 = 0.2;
        self.memory.0 >= LEAST && self.memory.0 as f64 >= self.all().0 as f64 * PART
    }

    /// What they and the process hold.
    pub fn all(&self) -> Bytes {
        Bytes(self.memory.0.saturating_add(self.own.0))
    }
}

/// How it was while memory was high: a program that ends may have given most of it back before its last sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    /// When, since the first sample.
    pub at: Nanos,
    /// Memory.
    pub memory: Bytes,
    /// Anonymous memory in that.
    pub anonymous: Option<Bytes>,
    /// What its own malloc had said by then.
    pub malloc: Option<Malloc>,
}

/// Part of the highest memory from which on it is high.
const HIGH: f64 = 0.9;

/// What a malloc that is not pagemill's keeps free.
#[derive(Clone, Debug, PartialEq)]
pub struct Malloc {
    /// Whose it is, such as `glibc's malloc`.
    pub name: String,
    /// When it said so, since the first sample.
    pub at: Nanos,
    /// What it holds.
    pub heap: Bytes,
    /// Free in it.
    pub free: Bytes,
    /// Of that, in memory in whole pages: what it could give back.
    pub returnable: Bytes,
    /// Free in pieces of pages that hold data, too.
    pub pieces: Bytes,
    /// The least part of a CPU that the process used in a fifth of a second while half of `returnable` or more was
    /// kept; none if that was not seen for so long.
    pub least_use: Option<f64>,
}

impl HeapView {
    /// When the malloc said what it keeps free and how long was recorded, in words, if it did so before the end: it may
    /// have given back or freed more since.
    pub fn malloc_as_of(&self) -> Option<String> {
        self.as_of(self.malloc.as_ref()?.at)
    }

    /// The same of something else that was so at a moment.
    pub fn as_of(&self, at: Nanos) -> Option<String> {
        let shown = |time: Nanos| format!("{:.1} s", time.seconds());
        let (at, end) = (shown(at), shown(self.duration));
        (at != end).then(|| format!("as of {at} of {end}"))
    }
}

/// A quantity over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Average over time.
    pub mean: f64,
    /// Highest sample.
    pub peak: f64,
    /// Last sample.
    pub last: f64,
    /// Every sample: seconds since the first sample of the recording, value. Bytes for sizes.
    pub points: Vec<(f64, f64)>,
}

/// Pauses or stalls of the recording. The histogram has buckets that double, so a percentile is known to lie
/// in a bucket, not where in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pauses {
    /// How many.
    pub count: u64,
    /// For each of [`PAUSE_SHARES`]: the bucket that holds it, from, up to but not including. Empty
    /// if there was no pause.
    pub percentiles: Vec<(f64, Nanos, Nanos)>,
    /// The longest of them, exact. `None` if a heap that is older than the recording had a longer one
    /// before it: then only the bucket is known, [`Pauses::longest_bucket`].
    pub longest: Option<Nanos>,
    /// The longest since the heap started, which may have been before the recording.
    pub longest_of_life: Option<Nanos>,
    /// Pauses by bucket: entry i counts those in [2^i, 2^(i+1)) ns.
    pub buckets: Vec<u64>,
}

impl Pauses {
    /// The bucket of the longest pause: from, up to but not including. `None` if there was none.
    pub fn longest_bucket(&self) -> Option<(Nanos, Nanos)> {
        bucket_of_share(&self.buckets, 1.0).map(|Range { start, end }| (Nanos(start), Nanos(end)))
    }
}

/// The bucket of a doubling histogram that holds the `share`-quantile, in the histogram's unit. `None` if the
/// histogram is empty.
pub fn bucket_of_share(buckets: &[u64], share: f64) -> Option<Range<u64>> {
    let total = sum(buckets.iter().copied());
    // The rank of the value, counted from one (nearest-rank definition).
    let rank = ((share * total as f64).ceil() as u64).clamp(1, total.max(1));
    let mut seen = 0;
    let index = buckets.iter().position(|count| {
        seen = count.saturating_add(seen);
        seen >= rank && total > 0
    })?;
    let bound = |index: usize| 1u64.checked_shl(index as u32).unwrap_or(u64::MAX);
    Some(if index == 0 { 0 } else { bound(index) }..bound(index + 1))
}

/// 1 - live / footprint, see the module's terms. `None` without a footprint.
pub fn fragmentation_score(live: Bytes, footprint: Bytes) -> Option<f64> {
    (footprint.0 > 0).then(|| (1.0 - live.0 as f64 / footprint.0 as f64).max(0.0))
}

/// Mean occupancy of a histogram whose last bucket holds full spans and whose others divide
/// [0, 1) evenly. `None` without a span.
pub fn mean_occupancy(histogram: &[u64]) -> Option<f64> {
    let total = sum(histogram.iter().copied());
    let partial = histogram.len().checked_sub(1).filter(|_| total > 0)?;
    let middle =
        |index: usize| if index == partial { 1.0 } else { (index as f64 + 0.5) / partial as f64 };
    let sum: f64 = histogram.iter().enumerate().map(|(index, n)| *n as f64 * middle(index)).sum();
    Some(sum / total as f64)
}

/// What only the process can give back of its memory: anonymous and shared memory, swapped out or not. Without
/// knowing the parts, all of it.
pub fn held(sample: &HeapSample) -> Option<Bytes> {
    let own = match sample.pss_anon {
        Some(anonymous) => anonymous.0.saturating_add(sample.pss_shmem.unwrap_or_default().0),
        None => sample.pss?.0,
    };
    let besides = [sample.unmapped, sample.swap].map(|bytes| bytes.unwrap_or_default().0);
    Some(Bytes(sum(besides).saturating_add(own)))
}

/// Folds heap samples into a [`HeapView`].
#[derive(Clone, Debug, Default)]
pub struct HeapFold {
    samples: u64,
    first: Option<Nanos>,
    end: Nanos,
    epoch: Option<Nanos>,
    memory: Series,
    held: Series,
    pss: Series,
    rss: Series,
    peak_rss: Option<Bytes>,
    cgroup: Series,
    cgroup_kernel: Series,
    footprint: Series,
    live: Series,
    score: Series,
    cpu: Total,
    ksmd: Ksmd,
    helper_cpu: Total,
    compact: Total,
    passes: Total,
    unmerged_pages: Total,
    aborted_groups: Total,
    pauses: Durations,
    stalls: Durations,
    occupancy: Option<f64>,
    last: Option<HeapSample>,
    malloc: Option<Malloc>,
    highest: Bytes,
    plateau: Option<Plateau>,
    children: Option<Children>,
    rest: RestFold,
}

impl Fold for HeapFold {
    type View = HeapView;

    fn event(&mut self, event: &Event) {
        let Event::Heap(sample) = event else { return };
        let first = *self.first.get_or_insert(sample.time);
        self.samples += 1;
        self.end = sample.time;
        let at = sample.time.since(first).seconds();
        let bytes = |value: Option<Bytes>| value.map(|value| value.0 as f64);
        self.pss.push(at, bytes(sample.pss));
        let memory = sample
            .pss
            .map(|pss| Bytes(pss.0.saturating_add(sample.unmapped.unwrap_or_default().0)));
        self.memory.push(at, bytes(memory));
        self.held.push(at, bytes(held(sample)));
        self.rss.push(at, bytes(sample.rss));
        self.peak_rss = self.peak_rss.max(sample.peak_rss);
        self.cgroup.push(at, bytes(sample.cgroup));
        self.cgroup_kernel.push(at, bytes(sample.cgroup_kernel));
        self.footprint.push(at, bytes(sample.footprint));
        self.live.push(at, bytes(sample.live));
        let score = sample.live.zip(sample.footprint).and_then(|(l, f)| fragmentation_score(l, f));
        self.score.push(at, score);
        if let Some(histogram) = &sample.occupancy {
            self.occupancy = mean_occupancy(histogram);
        }
        if let Some(name) = &sample.malloc {
            let or_none = |value: Option<Bytes>| value.unwrap_or_default();
            self.malloc = Some(Malloc {
                name: name.clone(),
                at: sample.time.since(first),
                heap: or_none(sample.malloc_heap),
                free: or_none(sample.malloc_free),
                returnable: or_none(sample.malloc_returnable),
                pieces: or_none(sample.malloc_pieces),
                least_use: None,
            });
        }
        if let Some(memory) = memory {
            self.highest = self.highest.max(memory);
            if memory.0 as f64 >= self.highest.0 as f64 * HIGH {
                let (anonymous, malloc) = (sample.pss_anon, self.malloc.clone());
                let at = sample.time.since(first);
                self.plateau = Some(Plateau { at, memory, anonymous, malloc });
            }
            let children = Children::of(sample, memory, sample.time.since(first));
            let most = self.children.map_or(0, |children| children.memory.0);
            self.children = children.filter(|now| now.memory.0 > most).or(self.children);
        }
        let kept = self.malloc.as_ref().map(|malloc| malloc.returnable);
        self.rest.push(sample.time, sample.cpu, kept);
        let nanos = |value: Option<Nanos>| value.map(|value| value.0);
        self.cpu.push(nanos(sample.cpu), Base::First);
        self.ksmd.push(sample);

        // A heap that began within the recording counts from zero, one that was there before from
        // its first sample.
        let base = match sample.started {
            Some(started) if self.epoch.is_some_and(|epoch| epoch != started) => Base::Restart,
            Some(started) if started >= first => Base::Zero,
            _ => Base::First,
        };
        self.epoch = sample.started.or(self.epoch);
        self.helper_cpu.push(nanos(sample.helper_cpu), base);
        self.compact.push(nanos(sample.compact), base);
        self.passes.push(sample.passes, base);
        self.unmerged_pages.push(sample.unmerged_pages, base);
        self.aborted_groups.push(sample.aborted_groups, base);
        self.pauses.push(sample.pauses.as_deref(), sample.longest_pause, base);
        self.stalls.push(sample.stalls.as_deref(), sample.longest_stall, base);
        if sample.live.is_some() || self.last.as_ref().is_none_or(|last| last.live.is_none()) {
            self.last = Some(sample.as_ref().clone());
        }
    }

    fn view(&self) -> HeapView {
        let with_use = |malloc: &Malloc| Malloc {
            least_use: self.rest.least_use(Bytes(malloc.returnable.0.div_ceil(2))),
            ..malloc.clone()
        };
        let plateau = self.plateau.as_ref().map(|plateau| Plateau {
            malloc: plateau.malloc.as_ref().map(with_use),
            ..plateau.clone()
        });
        HeapView {
            samples: self.samples,
            duration: self.end.since(self.first.unwrap_or_default()),
            memory: self.memory.summary(),
            held: self.held.summary(),
            pss: self.pss.summary(),
            rss: self.rss.summary(),
            peak_rss: self.peak_rss,
            cgroup: self.cgroup.summary(),
            cgroup_kernel: self.cgroup_kernel.summary(),
            footprint: self.footprint.summary(),
            live: self.live.summary(),
            score: self.score.summary(),
            occupancy: self.occupancy,
            pauses: self.pauses.view(),
            stalls: self.stalls.view(),
            cpu: self.cpu.value().map(Nanos),
            ksmd_cpu: self.ksmd.value(),
            helper_cpu: self.helper_cpu.value().map(Nanos),
            compact: self.compact.value().map(Nanos),
            passes: self.passes.value(),
            unmerged_pages: self.unmerged_pages.value(),
            aborted_groups: self.aborted_groups.value(),
            last: self.last.clone(),
            malloc: self.malloc.as_ref().map(with_use),
            plateau,
            children: self.children,
        }
    }
}

/// A histogram of durations, and the longest of them.
#[derive(Clone, Debug, Default)]
struct Durations {
    buckets: Vec<Total>,
    longest: LongestPause,
}

impl Durations {
    fn push(&mut self, buckets: Option<&[u64]>, longest: Option<Nanos>, base: Base) {
        for (index, count) in buckets.into_iter().flatten().enumerate() {
            if self.buckets.len() <= index {
                self.buckets.push(Total::default());
            }
            self.buckets[index].push(Some(*count), base);
        }
        self.longest.push(longest, base);
    }

    /// `None` if no sample has a histogram.
    fn view(&self) -> Option<Pauses> {
        let buckets: Vec<u64> = self.buckets.iter().filter_map(Total::value).collect();
        let percentiles = PAUSE_SHARES.iter().filter_map(|share| {
            let Range { start, end } = bucket_of_share(&buckets, *share)?;
            Some((*share, Nanos(start), Nanos(end)))
        });
        (!self.buckets.is_empty()).then(|| Pauses {
            count: sum(buckets.iter().copied()),
            percentiles: percentiles.collect(),
            longest: self.longest.exact(),
            longest_of_life: self.longest.before.max(self.longest.within),
            buckets: buckets.clone(),
        })
    }
}

/// Samples of one quantity.
#[derive(Clone, Debug, Default)]
struct Series(Vec<(f64, f64)>);

impl Series {
    fn push(&mut self, at: f64, value: Option<f64>) {
        self.0.extend(value.map(|value| (at, value)));
    }

    fn summary(&self) -> Option<Summary> {
        let last = self.0.last()?.1;
        let (mut area, mut span) = (0.0, 0.0);
        for pair in self.0.windows(2) {
            let width = pair[1].0 - pair[0].0;
            area += pair[0].1 * width;
            span += width;
        }
        let peak = self.0.iter().map(|point| point.1).fold(f64::MIN, f64::max);
        // Rounding must not lift the mean above the peak.
        let mean = if span > 0.0 { (area / span).min(peak) } else { last };
        Some(Summary { mean, peak, last, points: self.0.clone() })
    }
}

/// From where a total counts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Base {
    /// From the first value seen.
    First,
    /// From zero.
    Zero,
    /// From zero again: another heap.
    Restart,
}

/// A counter that only grows within an epoch, summed over the epochs.
#[derive(Clone, Debug, Default)]
struct Total {
    sum: u64,
    last: Option<u64>,
}

impl Total {
    fn push(&mut self, value: Option<u64>, base: Base) {
        let Some(value) = value else { return };
        let from = match (self.last, base) {
            (_, Base::Restart) | (None, Base::Zero) => 0,
            (None, Base::First) => value,
            (Some(last), _) => last,
        };
        add(&mut self.sum, value.saturating_sub(from));
        self.last = Some(value);
    }

    fn value(&self) -> Option<u64> {
        self.last.map(|_| self.sum)
    }
}

/// The longest pause, of which each heap tells the longest since it started.
#[derive(Clone, Copy, Debug, Default)]
struct LongestPause {
    /// What a heap that is older than the recording said at its first sample.
    before: Option<Nanos>,
    /// The longest that was certainly within the recording.
    within: Option<Nanos>,
}

impl LongestPause {
    fn push(&mut self, value: Option<Nanos>, base: Base) {
        let Some(value) = value else { return };
        if base != Base::First || value > *self.before.get_or_insert(value) {
            self.within = self.within.max(Some(value));
        }
    }

    /// The longest within the recording, unless one of unknown length may be longer: those of an older
    /// heap are at most as long as what it said at first.
    fn exact(&self) -> Option<Nanos> {
        self.within.filter(|within| self.before.is_none_or(|before| *within >= before))
    }
}

/// The process's share of ksmd's CPU time.
#[derive(Clone, Debug, Default)]
struct Ksmd {
    last: Option<Nanos>,
    share: f64,
    measured: bool,
}

impl Ksmd {
    fn push(&mut self, sample: &HeapSample) {
        let Some(now) = sample.ksmd_cpu else { return };
        if let (Some(last), Some(own), Some(all)) =
            (self.last, sample.ksm_items, sample.ksm_items_all)
        {
            self.measured = true;
            if all > 0 {
                self.share += now.since(last).0 as f64 * (own as f64 / all as f64).min(1.0);
            }
        }
        self.last = Some(now);
    }

    fn value(&self) -> Option<Nanos> {
        self.measured.then_some(Nanos(self.share.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fold(samples: impl IntoIterator<Item = HeapSample>) -> HeapView {
        let mut fold = HeapFold::default();
        for sample in samples {
            fold.event(&Event::Heap(Box::new(sample)));
        }
        fold.view()
    }

    fn at(seconds: u64) -> HeapSample {
        HeapSample { time: Nanos(seconds * 1_000_000_000), ..HeapSample::default() }
    }

    /// A histogram in a crafted recording overflowed the sum.
    #[test]
    fn counts_of_any_size_are_added_up() {
        let counts = [u64::MAX, 1, u64::MAX];
        assert_eq!(sum(counts), u64::MAX);
        assert!(mean_occupancy(&counts).is_some());
        assert_eq!(bucket_of_share(&counts, 0.5), Some(0..2));
    }

    #[test]
    fn means_weigh_samples_by_their_time() {
        let pss = |seconds, bytes| HeapSample { pss: Some(Bytes(bytes)), ..at(seconds) };
        let view = fold([pss(10, 100), pss(11, 400), pss(20, 50)]);
        assert_eq!(view.memory, view.pss);
        let images = HeapSample { unmapped: Some(Bytes(7)), ..pss(21, 50) };
        assert_eq!(fold([images]).memory.map(|memory| memory.last), Some(57.0));
        let summary = view.pss.unwrap();
        // 1 s of 100 and 9 s of 400.
        assert_eq!((summary.mean, summary.peak, summary.last), (370.0, 400.0, 50.0));
        assert_eq!(summary.points[2], (10.0, 50.0));
        assert_eq!((view.samples, view.duration), (3, Nanos(10_000_000_000)));
    }

    /// A program that ends gives most back before its last sample.
    #[test]
    fn the_plateau_is_the_last_time_that_memory_was_high() {
        let sample = |seconds, bytes, malloc: Option<&str>| HeapSample {
            pss: Some(Bytes(bytes)),
            pss_anon: Some(Bytes(bytes - 1)),
            malloc: malloc.map(str::to_owned),
            malloc_pieces: Some(Bytes(bytes / 2)),
            ..at(seconds)
        };
        let view = fold([
            sample(1, 50, Some("a")),
            sample(2, 100, Some("b")),
            sample(3, 91, None),
            sample(4, 89, Some("c")),
            sample(5, 10, Some("d")),
        ]);
        let plateau = view.plateau.as_ref().unwrap();
        assert_eq!((plateau.at, plateau.memory), (Nanos(2_000_000_000), Bytes(91)));
        assert_eq!(plateau.anonymous, Some(Bytes(90)));
        assert_eq!(plateau.malloc.as_ref().map(|malloc| malloc.pieces), Some(Bytes(50)));
        assert_eq!(view.malloc.as_ref().map(|malloc| malloc.name.as_str()), Some("d"));
        assert_eq!(view.as_of(plateau.at), Some("as of 2.0 s of 4.0 s".into()));
        assert_eq!(view.as_of(view.duration), None);
    }

    #[test]
    fn what_is_held_leaves_files_out_and_has_what_is_in_swap() {
        let bytes = |bytes| Some(Bytes(bytes));
        let sample = HeapSample { pss: bytes(100), ..at(1) };
        assert_eq!((held(&sample), held(&at(1))), (bytes(100), None));
        let parts = HeapSample { pss_anon: bytes(20), pss_shmem: bytes(3), ..sample };
        assert_eq!(held(&parts), bytes(23));
        let swapped = HeapSample { swap: bytes(7), unmapped: bytes(1), ..parts };
        assert_eq!(held(&swapped), bytes(31));
    }

    /// Samples of a program that maps and unmaps twice a second met none of its peaks.
    #[test]
    fn the_highest_resident_set_is_the_kernels() {
        let sample = |seconds, peak| HeapSample { peak_rss: Some(Bytes(peak)), ..at(seconds) };
        assert_eq!(fold([sample(1, 5), sample(2, 9), at(3)]).peak_rss, Some(Bytes(9)));
        assert_eq!(fold([at(1)]).peak_rss, None);
    }

    #[test]
    fn what_was_never_measured_is_absent() {
        let view = fold([at(1), at(2)]);
        assert_eq!((view.pss, view.live, view.score, view.pauses), (None, None, None, None));
        assert_eq!(
            (view.cpu, view.ksmd_cpu, view.passes, view.occupancy),
            (None, None, None, None)
        );
        assert_eq!(fold([]), HeapView::default());
    }

    #[test]
    fn a_heap_that_was_there_before_counts_from_its_first_sample_and_a_new_one_from_zero() {
        let passes = |seconds, started: u64, passes| HeapSample {
            passes: Some(passes),
            started: Some(Nanos(started * 1_000_000_000)),
            ..at(seconds)
        };
        assert_eq!(fold([passes(10, 3, 100), passes(20, 3, 130)]).passes, Some(30));
        assert_eq!(fold([at(1), passes(10, 3, 100), passes(20, 3, 130)]).passes, Some(130));
        // The process executes another program at 12 s: 30, then 7 of the new heap.
        let restarted =
            fold([passes(10, 3, 100), passes(11, 3, 130), passes(20, 12, 5), passes(21, 12, 7)]);
        assert_eq!(restarted.passes, Some(37));
    }

    #[test]
    fn ksmd_is_charged_by_the_share_of_pages_it_looks_at() {
        let ksmd = |seconds, cpu, own| HeapSample {
            ksmd_cpu: Some(Nanos(cpu)),
            ksm_items: Some(own),
            ksm_items_all: Some(100),
            ..at(seconds)
        };
        // 1,000 ns before we looked; then 400 at one quarter and 600 at one half.
        let view = fold([ksmd(1, 1_000, 0), ksmd(2, 1_400, 25), ksmd(3, 2_000, 50)]);
        assert_eq!(view.ksmd_cpu, Some(Nanos(400)));
        // Without knowing the share nothing is charged, and nothing is claimed.
        let blind = fold([1, 2].map(|s| HeapSample { ksmd_cpu: Some(Nanos(s)), ..at(s) }));
        assert_eq!(blind.ksmd_cpu, None);
    }

    #[test]
    fn pause_percentiles_are_the_bounds_of_their_bucket() {
        let mut buckets = vec![0; 40];
        buckets[10] = 90; // 1.024 to 2.048 us
        buckets[12] = 9;
        buckets[20] = 1; // 1.05 to 2.1 ms
        let sample = HeapSample {
            pauses: Some(buckets),
            longest_pause: Some(Nanos(1_234_567)),
            started: Some(Nanos(1_500_000_000)),
            ..at(2)
        };
        let pauses = fold([at(1), sample]).pauses.unwrap();
        assert_eq!((pauses.count, pauses.longest), (100, Some(Nanos(1_234_567))));
        assert_eq!(
            pauses.percentiles,
            [
                (0.5, Nanos(1 << 10), Nanos(1 << 11)),
                (0.9, Nanos(1 << 10), Nanos(1 << 11)),
                (0.99, Nanos(1 << 12), Nanos(1 << 13)),
                (0.999, Nanos(1 << 20), Nanos(1 << 21)),
            ]
        );
    }

    #[test]
    fn the_longest_pause_is_the_recordings_and_not_an_older_one_of_the_heap() {
        let longest = |seconds, started: u64, nanos| HeapSample {
            pauses: Some(vec![0, 0, seconds]),
            longest_pause: Some(Nanos(nanos)),
            started: Some(Nanos(started * 1_000_000_000)),
            ..at(seconds)
        };
        let fold = |samples: &[HeapSample]| {
            let pauses = fold(samples.iter().cloned()).pauses.unwrap();
            (pauses.longest, pauses.longest_of_life)
        };
        // The heap is as old as the recording, or younger.
        assert_eq!(fold(&[longest(1, 1, 0), longest(2, 1, 6)]), (Some(Nanos(6)), Some(Nanos(6))));
        // It is older, and its longest was before; then a longer one comes.
        let older = [longest(5, 1, 900), longest(6, 1, 900), longest(7, 1, 950)];
        assert_eq!(fold(&older[..2]), (None, Some(Nanos(900))));
        assert_eq!(fold(&older), (Some(Nanos(950)), Some(Nanos(950))));
        // Another program is executed: its heap's pauses count, the older heap's are not known.
        let other = |nanos| [longest(5, 1, 900), longest(6, 6, nanos)];
        assert_eq!(fold(&other(30)), (None, Some(Nanos(900))));
        assert_eq!(fold(&other(901)), (Some(Nanos(901)), Some(Nanos(901))));
    }

    #[test]
    fn the_score_is_the_share_that_holds_nothing() {
        let score = |live, footprint| fragmentation_score(Bytes(live), Bytes(footprint));
        assert_eq!(score(25, 100), Some(0.75));
        assert_eq!(score(100, 100), Some(0.0));
        assert_eq!(score(150, 100), Some(0.0));
        assert_eq!(score(0, 0), None);
        assert_eq!(mean_occupancy(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4]), Some(1.0));
        assert_eq!(mean_occupancy(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), Some((0.15 + 1.0) / 4.0));
        assert_eq!(mean_occupancy(&[0; 11]), None);
    }

    proptest! {
        #[test]
        fn a_quantile_lies_in_the_bucket_that_is_named(
            mut pauses in prop::collection::vec(1u64..1 << 39, 1..60), share in 0.0..=1.0f64
        ) {
            let mut buckets = [0; 40];
            for pause in &pauses {
                buckets[pause.ilog2() as usize] += 1;
            }
            pauses.sort_unstable();
            let rank = ((share * pauses.len() as f64).ceil() as usize).max(1);
            let bucket = bucket_of_share(&buckets, share).unwrap();
            prop_assert!(bucket.contains(&pauses[rank - 1]));
        }

        #[test]
        fn totals_add_up_over_epochs(epochs in prop::collection::vec(
            prop::collection::vec(0u64..1000, 1..5), 1..5))
        {
            let mut samples = vec![at(0)];
            let mut grown = 0;
            for (epoch, steps) in epochs.iter().enumerate() {
                let mut count = 0;
                for step in steps {
                    count += step;
                    grown += step;
                    samples.push(HeapSample {
                        passes: Some(count),
                        started: Some(Nanos(1 + epoch as u64)),
                        ..at(samples.len() as u64)
                    });
                }
            }
            prop_assert_eq!(fold(samples).passes, Some(grown));
        }

        #[test]
        fn mean_and_last_never_exceed_the_peak(values in prop::collection::vec((1u64..50, 0u64..1 << 50), 1..20)) {
            let mut now = 0;
            let samples: Vec<_> = values.iter().map(|(step, bytes)| {
                now += step;
                HeapSample { live: Some(Bytes(*bytes)), ..at(now) }
            }).collect();
            let live = fold(samples).live.unwrap();
            prop_assert!(live.mean <= live.peak && live.last <= live.peak && live.mean >= 0.0);
        }
    }
}
