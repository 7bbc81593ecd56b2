//! What is run, and how much of it: its file, the options.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use pagemill_sim::machine::{ICELAKE, Machine};
use serde::Deserialize;

use crate::reproduce::definition::{self, Definition};
use crate::reproduce::experiment::chosen;
use crate::reproduce::keep::Keep;

/// Its name on the command line.
pub const NAME: &str = "colloid";

/// What it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runs {
    /// The figures, by name.
    pub figures: Vec<String>,
    /// Whether the sensitivity table is made, too.
    pub sensitivity: bool,
    /// Random machines and loads of `regret`.
    points: u64,
}

/// The text of its file.
pub(super) const TEXT: &str = include_str!("../../../../../experiments/colloid.toml");

/// Its file.
pub static FILE: LazyLock<Definition<Runs>> = LazyLock::new(|| definition::read(TEXT));

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine.
    pub machine: Machine,
    /// Some of those in [`FILE`].
    pub figures: Vec<String>,
    /// Fewer pages and fewer random points.
    pub quick: bool,
    /// What a tenth more or less of each parameter does to each cell of 6c and 8b.
    pub sensitivity: bool,
    /// Seed.
    pub seed: u64,
    /// The random machines and loads of `regret`, by their seeds; otherwise the first few.
    pub points: Option<(u64, u64)>,
}

impl Options {
    /// As the file has it, on the machine of the publication.
    ///
    /// # Errors
    /// None where this binary's machine is whole.
    pub fn new(quick: bool, seed: u64) -> Result<Self> {
        let runs = &FILE.size(quick).runs;
        Ok(Self {
            machine: Machine::parse(ICELAKE).context("the built-in machine")?,
            figures: runs.figures.clone(),
            quick,
            sensitivity: runs.sensitivity,
            seed,
            points: None,
        })
    }

    /// Some figures only, without the sensitivity table.
    ///
    /// # Errors
    /// For a figure that there is none of, with the one that may have been meant.
    pub fn only(&mut self, figures: Option<&[String]>) -> Result<()> {
        if let Some(figures) = figures {
            let known: Vec<&str> = FILE.full.runs.figures.iter().map(String::as_str).collect();
            let figures = chosen("figure", &known, figures)?;
            self.figures = figures.into_iter().map(str::to_owned).collect();
            self.sensitivity = false;
        }
        Ok(())
    }

    /// The seeds of the machines and loads that `regret` runs.
    pub(crate) fn points(&self) -> RangeInclusive<u64> {
        let (first, last) = self.points.unwrap_or((1, FILE.size(self.quick).runs.points));
        first..=last
    }

    /// What is kept of runs on this machine and these points.
    #[must_use]
    pub fn keep(&self, keep: Keep) -> Keep {
        let mut machine = DefaultHasher::new();
        format!("{:?}", self.machine).hash(&mut machine);
        let points = self.points();
        keep.of(&format!(
            ", machine {:016x}, points {} to {}",
            machine.finish(),
            points.start(),
            points.end()
        ))
    }
}
