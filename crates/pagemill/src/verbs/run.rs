//! `pagemill run`: a program, unchanged, on the compacting heap, or under a huge page policy, or both.
//!
//! Everything that can go wrong is found out before the program is executed. Then this process
//! becomes the program. Only with `--ksm` or `--huge` it stays as the parent, to govern `ksmd` or to decide; it then
//! passes signals on and ends as the program did.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use pagemill_heap::config::{Config, NAMES};
use pagemill_kernel::huge_pages_of::Pages;
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{Linux, ksm_loan};
use pagemill_policy::huge::Named;
use pagemill_policy::huge::profile::Profile;

use crate::exit::Exit;
use crate::governor::{self, Governor, Start};
use crate::huge::launcher::{Launcher, Options};
use crate::huge::sites::Sites;
use crate::library;
use crate::program::{self, NoProgram, Verdict};
#[cfg(target_arch = "x86_64")]
use crate::recorders;

const EXAMPLES: &str = "\
Examples:
  pagemill run -- redis-server --save ''      with the default configuration, 1y
  pagemill run --mesh 2y -- ruby app.rb       shuffle at each free, too
  sudo pagemill run --ksm -- redis-server     let the kernel merge the pages (back end ksm)
  pagemill run --mesh 0n -- ./bench           the same heap without compaction
  pagemill run --huge cbmm+ -- ./server       its own malloc, memory ahead of its growth
  pagemill run --huge cbmm+ --dry -- ./server decide and say what would be done, do nothing
  pagemill run --huge cbmm --profile p.csv --log rec -- ./server
  sudo pagemill run --huge ingens -p 4711     a program that runs already, from outside, until Ctrl-C
";

const AFTER: &str = "\
The program keeps its standard streams, and its exit status is passed through. Other exits:
125 pagemill itself failed, or the library cannot work in this program; 126 the program cannot be
executed; 127 it was not found.";

/// What to run, and how.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Configuration of the heap: 0n 1n 2n do not compact, 0y 1y 2y do (the digit is the degree of
    /// randomisation), h is hardened [default: $PAGEMILL_MESH or 1y]
    #[arg(long, value_name = "CONFIG")]
    mesh: Option<String>,

    /// Let ksmd, the kernel's merging thread, do the merging: run it while the program has pages
    /// for it, and restore its settings afterwards. Needs root; opens a side channel between
    /// programs that offer memory to it (docs/concepts/ksm.md)
    #[arg(long)]
    ksm: bool,

    /// How pages are compacted [default: $PAGEMILL_BACKEND or auto]
    #[arg(long, value_enum)]
    backend: Option<Backend>,

    /// Decide by this policy which memory is on huge pages, and provide memory ahead of the program's growth: linux-always,
    /// linux-madvise, linux-never, ingens, hawkeye, cbmm, cbmm+. The program keeps its own malloc unless --mesh is given
    #[arg(long, value_name = "POLICY")]
    huge: Option<String>,

    /// Benefits of huge pages and eager paging by place, as `pagemill plan` writes them
    #[arg(long, value_name = "FILE", requires = "huge")]
    profile: Option<PathBuf>,

    /// Record each decision of --huge with its why
    #[arg(long, value_name = "DIR", requires = "huge")]
    log: Option<PathBuf>,

    /// Overwrite the recording in DIR, and FILE
    #[arg(short, long, requires = "huge")]
    force: bool,

    /// Write what the agents have counted to FILE at the end, as JSON
    #[arg(long, value_name = "FILE", requires = "huge")]
    stats: Option<PathBuf>,

    /// Decide, record, and do nothing
    #[arg(long, requires = "huge")]
    dry: bool,

    /// Instead of a command, a process that runs already: its memory in use is collapsed into huge pages from outside by
    /// ingens, hawkeye or, with a profile, cbmm+, until it ends or a signal ends this. Nothing is provided ahead
    #[arg(short, long, value_name = "PID", requires = "huge", conflicts_with_all = ["command", "mesh", "ksm", "backend"], value_parser = super::values::process)]
    pid: Option<u32>,

    /// The program and its arguments
    #[arg(required_unless_present = "pid", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// ksm where ksmd runs, otherwise remap
    Auto,
    /// Identical pages, merged by the kernel
    Ksm,
    /// Pages remapped onto one image
    Remap,
    /// No compaction
    None,
}

