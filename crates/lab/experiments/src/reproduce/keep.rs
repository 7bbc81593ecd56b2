//! Finished cells on disk: each in a file of its own, which is there whole or not at all.
//!
//! ```text
//!  DIR/cells/EXPERIMENT/CASE/ARM-REPETITION.json    what it measured, or why it failed
//!  DIR/cells/EXPERIMENT/CASE/ARM-REPETITION.lock    while it runs: where, and since when; after a crash, too
//! ```
//!
//! Whoever runs a cell holds the lock of its file; a second one waits, and then finds the cell finished. The kernel (or
//! the file server) drops the lock of a holder that dies, so a cell that was cut off is begun again by whoever comes
//! next. A finished cell is taken by a run of the same build whose figures depend on the same options; one that failed
//! is run again.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use pagemill_kernel::Linux;
use pagemill_launch::lazy_file::Parts;
use pagemill_launch::{files, library};
use pagemill_model::whole;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cell::Cell;
use super::outcome::Outcome;
use super::target::{Sample, Stage};
use pagemill_launch::exit::Interrupted;

/// How often a cell that another process runs is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How long after the programs of a cell a signal to all of us may come to this process.
const SAME_SIGNAL: Duration = Duration::from_millis(100);

/// What the figures of a cell depend on, beside its program, its arm and the machine.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct CellKey {
    /// Seed of its inputs.
    pub seed: u64,
    /// Share of the experiment's full size.
    pub scale: f64,
    /// Window of the Redis experiment in seconds, if it is not the published one.
    pub window: Option<f64>,
}

impl fmt::Display for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, scale {}", self.seed, self.scale)?;
        self.window.map_or(Ok(()), |seconds| write!(f, ", a window of {seconds} s"))
    }
}

/// A cell that is to run.
#[derive(Clone, Debug)]
pub struct PlannedCell {
    /// The cell.
    pub cell: Cell,
    /// What its figures depend on.
    pub of: CellKey,
    /// Roughly how long it takes.
    pub seconds: f64,
}

/// A finished cell, as it is on disk.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct CellRecord {
    /// Version of this layout.
    pub schema: u32,
    /// What its figures depend on.
    pub of: CellKey,
    /// The build that ran it.
    pub build: String,
    /// The machine that ran it.
    pub host: String,
    /// How long it took.
    pub seconds: f64,
    /// Why it has no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Figures by name, in bytes, seconds and counts.
    pub metrics: BTreeMap<String, f64>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// A digest of the output.
    pub digest: Option<u64>,
    /// Memory over time: seconds, proportional set size and cgroup charge in bytes.
    pub samples: Vec<(f64, u64, Option<u64>)>,
    /// What else came of it, in the words of its experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Value>,
}

impl CellRecord {
    /// What came of the cell.
    ///
    /// # Errors
    /// Why it failed.
    pub fn outcome(self) -> Result<Outcome, String> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        let sample = |(seconds, pss, charge)| Sample { seconds, pss, charge };
        Ok(Outcome {
            metrics: self.metrics,
            samples: self.samples.into_iter().map(sample).collect(),
            notes: self.notes,
            digest: self.digest,
            part: self.part,
        })
    }
}

/// The finished cells of a results directory.
#[derive(Debug)]
pub struct Keep {
    results: PathBuf,
    build: String,
    host: String,
}

/// What is to be done about a cell.
pub enum CellClaim {
    /// Nothing: this came of it.
    Done(Outcome),
    /// It is to be run; nobody else runs it while this is held.
    Mine(Lock),
}

/// A cell that is being run.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    // Closing it gives it up.
    _file: File,
}

impl Keep {
    /// Those in a results directory, for this build and machine.
    ///
    /// # Errors
    /// Where this program's file cannot be looked at.
    pub fn new(results: &Path) -> Result<Self> {
        Ok(Self { results: results.to_owned(), build: build()?, host: host() })
    }

    /// The same of runs that depend on something else, too, in words.
    #[must_use]
    pub fn of(mut self, more: &str) -> Self {
        self.build.push_str(more);
        self
    }

