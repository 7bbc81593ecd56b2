//! `live`: one screen that shows a program's memory while it runs.
//!
//! With a command this is a wrapper: its exit status is passed on. What of its output would go to the terminal is kept
//! in a file while the screen is shown, and printed when it is not; of the terminal's keys it gets none.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::answer::{self, Layout};
use anyhow::{Result, bail, ensure};
use clap::Args;
use pagemill_kernel::Linux;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::process::suspended::Suspended;
use pagemill_launch::exit::{Exit, of_wrapper, permitted};
use pagemill_launch::prepare::{self, Prepared};
use pagemill_launch::redirected::RedirectedOutput;
use pagemill_launch::stdio;
use pagemill_launch::supervise;
use pagemill_live::draw::{self, theme::Theme};
use pagemill_live::feed::{Attached, Attaching, Feed, Followed, Redacted};
use pagemill_live::json;
use pagemill_live::state::State;
use pagemill_live::state::pressure::MemoryPressure;
use pagemill_live::terminal::{self, INTERVALS, Surroundings, View};
use pagemill_model::recording::State as Writing;
use pagemill_model::{Nanos, Pid};
use pagemill_record::recorders::Process;

/// What it answers.
const LAYOUT: Layout = Layout::new("live", 1, "heat.regions");

const EXAMPLES: &str = "\
Examples:
  pagemill live -p redis-server
  pagemill live -- ./server --port 8000
  pagemill live pagemill-redis-server.4711     a recording in the making, or a finished one
  pagemill live -p 4711 --once                 one frame as text
  pagemill live -p 4711 --json                 a frame as JSON each second, a line each
";

const AFTER: &str = "\
Keys: q or Ctrl-C quit, and the program goes on; space holds the screen; + and - change the interval; 1 to 5 show \
and hide panes; ? explains. NO_COLOR is respected. Exit status: 0; of a command its own; 125 pagemill itself failed, \
126 the command cannot be executed, 127 it was not found. With -p: 2 there is no such process; 4 it may not be looked \
into.";

/// What to look at, and how.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// A recording, finished or in the making.
    #[arg(value_name = "REC", conflicts_with_all = ["pid", "command"])]
    recording: Option<PathBuf>,
    /// A running process.
    #[arg(short, long, value_name = "PID", value_parser = crate::values::process, conflicts_with = "command")]
    pid: Option<Pid>,
    /// Time between two frames.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = crate::values::interval)]
    interval: Nanos,
    /// Print one frame as text, after one interval, and end. Of what runs, by -p, or of a recording.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    printed: crate::values::Printed,
    #[command(flatten)]
    redact: crate::values::Redact,
    /// The command to run and its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    permitted(of_wrapper(!arguments.command.is_empty(), shown(arguments)))
}

fn shown(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let interval = Duration::from(arguments.interval).clamp(INTERVALS[0], INTERVALS[1]);
    // One frame comes of more looks than two, or nobody knows whether memory grew all the time.
    let looks = if arguments.once { (interval / LOOKS).max(LOOK.min(interval)) } else { interval };
    if !arguments.command.is_empty() {
        ensure!(
            !arguments.once,
            "a frame of a command that just starts tells nothing: start it, then pagemill live -p PID --once"
        );
        return command(&linux, &arguments.command, interval, arguments.redact.redact);
    }
    if !arguments.once && !arguments.printed.json {
        terminal::check()?;
    }
    let mut feed: Box<dyn Feed> = match (&arguments.recording, arguments.pid) {
        (Some(path), _) => {
            let followed = Followed::open(path, interval)?;
            if followed.meta().state == Writing::Finished {
                // Of one that is being written, parts go for more recent ones.
                pagemill_launch::context::recording(path, false)?;
            }
            Box::new(followed)
        }
        (None, Some(pid)) => {
            let process = Process { pid, started: false };
            Box::new(Attaching::begin(&linux, process, looks).join()?)
        }
        (None, None) => bail!(
            "nothing to look at: name a running process (-p PID), a command (-- CMD) or a recording (REC)"
        ),
    };
    let mut redacted;
    let feed: &mut dyn Feed = if arguments.redact.redact {
        redacted = Redacted::new(feed.as_mut());
        &mut redacted
    } else {
        feed.as_mut()
    };
    let mut state = State::of(feed.meta());
    let mut around = SurroundingsReader::new(linux);
    let mut view = View::new(theme(), interval);
    let signals = signals()?;
    if arguments.once || arguments.printed.json {
        return print(arguments, feed, &mut state, (&view, &mut around), &signals);
    }
    terminal::watch(feed, &mut state, &mut view, &signals, &mut || around.measure())?;
    Ok(Exit::Ok)
}

/// How it may look here.
fn theme() -> Theme {
    Theme::of(prepare::variable)
}

/// Held from before a program is started.
fn signals() -> Result<Signals> {
    let sent = signal::SENT_TO_PROGRAMS.iter().chain(signal::STOPS).copied();
    Ok(Signals::block(&sent.chain([signal::CHILD]).collect::<Vec<i32>>())?)
}

