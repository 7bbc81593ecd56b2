//! What a lever may bring, guessed before it is tried.

use crate::rule::{Aim, Goal};

/// What a lever may bring at the most, as shares of what there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Of mean memory.
    pub memory: f64,
    /// Of time.
    pub time: f64,
    /// Of time what it may well bring by what was seen.
    pub likely_time: f64,
    /// Of mean memory what it may well bring by what was seen: who promises more of that is tried first.
    pub likely: f64,
    /// Why.
    pub why: String,
    /// Whether what it may bring of memory is not known, and the share is all that there is for want of a bound.
    pub unknown: bool,
}

impl Estimate {
    /// Nothing, and why.
    pub fn nothing(why: impl Into<String>) -> Self {
        Self::up_to(0.0, 0.0, why)
    }

    /// Up to these shares, and why.
    pub fn up_to(memory: f64, time: f64, why: impl Into<String>) -> Self {
        let memory = memory.clamp(0.0, 1.0);
        let time = time.clamp(0.0, 1.0);
        Self { memory, time, likely_time: time, likely: memory, why: why.into(), unknown: false }
    }

    /// The same, whose share of memory no more than what there is bounds.
    #[must_use]
    pub fn unknown(self) -> Self {
        Self { unknown: true, ..self }
    }

    /// The same, of which this share may well come.
    #[must_use]
    pub fn likely(self, share: f64) -> Self {
        Self { likely: share.clamp(0.0, self.memory), ..self }
    }

    /// The same, of whose time this share may well come.
    #[must_use]
    pub fn likely_time(self, share: f64) -> Self {
        Self { likely_time: share.clamp(0.0, self.time), ..self }
    }

    /// Why it is not worth a trial.
    pub fn too_little(&self) -> String {
        match self.memory * 100.0 {
            0.0 => self.why.clone(),
            _ if self.unknown => self.why.clone(),
            percent => format!("up to {percent:.1} % of its memory: {}", self.why),
        }
    }

    /// Whether it may well bring more than `worth` of what is wanted, by what was seen.
    pub fn promises(&self, goal: Goal, worth: f64) -> bool {
        let likely = Self { memory: self.likely, time: self.likely_time, ..self.clone() };
        likely.matters(goal, worth)
    }

    /// Whether it may bring more than `worth` of what is wanted.
    pub fn matters(&self, goal: Goal, worth: f64) -> bool {
        goal.aims().iter().any(|aim| match aim {
            Aim::Memory => self.memory > worth,
            Aim::Time { .. } => self.time > worth,
        })
    }
}
