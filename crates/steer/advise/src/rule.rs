//! When to stop trying, and what has won: a pure function of what the runs so far have given.
//!
//! All arms run once a round: the command as it is (the *base*), twice where it is compared with many, and under each
//! lever that is still in play. A *change* is the ratio of a lever's median to the base's; its interval is
//!
//! ```text
//!   ln ratio ± Z · e        e² = π/2 · (s²/n_lever + s²/n_base)      (the standard error of a median)
//!   s = the mean over all arms of b_n · 1.4826 · MAD(ln values), at least FLOOR
//! ```
//!
//! where MAD is the median absolute deviation of an arm and `b_n` corrects it for few values (Croux & Rousseeuw,
//! "Time-efficient algorithms for two highly robust estimators of scale", 1992, section 4). The noise `s` is that of
//! program and machine, so it is pooled: three runs of one arm would not tell it. Medians, because a busy machine
//! disturbs upwards, and far. `Z` is 2.6 (99 % of one look at one lever), since we look after each round.
//!
//! Where the machine is busier in one round than in another, all runs of a round are, and pairs tell more: of a lever's
//! run and the base's of the same round, `d = ln lever - ln base` (the mean of two). Then the change is
//! `exp(median d)`, with `e² = π/2 · s_d²/n`, where `s_d` is the noise of `d`, pooled over the levers. That is taken
//! where rounds are what at least half of the variance is from, `s_d < s`, and all runs of the lever have a pair.
//!
//! An *aim* is a quantity that is to fall by more than `worth`, while another, its bound, rises by no more than
//! `slower`. By goal, in this order:
//!
//! | goal | to fall | bound |
//! |---|---|---|
//! | none given | mean memory; if nothing is worth it there: time | time; mean memory |
//! | memory | mean memory | time |
//! | speed, tail | time | none |
//!
//! *Time* is the metric where one is named; else wall time where its noise is 1 % or not above that of CPU time, else
//! CPU time, which is also what the first round goes by. CPU time is judged in shares of itself or of a quarter of the
//! least wall time as it is, without what was waited for a CPU, whichever is more: of a program that sleeps, the 3 ms
//! that it takes to load a library are half of its CPU time and nothing to anybody. So 2 % slower is never less than
//! half a percent of one CPU. In the same way memory is judged in shares of 16 MiB where it is less: 5 % of what a
//! shell takes is a page table, and how much of its tenth of a second it shared with a child.
//!
//! Mean memory begins where a run is first at nine tenths of its highest. Of several peaks that are nearly as high a
//! lever may make another the highest, and the mean another's; so what falls by that mean has to fall by half of what
//! is worth it in the mean of the whole run, too: else it is out.
//!
//! Where time is not CPU time, it is longer while others have the CPUs. How long the threads of a run were ready and
//! waited is known (`/proc/PID/task/*/schedstat`); with `w` the share of that in the time that they were ready, medians
//! of all runs, a fall of time is judged times `(1 - w_lever) / (1 - w_base)` if that is above 1: what a lever only
//! seems to win because the machine was less busy while it ran is none of its.
//!
//! A lever is, for an aim,
//!
//! - *out* when three runs say that the fall is not worth it, or that the bound is passed (the whole interval); or
//!   after one run when either is worse than as it is by a quarter, memory by a tenth (`GROSS`), and twice its error,
//!   once the noise is known. Few runs may be alike by chance: of time, on a machine where the command waits for a CPU
//!   for the share `w`, that noise is reckoned as half of `w` at the least, for who takes the CPU from it takes caches,
//!   too; and if `w` is above `BUSY`, one run says so only if it took `HOPELESS` times as long: a burst of others' work
//!   may last for it;
//! - *shown* when they say that it is worth it (the whole interval again), and at 90 % that the bound is kept;
//! - *open* else.
//!
//! Where the noise is above `QUIET` it takes five runs to say that a lever takes less time or memory, or that it passes
//! a bound of time (or one that is gross): of three and three, all of one arm may have met a busy neighbour and none of
//! the other's by chance alone (one time in ten; of five and five one in 126). Unless what it takes less than is worth
//! it is gross, too: three runs tell half of the time. It takes five on a quiet machine, too, to say that a bound of
//! time is passed by less than `NARROW`: whoever would be given up for that may bring all of its memory.
//!
//! Runs that differ as no normal noise does have intervals that say too much. So what falls also has to lie lower than
//! the base by its ranks ([`chance_of_lower`]; of pairs by their signs): by chance as seldom as `CHANCE`, or, of few
//! runs, as seldom as they can show. Where the noise is above `LOUD`, as seldom as `CHANCE` for all levers together,
//! which few runs cannot show.
//!
//! A lever that can bring no memory, by what was seen before, brings none, whatever the runs say.
//!
//! Stop when no lever is open; or when one is shown for the first aim that is not lost and no other's interval reaches
//! more than `MARGIN` further, while those that are shown, too, are not better by `RIVAL` (at 90 %, by the noise
//! between the two); or after `most` rounds. Then the *choice* is, for the first aim that has one, the lever with the
//! greatest fall among those with three runs at the least (of time on a machine that is not quiet: five) whose fall is
//! more than `worth` in the median and told apart from none, and which are not shown (at 90 %) to pass the bound; of
//! those within `TIE` of it the first of the registry, which begins with what asks least.
//! Where there is no choice, an open lever whose median is worth it, and told apart from none at 97.5 % of one side (of
//! eight levers that do nothing one is told apart at 90 % more often than not), leaves it undecided; and the lever that
//! brings most, if it is told apart from none, is told as the nearest.
//!
//! Always true: what is out stays out; what is out or broken is not chosen; runs in another order, or in other units,
//! give the same; without noise a lever that is worth it is chosen and one that is not never; after `most` rounds it
//! stops.

