//! `pagemill reproduce`: published experiments, run again.

mod fleet;
mod list;

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pagemill_kernel::{Linux, signal};
use pagemill_launch::progress::Progress;
use pagemill_model::whole;
use serde_json::json;

use pagemill_experiments::apart::{Apart, Outcomes, Tables};
use pagemill_experiments::moca::kept::Kept;
use pagemill_experiments::reproduce::arm::Machine;
use pagemill_experiments::reproduce::chosen::{self, OTHERS};
use pagemill_experiments::reproduce::experiment;
use pagemill_experiments::reproduce::html;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::keep::{self, Keep};
use pagemill_experiments::reproduce::plan::{Options, Plan, Skipped};
use pagemill_experiments::reproduce::series::{self, Finished, Series};
use pagemill_experiments::reproduce::store::{self, Store};
use pagemill_experiments::reproduce::summary::{self, Circumstances, Shown, Summary};
use pagemill_experiments::reproduce::target::Stage;
use pagemill_experiments::reproduce::terminal;
use pagemill_experiments::scoreboard::Scoreboard;
use pagemill_experiments::{colloid, fragmentation, huge_pages, huge_slices, moca, overhead};
use pagemill_launch::exit::Exit;

use pagemill_report::draw::html::Page;

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
3 nothing of what was asked for can run here, 4 because it is root's; 130 interrupted, finished cells are kept.";

/// Which experiments, and how.
#[derive(Clone, Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Experiments, `mesh` for that group, or `colloid` for the simulated machine; all there are without a name.
    experiments: Vec<String>,
    /// Lists experiments and arms: what each needs, takes, and has kept (in -o DIR, where that is named).
    #[arg(long)]
    list: bool,
    /// Smaller sizes, fewer arms and runs: minutes instead of hours.
    #[arg(long)]
    quick: bool,
    /// Runs of each arm.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    reps: Option<u32>,
    /// Arms to compare, instead of the experiment's.
    #[arg(long, value_name = "ARM", value_delimiter = ',')]
    arms: Option<Vec<String>>,
    /// Programs of huge-pages, huge-slices or fragmentation, kernels of moca, or figures of colloid, instead of all.
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',')]
    programs: Option<Vec<String>>,
    /// Seed of the order of runs and of all generated inputs.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Factor on all sizes; figures are then not those of the published experiment.
    #[arg(long, default_value_t = 1.0, value_name = "F", value_parser = scale)]
    scale: f64,
    /// Of fragmentation by itself: its programs at the study's full size, in hours (--list says how many).
    #[arg(long, conflicts_with = "quick")]
    full_size: bool,
    /// Window of the Redis experiment, from the first insertion to the final reading.
    #[arg(long, value_name = "SECONDS", value_parser = settle)]
    settle: Option<f64>,
    /// Directory for the results.
    #[arg(short, long, value_name = "DIR", value_parser = crate::values::directory())]
    output: Option<PathBuf>,
    /// Writes into a directory that is not empty.
    #[arg(short, long)]
    force: bool,
    /// Prints the summary as JSON instead of tables.
    #[arg(long, conflicts_with_all = ["on", "cell"])]
    json: bool,
    /// Of moca: makes the tables from the figures of a run that is kept, this binary's or FILE, and runs nothing.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        conflicts_with_all = ["on", "cell", "quick", "arms", "programs", "reps", "seed", "scale", "settle", "full_size"]
    )]
    from_kept: Option<Option<PathBuf>>,
    /// Runs the cells on other machines: `slurm`, or `parallel` and hosts that ssh knows (`:` is this one).
    #[arg(long, value_names = ["ENGINE", "HOSTS"], num_args = 1..=2)]
    on: Option<Vec<String>>,
    /// With --on: prints what would be submitted.
    #[arg(long, requires = "on")]
    dry_run: bool,
    /// Runs one cell of the matrix that --on has written to -o DIR, by number or name, unless it is finished.
    #[arg(long, value_name = "CELL", requires = "output", conflicts_with = "on")]
    cell: Option<String>,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    arguments.run()
}

/// Which experiments were asked for; all, where none was named.
struct Asked {
    /// Those with tables of their own, in the order in which they run.
    apart: Vec<&'static str>,
    /// Those that run programs.
    names: Vec<String>,
    all: bool,
}