/// Looks that one frame comes of at the most, and the least time between two of them.
const LOOKS: u32 = 16;
const LOOK: Duration = Duration::from_millis(200);

/// Lines and columns of a frame as text, where no terminal says.
const PLAIN: (u16, u16) = (80, 60);

/// Frames without a terminal, as text or JSON: one, or one each interval. What lives is looked at for an interval
/// before, for what is counted by time.
fn print(
    arguments: &Arguments,
    feed: &mut dyn Feed,
    state: &mut State,
    (view, around): (&View, &mut SurroundingsReader),
    signals: &Signals,
) -> Result<Exit> {
    let waits = arguments.pid.is_some() || !arguments.once;
    around.measure();
    for frame in 0_u64.. {
        let end = Instant::now() + view.interval;
        loop {
            feed.refresh(state)?;
            let now = Instant::now();
            if !waits || now >= end || feed.condition().over {
                break;
            }
            let received = signals.wait(feed.due().min(end).saturating_duration_since(now))?;
            if received.is_some_and(|received| signal::ENDS.contains(&received.signal)) {
                return Ok(Exit::Ok);
            }
        }
        feed.flush(state)?;
        if arguments.pid.is_some() && state.memory.last.is_none() {
            bail!("process {} has ended", feed.meta().pid);
        }
        let text = if arguments.printed.json {
            let value = json::frame(state, feed, &around.measure());
            answer::text(&LAYOUT, value, Some(frame == 0))?
        } else {
            let width = stdio::terminal().flatten().unwrap_or(PLAIN.0);
            let mut plain = view.clone();
            // Text is for every reader.
            plain.theme.colour = false;
            let lines = plain.lines(state, feed, &around.measure(), ((width, PLAIN.1), ""));
            draw::text(&lines)
        };
        // Whoever read us has seen enough.
        if !stdio::frame(&text, false) || arguments.once || feed.condition().over {
            break;
        }
    }
    Ok(Exit::Ok)
}

/// What is around the process, looked at now and then.
struct SurroundingsReader {
    linux: Linux,
    pressure: MemoryPressure,
}

impl SurroundingsReader {
    fn new(linux: Linux) -> Self {
        Self { linux, pressure: MemoryPressure::default() }
    }

    fn measure(&mut self) -> Surroundings {
        let pressure = self.pressure.since(&self.linux);
        Surroundings { tiers: pagemill_control::tier::overview::lines(&self.linux), pressure }
    }
}

/// Runs a command and shows it.
fn command(linux: &Linux, words: &[OsString], interval: Duration, redact: bool) -> Result<Exit> {
    terminal::check()?;
    pagemill_launch::context::ensure_room()?;
    let (mut command, path) = match prepare::plain(words)? {
        Prepared::Ready(command, path) => (*command, path),
        Prepared::Refused(exit) => return Ok(exit),
    };
    let signals = signals()?;
    signals.restore_in(&mut command);
    let mut kept = RedirectedOutput::redirect(&mut command)?;
    let suspended = match Suspended::spawn(command)? {
        Ok(suspended) => suspended,
        Err(error) => return Ok(prepare::cannot_execute(&path, &error)),
    };
    let process = Process { pid: suspended.pid(), started: true };
    let attaching = Attaching::begin(linux, process, interval);
    let child = match suspended.release() {
        Ok(child) => child,
        Err(error) => return Ok(prepare::cannot_execute(&path, &error)),
    };
    let (view, child) = view_of(linux, attaching, child, &signals, (interval, redact));
    if let Err(error) = view {
        notice!("the view has ended, the program was not disturbed: {error:#}");
    }
    kept.print();
    let Some(mut child) = child else { bail!("the program is not known any more") };
    let status = attend(&mut child, &signals, &mut kept)?;
    kept.print();
    Ok(Exit::of(status))
}

/// Shows a command until its user quits; it is given back, whatever became of the view.
fn view_of(
    linux: &Linux,
    attaching: Attaching,
    child: Child,
    signals: &Signals,
    (interval, redact): (Duration, bool),
) -> (Result<()>, Option<Child>) {
    let mut feed: Attached = match attaching.join() {
        Ok(feed) => feed.of(child),
        Err(error) => return (Err(error), Some(child)),
    };
    let mut state = State::of(feed.meta());
    let mut around = SurroundingsReader::new(linux.clone());
    let mut view = View::new(theme(), interval);
    let mut redacted;
    let source: &mut dyn Feed = if redact {
        redacted = Redacted::new(&mut feed);
        &mut redacted
    } else {
        &mut feed
    };
    let shown = terminal::watch(source, &mut state, &mut view, signals, &mut || around.measure());
    (shown, feed.into_child())
}

/// Waits for the command, prints what it prints, and passes signals on.
fn attend(child: &mut Child, signals: &Signals, kept: &mut RedirectedOutput) -> Result<ExitStatus> {
    let (pid, mut said) = (Pid(child.id()), false);
    supervise::pass_on(signals, pid, Duration::from_millis(100), || {
        let status = child.try_wait()?;
        if status.is_none() && !said {
            notice!("the view has ended; process {pid} runs on, and is waited for");
            said = true;
        }
        kept.print();
        Ok(status)
    })
}
