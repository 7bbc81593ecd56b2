//! Published claims and our targets, each with what was measured and a judgement in words.
//!
//! Claims are compared as ratios of arms of the same run (a change of -39 % is a ratio of 0.61), because
//! other machines give other megabytes and seconds. The rule, lower being better throughout:
//!
//! | verdict | when |
//! |---|---|
//! | reproduced | the published ratio lies in our 95 % interval, or ours is within 0.05 of it, on the same side of 1 |
//! | better than published | ours is lower |
//! | same direction, smaller effect | a saving was published, ours is a saving too, but smaller |
//! | not reproduced | anything else |
//!
//! "No difference" is reproduced within the tolerance that the claim states. Absolute figures (the
//! longest pause) are compared as they are, with the remark that the machines differ: reproduced or
//! better if ours is not higher.

use anyhow::{Context, Result};
use serde::Serialize;

use crate::claim::{Attainment, Basis, Verdict};

use super::experiment::{self, Claim, Experiment, Goal, Published, Reference};
use super::measured::{Figure, Measured};
use super::plan::Skipped;

/// How close to a published ratio counts as reproduced, whatever the interval.
const CLOSE: f64 = 0.05;

/// A claim, answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// What was claimed.
    pub says: String,
    /// The published number with its unit, as published.
    pub published: String,
    /// The arm that answers.
    pub arm: String,
    /// The arm compared with.
    pub against: Option<String>,
    /// Our ratio or value, in the unit of the published one.
    pub measured: Option<Figure>,
    /// The published ratio or value.
    pub expected: Option<f64>,
    /// The judgement.
    pub verdict: Verdict,
}

/// A target, answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// What is asked.
    pub says: String,
    /// The arm.
    pub arm: String,
    /// Our ratio or value.
    pub measured: Option<Figure>,
    /// What must be reached.
    pub must: f64,
    /// What is hoped for.
    pub aim: f64,
    /// The judgement.
    pub verdict: Attainment,
}

/// Judges the claims of an experiment.
///
/// # Errors
/// As of [`experiment::published`].
pub fn claims(
    experiment: &Experiment,
    measured: &Measured<'_>,
    skipped: &[Skipped],
) -> Result<Vec<Judged>> {
    let published = experiment::published()?;
    let mut judged = Vec::new();
    for claim in &experiment.claims {
        let number = find(&published, &claim.published)?;
        let expected = expected(claim, number, &published)?;
        let cases = cases_of(experiment, &claim.cases);
        for arm in &claim.arms {
            let figure = match &claim.against {
                Some(against) => measured.ratio(&cases, &claim.metric, arm, against),
                None => measured
                    .median(&cases[0], arm, &claim.metric)
                    .map(|figure| scaled(figure, claim.absolute.unwrap_or(1.0))),
            };
            let verdict = match figure {
                None => {
                    let against = claim.against.as_deref();
                    let why = absent(measured, experiment, &cases, arm, against, skipped);
                    Verdict::NotMeasured(why)
                }
                Some(figure) => judge(claim, expected, &figure),
            };
            judged.push(Judged {
                says: claim.says.clone(),
                published: words(claim, number, &published)?,
                arm: arm.clone(),
                against: claim.against.clone(),
                measured: figure,
                expected,
                verdict,
            });
        }
    }
    Ok(judged)
}

fn find<'a>(published: &'a [Published], wanted: &Reference) -> Result<&'a Published> {
    published
        .iter()
        .find(|number| number.reference == *wanted)
        .with_context(|| format!("no published number {wanted:?}"))
}

/// The published ratio or value; `None` for one that is stated in words.
fn expected(claim: &Claim, number: &Published, all: &[Published]) -> Result<Option<f64>> {
    if claim.similar.is_some() {
        return Ok(None);
    }
    let value: f64 = number.value.parse().context("a published number is no number")?;
    Ok(Some(match &claim.published_against {
        Some(against) => value / find(all, against)?.value.parse::<f64>()?,
        None if claim.absolute.is_some() => value,
        None => 1.0 + value / 100.0,
    }))
}

fn words(claim: &Claim, number: &Published, all: &[Published]) -> Result<String> {
    let one = |number: &Published| match number.unit.as_str() {
        "percent" => format!("{} %", number.value),
        "text" => number.value.clone(),
        unit => format!("{} {unit}", number.value),
    };
    Ok(match &claim.published_against {
        Some(against) => format!("{} / {}", one(number), one(find(all, against)?)),
        None => one(number),
    })
}

fn scaled(figure: Figure, factor: f64) -> Figure {
    let interval = figure.interval.map(|(low, high)| (low * factor, high * factor));
    Figure { value: figure.value * factor, interval, ..figure }
}

