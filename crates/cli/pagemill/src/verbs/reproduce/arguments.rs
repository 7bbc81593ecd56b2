//! What `reproduce` is asked.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::{Result, ensure};
use clap::Args;
use pagemill_experiments::registry;
use pagemill_experiments::reproduce::plan::Options;
use pagemill_experiments::reproduce::request::Request;
use pagemill_experiments::reproduce::{chosen, store};

const EXAMPLES: &str = "\
Examples:
  pagemill reproduce --list
  pagemill reproduce --quick                               everything, small, in minutes
  pagemill reproduce colloid                               tiered memory, on the simulated machine
  pagemill reproduce mesh                                  the experiments of Mesh (PLDI 2019), full size
  pagemill reproduce moca --from-kept                      its tables from kept figures, without running
  pagemill reproduce moca                                  traces of the accesses of NAS kernels
  sudo pagemill reproduce fragmentation                    free memory, huge pages off and on
  pagemill reproduce overhead                              what measuring costs
  pagemill reproduce huge-slices                           what huge pages are worth where; imprecise profiles (CBMM)
  sudo pagemill reproduce huge-pages                       fault tails, run time, huge pages used, by policy (CBMM)
  sudo pagemill reproduce huge-pages --programs redis,xz --arms linux-always,linux-never,cbmm+
  pagemill reproduce redis-fragmentation --arms jemalloc,1y --reps 7
  MESH_LIB=/opt/libmesh.so pagemill reproduce ruby-strings
  pagemill reproduce --on slurm mesh                       as one job array; then: pagemill collect DIR
  pagemill reproduce --on parallel host1,host2 --dry-run   what GNU parallel would run over ssh
";

const AFTER: &str = "\
Writes raw figures, summaries and report.html into results/DATE-TIME (or -o DIR).
Exit status: 0 all ran; 1 a cell failed (a crash, a wrong result, an arm that was not what it says); 2 usage; \
3 nothing of what was asked for can run here, 4 because it is root's; 130 Ctrl-C, \
143 SIGTERM, finished cells are kept.";

/// Which experiments, and how.
#[derive(Clone, Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Experiments, `mesh` or `cbmm` for all of that publication, or `colloid` for the simulated machine; all there are
    /// without a name.
    pub(super) experiments: Vec<String>,
    /// Lists experiments and arms: what each needs, takes, and has kept (in -o DIR, where that is named).
    #[arg(long)]
    pub(super) list: bool,
    /// Smaller sizes, fewer arms and runs: minutes instead of hours.
    #[arg(long)]
    pub(super) quick: bool,
    /// Runs of each arm.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) reps: Option<u32>,
    /// Arms to compare, instead of the experiment's.
    #[arg(long, value_name = "ARM", value_delimiter = ',')]
    pub(super) arms: Option<Vec<String>>,
    /// Programs of huge-pages, huge-slices or fragmentation, kernels of moca, or figures of colloid, instead of all.
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',')]
    pub(super) programs: Option<Vec<String>>,
    /// Seed of the order of runs and of all generated inputs.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(super) seed: u64,
    /// Factor on all sizes of huge-pages and of experiments on allocators; they are then not the published ones.
    #[arg(long, default_value_t = 1.0, value_name = "F", value_parser = scale)]
    pub(super) scale: f64,
    /// Of fragmentation by itself: its programs at the study's full size, in hours (--list says how many).
    #[arg(long, conflicts_with = "quick")]
    pub(super) full_size: bool,
    /// Window of the Redis experiment, from the first insertion to the final reading.
    #[arg(long, value_name = "SECONDS", value_parser = settle)]
    pub(super) settle: Option<f64>,
    /// Directory for the results.
    #[arg(short, long, value_name = "DIR", value_parser = crate::values::directory())]
    pub(super) output: Option<PathBuf>,
    /// Writes into a directory that is not empty.
    #[arg(short, long)]
    pub(super) force: bool,
    /// Prints the summary as JSON instead of tables.
    #[arg(long, conflicts_with_all = ["on", "cell"])]
    pub(super) json: bool,
    /// Of moca: makes the tables from the figures of a run that is kept, this binary's or FILE, and runs nothing.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with_all = ["on", "cell", "quick", "arms", "programs", "reps", "seed", "scale", "settle", "full_size"]
    )]
    pub(super) from_kept: Option<Option<PathBuf>>,
    /// Runs the cells on other machines: `slurm`, or `parallel` and hosts that ssh knows (`:` is this one).
    #[arg(long, value_names = ["ENGINE", "HOSTS"], num_args = 1..=2)]
    pub(super) on: Option<Vec<String>>,
    /// With --on: prints what would be submitted.
    #[arg(long, requires = "on")]
    pub(super) dry_run: bool,
    /// Runs one cell of the matrix that --on has written to -o DIR, by number or name, unless it is finished.
    #[arg(long, value_name = "CELL", requires = "output", conflicts_with = "on")]
    pub(super) cell: Option<String>,
}

fn scale(text: &str) -> Result<f64, String> {
    let fits = |scale: &f64| *scale > 0.0 && *scale <= 10.0;
    let scale = crate::values::number(text).ok().filter(fits);
    scale.ok_or_else(|| "expected above 0 and at most 10".into())
}

fn settle(text: &str) -> Result<f64, String> {
    let fits = |seconds: &f64| (0.0..=3600.0).contains(seconds);
    let seconds = crate::values::seconds(text).ok().filter(fits);
    seconds.ok_or_else(|| "expected 0 to 3600 seconds".into())
}

impl Arguments {
    /// What it comes to.
    pub(super) fn request(&self) -> Request {
        Request {
            experiments: registry::with_members(&self.experiments),
            programs: self.programs.clone(),
            options: Options {
                quick: self.quick,
                repetitions: self.reps,
                arms: self.arms.clone(),
                scale: self.scale,
                window: self.settle,
                seed: self.seed,
                full_size: self.full_size,
            },
        }
    }

    /// Refuses what was chosen of no experiment that was asked for.
    pub(super) fn check(&self, experiments: &[String]) -> Result<()> {
        let with_full_size = registry::with_full_size();
        let by_itself = matches!(experiments, [one] if with_full_size.contains(&one.as_str()));
        ensure!(
            !self.full_size || self.list || by_itself,
            "--full-size is of {} by itself",
            with_full_size.join(", ")
        );
        let chosen = chosen::Chosen {
            arms: self.arms.is_some(),
            programs: self.programs.is_some(),
            scale: (self.scale - 1.0).abs() > f64::EPSILON,
            window: self.settle.is_some(),
        };
        chosen::check(experiments, chosen)
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| {
            let now = UNIX_EPOCH.elapsed().unwrap_or_default();
            PathBuf::from("results").join(store::timestamp(now))
        })
    }
}
