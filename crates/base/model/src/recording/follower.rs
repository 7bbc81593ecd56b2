//! Reading a recording while it is written.
//!
//! Always true: each row that is in a finished part is handed on once, unless its part was removed to stay below the
//! size limit before it was looked at; rows of one dataset come in the order of their parts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::reader::{load, parts_in, read_meta};
use super::{Meta, State, buffers};
use crate::error::{Kind, Result};
use crate::event::Event;

/// A recording that may still be in the making.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    meta: Meta,
    /// Of each dataset, the number of the part that is read next.
    next: BTreeMap<&'static str, u64>,
    skipped: Vec<&'static str>,
}

impl Follower {
    /// Opens the recording in the directory `path`; nothing of it is read but its header.
    ///
    /// # Errors
    /// It is no recording, its header is damaged, or this version does not read it.
    pub fn open(path: &Path) -> Result<Self> {
        let (meta, _) = read_meta(path)?;
        Ok(Self { path: path.to_owned(), meta, next: BTreeMap::new(), skipped: Vec::new() })
    }

    /// The header, as of the last [`Follower::poll`].
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Whether its writer has finished. One that was killed never says so.
    pub fn is_finished(&self) -> bool {
        self.meta.state == State::Finished
    }

    /// Passes over the rows of a dataset.
    pub fn skip(&mut self, dataset: &'static str) {
        self.skipped.push(dataset);
    }

    /// Hands on the rows of the parts that are new, dataset by dataset; whether there were any. A damaged part is an
    /// error, and is passed over the next time.
    ///
    /// # Errors
    /// The header cannot be read, or a part is damaged.
    pub fn poll(&mut self, each: &mut dyn FnMut(&Event)) -> Result<bool> {
        // Before the parts: what it counts is there.
        self.meta = read_meta(&self.path)?.0;
        let mut found = false;
        for rows in buffers() {
            let dataset = rows.dataset();
            if self.skipped.contains(&dataset) {
                continue;
            }
            for (number, path, sum) in parts_in(&self.path.join(dataset))? {
                if number < self.next.get(dataset).copied().unwrap_or(0) {
                    continue;
                }
                self.next.insert(dataset, number.saturating_add(1));
                let mut part = match load(rows.empty(), &path, sum) {
                    // It was removed meanwhile.
                    Err(error) if error.kind() == Kind::Io && !path.exists() => continue,
                    part => part?,
                };
                found = true;
                while let Some(event) = part.pop() {
                    each(&event);
                }
            }
        }
        Ok(found)
    }
}
