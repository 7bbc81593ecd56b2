//! `advise`: which lever helps a program, and by how much.

mod arguments;
#[cfg(target_arch = "x86_64")]
mod measure;
mod places;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
pub use arguments::Arguments;
use arguments::Goal;
use pagemill_advise::counted::{self, Counted};
use pagemill_advise::estimates;
use pagemill_advise::lever::Start;
use pagemill_advise::recording::{RecordingAdvice, Simulator};
use pagemill_advise::rule::Goal as Wanted;
use pagemill_advise::server::Load;
use pagemill_advise::session::{self, Metric, Options, SessionProgress};
use pagemill_advise::slower_memory::Tier;
use pagemill_advise::stall::{IDLE, RESTS, Waits};
use pagemill_experiments::recorded::Program;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{Kind, Linux};
use pagemill_launch::exit::{self, Exit, Interrupted};
use pagemill_launch::files;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_model::recording::{Meta, Redactor};
use pagemill_model::units::counted;
use pagemill_model::{Event, Nanos};
use pagemill_report::draw::with_texts;
use pagemill_sim::sweep::Sweep;
use serde_json::Value;

use crate::answer::{self, Layout};
#[cfg(target_arch = "x86_64")]
use measure::run as measured_places;

fn time(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos.0)
}

/// Between two lines on how far it is, where there is no terminal.
const TOLD: Duration = Duration::from_secs(10);

/// Runs the verb. Who asks for JSON gets it: an error is an answer, too.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let outcome = advised(arguments);
    let Err(error) = &outcome else { return outcome };
    let (exit, says) = match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => {
            let says =
                "interrupted before anything was measured; nothing is left changed".to_owned();
            (interrupted.exit(), says)
        }
        None => match exit::kind(error) {
            Some(Kind::Permission) => (Exit::Permission, format!("{error:#}")),
            _ => (Exit::Failed, format!("{error:#}")),
        },
    };
    notice!("{says}");
    answer::error(exit.status(), Some(&arguments.redaction(&mut Vec::new()).text(says)));
    Ok(exit)
}

/// What `advise` is in JSON.
const ADVISE_LAYOUT: Layout = Layout::new("advise", 1, "levers");
/// What `counters` is in JSON.
const COUNTERS_LAYOUT: Layout = Layout::new("counters", 1, "metrics");
/// What `advise-estimates` is in JSON.
const ADVISE_ESTIMATES_LAYOUT: Layout =
    Layout::new("advise-estimates", 1, "levers,slower_memory.points");

/// The program's registers are named in what does it.
#[cfg(not(target_arch = "x86_64"))]
fn measured_places(_: &Arguments) -> Result<Exit> {
    notice!("advise --places works on x86-64 only");
    Ok(Exit::Unsupported)
}

fn advised(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let nothing =
        arguments.command.is_empty() && arguments.pid.is_none() && arguments.recording.is_none();
    ensure!(!nothing, "name a command (-- CMD), a process (-p PID) or a recording");
    arguments.ensure_meant()?;
    if let Some(path) = &arguments.html {
        files::check(path, arguments.force)?;
    }
    if arguments.command.is_empty() {
        return glance(&linux, arguments);
    }
    if arguments.places.places {
        return measured_places(arguments);
    }
    let options = arguments.options()?;
    let path = match prepare::plain(&arguments.command)? {
        Prepared::Ready(_, path) => path,
        Prepared::Refused(exit) => {
            let name = arguments.command[0].display();
            let says = format!("{name} is not there, or cannot be executed");
            answer::error(exit.status(), Some(&says));
            return Ok(exit);
        }
    };
    pagemill_launch::context::ensure_room()?;
    let mut watched = vec![signal::CHILD];
    watched.extend_from_slice(signal::ENDS);
    let signals = Signals::block(&watched)?;
    let mut line = pagemill_launch::progress::Progress::periodic("advise", TOLD);
    if let Some(lasts) = lasts(&options) {
        line.note(&lasts);
    }
    let mut progress = |progress: SessionProgress<'_>| {
        if let Some(waits) = progress.waits {
            line.note(&rests(waits, arguments));
        }
        line.say(&step(&progress));
    };
    let advice =
        session::advise(&linux, &arguments.command, &path, &options, &signals, &mut progress);
    drop(line);
    let mut advice = advice?;
    let mut told = arguments.redaction(&mut advice.words);
    if arguments.counters {
        return counters(&linux, &advice, arguments.printed.json, &mut told);
    }
    if let Some(path) = &arguments.html {
        write_page(path, told.page(advice.html()), arguments.force)?;
    }
    if arguments.printed.json {
        answer::print(&ADVISE_LAYOUT, told.json(advice.json()))?;
    } else {
        pagemill_launch::stdio::stdout(&told.text(advice.text()));
    }
    Ok(match (advice.interrupted, advice.helps(), advice.undecided()) {
        (Some(signal), ..) => {
            notice!("interrupted; nothing is left changed");
            Interrupted(signal).exit()
        }
        (None, true, _) => Exit::Finding,
        (None, false, true) => {
            // On a terminal it stands just above.
            if arguments.printed.json || pagemill_launch::stdio::terminal().is_none() {
                notice!("{}", advice.conclusion());
            }
            Exit::Failed
        }
        (None, false, false) => Exit::Ok,
    })
}

