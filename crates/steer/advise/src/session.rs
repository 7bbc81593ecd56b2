//! A session: the command is looked at, levers are tried round by round, within a time, until the rule says stop.

mod closing;
mod notes;
mod time;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pagemill_analysis::statistics::Random;
use pagemill_control::run_memory::Memory;
use pagemill_kernel::process::signal::Signals;
use pagemill_kernel::{Linux, process::orphans};
use pagemill_launch::exit::Interrupted;
use pagemill_model::Pid;
use regex::bytes::Regex;

pub use time::USUAL_FOR_A_SERVER;
use time::{FOREVER, GRACE};

use crate::accept::{accept, failure};
use crate::arm::{Arm, State, given_up, memory_bounds, of_levers};
use crate::count::Count;
use crate::crowd::{Crowd, CrowdMoment};
use crate::free_memory::FreeMemory;
use crate::lever::{Lever, Start, Target};
use crate::levers::{REGISTRY, check};
use crate::observation::{Cold, MUCH, RunObservation};
use crate::pace::{Candidate, Pace, Rest};
use crate::rule::{Criteria, Figures, Goal, Judgement, LEAST, Quantity, Runs, Standing};
use crate::server::Load;
use crate::stall::{IDLE, Waits};
use crate::trial::{Ending, Run, RunOptions, TrialSetup};
use crate::warm::Warmth;

/// A command that is shorter than this is run several times for one run, until they take as long.
const SHORT: Duration = Duration::from_millis(50);
const BATCH: Duration = Duration::from_millis(100);
/// Commands in a batch, at most.
const MANY: usize = 100;
/// Rounds, at most.
const MOST: usize = 40;
/// Levers of a round that are many.
const MANY_LEVERS: usize = 4;
/// The longest first run, where no time is given.
const LONGEST: Duration = Duration::from_secs(600);
/// Memory that is less is judged in shares of so many bytes.
pub(crate) const SMALL: f64 = 16.0 * 1024.0 * 1024.0;

/// Why a lever was not tried where others were named.
pub(crate) const NOT_ASKED: &str = "it was not asked for";

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is wanted.
    pub goal: Goal,
    /// A gain that is worth a lever, as a share.
    pub worth: f64,
    /// How much slower is no slower, as a share.
    pub slower: f64,
    /// Time for it all.
    pub within: Option<Duration>,
    /// Seed of the order of runs.
    pub seed: u64,
    /// What the command prints that counts.
    pub metric: Option<Metric>,
    /// How it is asked, if it is a server.
    pub load: Option<Load>,
    /// Levers by name; none: all.
    pub only: Vec<String>,
    /// Every lever that can be tried is.
    pub all: bool,
    /// So many runs of each lever, however clear the answer is.
    pub rounds: Option<usize>,
}

/// A number that the command prints.
#[derive(Clone, Debug)]
pub struct Metric {
    /// What it stands in.
    pub pattern: Regex,
    /// Whether more is better.
    pub more_is_better: bool,
}

/// How far a session is.
#[derive(Clone, Copy, Debug)]
pub struct SessionProgress<'a> {
    /// Runs so far.
    pub runs: usize,
    /// What runs now.
    pub now: &'a str,
    /// For how long.
    pub so_far: Duration,
    /// How long that is expected to take; none before anything has run.
    pub expected: Option<Duration>,
    /// What it seems to wait for, told once.
    pub waits: Option<Waits>,
    /// Levers in play.
    pub levers: usize,
    /// What the runs will take that it takes as a rule; none if they were made and the answer is not clear yet.
    pub rest: Option<Duration>,
    /// For how long runs will still be begun, by what is known now, if there is a bound.
    pub left: Option<Duration>,
}

impl SessionProgress<'_> {
    /// When the run has gone on for so long.
    fn at(self, so_far: Duration, waits: Option<Waits>) -> Self {
        let later = |time: Option<Duration>| time.map(|time| time.saturating_sub(so_far));
        Self { so_far, waits, rest: later(self.rest), left: later(self.left), ..self }
    }
}

/// What came of a session.
pub struct Advice {
    /// The command.
    pub words: Vec<OsString>,
    /// What was asked for.
    pub options: Options,
    /// What was seen of it as it is.
    pub seen: RunObservation,
    /// The runs as it is.
    pub base: Vec<Figures>,
    /// All levers, in the order of the registry.
    pub arms: Vec<Arm>,
    /// What the runs say.
    pub judgement: Judgement,
    /// Commands to a run.
    pub batch: usize,
    /// How runs as it is have failed that were repeated.
    pub failed: Vec<String>,
    /// The signal that ended it before its time, if one did.
    pub interrupted: Option<i32>,
    /// What it took.
    pub took: Duration,
    /// The time for it in which all levers could have had as many runs as it takes to choose one.
    pub wanted: Duration,
    /// Runs in all.
    pub runs: usize,
    /// What is to be known beside the figures.
    pub notes: Vec<String>,
}

