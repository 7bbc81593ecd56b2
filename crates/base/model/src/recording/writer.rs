//! Writing a recording.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{
    Buffer, META, Meta, Reader, SCHEMA, SUMMARY, State, buffers, parse_part_name, part_name, seal,
};
use crate::error::{Error, Kind, Result};
use crate::event::{DATASETS, Event, Retention, SCHEMA as KINDS};
use crate::units::{Bytes, Nanos};

/// Ends the name of a file in the making.
const TEMPORARY: &str = ".tmp";

/// Parts are closed when one holds this many rows …
const PART_ROWS: usize = 16_384;

/// … or this many of [`Retention::Numerous`] …
const PART_ROWS_OF_NUMEROUS: usize = 262_144;

/// … or when texts and lists of its rows are this long together: a reader takes no more of equal ones, which take no
/// room in a file, than [`crate::parquet_columns`] says …
const PART_LENGTH: usize = 1 << 22;

/// … or when a first row is this old: at first a second, so that a short run that is killed has
/// something to show, doubling up to this, so that a long one has few files.
const PART_AGE_MAX: Nanos = Nanos(30_000_000_000);

/// Writes events as they come.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    /// Directories above it that were made for it, from the deepest up.
    above: Vec<PathBuf>,
    meta: Meta,
    buffers: Vec<Box<dyn Buffer>>,
    /// The one that took the last event: it often takes the next.
    latest: usize,
    /// The earliest of their rows.
    first: Option<Nanos>,
    part_age: Nanos,
    part_age_max: Nanos,
    max_size: Option<Bytes>,
    /// Parts on disk, oldest first; the header counts them.
    parts: VecDeque<Part>,
    written: Bytes,
    /// Events of one that is not kept on disk, until they are taken.
    passed: Option<Vec<Event>>,
}

/// A part on disk.
#[derive(Debug)]
struct Part {
    dataset: &'static str,
    explains: bool,
    path: PathBuf,
    size: u64,
    rows: u64,
}

impl Writer {
    /// Begins a recording in a new directory at `path`. An existing directory is replaced only if
    /// `force` is set and it is a recording or empty.
    ///
    /// `meta` names the datasets that are to come; one that it does not name is added with its first part.
    /// When the parts take more than `max_size`, the oldest are removed; their rows count as lost.
    ///
    /// # Errors
    /// Something else is there, or the directory or the header cannot be written.
    pub fn create(
        path: impl Into<PathBuf>,
        mut meta: Meta,
        force: bool,
        max_size: Option<Bytes>,
    ) -> Result<Self> {
        let path = path.into();
        make_room(&path, force)?;
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let above = path.ancestors().skip(1).take_while(missing).map(Path::to_owned).collect();
        meta.pagemill_recording = SCHEMA;
        meta.state = State::Recording;
        let writer = Self { path, above, max_size, ..Self::empty(meta) };
        match writer.make_directories().and_then(|()| writer.write_meta()) {
            Ok(()) => Ok(writer),
            Err(error) => {
                writer.abandon();
                Err(error)
            }
        }
    }

    /// A recording that is not kept: who looks on takes its events by [`Writer::take`]. It has no directory.
    pub fn passing(meta: Meta) -> Self {
        Self { passed: Some(Vec::new()), ..Self::empty(meta) }
    }

    fn empty(meta: Meta) -> Self {
        Self {
            path: PathBuf::new(),
            above: Vec::new(),
            meta,
            buffers: buffers(),
            latest: 0,
            first: None,
            part_age: Nanos(1_000_000_000),
            part_age_max: PART_AGE_MAX,
            max_size: None,
            parts: VecDeque::new(),
            written: Bytes(0),
            passed: None,
        }
    }

