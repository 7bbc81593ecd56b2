//! `counters`: what huge pages are worth to a command: runs with and without them, in turn, and what the
//! processor and the kernel counted in each.
//!
//! Arms: `thp-off` switches transparent huge pages off for the command (`PR_SET_THP_DISABLE`);
//! `thp-on` runs it as the system is, where that is `madvise` with malloc asking for them
//! (`glibc.malloc.hugetlb=1`). Where the processor's counters are not available, what a page walk costs is
//! measured by dependent random reads instead.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use pagemill_analysis::statistics::{Bootstrap, Estimate, Random, median, ratio_of_medians};
use pagemill_kernel::held::Held;
use pagemill_kernel::perf_event::{Attributes, Event, Target, What};
use pagemill_kernel::process::{Whose, resources};
use pagemill_kernel::{Linux, huge_costs, thp};
use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::report::chart::number;
use crate::report::text;
use crate::verbs::run::{self, Prepared};

const EXAMPLES: &str = "\
Examples:
  pagemill counters -- xz -9 -k -c big.tar
  pagemill counters --runs 9 --json -- ./solver
  pagemill counters -- pagemill workload fmm --scale 16
";

const AFTER: &str = "\
Standard output of the command is dropped. Exit status: 0; 1 a run of the command failed; 2 usage or error; 126 it cannot be executed, 127 it \
was not found.";

/// Which command, how often.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Runs of each arm, after one of each that is not counted.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Seed of the order of the runs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// The command to run and its arguments.
    #[arg(last = true, value_name = "CMD", required = true)]
    command: Vec<OsString>,
}

/// The processor's counters, and what they are called.
const COUNTERS: [(&str, What); 6] = [
    ("cycles", What::Cycles),
    ("instructions", What::Instructions),
    ("dtlb_load_misses", What::DataTlbLoadMisses),
    ("dtlb_store_misses", What::DataTlbStoreMisses),
    ("itlb_misses", What::InstructionTlbMisses),
    ("cache_misses", What::CacheMisses),
];

