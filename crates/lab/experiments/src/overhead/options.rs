//! What is run, and how much of it: its file, its cases and arms, the options.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::reproduce::definition::{self, Definition};

/// Its name on the command line.
pub const NAME: &str = "overhead";

/// What it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Runs {
    /// Scale of the program that touches memory.
    pub(super) touch: String,
    /// Scale of the program of single steps.
    pub(super) steps: String,
    /// NAS kernels, and their class.
    pub(super) kernels: Vec<String>,
    pub(super) class: String,
    /// Runs of these, and of the steps.
    pub(super) accesses: u32,
    /// Accesses of the recording that is opened.
    pub(super) opened: u64,
}

/// The text of its file.
pub(super) const TEXT: &str = include_str!("../../../../../experiments/overhead.toml");

/// Its file.
pub static FILE: LazyLock<Definition<Runs>> = LazyLock::new(|| definition::read(TEXT));

/// The cases that are no kernels.
pub(super) const FAULTS: &str = "faults";
pub(super) const STEPS: &str = "steps";
pub(super) const OPENING: &str = "opening";

/// The arms of what is recorded, and of what is not.
pub(super) const NATIVE: &str = "native";
pub(super) const RECORDED: &str = "recorded";
pub(super) const BUDGET: &str = "budget";

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(super) quick: bool,
    pub(super) repetitions: u32,
    /// Of what is recorded with accesses.
    pub(super) accesses: u32,
    pub(super) seed: u64,
}

impl Options {
    /// As in the file.
    pub fn new(quick: bool, repetitions: Option<u32>, seed: u64) -> Self {
        let size = FILE.size(quick);
        let of = |own: u32| repetitions.unwrap_or(own);
        Self { quick, repetitions: of(size.repetitions), accesses: of(size.runs.accesses), seed }
    }

    pub(super) fn runs(self) -> &'static Runs {
        &FILE.size(self.quick).runs
    }
}