    /// Whether a cell was finished by this build, whatever its options were.
    pub fn holds(&self, cell: &Cell) -> bool {
        read(&self.path(cell)).is_ok_and(|kept| kept.failed.is_none() && kept.build == self.build)
    }

    /// Where a cell is kept.
    fn path(&self, cell: &Cell) -> PathBuf {
        path(&self.results, cell)
    }

    /// A cell that such a run has finished.
    pub fn taken(&self, cell: &Cell, of: CellKey) -> Option<Outcome> {
        let kept = read(&self.path(cell)).ok()?;
        (kept.of == of && kept.build == self.build).then(|| kept.outcome().ok()).flatten()
    }

    /// A cell that is finished, or may now be run by the caller; waits while somebody else runs it.
    ///
    /// # Errors
    /// Where nothing can be written; [`Interrupted`] by a signal.
    pub fn begin(&self, cell: &Cell, of: CellKey, stage: &Stage<'_>) -> Result<CellClaim> {
        let mut waiting = false;
        loop {
            if let Some(outcome) = self.taken(cell, of) {
                return Ok(CellClaim::Done(outcome));
            }
            if let Some(lock) = self.lock(cell)? {
                // It may have been finished before it was locked.
                return Ok(match self.taken(cell, of) {
                    Some(outcome) => CellClaim::Done(outcome),
                    None => CellClaim::Mine(lock),
                });
            }
            if !waiting {
                let who = last_begun(&self.results, cell).unwrap_or_else(|| "somebody".to_owned());
                notice!("{} is being run ({who}); waiting", cell.name());
                waiting = true;
            }
            stage.wait(LOOK)?;
        }
    }

    /// What such a run of a cell came to, or `run` comes to now, which the flag tells.
    ///
    /// # Errors
    /// Where it cannot be kept; [`Interrupted`] by a signal, and then it is not finished.
    pub fn once(
        &self,
        cell: &Cell,
        of: CellKey,
        stage: &Stage<'_>,
        run: impl FnOnce() -> Result<Outcome>,
    ) -> Result<(Result<Outcome, String>, bool)> {
        let lock = match self.begin(cell, of, stage)? {
            CellClaim::Done(outcome) => return Ok((Ok(outcome), false)),
            CellClaim::Mine(lock) => lock,
        };
        let began = Instant::now();
        let outcome = match run() {
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                // A signal to all of us may have ended its programs before it came to this process.
                stage.wait(SAME_SIGNAL)?;
                Err(format!("{error:#}"))
            }
            Ok(outcome) => Ok(outcome),
        };
        self.end(lock, cell, of, began.elapsed(), &outcome)?;
        Ok((outcome, true))
    }

    /// The lock of a cell, unless somebody holds it.
    fn lock(&self, cell: &Cell) -> Result<Option<Lock>> {
        let path = self.path(cell).with_extension("lock");
        let cannot = || format!("cannot write {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(&self.results)).with_context(cannot)?;
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        let mut file = open.with_context(cannot)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
            Ok(()) => {}
        }
        let since = UNIX_EPOCH.elapsed().unwrap_or_default();
        let words = format!(
            "on {}, process {}, since {}\n",
            self.host,
            std::process::id(),
            super::store::timestamp(since)
        );
        file.set_len(0).and_then(|()| file.write_all(words.as_bytes())).with_context(cannot)?;
        Ok(Some(Lock { path, _file: file }))
    }

    /// Keeps what came of a cell, which is finished with it.
    ///
    /// # Errors
    /// Where it cannot be written; then nothing is there, and the next run runs it again.
    pub fn end(
        &self,
        lock: Lock,
        cell: &Cell,
        of: CellKey,
        took: Duration,
        outcome: &Result<Outcome, String>,
    ) -> Result<()> {
        let mut kept = CellRecord {
            schema: 1,
            of,
            build: self.build.clone(),
            host: self.host.clone(),
            seconds: took.as_secs_f64(),
            failed: outcome.as_ref().err().cloned(),
            metrics: BTreeMap::new(),
            notes: Vec::new(),
            digest: None,
            samples: Vec::new(),
            part: None,
        };
        if let Ok(outcome) = outcome {
            kept.metrics.clone_from(&outcome.metrics);
            kept.notes.clone_from(&outcome.notes);
            kept.digest = outcome.digest;
            kept.part.clone_from(&outcome.part);
            let sample = |sample: &Sample| (sample.seconds, sample.pss, sample.charge);
            kept.samples = outcome.samples.iter().map(sample).collect();
        }
        files::write(&self.path(cell), serde_json::to_string(&kept)? + "\n", true).with_context(
            || {
                let name = cell.name();
                format!("{name} is not kept; the same command goes on with it (reproduce: with -f)")
            },
        )?;
        // Who waits for it finds it finished.
        fs::remove_file(&lock.path)
            .with_context(|| format!("cannot remove {}", lock.path.display()))
    }
}

