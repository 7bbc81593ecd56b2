//! `counters`: what huge pages are worth to a command: runs without them, as it is and with more of them, in turn, and
//! what the processor and the kernel counted in each.
//!
//! Arms: `thp-off` switches transparent huge pages off for the command (`PR_SET_THP_DISABLE`); `as is` changes nothing,
//! so a program that asks for them has them; `thp-on`, where the system's setting is `madvise`, has malloc
//! ask too (`glibc.malloc.hugetlb=1`). A run that failed is in no figure. Where the processor's counters are not
//! available, what a page walk costs is measured by dependent random reads instead.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};

use anyhow::Result;
use clap::Args;
use pagemill_analysis::statistics::{Bootstrap, Estimate, Random, median, ratio_of_medians};
use pagemill_kernel::{Linux, huge_costs, thp};
use serde_json::{Map, Value, json};

use pagemill_control::run_cost::{Run, measured, processor};
use pagemill_launch::exit::Exit;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_report::draw::chart::number;
use pagemill_report::draw::text;

const EXAMPLES: &str = "\
Examples:
  pagemill counters -- xz -9 -k -c big.tar
  pagemill counters --runs 9 --json -- ./solver
  pagemill counters -- pagemill workload fmm --scale 16
";

const AFTER: &str = "\
Standard output of the command is dropped. Exit status: 0; 1 some runs of the command failed; 2 usage or error, or all runs \
of an arm failed; 126 it cannot be executed, 127 it \
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
    #[command(flatten)]
    printed: crate::values::Printed,
    /// The command to run and its arguments.
    #[arg(last = true, value_name = "CMD", required = true)]
    command: Vec<OsString>,
}

/// What is done about transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Off,
    AsIs,
    On,
}

impl Arm {
    const ALL: [Self; 3] = [Self::Off, Self::AsIs, Self::On];

    fn name(self) -> &'static str {
        match self {
            Self::Off => "thp-off",
            Self::AsIs => "as is",
            Self::On => "thp-on",
        }
    }
}

/// What the runs of one arm gave: the figures of those that succeeded, how the others ended.
#[derive(Debug, Default)]
struct Runs {
    figures: Vec<Run>,
    failed: BTreeMap<String, u64>,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    pagemill_launch::context::ensure_room()?;
    let setting = linux.thp_enabled().map(|choice| choice.active);
    let malloc_asks = matches!(&setting, Ok(active) if active == "madvise");
    // Elsewhere the program as it is has all the huge pages that the system gives.
    let count = if malloc_asks { 3 } else { 2 };
    let all = match rounds(&linux, arguments, count)? {
        Ok(all) => all,
        Err(refused) => return Ok(refused),
    };
    let all = &all[..count];
    let failed: u64 = all.iter().flat_map(|runs| runs.failed.values()).sum();
    let nothing = all.iter().any(|runs| runs.figures.is_empty());
    let exit = match (nothing, failed) {
        (true, _) => Exit::Code(2),
        (false, 0) => Exit::Ok,
        _ => Exit::Finding,
    };
    if nothing && !arguments.printed.json {
        anyhow::bail!("{}; there is nothing to compare", failures(all));
    }
    let pmu = processor();
    let walks = match &pmu {
        Ok(_) => None,
        Err(_) => Some(huge_costs::measure(&linux)?),
    };
    let mut notes = vec![note_of_setting(&setting)];
    if let Err(error) = &pmu {
        notes.push(format!(
            "the processor's counters are not available: {}; so no TLB and cache misses",
            error.reason()
        ));
    }
    if let Some(walks) = &walks {
        notes.extend(notes_of_walks(walks));
    }
    if failed > 0 {
        notes.push(format!("{}; they are in no figure", failures(all)));
    }
    let rows = if nothing { Vec::new() } else { compare(all, arguments.seed) };
    let verdict = match &setting {
        Ok(active) if active == "never" => None,
        _ => rows.iter().find(|row| row.name == "seconds").map(Row::verdict),
    };
    let text = if arguments.printed.json {
        let failed_by_arm: Map<String, Value> = Arm::ALL
            .iter()
            .zip(all)
            .map(|(arm, runs)| (arm.name().to_owned(), json!(runs.failed)))
            .collect();
        let value = json!({
            "command": arguments.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "runs": arguments.runs,
            "thp": setting.ok(),
            "pmu": pmu.is_ok(),
            "read_base_ps": walks.as_ref().and_then(|walks| walks.read_base_ps),
            "read_huge_ps": walks.as_ref().and_then(|walks| walks.read_huge_ps),
            "failed_runs": failed,
            "failed": failed_by_arm,
            "metrics": rows.iter().map(Row::json).collect::<Map<_, _>>(),
            "verdict": verdict,
            "notes": notes,
        });
        crate::answer::text("counters", value)?
    } else {
        table(&rows, count, verdict, &notes)
    };
    pagemill_launch::stdio::stdout(&text);
    Ok(exit)
}

