//! The finished cells of a results directory.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::cell::Cell;
use super::keep::{CellRecord, PlannedCell, read};
use crate::registry;

/// What is in the place of a finished cell but is none, in words.
pub type UnreadableCells = Vec<String>;

/// All finished cells of a results directory, in the order of their names, and what is in their place but is none.
///
/// # Errors
/// Where a directory cannot be read.
pub fn all(results: &Path) -> Result<(Vec<(Cell, CellRecord)>, UnreadableCells)> {
    let (mut cells, mut odd) = (Vec::new(), Vec::new());
    let root = results.join("cells");
    if !root.is_dir() {
        return Ok((cells, odd));
    }
    for experiment in entries(&root)? {
        for case in entries(&experiment)? {
            for path in entries(&case)? {
                if path.extension().is_none_or(|end| end != "json") {
                    continue;
                }
                match (cell_of(&path), read(&path)) {
                    (Some(cell), Ok(kept)) => cells.push((cell, kept)),
                    (None, _) => odd.push(format!("{} is named as no cell is", path.display())),
                    (_, Err(why)) => odd.push(format!("{why:#}")),
                }
            }
        }
    }
    Ok((cells, odd))
}

/// Refuses a results directory with cells of one of these experiments that depend on something else.
///
/// # Errors
/// See above; where it cannot be read.
pub fn same(results: &Path, planned_cells: &[PlannedCell]) -> Result<()> {
    for (cell, kept) in all(results)?.0 {
        let mut planned_cells =
            planned_cells.iter().filter(|planned| planned.cell.experiment == cell.experiment);
        if let Some(planned) = planned_cells.find(|planned| planned.of != kept.of) {
            bail!(
                "{} has {} with {}, and this run is with {} (choose another directory with -o)",
                results.display(),
                cell.name(),
                kept.of,
                planned.of
            );
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let cannot = || format!("cannot read {}", directory.display());
    let entries = fs::read_dir(directory).with_context(cannot)?;
    let paths = entries.map(|entry| Ok(entry.with_context(cannot)?.path()));
    let mut paths = paths.collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The cell whose file this is.
fn cell_of(path: &Path) -> Option<Cell> {
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let (arm, repetition) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    let case = path.parent()?;
    Some(Cell {
        experiment: name(case.parent()?)?,
        case: name(case)?,
        arm: registry::arm(arm)?,
        repetition: repetition.parse().ok()?,
    })
}