impl Advice {
    /// What these runs say.
    pub fn of(
        words: Vec<OsString>,
        options: &Options,
        seen: RunObservation,
        base: Vec<Figures>,
        arms: Vec<Arm>,
    ) -> Self {
        let (levers, out, most) = (of_levers(&arms), given_up(&arms), memory_bounds(&arms));
        let runs = Runs { base: &base, levers: &levers, out: &out, most: &most };
        let judgement = runs.judge(&criteria(options));
        Self {
            words,
            options: options.clone(),
            seen,
            base,
            arms,
            judgement,
            batch: 1,
            failed: Vec::new(),
            interrupted: None,
            took: Duration::ZERO,
            wanted: Duration::ZERO,
            runs: 0,
            notes: Vec::new(),
        }
    }

    /// A signal ended it: what is not shown beyond doubt might have looked otherwise in the end, and is not chosen.
    pub(crate) fn interrupt(&mut self, signal: i32) {
        let Judgement { standings, choice, .. } = &mut self.judgement;
        *choice = choice.filter(|(arm, aim)| standings[*arm] == Standing::Shown(*aim));
        self.interrupted = Some(signal);
    }

    /// The runs of the levers, in the order of the registry.
    pub fn levers(&self) -> Vec<Vec<Figures>> {
        of_levers(&self.arms)
    }

    /// Names of the levers that were not tried at all for lack of time, and of those that were not often enough: of
    /// those that may well help, or of the others.
    pub fn untried(&self, promising: bool) -> [Vec<&'static str>; 2] {
        let criteria = self.criteria();
        let (levers, most) = (self.levers(), memory_bounds(&self.arms));
        let runs = Runs { base: &self.base, levers: &levers, most: &most, ..Runs::default() };
        // Who names some wants to know.
        let promises = |number: usize, arm: &Arm| match arm.runs.len() {
            _ if !self.options.only.is_empty() => true,
            0 => arm.estimate.promises(criteria.goal, criteria.worth),
            _ => runs.promise(number, &criteria) < 1.0 - criteria.worth,
        };
        let short = |(number, arm): &(usize, &Arm)| {
            arm.state == State::NoTime && promises(*number, arm) == promising
        };
        let all = self.arms.iter().enumerate().filter(short).map(|(_, arm)| arm);
        let (never, seldom): (Vec<&Arm>, Vec<&Arm>) = all.partition(|arm| arm.runs.is_empty());
        [never, seldom].map(|arms| arms.into_iter().map(|arm| arm.lever.name()).collect())
    }

    /// Whether no lever is known to help, and one may well: some of those were not tried for lack of time, or one looks
    /// worth it and the runs differ too much to tell, or they differ too much for any.
    pub fn undecided(&self) -> bool {
        let open = self.untried(true).iter().any(|names| !names.is_empty())
            || self.judgement.perhaps.is_some();
        let open = open || self.too_noisy().is_some();
        self.judgement.choice.is_none() && (open || self.interrupted.is_some())
    }

    /// The criteria by which it was judged.
    pub fn criteria(&self) -> Criteria {
        criteria(&self.options)
    }
}

fn criteria(options: &Options) -> Criteria {
    Criteria {
        goal: options.goal,
        worth: options.worth,
        slower: options.slower,
        most: options.rounds.unwrap_or(MOST),
        more_is_better: options.metric.as_ref().is_some_and(|metric| metric.more_is_better),
        small: SMALL,
    }
}

/// Finds out which lever helps the command whose file is `path`.
///
/// # Errors
/// The command cannot be started or fails as it is, or a file of the kernel cannot be read.
pub fn advise(
    linux: &Linux,
    words: &[OsString],
    path: &Path,
    options: &Options,
    signals: &Signals,
    progress: &mut dyn FnMut(SessionProgress<'_>),
) -> Result<Advice> {
    orphans::adopt()?;
    let target = Target::of(linux, words, path)?;
    let metric = options.metric.as_ref().map(|metric| &metric.pattern);
    let stage = TrialSetup { target: &target, signals, metric, load: options.load.as_ref() };
    let begun = Instant::now();
    let session = Session::begin(stage, options, begun, progress).and_then(Session::rounds);
    if session.as_ref().map_or(true, |session| session.interrupted.is_some()) {
        orphans::end(linux, &[])?;
    }
    let session = session?;
    let (wanted, notes) = (session.wanted(), session.notes());
    let Session { seen, base, arms, batch, failed, count, interrupted, .. } = session;
    let advice = Advice::of(words.to_vec(), options, seen, base, arms);
    let mut advice = Advice { wanted, notes, batch, failed, runs: count, ..advice };
    if let Some(signal) = interrupted {
        advice.interrupt(signal);
    }
    Ok(Advice { took: begun.elapsed(), ..advice })
}

/// A session on its way.
struct Session<'a> {
    stage: TrialSetup<'a>,
    options: &'a Options,
    progress: &'a mut dyn FnMut(SessionProgress<'_>),
    begun: Instant,
    /// What the shortest run of the command as it is took, seconds.
    shortest: f64,
    /// The longest that a run may take.
    limit: Duration,
    batch: usize,
    pace: Pace,
    seen: RunObservation,
    warmth: Option<Warmth>,
    free: Option<FreeMemory>,
    base: Vec<Figures>,
    digests: BTreeSet<u64>,
    /// Which round it is, from 1.
    round: usize,
    /// How runs as it is failed.
    failed: Vec<String>,
    arms: Vec<Arm>,
    /// What others have of the CPUs while runs are on.
    crowd: Crowd,
    count: usize,
    random: Random,
    /// The signal that ended it.
    interrupted: Option<i32>,
}

