//! What was finished, in a directory: a long run that was ended goes on where it was.
//!
//! ```text
//!  DIR/colloid/6c.json            {"of": "seed 1, full, …", "part": the figure's part of the report}
//!  DIR/colloid/dram.rfc less.json the cells at rest with a parameter a tenth less, for the sensitivity table
//!  DIR/colloid/kernel.fault_us.json  a parameter's row of that table
//! ```
//!
//! A part is taken only if it is of the same seed, size, machine and build.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use std::{env, fs};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Options;

/// Finished parts of a run.
#[derive(Debug)]
pub struct Kept {
    directory: PathBuf,
    of: String,
}

impl Kept {
    /// Those in a results directory that belong to a run.
    ///
    /// # Errors
    /// Where the directory cannot be made or this program's file not be looked at.
    pub fn new(results: &Path, options: &Options) -> Result<Self> {
        let directory = results.join("colloid");
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let program = fs::metadata(env::current_exe().context("cannot find this binary")?)?;
        let built = program.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut machine = DefaultHasher::new();
        format!("{:?}", options.machine).hash(&mut machine);
        let of = format!(
            "seed {}, {}, machine {:016x}, build {:x}-{:x}",
            options.seed,
            if options.quick { "quick" } else { "full" },
            machine.finish(),
            program.len(),
            built.as_nanos(),
        );
        Ok(Self { directory, of })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// A part, if it was finished by such a run.
    fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read_to_string(self.path(name)).ok()?;
        let mut value: Value = serde_json::from_str(&text).ok()?;
        (value["of"] == *self.of).then_some(())?;
        serde_json::from_value(value["part"].take()).ok()
    }

    fn write<T: Serialize>(&self, name: &str, part: &T) -> Result<()> {
        let (path, new) = (self.path(name), self.directory.join("unfinished"));
        let text = serde_json::to_string(&json!({ "of": self.of, "part": part }))?;
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// A part that was kept, or is made now and kept.
pub(super) fn part<T: Serialize + DeserializeOwned>(
    kept: Option<&Kept>,
    name: &str,
    make: impl FnOnce() -> T,
) -> Result<T> {
    if let Some(part) = kept.and_then(|kept| kept.read(name)) {
        return Ok(part);
    }
    let part = make();
    if let Some(kept) = kept {
        kept.write(name, &part)?;
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::colloid::{Cell, Report};
    use pagemill_sim::machine::{ICELAKE, Machine};

    #[test]
    fn a_part_is_made_once_for_each_run_and_comes_back_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let options = |seed| Options {
            machine: Machine::parse(ICELAKE).unwrap(),
            figures: Vec::new(),
            quick: true,
            sensitivity: false,
            seed,
        };
        let cell = Cell::of("7", "tpp", "moves", "s to 95 %", f64::INFINITY);
        let made = Report { cells: vec![cell], ..Report::default() };
        let text = |report: &Report| report.json().unwrap();
        let first = Kept::new(directory.path(), &options(1)).unwrap();
        let one = part(Some(&first), "7", || made.clone()).unwrap();
        let again: Report = part(Some(&first), "7", || panic!("it was kept")).unwrap();
        assert_eq!(text(&one), text(&again));
        assert_eq!(again.cells[0].modelled, f64::INFINITY);
        let other = Kept::new(directory.path(), &options(2)).unwrap();
        let fresh = part(Some(&other), "7", Report::default).unwrap();
        assert!(fresh.cells.is_empty(), "another seed is another run");
    }
}