impl Asked {
    fn of(experiments: &[String]) -> Self {
        let all = experiments.is_empty();
        // It compares with no publication.
        let asked = |name: &&str| match all {
            true => *name != overhead::NAME,
            false => experiments.iter().any(|one| one == name),
        };
        let names = experiments.iter().filter(|name| !OTHERS.contains(&name.as_str()));
        let (apart, names) = (OTHERS.into_iter().filter(asked).collect(), names.cloned().collect());
        Self { apart, names, all }
    }

    fn simulated(&self) -> bool {
        self.apart.contains(&colloid::NAME)
    }

    /// Whether one is root's that this process may not run.
    fn is_roots(&self) -> bool {
        let roots = [huge_pages::NAME, fragmentation::NAME];
        roots.iter().any(|name| self.apart.contains(name)) && Linux::live().may_compact().is_err()
    }

    /// Whether there are any that run programs.
    fn programs(&self) -> bool {
        self.all || !self.names.is_empty()
    }

    /// The one with tables of its own that is all that was asked for: its tables are the answer.
    fn alone(&self) -> Option<&'static str> {
        match self.apart[..] {
            [one] if !self.programs() && one != colloid::NAME => Some(one),
            _ => None,
        }
    }
}

/// What came of a run, beside the programs on allocators.
#[derive(Default)]
struct Run {
    outcomes: Outcomes,
    text: String,
    /// Whether a cell failed.
    failed: bool,
    interrupted: bool,
}

/// Why an experiment did not run whose turn had not come.
const ENDED: &str = "this run was ended before";

fn scale(text: &str) -> Result<f64, String> {
    let fits = |scale: &f64| *scale > 0.0 && *scale <= 10.0;
    text.parse().ok().filter(fits).ok_or_else(|| "expected above 0 and at most 10".into())
}

fn settle(text: &str) -> Result<f64, String> {
    let fits = |seconds: &f64| (0.0..=3600.0).contains(seconds);
    text.parse().ok().filter(fits).ok_or_else(|| "expected 0 to 3600 seconds".into())
}

impl Arguments {
    fn run(&self) -> Result<Exit> {
        if let Some(cell) = &self.cell {
            return self.one_cell(cell);
        }
        if let Some(file) = self.from_kept.as_ref().filter(|_| !self.list) {
            return self.kept_tables(file.as_deref());
        }
        if let Some(on) = self.on.as_ref().filter(|_| !self.list) {
            return self.submit(on);
        }
        self.check(&self.experiments)?;
        let asked = Asked::of(&self.experiments);
        let experiments = match asked.programs() {
            true => experiment::select(&asked.names, &OTHERS)?,
            false => Vec::new(),
        };
        if self.list {
            return self.list(&experiments, &asked).map(|()| Exit::Ok);
        }
        let options = self.options();
        // Before any other thread exists: signals are waited for, so that a run that is ended
        // leaves its finished cells and nothing else behind.
        let signals = signal::Signals::block(ENDING)?;
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let inputs = Inputs::new(executable.clone(), self.seed)?;
        let mut machine = Machine::detect(&executable);
        let plan = Plan::new(experiments, &options, &mut machine, &inputs)?;
        let is_roots = plan.is_roots() || asked.is_roots();
        if plan.cells() == 0 && asked.apart.is_empty() {
            return Ok(nothing_runs(&plan.skipped, is_roots));
        }
        let directory = self.directory();
        let keep = Keep::new(&directory)?;
        let stage = fleet::stage(&signals, executable);
        let mut planned = self.planned(&asked.apart, &plan, &stage, &inputs)?;
        planned.turns.retain(|turn| !planned.missing.contains(&turn.cell.experiment.as_str()));
        keep::same(&directory, &planned.turns)?;
        let store = Store::create(&directory, self.force)?;
        let facts = machine_facts();
        let begun = store.write("run.json", &self.run_json(&plan, &facts)?);
        let begun = begun.and_then(|()| self.matrix_of(&planned).plan(&directory));
        begun.inspect_err(|_| store.unmake())?;
        say_skipped(&plan.skipped);
        let runs = &mut plan.runs(&stage, &inputs, &options);
        let (finished, interrupted) = self.cells("reproduce", runs, &stage, (&store, &keep))?;
        let run = self.apart(&asked, &stage, &inputs, (&store, &keep), interrupted)?;
        let circumstances = Circumstances {
            quick: self.quick,
            interrupted: run.interrupted,
            seed: self.seed,
            machine: facts,
            skipped: plan.skipped.clone(),
        };
        let summary = summary::summarise(&Shown::of(&plan), &finished, circumstances)?;
        // What was measured is on disk before the simulation begins, which may then be ended like any program.
        self.store(&store, &summary, &run, None)?;
        // One that was sent again, as timeout(1) does, does not cut off the tables.
        if let Some(held) = run.interrupted.then_some(signals) {
            std::mem::forget(held);
        }
        let mut finished_figure =
            |part: &colloid::Report| self.store(&store, &summary, &run, Some(part)).map(drop);
        let report = (asked.simulated() && !run.interrupted)
            .then(|| self.simulate(&store, &keep, &mut finished_figure))
            .transpose()?;
        self.conclude(&store, &summary, &run, report.as_ref(), asked.alone().is_none())?;
        let failed = run.failed || finished.iter().any(|(_, outcome)| outcome.is_err());
        let ran = plan.cells() > 0 || asked.simulated() || !run.outcomes.tables.is_empty();
        Ok(match () {
            () if run.interrupted => Exit::Code(130),
            () if !ran => no_answer(&run.outcomes.absent, is_roots),
            () if failed => Exit::Finding,
            () => Exit::Ok,
        })
    }