use std::f64::consts::FRAC_PI_2;

use pagemill_analysis::statistics::{mad, mean, median};

use crate::count::Count;

mod noise;
mod ranks;

pub(crate) use noise::runs_to_tell;
use ranks::{chance_of_lower, chance_of_negative, least_chance_of_lower};

/// Standard errors on each side of an interval.
const Z: f64 = 2.6;
/// One-sided 90 %: what a bound is given the benefit of.
const DOUBT: f64 = 1.28;
/// One-sided 97.5 %: what makes an open lever worth a word.
const PLAUSIBLE: f64 = 1.96;
/// Noise that is always reckoned with, of a natural logarithm.
const FLOOR: f64 = 0.003;
/// Falls that differ by less are one.
const TIE: f64 = 0.02;
/// A fall of less is not worth a word.
const NOTABLE: f64 = 0.01;
/// An open lever that may fall by so much more than what is shown keeps the trial going.
const MARGIN: f64 = 0.03;
/// And one that is shown, too, and may fall by this share more.
const RIVAL: f64 = 0.1;
/// After one run, a lever that is worse by this factor in time or in memory, in what it is to improve or in the bound,
/// and by so many standard errors more, is out: others do not make memory more.
pub(crate) const GROSS: Gross = Gross { time: 1.25, memory: 1.1 };
const ERRORS: f64 = 2.0;
/// The share in which a command waits for a CPU from which on the machine is busy, and how many times as long one run
/// takes there under a lever that is out.
const BUSY: f64 = 0.05;
const HOPELESS: f64 = 4.0;
/// Of the share in which it waits for a CPU so much is noise of its time, as long as there are few runs.
const DISTURBED: f64 = 0.5;
/// How likely the order of a lever's runs and those as it is may be by chance where it is chosen.
const CHANCE: f64 = 0.01;
/// Noise above which it is the program that does not do the same each time.
const LOUD: f64 = 0.3;
/// Part of the wall time in whose shares a smaller CPU time is judged.
const IDLE: f64 = 0.25;
/// Runs of each lever, at the least.
pub const LEAST: usize = 3;
/// Runs that show that a lever takes less where runs of the same differ by more than [`QUIET`].
const SURE: usize = 5;
/// A bound of time that is passed by less is not passed before that many runs, on a quiet machine either.
const NARROW: f64 = 0.05;
/// Wall time with less noise than this is taken; with less, few runs tell.
const QUIET: f64 = 0.01;

/// Factors by which a lever is worse beyond doubt.
pub(crate) struct Gross {
    pub time: f64,
    pub memory: f64,
}

/// What one run gave. What could not be measured is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Mean memory over the run, bytes.
    pub mean: Option<f64>,
    /// The same with the time in which it grows, bytes.
    pub whole: Option<f64>,
    /// The most memory of a look, bytes.
    pub peak: Option<f64>,
    /// CPU time, seconds.
    pub cpu: Option<f64>,
    /// Wall time, seconds.
    pub wall: Option<f64>,
    /// The highest charge of its control group, kernel memory and page cache included, bytes.
    pub charge: Option<f64>,
    /// What the command or the client says, in its unit.
    pub metric: Option<f64>,
    /// Time in which its threads were ready and waited for a CPU, their sum, seconds.
    pub waited: Option<f64>,
    /// What else was counted, in the order of [`Count`].
    pub counted: [Option<f64>; Count::ALL.len()],
    /// The round that it was in, from 1; 0: not known.
    pub round: usize,
}

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Mean memory.
    Mean,
    /// Mean memory of the whole run.
    Whole,
    /// Peak memory.
    Peak,
    /// CPU time.
    Cpu,
    /// Wall time.
    Wall,
    /// The charge of the control group.
    Charge,
    /// The named metric.
    Metric,
    /// Time in which it waited for a CPU.
    Waited,
    /// What is counted beside.
    Counted(Count),
}

