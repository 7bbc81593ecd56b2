//! A run: its cells, its tables and its files.

use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};
use pagemill_launch::progress::Progress;
use pagemill_report::draw::html::Page;
use serde_json::json;

use super::input::Inputs;
use super::keep::Keep;
use super::plan::{Options, Plan};
use super::request::Request;
use super::series::{self, Finished, Series};
use super::store::{self, Store};
use super::summary::Summary;
use super::target::Stage;
use super::{html, machine, terminal};
use crate::colloid;
use pagemill_launch::exit::Interrupted;

use crate::scoreboard::Scoreboard;
use crate::tabled::{Outcomes, Tabled, Tables};

/// What came of a run, beside the programs on allocators.
#[derive(Default)]
pub struct Run {
    /// What they came to that have tables of their own.
    pub outcomes: Outcomes,
    /// Their tables.
    pub text: String,
    /// Whether a cell failed.
    pub failed: bool,
    /// Who ended it, if somebody did.
    pub interrupted: Option<Interrupted>,
    /// The tables that are all that was asked for, as JSON.
    pub answer: Option<String>,
}

/// Why an experiment did not run whose turn had not come.
const ENDED: &str = "this run was ended before";

/// Runs the experiments that have tables of their own and run here, unless all was `interrupted`.
///
/// # Errors
/// Results cannot be written.
pub fn apart(
    request: &Request,
    stage: &Stage<'_>,
    inputs: &Inputs,
    kept: (&Store, &Keep),
    interrupted: Option<Interrupted>,
) -> Result<Run> {
    let mut run = Run { interrupted, ..Run::default() };
    for name in request.apart() {
        if run.interrupted.is_some() {
            run.outcomes.absent.push((name, ENDED.to_owned()));
        } else if let Some(series) = request.measured(name, stage, inputs)? {
            one_apart((name, request.alone() == Some(name)), series, stage, kept, &mut run)?;
        }
    }
    Ok(run)
}

/// Runs one of them, and puts its tables into files of its name.
fn one_apart(
    (name, is_answer): (&'static str, bool),
    mut series: Box<dyn Tabled + '_>,
    stage: &Stage<'_>,
    kept: (&Store, &Keep),
    run: &mut Run,
) -> Result<()> {
    let mut absent = |why: String| {
        notice!("skipped {name}: {why}");
        run.outcomes.absent.push((name, why));
    };
    if let Some(why) = series.missing() {
        absent(why);
        return Ok(());
    }
    // What is fetched and built takes minutes, so it is said whoever reads.
    series.leave_out(Some(&mut |step: &str| notice!("{step}")));
    let (finished, interrupted) = cells(name, series.as_mut(), stage, kept)?;
    run.interrupted = interrupted;
    if interrupted.is_some() {
        let results = kept.0.directory().display();
        notice!("{name} goes on where it was with -f -o {results}");
    }
    match series.outcome(&finished, interrupted.is_some()) {
        Err(why) => absent(why),
        Ok(tables) => {
            run.failed |= finished.iter().any(|(_, outcome)| outcome.is_err());
            let now = store::timestamp(UNIX_EPOCH.elapsed().unwrap_or_default());
            let mut machine = vec![format!("{}, {now}", pagemill_model::TOOL)];
            machine.extend(machine::facts().into_iter().chain(machine::load()));
            let data = write(name, kept.0, tables.as_ref(), &machine)?;
            run.answer = is_answer.then_some(data);
            run.text.push_str(&tables.text());
            run.outcomes.tables.push((name, tables));
        }
    }
    Ok(())
}

/// Writes the tables of an experiment; they as JSON.
///
/// # Errors
/// They cannot be written.
pub fn write(name: &str, store: &Store, tables: &dyn Tables, machine: &[String]) -> Result<String> {
    for (file, bytes) in tables.files(machine)? {
        store.write(file, bytes)?;
    }
    let mut page = Page::new(&format!("pagemill reproduce {name}"));
    tables.page(&mut page);
    let data = serde_json::to_string_pretty(&tables.json())? + "\n";
    store.write(&format!("{name}.json"), &data)?;
    store.write(&format!("{name}.txt"), tables.text())?;
    store.write(&format!("{name}.html"), page.finish())?;
    Ok(data)
}

/// Runs the cells that are not kept, each step shown, and says before how many there are.
///
/// # Errors
/// Results cannot be written.
pub fn cells(
    name: &str,
    series: &mut dyn Series,
    stage: &Stage<'_>,
    (store, keep): (&Store, &Keep),
) -> Result<(Vec<Finished>, Option<Interrupted>)> {
    let amount = series::amount(series, Some(keep));
    if amount.cells > 0 {
        notice!("{name}: {amount}");
    }
    with_steps(name, |say| {
        series::all(series, stage, (Some(store), keep), &mut |step| {
            say(&step.words());
            Ok(())
        })
    })
}

/// The header of a run: what was asked for, by which command, on which machine.
///
/// # Errors
/// It cannot be said in JSON.
pub fn header(
    options: &Options,
    plan: &Plan,
    command: &[String],
    machine: &[String],
) -> Result<String> {
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
    let run = json!({
        "schema": 1,
        "command": command,
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "quick": options.quick,
        "seed": options.seed,
        "experiments": experiments,
        "skipped": plan.skipped,
    });
    Ok(serde_json::to_string_pretty(&run)? + "\n")
}

/// The published evaluation of Colloid on the simulated machine.
///
/// # Errors
/// Results cannot be written, or figures were chosen that there are not.
pub fn simulate(
    request: &Request,
    (store, keep): (&Store, &Keep),
    made: &mut dyn FnMut(&colloid::Report) -> Result<()>,
) -> Result<colloid::Report> {
    let options = request.figures()?;
    let amount = series::amount(&colloid::Modelled::new(options.clone()), Some(keep));
    let directory = store.directory().display();
    let name = colloid::NAME;
    notice!("{name}: {amount}; ended before, it goes on with -f -o {directory}");
    with_steps("simulated", |say| colloid::run(&options, (Some(store), keep), say, made))
}

/// Writes the files of the run; its tables as text and as JSON.
///
/// # Errors
/// They cannot be written.
pub fn files(
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

/// Does something whose steps are shown.
fn with_steps<T>(name: &str, work: impl FnOnce(&mut dyn FnMut(&str)) -> Result<T>) -> Result<T> {
    let mut line = Progress::logged(name);
    work(&mut |step| line.say(step))
}
