//! Reading a recording.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{META, Meta, SCHEMA, State, checksum, parse_part_name};
use crate::dataset::{self, Row};
use crate::error::{Error, Kind, Result};
use crate::event::{Event, HeapSample};
use crate::flow::Source;
use crate::units::Nanos;

/// An open recording: its header, and its events as a [`Source`]. One part is in memory at a time.
#[derive(Debug)]
pub struct Reader {
    meta: Meta,
    parts: VecDeque<(u64, PathBuf, u64)>,
    rows: std::vec::IntoIter<HeapSample>,
    last: Option<Nanos>,
    /// Numbers of parts that the header counts and that are not there.
    absent: Vec<Range<u64>>,
    /// Rows of the header's parts that were not read so far.
    unread: u64,
}

/// What the header counts and the directory does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Numbers of the parts whose files are gone, ascending.
    pub parts: Vec<Range<u64>>,
    /// The rows that were in them.
    pub rows: u64,
}

impl Reader {
    /// Opens the recording in the directory `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let meta_path = path.join(META);
        let text = match fs::read(&meta_path) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                let why = if path.exists() { "it has no meta.json" } else { "it does not exist" };
                return Err(no_recording(path, why));
            }
            Err(error) => return Err(Error::io("read", &meta_path, error)),
        };
        let meta = parse_meta(path, &meta_path, &text)?;
        let dataset = path.join(HeapSample::DATASET);
        let mut parts = Vec::new();
        match fs::read_dir(&dataset) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(|error| Error::io("read", &dataset, error))?;
                    let name = entry.file_name();
                    if let Some((number, sum)) = name.to_str().and_then(parse_part_name) {
                        parts.push((number, entry.path(), sum));
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io("read", &dataset, error)),
        }
        let counted = meta.parts.get(HeapSample::DATASET).copied().unwrap_or_default();
        // What was struck out to stay below the size limit may still have its file.
        parts.retain(|(number, ..)| *number >= counted.first);
        parts.sort();
        let mut absent = Vec::new();
        let mut next = counted.first;
        for number in parts.iter().map(|part| part.0).chain([counted.next]) {
            let gap = next..number.min(counted.next);
            absent.extend(Some(gap).filter(|gap| !gap.is_empty()));
            next = number.saturating_add(1);
        }
        let rows = Vec::new().into_iter();
        Ok(Self { meta, parts: parts.into(), rows, last: None, absent, unread: counted.rows })
    }

    /// The header.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// For a run that was cut off, how long after its start the last event so far was; the time
    /// of the last event overall once all have been read. `None` for a whole recording.
    pub fn truncated_at(&self) -> Option<Nanos> {
        let cut_off = self.meta.state == State::Recording;
        cut_off.then(|| self.last.map_or(Nanos(0), |last| last.since(self.meta.started)))
    }

    /// The finished parts whose files are gone; their rows are known once all events have been
    /// read. `None` for a recording that has them all, or whose writer did not count them.
    pub fn missing(&self) -> Option<Missing> {
        let parts = self.absent.clone();
        (!parts.is_empty()).then_some(Missing { parts, rows: self.unread })
    }
}

impl Source for Reader {
    fn next_event(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(row) = self.rows.next() {
                self.last = Some(row.time);
                return Ok(Some(Event::Heap(Box::new(row))));
            }
            let Some((number, path, sum)) = self.parts.pop_front() else { return Ok(None) };
            let bytes = fs::read(&path).map_err(|error| Error::io("read", &path, error))?;
            if checksum(&bytes) != sum {
                return Err(Error::damaged(&path, "its content does not match its checksum"));
            }
            let rows = dataset::decode::<HeapSample>(bytes)
                .map_err(|error| Error::damaged(&path, error))?;
            let counted = self.meta.parts.get(HeapSample::DATASET);
            if counted.is_some_and(|parts| number < parts.next) {
                self.unread = self.unread.saturating_sub(rows.len() as u64);
            }
            self.rows = rows.into_iter();
        }
    }
}

fn no_recording(path: &Path, why: &str) -> Error {
    Error::new(Kind::NoRecording, format_args!("{} is no recording: {why}", path.display()))
}

/// Understands `meta.json`. The version is looked at first: a newer one may mean other things by
/// the same words.
fn parse_meta(path: &Path, meta_path: &Path, text: &[u8]) -> Result<Meta> {
    let value: serde_json::Value =
        serde_json::from_slice(text).map_err(|error| Error::damaged(meta_path, error))?;
    match value.get("pagemill_recording").and_then(serde_json::Value::as_u64) {
        None | Some(0) => Err(no_recording(path, "its meta.json is not pagemill's")),
        Some(newer) if newer > SCHEMA => Err(Error::new(
            Kind::Newer,
            format_args!(
                "{} has format {newer}, this pagemill reads up to {SCHEMA} (use a newer pagemill)",
                path.display()
            ),
        )),
        Some(_) => serde_json::from_value(value).map_err(|error| Error::damaged(meta_path, error)),
    }
}
