//! One cell of a matrix, run on whatever machine this is.

use std::path::Path;

use anyhow::{Context as _, Result};
use pagemill_kernel::process::signal;
use pagemill_launch::exit::Exit;

use super::matrix::Matrix;
use crate::registry;
use crate::reproduce::arm::Machine;
use crate::reproduce::cell::Cell;
use crate::reproduce::experiment;
use crate::reproduce::finished;
use crate::reproduce::input::Inputs;
use crate::reproduce::keep::Keep;
use crate::reproduce::outcome::Outcome;
use crate::reproduce::plan::{Options, Plan};
use crate::reproduce::request::Request;
use crate::reproduce::series;
use crate::reproduce::target::{ENDING, Stage};
use pagemill_launch::exit::Interrupted;

/// Runs one cell of the matrix in a results directory, by number or name, unless it is finished; says how it ended.
///
/// # Errors
/// There is no such matrix or cell, or it cannot be run.
pub fn run(results: &Path, called: &str) -> Result<Exit> {
    let matrix = Matrix::read(results)?;
    let cell = &matrix.cell(called)?;
    let keep = Keep::new(results)?;
    if keep.holds(cell) {
        notice!("{} is finished", cell.name());
        return Ok(Exit::Ok);
    }
    // Before any other thread exists: signals are waited for.
    let signals = signal::Signals::block(ENDING)?;
    let executable = std::env::current_exe().context("cannot find this binary")?;
    let inputs = Inputs::new(executable.clone(), matrix.options.seed)?;
    let stage = Stage::on_this_machine(&signals, executable);
    let request = Request::from(&matrix);
    let run = match request.series(&cell.experiment, &stage, &inputs)? {
        Some(mut series) => {
            let (kept, _) = finished::all(results)?;
            let so_far = kept.into_iter().filter(|(one, _)| one.experiment == cell.experiment);
            let so_far = so_far.map(|(one, kept)| (one, kept.outcome()));
            let so_far = so_far.collect::<Vec<_>>();
            let run = series::one(series.as_mut(), cell, &so_far, &stage, &keep);
            run.and_then(|run| run.context("it is no cell of its experiment here"))
        }
        None => program(&matrix, cell, &stage, &inputs, &keep),
    };
    match run {
        Err(error) => {
            let by: Interrupted = error.downcast()?;
            notice!("{} was interrupted, and is not finished", cell.name());
            Ok(by.exit())
        }
        Ok(Err(why)) => {
            notice!("{} failed: {why}", cell.name());
            Ok(Exit::Finding)
        }
        Ok(Ok(_)) => {
            notice!("{} is finished", cell.name());
            Ok(Exit::Ok)
        }
    }
}

/// A run of a program on an allocator.
fn program(
    matrix: &Matrix,
    cell: &Cell,
    stage: &Stage<'_>,
    inputs: &Inputs,
    keep: &Keep,
) -> Result<Result<Outcome, String>> {
    let options = Options { arms: Some(vec![cell.arm.to_owned()]), ..matrix.options.clone() };
    let experiments =
        experiment::select(std::slice::from_ref(&cell.experiment), &registry::names())?;
    let named = experiments[0].clone();
    let mut machine = Machine::detect();
    let plan = Plan::new(experiments, &options, &mut machine, inputs)?;
    plan.run_cell((cell, &named), stage, inputs, &options, keep)
}