impl<'a> Session<'a> {
    /// Looks at the command as it is, and chooses the levers.
    fn begin(
        stage: TrialSetup<'a>,
        options: &'a Options,
        begun: Instant,
        progress: &'a mut dyn FnMut(SessionProgress<'_>),
    ) -> Result<Self> {
        let limit = options.within.unwrap_or(LONGEST);
        let first = SessionProgress {
            runs: 0,
            now: "as it is",
            so_far: Duration::ZERO,
            expected: options.load.as_ref().map(Load::longest),
            waits: None,
            levers: 0,
            rest: None,
            left: longest(options),
        };
        progress(first);
        let began = Instant::now();
        let mut beat = |waits| progress(first.at(began.elapsed(), waits));
        // Who says how long it may take knows that it may rest.
        let rest = options.within.map_or(IDLE, |_| Duration::MAX);
        let (mut crowd, before) = (Crowd::default(), CrowdMoment::now(&stage.target.linux));
        let run =
            stage.run(&Start::default(), RunOptions { limit, rest, marks: true }, &mut beat)?;
        let run = run.with_context(|| format!("cannot execute {}", stage.target.path.display()))?;
        accept(&run, &stage, limit)?;
        crowd.until_now(&stage.target.linux, before.as_ref());
        let wall = Duration::from_secs_f64(run.figures.wall.unwrap_or(0.0));
        let batch = match wall < SHORT && options.load.is_none() {
            true => (BATCH.as_secs_f64() / wall.as_secs_f64().max(1e-4)).ceil() as usize,
            false => 1,
        };
        let batch = batch.min(MANY);
        let each = began.elapsed().as_secs_f64() * batch as f64;
        let seen = seen(&run, stage.target);
        let linux = &stage.target.linux;
        let free = FreeMemory::of(linux);
        let limit_of_group =
            linux.memory_cgroup(Pid::own()).ok().and_then(|group| group.least_limit());
        let warmth = Warmth::of(linux, free.as_ref(), seen.peak.bytes, limit_of_group);
        let arms = arms(stage.target, &seen, options)?;
        Ok(Self {
            shortest: each,
            // A lever that makes it take so much longer helps nobody.
            limit: (wall * 5 + Duration::from_secs(10)).min(limit),
            batch,
            pace: Pace::new(each),
            seen,
            warmth,
            free,
            base: Vec::new(),
            digests: BTreeSet::from([run.digest]),
            round: 0,
            failed: Vec::new(),
            arms,
            crowd,
            count: 1,
            random: Random::new(options.seed),
            stage,
            options,
            progress,
            begun,
            interrupted: None,
        })
    }

    /// Rounds until the rule says stop, or time is over, or somebody does.
    fn rounds(mut self) -> Result<Self> {
        let settled = match self.until_settled() {
            Ok(settled) => settled,
            Err(error) => match error.downcast_ref() {
                Some(Interrupted(signal)) => {
                    self.interrupted = Some(*signal);
                    false
                }
                None => return Err(error),
            },
        };
        for arm in self.arms.iter_mut().filter(|arm| arm.waits()) {
            arm.state = match arm.runs.len() {
                LEAST.. => State::Tried,
                1.. if settled => State::Out,
                _ => State::NoTime,
            };
        }
        Ok(self)
    }

    /// Rounds until the rule says stop; whether it did before time was over.
    fn until_settled(&mut self) -> Result<bool> {
        let mut settled = false;
        while let Some(mut order) = self.next(settled) {
            self.round += 1;
            // The base is the arm beyond the last.
            order.push(self.arms.len());
            self.random.shuffle(&mut order);
            // What one run of a lever tells depends on how much two of the base differ; and all of many are compared
            // with the base, whose bad luck would be the luck of each.
            if self.options.rounds.is_none() && (self.base.is_empty() || order.len() > MANY_LEVERS)
            {
                // Whoever ends it early is to have what levers are compared with.
                let first = self.base.is_empty();
                let at = if first { 0 } else { self.random.index(order.len() + 1) };
                order.insert(at, self.arms.len());
            }
            self.pace.sort(&self.rest(), &mut order, self.arms.len());
            let before = self.count;
            for arm in order {
                match self.arms.get(arm).map(|arm| arm.took) {
                    // What another lever showed in this round may have told that it is of no use.
                    Some(took) if self.arms[arm].plays() && self.fits(Some(arm), took) => {
                        self.try_lever(arm)?
                    }
                    None if self.fits(None, self.pace.base) => self.as_it_is()?,
                    _ => {}
                }
            }
            if self.count == before {
                break;
            }
            self.compare_output();
            if self.options.rounds.is_some() {
                continue;
            }
            let judgement = self.judged();
            for (arm, standing) in self.arms.iter_mut().zip(&judgement.standings) {
                if arm.waits() && !arm.runs.is_empty() && *standing == Standing::Out {
                    arm.state = State::Out;
                }
            }
            settled = judgement.stop && self.base.len() >= LEAST;
            if settled && judgement.choice.is_none() {
                self.learn_noise()?;
            }
            if !settled && self.is_closing() {
                break;
            }
        }
        if !settled {
            self.tell_of_best()?;
        }
        Ok(settled)
    }

    /// What the runs so far say.
    fn judged(&self) -> Judgement {
        let arms = &self.arms;
        let (levers, out, most) = (of_levers(arms), given_up(arms), memory_bounds(arms));
        let runs = Runs { base: &self.base, levers: &levers, out: &out, most: &most };
        runs.judge(&criteria(self.options))
    }

    /// Runs as it is until it is known how much these differ, where nothing is chosen and they do.
    fn learn_noise(&mut self) -> Result<()> {
        let criteria = criteria(self.options);
        let unknown = |session: &Self| {
            let levers = of_levers(&session.arms);
            let runs = Runs { base: &session.base, levers: &levers, ..Runs::default() };
            runs.may_be_loud(&criteria) && session.fits(None, session.pace.base)
        };
        while unknown(self) {
            self.round += 1;
            self.as_it_is()?;
        }
        Ok(())
    }

    /// Time for it all.
    fn time(&self) -> Duration {
        // A command of more threads than CPUs waits for its own.
        let waits = Runs { base: &self.base, ..Runs::default() }.waiting(None);
        time(self.options, self.shortest, waits.min(self.crowd.share()))
    }

    /// Time that is left, seconds.
    fn left(&self) -> f64 {
        self.time().saturating_sub(self.begun.elapsed()).as_secs_f64()
    }

    /// What is left of the time, and for whom first.
    fn rest(&self) -> Rest {
        let bare = self.options.within.is_none() && self.options.rounds.is_none();
        let grace = if bare { self.time().as_secs_f64() * GRACE } else { 0.0 };
        let leader = self.leader().filter(|_| self.options.rounds.is_none());
        let leader = leader.map(|(leader, promise)| {
            let arm = &self.arms[leader];
            (leader, Candidate { runs: arm.runs.len(), promise, took: arm.took })
        });
        Rest { left: self.left(), grace, base: self.base.len(), leader }
    }

    /// Whether another run fits of a lever, or of the command as it is, whose last one took so long.
    fn fits(&self, lever: Option<usize>, last: Option<f64>) -> bool {
        self.pace.fits(&self.rest(), lever, last)
    }

    /// The lever in play whose runs so far look best, if they look worth it, and how good.
    fn leader(&self) -> Option<(usize, f64)> {
        let criteria = criteria(self.options);
        let levers = of_levers(&self.arms);
        let runs = Runs { base: &self.base, levers: &levers, ..Runs::default() };
        let known =
            (0..self.arms.len()).filter(|arm| self.arms[*arm].plays() && !levers[*arm].is_empty());
        let promises = known.map(|arm| (arm, runs.promise(arm, &criteria)));
        let worth = promises.filter(|(_, promise)| *promise < 1.0 - criteria.worth);
        worth.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// What the runs take that those arms lack which it is asked of, and the command as it is beside them, seconds.
    fn lacking(&self, asked: impl Fn(&Arm) -> bool) -> f64 {
        let wanted = self.options.rounds.unwrap_or(self.pace.enough);
        let lacks =
            |runs: usize, took| wanted.saturating_sub(runs) as f64 * self.pace.next_run(took);
        let arms = self.arms.iter().filter(|arm| asked(arm));
        let levers: f64 = arms.map(|arm| lacks(arm.runs.len(), arm.took)).sum();
        levers + lacks(self.base.len(), self.pace.base)
    }

    /// The time in which all levers that may help could have had as many runs as it takes, rounded up.
    fn wanted(&self) -> Duration {
        const STEP: f64 = 10.0;
        let lacking = self.lacking(|arm| arm.state == State::NoTime);
        // Runs differ; and where there are few, more are needed.
        let all = self.begun.elapsed().as_secs_f64() + lacking * 1.25;
        Duration::from_secs_f64((all / STEP).ceil() * STEP)
    }

    /// The arms of the next round; none if there is to be no more.
    fn next(&mut self, settled: bool) -> Option<Vec<usize>> {
        if !self.base.is_empty() {
            let levers = of_levers(&self.arms);
            let runs = Runs { base: &self.base, levers: &levers, ..Runs::default() };
            self.pace.enough = runs.enough(&criteria(self.options));
        }
        let left = self.pace.for_leader(&self.rest());
        play(&mut self.arms, &self.base, &self.pace, left, self.options, settled)
    }

    /// A run, or a batch of them, and what it took, seconds.
    fn run(&mut self, name: &str, start: &Start, last: Option<f64>) -> Result<(Run, f64)> {
        let levers = self.arms.iter().filter(|arm| arm.plays()).count();
        let left = self.left();
        let rest = self.lacking(Arm::plays).min(left);
        let rest = (rest > 0.0).then(|| Duration::from_secs_f64(rest));
        let left = (self.time() < FOREVER).then(|| Duration::from_secs_f64(left));
        let expected = Some(Duration::from_secs_f64(self.pace.next_run(last)));
        let (runs, so_far) = (self.count, Duration::ZERO);
        let told =
            SessionProgress { runs, now: name, so_far, expected, waits: None, levers, rest, left };
        (self.progress)(told);
        self.count += 1;
        let begun = Instant::now();
        let mut beat = |waits| (self.progress)(told.at(begun.elapsed(), waits));
        let mut runs = Vec::new();
        if let Some(warmth) = self.warmth {
            warmth.bring_about()?;
        }
        let before = CrowdMoment::now(&self.stage.target.linux);
        for _ in 0..self.batch {
            let manner = RunOptions { limit: self.limit, rest: Duration::MAX, marks: false };
            let run = self.stage.run(start, manner, &mut beat)?;
            let run = run.with_context(|| format!("{name}: cannot be started"))?;
            let ended = failure(&run).is_some();
            runs.push(run);
            if ended {
                break;
            }
        }
        self.crowd.until_now(&self.stage.target.linux, before.as_ref());
        let took = begun.elapsed().as_secs_f64();
        self.pace.took(took);
        Ok((merged(runs), took))
    }

    /// A run as it is.
    fn as_it_is(&mut self) -> Result<()> {
        let (run, took) = loop {
            let (run, took) = self.run("as it is", &Start::default(), self.pace.base)?;
            let Some(how) = failure(&run) else { break (run, took) };
            self.failed.push(how);
            let count = self.failed.len();
            ensure!(
                count < 3,
                "the command differs between runs: it worked at first, and {count} of {} runs as it is ended with {} \
                 (what it needs must be there each time; sh -c 'PREPARE; CMD' brings it about)",
                self.base.len() + 1 + count,
                self.failed[count - 1]
            );
        };
        self.pace.base = Some(took);
        self.shortest = self.shortest.min(took);
        self.digests.insert(run.digest);
        self.base.push(Figures { round: self.round, ..run.figures });
        Ok(())
    }

    /// A run under a lever. One that fails twice breaks the command.
    fn try_lever(&mut self, arm: usize) -> Result<()> {
        let Some(start) = self.arms[arm].start.clone() else { return Ok(()) };
        let name = self.arms[arm].lever.name();
        let last = self.arms[arm].took;
        let (mut run, mut took) = self.run(name, &start, last)?;
        let mut failed = failure(&run);
        if let Some(how) = failed {
            self.arms[arm].failed.push(how);
            if !self.fits(Some(arm), Some(took)) {
                return Ok(());
            }
            (run, took) = self.run(name, &start, last)?;
            failed = failure(&run);
        }
        let arm = &mut self.arms[arm];
        arm.took = Some(took);
        if let Some(how) = failed {
            let said = if run.complaint.is_empty() {
                String::new()
            } else {
                format!(": {}", run.complaint)
            };
            let twice = format!("{how}, twice{said}");
            arm.failed.push(how);
            arm.state = match run.ending {
                Ending::Starved { .. } => State::Starves(twice),
                _ => State::Breaks(twice),
            };
            return Ok(());
        }
        arm.runs.push(Figures { round: self.round, ..run.figures });
        arm.digests.insert(run.digest);
        arm.live = arm.live.max(run.live);
        if let Some(live) = run.live_mean {
            let bare = self.options.only.is_empty() && !self.options.all;
            let worth = bare.then_some((self.options.goal, self.options.worth));
            let not_live = 1.0 - live / self.seen.mean.max(1.0);
            self.arms.iter_mut().for_each(|arm| arm.bound(not_live, worth));
        }
        Ok(())
    }

    /// A command that prints the same each time is to print it under a lever, too.
    fn compare_output(&mut self) {
        if self.digests.len() != 1 || self.base.len() < LEAST {
            return;
        }
        // One that will run again is heard first.
        let heard = |arm: &&mut Arm| match arm.waits() {
            true => arm.runs.len() >= LEAST,
            false => !arm.runs.is_empty(),
        };
        for arm in self.arms.iter_mut().filter(heard) {
            if arm.digests.is_disjoint(&self.digests) {
                arm.state = State::Breaks("it prints something else, each time".into());
            }
        }
    }
}