    /// The events since the last call, in the order in which they came; of a recording on disk there are none.
    pub fn take(&mut self) -> Vec<Event> {
        self.passed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn make_directories(&self) -> Result<()> {
        let make = |path: &Path| {
            fs::create_dir_all(path).map_err(|error| Error::io("create", path, error))
        };
        make(&self.path)?;
        self.meta.datasets.iter().try_for_each(|dataset| make(&self.path.join(dataset)))
    }

    /// Takes a recording away that came to nothing: its header, and its directories, and those that were made for them,
    /// as far as they are empty. What cannot be removed stays.
    pub fn abandon(self) {
        let _ = fs::remove_file(self.path.join(META));
        for dataset in &self.meta.datasets {
            let _ = fs::remove_dir(self.path.join(dataset));
        }
        for directory in std::iter::once(&self.path).chain(&self.above) {
            let _ = fs::remove_dir(directory);
        }
    }

    /// Whether a recording could begin at `path`: an error says why not, `true` means that another
    /// recording has to be removed for it.
    ///
    /// # Errors
    /// Something is there that is not to be replaced, or is no recording.
    pub fn check(path: &Path, force: bool) -> Result<bool> {
        let mut entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::io("use", path, error)),
        };
        if entries.next().is_none() {
            return Ok(false);
        }
        let exists = |why: &str| {
            Err(Error::new(Kind::Exists, format_args!("{} exists {why}", path.display())))
        };
        match Reader::open(path) {
            Err(error) if error.kind() == Kind::NoRecording => exists(
                "and is no recording, so it is not overwritten (choose another name with -o)",
            ),
            _ if force => Ok(true),
            _ => exists("(use -f to overwrite it, or choose another name)"),
        }
    }

    /// Whether files can be written where the recording would be: tried, with a directory that is
    /// removed again, in `path` or the nearest directory above it that exists.
    ///
    /// # Errors
    /// No directory or file can be made there.
    pub fn probe(path: &Path) -> Result<()> {
        let exists = |path: &&Path| path.as_os_str().is_empty() || path.exists();
        let place = path.ancestors().find(exists).filter(|place| !place.as_os_str().is_empty());
        let place = place.unwrap_or(Path::new("."));
        let name = format!(".pagemill-probe.{}", std::process::id());
        let probe = place.join(name);
        // A full disk may still take an empty directory.
        let file = probe.join("probe");
        let tried = fs::create_dir(&probe).and_then(|()| {
            let tried = fs::write(&file, [1; 64 << 10]);
            tried.and(fs::remove_file(&file))
        });
        if tried.is_err() {
            // As far as they were made.
            let _ = fs::remove_file(&file);
            let _ = fs::remove_dir(&probe);
        }
        tried
            .and_then(|()| fs::remove_dir(&probe))
            .map_err(|error| Error::io("write into", place, error))
    }

    /// Closes parts when their first row is this old, from the first part to the last: what a kill loses at most.
    pub fn flush_after(&mut self, age: Nanos) {
        (self.part_age, self.part_age_max) = (age, age);
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of parts on disk.
    pub fn size(&self) -> Bytes {
        self.written
    }

    /// The header.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The header, to be changed as the run goes on; written when a part is, and at the end.
    pub fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    /// Adds an event.
    ///
    /// # Errors
    /// A part cannot be written: no room, or a disk that fails.
    pub fn event(&mut self, event: &Event) -> Result<()> {
        if let Some(passed) = &mut self.passed {
            passed.push(event.clone());
            return Ok(());
        }
        if !self.buffers[self.latest].push(event) {
            let taken = self.buffers.iter_mut().position(|buffer| buffer.push(event));
            debug_assert!(taken.is_some(), "each kind of event has its dataset");
            self.latest = taken.unwrap_or(self.latest);
        }
        let buffer = &self.buffers[self.latest];
        let rows = buffer.len();
        let first = self.first.map_or(event.time(), |first| first.min(event.time()));
        self.first = Some(first);
        let age = event.time().since(first);
        let most = match KINDS[self.latest].retention {
            Retention::Numerous => PART_ROWS_OF_NUMEROUS,
            Retention::Plain | Retention::Explaining => PART_ROWS,
        };
        let full = rows >= most || buffer.length() >= PART_LENGTH;
        if full || age >= self.part_age {
            self.part_age = Nanos((self.part_age.0 * 2).min(self.part_age_max.0));
            self.close_parts()?;
        }
        Ok(())
    }

    /// Writes what is left and marks the recording as whole. `ended` is the clock now.
    ///
    /// # Errors
    /// What is left, or the header, cannot be written; the recording is not marked as whole.
    pub fn finish(mut self, ended: Nanos) -> Result<PathBuf> {
        self.meta.ended = Some(ended);
        self.meta.state = State::Finished;
        if self.passed.is_none() {
            self.close_parts()?;
            self.write_meta()?;
        }
        Ok(self.path)
    }

    /// Closes a part of each dataset that has rows.
    fn close_parts(&mut self) -> Result<()> {
        let before = self.parts.len();
        self.first = None;
        for (buffer, kind) in self.buffers.iter_mut().zip(KINDS) {
            let rows = buffer.len() as u64;
            if rows == 0 {
                continue;
            }
            let (dataset, bytes) = (buffer.dataset(), buffer.encode()?);
            let directory = self.path.join(dataset);
            if !self.meta.datasets.iter().any(|known| known == dataset) {
                fs::create_dir_all(&directory)
                    .map_err(|error| Error::io("create", &directory, error))?;
                self.meta.datasets.push(dataset.to_owned());
            }
            let number = self.meta.parts.get(dataset).map_or(0, |parts| parts.next);
            let name = part_name(number, &bytes);
            seal::replace(&directory, &name, TEMPORARY, &bytes)?;
            let counted = self.meta.parts.entry(dataset.to_owned()).or_default();
            counted.next += 1;
            counted.rows += rows;
            let size = bytes.len() as u64;
            self.written.0 += size;
            let explains = kind.retention == Retention::Explaining;
            self.parts.push_back(Part {
                dataset,
                explains,
                path: directory.join(name),
                size,
                rows,
            });
        }
        if self.parts.len() == before {
            return Ok(());
        }
        let removed = self.shrink();
        // The header goes first: a kill in between leaves a file too many, never one that is missed.
        self.write_meta()?;
        for path in removed {
            fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
        Ok(())
    }

    /// Strikes out the oldest parts while they exceed the limit, and returns their files; the newest
    /// always stays. What explains other rows, or counts what has none, goes only where it takes more than half of the
    /// limit.
    fn shrink(&mut self) -> Vec<PathBuf> {
        let mut removed = Vec::new();
        let Some(Bytes(limit)) = self.max_size else { return removed };
        while self.written.0 > limit && self.parts.len() > 1 {
            let older = self.parts.iter().take(self.parts.len() - 1);
            let explaining: u64 =
                self.parts.iter().filter(|part| part.explains).map(|part| part.size).sum();
            let wanted = explaining > limit / 2;
            let mut candidates = older.enumerate();
            let Some((oldest, _)) = candidates.find(|(_, part)| part.explains == wanted) else {
                break;
            };
            let Some(part) = self.parts.remove(oldest) else { break };
            self.written.0 -= part.size;
            self.meta.losses.removed_samples += part.rows;
            let counted = self.meta.parts.entry(part.dataset.to_owned()).or_default();
            counted.first += 1;
            counted.rows -= part.rows;
            removed.push(part.path);
        }
        removed
    }

    fn write_meta(&self) -> Result<()> {
        let text =
            seal::text(&self.meta).map_err(|error| Error::damaged(&self.path.join(META), error))?;
        seal::replace(&self.path, META, TEMPORARY, &text)
    }
}

/// Makes `path` a place for a new recording, or says why it is none.
fn make_room(path: &Path, force: bool) -> Result<()> {
    if !Writer::check(path, force)? {
        return Ok(());
    }
    // Only what a recording consists of; a file that someone put beside it makes this fail.
    let remove =
        |path: PathBuf| fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error));
    for dataset in DATASETS {
        let dataset = path.join(dataset);
        let Ok(entries) = fs::read_dir(&dataset) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let part = name.strip_prefix('.').and_then(|name| name.strip_suffix(TEMPORARY));
            if parse_part_name(part.unwrap_or(&name)).is_some() {
                remove(entry.path())?;
            }
        }
        fs::remove_dir(&dataset).map_err(|error| Error::io("remove", &dataset, error))?;
    }
    if path.join(SUMMARY).exists() {
        remove(path.join(SUMMARY))?;
    }
    remove(path.join(META))
}