/// Runs the command under the first `count` arms, in random order, once and then as often as asked; the first round
/// does not count. The inner error: it was not started, and the reason has been said.
fn rounds(linux: &Linux, arguments: &Arguments, count: usize) -> Result<Result<[Runs; 3], Exit>> {
    let mut arms = Arm::ALL[..count].to_vec();
    let mut random = Random::new(arguments.seed);
    let mut all: [Runs; 3] = Default::default();
    for round in 0..=arguments.runs {
        random.shuffle(&mut arms);
        for arm in &arms {
            let (measured, status) = match once(linux, &arguments.command, *arm)? {
                Once::Done(run, status) => (run, status),
                Once::Refused(exit) => return Ok(Err(exit)),
            };
            let runs = &mut all[*arm as usize];
            if !status.success() {
                *runs.failed.entry(status.to_string()).or_default() += 1;
            } else if round > 0 {
                runs.figures.push(measured);
            }
        }
    }
    Ok(Ok(all))
}

/// What the system's setting of huge pages means for the arms.
fn note_of_setting(setting: &Result<String, pagemill_kernel::Error>) -> String {
    match setting {
        Ok(active) if active == "never" => "transparent huge pages are switched off on this system (never), so both arms run without them".to_owned(),
        Ok(active) if active == "madvise" => format!("the system's setting is {active}: in thp-on malloc asks for huge pages (glibc.malloc.hugetlb=1), other memory has them where the program asks"),
        Ok(active) => format!("the system's setting is {active}"),
        Err(error) => format!("{error:#}"),
    }
}

/// What page walks cost, where the processor does not count them.
fn notes_of_walks(walks: &huge_costs::HugeCosts) -> Vec<String> {
    match (walks.read_base_ps, walks.read_huge_ps) {
        (Some(base), Some(huge)) => vec![format!(
            "page walks by calibration: a dependent random read in 256 MiB takes {:.1} ns on base pages and {:.1} ns on huge ones",
            base as f64 / 1e3,
            huge as f64 / 1e3
        )],
        _ => walks.not_measured.iter().map(|(what, why)| format!("{what}: {why}")).collect(),
    }
}