/// Time for it all, for a command whose shortest run took so long, and that waited for CPUs that others had.
fn time(options: &Options, shortest: f64, waits: f64) -> Duration {
    let asked = [options.rounds.is_some(), options.load.is_some()];
    time::time(options.within, asked, shortest, waits)
}

/// The time after which no run is begun, by what is known before the first; none if that is not known.
pub fn longest(options: &Options) -> Option<Duration> {
    let asks = options.load.as_ref().map(|load| load.longest().as_secs_f64());
    let known = options.within.is_some() || asks.is_some();
    let longest = time(options, asks.unwrap_or(0.0), 0.0);
    (known && longest < FOREVER).then_some(longest)
}

/// Brings the arms of the next round into play, those that were put off included if there is time for them now, and
/// puts the others off; none if time is over, or if nobody needs a round. `left` is the time that is left, seconds.
/// Once all is `settled`, a round is for those that have never run.
fn play(
    arms: &mut [Arm],
    base: &[Figures],
    pace: &Pace,
    left: f64,
    options: &Options,
    settled: bool,
) -> Option<Vec<usize>> {
    let criteria = criteria(options);
    let needs = |arm: &Arm| match (options.rounds.is_some(), settled) {
        (true, _) => arm.runs.len() < criteria.most,
        (false, true) => arm.runs.is_empty(),
        (false, false) => true,
    };
    let levers = of_levers(arms);
    let runs = Runs { base, levers: &levers, ..Runs::default() };
    let waiting: Vec<usize> =
        (0..arms.len()).filter(|arm| arms[*arm].waits() && needs(&arms[*arm])).collect();
    let candidate = |arm: &usize| Candidate {
        runs: levers[*arm].len(),
        took: arms[*arm].took,
        promise: match levers[*arm].len() {
            0 => arms[*arm].expected_ratio(options.goal),
            _ => runs.promise(*arm, &criteria),
        },
    };
    let candidates: Vec<Candidate> = waiting.iter().map(candidate).collect();
    let next = pace.next(left, base.len(), &candidates)?;
    let next: Vec<usize> = next.into_iter().map(|candidate| waiting[candidate]).collect();
    for arm in waiting {
        arms[arm].state = if next.contains(&arm) { State::Tried } else { State::NoTime };
    }
    Some(next)
}