    /// Refuses what was chosen of no experiment that was asked for.
    fn check(&self, experiments: &[String]) -> Result<()> {
        let by_itself = experiments == [fragmentation::NAME];
        ensure!(
            !self.full_size || self.list || by_itself,
            "--full-size is of {} by itself",
            fragmentation::NAME
        );
        chosen::check(experiments, self.arms.is_some(), self.programs.is_some())
    }

    /// How programs are run.
    fn options(&self) -> Options {
        Options {
            quick: self.quick,
            repetitions: self.reps,
            arms: self.arms.clone(),
            scale: self.scale,
            settle: self.settle,
            seed: self.seed,
            full_size: self.full_size,
        }
    }

    /// An experiment that has tables of its own and runs here, if it is one of those.
    fn measured<'a>(
        &'a self,
        name: &str,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
    ) -> Result<Option<Box<dyn Apart + 'a>>> {
        let (quick, reps, seed) = (self.quick, self.reps, self.seed);
        let (programs, arms) = (self.programs(name), self.arms(name));
        Ok(Some(match name {
            overhead::NAME => {
                Box::new(overhead::Costs::new(overhead::Options::new(quick, reps, seed), stage)?)
            }
            moca::NAME => {
                let mut options = moca::Options::new(quick, reps);
                options.only(programs)?;
                Box::new(moca::Traces::new(options, stage)?)
            }
            huge_slices::NAME => {
                let mut options = huge_slices::Options::new(quick, reps, seed);
                options.only(programs)?;
                Box::new(huge_slices::Slices::new(options, stage))
            }
            huge_pages::NAME => {
                let mut options = huge_pages::Options::new(quick, reps, self.scale, seed);
                options.only(programs, arms)?;
                Box::new(huge_pages::Policies::new(options, stage, inputs))
            }
            fragmentation::NAME => {
                let mut options = fragmentation::Options::new(quick, self.full_size, reps);
                options.only(programs, arms)?;
                Box::new(fragmentation::Study::new(options, stage))
            }
            _ => return Ok(None),
        }))
    }

    /// The cells of an experiment that has tables of its own, if it is one of those.
    fn series<'a>(
        &'a self,
        name: &str,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
    ) -> Result<Option<Box<dyn Series + 'a>>> {
        if name == colloid::NAME {
            return Ok(Some(Box::new(colloid::Modelled::new(self.simulated()?))));
        }
        Ok(self.measured(name, stage, inputs)?.map(|one| one as Box<dyn Series>))
    }

    /// Runs the experiments that have tables of their own and run here, unless all was `interrupted`.
    fn apart(
        &self,
        asked: &Asked,
        stage: &Stage<'_>,
        inputs: &Inputs,
        kept: (&Store, &Keep),
        interrupted: bool,
    ) -> Result<Run> {
        let mut run = Run { interrupted, ..Run::default() };
        for &name in &asked.apart {
            if run.interrupted {
                run.outcomes.absent.push((name, ENDED.to_owned()));
            } else if let Some(series) = self.measured(name, stage, inputs)? {
                self.one_apart((name, asked.alone() == Some(name)), series, stage, kept, &mut run)?;
            }
        }
        Ok(run)
    }

    /// Runs one of them, and puts its tables into files of its name.
    fn one_apart(
        &self,
        (name, is_answer): (&'static str, bool),
        mut series: Box<dyn Apart + '_>,
        stage: &Stage<'_>,
        kept: (&Store, &Keep),
        run: &mut Run,
    ) -> Result<()> {
        let mut absent = |why: String| {
            eprintln!("pagemill: skipped {name}: {why}");
            run.outcomes.absent.push((name, why));
        };
        if let Some(why) = series.missing() {
            absent(why);
            return Ok(());
        }
        with_steps(name, |mut say| {
            series.leave_out(Some(&mut say));
            Ok(())
        })?;
        let (finished, interrupted) = self.cells(name, series.as_mut(), stage, kept)?;
        run.interrupted = interrupted;
        if interrupted {
            let results = kept.0.directory().display();
            eprintln!("pagemill: {name} goes on where it was with -f -o {results}");
        }
        match series.outcome(&finished, interrupted) {
            Err(why) => absent(why),
            Ok(tables) => {
                run.failed |= finished.iter().any(|(_, outcome)| outcome.is_err());
                let now = store::timestamp(UNIX_EPOCH.elapsed().unwrap_or_default());
                let mut machine = vec![format!("{}, {now}", pagemill_model::TOOL)];
                machine.extend(machine_facts().into_iter().chain(load()));
                self.write(name, kept.0, tables.as_ref(), &machine, is_answer)?;
                run.text.push_str(&tables.text());
                run.outcomes.tables.push((name, tables));
            }
        }
        Ok(())
    }

    /// Writes the tables of an experiment, which are the answer, too, where they are all that was asked for.
    fn write(
        &self,
        name: &str,
        store: &Store,
        tables: &dyn Tables,
        machine: &[String],
        is_answer: bool,
    ) -> Result<()> {
        for (file, bytes) in tables.files(machine)? {
            store.write(file, bytes)?;
        }
        let mut page = Page::new(&format!("pagemill reproduce {name}"));
        tables.page(&mut page);
        let data = serde_json::to_string_pretty(&tables.json())? + "\n";
        store.write(&format!("{name}.json"), &data)?;
        store.write(&format!("{name}.txt"), tables.text())?;
        store.write(&format!("{name}.html"), page.finish())?;
        if self.json && is_answer {
            answer(&data)?;
        }
        Ok(())
    }

    /// Runs the cells that are not kept, each step shown, and says before how many there are.
    fn cells(
        &self,
        name: &str,
        series: &mut dyn Series,
        stage: &Stage<'_>,
        (store, keep): (&Store, &Keep),
    ) -> Result<(Vec<Finished>, bool)> {
        let amount = series::amount(series, Some(keep));
        if amount.cells > 0 {
            eprintln!("pagemill: {name}: {amount}");
        }
        with_steps(name, |say| {
            series::all(series, stage, (Some(store), keep), &mut |step| {
                say(&step.words());
                Ok(())
            })
        })
    }

    /// The tables of a run whose figures were kept; in files, too, where a directory is named.
    fn kept_tables(&self, file: Option<&Path>) -> Result<Exit> {
        ensure!(
            self.experiments == [moca::NAME],
            "--from-kept is of {0}: reproduce {0} --from-kept",
            moca::NAME
        );
        let kept = match file {
            None => Kept::built_in()?,
            Some(path) => {
                let cannot = || format!("cannot read {}", path.display());
                let bytes = whole::read(path, whole::DATA).with_context(cannot)?;
                Kept::read(&bytes).with_context(|| format!("{} is no kept run", path.display()))?
            }
        };
        eprintln!("pagemill: nothing was run; these figures are of: {}", kept.machine.join("; "));
        let machine = kept.machine;
        let mut run = Run { text: kept.outcome.text(), ..Run::default() };
        let interrupted = kept.outcome.interrupted;
        let data = kept.outcome.json();
        let store = self.output.as_ref().map(|it| Store::create(it, self.force)).transpose()?;
        if let Some(store) = &store {
            self.write(moca::NAME, store, &kept.outcome, &machine, false)?;
        }
        run.outcomes.tables.push((moca::NAME, Box::new(kept.outcome)));
        let circumstances = Circumstances { interrupted, machine, ..Circumstances::default() };
        let summary = summary::summarise(&[], &[], circumstances)?;
        match store {
            Some(store) => self.conclude(&store, &summary, &run, None, false)?,
            None if !self.json => {
                print!("{}", run.text);
                ending(&Scoreboard::of(Some(&summary), None, &run.outcomes));
            }
            None => {}
        }
        if self.json {
            crate::answer::print("reproduce", data)?;
        }
        Ok(Exit::Ok)
    }

    fn directory(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| {
            let now = UNIX_EPOCH.elapsed().unwrap_or_default();
            PathBuf::from("results").join(store::timestamp(now))
        })
    }

    fn run_json(&self, plan: &Plan, machine: &[String]) -> Result<String> {
        let experiments: Vec<_> = plan
            .scheduled
            .iter()
            .map(|scheduled| {
                json!({
                    "name": scheduled.experiment.name,
                    "arms": scheduled.arms.iter().map(|arm| arm.name).collect::<Vec<_>>(),
                    "repetitions": scheduled.repetitions,
                    "scale": scheduled.scale,
                })
            })
            .collect();
        let command: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let run = json!({
            "schema": 1,
            "command": command,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": machine,
            "quick": self.quick,
            "seed": self.seed,
            "experiments": experiments,
            "skipped": plan.skipped,
        });
        Ok(serde_json::to_string_pretty(&run)? + "\n")
    }

    /// The published evaluation of Colloid on the simulated machine.
    fn simulate(
        &self,
        store: &Store,
        keep: &Keep,
        made: &mut dyn FnMut(&colloid::Report) -> Result<()>,
    ) -> Result<colloid::Report> {
        let options = self.simulated()?;
        let amount = series::amount(&colloid::Modelled::new(options.clone()), Some(keep));
        let directory = store.directory().display();
        let name = colloid::NAME;
        eprintln!("pagemill: {name}: {amount}; ended before, it goes on with -f -o {directory}");
        with_steps("simulated", |say| colloid::run(&options, (Some(store), keep), say, made))
    }

    /// Which figures of the simulated machine are made.
    fn simulated(&self) -> Result<colloid::Options> {
        let mut options = colloid::Options::new(self.quick, self.seed)?;
        options.only(self.programs(colloid::NAME))?;
        Ok(options)
    }

    /// The arms that were chosen; with other experiments they are theirs.
    fn arms(&self, name: &str) -> Option<&[String]> {
        self.arms.as_deref().filter(|_| self.experiments == [name])
    }

    /// The programs that were chosen, if that is of this experiment: of one that runs alone.
    fn programs(&self, name: &str) -> Option<&[String]> {
        self.programs.as_deref().filter(|_| self.experiments == [name])
    }

    /// Writes the files of the run.
    fn store(
        &self,
        store: &Store,
        summary: &Summary,
        run: &Run,
        simulated: Option<&colloid::Report>,
    ) -> Result<(String, String)> {
        let mut text =
            if summary.sections.is_empty() { String::new() } else { terminal::render(summary) };
        text.push_str(&run.text);
        let mut data = serde_json::to_value(summary)?;
        let board = Scoreboard::of(Some(summary), simulated, &run.outcomes);
        data["scoreboard"] = serde_json::to_value(board)?;
        if let Some(report) = simulated {
            text.push_str(&format!("\n{}: {}", colloid::NAME, report.text()));
            data["colloid"] = serde_json::to_value(report)?;
        }
        let data = serde_json::to_string_pretty(&data)? + "\n";
        let page = html::render(summary, simulated, &run.outcomes);
        let files = [("summary.json", &data), ("report.txt", &text), ("report.html", &page)];
        let written = files.into_iter().try_for_each(|(name, text)| store.write(name, text));
        written.context("all that ran is kept; the same command makes the tables (with -f)")?;
        Ok((text, data))
    }

    /// Writes the files, and answers: with the summary if that `is_answer`.
    fn conclude(
        &self,
        store: &Store,
        summary: &Summary,
        run: &Run,
        simulated: Option<&colloid::Report>,
        is_answer: bool,
    ) -> Result<()> {
        let (text, data) = self.store(store, summary, run, simulated)?;
        match self.json {
            true if is_answer => answer(&data)?,
            true => {}
            false => {
                // One experiment's tables are what was asked for; of all, they are in the files.
                if !self.experiments.is_empty() {
                    print!("{text}");
                }
                ending(&Scoreboard::of(Some(summary), simulated, &run.outcomes));
            }
        }
        if summary.of.interrupted {
            eprintln!("pagemill: interrupted; the runs that were finished are kept");
        }
        let results = store.directory();
        eprintln!("pagemill: results in {}, all tables in report.txt there", results.display());
        eprintln!("next: open {}", results.join("report.html").display());
        Ok(())
    }
}

