//! What `simulate` is asked.

use std::path::PathBuf;

use clap::Args;
use pagemill_experiments::simulate::sweep::Sizes;
use pagemill_policy::tier::compose;
use pagemill_sim::{huge as synthetic, workload};

use super::huge;
use crate::values;

/// What is run where nothing is asked for.
pub(super) const POLICIES: &str = "none,tpp,tpp+colloid";

/// Runs a workload on a simulated machine with two memory tiers, under one or more placement policies.
///
/// Everything it prints is modelled.
#[derive(Debug, Args)]
#[command(
    before_help = "Examples:
  pagemill simulate gups --policy tpp,tpp+colloid --antagonist 3
  pagemill simulate zipf --policy hemem,hemem+colloid,memtis --seconds 60
  pagemill simulate moving --policy hemem+watermark --move-at 50
  pagemill simulate scattered --policy hemem,memtis --seconds 600
  pagemill simulate gups --policy tpp,damon --seconds 7200
  pagemill simulate rec --tiers fast=2G,slow=8G --policy none,hemem,hemem+colloid
  pagemill simulate rec --sweep                        how much fast memory the program needs
  pagemill simulate grow --huge linux-always,linux-never,cbmm+ --fragmented 1
  pagemill plan --costs --json > costs.json; pagemill simulate rec --huge linux-always,cbmm+ --costs costs.json
  pagemill simulate --figure 6c,8b --sensitivity
  pagemill simulate --print-machine > mine.toml && pagemill simulate gups --machine mine.toml",
    after_help = "Exit status: 0 ok, 2 usage or error: of a wrong machine file the line, the key and the valid values."
)]
pub struct Arguments {
    #[arg(default_value = "gups", help = format!(
        "The workload: {}, or a recording that pagemill tier --record or pagemill record --with accesses wrote; with \
         --huge: {}, or a recording with faults",
        workload::names().collect::<Vec<_>>().join(", "),
        synthetic::names().collect::<Vec<_>>().join(", ")
    ))]
    pub(super) workload: String,
    #[command(flatten)]
    pub(super) huge: huge::Options,
    #[arg(long, value_delimiter = ',', help = format!(
        "Policies, separated by commas: {}. +colloid balances latencies as shipped, +watermark is the paper's search, \
         +ucb finds the share at which it is fastest; damon is the kernel's tiering by DAMON [default: {POLICIES}; \
         with --sweep the best static placement alone]",
        compose::names().join(", ")
    ))]
    pub(super) policy: Vec<String>,
    /// Throughput by the size of the fast tier, doubling from FROM to TO (up to the whole program), and how much of it
    /// 9 of 10 of the speed needs; the slow tier holds the rest.
    #[arg(
        long,
        value_name = "fast=FROM..TO",
        num_args = 0..=1,
        default_missing_value = "all",
        conflicts_with_all = ["figure", "sensitivity"]
    )]
    pub(super) sweep: Option<Sizes>,
    /// Sizes of the tiers instead of the machine's: fast=2G,slow=8G (or default=, alternate=), in either order; with
    /// other names the default tier first.
    #[arg(long, value_name = "TIERS")]
    pub(super) tiers: Option<String>,
    /// With a recording: what cores do between two reads is not recorded, so it is as in this workload [default: zipf].
    #[arg(long = "as", value_name = "WORKLOAD")]
    pub(super) like: Option<String>,
    /// Threads that the program runs on, instead of the workload's (15 for most) or the recorded program's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
    /// A machine file; the built-in one is that of the published evaluation.
    #[arg(long, value_name = "FILE")]
    pub(super) machine: Option<PathBuf>,
    /// Unloaded latency of the alternate tier in nanoseconds, instead of the machine's.
    #[arg(long, value_name = "NS", allow_negative_numbers = true, value_parser = values::nanoseconds)]
    pub(super) unloaded: Option<f64>,
    /// Background load on the default tier, in steps of the machine's antagonist cores.
    #[arg(
        long, value_name = "STEPS", default_value_t = 0.0, allow_negative_numbers = true, value_parser = values::times
    )]
    pub(super) antagonist: f64,
    /// The background load starts at this second rather than at once.
    #[arg(long, value_name = "SECOND", allow_negative_numbers = true, value_parser = values::seconds)]
    pub(super) antagonist_at: Option<f64>,
    /// The hot set moves at this second [default: half of the run for moving and recordings, never for gups].
    #[arg(long, value_name = "SECOND", allow_negative_numbers = true, value_parser = values::seconds)]
    pub(super) move_at: Option<f64>,
    /// Length of the run.
    #[arg(long, default_value_t = 120.0, allow_negative_numbers = true, value_parser = values::seconds)]
    pub(super) seconds: f64,
    /// One page in so many is simulated; 1 simulates them all.
    #[arg(long, value_name = "PAGES", allow_negative_numbers = true, value_parser = values::number)]
    pub(super) scale: Option<f64>,
    /// Policies are told latencies and rates with an error of this percentage, each quantum anew.
    #[arg(
        long, value_name = "PERCENT", default_value_t = 0.0, allow_negative_numbers = true,
        value_parser = values::percent
    )]
    pub(super) noise: f64,
    /// Seed: the same seed gives the same run.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Figures of the published evaluation: setup, 4, 6a, 6b, 6c, 6c+thp, 7, 8a, 8b, 8b+thp, 8c, regret.
    #[arg(long, value_delimiter = ',', value_name = "FIGURES", conflicts_with_all = OF_A_RUN)]
    pub(super) figure: Vec<String>,
    /// What a tenth more or less of each parameter does to each cell of 6c and 8b: half an hour of processor time (see
    /// --keep).
    #[arg(long, conflicts_with_all = OF_A_RUN)]
    pub(super) sensitivity: bool,
    /// With --figure: fewer pages and points.
    #[arg(long)]
    pub(super) quick: bool,
    /// With --figure regret: the random machines and loads with these seeds, 1..100 say; 1001..1500 are for judging a
    /// placer that is finished.
    #[arg(long, value_name = "FROM..TO", value_parser = points)]
    pub(super) points: Option<(u64, u64)>,
    /// With --figure or --sensitivity: keeps what is finished in this directory, and goes on from there.
    #[arg(long, value_name = "DIR", value_parser = values::directory())]
    pub(super) keep: Option<PathBuf>,
    /// Prints the built-in machine file, with the source of each value, and ends.
    #[arg(long)]
    pub(super) print_machine: bool,
    #[command(flatten)]
    pub(super) printed: values::Printed,
}

/// A range of seeds, both ends included.
fn points(text: &str) -> Result<(u64, u64), String> {
    let ends = text.split_once("..").and_then(|(from, to)| {
        Some((from.parse::<u64>().ok()?, to.trim_start_matches('=').parse::<u64>().ok()?))
    });
    match ends {
        Some((from, to)) if from <= to && to - from < 10_000 => Ok((from, to)),
        _ => {
            Err("valid: FROM..TO, both included, at most 10000 of them, such as 1..100".to_owned())
        }
    }
}

/// What figures and sensitivity have of their own.
const OF_A_RUN: [&str; 10] = [
    "policy",
    "tiers",
    "like",
    "threads",
    "antagonist",
    "antagonist_at",
    "move_at",
    "seconds",
    "scale",
    "noise",
];