/// Several runs as one: means of figures, the highest of peaks; the first failure.
fn merged(mut runs: Vec<Run>) -> Run {
    let Some(mut all) = runs.pop() else { unreachable!("a batch has at least one run") };
    let count = (runs.len() + 1) as f64;
    let sum = |quantity: Quantity, last: Option<f64>| {
        let others: Option<f64> = runs.iter().map(|run| quantity.of(&run.figures)).sum();
        Some((others? + last?) / count)
    };
    let most = |quantity: Quantity, last: Option<f64>| {
        runs.iter().filter_map(|run| quantity.of(&run.figures)).chain(last).reduce(f64::max)
    };
    // Of a command that ends at once not each run is seen.
    let seen: Vec<f64> =
        runs.iter().filter_map(|run| run.figures.mean).chain(all.figures.mean).collect();
    let last = all.figures;
    all.figures = Figures {
        mean: pagemill_analysis::statistics::mean(&seen),
        whole: sum(Quantity::Whole, last.whole),
        peak: most(Quantity::Peak, last.peak),
        charge: most(Quantity::Charge, last.charge),
        cpu: sum(Quantity::Cpu, last.cpu),
        wall: sum(Quantity::Wall, last.wall),
        metric: sum(Quantity::Metric, last.metric),
        waited: sum(Quantity::Waited, last.waited),
        counted: Count::ALL.map(|what| sum(Quantity::Counted(what), last.counted[what as usize])),
        round: last.round,
    };
    all
}