/// Where a finished cell is, in a results directory.
pub fn path(results: &Path, cell: &Cell) -> PathBuf {
    let Cell { experiment, case, arm, repetition } = cell;
    results.join("cells").join(experiment).join(case).join(format!("{arm}-{repetition}.json"))
}

/// Who began a cell last, and did not finish it.
pub fn last_begun(results: &Path, cell: &Cell) -> Option<String> {
    let words = whole::text(&path(results, cell).with_extension("lock")).ok()?;
    Some(words.trim().to_owned()).filter(|words| !words.is_empty())
}

/// A finished cell in a file.
///
/// # Errors
/// Where it cannot be read, and for what is no cell.
pub fn read(path: &Path) -> Result<CellRecord> {
    let cannot = || format!("cannot read {}", path.display());
    let kept: CellRecord = serde_json::from_str(&whole::text(path).with_context(cannot)?)
        .with_context(|| format!("{} is no finished cell", path.display()))?;
    ensure!(kept.schema == 1, "{} is of a newer pagemill: schema {}", path.display(), kept.schema);
    Ok(kept)
}

/// This program and its heap library, as the linker named them; without such a name, by size and time.
fn build() -> Result<String> {
    let program = std::env::current_exe().context("cannot find this binary")?;
    let mut words = format!("{} {}", pagemill_model::TOOL, id(&program)?);
    if let Ok(heap) = library::find_heap() {
        words.push_str(&format!(", heap {}", id(&heap)?));
    }
    Ok(words)
}

fn id(path: &Path) -> Result<String> {
    use object::Object as _;
    let cannot = || format!("cannot read {}", path.display());
    let parts = Parts::open(path).with_context(cannot)?;
    let elf = object::read::elf::ElfFile64::<object::Endianness, _>::parse(&parts);
    if let Some(id) = elf.ok().and_then(|elf| elf.build_id().ok().flatten().map(<[u8]>::to_vec)) {
        return Ok(id.iter().take(8).map(|byte| format!("{byte:02x}")).collect());
    }
    let file = fs::metadata(path).with_context(cannot)?;
    let changed = file.modified().with_context(cannot)?.duration_since(UNIX_EPOCH);
    Ok(format!("{:x}-{:x}", file.len(), changed.unwrap_or_default().as_nanos()))
}

