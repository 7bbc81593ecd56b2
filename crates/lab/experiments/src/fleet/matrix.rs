//! The matrix: which cells there are, and what they have in common.
//!
//! ```text
//!  DIR/matrix.json    {"experiments": …, "options": …, "cells": ["pauses/churn/glibc/1", …]}
//!  DIR/cells.txt      NUMBER NAME RESULT      a line a cell, for engines and people
//!  DIR/planned.json   the same of runs on one machine; the next run there may have others
//! ```
//!
//! A cell is named by experiment, case, arm and repetition.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_launch::files;
use pagemill_model::whole;
use serde::{Deserialize, Serialize};

use crate::registry;
use crate::reproduce::cell::Cell;
use crate::reproduce::keep::{self, Keep};
use crate::reproduce::plan::{Options, Skipped};
use pagemill_launch::meant::meant;

/// The file of a matrix, in a results directory.
pub const FILE: &str = "matrix.json";

/// The file of what runs on one machine have planned, in their results directory.
pub const PLANNED: &str = "planned.json";

/// Which cells there are.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Matrix {
    /// Version of this layout.
    pub schema: u32,
    /// What was asked for; nothing is everything.
    pub experiments: Vec<String>,
    /// Programs of the experiments that have a choice.
    pub programs: Option<Vec<String>>,
    /// How programs are run.
    pub options: Options,
    /// Names of the cells. Their number, from 1, is their place here.
    pub cells: Vec<String>,
    /// What does not run, by the machine that made this.
    pub skipped: Vec<Skipped>,
    /// That machine, in words.
    pub machine: Vec<String>,
    /// How long each cell takes, roughly, in seconds; nothing where it is not known.
    pub seconds: Vec<Option<f64>>,
}

/// The cell that is so called.
fn named(name: &str) -> Option<Cell> {
    let parts: Vec<&str> = name.split('/').collect();
    let [experiment, case, arm, repetition] = parts[..] else { return None };
    Some(Cell {
        experiment: experiment.to_owned(),
        case: case.to_owned(),
        arm: registry::arm(arm)?,
        repetition: repetition.parse().ok()?,
    })
}

impl Matrix {
    /// The matrix of a results directory.
    ///
    /// # Errors
    /// Where there is none, or it cannot be read.
    pub fn read(results: &Path) -> Result<Self> {
        let path = results.join(FILE);
        Self::of(&path).with_context(|| {
            let results = results.display();
            format!("no cells are known (pagemill reproduce --on … -o {results} makes them)")
        })
    }

    /// What runs on one machine have planned there; nothing where an earlier version ran.
    ///
    /// # Errors
    /// Where it is there but cannot be read.
    pub fn planned(results: &Path) -> Result<Option<Self>> {
        let path = results.join(PLANNED);
        path.exists().then(|| Self::of(&path)).transpose()
    }

    fn of(path: &Path) -> Result<Self> {
        let text = whole::text(path).with_context(|| format!("cannot read {}", path.display()))?;
        let matrix: Self = serde_json::from_str(&text)
            .with_context(|| format!("{} is no matrix of cells", path.display()))?;
        ensure!(matrix.schema == 1, "{} is of a newer pagemill", path.display());
        if let Some(odd) = matrix.cells.iter().find(|name| named(name).is_none()) {
            bail!("{} names {odd:?}, which is no cell", path.display());
        }
        Ok(matrix)
    }

