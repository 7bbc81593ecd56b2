//! `pagemill reproduce`: published experiments, run again.

mod apart;
mod fleet;
mod list;

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use clap::Args;
use pagemill_kernel::{Linux, signal};
use pagemill_launch::progress::{Progress, minutes};
use pagemill_model::whole;
use serde_json::{Value, json};

#[cfg(target_arch = "x86_64")]
use pagemill_experiments::huge_slices;
use pagemill_experiments::moca::kept::Kept;
use pagemill_experiments::reproduce::apart::Outcomes;
use pagemill_experiments::reproduce::arm::Machine;
use pagemill_experiments::reproduce::chosen::{self, HUGE_SLICES, OTHERS};
use pagemill_experiments::reproduce::experiment;
use pagemill_experiments::reproduce::html;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::keep::Keep;
use pagemill_experiments::reproduce::plan::{Options, Plan, Skipped};
use pagemill_experiments::reproduce::series::{self, Finished, Series};
use pagemill_experiments::reproduce::store::{self, Store};
use pagemill_experiments::reproduce::summary::{self, Circumstances, Shown, Summary};
use pagemill_experiments::reproduce::target::Stage;
use pagemill_experiments::reproduce::terminal;
use pagemill_experiments::scoreboard::Scoreboard;
use pagemill_experiments::{as_html, as_text, colloid, fragmentation, huge_pages, moca, overhead};
use pagemill_launch::exit::Exit;

use apart::{Apart, ENDED};
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
        conflicts_with_all = ["on", "cell", "quick", "arms", "programs", "reps"]
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
    simulated: bool,
    free_memory: bool,
    huge_pages: bool,
    traces: bool,
    /// Those that run programs.
    names: Vec<String>,
    all: bool,
}

impl Asked {
    fn of(experiments: &[String]) -> Self {
        const APART: [&str; 4] = [colloid::NAME, fragmentation::NAME, huge_pages::NAME, moca::NAME];
        let all = experiments.is_empty();
        let asked = |name: &str| all || experiments.iter().any(|one| one == name);
        let names = experiments.iter().filter(|name| !APART.contains(&name.as_str()));
        Self {
            simulated: asked(colloid::NAME),
            free_memory: asked(fragmentation::NAME),
            huge_pages: asked(huge_pages::NAME),
            traces: asked(moca::NAME),
            names: names.cloned().collect(),
            all,
        }
    }