/// The answer as text.
fn table(rows: &[Row], count: usize, verdict: Option<String>, notes: &[String]) -> String {
    let mut header = vec!["median of a run".to_owned()];
    header.extend(Arm::ALL[..count].iter().map(|arm| arm.name().to_owned()));
    for arm in &Arm::ALL[1..count] {
        header.push(format!("{} / off", arm.name().trim_start_matches("thp-")));
        header.push("95 % interval".to_owned());
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let cells: Vec<_> = rows.iter().map(Row::cells).collect();
    let verdict = verdict.map(|verdict| format!("\n{verdict}")).unwrap_or_default();
    let notes: String = notes.iter().map(|note| format!("\n{note}")).collect();
    format!("{}{verdict}{notes}\n", text::table(&header, &cells))
}

/// How many runs of each arm failed, and how.
fn failures(all: &[Runs]) -> String {
    let arms = Arm::ALL.iter().zip(all).filter(|(_, runs)| !runs.failed.is_empty());
    let each = arms.map(|(arm, runs)| {
        let kinds = runs.failed.iter().map(|(how, count)| format!("{count} ({how})"));
        format!("{} {}", arm.name(), kinds.collect::<Vec<_>>().join(", "))
    });
    format!("runs of the command failed: {}", each.collect::<Vec<_>>().join("; "))
}

enum Once {
    /// The figures, and how the command ended.
    Done(Run, ExitStatus),
    /// It was not started; the reason has been said.
    Refused(Exit),
}

/// Runs the command once.
fn once(linux: &Linux, words: &[OsString], arm: Arm) -> Result<Once> {
    let (mut command, path) = match prepare::plain(words)? {
        Prepared::Ready(command, path) => (*command, path),
        Prepared::Refused(exit) => return Ok(Once::Refused(exit)),
    };
    command.stdin(Stdio::null()).stdout(Stdio::null());
    match arm {
        Arm::Off => thp::switch_off_in(&mut command),
        Arm::AsIs => {}
        Arm::On => {
            let mut tunables = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
            tunables.push(if tunables.is_empty() { "" } else { ":" });
            tunables.push("glibc.malloc.hugetlb=1");
            command.env("GLIBC_TUNABLES", tunables);
        }
    }
    let (all, status) = match measured(linux, command, |child| Ok(child.wait()?))? {
        Ok(measured) => measured,
        Err(error) => return Ok(Once::Refused(prepare::cannot_execute(&path, &error))),
    };
    Ok(Once::Done(all, status))
}

/// One quantity of all arms, as they are in [`Arm::ALL`].
struct Row {
    name: &'static str,
    /// Of the arm that has the fewest.
    runs: usize,
    medians: Vec<f64>,
    /// Of each arm by the first; and of the last arm by the second, if there are three.
    ratios: Vec<Option<Estimate>>,
    more: Option<Estimate>,
}

/// Medians of each quantity that all arms have.
fn compare(all: &[Runs], seed: u64) -> Vec<Row> {
    let names = all.first().and_then(|runs| runs.figures.first()).into_iter().flatten();
    let values = |runs: &Runs, name: &str| -> Vec<f64> {
        let figures = runs.figures.iter().flatten();
        figures.filter(|(known, _)| *known == name).map(|(_, value)| *value).collect()
    };
    let row = |name: &'static str| {
        let arms: Vec<Vec<f64>> = all.iter().map(|runs| values(runs, name)).collect();
        let of = |new: &[f64], old: &[f64]| ratio_of_medians(new, old, &Bootstrap::seeded(seed));
        let (off, others) = arms.split_first()?;
        Some(Row {
            name,
            runs: arms.iter().map(Vec::len).min()?,
            medians: arms.iter().map(|values| median(values)).collect::<Option<_>>()?,
            ratios: others.iter().map(|values| of(values, off)).collect(),
            more: if let [as_is, on] = others { of(on, as_is) } else { None },
        })
    };
    names.filter_map(|(name, _)| row(name)).collect()
}

/// With fewer runs of two arms, one being faster throughout comes about by chance in more than 5 % of all cases: 2 of
/// the C(2n, n) orders that n runs of each can have.
const ENOUGH: usize = 4;

/// What a ratio of times says, if there are enough `runs` of each and its interval leaves 1 on one side.
fn says(ratio: Option<Estimate>, runs: usize) -> Option<String> {
    let ratio = ratio.filter(|_| runs >= ENOUGH)?;
    let interval = ratio.interval?;
    let percent = (ratio.value - 1.0).abs() * 100.0;
    if interval.high < 1.0 {
        Some(format!("{percent:.1} % less time"))
    } else if interval.low > 1.0 {
        Some(format!("{percent:.1} % more time"))
    } else {
        None
    }
}

