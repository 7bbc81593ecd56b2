//! A published claim or a target of our own, and what became of it. What is printed follows from these: nobody tells by
//! a text.

use std::fmt;

use serde::{Serialize, Serializer};

/// What is said of a verdict from one run.
pub(crate) const ONCE: &str = " (one run, no interval)";

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Runs with an interval, or what needs none.
    Runs,
    /// One run, without an interval.
    OneRun,
    /// An absolute figure, which is of another machine.
    AnotherMachine,
}

impl Basis {
    /// Of single runs or of several.
    pub(crate) const fn once(once: bool) -> Self {
        if once { Self::OneRun } else { Self::Runs }
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runs => "",
            Self::OneRun => ONCE,
            Self::AnotherMachine => " (another machine)",
        })
    }
}

/// The verdict on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As published.
    Reproduced(Basis),
    /// Better than published.
    Better(Basis),
    /// A saving, smaller than the published one.
    Smaller(Basis),
    /// Not as published.
    NotReproduced(Basis),
    /// What was said in words holds.
    SoHere,
    /// It does not.
    NotSoHere,
    /// The runs overlap.
    Overlap,
    /// Nothing was measured, and why.
    NotMeasured(String),
}

impl Verdict {
    /// On what was said in words.
    pub(crate) const fn so_here(holds: bool) -> Self {
        if holds { Self::SoHere } else { Self::NotSoHere }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reproduced(basis) => write!(f, "reproduced{basis}"),
            Self::Better(basis) => write!(f, "better than published{basis}"),
            Self::Smaller(basis) => write!(f, "same direction, smaller effect{basis}"),
            Self::NotReproduced(basis) => write!(f, "not reproduced{basis}"),
            Self::SoHere => f.write_str("so here"),
            Self::NotSoHere => f.write_str("not so here"),
            Self::Overlap => f.write_str("cannot be told: the runs overlap"),
            Self::NotMeasured(why) => write!(f, "not measured: {why}"),
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How far a target was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attainment {
    /// What is hoped for.
    Aim,
    /// What must be.
    Reached,
    /// Less.
    Missed,
    /// Nothing was measured, and why.
    NotMeasured(String),
}

impl Attainment {
    /// Whether the target is met, if that is known.
    pub(crate) const fn met(&self) -> Option<bool> {
        match self {
            Self::Aim | Self::Reached => Some(true),
            Self::Missed => Some(false),
            Self::NotMeasured(_) => None,
        }
    }
}

impl fmt::Display for Attainment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aim => f.write_str("aim reached"),
            Self::Reached => f.write_str("reached"),
            Self::Missed => f.write_str("missed"),
            Self::NotMeasured(why) => write!(f, "not measured: {why}"),
        }
    }
}

impl Serialize for Attainment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The word for a target that is met or not.
pub(crate) const fn met(is: bool) -> &'static str {
    if is { "met" } else { "missed" }
}

/// A claim in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRow {
    /// What was claimed.
    pub claim: String,
    /// The published figure.
    pub published: String,
    /// Ours; `None` where there is none.
    pub here: Option<String>,
    /// What became of it.
    pub verdict: Verdict,
}

impl ClaimRow {
    /// A published claim and what is here, with whether it holds and whether that is of single runs; or why that cannot
    /// be told.
    pub(crate) fn new(
        claim: impl Into<String>,
        published: impl Into<String>,
        told: Result<(String, bool, bool), String>,
    ) -> Self {
        let (here, verdict) = match told {
            Ok((here, true, once)) => (Some(here), Verdict::Reproduced(Basis::once(once))),
            Ok((here, false, once)) => (Some(here), Verdict::NotReproduced(Basis::once(once))),
            Err(why) => (None, Verdict::NotMeasured(why)),
        };
        Self { claim: claim.into(), published: published.into(), here, verdict }
    }

    /// Its cells.
    pub(crate) fn cells(self) -> Vec<String> {
        let here = self.here.unwrap_or_else(|| "-".to_owned());
        vec![self.claim, self.published, here, self.verdict.to_string()]
    }
}
