//! `pagemill reproduce`: published experiments, run again.

mod absent;
mod arguments;
mod asked;
mod fleet;
mod list;
mod planned;
mod stage;

use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use pagemill_kernel::signal;
use pagemill_launch::progress::Progress;
use pagemill_model::whole;
use serde_json::json;

use pagemill_experiments::apart::{Apart, Outcomes, Tables};
use pagemill_experiments::moca::kept::KeptRun;
use pagemill_experiments::reproduce::arm::Machine;
use pagemill_experiments::reproduce::chosen::OTHERS;
use pagemill_experiments::reproduce::experiment;
use pagemill_experiments::reproduce::html;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::keep::{self, Keep};
use pagemill_experiments::reproduce::machine;
use pagemill_experiments::reproduce::plan::Plan;
use pagemill_experiments::reproduce::series::{self, Finished, Series};
use pagemill_experiments::reproduce::store::{self, Store};
use pagemill_experiments::reproduce::summary::{self, Circumstances, Shown, Summary};
use pagemill_experiments::reproduce::target::Stage;
use pagemill_experiments::reproduce::terminal;
use pagemill_experiments::scoreboard::Scoreboard;
use pagemill_experiments::{colloid, moca};
use pagemill_launch::exit::Exit;

use pagemill_report::draw::html::Page;

use absent::{no_answer, nothing_runs, say_skipped};
pub use arguments::Arguments;
use asked::Asked;
use stage::ENDING;

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    arguments.run()
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
        let stage = stage::stage(&signals, executable);
        let mut planned = self.planned(&asked.apart, &plan, &stage, &inputs)?;
        planned.turns.retain(|turn| !planned.missing.contains(&turn.cell.experiment.as_str()));
        keep::same(&directory, &planned.turns)?;
        let store = Store::create(&directory, self.force)?;
        let facts = machine::facts();
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
                machine.extend(machine::facts().into_iter().chain(machine::load()));
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
            None => KeptRun::built_in()?,
            Some(path) => {
                let cannot = || format!("cannot read {}", path.display());
                let bytes = whole::read(path, whole::DATA).with_context(cannot)?;
                KeptRun::read(&bytes)
                    .with_context(|| format!("{} is no kept run", path.display()))?
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

/// Does something whose steps are shown.
fn with_steps<T>(name: &str, work: impl FnOnce(&mut dyn FnMut(&str)) -> Result<T>) -> Result<T> {
    let mut line = Progress::logged(name);
    work(&mut |step| line.say(step))
}