/// The rule of the module's table.
fn judge(claim: &Claim, expected: Option<f64>, figure: &Figure) -> Verdict {
    let inside =
        |value: f64| figure.interval.is_some_and(|(low, high)| low <= value && value <= high);
    let basis = Basis::once(figure.interval.is_none());
    match (claim.similar, expected) {
        (Some(tolerance), _) if (figure.value - 1.0).abs() <= tolerance => {
            Verdict::Reproduced(basis)
        }
        (Some(_), _) if figure.value < 1.0 => Verdict::Better(basis),
        (_, Some(value)) if claim.absolute.is_some() => match () {
            () if figure.value <= value => Verdict::Better(Basis::AnotherMachine),
            () if inside(value) => Verdict::Reproduced(Basis::AnotherMachine),
            () => Verdict::NotReproduced(Basis::AnotherMachine),
        },
        (None, Some(ratio)) => {
            let same_side = (ratio < 1.0) == (figure.value < 1.0);
            let close = inside(ratio) || (figure.value - ratio).abs() <= CLOSE;
            match () {
                () if close && same_side => Verdict::Reproduced(basis),
                () if figure.value < ratio => Verdict::Better(basis),
                () if ratio < 1.0 && same_side => Verdict::Smaller(basis),
                () => Verdict::NotReproduced(basis),
            }
        }
        _ => Verdict::NotReproduced(basis),
    }
}

fn cases_of(experiment: &Experiment, named: &[String]) -> Vec<String> {
    if named.is_empty() { experiment.cases() } else { named.to_vec() }
}

/// Why there is no figure.
fn absent(
    measured: &Measured<'_>,
    experiment: &Experiment,
    cases: &[String],
    arm: &str,
    against: Option<&str>,
    skipped: &[Skipped],
) -> String {
    // A case that was left out is skipped under the experiment's name and its own.
    let left_out = |name: &str| {
        let case = name.strip_prefix(&experiment.name).and_then(|rest| rest.strip_prefix(' '));
        case.is_some_and(|case| cases.iter().any(|one| one == case))
    };
    let reason = |arm: &str| {
        let skip = skipped.iter().find(|skip| {
            let is_it = skip.experiment == experiment.name || left_out(&skip.experiment);
            is_it && skip.arm.as_deref().is_none_or(|name| name == arm)
        })?;
        Some(skip.reason.clone())
    };
    let reason = reason(arm).or_else(|| reason(against?));
    let reason =
        reason.or_else(|| measured.too_short(arm)).or_else(|| measured.too_short(against?));
    let unknown = || "the arm did not run or has no such figure".to_owned();
    reason.unwrap_or_else(unknown)
}

/// Compares with the targets of an experiment.
pub fn goals(
    experiment: &Experiment,
    measured: &Measured<'_>,
    skipped: &[Skipped],
) -> Vec<Reached> {
    let each =
        experiment.goals.iter().flat_map(|goal| goal.arms.iter().map(move |arm| (goal, arm)));
    let reached = each.map(|(goal, arm)| {
        let cases = cases_of(experiment, &goal.cases);
        let figure = match &goal.against {
            Some(against) => measured.ratio(&cases, &goal.metric, arm, against),
            None => measured.median(&cases[0], arm, &goal.metric),
        };
        let figure = figure.map(|figure| scaled(figure, goal.scale));
        let verdict = match figure {
            None => Attainment::NotMeasured(absent(
                measured,
                experiment,
                &cases,
                arm,
                goal.against.as_deref(),
                skipped,
            )),
            Some(figure) => against_goal(goal, figure.value),
        };
        Reached {
            says: goal.says.clone(),
            arm: arm.clone(),
            measured: figure,
            must: goal.must,
            aim: goal.aim,
            verdict,
        }
    });
    reached.collect()
}