    /// Writes it as what a run on one machine plans. What an earlier run there planned of other experiments stays.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn plan(mut self, results: &Path) -> Result<()> {
        // Of one that cannot be read nothing is known any more.
        if let Ok(Some(before)) = Self::planned(results) {
            let of = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
            let asked: Vec<String> = self.cells.iter().map(|name| of(name)).collect();
            for (name, seconds) in before.cells.into_iter().zip(before.seconds) {
                if !asked.contains(&of(&name)) {
                    self.cells.push(name);
                    self.seconds.push(seconds);
                }
            }
        }
        let text = serde_json::to_string_pretty(&self)? + "\n";
        files::write(&results.join(PLANNED), text, true)
    }

    /// Writes it, and the list of its cells. One that is there already must be the same.
    ///
    /// # Errors
    /// Where there is another, and where nothing can be written.
    pub fn write(&self, results: &Path) -> Result<()> {
        if results.join(FILE).exists() {
            let there = Self::read(results)?;
            let same = |of: &Self| (of.options.clone(), of.programs.clone(), of.cells.clone());
            ensure!(
                same(&there) == same(self),
                "{} has other cells or options in its {FILE} (choose another directory with -o)",
                results.display()
            );
        } else {
            let text = serde_json::to_string_pretty(self)? + "\n";
            files::write(&results.join(FILE), text, true)?;
        }
        let lines = self.cells.iter().enumerate().map(|(at, name)| {
            let result = Self::result(Path::new(""), name);
            format!("{} {name} {}\n", at + 1, result.display())
        });
        files::write(&results.join("cells.txt"), lines.collect::<String>(), true)
    }

    /// The cell that is so called, or has this number.
    ///
    /// # Errors
    /// For what is neither, with the cell that may have been meant.
    pub fn cell(&self, called: &str) -> Result<Cell> {
        let by_number = called.parse().ok().and_then(|number: usize| number.checked_sub(1));
        let name = match by_number {
            Some(at) => self.cells.get(at).map(String::as_str),
            None => self.cells.iter().map(String::as_str).find(|name| *name == called),
        };
        let Some(name) = name else {
            let known = self.cells.iter().map(String::as_str);
            let meant = meant(called, known);
            bail!("there is no cell {called:?} among the {}{meant}", self.cells.len());
        };
        named(name).with_context(|| format!("{name:?} is no cell"))
    }

    /// Where the result of a cell is.
    pub fn result(results: &Path, name: &str) -> PathBuf {
        named(name).map_or_else(|| results.to_owned(), |cell| keep::path(results, &cell))
    }

    /// Numbers of the cells that this build has not finished, or that failed.
    ///
    /// # Errors
    /// Where this program's file cannot be looked at.
    pub fn left(&self, results: &Path) -> Result<Vec<usize>> {
        let keep = Keep::new(results)?;
        let done = |name: &String| named(name).is_some_and(|cell| keep.holds(&cell));
        let left = self.cells.iter().enumerate().filter(|(_, name)| !done(name));
        Ok(left.map(|(at, _)| at + 1).collect())
    }

    /// The name of a cell by its number, and who began it last, if it is not known to have ended.
    pub fn words(&self, results: &Path, number: usize) -> String {
        let name = &self.cells[number - 1];
        let last = named(name).and_then(|cell| keep::last_begun(results, &cell));
        last.map_or_else(|| format!("{name} (not begun)"), |last| format!("{name} (begun {last})"))
    }

    /// Roughly how long these cells take one after the other, as far as that is known.
    pub fn seconds(&self, cells: &[usize]) -> f64 {
        cells.iter().filter_map(|number| *self.seconds.get(number - 1)?).sum()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn matrix(cells: &[&str]) -> Matrix {
        Matrix {
            schema: 1,
            experiments: Vec::new(),
            programs: None,
            options: Options {
                quick: true,
                repetitions: Some(2),
                arms: None,
                scale: 0.1,
                window: None,
                seed: 1,
                full_size: false,
            },
            cells: cells.iter().map(|&name| name.to_owned()).collect(),
            skipped: Vec::new(),
            machine: Vec::new(),
            seconds: vec![Some(2.0); cells.len()],
        }
    }

    #[test]
    fn a_cell_is_found_by_name_and_number_and_the_nearest_is_suggested() {
        let matrix = matrix(&["pauses/churn/glibc/1", "huge-slices/xz/profiles/2"]);
        let cell = matrix.cell("1").unwrap();
        assert_eq!((cell.arm, cell.repetition), ("glibc", 1));
        assert_eq!(matrix.cell("huge-slices/xz/profiles/2").unwrap().case, "xz");
        for wrong in ["0", "3", "pauses/churn/glibc/2"] {
            assert!(matrix.cell(wrong).is_err(), "{wrong}");
        }
        let error = matrix.cell("pauses/churn/glibc/2").unwrap_err().to_string();
        assert!(error.contains("did you mean \"pauses/churn/glibc/1\""), "{error}");
    }

    #[test]
    fn a_directory_keeps_the_matrix_that_it_has() {
        let room = tempfile::tempdir().unwrap();
        let first = matrix(&["pauses/churn/glibc/1", "moca/bt.A.1/faults/1"]);
        first.write(room.path()).unwrap();
        first.write(room.path()).unwrap();
        assert_eq!(Matrix::read(room.path()).unwrap(), first);
        let listed = std::fs::read_to_string(room.path().join("cells.txt")).unwrap();
        assert_eq!(
            listed,
            "1 pauses/churn/glibc/1 cells/pauses/churn/glibc-1.json\n2 moca/bt.A.1/faults/1 \
             cells/moca/bt.A.1/faults-1.json\n"
        );
        assert_eq!(first.left(room.path()).unwrap(), [1, 2]);
        let error = matrix(&["moca/bt.A.1/faults/1"]).write(room.path()).unwrap_err().to_string();
        assert!(error.contains("other cells"), "{error}");
        assert_eq!(Matrix::planned(room.path()).unwrap(), None);
        std::fs::write(room.path().join(FILE), "{\"schema\": 1}").unwrap();
        assert!(Matrix::read(room.path()).is_err());
    }

    #[test]
    fn a_plan_takes_the_place_of_the_last_one_of_the_same_experiments() {
        let room = tempfile::tempdir().unwrap();
        let cells = || Matrix::planned(room.path()).unwrap().unwrap().cells;
        let (first, perl) = (matrix(&["pauses/churn/glibc/1"]), matrix(&["perl/perl/glibc/1"]));
        first.plan(room.path()).unwrap();
        perl.plan(room.path()).unwrap();
        assert_eq!(cells(), ["perl/perl/glibc/1", "pauses/churn/glibc/1"]);
        matrix(&["pauses/churn/glibc/2"]).plan(room.path()).unwrap();
        assert_eq!(cells(), ["pauses/churn/glibc/2", "perl/perl/glibc/1"]);
    }
}
