//! `pagemill reproduce`: published experiments, run again.

mod absent;
mod arguments;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pagemill_experiments::fleet::engine::Engine;
use pagemill_experiments::fleet::matrix;
use pagemill_experiments::fleet::one_cell;
use pagemill_experiments::fleet::scripts::SubmitHost;
use pagemill_experiments::reproduce::arm::Machine;
use pagemill_experiments::reproduce::finished;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::keep::Keep;
use pagemill_experiments::reproduce::list;
use pagemill_experiments::reproduce::machine;
use pagemill_experiments::reproduce::plan::{Plan, say_skipped};
use pagemill_experiments::reproduce::run::{self, Run};
use pagemill_experiments::reproduce::store::Store;
use pagemill_experiments::reproduce::summary::{self, Circumstances, ShownExperiment, Summary};
use pagemill_experiments::reproduce::target::{ENDING, Stage};
use pagemill_experiments::scoreboard::Scoreboard;
use pagemill_experiments::{colloid, registry};
use pagemill_kernel::{Linux, process::signal};
use pagemill_launch::exit::Exit;
use pagemill_model::whole;

use crate::answer::{self, Layout};
use absent::{no_answer, nothing_runs};
pub use arguments::Arguments;

/// What `reproduce-list` is in JSON.
const REPRODUCE_LIST_LAYOUT: Layout = Layout::new("reproduce-list", 1, "experiments");
/// What `reproduce` is in JSON.
const REPRODUCE_LAYOUT: Layout = Layout::new("reproduce", 1, "");

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    arguments.run()
}

impl Arguments {
    fn run(&self) -> Result<Exit> {
        if let Some(cell) = &self.cell {
            let results = self.output.as_deref();
            let results = results.context("--cell is of a results directory: -o DIR")?;
            let results = std::path::absolute(results).context("the results directory")?;
            return one_cell::run(&results, cell);
        }
        if let Some(file) = self.from_kept.as_ref().filter(|_| !self.list) {
            return self.kept_tables(file.as_deref());
        }
        if let Some(on) = self.on.as_ref().filter(|_| !self.list) {
            return self.submit(on);
        }
        let request = self.request();
        self.check(&request.experiments)?;
        if self.list {
            let list = list::list(&request, self.output.as_deref())?;
            answer::tell(self.json, &REPRODUCE_LIST_LAYOUT, || list.json(), || list.text())?;
            return Ok(Exit::Ok);
        }
        let (experiments, options) = (request.selected()?, &request.options);
        // Before any other thread exists: signals are waited for, so that a run that is ended
        // leaves its finished cells and nothing else behind.
        let signals = signal::Signals::block(ENDING)?;
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let inputs = Inputs::new(executable.clone(), self.seed)?;
        let mut machine = Machine::detect();
        let plan = Plan::new(experiments, options, &mut machine, &inputs)?;
        let is_roots = plan.is_roots() || request.is_roots();
        if plan.cells() == 0 && request.apart().is_empty() {
            return Ok(nothing_runs(&plan.skipped, is_roots));
        }
        let directory = self.directory();
        let keep = Keep::new(&directory)?;
        let stage = Stage::on_this_machine(&signals, executable);
        let mut planned = request.planned(&plan, &stage, &inputs)?;
        planned.cells.retain(|one| !planned.missing.contains(&one.cell.experiment.as_str()));
        finished::same(&directory, &planned.cells)?;
        let store = Store::create(&directory, self.force)?;
        let facts = machine::facts();
        let begun = store.write("run.json", &run::header(options, &plan, &command(), &facts)?);
        let begun = begun.and_then(|()| request.matrix_of(&planned).plan(&directory));
        begun.inspect_err(|_| store.unmake())?;
        say_skipped(&plan.skipped);
        let runs = &mut plan.runs(&stage, &inputs, options);
        let (finished, interrupted) = run::cells("reproduce", runs, &stage, (&store, &keep))?;
        let kept = (&store, &keep);
        let run = run::apart(&request, &stage, &inputs, kept, interrupted)?;
        if let Some(data) = run.answer.as_ref().filter(|_| self.json) {
            answer(data)?;
        }
        let circumstances = Circumstances {
            quick: self.quick,
            interrupted: run.interrupted.is_some(),
            seed: self.seed,
            machine: facts,
            skipped: plan.skipped.clone(),
        };
        let summary = summary::summarise(&ShownExperiment::of(&plan), &finished, circumstances)?;
        // What was measured is on disk before the simulation begins, which may then be ended like any program.
        run::files(&store, &summary, &run, None)?;
        // One that was sent again, as timeout(1) does, does not cut off the tables.
        if let Some(held) = run.interrupted.map(|_| signals) {
            std::mem::forget(held);
        }
        let mut finished_figure =
            |part: &colloid::Report| run::files(&store, &summary, &run, Some(part)).map(drop);
        let report = (request.simulated() && run.interrupted.is_none())
            .then(|| run::simulate(&request, kept, &mut finished_figure))
            .transpose()?;
        self.conclude(&store, &summary, &run, report.as_ref(), request.alone().is_none())?;
        let failed = run.failed || finished.iter().any(|(_, outcome)| outcome.is_err());
        let ran = plan.cells() > 0 || request.simulated() || !run.outcomes.tables.is_empty();
        Ok(match run.interrupted {
            Some(by) => by.exit(),
            None if !ran => no_answer(&run.outcomes.absent, is_roots),
            None if failed => Exit::Finding,
            None => Exit::Ok,
        })
    }