fn against_goal(goal: &Goal, value: f64) -> Attainment {
    match () {
        () if value <= goal.aim => Attainment::Aim,
        () if value <= goal.must => Attainment::Reached,
        () => Attainment::Missed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::cell::Cell;
    use crate::reproduce::outcome::{Outcome, TOO_SHORT};
    use crate::reproduce::summary::tests::cells;

    fn redis() -> Experiment {
        experiment::select(&["redis-fragmentation".into()], &[]).unwrap().remove(0)
    }

    /// The verdict on the published 39 % for a final memory of `ours` where jemalloc takes 100.
    fn verdict_of(ours: &[f64]) -> String {
        let experiment = redis();
        let name = &experiment.name;
        let jemalloc: &[f64] = &[100.0, 100.0, 100.0];
        let cells =
            cells(name, "populate", "final_pss", &[("1y-remap", ours), ("jemalloc", jemalloc)]);
        let judged = claims(&experiment, &Measured::new(&cells, name, 1), &[]).unwrap();
        let saving = judged.iter().find(|one| one.arm == "1y-remap" && one.expected == Some(0.61));
        let saving = saving.unwrap();
        assert_eq!(saving.published, "-39 %");
        saving.verdict.to_string()
    }

    #[test]
    fn the_rule_gives_each_verdict() {
        assert_eq!(verdict_of(&[60.0, 61.0, 62.0]), "reproduced");
        assert_eq!(verdict_of(&[64.0, 65.0, 65.5]), "reproduced");
        assert_eq!(verdict_of(&[40.0, 41.0, 42.0]), "better than published");
        assert_eq!(verdict_of(&[80.0, 81.0, 82.0]), "same direction, smaller effect");
        assert_eq!(verdict_of(&[101.0, 102.0, 103.0]), "not reproduced");
        assert_eq!(verdict_of(&[61.0]), "reproduced (one run, no interval)");
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let experiment = redis();
        let skip = Skipped {
            experiment: experiment.name.clone(),
            arm: Some("1y-ksm".into()),
            reason: "switching ksmd on needs root".into(),
        };
        let none = Measured::new(&[], &experiment.name, 1);
        let judged = claims(&experiment, &none, std::slice::from_ref(&skip)).unwrap();
        let verdict =
            |arm: &str| judged.iter().find(|one| one.arm == arm).unwrap().verdict.to_string();
        assert_eq!(verdict("1y-ksm"), "not measured: switching ksmd on needs root");
        assert!(verdict("1y-remap").starts_with("not measured: the arm did not run"));
    }

    /// A program that ended before its memory was read once had failed.
    #[test]
    fn a_run_that_was_too_short_is_no_failure_and_says_so() {
        let experiment = redis();
        let (name, case) = (experiment.name.clone(), experiment.cases()[0].clone());
        let cell = Cell { experiment: name.clone(), case, arm: "1y-remap", repetition: 1 };
        let short = Outcome { notes: vec![TOO_SHORT.to_owned()], ..Outcome::default() };
        let finished = [(cell, Ok(short))];
        let judged = claims(&experiment, &Measured::new(&finished, &name, 1), &[]).unwrap();
        let of = judged.iter().filter(|one| one.arm == "1y-remap");
        let verdicts: Vec<String> = of.map(|one| one.verdict.to_string()).collect();
        assert!(
            verdicts.len() > 1 && verdicts.iter().all(|it| it.contains("too short at this scale"))
        );
    }

    /// Of a browser that is not installed it was said that the arm did not run.
    #[test]
    fn a_case_that_was_left_out_says_why() {
        let experiment = experiment::select(&["browsers".into()], &[]).unwrap().remove(0);
        let skip = Skipped {
            experiment: "browsers firefox".into(),
            arm: None,
            reason: "firefox-esr is not installed".into(),
        };
        let none = Measured::new(&[], &experiment.name, 1);
        for one in claims(&experiment, &none, &[skip]).unwrap() {
            let all_cases = one.says.contains("Randomisation");
            assert!(one.verdict.to_string().ends_with("is not installed") || all_cases, "{one:?}");
        }
    }

    #[test]
    fn absolute_figures_are_compared_in_the_published_unit() {
        let experiment = redis();
        let name = &experiment.name;
        let cells = cells(name, "populate", "heap_longest_stall", &[("1y-remap", &[0.001, 0.001])]);
        let judged = claims(&experiment, &Measured::new(&cells, name, 1), &[]).unwrap();
        let pause =
            judged.iter().find(|one| one.published == "22 ms" && one.arm == "1y-remap").unwrap();
        assert_eq!(pause.measured.unwrap().value, 1.0);
        assert_eq!(pause.verdict, Verdict::Better(Basis::AnotherMachine));
    }

    #[test]
    fn targets_are_reached_or_missed() {
        let experiment = redis();
        let name = &experiment.name;
        let at = |value: f64| {
            let arms: &[(&'static str, &[f64])] =
                &[("1y-remap", &[value, value]), ("glibc", &[1.0, 1.0])];
            let mut cells = cells(name, "populate", "fork", arms);
            cells.extend(self::cells(name, "pipelined", "fork", arms));
            let goals = goals(&experiment, &Measured::new(&cells, name, 1), &[]);
            goals.into_iter().find(|goal| goal.says.contains("BGSAVE")).unwrap().verdict
        };
        assert_eq!(at(1.1), Attainment::Aim);
        assert_eq!(at(1.2), Attainment::Reached);
        assert_eq!(at(1.4), Attainment::Missed);
    }
}
