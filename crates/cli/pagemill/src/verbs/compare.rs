//! `compare`: what changed from one recording to another: memory, page faults, and who accessed which object.
//!
//! Figures that both recordings have stand beside each other with their ratio; those of one alone are not compared.
//! Two recordings are two runs: a difference says nothing of chance, which `--tolerance` is for.

use std::path::PathBuf;

use crate::answer::{self, Layout};
use anyhow::Result;
use clap::Args;
use pagemill_launch::exit::Exit;
use pagemill_report::comparison::Comparison;

/// What it answers.
const LAYOUT: Layout = Layout::new("compare", 1, "figures");

const EXAMPLES: &str = "\
Examples:
  pagemill compare before after
  pagemill compare before after --tolerance 5       a finding if a figure grew by more than 5 %
  pagemill compare before after --json
";

const AFTER: &str = "\
Exit status: 0 shown; 1 with --tolerance, a figure grew by more than that; 2 one is no recording.";

/// Which recordings.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The recording to compare with.
    #[arg(value_name = "REC")]
    before: PathBuf,
    /// The other recording.
    #[arg(value_name = "REC")]
    after: PathBuf,
    /// Percent by which a figure may grow; objects are not judged.
    #[arg(long, value_name = "PERCENT", value_parser = crate::values::percent)]
    tolerance: Option<f64>,
    #[command(flatten)]
    redact: crate::values::Redact,
    #[command(flatten)]
    printed: crate::values::Printed,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let redact = arguments.redact.redact;
    let both = Comparison::read(&arguments.before, &arguments.after, redact)?;
    let grown = arguments.tolerance.map_or_else(Vec::new, |percent| both.grown(percent));
    let json = || both.json(&grown);
    answer::tell(arguments.printed.json, &LAYOUT, json, || both.text())?;
    if grown.is_empty() {
        return Ok(Exit::Ok);
    }
    notice!("grew by more than the tolerance: {}", grown.join(", "));
    Ok(Exit::Finding)
}
