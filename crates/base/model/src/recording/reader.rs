//! Reading a recording.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use super::redact::Redactor;
use super::{
    Buffer, META, Meta, PartName, Parts, SCHEMA, State, buffers, checksum, is_of, parse_part_name,
    seal,
};
use crate::error::{Error, Kind, Result};
use crate::event::Event;
use crate::flow::Source;
use crate::sums::sum;
use crate::units::Nanos;
use crate::whole;

/// An open recording: its header, and its events as a [`Source`]. Two parts of each dataset are in
/// memory at a time: one that is being read, and the next, which is made ready meanwhile.
#[derive(Debug)]
pub struct Reader {
    meta: Meta,
    summary: Option<Vec<u8>>,
    datasets: Vec<Dataset>,
    last: Option<Nanos>,
    redactor: Option<Redactor>,
}

/// What is still to be read of a dataset.
#[derive(Debug)]
struct Dataset {
    /// Number, file and checksum of each part.
    parts: VecDeque<(u64, PathBuf, u64)>,
    /// The rows of the part that is being read.
    rows: Box<dyn Buffer>,
    /// The part after it, being decoded.
    ahead: Option<Ahead>,
    /// What the header counts.
    counted: Parts,
    /// Numbers of parts that the header counts and that are not there.
    absent: Vec<Range<u64>>,
    /// Rows of the header's parts that were not read so far.
    unread: u64,
}

/// A part on its way into memory: its number, and its rows when they are there.
#[derive(Debug)]
struct Ahead {
    number: u64,
    rows: JoinHandle<Result<Box<dyn Buffer>>>,
}

/// What the header counts and the directory does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Numbers of the parts whose files are gone, ascending, with the dataset that they are of.
    pub parts: Vec<(&'static str, Range<u64>)>,
    /// The rows that were in them.
    pub rows: u64,
}

impl Missing {
    /// The parts: `part 3 of heap, parts 0 to 4 of faults`.
    pub fn named(&self) -> String {
        let name = |(dataset, range): &(&str, Range<u64>)| match range.end - range.start {
            1 => format!("part {} of {dataset}", range.start),
            _ => format!("parts {} to {} of {dataset}", range.start, range.end - 1),
        };
        self.parts.iter().map(name).collect::<Vec<_>>().join(", ")
    }
}

impl Reader {
    /// Opens the recording in the directory `path`.
    ///
    /// # Errors
    /// It is no recording, its header or its summary is damaged, or this version does not read it.
    pub fn open(path: &Path) -> Result<Self> {
        let (meta, checked) = read_meta(path)?;
        let summary = seal::summary(path, &meta, checked)?;
        let mut datasets = Vec::new();
        for rows in buffers() {
            let counted = meta.parts.get(rows.dataset()).copied().unwrap_or_default();
            datasets.push(Dataset::open(path, rows, counted)?);
        }
        Ok(Self { meta, summary, datasets, last: None, redactor: None })
    }

    /// From here on header and events do not say whose they are: commands, names of processes and paths are neutral
    /// words.
    pub fn redact(&mut self) {
        let mut redactor = Redactor::default();
        redactor.meta(&mut self.meta);
        self.redactor = Some(redactor);
    }

    /// Whether it was told to [`Reader::redact`].
    pub fn is_redacted(&self) -> bool {
        self.redactor.is_some()
    }

    /// The header.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The text of the summary that is kept beside the parts, once.
    pub fn take_summary(&mut self) -> Option<Vec<u8>> {
        self.summary.take()
    }

    /// Passes over the rows of a dataset: what is known of them already need not be read again.
    pub fn pass_over(&mut self, dataset: &str) {
        for set in self.datasets.iter_mut().filter(|set| set.rows.dataset() == dataset) {
            set.parts.clear();
            set.ahead = None;
            set.unread = 0;
        }
    }

    /// Whether what [`Reader::pass_over`] would not read is what was written: each part has the content that its name
    /// says.
    pub fn is_intact(&self, dataset: &str) -> bool {
        let sets = self.datasets.iter().filter(|set| set.rows.dataset() == dataset);
        let mut parts = sets.flat_map(|set| &set.parts);
        parts.all(|(_, path, sum)| {
            whole::regular(path, whole::DATA).is_ok_and(|bytes| is_of(&bytes, *sum))
        })
    }

    /// Files of parts that are to be read, and those that are gone: equal for equal content.
    pub fn fingerprint(&self) -> String {
        let mut sum = 0_u64;
        for set in &self.datasets {
            for (number, path, content) in &set.parts {
                let place = format!("{}/{number}", path.display());
                let name = place.rsplit('/').take(3).collect::<Vec<_>>().join("/");
                // One that was cut off has another size.
                let size = fs::metadata(path).map_or(0, |metadata| metadata.len());
                sum = sum.rotate_left(7) ^ checksum(name.as_bytes()) ^ content ^ size;
            }
            sum ^= set.counted.rows.rotate_left(32) ^ set.absent.len() as u64;
        }
        format!("{sum:016x}-{:?}", self.meta.state).to_lowercase()
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
        let named = |set: &Dataset| {
            let dataset = set.rows.dataset();
            set.absent.clone().into_iter().map(move |range| (dataset, range))
        };
        let parts: Vec<_> = self.datasets.iter().flat_map(named).collect();
        let rows = sum(self.datasets.iter().map(|set| set.unread));
        (!parts.is_empty()).then_some(Missing { parts, rows })
    }
}

