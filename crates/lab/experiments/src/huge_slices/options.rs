//! What is run, and how much of it: its file, its arms and profiles, the options.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use anyhow::Result;
use serde::Deserialize;

use crate::reproduce::definition::{self, Definition};
use crate::reproduce::experiment::chosen;

/// Its name on the command line.
pub const NAME: &str = "huge-slices";

/// What it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Runs {
    /// Runs by which a profile is measured.
    pub(super) measured: usize,
    /// In these ways profiles are made wrong.
    pub(super) ways: Vec<String>,
    pub(super) programs: Vec<String>,
    /// Of each program its scale, keys, bytes or rows.
    pub(super) sizes: BTreeMap<String, String>,
}

/// The text of its file.
pub(super) const TEXT: &str = include_str!("../../../../../experiments/huge-slices.toml");

/// Its file.
pub static FILE: LazyLock<Definition<Runs>> = LazyLock::new(|| definition::read(TEXT));

/// All programs.
pub(super) fn programs() -> Vec<&'static str> {
    FILE.full.runs.programs.iter().map(String::as_str).collect()
}

/// The arms: what its slices are worth, and a round of runs.
pub(super) const MEASURED: &str = "measured";
pub(super) const ROUND: &str = "profiles";

/// The profiles that are not made wrong.
pub(super) const NONE: &str = "no huge pages";
pub(super) const ALL: &str = "all huge pages";
pub(super) const EXACT: &str = "as measured";

/// How much of it.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) quick: bool,
    pub(super) programs: Vec<&'static str>,
    pub(super) runs: usize,
    pub(super) repetitions: u32,
    pub(super) seed: u64,
}

impl Options {
    /// As in the file.
    pub fn new(quick: bool, repetitions: Option<u32>, seed: u64) -> Self {
        let size = FILE.size(quick);
        let programs = size.runs.programs.iter().map(String::as_str).collect();
        let repetitions = repetitions.unwrap_or(size.repetitions);
        Self { quick, programs, runs: size.runs.measured, repetitions, seed }
    }

    /// Some programs only.
    ///
    /// # Errors
    /// For what is none, with the one that may have been meant.
    pub fn only(&mut self, names: Option<&[String]>) -> Result<()> {
        self.programs = names
            .map_or(Ok(self.programs.clone()), |names| chosen("program", &programs(), names))?;
        Ok(())
    }

    pub(super) fn size(&self, program: &str) -> &'static str {
        FILE.size(self.quick).runs.sizes.get(program).map_or("1", String::as_str)
    }

    pub(super) fn ways(&self) -> &'static [String] {
        &FILE.size(self.quick).runs.ways
    }
}