fn seen(run: &Run, target: &Target) -> RunObservation {
    let mut seen = RunObservation::of(run.looks.clone());
    seen.seconds = run.figures.wall.unwrap_or(0.0);
    (seen.user, seen.system) = (run.used.user.as_secs_f64(), run.used.system.as_secs_f64());
    seen.faults = run.used.faults;
    (seen.allocator, seen.readings) = (run.allocator.or(target.allocator), run.readings);
    seen.malloc = seen.readings.free(seen.rested() >= seen.seconds / 2.0);
    seen.pymalloc = run.pymalloc;
    seen.not_asked.clone_from(&run.not_asked);
    seen.charge = run.figures.charge.map(|bytes| bytes as u64);
    seen.cold = cold(run, seen.peak.bytes);
    seen.bloat = run.zeros.map(|zeros| zeros.bloat(seen.most_huge()));
    seen
}

/// What was not accessed from one mark to the next, or to the end: the last time that was a tenth of the run at least,
/// for little is accessed in a moment. The look at which pages are marked tells what was not accessed before. How a
/// command ends, which may touch and free all that it has, does not count, nor how a server rests when nobody asks.
fn cold(run: &Run, peak: u64) -> Option<Cold> {
    /// Part of a command's time that is its end.
    const END: f64 = 1.0 / 8.0;
    let last = run.looks.last()?.seconds;
    let until = run.asked_until.unwrap_or(last * (1.0 - END));
    let full =
        |look: &&Memory| look.seconds <= until && look.bytes >= peak / 2 && look.anonymous >= MUCH;
    let shortest = last / 10.0;
    let ends = run.marks.iter().skip(1).copied().chain([f64::INFINITY]);
    let window = |(mark, end): (&f64, f64)| {
        let last = run.looks.iter().rev().filter(|look| look.seconds <= end).find(full)?;
        let seconds = last.seconds - mark;
        let bytes = last.untouched.min(last.anonymous);
        (seconds >= shortest).then_some(Cold { bytes, seconds, ..Cold::default() })
    };
    run.marks.iter().zip(ends).filter_map(window).last()
}

/// All levers: those that are to be tried, and why not the others.
fn arms(target: &Target, seen: &RunObservation, options: &Options) -> Result<Vec<Arm>> {
    check(&options.only)?;
    let arm = |lever: &&'static dyn Lever| {
        let estimate = lever.estimate(seen);
        let start = lever.start(target);
        let bare = options.only.is_empty();
        let asked = bare || options.only.iter().any(|name| name == lever.name());
        let matters = options.all || !bare || estimate.matters(options.goal, options.worth);
        let state = match &start {
            _ if !asked => State::NotTried(NOT_ASKED.into()),
            Err(why) => State::NotTried(why.clone()),
            Ok(_) if !matters => State::NotTried(estimate.too_little()),
            Ok(_) => State::Tried,
        };
        Arm::new(*lever, estimate, start.ok(), state)
    };
    Ok(REGISTRY.iter().map(arm).collect())
}