/// Says that nothing of what was asked for can run here, and why.
fn nothing_runs(skipped: &[Skipped], is_roots: bool) -> Exit {
    say_skipped(skipped);
    eprintln!("pagemill: nothing of what was asked for can run here");
    let words = |skip: &Skipped| match &skip.arm {
        Some(arm) => (arm.clone(), skip.reason.clone()),
        None => (skip.experiment.clone(), skip.reason.clone()),
    };
    let whys: Vec<_> = skipped.iter().map(words).collect();
    let whys: Vec<(&str, String)> =
        whys.iter().map(|(what, why)| (what.as_str(), why.clone())).collect();
    no_answer(&whys, is_roots)
}

/// The exit of who ran nothing, which a reader of JSON is told with the reasons.
fn no_answer(whys: &[(&str, String)], is_roots: bool) -> Exit {
    let exit = if is_roots { Exit::Permission } else { Exit::Unsupported };
    let whys = whys.iter().map(|(what, why)| format!("{what}: {why}")).collect::<Vec<_>>();
    let why = format!("nothing of what was asked for can run here: {}", whys.join("; "));
    crate::answer::error(exit.status(), Some(&why));
    exit
}

/// Says what does not run, and why.
fn say_skipped(skipped: &[Skipped]) {
    for skip in skipped {
        let arm = skip.arm.as_deref().map_or(String::new(), |arm| format!(" {arm}"));
        eprintln!("pagemill: skipped {}{arm}: {}", skip.experiment, skip.reason);
    }
}