impl Backend {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ksm => "ksm",
            Self::Remap => "remap",
            Self::None => "none",
        }
    }
}

/// Runs the program. A failure of our own is 125, as for any wrapper.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    match prepare_and_run(arguments) {
        Err(error) => {
            eprintln!("pagemill: {error:#}");
            Ok(Exit::Code(125))
        }
        outcome => outcome,
    }
}

fn prepare_and_run(arguments: &Arguments) -> Result<Exit> {
    if let Some(policy) = &arguments.huge {
        return run_huge(arguments, policy);
    }
    let config = configuration(arguments.mesh.clone())?;
    let backend = backend(arguments, &config)?;
    let (mut command, path) = match prepare(&arguments.command, &config)? {
        Prepared::Ready(command, path) => (*command, path),
        Prepared::Refused(exit) => return Ok(exit),
    };
    command.env("PAGEMILL_BACKEND", backend.name());

    let linux = super::machine();
    recover(&linux);
    if arguments.ksm {
        super::ensure_room()?;
        let signals = hold_signals()?;
        match Governor::start(&linux) {
            Ok(Start::Governor(governor)) => return supervise(command, &path, *governor, &signals),
            Ok(Start::Running) => {} // ksmd runs by somebody else's will, which we leave alone.
            Err(error) => {
                eprintln!(
                    "pagemill: --ksm has no effect, the back end is chosen as without it: {error}"
                );
                command.env("PAGEMILL_BACKEND", Backend::Auto.name());
            }
        }
    }
    Ok(cannot_execute(&path, &command.exec()))
}

/// Runs the program under a huge page policy, on the heap too if a configuration is given.
fn run_huge(arguments: &Arguments, name: &str) -> Result<Exit> {
    let policy = Named::find(name).with_context(|| {
        format!("unknown huge page policy {name:?} (choose one of: {})", Named::NAMES.join(" "))
    })?;
    anyhow::ensure!(
        !arguments.ksm && arguments.backend != Some(Backend::Ksm),
        "--ksm and --huge contradict each other: pages that ksmd merges are base pages"
    );
    let profile = arguments.profile.as_deref().map(super::plan::read_profile).transpose()?;
    if profile.is_some() && !matches!(policy, Named::Cbmm(_) | Named::CbmmPlus(_)) {
        eprintln!("pagemill: --profile has no effect: {name} looks at none (cbmm and cbmm+ do)");
    }
    let linux = super::machine();
    recover(&linux);
    if let Some(pid) = arguments.pid {
        return help_from_outside(arguments, policy, profile, &linux, pid);
    }
    let (mut command, path) = if arguments.mesh.is_some() {
        let config = configuration(arguments.mesh.clone())?;
        match prepare(&arguments.command, &config)? {
            Prepared::Ready(mut command, path) => {
                command.env("PAGEMILL_BACKEND", backend(arguments, &config)?.name());
                (*command, path)
            }
            Prepared::Refused(exit) => return Ok(exit),
        }
    } else {
        match plain(&arguments.command)? {
            Prepared::Ready(command, path) => (*command, path),
            Prepared::Refused(exit) => return Ok(exit),
        }
    };
    super::ensure_room()?;
    let signals = hold_signals()?;
    let mut launcher = Launcher::new(&linux, huge_options(arguments, policy, profile))?;
    if launcher.needs_agent() {
        match program::inspect(&path, env::var_os("PATH").as_deref()).verdict {
            // Who brings its own allocator can still be helped: nothing of it is replaced.
            Verdict::Refused(refusal) if refusal.kind != "bundled-allocator" => eprintln!(
                "pagemill: {} has no agent: {}; it is helped from outside only",
                path.display(),
                refusal.reason
            ),
            _ => {
                let agent = library::find_agent()?;
                let preload = library::preload(&agent, library::preloaded(&command).as_deref());
                command.env("LD_PRELOAD", preload).env("PAGEMILL_HUGE", launcher.board_path());
                if launcher.needs_sites() {
                    match sites(&path, &mut command) {
                        Ok(sites) => launcher.know_sites(sites),
                        Err(error) => eprintln!(
                            "pagemill: rows of the profile that name a site have no effect: {error:#}"
                        ),
                    }
                }
            }
        }
    }
    supervise(command, &path, launcher, &signals)
}

