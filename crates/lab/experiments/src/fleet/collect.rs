//! The results of many machines as one: finished cells of any number of results directories, or of a file that they
//! were collected in before, as rows of one Parquet file and as the summary of a run.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use pagemill_launch::files::NewFile;
use pagemill_model::dataset::{self, FileWriter};
use pagemill_model::results::ResultRow;
use pagemill_model::whole;
use serde_json::Value;

use super::matrix::{self, Matrix};
use crate::reproduce::arm;
use crate::reproduce::cell::Cell;
use crate::reproduce::experiment;
use crate::reproduce::finished;
use crate::reproduce::keep::{CellKey, CellRecord};
use crate::reproduce::plan::Skipped;
use crate::reproduce::series::{Digests, Finished, agrees};
use crate::reproduce::summary::{self, Circumstances, ShownExperiment, Summary};
use crate::tabled::Outcomes;
use crate::{colloid, registry};

/// The rows that are no figures.
const FAILED: &str = "failed";
const NOTE: &str = "note";
const DIGEST: &str = "digest";
const PART: &str = "part";
const MEMORY: &str = "memory";

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

/// What was collected.
#[derive(Debug, Default)]
pub struct Collected {
    /// Cells, each once, in the order of their names.
    pub cells: Vec<(Cell, CellRecord)>,
    /// Cells of a matrix that nobody has finished, each with who began it last.
    pub missing: Vec<String>,
    /// Results directories of earlier versions, which did not write down what they were to run.
    pub unlisted: Vec<PathBuf>,
    /// Cells that were there more than once; of each, one is taken.
    pub duplicates: usize,
    /// What is in the place of a cell but is none.
    pub odd: Vec<String>,
    /// What did not run, by those who made a matrix.
    pub skipped: Vec<Skipped>,
    /// Their machines, in words.
    pub machines: Vec<String>,
    quick: bool,
}

impl Collected {
    /// From results directories and collected files.
    ///
    /// # Errors
    /// For what is neither; and for cells of one experiment that were run with different options.
    pub fn from(sources: &[PathBuf]) -> Result<Self> {
        let mut collected = Self::default();
        let mut cells: BTreeMap<(String, String, usize, u32), (Cell, CellRecord)> = BTreeMap::new();
        let mut matrices = Vec::new();
        for source in sources {
            let found = if source.is_dir() {
                let (found, odd) = finished::all(source)?;
                collected.odd.extend(odd);
                let there = source.join(matrix::FILE).exists();
                let planned = Matrix::planned(source)?;
                ensure!(
                    there || planned.is_some() || source.join("cells").is_dir(),
                    "{} has neither finished cells nor a {}: it is no results directory",
                    source.display(),
                    matrix::FILE
                );
                if !there && planned.is_none() {
                    collected.unlisted.push(source.clone());
                }
                matrices.extend(planned.map(|plan| (source, plan)));
                if there {
                    matrices.push((source, Matrix::read(source)?));
                }
                found
            } else {
                read(source)?
            };
            for (cell, kept) in found {
                let arm = registry::arms().position(|name| name == cell.arm).unwrap_or_default();
                let key = (cell.experiment.clone(), cell.case.clone(), arm, cell.repetition);
                match cells.get_mut(&key) {
                    None => drop(cells.insert(key, (cell, kept))),
                    Some(there) => {
                        collected.duplicates += 1;
                        // One that worked is worth more than one that failed.
                        if there.1.failed.is_some() && kept.failed.is_none() {
                            *there = (cell, kept);
                        }
                    }
                }
            }
        }
        collected.cells = cells.into_values().collect();
        collected.with_one_set_of_options()?;
        collected.with_outputs_that_agree();
        for (source, matrix) in matrices {
            collected.missing(source, &matrix);
        }
        Ok(collected)
    }

    fn with_one_set_of_options(&self) -> Result<()> {
        let mut first: HashMap<&str, (&Cell, CellKey)> = HashMap::new();
        for (cell, kept) in &self.cells {
            let (one, of) = first.entry(&cell.experiment).or_insert((cell, kept.of));
            ensure!(
                *of == kept.of,
                "cells of different runs: {} was run with {}, {} with {} (collect them apart)",
                one.name(),
                of,
                cell.name(),
                kept.of
            );
        }
        Ok(())
    }

