//! The raw figures of a run as rows of one Parquet file, and tables from them alone: the second of three levels at
//! which this experiment is reproduced.
//!
//! | level | command | takes |
//! |---|---|---|
//! | quick | `reproduce moca --quick` | some kernels, small classes |
//! | tables from kept figures | `reproduce moca --from-kept` | nothing is run |
//! | from scratch | `reproduce moca` | all kernels, class A |
//!
//! A run writes its file, `moca.parquet`, beside its tables; the one of `experiments/kept/` is in this binary.

use anyhow::{Context as _, Result, anyhow, bail};
use pagemill_model::dataset::{self, FileWriter};
use pagemill_model::results::TraceRun;

use super::{
    BACK_ENDS, CLASSES, Checked, EXACT, FAULTS, KernelRow, Options, Outcome, PageAgreement, Step,
    Traced, kernels,
};

/// The kept run of this repository.
const KEPT: &[u8] = include_bytes!("../../../../../experiments/kept/moca.parquet");

const RUN: &str = "run";
const SWEEP: &str = "sweep";
const VALIDATED: &str = "validated";
const MISSING: &str = "missing";
const SOURCE: &str = "source";
const SKIPPED: &str = "skipped";
const MACHINE: &str = "machine";
const INTERRUPTED: &str = "interrupted";

/// A run that was kept.
#[derive(Debug, PartialEq)]
pub struct KeptRun {
    /// What came of it.
    pub outcome: Outcome,
    /// What it ran on and when, in words.
    pub machine: Vec<String>,
}

/// The file of a run.
///
/// # Errors
/// Where its rows cannot be encoded.
pub(super) fn write(outcome: &Outcome, machine: &[String]) -> Result<Vec<u8>> {
    let mut file = FileWriter::create(Vec::new()).map_err(|why| anyhow!(why))?;
    file.write(&rows(outcome, machine)).map_err(|why| anyhow!(why))?;
    file.finish().map_err(|why| anyhow!(why))
}

fn rows(outcome: &Outcome, machine: &[String]) -> Vec<TraceRun> {
    let said = |kind: &str, words: &str| TraceRun {
        kind: Some(kind.to_owned()),
        words: Some(words.to_owned()),
        ..TraceRun::default()
    };
    let mut rows: Vec<TraceRun> = machine.iter().map(|words| said(MACHINE, words)).collect();
    rows.extend(outcome.interrupted.then(|| said(INTERRUPTED, "it was ended early")));
    rows.extend(outcome.skipped.iter().map(|words| said(SKIPPED, words)));
    for (back_end, by) in &outcome.events_by {
        rows.push(TraceRun { back_end: Some((*back_end).to_owned()), ..said(SOURCE, by) });
    }
    for row in &outcome.rows {
        let of = |kind: &str| TraceRun {
            kind: Some(kind.to_owned()),
            kernel: Some(row.kernel.to_owned()),
            class: Some(row.class.to_owned()),
            threads: Some(row.threads as u64),
            back_end: Some(row.back_end.to_owned()),
            ..TraceRun::default()
        };
        for (at, run) in row.traced.iter().enumerate() {
            let native = row.native.get(at).copied();
            let repetition = Some(at as u64 + 1);
            rows.push(TraceRun { native_cpu_seconds: native, repetition, ..run.row(of(RUN)) });
        }
        let missing = row.missing.clone();
        rows.extend(missing.map(|words| TraceRun { words: Some(words), ..of(MISSING) }));
    }
    for step in &outcome.sweep {
        rows.push(step.traced.row(TraceRun {
            kind: Some(SWEEP.to_owned()),
            kernel: Some("is".to_owned()),
            class: Some("A".to_owned()),
            threads: Some(1),
            back_end: Some(FAULTS.to_owned()),
            monitor_ms: Some(step.monitor),
            log_ms: Some(step.log),
            native_cpu_seconds: Some(step.native),
            ..TraceRun::default()
        }));
    }
    rows.extend(outcome.checked.iter().map(|one| TraceRun {
        kind: Some(VALIDATED.to_owned()),
        kernel: Some(one.kernel.to_owned()),
        class: Some(outcome.options.smaller.to_owned()),
        threads: Some(1),
        found_pages: Some(one.numbers()),
        ..TraceRun::default()
    }));
    rows
}