/// The processor's counters on a command; those that it has.
struct Opened(Vec<(&'static str, Event)>);

impl Opened {
    /// On the held process `pid` and all that it starts, in user mode, from the program that it executes.
    fn on(pid: u32) -> Self {
        let open = |(name, what): &(&'static str, What)| {
            let attributes = Attributes::counting(*what).user_only().inherited().from_exec();
            Some((*name, Event::open(&attributes, Target::Thread(pid)).ok()?))
        };
        Self(COUNTERS.iter().filter_map(open).collect())
    }

    /// What they have counted, by name.
    fn read(&self) -> Result<Run> {
        let mut all = Vec::new();
        for (name, event) in &self.0 {
            let count = event.count()?;
            let share = count.running.as_secs_f64() / count.enabled.as_secs_f64().max(1e-9);
            // Counters that took turns are scaled; one that never had its turn has no value.
            if share > 0.0 {
                all.push((*name, count.value as f64 / share));
            }
        }
        Ok(all)
    }
}

/// Whether the processor counts for this user: the counter of its cycles, or why there is none.
pub fn processor() -> pagemill_kernel::Result<Event> {
    Event::open(&Attributes::counting(What::Cycles).user_only(), Target::Thread(0))
}

/// How often the memory of a run is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// With or without transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Off,
    On,
}

/// What one run gave: name and value.
pub type Run = Vec<(&'static str, f64)>;

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let linux = super::machine();
    let setting = linux.thp_enabled().map(|choice| choice.active);
    let malloc_asks = matches!(&setting, Ok(active) if active == "madvise");
    let mut arms: Vec<Arm> = vec![Arm::Off, Arm::On];
    let mut random = Random::seeded(arguments.seed);
    let (mut off, mut on): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
    let mut failed = 0;
    for round in 0..=arguments.runs {
        if random.below(2) == 1 {
            arms.reverse();
        }
        for arm in &arms {
            let (measured, ok) = match once(&linux, &arguments.command, *arm, malloc_asks)? {
                Once::Done(run, ok) => (run, ok),
                Once::Refused(exit) => return Ok(exit),
            };
            failed += u64::from(!ok);
            if round > 0 {
                if *arm == Arm::Off { &mut off } else { &mut on }.push(measured);
            }
        }
    }
    let pmu = processor();
    let walks = match &pmu {
        Ok(_) => None,
        Err(_) => Some(huge_costs::measure(&linux)?),
    };
    let mut notes = Vec::new();
    match &setting {
        Ok(active) if active == "never" => notes.push("transparent huge pages are switched off on this system (never), so both arms run without them".to_owned()),
        Ok(active) if malloc_asks => notes.push(format!("the system's setting is {active}: in thp-on malloc asks for huge pages (glibc.malloc.hugetlb=1), other memory has them where the program asks")),
        Ok(active) => notes.push(format!("the system's setting is {active}")),
        Err(error) => notes.push(error.to_string()),
    }
    if let Err(error) = &pmu {
        notes.push(format!(
            "the processor's counters are not available: {}; so no TLB and cache misses",
            error.reason()
        ));
    }
    if let Some(walks) = &walks {
        match (walks.read_base_ps, walks.read_huge_ps) {
            (Some(base), Some(huge)) => notes.push(format!(
                "page walks by calibration: a dependent random read in 256 MiB takes {:.1} ns on base pages and {:.1} ns on huge ones",
                base as f64 / 1e3,
                huge as f64 / 1e3
            )),
            _ => notes.extend(walks.not_measured.iter().map(|(what, why)| format!("{what}: {why}"))),
        }
    }
    if failed > 0 {
        notes.push(format!("{failed} runs of the command failed; their figures are in the table"));
    }
    let rows = compare(&off, &on, arguments.seed);
    let text = if arguments.json {
        let value = json!({
            "schema": 1,
            "command": arguments.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "runs": arguments.runs,
            "thp": setting.ok(),
            "pmu": pmu.is_ok(),
            "read_base_ps": walks.as_ref().and_then(|walks| walks.read_base_ps),
            "read_huge_ps": walks.as_ref().and_then(|walks| walks.read_huge_ps),
            "failed_runs": failed,
            "metrics": rows.iter().map(Row::json).collect::<Map<_, _>>(),
            "notes": notes,
        });
        format!("{value:#}\n")
    } else {
        let header = ["median of a run", "thp-off", "thp-on", "on / off", "95 % interval"];
        let cells: Vec<_> = rows.iter().map(Row::cells).collect();
        let notes: String = notes.iter().map(|note| format!("\n{note}")).collect();
        format!("{}{notes}\n", text::table(&header, &cells))
    };
    crate::talk::stdout(&text);
    Ok(if failed > 0 { Exit::Finding } else { Exit::Ok })
}

enum Once {
    /// The figures, and whether the command succeeded.
    Done(Run, bool),
    /// It was not started; the reason has been said.
    Refused(Exit),
}

/// Runs the command once.
fn once(linux: &Linux, words: &[OsString], arm: Arm, malloc_asks: bool) -> Result<Once> {
    let (mut command, path) = match run::plain(words)? {
        Prepared::Ready(command, path) => (*command, path),
        Prepared::Refused(exit) => return Ok(Once::Refused(exit)),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null());
    match arm {
        Arm::Off => thp::switch_off_in(&mut command),
        Arm::On if malloc_asks => {
            let mut tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
            tunables.push(if tunables.is_empty() { "" } else { ":" });
            tunables.push("glibc.malloc.hugetlb=1");
            command.env("GLIBC_TUNABLES", tunables);
        }
        Arm::On => {}
    }
    let (all, status) = match measured(linux, command, |child| Ok(child.wait()?))? {
        Ok(measured) => measured,
        Err(error) => return Ok(Once::Refused(run::cannot_execute(&path, &error))),
    };
    if let Some(signal) = status.signal() {
        eprintln!("pagemill: the command was killed by signal {signal}");
    }
    Ok(Once::Done(all, status.success()))
}

/// Runs a command, which `wait` waits for, and returns what was measured and how it ended. The inner error is that it
/// cannot be executed.
pub fn measured(
    linux: &Linux,
    command: Command,
    wait: impl FnOnce(&mut Child) -> Result<ExitStatus>,
) -> Result<io::Result<(Run, ExitStatus)>> {
    let held = match Held::spawn(command)? {
        Ok(held) => held,
        Err(error) => return Ok(Err(error)),
    };
    let pid = held.pid();
    let counters = Opened::on(pid);
    let before = resources(Whose::EndedChildren);
    let begun = Instant::now();
    let mut child = match held.release() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let over = AtomicBool::new(false);
    let (waited, took, memory) = std::thread::scope(|scope| {
        let looks = scope.spawn(|| watch(linux, pid, &over));
        let waited = wait(&mut child);
        let took = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        (waited, took, looks.join().unwrap_or_default())
    });
    let status = waited.context("cannot wait for the command")?;
    let used = resources(Whose::EndedChildren);
    let mut all: Run = vec![
        ("seconds", took.as_secs_f64()),
        ("user_seconds", (used.user - before.user).as_secs_f64()),
        ("system_seconds", (used.system - before.system).as_secs_f64()),
        ("page_faults", (used.faults - before.faults) as f64),
    ];
    if let Some((anonymous, huge)) = memory {
        all.push(("anonymous_mib", anonymous as f64 / 1048576.0));
        all.push(("huge_share", huge as f64 / anonymous.max(1) as f64));
    }
    all.extend(counters.read()?);
    Ok(Ok((all, status)))
}

/// The most anonymous memory of a run, and how much of it was on huge pages then; bytes.
fn watch(linux: &Linux, pid: u32, over: &AtomicBool) -> Option<(u64, u64)> {
    let mut most: Option<(u64, u64)> = None;
    while !over.load(Ordering::Relaxed) {
        if let Ok(usage) = linux.smaps_rollup(pid) {
            let seen = usage.anonymous.zip(usage.anon_huge_pages);
            most = most.max(seen);
        }
        std::thread::sleep(LOOK);
    }
    most
}

/// One quantity of both arms.
struct Row {
    name: &'static str,
    off: f64,
    on: f64,
    ratio: Option<Estimate>,
}

/// Medians of each quantity that both arms have.
fn compare(off: &[Run], on: &[Run], seed: u64) -> Vec<Row> {
    let names = off.first().into_iter().flatten().map(|(name, _)| *name);
    let values = |runs: &[Run], name: &str| -> Vec<f64> {
        runs.iter().flatten().filter(|(known, _)| *known == name).map(|(_, value)| *value).collect()
    };
    let row = |name: &'static str| {
        let (off, on) = (values(off, name), values(on, name));
        let ratio = ratio_of_medians(&on, &off, &Bootstrap::seeded(seed));
        Some(Row { name, off: median(&off)?, on: median(&on)?, ratio })
    };
    names.filter_map(row).collect()
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let ratio = self.ratio.map_or("-".into(), |ratio| format!("{:.3}", ratio.value));
        let interval = self.ratio.and_then(|ratio| ratio.interval);
        let interval = interval.map_or("-".into(), |i| format!("[{:.3}, {:.3}]", i.low, i.high));
        vec![self.name.replace('_', " "), number(self.off), number(self.on), ratio, interval]
    }

    fn json(&self) -> (String, Value) {
        let interval = self.ratio.and_then(|ratio| ratio.interval);
        let value = json!({
            "thp_off": self.off,
            "thp_on": self.on,
            "ratio": self.ratio.map(|ratio| ratio.value),
            "interval": interval.map(|interval| [interval.low, interval.high]),
        });
        (self.name.to_owned(), value)
    }
}