/// The library that notes who asks for memory is written for x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn sites(_: &Path, _: &mut Command) -> Result<Sites> {
    anyhow::bail!("call sites are noted on x86-64 only")
}

/// Has the command note which code asks for large memory.
#[cfg(target_arch = "x86_64")]
fn sites(path: &Path, command: &mut Command) -> Result<Sites> {
    let mut ring = recorders::sites::noted_by(path, command)?;
    Ok(Sites::new(Box::new(move || ring.read())))
}

fn huge_options(arguments: &Arguments, policy: Named, profile: Option<Profile>) -> Options {
    let words = arguments.command.iter().map(|word| word.to_string_lossy().into_owned());
    Options {
        policy,
        profile,
        log: arguments.log.clone(),
        force: arguments.force,
        dry: arguments.dry,
        stats: arguments.stats.clone(),
        command: words.collect(),
        pid: arguments.pid,
    }
}

/// Collapses what a running process uses, from here, until it ends or a signal comes.
fn help_from_outside(
    arguments: &Arguments,
    policy: Named,
    profile: Option<Profile>,
    linux: &Linux,
    pid: u32,
) -> Result<Exit> {
    let scans = matches!(policy, Named::Ingens(_) | Named::Hawkeye(_));
    anyhow::ensure!(
        scans || matches!(policy, Named::CbmmPlus(_)) && profile.is_some(),
        "from outside, huge pages come by ingens, hawkeye, or cbmm+ with --profile; other policies have to start the program"
    );
    let process = linux.stat(pid).with_context(|| format!("process {pid} cannot be helped"))?;
    Pages::of(linux, pid)?.may_collapse()?;
    let signals = Signals::block(signal::ENDS)?;
    let mut launcher = Launcher::new(linux, huge_options(arguments, policy, profile))?;
    if launcher.needs_sites() {
        eprintln!(
            "pagemill: rows of the profile that name a site have no effect: a running program cannot be made to note call sites"
        );
    }
    // One with the same number later is another process.
    let lives =
        || linux.stat(pid).is_ok_and(|now| now.started == process.started && now.state != 'Z');
    while lives() {
        let pause = launcher.tick()?;
        if signals.wait(pause)?.is_some() {
            break;
        }
    }
    launcher.stop()?;
    Ok(Exit::Ok)
}

/// What stays beside a program while it runs.
trait Companion {
    /// What it does, as the object of "… is no longer governed" and the like.
    const WHAT: &'static str;

    /// The program has started.
    fn watch(&mut self, pid: u32);

    /// Looks once; returns how long to wait before the next look.
    fn tick(&mut self) -> Result<Duration>;

    /// There will be no program: it could not be executed.
    fn never_started(&mut self) {}

    /// The program is being stopped.
    fn rest(&mut self) -> Result<()>;

    /// The program has ended: puts everything back.
    fn stop(self) -> Result<()>;
}

impl Companion for Governor {
    const WHAT: &'static str = "ksmd";

    fn watch(&mut self, pid: u32) {
        Self::watch(self, pid);
    }

    fn tick(&mut self) -> Result<Duration> {
        Ok(Self::tick(self)?)
    }

    fn rest(&mut self) -> Result<()> {
        Ok(Self::rest(self)?)
    }

    fn stop(self) -> Result<()> {
        Self::stop(self).context("the settings of ksmd are not restored")
    }
}

impl Companion for Launcher {
    const WHAT: &'static str = "the use of huge pages";

