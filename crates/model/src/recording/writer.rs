//! Writing a recording.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{META, Meta, Reader, SCHEMA, State, parse_part_name, part_name};
use crate::dataset::{self, Row};
use crate::error::{Error, Kind, Result};
use crate::event::{Event, HeapSample};
use crate::units::{Bytes, Nanos};

/// A part is closed when it holds this many rows …
const PART_ROWS: usize = 16_384;

/// … or when its first row is this old: at first a second, so that a short run that is killed has
/// something to show, doubling up to this, so that a long one has few files.
const PART_AGE_MAX: Nanos = Nanos(30_000_000_000);

/// Writes events as they come.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    meta: Meta,
    rows: Vec<HeapSample>,
    next_part: u64,
    part_age: Nanos,
    max_size: Option<Bytes>,
    /// Parts on disk, oldest first: name, size, rows; the header counts them.
    parts: VecDeque<(String, u64, u64)>,
    written: Bytes,
}

impl Writer {
    /// Begins a recording in a new directory at `path`. An existing directory is replaced only if
    /// `force` is set and it is a recording or empty.
    ///
    /// When the parts take more than `max_size`, the oldest are removed; their rows count as lost.
    pub fn create(
        path: impl Into<PathBuf>,
        mut meta: Meta,
        force: bool,
        max_size: Option<Bytes>,
    ) -> Result<Self> {
        let path = path.into();
        make_room(&path, force)?;
        let dataset = path.join(HeapSample::DATASET);
        fs::create_dir_all(&dataset).map_err(|error| Error::io("create", &dataset, error))?;
        meta.pagemill_recording = SCHEMA;
        meta.state = State::Recording;
        meta.datasets = vec![HeapSample::DATASET.to_owned()];
        let writer = Self {
            path,
            meta,
            rows: Vec::new(),
            next_part: 0,
            part_age: Nanos(1_000_000_000),
            max_size,
            parts: VecDeque::new(),
            written: Bytes(0),
        };
        writer.write_meta()?;
        Ok(writer)
    }

    /// Whether a recording could begin at `path`: an error says why not, `true` means that another
    /// recording has to be removed for it.
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
            _ => exists("(use -f to overwrite it, or -o for another name)"),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of parts on disk.
    pub fn size(&self) -> Bytes {
        self.written
    }

    /// The header, to be changed as the run goes on; written when a part is, and at the end.
    pub fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }

    /// Adds an event.
    pub fn event(&mut self, event: &Event) -> Result<()> {
        let Event::Heap(sample) = event;
        self.rows.push(sample.as_ref().clone());
        let age = sample.time.since(self.rows[0].time);
        if self.rows.len() >= PART_ROWS || age >= self.part_age {
            self.part_age = Nanos((self.part_age.0 * 2).min(PART_AGE_MAX.0));
            self.close_part()?;
        }
        Ok(())
    }

    /// Writes what is left and marks the recording as whole. `ended` is the clock now.
    pub fn finish(mut self, ended: Nanos) -> Result<PathBuf> {
        self.close_part()?;
        self.meta.ended = Some(ended);
        self.meta.state = State::Finished;
        self.write_meta()?;
        Ok(self.path)
    }

    fn close_part(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let bytes = dataset::encode(&self.rows).map_err(|error| {
            Error::new(Kind::Damaged, format_args!("cannot encode rows: {error}"))
        })?;
        let name = part_name(self.next_part, &bytes);
        let dataset = self.path.join(HeapSample::DATASET);
        self.replace(&dataset, &name, &bytes)?;
        self.next_part += 1;
        self.written.0 += bytes.len() as u64;
        let rows = self.rows.len() as u64;
        self.parts.push_back((name, bytes.len() as u64, rows));
        self.rows.clear();
        let counted = self.meta.parts.entry(HeapSample::DATASET.to_owned()).or_default();
        counted.next = self.next_part;
        counted.rows += rows;
        let removed = self.shrink();
        // The header goes first: a kill in between leaves a file too many, never one that is missed.
        self.write_meta()?;
        for name in removed {
            let path = dataset.join(name);
            fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
        }
        Ok(())
    }

    /// Strikes out the oldest parts while they exceed the limit, and returns the names of their
    /// files; the newest always stays.
    fn shrink(&mut self) -> Vec<String> {
        let mut removed = Vec::new();
        let Some(Bytes(limit)) = self.max_size else { return removed };
        let counted = self.meta.parts.entry(HeapSample::DATASET.to_owned()).or_default();
        while self.written.0 > limit && self.parts.len() > 1 {
            let Some((name, size, rows)) = self.parts.pop_front() else { break };
            self.written.0 -= size;
            self.meta.losses.removed_samples += rows;
            counted.first += 1;
            counted.rows -= rows;
            removed.push(name);
        }
        removed
    }

    fn write_meta(&self) -> Result<()> {
        let mut text = serde_json::to_string_pretty(&self.meta)
            .map_err(|error| Error::damaged(&self.path.join(META), error))?;
        text.push('\n');
        self.replace(&self.path, META, text.as_bytes())
    }

    /// Puts a whole file in place: written under a temporary name, then renamed.
    fn replace(&self, directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
        let temporary = directory.join(format!(".{name}.tmp"));
        let target = directory.join(name);
        fs::write(&temporary, bytes).map_err(|error| Error::io("write", &temporary, error))?;
        fs::rename(&temporary, &target).map_err(|error| Error::io("write", &target, error))
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
    let dataset = path.join(HeapSample::DATASET);
    if let Ok(entries) = fs::read_dir(&dataset) {
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let part = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
            if parse_part_name(part.unwrap_or(&name)).is_some() {
                remove(entry.path())?;
            }
        }
        fs::remove_dir(&dataset).map_err(|error| Error::io("remove", &dataset, error))?;
    }
    remove(path.join(META))
}