/// Ends the answer with one screen of what was reproduced.
fn ending(board: &Scoreboard) {
    let text = board.text();
    if !text.is_empty() {
        print!("\n{text}");
    }
}

/// Prints what a file of the results says, as an answer.
fn answer(data: &str) -> Result<()> {
    crate::answer::print("reproduce", serde_json::from_str::<serde_json::Value>(data)?)
}

/// SIGINT, SIGTERM, SIGHUP.
const ENDING: &[i32] = &[2, 15, 1];

/// Facts about the machine that figures depend on.
fn machine_facts() -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let mut facts = vec![format!(
        "{cpus} CPUs, {}",
        field("model name").unwrap_or_else(|| "model unknown".into())
    )];
    facts.extend(read("/proc/sys/kernel/osrelease").map(|release| format!("Linux {release}")));
    let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
    facts.extend(thp.map(|mode| format!("transparent huge pages: {mode}")));
    let ksm = read("/sys/kernel/mm/ksm/run");
    facts.extend(ksm.map(|run| format!("/sys/kernel/mm/ksm/run: {run}")));
    let maps = read("/proc/sys/vm/max_map_count");
    facts.extend(maps.map(|count| format!("vm.max_map_count: {count}")));
    facts
}

/// What else the processors had to do at the end of a run, in words.
fn load() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let averages: Vec<&str> = text.split(' ').take(3).collect();
    Some(format!("load averages at its end: {}", averages.join(" ")))
}

/// Does something whose steps are shown.
fn with_steps<T>(name: &str, work: impl FnOnce(&mut dyn FnMut(&str)) -> Result<T>) -> Result<T> {
    let mut line = Progress::logged(name);
    work(&mut |step| line.say(step))
}