/// What is asked for where no flag is given.
#[cfg(test)]
pub(crate) fn options() -> Options {
    Options {
        goal: Goal::Both,
        worth: 0.05,
        slower: 0.02,
        within: None,
        seed: 1,
        metric: None,
        load: None,
        only: Vec::new(),
        all: false,
        rounds: None,
    }
}

#[cfg(test)]
mod tests {
    use super::time::TIME;
    use super::*;
    use crate::lever::Estimate;
    use pagemill_launch::allocator::Allocator;
    use pagemill_record::malloc_free::MallocFree;

    fn run(wall: f64, peak: f64, mean: Option<f64>) -> Run {
        Run {
            figures: Figures {
                wall: Some(wall),
                cpu: Some(wall),
                peak: Some(peak),
                mean,
                ..Figures::default()
            },
            ending: Ending::Status(std::process::ExitStatus::default()),
            used: pagemill_kernel::process::Resources::default(),
            looks: Vec::new(),
            marks: Vec::new(),
            asked_until: None,
            live: None,
            live_mean: None,
            allocator: None,
            pymalloc: false,
            readings: crate::readings::Readings::default(),
            not_asked: None,
            zeros: None,
            digest: 1,
            complaint: String::new(),
            left: false,
        }
    }

    #[test]
    fn what_was_not_accessed_is_told_by_the_last_time_that_was_long_enough() {
        let look = |seconds: f64, untouched: u64| Memory {
            seconds,
            untouched: untouched * MUCH,
            bytes: 4 * MUCH,
            anonymous: 4 * MUCH,
            ..Memory::default()
        };
        // At the end all is touched.
        let looks = [look(0.1, 0), look(0.2, 1), look(0.4, 2), look(0.41, 4), look(0.6, 0)];
        let told = |marks: &[f64], looks: &[Memory], asked_until| {
            let (marks, looks) = (marks.to_vec(), looks.to_vec());
            let run = Run { marks, looks, asked_until, ..run(0.5, 1.0, None) };
            cold(&run, 4 * MUCH).map(|cold| cold.bytes / MUCH)
        };
        // The last mark came with the last look, or just before it: the time before counts.
        let without = [looks[0], looks[1], looks[2], looks[4]];
        assert_eq!(told(&[0.1, 0.2, 0.4], &without, None), Some(2));
        assert_eq!(told(&[0.1, 0.2, 0.4], &looks, None), Some(2));
        assert_eq!(told(&[0.1], &looks, None), Some(4));
        assert_eq!(told(&[], &looks, None), None);
        // Nobody asked any more from then on.
        assert_eq!(told(&[0.1, 0.2, 0.4], &looks, Some(0.25)), Some(1));
        assert_eq!(
            told(&[0.1, 0.4], &looks, Some(0.15)),
            None,
            "nothing was seen while it was asked"
        );
    }