fn write_page(path: &Path, page: String, force: bool) -> Result<()> {
    files::write(path, page, force)?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// How long a server is asked, and how long it all takes.
fn lasts(options: &Options) -> Option<String> {
    let load = options.load.as_ref()?;
    let seconds = |time: Duration| time.as_secs_f64().ceil();
    let turn =
        format!("a turn of the server takes up to about {} s (--for)", seconds(load.longest()));
    Some(match session::longest(options) {
        Some(all) => {
            let (all, usual) = (seconds(all), seconds(session::USUAL_FOR_A_SERVER));
            let most = match options.within {
                None if all > usual => {
                    format!("{usual} s, or {all} s if the client asks for as long as it may")
                }
                _ => format!("{all} s"),
            };
            format!("{turn}; no turn is begun after about {most} (--within TIME)")
        }
        None => format!("{turn}, and each lever has as many as --runs or --all says"),
    })
}

/// How far it is, and how long it takes yet.
fn step(progress: &SessionProgress<'_>) -> String {
    let whole = |time: Duration| time.as_secs_f64().ceil() as u64;
    let mut run = format!("run {}: {}", progress.runs + 1, progress.now);
    let so_far = progress.so_far.as_secs();
    match progress.expected {
        _ if so_far == 0 => {}
        Some(expected) => {
            run.push_str(&format!(", {so_far} s of about {} s", whole(expected).max(so_far)));
        }
        None => run.push_str(&format!(", {so_far} s so far")),
    }
    let left = progress.left.map(whole);
    // A run that is on goes on, one under a lever may take longer than as it is, and a busy machine gives more time.
    let most = left.map(|left| format!("no run is begun after about {left} s"));
    if progress.runs == 0 {
        return [Some(run), most].into_iter().flatten().collect::<Vec<_>>().join("; ");
    }
    let levers = counted(progress.levers as u64, "lever", "levers");
    let rest = match progress.rest.map(whole) {
        // What is wanted takes all the time that there is.
        Some(rest) if left.is_some_and(|left| rest >= left) => None,
        Some(rest) => Some(format!("about {rest} s to go")),
        None => Some("until the answer is clear".into()),
    };
    let rest = [rest, most].into_iter().flatten().collect::<Vec<_>>().join(", ");
    format!("{run}; {levers} in play, {rest}")
}

/// That a command rests, and what is to be done if that is not what it should do.
fn rests(waits: Waits, arguments: &Arguments) -> String {
    let words = &arguments.command;
    let way = match waits {
        Waits::Clients => format!(
            "it listens: a server is tried under its load: Ctrl-C, then pagemill advise --load 'CLIENT' -- {}",
            Start::default().line(words)
        ),
        Waits::Something => {
            "if it waits for input or a terminal, it has none here: Ctrl-C, then have it run by itself".into()
        }
    };
    let end = match arguments.within {
        Some(_) => String::new(),
        None => format!(
            "; it is ended after {} s of that (--within TIME gives it longer)",
            IDLE.as_secs()
        ),
    };
    format!("the command does nothing for {} s by now; {way}{end}", RESTS.as_secs())
}

/// What was counted with and without huge pages.
fn counters(
    linux: &Linux,
    advice: &session::Advice,
    json: bool,
    told: &mut Redaction,
) -> Result<Exit> {
    let counted = Counted::of(linux, advice)?;
    match json {
        true => answer::print(&COUNTERS_LAYOUT, told.json(counted.json()))?,
        false => pagemill_launch::stdio::stdout(&told.text(counted.text())),
    }
    Ok(match advice.interrupted {
        Some(signal) => Interrupted(signal).exit(),
        None if counted.failed() == 0 => Exit::Ok,
        None => Exit::Finding,
    })
}

/// Estimates, of a process or a recording.
fn glance(linux: &Linux, arguments: &Arguments) -> Result<Exit> {
    let seen = match (&arguments.recording, arguments.pid) {
        (Some(path), _) => return recorded(linux, path, arguments),
        (None, pid) => {
            let signals = Signals::block(signal::ENDS)?;
            estimates::process(
                linux,
                pid.context("there is no process to look at")?,
                arguments.time(),
                &signals,
            )
        }
    };
    let mut seen = seen?;
    let mut told = arguments.redaction(&mut seen.words);
    if arguments.redact.redact {
        seen.whose = arguments.pid.map_or_else(String::new, |pid| format!("process {pid}"));
    }
    if let Some(path) = &arguments.html {
        write_page(path, told.page(seen.html(None)), arguments.force)?;
    }
    if arguments.printed.json {
        answer::print(&ADVISE_ESTIMATES_LAYOUT, told.json(seen.json()))?;
    } else {
        pagemill_launch::stdio::stdout(&told.text(seen.text()));
    }
    Ok(seen.interrupted.map_or(Exit::Ok, |signal| Interrupted(signal).exit()))
}

/// What a recording says.
fn recorded(linux: &Linux, path: &Path, arguments: &Arguments) -> Result<Exit> {
    let simulator = |meta: &Meta| -> Result<Box<dyn Simulator>> {
        Ok(Box::new(Recorded(Program::begin(path, meta)?, path.to_owned())))
    };
    let advice = RecordingAdvice::read(linux, path, arguments.redact.redact, &simulator)?;
    if let Some(to) = &arguments.html {
        write_page(to, advice.html(), arguments.force)?;
    }
    match arguments.printed.json {
        true => answer::print(&ADVISE_ESTIMATES_LAYOUT, advice.json())?,
        false => pagemill_launch::stdio::stdout(&advice.text()),
    }
    Ok(Exit::Ok)
}

/// A program on the simulated machine, whose reads wait for each other or do not.
struct Simulated([Sweep; 2]);

impl Tier for Simulated {
    fn part(&self, fast: f64) -> [f64; 2] {
        self.0.each_ref().map(|sweep| sweep.at(fast).units_per_s / sweep.all())
    }
    fn needs(&self, part: f64) -> [f64; 2] {
        self.0.each_ref().map(|sweep| sweep.needs(part))
    }
}

/// A recorded program, and where its recording is.
struct Recorded(Program, PathBuf);

impl Simulator for Recorded {
    fn event(&mut self, event: &Event) {
        self.0.event(event);
    }

    fn tier(self: Box<Self>) -> Option<Box<dyn Tier>> {
        let Self(program, path) = *self;
        let mut line = pagemill_launch::progress::Progress::new("simulate");
        let tier = pagemill_experiments::recorded::sweeps(program, &path, &mut |at, of| {
            line.say(&format!("memory at {at} of {of} points"));
        });
        drop(line);
        match tier {
            Ok(tier) => Some(Box::new(Simulated(tier))),
            Err(why) => {
                notice!("a slower tier cannot be simulated: {why:#}");
                None
            }
        }
    }
}

/// How an answer is told: as it is, or without what says whose it is.
struct Redaction(Option<Redactor>);

impl Redaction {
    fn text(&mut self, text: String) -> String {
        match &mut self.0 {
            Some(redactor) => redactor.text(&text),
            None => text,
        }
    }

    fn page(&mut self, page: String) -> String {
        match &mut self.0 {
            Some(redactor) => with_texts(&page, &mut |text| redactor.text(text)),
            None => page,
        }
    }

    fn json(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(all) => all.into_iter().map(|one| self.json(one)).collect(),
            Value::Object(all) => all.into_iter().map(|(key, one)| (key, self.json(one))).collect(),
            other => other,
        }
    }
}

