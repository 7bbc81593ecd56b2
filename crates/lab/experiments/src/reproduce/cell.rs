//! One run of one program in one arm, and what came of it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use pagemill_analysis::statistics::mean_over_time;
use pagemill_model::digest::Digest;

use super::arm::{Allocator, Arm};
use super::experiment::{Experiment, Program};
use super::input::{Check, CheckedProgram, Inputs, PATIENCE};
use super::outcome::{Outcome, TOO_SHORT, checked, last_line};
use super::target::{Sample, Stage};
use super::{browser, redis};

/// Which run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The experiment.
    pub experiment: String,
    /// The case.
    pub case: String,
    /// The arm.
    pub arm: &'static str,
    /// Counted from one.
    pub repetition: u32,
}

impl Cell {
    /// Experiment, case, arm and repetition, as a command names it.
    pub fn name(&self) -> String {
        let Self { experiment, case, arm, repetition } = self;
        format!("{experiment}/{case}/{arm}/{repetition}")
    }

    /// Experiment, case, arm and repetition, for people.
    pub fn words(&self) -> String {
        let Self { experiment, case, arm, repetition } = self;
        let case = if case == experiment { String::new() } else { format!(" {case}") };
        format!("{experiment}{case} {arm} #{repetition}")
    }
}

/// Runs one cell. An error is the reason why it has no results.
///
/// # Errors
/// Why it has no results.
pub fn run(
    stage: &Stage<'_>,
    inputs: &Inputs,
    experiment: &Experiment,
    case: &str,
    arm: &Arm,
    scale: f64,
    window: Option<f64>,
) -> Result<Outcome> {
    let prepared = inputs.build(experiment, case, scale)?;
    let mut outcome = match &experiment.program {
        Program::Redis(load) => {
            let load = redis::scaled(load, scale, window);
            let way = load.loads.iter().find(|way| way.name() == case);
            let way = *way.context("no such way of inserting")?;
            redis::run(stage, inputs.directory(), &prepared.program, arm, &load, way)?
        }
        Program::Browser(page) => {
            let page = browser::scaled(page, scale);
            browser::run(stage, inputs.directory(), prepared.program, arm, &page)?
        }
        _ => to_the_end(stage, arm, &prepared)?,
    };
    memory_metrics(&mut outcome);
    Ok(outcome)
}

/// Runs a program that ends by itself.
fn to_the_end(stage: &Stage<'_>, arm: &Arm, prepared: &CheckedProgram) -> Result<Outcome> {
    let program = &prepared.program;
    if let Check::SameFile(path) = &prepared.check {
        // A file of the last cell must not pass for this one's.
        let _ = fs::remove_file(path);
    }
    let target = stage.start(arm, program)?;
    let (ended, seen) = target.finish(stage, PATIENCE)?;
    if !ended.status.success() {
        let complaints = fs::read_to_string(&program.complaints).unwrap_or_default();
        bail!("{} ended with {}: {}", program.path.display(), ended.status, last_line(&complaints));
    }
    if seen.is_too_short(arm) {
        return Ok(Outcome { notes: vec![TOO_SHORT.to_owned()], ..Outcome::default() });
    }
    let mut outcome = checked(arm, seen)?;
    let cpu = ended.cpu.as_secs_f64();
    outcome.metrics.insert("wall".into(), ended.wall.as_secs_f64());
    outcome.metrics.insert("cpu".into(), cpu);
    if matches!(arm.allocator, Allocator::Ours { ksm: true, .. }) {
        outcome.metrics.insert("ksmd_cpu".into(), ended.ksmd.as_secs_f64());
    }
    match &prepared.check {
        Check::Same => outcome.digest = Some(digest_of(&program.output, "")?),
        Check::SameFile(path) => outcome.digest = Some(digest_of(path, "")?),
        Check::SameLines(start) => outcome.digest = Some(digest_of(&program.output, start)?),
        Check::Lines(start, wanted) => {
            let text = fs::read(&program.output).context("cannot read the output")?;
            let count =
                text.split(|&byte| byte == b'\n').filter(|line| line.starts_with(start.as_bytes()));
            let count = count.count();
            ensure!(count == *wanted, "the output has {count} lines {start:?}, not {wanted}");
        }
        Check::Report => report_metrics(&program.output, cpu, &mut outcome)?,
    }
    Ok(outcome)
}

