//! The results directory: raw figures as they come, summaries at the end.
//!
//! ```text
//!  results/20261121-040500/
//!    run.json       what was run, on what, what was skipped and why
//!    planned.json   the cells that were to run (see `fleet::matrix`)
//!    cells/         finished cells, a file each (see `keep`)
//!    cells.csv      order,experiment,case,arm,repetition,name,value      one row a figure; failures too
//!    samples/       EXPERIMENT-CASE-ARM-REPETITION.csv: seconds,memory_bytes,charge_bytes
//!    summary.json   medians, ratios, intervals, verdicts
//!    report.txt     the terminal's tables
//!    report.html    the same with charts, one file
//! ```

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::cell::Cell;
use super::outcome::Outcome;

/// An open results directory.
pub struct Store {
    directory: PathBuf,
    cells: File,
    /// Whether there was no such directory.
    made: bool,
}

impl Store {
    /// Makes the directory. One that holds something is refused unless `force` is given.
    ///
    /// # Errors
    /// It holds something, or cannot be made.
    pub fn create(directory: &Path, force: bool) -> Result<Self> {
        let holds = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
        if holds && !force {
            let place = directory.display();
            if directory.join("cells").is_dir() {
                bail!(
                    "{place} is not empty: it has cells of a run (go on with it by -f, or choose another with -o)"
                );
            }
            bail!("{place} is not empty (choose another with -o, or write into it with -f)");
        }
        let made = !directory.exists();
        let samples = directory.join("samples");
        fs::create_dir_all(&samples)
            .with_context(|| format!("cannot make {}", samples.display()))?;
        let path = directory.join("cells.csv");
        let cells = File::create(&path).with_context(|| format!("cannot write {}", path.display()));
        let mut store = Self { directory: directory.to_owned(), cells: cells?, made };
        let head = writeln!(store.cells, "order,experiment,case,arm,repetition,name,value");
        head.with_context(|| format!("cannot write {}", path.display()))
            .inspect_err(|_| store.unmake())?;
        Ok(store)
    }

    /// A start that failed leaves no directory that the next one refuses.
    pub fn unmake(&self) {
        if self.made {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Adds a cell's figures and samples.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn append(
        &self,
        order: usize,
        cell: &Cell,
        outcome: &Result<Outcome, String>,
    ) -> Result<()> {
        let Cell { experiment, case, arm, repetition } = cell;
        let start = format!("{order},{experiment},{case},{arm},{repetition}");
        let mut rows = String::new();
        match outcome {
            Ok(outcome) => {
                for (name, value) in &outcome.metrics {
                    rows.push_str(&format!("{start},{name},{value}\n"));
                }
                for note in &outcome.notes {
                    rows.push_str(&format!("{start},note,{}\n", quoted(note)));
                }
                if outcome.samples.is_empty() {
                    return self.rows(&rows);
                }
                let name = format!("samples/{experiment}-{case}-{arm}-{repetition}.csv");
                let mut samples = String::from("seconds,memory_bytes,charge_bytes\n");
                for sample in &outcome.samples {
                    let charge = sample.charge.map_or(String::new(), |bytes| bytes.to_string());
                    samples.push_str(&format!("{:.4},{},{charge}\n", sample.seconds, sample.pss));
                }
                self.write(&name, &samples)?;
            }
            Err(reason) => rows.push_str(&format!("{start},failed,{}\n", quoted(reason))),
        }
        self.rows(&rows)
    }

    fn rows(&self, rows: &str) -> Result<()> {
        (&self.cells)
            .write_all(rows.as_bytes())
            .with_context(|| format!("cannot write {}/cells.csv", self.directory.display()))
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
        pagemill_launch::files::write(&self.directory.join(name), content, true)
    }
}

/// A CSV field.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\"").replace(['\n', '\r'], " "))
}

/// A directory name for a run that begins now: date and time, UTC.
pub fn timestamp(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// Days since 1970-01-01 as year, month and day (Hinnant, "chrono-compatible low-level date
/// algorithms").
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::target::Sample;

    #[test]
    fn times_are_named_by_their_date() {
        assert_eq!(timestamp(Duration::ZERO), "19700101-000000");
        assert_eq!(timestamp(Duration::from_secs(951_782_400)), "20000229-000000");
        assert_eq!(timestamp(Duration::from_secs(1_795_236_300)), "20261121-044500");
    }

    #[test]
    fn finished_cells_are_on_disk_at_once_and_failures_with_their_reason() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("r");
        let store = Store::create(&directory, false).unwrap();
        let cell = Cell { experiment: "e".into(), case: "c".into(), arm: "glibc", repetition: 2 };
        let outcome = Outcome {
            metrics: [("cpu".to_owned(), 1.5)].into(),
            samples: vec![Sample { seconds: 0.5, pss: 7, charge: None }],
            ..Outcome::default()
        };
        store.append(1, &cell, &Ok(outcome)).unwrap();
        store.append(2, &cell, &Err("it said \"no\",\ntwice".into())).unwrap();
        let cells = fs::read_to_string(directory.join("cells.csv")).unwrap();
        assert_eq!(
            cells,
            "order,experiment,case,arm,repetition,name,value\n1,e,c,glibc,2,cpu,1.5\n\
             2,e,c,glibc,2,failed,\"it said \"\"no\"\", twice\"\n"
        );
        let samples = fs::read_to_string(directory.join("samples/e-c-glibc-2.csv")).unwrap();
        assert_eq!(samples, "seconds,memory_bytes,charge_bytes\n0.5000,7,\n");
    }

    #[test]
    fn a_directory_with_something_in_it_is_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        drop(Store::create(root.path(), false).unwrap());
        let error = Store::create(root.path(), false).err().unwrap().to_string();
        assert!(error.contains("not empty") && error.contains("-f"), "{error}");
        assert!(Store::create(root.path(), true).is_ok());
    }
}