    /// A cell whose output is not that of the others has failed, as in a run on one machine.
    fn with_outputs_that_agree(&mut self) {
        let mut digests = Digests::new();
        for (cell, kept) in &mut self.cells {
            let Ok(outcome) = kept.clone().outcome() else { continue };
            if let Err(why) = agrees(&mut digests, cell, outcome) {
                kept.failed = Some(why);
            }
        }
    }

    fn missing(&mut self, results: &Path, matrix: &Matrix) {
        let have = |called: &Cell| self.cells.iter().any(|(cell, _)| cell == called);
        let is_missing =
            |number: &usize| !matrix.cell(&number.to_string()).is_ok_and(|cell| have(&cell));
        let missing = (1..=matrix.cells.len()).filter(is_missing);
        let missing: Vec<_> = missing.map(|number| matrix.words(results, number)).collect();
        self.missing.extend(missing);
        self.missing.sort();
        self.missing.dedup();
        self.skipped.extend(matrix.skipped.iter().cloned());
        self.skipped.dedup();
        self.machines.extend(matrix.machine.iter().cloned());
        self.machines.dedup();
        self.quick |= matrix.options.quick;
    }

    /// Cells that failed, each with the reason.
    pub fn failed(&self) -> Vec<(String, String)> {
        let failed =
            self.cells.iter().filter_map(|(cell, kept)| Some((cell.name(), kept.failed.clone()?)));
        failed.collect()
    }

    /// Cells by the machine that ran them.
    pub fn hosts(&self) -> BTreeMap<String, usize> {
        let mut hosts = BTreeMap::new();
        for (_, kept) in &self.cells {
            *hosts.entry(kept.host.clone()).or_default() += 1;
        }
        hosts
    }

    /// The builds that ran them.
    pub fn builds(&self) -> Vec<String> {
        let mut builds: Vec<String> =
            self.cells.iter().map(|(_, kept)| kept.build.clone()).collect();
        builds.sort();
        builds.dedup();
        builds
    }

    /// The rows of all cells, as a Parquet file.
    ///
    /// # Errors
    /// Where it cannot be written; what was there before is there still.
    pub fn write(&self, path: &Path, replaces: bool) -> Result<()> {
        let cannot = || format!("cannot write {}", path.display());
        let rows: Vec<ResultRow> = self.cells.iter().flat_map(rows).collect();
        let new = NewFile::create(path, replaces)?;
        let to = new.handle()?;
        let mut file = FileWriter::create(to).map_err(|why| anyhow!(why)).with_context(cannot)?;
        file.write(&rows).map_err(|why| anyhow!(why)).with_context(cannot)?;
        file.finish().map_err(|why| anyhow!(why)).with_context(cannot)?;
        new.finish()
    }

    /// The cells of an experiment, and what the figures of all of them depend on; `None` if there are none.
    fn of(&self, name: &str) -> Option<(Vec<Finished>, CellKey)> {
        let cells = || self.cells.iter().filter(|(cell, _)| cell.experiment == name);
        let of = cells().next()?.1.of;
        Some((cells().map(|(cell, kept)| (cell.clone(), kept.clone().outcome())).collect(), of))
    }

    /// What the cells of the simulated machine came to, if there are any.
    ///
    /// # Errors
    /// None for cells that this made.
    pub fn simulated(&self) -> Result<Option<colloid::Report>> {
        let made = self.of(colloid::NAME);
        made.map(|(cells, of)| colloid::Report::of(&cells, of)).transpose()
    }

    /// What the cells of experiments with tables of their own came to.
    pub fn outcomes(&self) -> Outcomes {
        registry::collected(|name| self.of(name), !self.missing.is_empty())
    }