/// What this machine is called, by Slurm if that started this.
pub fn host() -> String {
    std::env::var("SLURMD_NODENAME")
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| Linux::live().hostname().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::finished;
    use super::*;
    use pagemill_kernel::{Linux, process::signal};

    fn cell(repetition: u32) -> Cell {
        Cell { experiment: "e".into(), case: "c.x".into(), arm: "1y-remap", repetition }
    }

    fn outcome() -> Outcome {
        Outcome {
            metrics: [("cpu".to_owned(), 0.1 + 0.2)].into(),
            samples: vec![Sample { seconds: 0.1, pss: u64::MAX, charge: None }],
            notes: vec!["a \"note\"".into()],
            digest: Some(u64::MAX),
            part: Some(Value::from(vec![0.1 + 0.2])),
        }
    }

    fn of(seed: u64) -> CellKey {
        CellKey { seed, scale: 0.1, window: None }
    }

    fn begun(keep: &Keep, of: CellKey) -> CellClaim {
        let signals = signal::Signals::block(&[]).unwrap();
        let every = Duration::from_secs(1);
        let executable = PathBuf::new();
        let stage = Stage { linux: Linux::live(), executable, signals: &signals, every };
        keep.begin(&cell(1), of, &stage).unwrap()
    }

    fn mine(keep: &Keep, of: CellKey) -> Lock {
        match begun(keep, of) {
            CellClaim::Mine(lock) => lock,
            CellClaim::Done(_) => panic!("it was taken"),
        }
    }

    #[test]
    fn a_cell_is_run_once_for_the_same_options_and_comes_back_as_it_was() {
        let room = tempfile::tempdir().unwrap();
        let keep = Keep::new(room.path()).unwrap();
        let lock = mine(&keep, of(1));
        assert!(keep.lock(&cell(1)).unwrap().is_none(), "it is held");
        assert!(keep.lock(&cell(2)).unwrap().is_some(), "another is not");
        assert!(last_begun(room.path(), &cell(1)).unwrap().contains(&keep.host));
        assert!(!keep.holds(&cell(1)));
        keep.end(lock, &cell(1), of(1), Duration::from_secs(2), &Ok(outcome())).unwrap();
        assert!(last_begun(room.path(), &cell(1)).is_none() && keep.holds(&cell(1)));
        match begun(&keep, of(1)) {
            CellClaim::Done(taken) => assert_eq!(format!("{taken:?}"), format!("{:?}", outcome())),
            CellClaim::Mine(_) => panic!("it was finished"),
        }
        drop(mine(&keep, of(2)));
        let other = Keep { build: "another".into(), ..Keep::new(room.path()).unwrap() };
        drop(mine(&other, of(1)));
        let (cells, odd) = finished::all(room.path()).unwrap();
        assert_eq!((cells.len(), odd.len()), (1, 0));
        assert_eq!((&cells[0].0, cells[0].1.seconds), (&cell(1), 2.0));
    }

    #[test]
    fn a_cell_that_fails_because_of_a_signal_to_us_is_not_finished() {
        let room = tempfile::tempdir().unwrap();
        let keep = Keep::new(room.path()).unwrap();
        let signals = signal::Signals::block(&[signal::PIPE]).unwrap();
        let (executable, every) = (PathBuf::new(), Duration::from_secs(1));
        let stage = Stage { linux: Linux::live(), executable, signals: &signals, every };
        let closed = || anyhow::bail!("server closed the connection");
        let error = keep.once(&cell(1), of(1), &stage, || {
            // The kernel sends this thread a signal, which nobody has taken yet when the cell fails.
            let (reader, mut writer) = std::io::pipe().unwrap();
            drop(reader);
            writer.write_all(b"x").unwrap_err();
            closed()
        });
        let error = error.unwrap_err();
        assert!(error.is::<Interrupted>(), "{error:#}");
        assert!(!path(room.path(), &cell(1)).exists(), "it is not kept");
        let (outcome, ran) = keep.once(&cell(1), of(1), &stage, closed).unwrap();
        assert!(ran && outcome.unwrap_err().contains("closed"), "without a signal it has failed");
    }

    #[test]
    fn a_cell_that_failed_or_was_cut_off_is_run_again() {
        let room = tempfile::tempdir().unwrap();
        let keep = Keep::new(room.path()).unwrap();
        keep.end(mine(&keep, of(1)), &cell(1), of(1), Duration::ZERO, &Err("it died".into()))
            .unwrap();
        assert_eq!(read(&keep.path(&cell(1))).unwrap().outcome().unwrap_err(), "it died");
        let lock = mine(&keep, of(1));
        // As a machine leaves it that dies: the lock is free, and its words are there.
        let words = fs::read_to_string(&lock.path).unwrap();
        drop(lock);
        assert_eq!(last_begun(room.path(), &cell(1)).unwrap(), words.trim());
        drop(mine(&keep, of(1)));
        fs::write(keep.path(&cell(1)), "{\"schema\":1,").unwrap();
        drop(mine(&keep, of(1)));
        let (cells, odd) = finished::all(room.path()).unwrap();
        assert!(
            cells.is_empty() && odd.len() == 1 && odd[0].contains("no finished cell"),
            "{odd:?}"
        );
    }
}