impl KeptRun {
    /// The kept run of this repository.
    ///
    /// # Errors
    /// Where it is of another version.
    pub fn built_in() -> Result<Self> {
        Self::read(KEPT).context("the kept run of this binary")
    }

    /// From its file, which anybody may have made.
    ///
    /// # Errors
    /// For a file of anything else.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let rows: Vec<TraceRun> = dataset::decode(bytes).map_err(|why| anyhow!(why))?;
        Self::of(rows)
    }

    fn of(rows: Vec<TraceRun>) -> Result<Self> {
        let mut outcome = Outcome::new(Options {
            kernels: Vec::new(),
            repetitions: 1,
            threads: Vec::new(),
            log: Vec::new(),
            ..Options::new(false, None)
        });
        let mut machine = Vec::new();
        for (at, row) in rows.into_iter().enumerate() {
            take(&mut outcome, &mut machine, row).with_context(|| format!("row {at}"))?;
        }
        let options = &mut outcome.options;
        for row in &outcome.rows {
            if !options.kernels.contains(&row.kernel) {
                options.kernels.push(row.kernel);
            }
            if !options.threads.contains(&row.threads) {
                options.threads.push(row.threads);
            }
            options.repetitions = options.repetitions.max(row.traced.len() as u32);
            match row.back_end {
                FAULTS => options.class = row.class,
                EXACT => options.smaller = row.class,
                _ => {}
            }
        }
        options.log = outcome.sweep.iter().map(|step| step.log).collect();
        options.log.sort_unstable();
        options.log.dedup();
        if outcome.rows.is_empty() {
            bail!("it has no runs of a kernel under a back end");
        }
        Ok(Self { outcome, machine })
    }
}

/// Takes a row into what it is of.
fn take(outcome: &mut Outcome, machine: &mut Vec<String>, row: TraceRun) -> Result<()> {
    let words = row.words.clone().unwrap_or_default();
    let kernel = || known("kernel", row.kernel.as_deref(), &kernels());
    let back_end = || known("back end", row.back_end.as_deref(), &BACK_ENDS);
    match row.kind.as_deref().unwrap_or_default() {
        MACHINE => machine.push(words),
        INTERRUPTED => outcome.interrupted = true,
        SKIPPED => outcome.skipped.push(words),
        SOURCE => outcome.events_by.push((back_end()?, words)),
        kind @ (RUN | MISSING) => {
            let threads = row.threads.unwrap_or(1) as usize;
            let class = known("class", row.class.as_deref(), &CLASSES)?;
            let (kernel, back_end) = (kernel()?, back_end()?);
            let same = |of: &&mut KernelRow| {
                (of.kernel, of.class, of.threads, of.back_end) == (kernel, class, threads, back_end)
            };
            if outcome.rows.iter_mut().find(same).is_none() {
                outcome.rows.push(KernelRow {
                    kernel,
                    class,
                    threads,
                    back_end,
                    native: Vec::new(),
                    traced: Vec::new(),
                    missing: None,
                });
            }
            let of = outcome.rows.iter_mut().find(same).context("it was put there")?;
            if kind == MISSING {
                of.missing = Some(words);
            } else {
                of.native.push(seconds(row.native_cpu_seconds)?);
                of.traced.push(Traced::of(&row)?);
            }
        }
        SWEEP => outcome.sweep.push(Step {
            monitor: seconds(row.monitor_ms)?,
            log: row.log_ms.context("it has no interval")?,
            native: seconds(row.native_cpu_seconds)?,
            traced: Traced::of(&row)?,
        }),
        VALIDATED => {
            let numbers = row.found_pages.clone().unwrap_or_default();
            outcome.checked.push(Checked::of(kernel()?, &numbers).context("it has no pages")?);
        }
        other => bail!("there is no kind {other:?}"),
    }
    Ok(())
}

