//! `advise --places`: what huge pages are worth to a command in each part of its memory, by runs of it.

use std::path::PathBuf;

use clap::Args;
use pagemill_control::plan::{BenefitSource, TimeMeasure};

/// How places are told apart, and where the profile goes.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --places")]
pub struct Places {
    /// Run the command again and again (50 times), each time with other parts of its memory on huge pages, and find out
    /// what they are worth in each part. Standard output of the command is dropped.
    #[arg(
        long, alias = "measure", requires = "command",
        conflicts_with_all = [
            "counters", "goal", "worth", "slower", "metric", "load", "levers", "all", "within", "html",
        ]
    )]
    pub places: bool,
    /// Parts that its memory is cut into, at most.
    #[arg(
        long, default_value_t = 100, value_name = "N", requires = "places",
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    pub slices: u32,
    /// From what the benefits are told: runs with other parts on huge pages, or page walks that the processor counts
    /// and samples. Default: counters where they work.
    #[arg(long, value_parser = crate::values::one_of(&BenefitSource::CHOICES), requires = "places")]
    pub from: Option<BenefitSource>,
    /// What is to be shorter.
    #[arg(
        long, value_parser = crate::values::one_of(&TimeMeasure::CHOICES), default_value = "cpu",
        requires = "places"
    )]
    pub by: TimeMeasure,
    /// Say all parts, a line each.
    #[arg(long, requires = "places")]
    pub explain: bool,
    /// Write the profile here, for `run --huge`.
    #[arg(short, long, value_name = "FILE", requires = "places")]
    pub output: Option<PathBuf>,
}