/// Mean over time, peak and last value of the samples. A last value that was read beside them may be the peak.
fn memory_metrics(outcome: &mut Outcome) {
    let samples = &outcome.samples;
    let beside = |name: &str| outcome.metrics.get(name).copied();
    let (last_pss, last_charge) = (beside("final_pss"), beside("final_charge"));
    let pss = |sample: &Sample| sample.pss as f64;
    let mut put = |name: &str, value: Option<f64>| {
        if let Some(value) = value {
            outcome.metrics.entry(name.to_owned()).or_insert(value);
        }
    };
    put("mean_pss", mean_over_time(samples, |sample| (sample.seconds, pss(sample))));
    put("peak_pss", samples.iter().map(pss).chain(last_pss).reduce(f64::max));
    put("final_pss", samples.last().map(pss));
    let charges = || samples.iter().filter_map(|sample| sample.charge).map(|bytes| bytes as f64);
    put("peak_charge", charges().chain(last_charge).reduce(f64::max));
    put("final_charge", charges().next_back());
}

/// Takes over what `pagemill workload` printed. Names with a unit of microseconds become seconds.
fn report_metrics(output: &Path, cpu: f64, outcome: &mut Outcome) -> Result<()> {
    let text = fs::read_to_string(output).context("cannot read the workload's report")?;
    let report: serde_json::Value =
        serde_json::from_str(text.trim()).with_context(|| format!("no report: {text:?}"))?;
    let field = |name: &str| {
        report[name].as_f64().with_context(|| format!("the workload reported no {name}"))
    };
    let (operations, seconds) = (field("operations")?, field("seconds")?);
    outcome.metrics.insert("cpu_a_call".into(), cpu / operations);
    outcome.metrics.insert("calls_a_second".into(), operations / seconds);
    outcome.metrics.insert("operations".into(), operations);
    for (name, value) in report["metrics"].as_object().into_iter().flatten() {
        let value = value.as_f64().context("a metric is no number")?;
        match name.strip_suffix("_us") {
            Some(name) => outcome.metrics.insert(name.to_owned(), value * 1e-6),
            None => outcome.metrics.insert(name.clone(), value),
        };
    }
    Ok(())
}

/// Digest of the lines that begin so.
fn digest_of(path: &Path, start: &str) -> Result<u64> {
    let bytes = pagemill_model::whole::read(path, pagemill_model::whole::DATA)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    let mut lines = lines.filter(|line| line.starts_with(start.as_bytes())).peekable();
    ensure!(lines.peek().is_some(), "the program wrote no line {start:?} to {}", path.display());
    let mut digest = Digest::default();
    lines.for_each(|line| digest.take(line));
    Ok(digest.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, pss: u64) -> Sample {
        Sample { seconds, pss, charge: Some(pss + 1) }
    }

    #[test]
    fn a_final_value_that_was_read_at_the_right_moment_is_kept() {
        let mut outcome =
            Outcome { samples: vec![sample(0.0, 5), sample(1.0, 3)], ..Outcome::default() };
        outcome.metrics.insert("final_pss".into(), 4.0);
        memory_metrics(&mut outcome);
        assert_eq!(outcome.metrics["final_pss"], 4.0);
        assert_eq!(outcome.metrics["peak_pss"], 5.0);
        assert_eq!(outcome.metrics["final_charge"], 4.0);
        outcome.metrics = [("final_pss".to_owned(), 6.0)].into();
        memory_metrics(&mut outcome);
        assert_eq!(outcome.metrics["peak_pss"], 6.0, "the last value is the greatest");
    }
}
