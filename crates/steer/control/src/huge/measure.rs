//! What huge pages are worth in each part of an unmodified program's memory, found by running it.
//!
//! ```text
//!  look       one run without huge pages: which 2 MiB chunks it uses, and where
//!  cut        the chunks, by place, into slices of equal number
//!  run        with the halves that `analysis::slices` asks for, each placed by `tracer::advise` before its first touch
//!  estimate   benefit and deviation of each slice; rows of a profile
//! ```
//!
//! Where the processor counts page walks and samples accesses, the walks are counted instead, in a few runs with none
//! and with all on huge pages, and attributed by the samples of the first look (`analysis::walks`).
//!
//! Times are CPU time unless asked otherwise: the kernel counts it exactly, where it only samples how much of it was in
//! user mode. So the benefit of a slice is what its huge pages spare in page walks and base faults, less what their own
//! faults cost. A policy takes that cost off by itself (it is another one ahead of time, or on fragmented memory), so a
//! row of the profile has it added again, as calibrated.
//!
//! Always true: the benefit of no slice comes from the runs of another program; what was measured before an
//! interruption is used.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use pagemill_analysis::slices::{Benefit, Posterior, Run, design, estimate, validated};
use pagemill_analysis::statistics::{Random, median};
use pagemill_analysis::walks::{self, Counted, Sampled};
use pagemill_kernel::Linux;
use pagemill_kernel::process::signal::Signals;
use pagemill_launch::exit::Interrupted;
use pagemill_policy::huge::profile::{Comparator, Constraint, Kind, Profile, ProfileRow, Quantity};
use pagemill_policy::huge::{Section, Unit};
use pagemill_tracer::Ended;
use pagemill_tracer::advise::{self, CHUNK, ChunkLocation, Chunks, Unwatched, Watch};

use super::counters::Counters;
use crate::plan::{BenefitSource, TimeMeasure};
use pagemill_launch::program::ExecArguments;

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Runs in all, the first look included.
    pub runs: usize,
    /// Most slices.
    pub slices: usize,
    /// Seed of the halves.
    pub seed: u64,
    /// What counts.
    pub by: TimeMeasure,
    /// From what it is to be told; `None`: the best that works here.
    pub from: Option<BenefitSource>,
}

/// A part of a slice: chunks side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// Whether it is in the heap, not a mapping.
    pub heap: bool,
    /// Its first section offset.
    pub from: u64,
    /// The section offset behind its last.
    pub to: u64,
}

/// A part of the program's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Where it is.
    pub ranges: Vec<ChunkRange>,
    /// Chunks.
    pub chunks: u64,
    /// Base pages that were used in them.
    pub pages: u64,
    /// Sampled accesses that walked page tables.
    pub walks: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The program of the command that used most memory.
    pub program: String,
    /// The processor's counters that told, in words; or why there are none.
    pub counters: Result<String, String>,
    /// Its slices.
    pub slices: Vec<Slice>,
    /// The benefit of each, seconds; none if there were too few runs.
    pub benefits: Vec<Benefit>,
    /// Seconds by which a run is predicted wrong.
    pub error: f64,
    /// The runs, the first look apart.
    pub runs: Vec<Run>,
    /// Runs that failed and do not count.
    pub failed: usize,
    /// What the own fault of a huge page took of its benefit, ns, as calibrated; 0 where what was measured has no such
    /// part.
    pub own: u64,
    /// Of the chunks that were to be huge, the share that was.
    pub huge: f64,
    /// Of the chunks of the first run, the least share that a later one used.
    pub same: f64,
    /// The signal that ended it.
    pub interrupted: Option<i32>,
    /// How long it took.
    pub took: Duration,
}

/// What is told meanwhile: runs done.
pub type RunProgress<'a> = &'a mut dyn FnMut(usize);

/// Fewer runs say nothing.
const LEAST_RUNS: usize = 6;

/// Runs that are counted at most: as many with none as with all on huge pages.
const COUNTED_RUNS: usize = 8;

