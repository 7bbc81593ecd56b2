//! A lever that is tried, what its runs gave, and what became of it.

use std::collections::BTreeSet;

use crate::lever::{Estimate, Lever, Start};
use crate::rule::{Aim, Figures, Goal};

/// What became of a lever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is in play, and in the end: it was tried as often as it takes.
    Tried,
    /// It was given up after some runs, for it could not win.
    Out,
    /// It is put off, for time is short; in the end: it was not tried, or not often enough.
    NoTime,
    /// It was not tried, and why.
    NotTried(String),
    /// The command does not work under it, and how.
    Breaks(String),
    /// The command is killed for want of memory under it, and how.
    Starves(String),
}

impl State {
    /// What it does to a command that cannot run under it, and how that was seen.
    pub fn failure(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Breaks(how) => Some(("breaks the command", how)),
            Self::Starves(how) => Some(("needs more memory than there is", how)),
            Self::Tried | Self::Out | Self::NoTime | Self::NotTried(_) => None,
        }
    }
}

/// A lever, and its runs.
#[derive(Clone)]
pub struct Arm {
    /// The lever.
    pub lever: &'static dyn Lever,
    /// What it may bring.
    pub estimate: Estimate,
    /// What it may bring of mean memory by what was seen before anything was tried: live data is a bound of what is
    /// worth a trial, and not of what is won, for it need not be in memory.
    pub(crate) possible: f64,
    /// How the command is started under it; none if it cannot be.
    pub start: Option<Start>,
    /// What became of it.
    pub state: State,
    /// What each run gave.
    pub runs: Vec<Figures>,
    /// How runs of it failed.
    pub(crate) failed: Vec<String>,
    /// Digests of what the command printed under it.
    pub(crate) digests: BTreeSet<u64>,
    /// Live bytes of our heap at its fullest.
    pub live: Option<u64>,
    /// What the last run took from its start to the next, seconds.
    pub took: Option<f64>,
}

impl Arm {
    /// One that has not run.
    pub(crate) fn new(
        lever: &'static dyn Lever,
        estimate: Estimate,
        start: Option<Start>,
        state: State,
    ) -> Self {
        Self {
            lever,
            possible: estimate.memory,
            estimate,
            start,
            state,
            runs: Vec::new(),
            failed: Vec::new(),
            digests: BTreeSet::new(),
            live: None,
            took: None,
        }
    }

    pub(crate) fn plays(&self) -> bool {
        self.state == State::Tried
    }

    /// Whether it runs when there is time.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, State::Tried | State::NoTime)
    }

    /// Live data is memory that no malloc frees: of the rest, this share of mean memory, no lever brings more, but
    /// where it is kept elsewhere. One that has not run and can bring no more than what was asked for is worth
    /// (`wanted`) is not tried.
    pub(crate) fn bound(&mut self, not_live: f64, wanted: Option<(Goal, f64)>) {
        let not_live = not_live.clamp(0.0, 1.0);
        if self.estimate.memory <= not_live || self.lever.keeps_elsewhere() {
            return;
        }
        self.estimate.memory = not_live;
        self.estimate.likely = self.estimate.likely.min(not_live);
        let matters = |(goal, worth): (Goal, f64)| self.estimate.matters(goal, worth);
        if self.waits() && self.runs.is_empty() && !wanted.is_none_or(matters) {
            let live = (1.0 - not_live) * 100.0;
            self.state = State::NotTried(format!("{live:.0} % of its memory is live data"));
        }
    }

    /// The best that it may well bring before it has run, as a ratio to the command as it is: for what is wanted first,
    /// or, if that is nothing, a tenth of what is wanted next. In tenths, for a guess is no finer: among equals the
    /// first of the registry, which asks least, comes first.
    pub(crate) fn expected_ratio(&self, goal: Goal) -> f64 {
        let share = |aim: &Aim| match aim {
            Aim::Memory => (self.estimate.likely * 10.0).round() / 10.0,
            Aim::Time { .. } => (self.estimate.likely_time * 10.0).round() / 10.0,
        };
        let shares = goal.aims().iter().map(share);
        let of_rank = shares.zip([1.0, 0.1]).map(|(share, weight)| share * weight);
        1.0 - of_rank.reduce(|first, next| if first > 0.0 { first } else { next }).unwrap_or(0.0)
    }
}