    /// The tables of a run, from the cells that there are.
    ///
    /// # Errors
    /// For an experiment that does not exist.
    pub fn summary(&self) -> Result<Summary> {
        let mut shown = Vec::new();
        let cells = |name: &str| {
            let name = name.to_owned();
            self.cells.iter().filter(move |(cell, _)| cell.experiment == name)
        };
        let all = experiment::all()?;
        let known = |name: &str| {
            all.iter().any(|one| one.name == name) || registry::definition(name).is_some()
        };
        if let Some((odd, _)) = self.cells.iter().find(|(cell, _)| !known(&cell.experiment)) {
            bail!("there is no experiment {:?}, which has results", odd.experiment);
        }
        for experiment in all {
            let Some((_, first)) = cells(&experiment.name).next() else { continue };
            let ran = |arm: &&str| cells(&experiment.name).any(|(cell, _)| cell.arm == *arm);
            let arms = arm::NAMES.into_iter().filter(ran).collect();
            let repetitions = cells(&experiment.name).map(|(cell, _)| cell.repetition).max();
            let (scale, repetitions) = (first.of.scale, repetitions.unwrap_or(1));
            shown.push(ShownExperiment { experiment, arms, repetitions, scale });
        }
        let finished: Vec<Finished> =
            self.cells.iter().map(|(cell, kept)| (cell.clone(), kept.clone().outcome())).collect();
        let circumstances = Circumstances {
            quick: self.quick,
            interrupted: !self.missing.is_empty(),
            seed: self.cells.first().map_or(1, |(_, kept)| kept.of.seed),
            machine: self.machines.clone(),
            skipped: self.skipped.clone(),
        };
        summary::summarise(&shown, &finished, circumstances)
    }
}

/// The rows of a cell.
fn rows((cell, kept): &(Cell, CellRecord)) -> Vec<ResultRow> {
    let row = |name: &str, value: Option<f64>, words: Option<String>| ResultRow {
        experiment: Some(cell.experiment.clone()),
        case: Some(cell.case.clone()),
        arm: Some(cell.arm.to_owned()),
        repetition: Some(cell.repetition.into()),
        seed: Some(kept.of.seed),
        scale: Some(kept.of.scale),
        window: kept.of.window,
        build: Some(kept.build.clone()),
        host: Some(kept.host.clone()),
        name: Some(name.to_owned()),
        value,
        words,
        ..ResultRow::default()
    };
    let mut rows = vec![row(TOOK, Some(kept.seconds), None)];
    rows.extend(kept.failed.iter().map(|why| row(FAILED, None, Some(why.clone()))));
    rows.extend(kept.metrics.iter().map(|(name, value)| row(name, Some(*value), None)));
    rows.extend(kept.notes.iter().map(|note| row(NOTE, None, Some(note.clone()))));
    let part = kept.part.as_ref().map(Value::to_string);
    rows.extend(part.map(|part| row(PART, None, Some(part))));
    rows.extend(kept.digest.map(|digest| row(DIGEST, None, Some(format!("{digest:016x}")))));
    if !kept.samples.is_empty() {
        let samples = &kept.samples;
        let charges = samples.iter().map(|sample| sample.2).collect::<Option<Vec<u64>>>();
        rows.push(ResultRow {
            at: Some(samples.iter().map(|sample| (sample.0 * SECOND).round() as u64).collect()),
            pss: Some(samples.iter().map(|sample| sample.1).collect()),
            charge: charges,
            ..row(MEMORY, None, None)
        });
    }
    rows
}

/// How long a cell took with all its setting up, in seconds: the row that every cell has.
const TOOK: &str = "cell_seconds";

/// The cells in a file that was collected before.
///
/// # Errors
/// Where it cannot be read; for what is no such file.
pub fn read(path: &Path) -> Result<Vec<(Cell, CellRecord)>> {
    let cannot = || format!("cannot read {}", path.display());
    let bytes = whole::read(path, whole::DATA).with_context(cannot)?;
    let rows: Vec<ResultRow> = dataset::decode(&bytes)
        .map_err(|why| anyhow!(why))
        .with_context(|| format!("{} is no file of collected cells", path.display()))?;
    cells(rows).with_context(|| format!("{} is no file of collected cells", path.display()))
}