impl Quantity {
    /// Of a run.
    pub fn of(self, run: &Figures) -> Option<f64> {
        match self {
            Self::Mean => run.mean,
            Self::Whole => run.whole,
            Self::Peak => run.peak,
            Self::Cpu => run.cpu,
            Self::Wall => run.wall,
            Self::Charge => run.charge,
            Self::Metric => run.metric,
            Self::Waited => run.waited,
            Self::Counted(which) => run.counted[which as usize],
        }
    }

    fn all_of(self, runs: &[Figures]) -> Vec<f64> {
        let all: Vec<f64> = runs.iter().filter_map(|run| self.of(run)).collect();
        // A logarithm is taken of each. A count may well be zero in a run, and then there is no ratio.
        match self {
            Self::Counted(_) if all.contains(&0.0) => Vec::new(),
            _ => all.into_iter().filter(|value| *value > 0.0).collect(),
        }
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// Least memory, no slower; where nothing is worth it, less time at no more memory.
    #[default]
    Both,
    /// Least memory, no slower.
    Memory,
    /// Least time.
    Speed,
    /// The least of a metric that is a latency.
    Tail,
}

/// What an aim is to bring down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Mean memory, no slower.
    Memory,
    /// Time, with no more memory if that is bounded.
    Time {
        /// Whether memory is.
        bounded: bool,
    },
}

impl Goal {
    /// What it aims at, in order.
    pub fn aims(self) -> &'static [Aim] {
        match self {
            Self::Both => &[Aim::Memory, Aim::Time { bounded: true }],
            Self::Memory => &[Aim::Memory],
            Self::Speed | Self::Tail => &[Aim::Time { bounded: false }],
        }
    }
}

/// What counts.
#[derive(Clone, Copy, Debug)]
pub struct Criteria {
    /// What is wanted.
    pub goal: Goal,
    /// A fall that is worth a lever, as a share.
    pub worth: f64,
    /// What the bound may rise by, as a share.
    pub slower: f64,
    /// Rounds at the most.
    pub most: usize,
    /// Whether more of the metric is better.
    pub more_is_better: bool,
    /// Memory that is less is judged in shares of so many bytes.
    pub small: f64,
}

/// The change of a quantity under a lever.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The lever's median by that of the base.
    pub ratio: f64,
    /// Low end of the interval.
    pub low: f64,
    /// High end of the interval.
    pub high: f64,
    /// Standard error of the logarithm.
    pub error: f64,
    /// Runs that it is of, those of the arm with fewer.
    pub runs: usize,
}

impl Change {
    /// Both ends of the interval; none of a single run, whose noise is that of others.
    pub fn interval(&self) -> Option<(f64, f64)> {
        (self.runs > 1 && self.error.is_finite()).then_some((self.low, self.high))
    }

    /// As a cost: where more is better, the change of its inverse.
    pub(crate) fn inverted(self) -> Self {
        let Self { ratio, low, high, .. } = self;
        Self { ratio: 1.0 / ratio, low: 1.0 / high, high: 1.0 / low, ..self }
    }

    /// So many times of it.
    fn times(self, factor: f64) -> Self {
        let Self { ratio, low, high, .. } = self;
        Self { ratio: ratio * factor, low: low * factor, high: high * factor, ..self }
    }
}

/// How a lever stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It cannot be the choice any more.
    Out,
    /// Nobody knows yet.
    Open,
    /// It is worth it, for this aim.
    Shown(Aim),
}

/// What the runs say.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Of each lever.
    pub standings: Vec<Standing>,
    /// What stands for time.
    pub time: Quantity,
    /// Whether to stop.
    pub stop: bool,
    /// The lever that is to be used, and for what.
    pub choice: Option<(usize, Aim)>,
    /// A lever that passes its bound, and would be chosen if that were wider: the same. None where one within the bound
    /// looks as good.
    pub over_bound: Option<(usize, Aim)>,
    /// Where none is chosen, the one that is still open and looks best, if that looks worth it: the runs differ too
    /// much to tell.
    pub perhaps: Option<(usize, Aim)>,
    /// Where none is chosen, the one that brings most of those that bring something, too little to be worth it.
    pub nearest: Option<(usize, Aim)>,
}