/// The runs of each lever; none of one that cannot be chosen.
pub(crate) fn of_levers(arms: &[Arm]) -> Vec<Vec<Figures>> {
    let figures = |arm: &Arm| match arm.state {
        State::Breaks(_) | State::Starves(_) => Vec::new(),
        _ => arm.runs.clone(),
    };
    arms.iter().map(figures).collect()
}

pub(crate) fn given_up(arms: &[Arm]) -> Vec<bool> {
    arms.iter().map(|arm| arm.state == State::Out).collect()
}

/// The share of mean memory that each may bring at the most.
pub(crate) fn memory_bounds(arms: &[Arm]) -> Vec<f64> {
    arms.iter().map(|arm| arm.possible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levers::REGISTRY;

    #[test]
    fn memory_that_ran_out_is_not_told_as_a_broken_command() {
        let told = |state: State| state.failure().map(|(what, how)| format!("{what}: {how}"));
        let starves = told(State::Starves("killed at 64 MiB".into()));
        assert_eq!(starves.as_deref(), Some("needs more memory than there is: killed at 64 MiB"));
        assert_eq!(
            told(State::Breaks("exit 1".into())).as_deref(),
            Some("breaks the command: exit 1")
        );
        assert_eq!(told(State::NoTime), None);
    }

    /// "no pymalloc may bring up to 98 %" stood two lines below "live data 294.3 MiB" of 300 MiB.
    #[test]
    fn no_lever_brings_more_than_what_is_not_live() {
        let arm = |memory: f64, time: f64| {
            Arm::new(REGISTRY[0], Estimate::up_to(memory, time, ""), None, State::NoTime)
        };
        let mut all = [arm(0.98, 0.0), arm(0.98, 1.0), arm(0.01, 0.0)];
        all.iter_mut().for_each(|arm| arm.bound(0.02, Some((Goal::Both, 0.05))));
        assert_eq!(all.each_ref().map(|arm| arm.estimate.memory), [0.02, 0.02, 0.01]);
        let why = State::NotTried("98 % of its memory is live data".into());
        assert_eq!(all.each_ref().map(|arm| arm.state == why), [true, false, false]);
        // Huge pages of which one byte each was touched are live, and what was not touched need not be there.
        assert_eq!(memory_bounds(&all), [0.98, 0.98, 0.01]);
        let mut asked = arm(0.98, 0.0);
        asked.bound(0.02, None);
        assert!(asked.waits(), "who names it has it tried");
    }

    #[test]
    fn before_anything_ran_what_is_wanted_first_counts_and_guesses_are_rough() {
        let arm = |memory: f64, time: f64| {
            Arm::new(REGISTRY[0], Estimate::up_to(memory, time, ""), None, State::Tried)
        };
        let expected_ratio = |memory, time| arm(memory, time).expected_ratio(Goal::Both);
        assert_eq!(expected_ratio(0.998, 0.1), expected_ratio(0.999, 1.0));
        assert!(
            expected_ratio(0.8, 0.0) < expected_ratio(0.2, 1.0)
                && expected_ratio(0.2, 0.0) < expected_ratio(0.0, 1.0)
        );
        assert!(
            expected_ratio(0.0, 1.0) < expected_ratio(0.0, 0.0) && expected_ratio(0.0, 0.0) == 1.0
        );
        assert!(
            arm(1.0, 0.0).expected_ratio(Goal::Speed) > arm(0.0, 0.5).expected_ratio(Goal::Speed)
        );
    }
}