/// Cuts the chunks that were used into at most `limit` slices of as many each.
pub fn cut(chunks: &Chunks, limit: usize) -> (Vec<Slice>, BTreeMap<ChunkLocation, usize>) {
    let used: Vec<_> = chunks.iter().filter(|(_, seen)| seen.pages > 0).collect();
    let count = limit.min(used.len());
    let mut slices = vec![Slice::default(); count];
    let mut index = BTreeMap::new();
    for (number, (place, seen)) in used.iter().enumerate() {
        let at = number * count / used.len();
        let slice = &mut slices[at];
        slice.chunks += 1;
        slice.pages += seen.pages;
        slice.walks += seen.accesses;
        let range = ChunkRange { heap: place.heap, from: place.offset, to: place.offset + CHUNK };
        match slice.ranges.last_mut() {
            Some(last) if (last.heap, last.to) == (range.heap, range.from) => last.to = range.to,
            _ => slice.ranges.push(range),
        }
        index.insert(**place, at);
    }
    (slices, index)
}

/// Measures. The inner error is that the command cannot be executed.
///
/// # Errors
/// The kernel has no huge pages to be asked for, or a run cannot be traced or measured.
pub fn measure(
    linux: &Linux,
    subject: &ExecArguments,
    options: Options,
    signals: &Signals,
    tell: RunProgress<'_>,
) -> Result<std::result::Result<Outcome, std::io::Error>> {
    let began = Instant::now();
    let counters = match options.from {
        Some(BenefitSource::Runs) => Err("runs were asked for".to_owned()),
        Some(BenefitSource::Counters) => Ok(Counters::find(linux)?),
        None => Counters::find(linux).map_err(|error| error.to_string()),
    };
    let runner = Runner { linux, subject, signals, counters };
    let mut sampling = runner.counters.as_ref().ok().map(Counters::sampling);
    let first = match runner.run(&|_| false, sampling.as_mut().map(|it| it as &mut dyn Watch))? {
        Ok(first) => first,
        Err(error) => return Ok(Err(error)),
    };
    let (program, chunks) = subject_of(&first)?;
    let (slices, index) = cut(chunks, options.slices);
    let mut outcome = Outcome {
        program: program.clone(),
        counters: runner.counters.as_ref().map(Counters::name).map_err(Clone::clone),
        slices,
        benefits: Vec::new(),
        error: 0.0,
        runs: Vec::new(),
        failed: 0,
        own: 0,
        huge: 0.0,
        same: 1.0,
        interrupted: None,
        took: Duration::ZERO,
    };
    let counted = match repeat(&runner, &options, &index, &mut outcome, tell)? {
        Ok(counted) => counted,
        Err(error) => return Ok(Err(error)),
    };
    conclude(&mut outcome, &counted);
    let in_kernel = match &outcome.counters {
        Ok(_) => counted.iter().flatten().all(|run| run.kernel.is_some()),
        Err(_) => options.by != TimeMeasure::User,
    };
    if in_kernel {
        outcome.own = crate::costs::calibrate(linux, false)?.measured.huge_ns.unwrap_or(0);
    }
    outcome.took = began.elapsed();
    Ok(Ok(outcome))
}

/// How the command is run, and what counts meanwhile.
struct Runner<'a> {
    linux: &'a Linux,
    subject: &'a ExecArguments,
    signals: &'a Signals,
    /// The processor's counters; or why they do not count.
    counters: Result<Counters, String>,
}

impl Runner<'_> {
    /// Runs the command once, with huge pages in the chunks that `chosen` says.
    fn run(
        &self,
        chosen: &dyn Fn(ChunkLocation) -> bool,
        watch: Option<&mut dyn Watch>,
    ) -> Result<std::result::Result<advise::Run, std::io::Error>> {
        let subject = self.subject;
        let words = (&subject.path, &subject.arguments[..], &subject.environment[..]);
        Ok(match watch {
            Some(watch) => advise::run(self.linux, words, self.signals, chosen, watch)?,
            None => advise::run(self.linux, words, self.signals, chosen, &mut Unwatched)?,
        })
    }
}

/// The program of the first run that used most memory, and its chunks.
fn subject_of(first: &advise::Run) -> Result<(&String, &Chunks)> {
    if let Some(signal) = first.interrupted {
        return Err(Interrupted(signal).into());
    }
    if first.ended != Ended::Exited(0) {
        bail!("the command failed ({:?}): only what succeeds can be timed", first.ended);
    }
    let most = first
        .programs
        .iter()
        .max_by_key(|(_, chunks)| chunks.values().map(|seen| seen.pages).sum::<u64>());
    most.filter(|(_, chunks)| !chunks.is_empty()).context(
        "the command uses no 2 MiB of heap or mapping in one piece, so huge pages have no place in it",
    )
}