/// The runs of all arms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs<'a> {
    /// As it is.
    pub base: &'a [Figures],
    /// Under each lever, in the order of the registry; none for one that broke the command.
    pub levers: &'a [Vec<Figures>],
    /// Levers that were given up: they stay out. One beyond the last was not.
    pub out: &'a [bool],
    /// The share of memory that each may bring at the most; of one beyond the last that is not known.
    pub most: &'a [f64],
}

/// The correction of a MAD of `n` values (Croux & Rousseeuw 1992).
fn few(n: usize) -> f64 {
    const FEW: [f64; 8] = [1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107];
    match n {
        0..2 => 1.0,
        2..10 => FEW[n - 2],
        _ => n as f64 / (n as f64 - 0.8),
    }
}

/// The noise within samples of logarithms; none before any has two.
fn pooled(samples: impl Iterator<Item = Vec<f64>>) -> Option<f64> {
    let (mut sum, mut weight) = (0.0, 0.0);
    for logs in samples.filter(|logs| logs.len() >= 2) {
        sum += mad(&logs)? * 1.4826 * few(logs.len()) * logs.len() as f64;
        weight += logs.len() as f64;
    }
    (weight > 0.0).then(|| (sum / weight).max(FLOOR))
}

impl Runs<'_> {
    /// The noise of a quantity: the standard deviation of its logarithm within an arm. None before any arm ran twice.
    pub fn noise(&self, quantity: Quantity) -> Option<f64> {
        self.noise_beside(quantity, 0.0)
    }

    /// The same of a quantity with so much added to each value.
    fn noise_beside(&self, quantity: Quantity, beside: f64) -> Option<f64> {
        let arms = self.levers.iter().map(Vec::as_slice).chain([self.base]);
        let logs = |arm: &[Figures]| -> Vec<f64> {
            quantity.all_of(arm).iter().map(|value| (value + beside).ln()).collect()
        };
        pooled(arms.map(logs))
    }

    /// Logarithms of the runs of a lever, less those of the base in the same rounds.
    fn pairs(&self, lever: usize, quantity: Quantity, beside: f64) -> Vec<f64> {
        let log = |run: &Figures| {
            let value = quantity.of(run).filter(|value| *value > 0.0)?;
            Some((value + beside).ln())
        };
        let base = |round: usize| {
            let same = self.base.iter().filter(|run| round > 0 && run.round == round);
            mean(&same.filter_map(log).collect::<Vec<_>>())
        };
        let runs = self.levers.get(lever).map_or(&[][..], Vec::as_slice).iter();
        runs.filter_map(|run| Some(log(run)? - base(run.round)?)).collect()
    }

    /// The changes of pairs, and the noise of these, where they tell more than values do: logarithms.
    fn paired(&self, lever: usize, quantity: Quantity, beside: f64) -> Option<(Vec<f64>, f64)> {
        let all = (0..self.levers.len()).map(|lever| self.pairs(lever, quantity, beside));
        let (pairs, of_pairs) = (self.pairs(lever, quantity, beside), pooled(all)?);
        let noise = self.noise_beside(quantity, beside).unwrap_or(f64::INFINITY);
        let whole = pairs.len() == quantity.all_of(self.levers.get(lever)?).len();
        (of_pairs < noise && whole).then_some((pairs, of_pairs))
    }

    /// The noise of what stands for time, as it is judged.
    pub fn judged_noise(&self) -> Option<f64> {
        self.noise_beside(self.time(), self.beside(self.time()))
    }

    /// What is added to CPU times before they are judged, seconds: nothing, unless the command as it is sleeps most of
    /// its time.
    pub fn idle(&self) -> f64 {
        // That it waits for a CPU besides is no sleep. Of what was not seen of that, the least is nearest to none.
        let own = |run: &Figures| Some((run.wall? - run.waited.unwrap_or(0.0)).max(0.0));
        let wall = self.base.iter().filter_map(own).fold(f64::INFINITY, f64::min);
        let cpu = self.median(None, Quantity::Cpu);
        cpu.filter(|_| wall.is_finite()).map_or(0.0, |cpu| (wall * IDLE - cpu).max(0.0))
    }

    /// What is added to a quantity before it is judged.
    fn beside(&self, quantity: Quantity) -> f64 {
        if quantity == Quantity::Cpu { self.idle() } else { 0.0 }
    }

    /// The median of a quantity, as it is or under a lever.
    pub fn median(&self, lever: Option<usize>, quantity: Quantity) -> Option<f64> {
        let runs = lever.map_or(Some(self.base), |lever| self.levers.get(lever).map(Vec::as_slice));
        median(&runs?.iter().filter_map(|run| quantity.of(run)).collect::<Vec<_>>())
    }

    /// Of the time in which the threads of a run are ready, as it is or under a lever, the share in which they wait for
    /// a CPU that others have.
    pub fn waiting(&self, lever: Option<usize>) -> f64 {
        let time = |quantity| self.median(lever, quantity).unwrap_or(0.0);
        let waited = time(Quantity::Waited);
        waited / (waited + time(Quantity::Cpu)).max(f64::MIN_POSITIVE)
    }

    /// By how much a lever's runs would be longer had they waited for a CPU as much as those of the base, where they
    /// waited less: that part of a gain is the machine's, which was less busy.
    fn spared(&self, lever: usize) -> f64 {
        ((1.0 - self.waiting(Some(lever))) / (1.0 - self.waiting(None)).max(0.1)).max(1.0)
    }

    /// The change of a quantity under a lever; none where one of the two has no value.
    pub fn change(&self, lever: usize, quantity: Quantity) -> Option<Change> {
        self.change_beside(lever, quantity, 0.0)
    }

    /// The same of a quantity with so much added to each value.
    fn change_beside(&self, lever: usize, quantity: Quantity, beside: f64) -> Option<Change> {
        let (new, old) = (quantity.all_of(self.levers.get(lever)?), quantity.all_of(self.base));
        let mut ratio = (median(&new)? + beside) / (median(&old)? + beside);
        // Before anything ran twice nobody knows.
        let noise = self.noise_beside(quantity, beside).unwrap_or(f64::INFINITY);
        let shares = 1.0 / new.len() as f64 + 1.0 / old.len() as f64;
        let mut error = noise * (FRAC_PI_2 * shares).sqrt();
        if let Some((pairs, of_pairs)) = self.paired(lever, quantity, beside)
            && let Some(middle) = median(&pairs)
        {
            ratio = middle.exp();
            error = of_pairs * (FRAC_PI_2 / pairs.len() as f64).sqrt();
        }
        let width = (Z * error).exp();
        let runs = new.len().min(old.len());
        Some(Change { ratio, low: ratio / width, high: ratio * width, error, runs })
    }

    /// What stands for time.
    pub fn time(&self) -> Quantity {
        let known = |quantity: Quantity| !quantity.all_of(self.base).is_empty();
        if known(Quantity::Metric) {
            return Quantity::Metric;
        }
        let cpu = self.noise_beside(Quantity::Cpu, self.idle());
        match (self.noise(Quantity::Wall), cpu) {
            (Some(wall), Some(cpu)) if wall <= QUIET || wall <= cpu => Quantity::Wall,
            _ if known(Quantity::Cpu) => Quantity::Cpu,
            _ => Quantity::Wall,
        }
    }

    /// So many runs of a lever show that it is worth it, by what is to fall first and the noise so far.
    pub fn enough(&self, criteria: &Criteria) -> usize {
        let judge = Judge { runs: self, criteria, time: self.time() };
        let told = |runs: &usize| judge.is_told(criteria.goal.aims()[0], *runs);
        [LEAST, SURE].into_iter().find(told).unwrap_or(SURE)
    }

    /// The smallest ratio that a lever has in anything that is to fall, so far; 1 before it has run.
    pub fn promise(&self, lever: usize, criteria: &Criteria) -> f64 {
        let judge = Judge { runs: self, criteria, time: self.time() };
        let falls = criteria.goal.aims().iter().filter_map(|aim| judge.changes(lever, *aim));
        falls.map(|(fall, _)| fall.ratio).reduce(f64::min).unwrap_or(1.0)
    }

    /// Whether a lever is out for its fall of mean memory is none of the whole run's.
    pub fn at_another_peak(&self, lever: usize, criteria: &Criteria) -> bool {
        let judge = Judge { runs: self, criteria, time: self.time() };
        judge.changes(lever, Aim::Memory).is_some_and(|(fall, _)| {
            fall.runs >= LEAST && judge.falls_elsewhere(lever, Aim::Memory, fall)
        })
    }

    /// What the runs so far say.
    pub fn judge(&self, criteria: &Criteria) -> Judgement {
        let judge = Judge { runs: self, criteria, time: self.time() };
        let aims = criteria.goal.aims();
        let of = |aim: &Aim| -> Vec<Standing> {
            (0..self.levers.len()).map(|lever| judge.standing(lever, *aim)).collect()
        };
        let by_aim: Vec<(Aim, Vec<Standing>)> = aims.iter().map(|aim| (*aim, of(aim))).collect();
        let best = |lever: usize| {
            let mut all = by_aim.iter().map(|(_, standings)| standings[lever]);
            all.find(|standing| *standing != Standing::Out).unwrap_or(Standing::Out)
        };
        let settled = || {
            for (aim, standings) in &by_aim {
                if standings.iter().any(|standing| matches!(standing, Standing::Shown(_))) {
                    return judge.leads(*aim, standings);
                }
                if standings.contains(&Standing::Open) {
                    return false;
                }
            }
            true
        };
        let rounds = self.levers.iter().map(Vec::len).max().unwrap_or(self.base.len());
        let full = rounds.min(self.base.len()) >= criteria.most;
        let choice = aims.iter().find_map(|aim| Some((judge.choice(*aim, true)?, *aim)));
        let over_bound = aims.iter().find_map(|aim| Some((judge.choice(*aim, false)?, *aim)));
        let over_bound = over_bound.filter(|(over, aim)| !judge.is_had_within(*over, *aim));
        let perhaps = by_aim.iter().find_map(|(aim, all)| Some((judge.perhaps(*aim, all)?, *aim)));
        let nearest = aims.iter().find_map(|aim| Some((judge.nearest(*aim)?, *aim)));
        Judgement {
            standings: (0..self.levers.len()).map(best).collect(),
            time: judge.time,
            stop: full || settled(),
            over_bound: over_bound.filter(|(over, _)| choice.is_none_or(|(best, _)| best != *over)),
            perhaps: perhaps.filter(|_| choice.is_none()),
            nearest: nearest.filter(|_| choice.is_none()),
            choice,
        }
    }
}

