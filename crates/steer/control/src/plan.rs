//! Which memory is worth huge pages or eager paging: profiles, where they come from, and how wrong they may be.

pub mod advise;
pub mod perturb;

use std::path::Path;

use anyhow::{Context as _, Result};
use pagemill_policy::huge::profile::Profile;

/// From what benefits are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenefitSource {
    /// Page walks that the processor counts, where its samples say that they were.
    Counters,
    /// Times of runs with other halves of the memory on huge pages.
    Runs,
}

impl BenefitSource {
    /// Its names, what each is, and the value.
    pub const CHOICES: [(&str, &str, Self); 2] = [
        (
            "counters",
            "Page walks that the processor counts, where its samples say that they were",
            Self::Counters,
        ),
        ("runs", "Times of runs with other halves of the memory on huge pages", Self::Runs),
    ];
}

/// Which time of a run counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeMeasure {
    /// CPU time, which the kernel counts exactly.
    Cpu,
    /// CPU time in user mode, of which the kernel only samples how much it is.
    User,
    /// From beginning to end.
    Wall,
}

impl TimeMeasure {
    /// Its names, what each is, and the value.
    pub const CHOICES: [(&str, &str, Self); 3] = [
        ("cpu", "CPU time, which the kernel counts exactly", Self::Cpu),
        (
            "user",
            "CPU time in user mode, of which the kernel only samples how much it is",
            Self::User,
        ),
        ("wall", "From beginning to end", Self::Wall),
    ];
}

/// A profile from a file; an error names file, line and column.
///
/// # Errors
/// It cannot be read, or is no profile: file, line and column.
pub fn read_profile(path: &Path) -> Result<Profile> {
    let bytes = pagemill_model::whole::read(path, pagemill_model::whole::TEXT)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let (whole, _) = error.as_bytes().split_at(error.utf8_error().valid_up_to());
        let line = whole.iter().filter(|byte| **byte == b'\n').count() + 1;
        let last =
            String::from_utf8_lossy(whole.rsplit(|byte| *byte == b'\n').next().unwrap_or(whole));
        let column = last.chars().count() + 1;
        anyhow::anyhow!(
            "{}:{line}:{column}: expected text in UTF-8, found another byte",
            path.display()
        )
    })?;
    Profile::parse(&text).map_err(|error| anyhow::anyhow!("{}:{error}", path.display()))
}