    /// A purge came first where 716 KiB were free in whole pages, and the compacting heap had no run.
    #[test]
    fn what_gets_at_the_memory_that_was_seen_free_is_tried_first() {
        let free =
            MallocFree { heap: 95 << 20, free: 85 << 20, returnable: 716 << 10, pieces: 84 << 20 };
        let look = Memory { bytes: 100 << 20, anonymous: 98 << 20, ..Memory::default() };
        for allocator in [Allocator::Glibc, Allocator::Jemalloc] {
            for malloc in [Some(free), None] {
                let allocator = Some(allocator);
                let seen = RunObservation {
                    malloc,
                    allocator,
                    seconds: 2.0,
                    user: 1.9,
                    ..RunObservation::of(vec![look])
                };
                let arm = |lever: &&'static dyn Lever| {
                    Arm::new(*lever, lever.estimate(&seen), Some(Start::default()), State::Tried)
                };
                let mut arms: Vec<Arm> = REGISTRY.iter().map(arm).collect();
                // Time for three runs of one, and of the command.
                let first = play(&mut arms, &[], &Pace::new(2.0), 13.0, &options(), false).unwrap();
                let names: Vec<&str> = first.iter().map(|arm| arms[*arm].lever.name()).collect();
                assert_eq!(names, ["compacting heap"], "{seen:?}");
            }
        }
    }

    /// A program that reads at random in 1 GiB, which it never frees, was tried with five allocators for 81 s, and with
    /// huge pages not at all.
    #[test]
    fn who_frees_nothing_and_walks_pages_is_tried_with_huge_pages_first() {
        let gib = 1_u64 << 30;
        let look =
            Memory { bytes: gib, anonymous: gib, processes: 1, threads: 1, ..Memory::default() };
        let heap = MallocFree { heap: 132 << 10, free: 128 << 10, returnable: 0, pieces: 4096 };
        let mut readings = crate::readings::Readings::default();
        for at in [0.2, 0.8, 2.0] {
            readings.add(&Memory { seconds: at, ..look }, heap, false);
        }
        let seen = RunObservation {
            malloc: readings.free(false),
            readings,
            allocator: Some(Allocator::Glibc),
            seconds: 2.9,
            user: 2.0,
            system: 0.7,
            faults: 262_238,
            ..RunObservation::of(vec![look])
        };
        for goal in [Goal::Both, Goal::Speed] {
            let options = Options { goal, ..options() };
            let arm = |lever: &&'static dyn Lever| {
                let estimate = lever.estimate(&seen);
                assert!(estimate.memory < 0.01, "{}: {estimate:?}", lever.name());
                let matters = estimate.matters(options.goal, options.worth);
                let state = if matters { State::Tried } else { State::NotTried(String::new()) };
                Arm::new(*lever, estimate, Some(Start::default()), state)
            };
            let mut arms: Vec<Arm> = REGISTRY.iter().map(arm).collect();
            let first = play(&mut arms, &[], &Pace::new(2.9), 70.0, &options, false).unwrap();
            let names: Vec<&str> = first.iter().map(|arm| arms[*arm].lever.name()).collect();
            assert_eq!(
                names[..5],
                [
                    "malloc huge",
                    "64 KiB pages",
                    "huge pages always",
                    "pages by trial",
                    "huge pages ahead"
                ]
            );
        }
    }

    #[test]
    fn a_lever_that_was_put_off_plays_when_runs_turn_out_to_be_short() {
        let arm = |memory: f64| {
            let estimate = Estimate::up_to(memory, 0.0, "");
            Arm::new(REGISTRY[0], estimate, Some(Start::default()), State::Tried)
        };
        let mut arms = [0.1, 0.9, 0.5].map(arm);
        let options = options();
        let states = |arms: &[Arm]| arms.iter().map(Arm::plays).collect::<Vec<_>>();
        let mut pace = Pace::new(13.5);
        let first = play(&mut arms, &[], &pace, 60.0, &options, false);
        assert_eq!((first, states(&arms)), (Some(vec![1]), vec![false, true, false]));
        let figures = run(0.5, 5.0, Some(5.0)).figures;
        arms[1].runs.push(figures);
        // Where they stay long, there is no time for any more.
        pace.took(13.5);
        assert_eq!(play(&mut arms.clone(), &[figures], &pace, 33.0, &options, false), None);
        pace.took(0.5);
        pace.took(0.5);
        let mut second = play(&mut arms, &[figures], &pace, 33.0, &options, false).unwrap();
        second.sort_unstable();
        assert_eq!((second, states(&arms)), (vec![0, 1, 2], vec![true; 3]));
        // What is settled is settled, but for who has never run.
        let third = play(&mut arms, &[figures; 3], &pace, 33.0, &options, true).unwrap();
        assert_eq!(third, [2, 0], "the most promising first");
    }

    /// Of a command that had a tenth of a CPU a third of the levers were tried, and nothing was known.
    #[test]
    fn who_waits_for_a_cpu_has_more_time_and_who_names_a_time_has_that() {
        let quiet = time(&options(), 2.0, 0.0);
        assert!(quiet == TIME && quiet < Duration::from_secs(60), "{quiet:?}");
        assert_eq!(time(&options(), 4.0, 0.0), Duration::from_secs(80));
        assert_eq!([2.0, 8.0].map(|run| time(&options(), run, 0.5).as_secs()), [108, 160]);
        assert_eq!([0.9, 1.0].map(|waits| time(&options(), 2.0, waits)), [TIME * 3; 2]);
        let within = Some(Duration::from_secs(5));
        assert_eq!(time(&Options { within, ..options() }, 2.0, 0.9), Duration::from_secs(5));
    }

    /// `--load` with `--for 20s` took 199 s, and nothing was said before.
    #[test]
    fn how_long_a_server_is_tried_is_known_before_it_starts() {
        let asked = |seconds: u64| {
            let load = Load { client: "true".into(), time: Duration::from_secs(seconds) };
            Options { load: Some(load), ..options() }
        };
        assert_eq!(longest(&options()), None, "what a command takes is not known");
        // "No turn is begun after about 1222 s", and nobody waits for that; and by short turns it ended after 75 s of
        // 160, undecided for lack of time.
        let turns = [1, 5, 10, 15];
        assert_eq!(turns.map(|turn| longest(&asked(turn))), [Some(USUAL_FOR_A_SERVER); 4]);
        assert_eq!(
            longest(&asked(60)),
            Some(Duration::from_millis(8 * 61_100)),
            "what one lever takes"
        );
        let client = |turn: f64, waits: f64| time(&asked(60), turn, waits);
        assert_eq!(
            client(12.0, 0.9),
            USUAL_FOR_A_SERVER,
            "its client ended sooner, and others' load is no matter"
        );
        assert_eq!(client(1.0, 0.0), USUAL_FOR_A_SERVER);
        let within = Some(Duration::from_secs(9));
        assert_eq!(longest(&Options { within, ..asked(20) }), within);
        assert_eq!(longest(&Options { rounds: Some(5), ..asked(20) }), None);
    }

    #[test]
    fn a_batch_is_one_run_of_means_and_the_highest_peak() {
        let all =
            merged(vec![run(1.0, 5.0, Some(4.0)), run(3.0, 9.0, None), run(2.0, 1.0, Some(2.0))]);
        assert_eq!((all.figures.wall, all.figures.peak), (Some(2.0), Some(9.0)));
        assert_eq!((all.figures.mean, all.figures.metric), (Some(3.0), None));
    }
}