    fn never_started(&mut self) {
        Self::never_started(self);
    }

    fn watch(&mut self, pid: u32) {
        Self::watch(self, pid);
    }

    fn tick(&mut self) -> Result<Duration> {
        Self::tick(self)
    }

    fn rest(&mut self) -> Result<()> {
        Ok(())
    }

    fn stop(self) -> Result<()> {
        Self::stop(self)
    }
}

/// A command under the heap, or the reason that has been said and the exit that follows from it.
pub(super) enum Prepared {
    /// The command and the file that it will execute.
    Ready(Box<Command>, PathBuf),
    /// There is nothing to execute.
    Refused(Exit),
}

/// Makes the command that runs `command` under the heap in the configuration `config`, after
/// finding out whether that can work. An error is 125 for a wrapper.
pub(super) fn prepare(command: &[OsString], config: &str) -> Result<Prepared> {
    let search = env::var_os("PATH");
    let (path, mut plain) = match plain(command)? {
        Prepared::Ready(command, path) => (path, command),
        refused => return Ok(refused),
    };
    if let Verdict::Refused(refusal) = program::inspect(&path, search.as_deref()).verdict {
        let (path, program::Refusal { reason, way, .. }) = (path.display(), &refusal);
        let code = refusal.exit_code();
        if code == 125 {
            eprintln!("pagemill: {path} cannot use the preload library: {reason} ({way})");
        } else {
            eprintln!("pagemill: cannot run {path}: {reason} ({way})");
        }
        return Ok(Prepared::Refused(Exit::Code(code)));
    }
    let library = library::find()?;
    plain
        .env("LD_PRELOAD", library::preload(&library, env::var_os("LD_PRELOAD").as_deref()))
        .env("PAGEMILL_MESH", config);
    Ok(Prepared::Ready(plain, path))
}

/// Makes the command that runs `command` as it is, after finding its file. An error is 125 for a
/// wrapper.
pub(super) fn plain(command: &[OsString]) -> Result<Prepared> {
    let [name, rest @ ..] = command else {
        anyhow::bail!("no program is named");
    };
    let path = match program::find(name, env::var_os("PATH").as_deref()) {
        Ok(path) => path,
        Err(NoProgram::Missing) => {
            eprintln!("pagemill: cannot run {}: not found", name.display());
            return Ok(Prepared::Refused(Exit::Code(127)));
        }
        Err(NoProgram::NotExecutable(path)) => {
            let (why, fix) = program::not_executable(&path);
            eprintln!("pagemill: cannot run {}: {why} ({fix})", path.display());
            return Ok(Prepared::Refused(Exit::Code(126)));
        }
    };
    let mut command = Command::new(&path);
    command.arg0(name).args(rest);
    Ok(Prepared::Ready(Box::new(command), path))
}

/// The value of a variable. One that is set to nothing counts as not set, as in the library.
fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.map(|value| value.to_string_lossy().into_owned())
}

/// The name of the configuration that the flag asks for, or else the environment, checked.
pub(super) fn configuration(flag: Option<String>) -> Result<String> {
    let name = flag.or_else(|| variable("PAGEMILL_MESH"));
    let name = name.unwrap_or_else(|| NAMES[Config::DEFAULT.index()].to_owned());
    anyhow::ensure!(
        Config::parse(name.as_bytes()).is_some(),
        "unknown configuration {name:?} (choose one of: {})",
        NAMES.join(" ")
    );
    Ok(name)
}