/// The name among those there are.
fn known(what: &str, name: Option<&str>, names: &[&'static str]) -> Result<&'static str> {
    let name = name.with_context(|| format!("it has no {what}"))?;
    let known = names.iter().find(|known| **known == name);
    known.copied().with_context(|| format!("there is no {what} {name:?}"))
}

/// A time that a ratio can be made of.
fn seconds(value: Option<f64>) -> Result<f64> {
    value.filter(|value| value.is_finite() && *value >= 0.0).context("it has no time")
}

impl Traced {
    fn row(&self, row: TraceRun) -> TraceRun {
        TraceRun {
            cpu_seconds: Some(self.cpu),
            events: Some(self.events),
            pages: Some(self.pages),
            intervals: Some(self.intervals),
            lost: Some(self.lost),
            ..row
        }
    }

    fn of(row: &TraceRun) -> Result<Self> {
        let number = |value: Option<u64>| value.context("it lacks a number");
        Ok(Self {
            cpu: seconds(row.cpu_seconds)?,
            events: number(row.events)?,
            pages: number(row.pages)?,
            intervals: number(row.intervals)?,
            lost: number(row.lost)?,
        })
    }
}

impl Checked {
    fn numbers(&self) -> Vec<u64> {
        let all =
            [self.touched, self.written, self.touched_in_intervals, self.written_in_intervals];
        all.iter().flat_map(|found| [found.exact, found.missing, found.extra]).collect()
    }

    fn of(kernel: &'static str, numbers: &[u64]) -> Option<Self> {
        let found = |at: usize| {
            let numbers = numbers.get(3 * at..3 * at + 3)?;
            Some(PageAgreement { exact: numbers[0], missing: numbers[1], extra: numbers[2] })
        };
        Some(Self {
            kernel,
            touched: found(0)?,
            written: found(1)?,
            touched_in_intervals: found(2)?,
            written_in_intervals: found(3)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::NAMES;
    use super::*;
    use crate::tabled::Tables as _;

    #[test]
    fn the_kept_run_is_whole_and_makes_the_tables_again() {
        let kept = KeptRun::built_in().unwrap();
        let outcome = &kept.outcome;
        assert!(!outcome.interrupted && !kept.machine.is_empty(), "{:?}", kept.machine);
        assert!(KEPT.len() < 20_000_000);
        for kernel in &outcome.options.kernels {
            let ran = |back_end| {
                let mut rows = outcome.rows.iter().filter(|row| row.kernel == *kernel);
                rows.any(|row| row.back_end == back_end && !row.traced.is_empty())
            };
            assert!(ran(FAULTS) && ran(NAMES), "{kernel}");
        }
        assert!(!outcome.claims().is_empty());
        assert!(outcome.text().contains("617.80"), "the published figures stand beside");
        // Written again it is the same run.
        assert_eq!(KeptRun::read(&write(&kept.outcome, &kept.machine).unwrap()).unwrap(), kept);
    }

    #[test]
    fn what_is_no_kept_run_is_refused() {
        for bytes in [&b"PAR1"[..], &KEPT[..KEPT.len() / 2], b""] {
            assert!(KeptRun::read(bytes).is_err());
        }
        let row = |kind: &str| TraceRun { kind: Some(kind.into()), ..TraceRun::default() };
        for (rows, answer) in [
            (vec![], "no runs"),
            (vec![row("machine")], "no runs"),
            (vec![row("rnu")], "no kind \"rnu\""),
            (vec![TraceRun { class: Some("A".into()), ..row("run") }], "no kernel"),
            (vec![TraceRun { kernel: Some("xx".into()), ..row("validated") }], "no kernel \"xx\""),
        ] {
            let error = format!("{:#}", KeptRun::of(rows).unwrap_err());
            assert!(error.contains(answer), "{answer}: {error}");
        }
    }
}