/// The cells that rows are of.
///
/// # Errors
/// For rows that lack what a cell must have.
pub fn cells(rows: Vec<ResultRow>) -> Result<Vec<(Cell, CellRecord)>> {
    let mut cells: Vec<(Cell, CellRecord)> = Vec::new();
    for (at, row) in rows.into_iter().enumerate() {
        let (cell, name) = cell_of(&row).with_context(|| format!("row {at} is of no cell"))?;
        if name == TOOK {
            let kept = CellRecord {
                schema: 1,
                of: CellKey {
                    seed: row.seed.unwrap_or_default(),
                    scale: row.scale.unwrap_or(1.0),
                    window: row.window,
                },
                build: row.build.unwrap_or_default(),
                host: row.host.unwrap_or_default(),
                seconds: row.value.unwrap_or_default(),
                failed: None,
                metrics: BTreeMap::new(),
                notes: Vec::new(),
                digest: None,
                samples: Vec::new(),
                part: None,
            };
            cells.push((cell, kept));
            continue;
        }
        let kept = cells.last_mut().filter(|(last, _)| *last == cell).map(|(_, kept)| kept);
        let kept = kept.with_context(|| format!("row {at} is not beside its cell's others"))?;
        let words = row.words.unwrap_or_default();
        match name.as_str() {
            FAILED => kept.failed = Some(words),
            NOTE => kept.notes.push(words),
            PART => {
                kept.part = Some(serde_json::from_str(&words).context("its words are no JSON")?)
            }
            DIGEST => kept.digest = u64::from_str_radix(&words, 16).ok(),
            MEMORY => {
                let pss = row.pss.unwrap_or_default();
                let charges = row.charge.unwrap_or_default();
                let moments = row.at.unwrap_or_default().into_iter().zip(pss).enumerate();
                let sample = |(at, (moment, pss)): (usize, (u64, u64))| {
                    (moment as f64 / SECOND, pss, charges.get(at).copied())
                };
                kept.samples = moments.map(sample).collect();
            }
            _ => {
                let value = row.value.filter(|value| value.is_finite());
                let value = value.with_context(|| format!("row {at} has no figure"))?;
                kept.metrics.insert(name, value);
            }
        }
    }
    Ok(cells)
}

/// The cell that a row is of, and the row's name.
fn cell_of(row: &ResultRow) -> Option<(Cell, String)> {
    let arm = row.arm.as_deref()?;
    let cell = Cell {
        experiment: row.experiment.clone()?,
        case: row.case.clone()?,
        arm: registry::arm(arm)?,
        repetition: row.repetition?.try_into().ok()?,
    };
    Some((cell, row.name.clone()?))
}

#[cfg(test)]
mod tests {
    use super::super::matrix::tests::matrix;
    use super::*;
    use crate::reproduce::keep;
    use std::fs;

    fn cell(arm: &'static str, repetition: u32) -> Cell {
        Cell { experiment: "pauses".into(), case: "churn".into(), arm, repetition }
    }

    fn kept(cpu: f64) -> CellRecord {
        CellRecord {
            schema: 1,
            of: CellKey { seed: 1, scale: 0.1, window: None },
            build: "b".into(),
            host: "n1".into(),
            seconds: 1.5,
            failed: None,
            metrics: [("cpu".to_owned(), cpu), ("end_pss_bytes".to_owned(), 4e6)].into(),
            notes: vec!["a note".into()],
            digest: Some(u64::MAX),
            samples: vec![(0.25, 4096, Some(8192)), (0.5, u64::from(u32::MAX), Some(1))],
            part: Some(serde_json::json!({ "a": [1, null] })),
        }
    }