impl Row {
    /// What these runs say of time, in a sentence.
    fn verdict(&self) -> String {
        let first = match says(self.ratios.first().copied().flatten(), self.runs) {
            Some(what) => format!("with the huge pages that it has as it is, the command takes {what} than without any"),
            None => "as it is, the command takes no other time than without huge pages that these runs can tell (more: --runs)".into(),
        };
        let second = match (self.ratios.len(), says(self.more, self.runs)) {
            (2, Some(what)) => {
                format!("; where malloc asks for more (run --huge), {what} than as it is")
            }
            (2, None) => {
                "; where malloc asks for more, no other time than as it is that these runs can tell"
                    .into()
            }
            _ => String::new(),
        };
        format!("verdict: {first}{second}.")
    }

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.name.replace('_', " ")];
        cells.extend(self.medians.iter().map(|value| number(*value)));
        for ratio in &self.ratios {
            let interval = ratio.and_then(|ratio| ratio.interval);
            cells.push(ratio.map_or("-".into(), |ratio| format!("{:.3}", ratio.value)));
            cells.push(interval.map_or("-".into(), |i| format!("[{:.3}, {:.3}]", i.low, i.high)));
        }
        cells
    }

    /// `ratio` is that of the arm with most huge pages by that without.
    fn json(&self) -> (String, Value) {
        let interval = |ratio: Option<Estimate>| {
            ratio.and_then(|ratio| ratio.interval).map(|interval| [interval.low, interval.high])
        };
        let value = |ratio: Option<Estimate>| ratio.map(|ratio| ratio.value);
        let (as_is, on) =
            (self.ratios.first().copied().flatten(), self.ratios.last().copied().flatten());
        let value = json!({
            "thp_off": self.medians.first(),
            "as_is": self.medians.get(1),
            "thp_on": self.medians.last(),
            "ratio": value(on),
            "interval": interval(on),
            "as_is_ratio": value(as_is),
            "as_is_interval": interval(as_is),
            "more_ratio": value(self.more),
            "more_interval": interval(self.more),
        });
        (self.name.to_owned(), value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(seconds: &[f64]) -> Runs {
        let figures = seconds.iter().map(|value| vec![("seconds", *value)]).collect();
        Runs { figures, ..Runs::default() }
    }

    fn verdict(all: &[Runs]) -> String {
        compare(all, 1)[0].verdict()
    }

    #[test]
    fn the_verdict_says_what_is_had_already_and_what_more_would_give() {
        let (slow, fast) = ([2.0, 2.01, 2.02, 1.99, 1.98], [1.0, 1.01, 1.02, 0.99, 0.98]);
        let had = verdict(&[arm(&slow), arm(&fast), arm(&fast)]);
        assert!(had.contains("as it is, the command takes 50.0 % less time"), "{had}");
        assert!(had.contains("no other time than as it is"), "{had}");
        let more = verdict(&[arm(&slow), arm(&slow), arm(&fast)]);
        assert!(more.contains("no other time than without huge pages"), "{more}");
        assert!(more.contains("(run --huge), 50.0 % less time than as it is"), "{more}");
        let worse = verdict(&[arm(&fast), arm(&slow)]);
        assert!(worse.contains("100.0 % more time") && !worse.contains("malloc"), "{worse}");
    }

    #[test]
    fn a_few_runs_decide_nothing() {
        let (slow, fast) = ([2.0, 2.01, 2.02, 1.99], [1.0, 1.01, 1.02, 0.99]);
        let of = |runs: usize| verdict(&[arm(&slow[..runs]), arm(&fast[..runs])]);
        assert!(of(3).contains("no other time"), "{}", of(3));
        assert!(of(4).contains("% less time"), "{}", of(4));
    }

    #[test]
    fn failures_are_told_by_arm_and_status() {
        let failed = BTreeMap::from([("exit status: 3".to_owned(), 4)]);
        let all = [arm(&[1.0]), Runs { failed, ..Runs::default() }];
        assert_eq!(failures(&all), "runs of the command failed: as is 4 (exit status: 3)");
    }
}