impl Arguments {
    /// How the answer on a command of these words is told; redacted, it is another one.
    fn redaction(&self, words: &mut Vec<OsString>) -> Redaction {
        if self.redact.redact {
            *words = vec!["(redacted)".into()];
        }
        Redaction(self.redact.redact.then(Redactor::default))
    }

    fn time(&self) -> Duration {
        self.time.map_or(Duration::from_secs(10), time)
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    fn options(&self) -> Result<Options> {
        let metric = self.metric.as_ref().map(|text| {
            let pattern = regex::bytes::Regex::new(text)
                .with_context(|| format!("--metric {text:?} is no regular expression"))?;
            // It would be held against what the first run prints, after all of that.
            anyhow::ensure!(
                pattern.captures_len() > 1,
                "--metric {text:?} has no group for the number (such as --metric 'ops/s: ([0-9.]+)')"
            );
            anyhow::Ok(Metric { pattern, more_is_better: !self.less_is_better })
        });
        let metric = metric.transpose()?;
        anyhow::ensure!(
            self.goal != Some(Goal::Tail) || self.less_is_better,
            "--goal tail needs a latency that the command prints (--metric 'p99: ([0-9.]+)' --less-is-better)"
        );
        let rounds = self.runs.map(|runs| runs as usize);
        let always = match (self.all, self.counters) {
            (true, _) => Some(7),
            (false, true) => Some(5),
            (false, false) => None,
        };
        Ok(Options {
            goal: match self.goal {
                None if self.counters => Wanted::Speed,
                None => Wanted::Both,
                Some(Goal::Memory) => Wanted::Memory,
                Some(Goal::Speed) => Wanted::Speed,
                Some(Goal::Tail) => Wanted::Tail,
            },
            worth: self.worth.unwrap_or(0.05),
            slower: self.slower.unwrap_or(0.02),
            within: self.within.map(time),
            seed: self.seed(),
            metric,
            load: self.load.clone().map(|client| Load { client, time: self.time() }),
            only: if self.counters { counted::levers() } else { self.levers.clone() },
            all: self.all,
            rounds: rounds.or(always),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    /// "about 44 s to go, 43 s at most", and then it took 25 s more; and while a run of 12 s was on, nothing moved.
    #[test]
    fn the_line_moves_while_a_run_is_on_and_does_not_contradict_itself() {
        let seconds = |seconds: f64| Some(Duration::from_secs_f64(seconds));
        let first = SessionProgress {
            runs: 0,
            now: "as it is",
            so_far: Duration::ZERO,
            expected: None,
            waits: None,
            levers: 0,
            rest: None,
            left: None,
        };
        assert_eq!(step(&first), "run 1: as it is");
        let so_far = Duration::from_secs_f64(3.4);
        assert_eq!(step(&SessionProgress { so_far, ..first }), "run 1: as it is, 3 s so far");
        let later = SessionProgress {
            runs: 6,
            now: "jemalloc",
            so_far,
            expected: seconds(11.2),
            levers: 2,
            rest: seconds(20.0),
            left: seconds(43.9),
            ..first
        };
        let run = "run 7: jemalloc, 3 s of about 12 s; 2 levers in play";
        assert_eq!(
            step(&later),
            format!("{run}, about 20 s to go, no run is begun after about 44 s")
        );
        let all = SessionProgress { rest: seconds(43.9), ..later };
        assert_eq!(step(&all), format!("{run}, no run is begun after about 44 s"));
        let none = SessionProgress { rest: None, left: None, ..later };
        assert_eq!(step(&none), format!("{run}, until the answer is clear"));
    }

    /// That the pattern had no group was said after the whole first run.
    #[test]
    fn a_metric_without_a_group_for_its_number_is_refused_before_anything_runs() {
        let options = |pattern: &str| {
            let command = Command::parse_from(["advise", "--metric", pattern, "--", "true"]);
            command.arguments.options().map(|options| options.metric.is_some())
        };
        let refused = options("ops/s: [0-9.]+").unwrap_err().to_string();
        assert!(refused.contains("has no group for the number"), "{refused}");
        assert!(options("ops/s: (?:[0-9.]+)").is_err(), "a group that keeps nothing");
        assert!(options("ops/s: ([0-9.]+)").unwrap());
    }
}