    fn put(results: &Path, cell: &Cell, kept: &CellRecord) {
        let path = keep::path(results, cell);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, serde_json::to_string(kept).unwrap()).unwrap();
    }

    #[test]
    fn one_file_holds_the_cells_of_all_directories_and_makes_the_same_tables() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        put(one.path(), &cell("glibc", 1), &kept(2.0));
        put(
            one.path(),
            &cell("jemalloc", 1),
            &CellRecord { failed: Some("it died".into()), ..kept(0.0) },
        );
        put(two.path(), &cell("jemalloc", 1), &kept(1.0));
        put(
            two.path(),
            &cell("glibc", 2),
            &CellRecord { failed: Some("no room".into()), ..kept(0.0) },
        );
        let sources = [one.path().to_owned(), two.path().to_owned()];
        let collected = Collected::from(&sources).unwrap();
        assert_eq!((collected.cells.len(), collected.duplicates), (3, 1));
        assert_eq!(collected.failed(), [("pauses/churn/glibc/2".into(), "no room".to_owned())]);
        assert_eq!(collected.hosts()["n1"], 3);
        let file = one.path().join("cells.parquet");
        collected.write(&file, true).unwrap();
        let again = Collected::from(&[file]).unwrap();
        assert_eq!(again.cells.len(), 3);
        for (ours, theirs) in collected.cells.iter().zip(&again.cells) {
            // A cell that failed has no figures.
            assert!(ours.1.failed.is_some() || ours == theirs);
        }
        let (ours, theirs) = (collected.summary().unwrap(), again.summary().unwrap());
        let rows = |of: &Summary| serde_json::to_string(&of.sections).unwrap();
        assert_eq!(rows(&ours), rows(&theirs));
        let row = &ours.sections[0].tables[0].rows[0];
        assert_eq!((row.arm.as_str(), row.ratios["cpu"]["jemalloc"].value), ("glibc", 2.0));
    }

    #[test]
    fn cells_that_nobody_finished_are_told_with_who_began_them() {
        let room = tempfile::tempdir().unwrap();
        let names = [
            "pauses/churn/glibc/1",
            "pauses/churn/glibc/2",
            "pauses/churn/glibc/3",
            "moca/bt.A.1/faults/1",
        ];
        matrix(&names).write(room.path()).unwrap();
        put(room.path(), &cell("glibc", 1), &kept(2.0));
        let lock = keep::path(room.path(), &cell("glibc", 2)).with_extension("lock");
        fs::write(lock, "on n2, process 7\n").unwrap();
        let collected = Collected::from(&[room.path().to_owned()]).unwrap();
        assert_eq!(
            collected.missing,
            [
                "moca/bt.A.1/faults/1 (not begun)",
                "pauses/churn/glibc/2 (begun on n2, process 7)",
                "pauses/churn/glibc/3 (not begun)"
            ]
        );
        assert!(collected.summary().unwrap().of.interrupted);
    }

    #[test]
    fn a_run_on_one_machine_that_was_cut_off_misses_what_it_planned() {
        let room = tempfile::tempdir().unwrap();
        let sources = [room.path().to_owned()];
        put(room.path(), &cell("glibc", 1), &kept(2.0));
        // As an earlier version left it.
        let collected = Collected::from(&sources).unwrap();
        assert_eq!((collected.missing.len(), &collected.unlisted[..]), (0, &sources[..]));
        let names = ["pauses/churn/glibc/1", "pauses/churn/glibc/2"];
        matrix(&names).plan(room.path()).unwrap();
        let collected = Collected::from(&sources).unwrap();
        assert_eq!(collected.missing, ["pauses/churn/glibc/2 (not begun)"]);
        assert!(collected.unlisted.is_empty() && collected.summary().unwrap().of.interrupted);
        fs::remove_dir_all(room.path().join("cells")).unwrap();
        assert_eq!(Collected::from(&sources).unwrap().missing.len(), 2, "before the first cell");
    }

    #[test]
    fn what_does_not_belong_together_or_is_no_result_is_refused() {
        let room = tempfile::tempdir().unwrap();
        put(room.path(), &cell("glibc", 1), &kept(2.0));
        let other = CellRecord { of: CellKey { seed: 2, scale: 0.1, window: None }, ..kept(2.0) };
        put(room.path(), &cell("glibc", 2), &other);
        let sources = [room.path().to_owned()];
        let error = Collected::from(&sources).unwrap_err().to_string();
        assert!(error.contains("seed 1") && error.contains("seed 2"), "{error}");
        let different = CellRecord { digest: Some(7), ..kept(2.0) };
        put(room.path(), &cell("glibc", 2), &different);
        let failed = Collected::from(&sources).unwrap().failed();
        assert!(failed.len() == 1 && failed[0].1.contains("differs"), "{failed:?}");
        let empty = tempfile::tempdir().unwrap();
        let error = Collected::from(&[empty.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no results directory"), "{error}");
        let text = empty.path().join("x");
        fs::write(&text, "PAR1 no PAR1").unwrap();
        let error = format!("{:#}", Collected::from(&[text]).unwrap_err());
        assert!(error.contains("no file of collected cells"), "{error}");
    }
}