/// Runs, and by what they are judged.
struct Judge<'a> {
    runs: &'a Runs<'a>,
    criteria: &'a Criteria,
    time: Quantity,
}

impl Judge<'_> {
    /// The change of what a lever is to bring down, and that of the bound, if there is one.
    fn changes(&self, lever: usize, aim: Aim) -> Option<(Change, Option<Change>)> {
        let beside = self.runs.beside(self.time);
        let time = self.runs.change_beside(lever, self.time, beside).map(|change| {
            let inverse = self.time == Quantity::Metric && self.criteria.more_is_better;
            if inverse { change.inverted() } else { change }
        });
        let memory = self.runs.change_beside(lever, Quantity::Mean, self.small(Quantity::Mean));
        match aim {
            Aim::Memory => Some((memory?, time)),
            Aim::Time { bounded } => {
                let spared = if self.time == Quantity::Cpu { 1.0 } else { self.runs.spared(lever) };
                Some((time?.times(spared), memory.filter(|_| bounded)))
            }
        }
    }

    /// What is added to a mean of memory before it is judged, bytes.
    fn small(&self, mean: Quantity) -> f64 {
        (self.criteria.small - self.runs.median(None, mean).unwrap_or(0.0)).max(0.0)
    }

    fn standing(&self, lever: usize, aim: Aim) -> Standing {
        let given_up = self.runs.out.get(lever) == Some(&true);
        if given_up || self.runs.levers[lever].is_empty() || !self.can_bring(lever, aim) {
            return Standing::Out;
        }
        // What was not seen in any run yet may be in the next.
        let Some((fall, bound)) = self.changes(lever, aim) else {
            let seen = self.runs.base.len().min(self.runs.levers[lever].len()) >= LEAST;
            return if seen { Standing::Out } else { Standing::Open };
        };
        let (enough, limit) = (1.0 - self.criteria.worth, 1.0 + self.criteria.slower);
        if fall.runs < LEAST || bound.is_some_and(|bound| bound.runs < LEAST) {
            let [fall_is_time, bound_is_time] = [aim != Aim::Memory, aim == Aim::Memory];
            let passed =
                bound.is_some_and(|bound| self.is_gross(lever, bound, limit, bound_is_time));
            let out = passed || self.is_gross(lever, fall, 1.0, fall_is_time);
            return if out { Standing::Out } else { Standing::Open };
        }
        // That it is kept is believed as that it is passed: at 90 %.
        let kept = |bound: Change| bound.ratio.ln() + DOUBT * bound.error <= limit.ln();
        let passed = |bound: Change| {
            let sure = bound.runs >= SURE || bound.ratio > limit * (1.0 + NARROW);
            let told = aim != Aim::Memory || (sure && self.is_told_of_time(bound.runs));
            bound.low > limit && (told || self.is_gross(lever, bound, limit, true))
        };
        let elsewhere = self.falls_elsewhere(lever, aim, fall);
        if fall.low > enough || bound.is_some_and(passed) || elsewhere {
            Standing::Out
        } else if fall.high < enough
            && bound.is_none_or(kept)
            && self.is_told_of_fall(lever, aim, fall)
        {
            Standing::Shown(aim)
        } else {
            Standing::Open
        }
    }

    /// Whether a fall of mean memory is also one of the whole run's, by half of what is worth it: of several peaks that
    /// are nearly as high, one lever may make another the highest, and the mean begin elsewhere.
    fn falls_as_a_whole(&self, lever: usize, aim: Aim) -> bool {
        let small = self.small(Quantity::Whole);
        let whole = || self.runs.change_beside(lever, Quantity::Whole, small);
        aim != Aim::Memory
            || whole().is_none_or(|whole| whole.ratio < 1.0 - self.criteria.worth / 2.0)
    }

    /// Whether what falls by that much does not do so in the whole run.
    fn falls_elsewhere(&self, lever: usize, aim: Aim, fall: Change) -> bool {
        fall.high < 1.0 - self.criteria.worth && !self.falls_as_a_whole(lever, aim)
    }

    /// Whether few runs show that a lever is far beyond `limit` in a quantity: of time that others made longer for it,
    /// or of memory that differs between runs of the same, they do not.
    fn is_gross(&self, lever: usize, change: Change, limit: f64, is_time: bool) -> bool {
        let shares = [self.runs.base, &self.runs.levers[lever]].map(|arm| 1.0 / arm.len() as f64);
        let waits = if is_time { self.runs.waiting(None) } else { 0.0 };
        if waits > BUSY && change.runs == 1 && change.ratio < HOPELESS {
            return false;
        }
        let error = change.error.max(waits * DISTURBED * shares.iter().sum::<f64>().sqrt());
        let gross = if is_time { GROSS.time } else { GROSS.memory };
        (change.ratio / limit).ln() >= gross.ln() + ERRORS * error
    }

    /// Whether the runs of a lever show that what it brings is its own.
    fn is_told_of_fall(&self, lever: usize, aim: Aim, fall: Change) -> bool {
        let rise = fall.inverted();
        let gross = || self.is_gross(lever, rise, 1.0 / (1.0 - self.criteria.worth), true);
        let enough = fall.runs >= LEAST && (self.is_told(aim, fall.runs) || gross());
        enough && self.can_bring(lever, aim) && self.lies_lower(lever, aim)
    }

    /// Whether so many runs can show that a lever is worth it.
    fn is_told(&self, aim: Aim, runs: usize) -> bool {
        runs >= SURE || self.noise(aim) <= QUIET
    }

    /// Whether a lever may bring of memory what is worth it.
    fn can_bring(&self, lever: usize, aim: Aim) -> bool {
        let most = self.runs.most.get(lever);
        aim != Aim::Memory || most.is_none_or(|most| *most >= self.criteria.worth)
    }

    /// Whether the order of a lever's runs and those of the base is hardly chance.
    fn lies_lower(&self, lever: usize, aim: Aim) -> bool {
        let (quantity, beside) = self.to_fall(aim);
        let inverse = quantity == Quantity::Metric && self.criteria.more_is_better;
        let sign = if inverse { -1.0 } else { 1.0 };
        let spares = aim != Aim::Memory && quantity != Quantity::Cpu;
        let spared = if spares { self.runs.spared(lever).ln() } else { 0.0 };
        let (noise, chance, least) = match self.runs.paired(lever, quantity, beside) {
            Some((pairs, noise)) => {
                let pairs: Vec<f64> = pairs.iter().map(|pair| sign * pair + spared).collect();
                (noise, chance_of_negative(&pairs), 0.5_f64.powi(pairs.len() as i32))
            }
            None => {
                let logs = |arm: &[Figures], more: f64| -> Vec<f64> {
                    let values = quantity.all_of(arm).into_iter();
                    values.map(|value| sign * value.ln() + more).collect()
                };
                let new = logs(&self.runs.levers[lever], spared);
                let old = logs(self.runs.base, 0.0);
                let least = least_chance_of_lower(new.len(), old.len());
                (self.noise(aim), chance_of_lower(&new, &old), least)
            }
        };
        let tried = self.runs.levers.iter().filter(|runs| !runs.is_empty()).count();
        let most = if noise > LOUD { CHANCE / tried.max(1) as f64 } else { CHANCE.max(least) };
        // The same chance, reckoned in two ways, is the same to some digits.
        chance <= most * (1.0 + 1e-9)
    }

    /// Whether so many runs of a lever tell how its time differs.
    fn is_told_of_time(&self, runs: usize) -> bool {
        runs >= SURE || self.runs.judged_noise().is_some_and(|noise| noise <= QUIET)
    }

    /// Whether the best that is shown for an aim is out of reach of what is open, and what is shown, too, is hardly
    /// better by [`RIVAL`].
    fn leads(&self, aim: Aim, standings: &[Standing]) -> bool {
        let levers = |of: Standing| {
            let of = (0..standings.len()).filter(move |lever| standings[*lever] == of);
            of.filter_map(|lever| Some(self.changes(lever, aim)?.0))
        };
        let shown = || levers(Standing::Shown(aim));
        let Some(best) = shown().min_by(|a, b| a.ratio.total_cmp(&b.ratio)) else { return false };
        let noise = self.noise(aim);
        let is_rival = |fall: Change| {
            let error =
                noise * (FRAC_PI_2 * (1.0 / fall.runs as f64 + 1.0 / best.runs as f64)).sqrt();
            fall != best && fall.ratio * (-DOUBT * error).exp() < best.ratio * (1.0 - RIVAL)
        };
        !levers(Standing::Open).any(|fall| fall.low <= best.ratio - MARGIN)
            && !shown().any(is_rival)
    }

    /// The noise of what is to fall.
    fn noise(&self, aim: Aim) -> f64 {
        let (quantity, beside) = self.to_fall(aim);
        self.runs.noise_beside(quantity, beside).unwrap_or(f64::INFINITY)
    }

    /// What is to fall, and what is added to it before it is judged.
    fn to_fall(&self, aim: Aim) -> (Quantity, f64) {
        match aim {
            Aim::Memory => (Quantity::Mean, self.small(Quantity::Mean)),
            Aim::Time { .. } => (self.time, self.runs.beside(self.time)),
        }
    }

    /// Of the levers that are open for an aim the best, if its fall is worth it in the median and hardly chance.
    fn perhaps(&self, aim: Aim, standings: &[Standing]) -> Option<usize> {
        let fall = |lever: usize| match standings[lever] {
            Standing::Open => Some((lever, self.changes(lever, aim)?.0)),
            Standing::Out | Standing::Shown(_) => None,
        };
        let told =
            |fall: &Change| fall.runs >= LEAST && fall.ratio.ln() + PLAUSIBLE * fall.error < 0.0;
        let told = (0..standings.len()).filter_map(fall).filter(|(_, fall)| told(fall));
        let worth = told.filter(|(lever, fall)| {
            fall.ratio < 1.0 - self.criteria.worth && self.falls_as_a_whole(*lever, aim)
        });
        worth.min_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio)).map(|(lever, _)| lever)
    }

    /// Whether nothing shows, at 90 %, that a bound is passed.
    fn may_be_kept(&self, bound: Change) -> bool {
        bound.ratio.ln() - DOUBT * bound.error <= (1.0 + self.criteria.slower).ln()
    }

    /// The lever that brings most of what is told apart from none.
    fn nearest(&self, aim: Aim) -> Option<usize> {
        let brings = |lever: usize| {
            let (fall, bound) = self.changes(lever, aim)?;
            let told = self.is_told_of_fall(lever, aim, fall);
            let falls = told && fall.ratio < 1.0 - NOTABLE && fall.high < 1.0;
            let passes = bound.is_none_or(|bound| self.may_be_kept(bound));
            (falls && passes && self.falls_as_a_whole(lever, aim)).then_some((lever, fall.ratio))
        };
        let all = (0..self.runs.levers.len()).filter_map(brings);
        all.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(lever, _)| lever)
    }

    /// Whether another lever looks as good as one that passes its bound, and shows nothing of passing it: then nobody
    /// need pay for that.
    fn is_had_within(&self, over: usize, aim: Aim) -> bool {
        let Some((most, _)) = self.changes(over, aim) else { return false };
        (0..self.runs.levers.len()).filter(|lever| *lever != over).any(|lever| {
            self.runs.out.get(lever) != Some(&true)
                && self.changes(lever, aim).is_some_and(|(fall, bound)| {
                    fall.ratio <= most.ratio + TIE
                        && bound.is_none_or(|bound| self.may_be_kept(bound))
                })
        })
    }

    /// The lever that is best for an aim and worth it: of those `within` the bound, or of those that pass it.
    fn choice(&self, aim: Aim, within: bool) -> Option<usize> {
        let worth_it = |lever: &usize| {
            let (fall, bound) = self.changes(*lever, aim)?;
            let falls = fall.ratio < 1.0 - self.criteria.worth && fall.high < 1.0;
            let given_up = self.runs.out.get(*lever) == Some(&true);
            // One that is not chosen may be told of, with its runs.
            let tried = !within || (self.is_told_of_fall(*lever, aim, fall) && !given_up);
            let kept = bound.is_none_or(|bound| self.may_be_kept(bound));
            let falls = falls && self.falls_as_a_whole(*lever, aim);
            (tried && falls && kept == within).then_some((*lever, fall.ratio))
        };
        let good: Vec<(usize, f64)> =
            (0..self.runs.levers.len()).filter_map(|lever| worth_it(&lever)).collect();
        let best = good.iter().map(|(_, ratio)| *ratio).fold(f64::INFINITY, f64::min);
        good.iter().find(|(_, ratio)| *ratio <= best + TIE).map(|(lever, _)| *lever)
    }
}

#[cfg(test)]
mod tests;