/// The back end that the flags ask for, or else the environment.
fn backend(arguments: &Arguments, config: &str) -> Result<Backend> {
    let compacts = Config::parse(config.as_bytes()).is_some_and(|config| config.compact);
    if !arguments.ksm {
        let named = match (arguments.backend, variable("PAGEMILL_BACKEND")) {
            (Some(backend), _) => backend,
            (None, Some(name)) => Backend::from_str(&name, false).map_err(|_| {
                let names = Backend::value_variants().iter().map(|backend| backend.name());
                let names: Vec<_> = names.collect();
                anyhow::anyhow!(
                    "unknown back end PAGEMILL_BACKEND={name:?} (choose one of: {})",
                    names.join(" ")
                )
            })?,
            (None, None) => Backend::Auto,
        };
        anyhow::ensure!(
            compacts || !matches!(arguments.backend, Some(Backend::Remap | Backend::Ksm)),
            "--backend {} has nothing to merge under configuration {config}, which does not compact (choose 0y, 1y or 2y)",
            named.name()
        );
        return Ok(named);
    }
    anyhow::ensure!(
        compacts,
        "--ksm has nothing to merge under configuration {config}, which does not compact (choose 0y, 1y or 2y)"
    );
    if let Some(other @ (Backend::Remap | Backend::None)) = arguments.backend {
        anyhow::bail!("--ksm and --backend {} contradict each other", other.name());
    }
    Ok(Backend::Ksm)
}

/// Restores what a governor that was killed has left behind.
fn recover(linux: &Linux) {
    let directory = governor::journal_directory(linux);
    match ksm_loan::recover(linux, &directory) {
        Ok(None) => {}
        Ok(Some(_)) => {
            eprintln!(
                "pagemill: restored the settings of ksmd, which a killed pagemill run --ksm had left changed"
            );
        }
        // Without the right to look there is nothing that this user could have left.
        Err(error) if error.kind() == pagemill_kernel::Kind::Permission => {}
        Err(error) => eprintln!("pagemill: {error}"),
    }
}

/// Says why the program could not be executed; the exit code is the one env(1) would choose.
pub(super) fn cannot_execute(path: &Path, error: &std::io::Error) -> Exit {
    eprintln!("pagemill: cannot execute {}: {error}", path.display());
    Exit::Code(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Holds the signals that [`supervise`] passes on, from before a companion changes a setting: one that came in between
/// would end this process with the setting changed.
fn hold_signals() -> Result<Signals> {
    let mut watched = vec![signal::CHILD];
    watched.extend_from_slice(signal::SENT_TO_PROGRAMS);
    watched.extend_from_slice(signal::STOPS);
    Ok(Signals::block(&watched)?)
}

/// Ends what the companion does, and says if that did not work.
fn end(companion: impl Companion) {
    if let Err(error) = companion.stop() {
        eprintln!("pagemill: {error:#}");
    }
}

/// Runs the program as a child in the same process group, beside its companion.
fn supervise<C: Companion>(
    mut command: Command,
    path: &Path,
    mut companion: C,
    signals: &Signals,
) -> Result<Exit> {
    signals.restore_in(&mut command);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let exit = cannot_execute(path, &error);
            companion.never_started();
            end(companion);
            return Ok(exit);
        }
    };
    companion.watch(child.id());
    let status = attend(&mut child, signals, &mut companion);
    end(companion);
    let status = status?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Code(125),
    })
}

/// Governs and passes signals on until the child has ended.
fn attend<C: Companion>(
    child: &mut Child,
    signals: &Signals,
    companion: &mut C,
) -> Result<ExitStatus> {
    let mut failed = false;
    loop {
        let pause = if failed {
            Duration::from_secs(1)
        } else {
            companion.tick().unwrap_or_else(|error| {
                eprintln!("pagemill: {} is no longer governed: {error:#}", C::WHAT);
                failed = true;
                Duration::from_secs(1)
            })
        };
        let received = signals.wait(pause)?;
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        let Some(received) = received.filter(|received| received.signal != signal::CHILD) else {
            continue;
        };
        // The terminal's own signals have reached the child already: it is in the same group. One
        // that the child has ended before is lost like any signal to an ended process.
        if !received.from_kernel {
            let _ = signal::send(child.id(), received.signal);
        }
        if signal::STOPS.contains(&received.signal) {
            // While stopped we cannot govern.
            if let Err(error) = companion.rest() {
                eprintln!("pagemill: {} is no longer governed: {error:#}", C::WHAT);
                failed = true;
            }
            signal::stop_myself()?;
        }
    }
}