    /// Writes the cells of what was asked for and has an engine run those that are left.
    fn submit(&self, on: &[String]) -> Result<Exit> {
        // `--on slurm NAME`: what follows is an experiment.
        let (on, more) = match on {
            [slurm, name] if slurm == "slurm" => (&on[..1], vec![name.clone()]),
            _ => (on, Vec::new()),
        };
        let engine = Engine::of(on)?;
        let mut request = self.request();
        request.experiments.extend(registry::with_members(more.as_slice()));
        self.check(&request.experiments)?;
        let matrix = request.matrix()?;
        if matrix.cells.is_empty() {
            return Ok(nothing_runs(&matrix.skipped, false));
        }
        let results = std::path::absolute(self.directory()).context("the results directory")?;
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let linux = Linux::live();
        let here = SubmitHost { linux: &linux, executable: &executable, results: &results };
        let is_known = results.join(matrix::FILE).exists();
        let left = match is_known {
            true => matrix.left(&results)?,
            false => (1..=matrix.cells.len()).collect(),
        };
        if self.dry_run {
            print!("{}", engine.dry(&here, &matrix, &left)?);
            return Ok(Exit::Ok);
        }
        let holds = fs::read_dir(&results).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(
            !holds || self.force || is_known,
            "{} is not empty (choose another with -o, or write into it with -f)",
            results.display()
        );
        engine.submit(&here, &matrix, &left)
    }

    /// The tables of a run whose figures were kept; in files, too, where a directory is named.
    fn kept_tables(&self, file: Option<&Path>) -> Result<Exit> {
        let with_kept = registry::with_kept();
        let asked = match self.experiments.as_slice() {
            [one] => with_kept.iter().copied().find(|name| name == one),
            _ => None,
        };
        let known = with_kept.join(" or ");
        let name = asked
            .with_context(|| format!("--from-kept is of {known}: reproduce {known} --from-kept"))?;
        let bytes = file.map(|path| {
            whole::read(path, whole::DATA)
                .with_context(|| format!("cannot read {}", path.display()))
        });
        let bytes = bytes.transpose()?;
        let kept = registry::kept(name, bytes.as_deref()).context("it has a run that is kept")?;
        let kept = match file {
            Some(path) => kept.with_context(|| format!("{} is no kept run", path.display()))?,
            None => kept?,
        };
        notice!("nothing was run; these figures are of: {}", kept.machine.join("; "));
        let machine = kept.machine;
        let mut run = Run { text: kept.tables.text(), ..Run::default() };
        let interrupted = kept.interrupted;
        let data = kept.tables.json();
        let store = self.output.as_ref().map(|it| Store::create(it, self.force)).transpose()?;
        if let Some(store) = &store {
            run::write(name, store, kept.tables.as_ref(), &machine)?;
        }
        run.outcomes.tables.push((name, kept.tables));
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
            answer::print(&REPRODUCE_LAYOUT, data)?;
        }
        Ok(Exit::Ok)
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
        let (text, data) = run::files(store, summary, run, simulated)?;
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
            notice!("interrupted; the runs that were finished are kept");
        }
        let results = store.directory();
        notice!("results in {}, all tables in report.txt there", results.display());
        eprintln!("next: open {}", results.join("report.html").display());
        Ok(())
    }
}

/// The words of this command, for the header of a run.
fn command() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
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
    answer::print(&REPRODUCE_LAYOUT, serde_json::from_str::<serde_json::Value>(data)?)
}