    /// Those that have tables of their own, in the order in which they run.
    fn apart(&self) -> Vec<&'static str> {
        let asked = [
            (self.traces, moca::NAME),
            (self.huge_pages, huge_pages::NAME),
            (self.free_memory, fragmentation::NAME),
            (self.simulated, colloid::NAME),
        ];
        asked.into_iter().filter(|(asked, _)| *asked).map(|(_, name)| name).collect()
    }

    /// Whether one is root's that this process may not run.
    fn is_roots(&self) -> bool {
        (self.huge_pages || self.free_memory) && Linux::live().may_compact().is_err()
    }

    /// Whether there are any that run programs.
    fn programs(&self) -> bool {
        self.all || !self.names.is_empty()
    }
}

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
        if let Some(name) = self.experiments.iter().find(|name| ALONE.contains(&name.as_str()))
            && !self.list
        {
            ensure!(self.experiments.len() == 1, "{name} runs by itself (run it once for each)");
            return self.alone(name);
        }
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
        if plan.cells() == 0 && asked.apart().is_empty() {
            say_skipped(&plan.skipped);
            eprintln!("pagemill: nothing of what was asked for can run here");
            return Ok(Apart::default().exit(false, false, is_roots));
        }
        let directory = self.directory();
        let store = Store::create(&directory, self.force)?;
        let keep = Keep::new(&directory)?;
        let facts = machine_facts();
        let stage = fleet::stage(&signals, executable);
        let begun = store.write("run.json", &self.run_json(&plan, &facts)?);
        let begun =
            begun.and_then(|()| self.write_plan(&asked, &plan, &stage, &inputs, &directory));
        begun.inspect_err(|_| store.unmake())?;
        self.announce(&plan, asked.simulated, &directory)?;
        let runs = &mut plan.runs(&stage, &inputs, &options);
        let (finished, interrupted) = cells_of("reproduce", runs, &stage, (&store, &keep))?;
        let apart = self.apart(&asked, &stage, &inputs, (&store, &keep), interrupted)?;
        if !asked.programs() && !asked.simulated {
            return self.conclude_apart(&store, &apart, is_roots);
        }
        let (interrupted, outcomes) = (apart.interrupted, apart.outcomes());
        let circumstances = Circumstances {
            quick: self.quick,
            interrupted,
            seed: self.seed,
            machine: facts,
            skipped: plan.skipped.clone(),
        };
        let summary = summary::summarise(&Shown::of(&plan), &finished, circumstances)?;
        // What was measured is on disk before the simulation begins, which may then be ended like any program.
        self.store(&store, &summary, &apart.text, None, outcomes)?;
        // One that was sent again, as timeout(1) does, does not cut off the tables.
        if let Some(held) = interrupted.then_some(signals) {
            std::mem::forget(held);
        }
        let mut finished_figure = |part: &colloid::Report| {
            self.store(&store, &summary, &apart.text, Some(part), outcomes).map(drop)
        };
        let report = (asked.simulated && !interrupted)
            .then(|| self.simulate(&store, &keep, &mut finished_figure))
            .transpose()?;
        self.conclude(&store, &summary, &apart.text, report.as_ref(), outcomes)?;
        let failed = finished.iter().any(|(_, outcome)| outcome.is_err());
        Ok(apart.exit(plan.cells() > 0 || asked.simulated, failed, is_roots))
    }

    /// Refuses what was chosen of no experiment that was asked for.
    fn check(&self, experiments: &[String]) -> Result<()> {
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
        }
    }

    /// The cells of an experiment that has tables of its own, if it is one of those.
    fn series<'a>(
        &'a self,
        name: &str,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
    ) -> Result<Option<Box<dyn Series + 'a>>> {
        Ok(match name {
            colloid::NAME => Some(Box::new(colloid::Modelled::new(self.simulated()?)?)),
            moca::NAME => Some(Box::new(moca::Traces::new(self.traced()?, stage)?)),
            huge_pages::NAME => {
                Some(Box::new(huge_pages::Policies::new(self.policies()?, stage, inputs)))
            }
            fragmentation::NAME => {
                Some(Box::new(fragmentation::Study::new(self.studied()?, stage)))
            }
            _ => None,
        })
    }

    /// Runs the experiments that have tables of their own, unless all was `interrupted`.
    fn apart(
        &self,
        asked: &Asked,
        stage: &Stage<'_>,
        inputs: &Inputs,
        (store, keep): (&Store, &Keep),
        interrupted: bool,
    ) -> Result<Apart> {
        let mut apart = Apart { interrupted, ..Apart::default() };
        if asked.traces && !apart.interrupted {
            (apart.traced, apart.untraced) =
                self.traces(stage, (store, keep), &mut apart.absent)?;
            apart.took_in(|apart| apart.traced.as_ref().map(|it| (it.text(), it.interrupted)));
        }
        // Last, for they break up the memory that the programs ran on.
        if asked.huge_pages && !apart.interrupted {
            apart.huge = self.huge_pages(stage, inputs, (store, keep), &mut apart.absent)?;
            apart.took_in(|apart| apart.huge.as_ref().map(|it| (it.text(), it.interrupted)));
        }
        if asked.free_memory && !apart.interrupted {
            apart.studied = self.free_memory(stage, (store, keep), &mut apart.absent)?;
            apart.took_in(|apart| apart.studied.as_ref().map(|it| (it.text(), it.interrupted)));
        }
        if apart.interrupted {
            let ended = asked.apart().into_iter().filter(|name| !apart.knows(name));
            let ended: Vec<_> = ended.map(|name| (name, ENDED.to_owned())).collect();
            apart.absent.extend(ended);
        }
        Ok(apart)
    }

    /// Nothing else was asked for.
    fn conclude_apart(&self, store: &Store, apart: &Apart, is_roots: bool) -> Result<Exit> {
        let page = html::apart(apart.outcomes());
        page.as_ref().map_or(Ok(()), |page| store.write("report.html", page))?;
        if !self.json {
            print!("{}", apart.text);
            ending(&Scoreboard::of(None, None, apart.outcomes()));
        }
        let results = store.directory();
        eprintln!("pagemill: results in {}", results.display());
        if page.is_some() {
            eprintln!("next: open {}", results.join("report.html").display());
        }
        Ok(apart.exit(false, false, is_roots))
    }

    /// An experiment of one's own asking: tables in files of its name.
    fn alone(&self, name: &str) -> Result<Exit> {
        let linux = Linux::live();
        // The tracer of huge-slices sleeps until its program stops.
        let watched = if name == HUGE_SLICES { &ENDING_AND_CHILD[..] } else { ENDING };
        let signals = signal::Signals::block(watched)?;
        let mut steps = Progress::logged(name);
        let say = |step: &str| steps.say(step);
        let (title, tables, charts, data, interrupted) = match name {
            overhead::NAME => {
                let options = overhead::Options::new(self.quick, self.reps, self.seed);
                let outcome = overhead::run(&linux, options, &signals, say)?;
                (overhead::TITLE, outcome.tables(), Vec::new(), outcome.json(), outcome.interrupted)
            }
            #[cfg(target_arch = "x86_64")]
            huge_slices::NAME => {
                if let Some(why) = huge_slices::missing(&linux) {
                    eprintln!("pagemill: {name} cannot run here: {why}");
                    return Ok(Exit::Unsupported);
                }
                let programs = self.programs.as_deref();
                let options =
                    huge_slices::Options::new(self.quick, self.reps, self.seed, programs)?;
                let outcome = huge_slices::run(&linux, options, &signals, say)?;
                let (tables, charts) = (outcome.tables(), outcome.charts());
                (huge_slices::TITLE, tables, charts, outcome.json(), outcome.interrupted)
            }
            _ => {
                eprintln!("pagemill: {name} runs on x86-64 only");
                return Ok(Exit::Unsupported);
            }
        };
        drop(steps);
        let store = Store::create(&self.directory(), self.force)?;
        let data = serde_json::to_string_pretty(&data)? + "\n";
        let text = as_text(name, title, &tables);
        store.write(&format!("{name}.json"), &data)?;
        store.write(&format!("{name}.txt"), &text)?;
        store.write(&format!("{name}.html"), as_html(name, title, &tables, &charts))?;
        match self.json {
            true => answer(&data)?,
            false => print!("{text}"),
        }
        if interrupted {
            eprintln!("pagemill: {name} was interrupted; what was measured by then is kept");
        }
        eprintln!("pagemill: results in {}", store.directory().display());
        Ok(if interrupted { Exit::Code(130) } else { Exit::Ok })
    }

    /// The tables of the fragmentation study, in files of their own; `None`, and why, if they cannot be
    /// made here.
    fn free_memory(
        &self,
        stage: &Stage<'_>,
        (store, keep): (&Store, &Keep),
        absent: &mut Vec<(&'static str, String)>,
    ) -> Result<Option<fragmentation::Outcome>> {
        let name = fragmentation::NAME;
        if let Some(reason) = fragmentation::missing(&stage.linux) {
            eprintln!("pagemill: skipped {name}: {reason}");
            absent.push((name, reason));
            return Ok(None);
        }
        let options = self.studied()?;
        let mut study = fragmentation::Study::new(options.clone(), stage);
        let (finished, interrupted) = self.cells(name, &mut study, stage, (store, keep))?;
        drop(study);
        let outcome = fragmentation::Outcome::of(options, &finished, interrupted);
        store.write("fragmentation.html", outcome.html())?;
        self.write(name, store, &outcome.json(), outcome.text())?;
        Ok(Some(outcome))
    }

    /// How the free memory is studied.
    fn studied(&self) -> Result<fragmentation::Options> {
        let mut options = fragmentation::Options::new(self.quick, self.reps);
        let name = fragmentation::NAME;
        options.only(self.programs(name), self.arms(name))?;
        Ok(options)
    }

    /// Runs the cells of an experiment with tables of its own that are not kept, and says before how many there are.
    fn cells(
        &self,
        name: &str,
        series: &mut dyn Series,
        stage: &Stage<'_>,
        kept: (&Store, &Keep),
    ) -> Result<(Vec<Finished>, bool)> {
        let (cells, takes) = series::amount(series);
        eprintln!("pagemill: {name}: {cells} cells, about {}", minutes(takes));
        let (finished, interrupted) = cells_of(name, series, stage, kept)?;
        if interrupted {
            let results = kept.0.directory().display();
            eprintln!("pagemill: {name} goes on where it was with -f -o {results}");
        }
        Ok((finished, interrupted))
    }

    /// Access traces of the NAS kernels, in files of their own; `None`, and why, if they cannot be made here.
    /// The flag tells whether a run failed.
    fn traces(
        &self,
        stage: &Stage<'_>,
        kept: (&Store, &Keep),
        absent: &mut Vec<(&'static str, String)>,
    ) -> Result<(Option<moca::Outcome>, bool)> {
        let options = self.traced()?;
        let mut traces = moca::Traces::new(options.clone(), stage)?;
        let (finished, interrupted) = self.cells(moca::NAME, &mut traces, stage, kept)?;
        let outcome = match moca::Outcome::of(options, &finished, interrupted) {
            Ok(outcome) => outcome,
            Err(why) => {
                eprintln!("pagemill: skipped {}: {why}", moca::NAME);
                absent.push((moca::NAME, why));
                return Ok((None, false));
            }
        };
        let now = store::timestamp(UNIX_EPOCH.elapsed().unwrap_or_default());
        let mut machine = vec![format!("{}, {now}", pagemill_model::TOOL)];
        machine.extend(machine_facts());
        machine.extend(load());
        let run = Kept { outcome, machine };
        self.keep_traces(kept.0, &run)?;
        Ok((Some(run.outcome), finished.iter().any(|(_, outcome)| outcome.is_err())))
    }

    /// Which kernels are traced, and how.
    fn traced(&self) -> Result<moca::Options> {
        let mut options = moca::Options::new(self.quick, self.reps);
        options.only(self.programs(moca::NAME))?;
        Ok(options)
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
        if !self.json {
            print!("{}", kept.outcome.text());
        } else if self.output.is_none() {
            crate::answer::print("reproduce", kept.outcome.json())?;
        }
        eprintln!("pagemill: nothing was run; these figures are of: {}", kept.machine.join("; "));
        if self.output.is_some() {
            let store = Store::create(&self.directory(), self.force)?;
            self.keep_traces(&store, &kept)?;
            eprintln!("pagemill: results in {}", store.directory().display());
        }
        Ok(Exit::Ok)
    }

    fn keep_traces(&self, store: &Store, kept: &Kept) -> Result<()> {
        store.write("moca.csv", kept.outcome.csv())?;
        store.write("moca.parquet", kept.write()?)?;
        self.write(moca::NAME, store, &kept.outcome.json(), kept.outcome.text())
    }

    /// Writes the tables of an experiment, which are the answer, too, where it is all that was asked for.
    fn write(&self, name: &str, store: &Store, tables: &Value, text: String) -> Result<()> {
        let data = serde_json::to_string_pretty(tables)? + "\n";
        store.write(&format!("{name}.json"), &data)?;
        store.write(&format!("{name}.txt"), text)?;
        if self.json && self.experiments == [name] {
            answer(&data)?;
        }
        Ok(())
    }

    /// Programs under huge page policies, in files of their own; `None`, and why, if they cannot be run here.
    fn huge_pages(
        &self,
        stage: &Stage<'_>,
        inputs: &Inputs,
        kept: (&Store, &Keep),
        absent: &mut Vec<(&'static str, String)>,
    ) -> Result<Option<huge_pages::Outcome>> {
        let name = huge_pages::NAME;
        if let Some(reason) = huge_pages::missing(&stage.linux) {
            eprintln!("pagemill: skipped {name}: {reason}");
            absent.push((name, reason));
            return Ok(None);
        }
        let mut policies = huge_pages::Policies::new(self.policies()?, stage, inputs);
        with_steps(name, |mut say| {
            policies.leave_out(Some(&mut say));
            Ok(())
        })?;
        let (finished, interrupted) = self.cells(name, &mut policies, stage, kept)?;
        let outcome = policies.outcome(&finished, interrupted);
        let mut page = Page::new("pagemill reproduce huge-pages");
        outcome.page(&mut page);
        kept.0.write("huge-pages.csv", outcome.csv())?;
        kept.0.write("huge-pages.html", page.finish())?;
        self.write(name, kept.0, &outcome.json(), outcome.text())?;
        Ok(Some(outcome))
    }

    /// Which programs run under which policies.
    fn policies(&self) -> Result<huge_pages::Options> {
        let mut options = huge_pages::Options::new(self.quick, self.reps, self.scale, self.seed);
        options.only(self.programs(huge_pages::NAME), self.arms(huge_pages::NAME))?;
        Ok(options)
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

    /// Says what is about to happen and what is not.
    fn announce(&self, plan: &Plan, simulated: bool, directory: &Path) -> Result<()> {
        say_skipped(&plan.skipped);
        if plan.cells() > 0 {
            eprintln!("pagemill: {} runs, about {}", plan.cells(), minutes(plan.estimate()));
        }
        if simulated {
            let (cells, takes) = series::amount(&colloid::Modelled::new(self.simulated()?)?);
            eprintln!(
                "pagemill: {}: {cells} cells, about {}; ended before, it goes on with -f -o {}",
                colloid::NAME,
                minutes(takes),
                directory.display()
            );
        }
        Ok(())
    }

    /// The published evaluation of Colloid on the simulated machine.
    fn simulate(
        &self,
        store: &Store,
        keep: &Keep,
        made: &mut dyn FnMut(&colloid::Report) -> Result<()>,
    ) -> Result<colloid::Report> {
        let options = self.simulated()?;
        with_steps("simulated", |say| colloid::run(&options, (Some(store), keep), say, made))
    }

    /// Which figures of the simulated machine are made.
    fn simulated(&self) -> Result<colloid::Options> {
        let mut options = colloid::Options::new(self.quick, self.seed)?;
        options.only(self.programs(colloid::NAME));
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
        more: &str,
        simulated: Option<&colloid::Report>,
        outcomes: Outcomes<'_>,
    ) -> Result<(String, String)> {
        let mut text =
            if summary.sections.is_empty() { String::new() } else { terminal::render(summary) };
        text.push_str(more);
        let mut data = serde_json::to_value(summary)?;
        data["scoreboard"] =
            serde_json::to_value(Scoreboard::of(Some(summary), simulated, outcomes))?;
        if let Some(report) = simulated {
            text.push_str(&format!("\n{}: {}", colloid::NAME, report.text()));
            data["colloid"] = serde_json::to_value(report)?;
        }
        let data = serde_json::to_string_pretty(&data)? + "\n";
        let page = html::render(summary, simulated, outcomes);
        let files = [("summary.json", &data), ("report.txt", &text), ("report.html", &page)];
        let written = files.into_iter().try_for_each(|(name, text)| store.write(name, text));
        written.context("all that ran is kept; the same command makes the tables (with -f)")?;
        Ok((text, data))
    }

    fn conclude(
        &self,
        store: &Store,
        summary: &Summary,
        more: &str,
        simulated: Option<&colloid::Report>,
        outcomes: Outcomes<'_>,
    ) -> Result<()> {
        let (text, data) = self.store(store, summary, more, simulated, outcomes)?;
        match self.json {
            true => answer(&data)?,
            // One experiment's tables are what was asked for; of all, they are in the files.
            false if self.experiments.is_empty() => {}
            false => print!("{text}"),
        }
        if !self.json {
            ending(&Scoreboard::of(Some(summary), simulated, outcomes));
        }
        if summary.interrupted {
            eprintln!("pagemill: interrupted; the runs that were finished are kept");
        }
        let results = store.directory();
        eprintln!("pagemill: results in {}, all tables in report.txt there", results.display());
        eprintln!("next: open {}", results.join("report.html").display());
        Ok(())
    }
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

/// These, and the end of a child.
const ENDING_AND_CHILD: [i32; 4] = [2, 15, 1, signal::CHILD];

/// Experiments that run only when they are named, each by itself.
const ALONE: [&str; 2] = [overhead::NAME, HUGE_SLICES];

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

/// Runs cells that are not kept, each step shown.
fn cells_of(
    name: &str,
    series: &mut dyn Series,
    stage: &Stage<'_>,
    (store, keep): (&Store, &Keep),
) -> Result<(Vec<Finished>, bool)> {
    with_steps(name, |say| {
        series::all(series, stage, (Some(store), keep), &mut |step| {
            say(&step.words());
            Ok(())
        })
    })
}

/// Does something whose steps are shown.
fn with_steps<T>(name: &str, work: impl FnOnce(&mut dyn FnMut(&str)) -> Result<T>) -> Result<T> {
    let mut line = Progress::logged(name);
    work(&mut |step| line.say(step))
}