/// What was counted in the runs with none and with all on huge pages.
type CountedPair = [Vec<Counted>; 2];

/// The runs after the first, into `outcome`; what was counted in them.
fn repeat(
    runner: &Runner<'_>,
    options: &Options,
    index: &BTreeMap<ChunkLocation, usize>,
    outcome: &mut Outcome,
    tell: RunProgress<'_>,
) -> Result<std::result::Result<CountedPair, std::io::Error>> {
    let counters = runner.counters.as_ref().ok();
    let count = outcome.slices.len();
    let mut random = Random::new(options.seed);
    let (mut wanted, mut got) = (0_u64, 0_u64);
    let mut posterior: Option<Posterior> = None;
    let mut counted = CountedPair::default();
    let most = if counters.is_some() { COUNTED_RUNS } else { usize::MAX };
    let all = options.runs.saturating_sub(1).min(most);
    for number in 0..all {
        tell(number + 1);
        // Counted runs are the first four again and again: none, all, all, none.
        let at = if counters.is_some() { number % 4 } else { number };
        let huge = design(at, count, posterior.as_ref(), &mut random);
        let chosen = |place: ChunkLocation| index.get(&place).is_some_and(|slice| huge[*slice]);
        let mut counting = counters.map(Counters::counting);
        let run = match runner.run(&chosen, counting.as_mut().map(|it| it as &mut dyn Watch))? {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        if run.interrupted.is_some() {
            outcome.interrupted = run.interrupted;
            break;
        }
        if run.ended != Ended::Exited(0) {
            outcome.failed += 1;
            continue;
        }
        let seen = run.programs.get(&outcome.program);
        let seen = |place: &ChunkLocation| seen.and_then(|chunks| chunks.get(place));
        let again = index.keys().filter(|place| seen(place).is_some()).count();
        outcome.same = outcome.same.min(again as f64 / index.len() as f64);
        for (place, _) in index.iter().filter(|(_, slice)| huge[**slice]) {
            wanted += 1;
            got += u64::from(seen(place).is_some_and(|seen| seen.huge));
        }
        if let Some(counting) = counting {
            let kind = usize::from(huge.iter().all(|on| *on));
            counted[kind].extend(counting.counted(run.used.user + run.used.system)?);
        }
        let time = match options.by {
            TimeMeasure::Cpu => run.used.user + run.used.system,
            TimeMeasure::User => run.used.user,
            TimeMeasure::Wall => run.wall,
        };
        outcome.runs.push(Run { huge, time: time.as_secs_f64() });
        if counters.is_none() && number >= 23 && number % 9 == 5 {
            posterior = estimate(&outcome.runs, count);
        }
    }
    outcome.huge = got as f64 / wanted.max(1) as f64;
    Ok(Ok(counted))
}

/// What huge pages are worth in each slice: by the walks that were counted, else by how long the runs took.
fn conclude(outcome: &mut Outcome, [none, all]: &CountedPair) {
    if outcome.counters.is_ok() {
        let of = |slice: &Slice| Sampled { walks: slice.walks, pages: slice.pages };
        let slices: Vec<Sampled> = outcome.slices.iter().map(of).collect();
        outcome.benefits = walks::benefits(none, all, &slices).unwrap_or_default();
    } else if outcome.runs.len() >= LEAST_RUNS
        && let Some(posterior) = validated(&outcome.runs, outcome.slices.len())
    {
        outcome.benefits = posterior.benefits().to_vec();
        outcome.error = posterior.error();
    }
}

/// Deviations on each side of an interval of 95 %.
const SIDE: f64 = 1.96;

impl Outcome {
    /// Median time of the runs in which all slices were as asked: all on huge pages or none.
    pub fn uniform(&self, huge: bool) -> Option<f64> {
        let times: Vec<f64> = self
            .runs
            .iter()
            .filter(|run| run.huge.iter().all(|on| *on == huge))
            .map(|run| run.time)
            .collect();
        median(&times)
    }

    /// The places of all chunks.
    pub fn places(&self) -> Vec<ChunkLocation> {
        let ranges = self.slices.iter().flat_map(|slice| &slice.ranges);
        let each = |range: &ChunkRange| {
            let heap = range.heap;
            (range.from..range.to)
                .step_by(CHUNK as usize)
                .map(move |offset| ChunkLocation { heap, offset })
        };
        ranges.flat_map(each).collect()
    }

    /// The interval of a slice's benefit, seconds.
    pub fn interval(&self, slice: usize) -> (f64, f64) {
        let Benefit { mean, deviation } = self.benefits[slice];
        (mean - SIDE * deviation, mean + SIDE * deviation)
    }

    /// Nanoseconds that each huge page of a slice brought; less than none if it cost more.
    fn brought(&self, slice: usize) -> f64 {
        self.benefits[slice].mean * 1e9 / self.slices[slice].chunks.max(1) as f64
    }

    /// Nanoseconds that each huge page of a slice is worth; zero if it costs more.
    pub fn each(&self, slice: usize) -> u64 {
        // The cast saturates, at zero too.
        self.brought(slice).round() as u64
    }

    /// What each huge page brought in the slices that are not told apart from none, taken together, ns; and how many
    /// these are. Which of them has how much of it the runs do not say, so a difference between them would be chance.
    fn together(&self) -> (f64, usize) {
        let unsure = self.benefits.iter().zip(&self.slices).filter(|(benefit, _)| !benefit.sure());
        let (mut seconds, mut chunks, mut count) = (0.0, 0, 0);
        for (benefit, slice) in unsure {
            (seconds, chunks, count) = (seconds + benefit.mean, chunks + slice.chunks, count + 1);
        }
        (seconds * 1e9 / chunks.max(1) as f64, count)
    }

    /// The profile: a row for each range of a slice with a benefit; slices that are not told apart from none have one
    /// benefit a page, the mean of all of them (as the published profiler merges slices that hardly differ).
    pub fn profile(&self) -> Profile {
        let mut rows = Vec::new();
        let (mean, unsure) = self.together();
        for (number, slice) in self.slices.iter().enumerate() {
            let Some(measured) = self.benefits.get(number) else { continue };
            let net = if measured.sure() { self.brought(number) } else { mean };
            // The cast saturates, at zero too.
            let benefit = (net + self.own as f64).round() as u64;
            if benefit == 0 {
                continue;
            }
            let (low, high) = self.interval(number);
            let sure = if measured.sure() {
                String::new()
            } else {
                format!("; not told apart from none: the mean of {unsure} such slices")
            };
            let fault = match self.own {
                0 => String::new(),
                own => format!("; and {own} ns of its own fault, a cost of its own"),
            };
            let how = if self.counters.is_ok() { "counted" } else { "measured" };
            let why = format!(
                "{how} {:.2} ms [{:.2}, {:.2}] a run in {} huge pages of {} pages used, {} runs{sure}{fault}",
                measured.mean * 1e3,
                low * 1e3,
                high * 1e3,
                slice.chunks,
                slice.pages,
                self.runs.len()
            );
            rows.extend(slice.ranges.iter().map(|range| ProfileRow {
                kind: Kind::Huge,
                section: if range.heap { Section::Heap } else { Section::Mmap },
                benefit,
                constraints: vec![
                    Constraint::Number(Quantity::SectionOff, Comparator::Greater, range.from),
                    Constraint::Number(Quantity::SectionOff, Comparator::Less, range.to),
                ],
                why: Some(why.clone()),
            }));
        }
        Profile { unit: Unit::Nanos, rows }
    }
}

/// Huge pages are to be where they are asked for, and nowhere else.
///
/// # Errors
/// The kernel has no huge pages, or its setting is `never`.
pub fn allow_only_advised(linux: &Linux) -> Result<()> {
    match linux.thp_enabled()?.active.as_str() {
        "madvise" => Ok(()),
        "always" => {
            // What is not asked for would be huge, too.
            Ok(pagemill_kernel::settings::thp::disable_here(
                pagemill_kernel::settings::thp::Disabled::ExceptAdvised,
            )?)
        }
        _ => bail!(
            "huge pages are off on this system, so there is nothing to measure (echo madvise | sudo tee \
             /sys/kernel/mm/transparent_hugepage/enabled)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_policy::huge::profile::Mapping;
    use pagemill_tracer::advise::ChunkUse;

    fn chunks(places: &[(bool, u64, u64)]) -> Chunks {
        let seen = |(heap, chunk, pages): &(bool, u64, u64)| {
            (
                ChunkLocation { heap: *heap, offset: chunk * CHUNK },
                ChunkUse { pages: *pages, ..ChunkUse::default() },
            )
        };
        places.iter().map(seen).collect()
    }

    /// What came of measuring without counters.
    fn outcome(slices: Vec<Slice>, benefits: Vec<Benefit>) -> Outcome {
        Outcome {
            program: "x".into(),
            counters: Err("none".into()),
            slices,
            benefits,
            error: 0.001,
            runs: Vec::new(),
            failed: 0,
            own: 0,
            huge: 1.0,
            same: 1.0,
            interrupted: None,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn used_chunks_are_cut_into_slices_of_as_many_each() {
        let chunks =
            chunks(&[(true, 0, 512), (true, 1, 0), (false, 0, 10), (false, 1, 20), (false, 9, 30)]);
        let (slices, index) = cut(&chunks, 2);
        assert_eq!(slices.iter().map(|slice| slice.chunks).sum::<u64>(), 4);
        assert_eq!(slices.iter().map(|slice| slice.pages).sum::<u64>(), 572);
        assert_eq!(index.len(), 4);
        assert!(
            !index.contains_key(&ChunkLocation { heap: true, offset: CHUNK }),
            "it was not used"
        );
        let (slices, _) = cut(&chunks, 100);
        assert_eq!(slices.len(), 4, "no slice without a chunk");
        let (slices, _) = cut(&chunks, 1);
        let ranges: Vec<_> =
            slices[0].ranges.iter().map(|range| (range.to - range.from) / CHUNK).collect();
        assert_eq!(ranges, [2, 1, 1], "mappings come before the heap, side by side as one");
    }

    #[test]
    fn rows_claim_the_chunks_of_their_slice_and_say_why() {
        let chunks = chunks(&[(true, 0, 512), (false, 3, 100)]);
        let (slices, _) = cut(&chunks, 2);
        let benefit = |mean| Benefit { mean, deviation: 0.001 };
        let outcome = outcome(slices, vec![benefit(0.02), benefit(0.002)]);
        let profile = outcome.profile();
        let text = profile.to_string();
        assert_eq!(Profile::parse(&text).unwrap().to_string(), text);
        assert!(text.contains("measured 20.00 ms [18.04, 21.96] a run in 1 huge pages"), "{text}");
        assert!(text.contains("not told apart from none"), "{text}");
        let top = 0x7fff_f000_0000;
        let (start, end) = (top - 5 * CHUNK, top);
        let mapping =
            Mapping { start, end, section: Section::Mmap, base: top, ..Mapping::default() };
        let ranges = profile.ranges(Kind::Huge, &mapping);
        assert_eq!(ranges.len(), 1);
        assert_eq!((ranges[0].start, ranges[0].end), (top - 4 * CHUNK, top - 3 * CHUNK));
        assert_eq!(ranges[0].benefit, 20_000_000);
    }

    /// Seven runs of `xz` gave some slices 73 ms a page and others none, each with an interval of a second and a half.
    #[test]
    fn what_is_not_told_apart_from_none_has_one_benefit() {
        let places: Vec<_> = (0..4).map(|chunk| (true, chunk, 512)).collect();
        let (slices, _) = cut(&chunks(&places), 4);
        let benefit = |mean, deviation| Benefit { mean, deviation };
        let mut outcome = outcome(
            slices,
            vec![benefit(0.07, 0.7), benefit(-0.01, 0.7), benefit(0.5, 0.1), benefit(0.0, 0.7)],
        );
        let worth = |outcome: &Outcome| -> Vec<u64> {
            outcome.profile().rows.iter().map(|row| row.benefit).collect()
        };
        assert_eq!(worth(&outcome), [20_000_000, 20_000_000, 500_000_000, 20_000_000]);
        assert!(outcome.profile().to_string().contains("from none: the mean of 3 such slices"));
        outcome.benefits[0].mean = -0.2;
        assert_eq!(worth(&outcome), [500_000_000], "together they cost more than they bring");
        // With what their own faults took they spare something: what they bring depends on what a huge page costs then.
        outcome.own = 80_000_000;
        assert_eq!(worth(&outcome), [10_000_000, 10_000_000, 580_000_000, 10_000_000]);
    }
}