impl Source for Reader {
    fn next_event(&mut self) -> Result<Option<Event>> {
        let mut next: Option<(Nanos, &mut Dataset)> = None;
        for dataset in &mut self.datasets {
            // Of equal stamps, the first dataset's comes first.
            if let Some(time) = dataset.first()?
                && next.as_ref().is_none_or(|(first, _)| time < *first)
            {
                next = Some((time, dataset));
            }
        }
        let Some((time, dataset)) = next else { return Ok(None) };
        self.last = Some(time);
        let mut event = dataset.rows.pop();
        if let (Some(redactor), Some(event)) = (&mut self.redactor, &mut event) {
            redactor.event(event);
        }
        Ok(event)
    }
}

impl Dataset {
    /// The parts in the dataset's directory, in order.
    fn open(recording: &Path, rows: Box<dyn Buffer>, counted: Parts) -> Result<Self> {
        let mut parts = parts_in(&recording.join(rows.dataset()))?;
        // What was struck out to stay below the size limit may still have its file.
        parts.retain(|(number, ..)| *number >= counted.first);
        let mut absent = Vec::new();
        let mut next = counted.first;
        for number in parts.iter().map(|part| part.0).chain([counted.next]) {
            let gap = next..number.min(counted.next);
            absent.extend(Some(gap).filter(|gap| !gap.is_empty()));
            next = number.saturating_add(1);
        }
        Ok(Self { parts: parts.into(), rows, ahead: None, counted, absent, unread: counted.rows })
    }

    /// When the next row happened; `None` if there are no more.
    fn first(&mut self) -> Result<Option<Nanos>> {
        loop {
            if let Some(time) = self.rows.first() {
                return Ok(Some(time));
            }
            let (number, rows) = match self.ahead.take() {
                Some(Ahead { number, rows }) => {
                    let rows = rows.join();
                    (number, rows.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                }
                None => match self.parts.pop_front() {
                    Some((number, path, sum)) => (number, load(self.rows.empty(), &path, sum)),
                    None => return Ok(None),
                },
            };
            self.rows = rows?;
            if let Some((number, path, sum)) = self.parts.pop_front() {
                let (rows, file) = (self.rows.empty(), path.clone());
                let ahead = thread::Builder::new().spawn(move || load(rows, &file, sum));
                match ahead {
                    Ok(rows) => self.ahead = Some(Ahead { number, rows }),
                    // There may be no more threads: then it is read when its turn comes.
                    Err(_) => self.parts.push_front((number, path, sum)),
                }
            }
            if number < self.counted.next {
                self.unread = self.unread.saturating_sub(self.rows.len() as u64);
            }
        }
    }
}

/// The rows of a part.
pub(super) fn load(mut rows: Box<dyn Buffer>, path: &Path, sum: u64) -> Result<Box<dyn Buffer>> {
    let bytes =
        whole::regular(path, whole::DATA).map_err(|error| Error::io("read", path, error))?;
    if !is_of(&bytes, sum) {
        return Err(Error::damaged(path, "its content does not match its checksum"));
    }
    rows.decode(&bytes).map_err(|error| Error::damaged(path, error))?;
    Ok(rows)
}

/// The header of the recording at `path`, and whether it has a checksum.
pub(super) fn read_meta(path: &Path) -> Result<(Meta, bool)> {
    let meta_path = path.join(META);
    let text = match whole::regular(&meta_path, whole::TEXT) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            let why = if path.exists() { "it has no meta.json" } else { "it does not exist" };
            return Err(no_recording(path, why));
        }
        Err(error) => return Err(Error::io("read", &meta_path, error)),
    };
    parse_meta(path, &meta_path, &text)
}

/// The parts in a dataset's directory, in order: number, file, checksum of the content.
pub(super) fn parts_in(directory: &Path) -> Result<Vec<(u64, PathBuf, u64)>> {
    let mut parts = Vec::new();
    match fs::read_dir(directory) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(|error| Error::io("read", directory, error))?;
                let name = entry.file_name();
                if let Some(PartName { number, checksum }) = name.to_str().and_then(parse_part_name)
                {
                    parts.push((number, entry.path(), checksum));
                }
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(Error::io("read", directory, error)),
    }
    parts.sort();
    Ok(parts)
}

fn no_recording(path: &Path, why: &str) -> Error {
    Error::new(Kind::NoRecording, format_args!("{} is no recording: {why}", path.display()))
}

/// Understands `meta.json`. The version is looked at first: a newer one may mean other things by
/// the same words. With it, whether it has a checksum, as those of earlier recordings have not.
fn parse_meta(path: &Path, meta_path: &Path, text: &[u8]) -> Result<(Meta, bool)> {
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
        Some(_) => {
            let checked = seal::check(&value).map_err(|why| Error::damaged(meta_path, why))?;
            if let Some(why) = impossible(&value) {
                return Err(Error::damaged(meta_path, why));
            }
            let meta = serde_json::from_value(value);
            Ok((meta.map_err(|error| Error::damaged(meta_path, error))?, checked))
        }
    }
}

/// The number of a header that none of a machine is, if there is one: clocks count from 1970 at the most.
fn impossible(value: &serde_json::Value) -> Option<String> {
    const MOST: f64 = (1_u64 << 61) as f64;
    let within = |name: &str, member| Some(format!("{name}: {}", impossible(member)?));
    match value {
        serde_json::Value::Number(number) => {
            let possible = number.as_f64().is_some_and(|number| number <= MOST);
            (!possible)
                .then(|| format!("{number} is more than any machine has or does: it was made up"))
        }
        serde_json::Value::Array(items) => items.iter().find_map(impossible),
        serde_json::Value::Object(members) => {
            members.iter().find_map(|(name, member)| within(name, member))
        }
        _ => None,
    }
}
