//! A format: its name, and who writes it.

use std::io::{BufWriter, Write};

use anyhow::Result;
use pagemill_analysis::cold_stacks::ColdStack;
use pagemill_analysis::heat::HeatView;
use pagemill_model::recording::Meta;
use pagemill_model::{Access, Event, Pid};

/// A format of another tool.
#[derive(Debug)]
pub struct Format {
    /// Its name.
    pub name: &'static str,
    /// What is in it, and who reads it: a line.
    pub about: &'static str,
    pub(super) content: Content,
}

/// What a format holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// Page faults, in two files.
    Faults,
    /// Accesses one by one.
    Accesses(Begin),
    /// The same, and any other event.
    Events(Begin),
    /// Stacks that have resident memory, of a view, and the ends of its parts of time.
    Resident(fn(&HeatView, &[ColdStack], &[u64]) -> String),
}

/// Begins to write a recording of this header.
pub(super) type Begin = fn(Output, &Meta) -> Result<Box<dyn AccessWriter>>;

/// The file in the making.
pub(super) type Output = BufWriter<Box<dyn Write + Send>>;

/// An access with its names.
pub(super) struct SymbolizedAccess<'a> {
    pub(super) row: &'a Access,
    pub(super) since: u64,
    pub(super) write: bool,
    /// Accesses that the row stands for.
    pub(super) count: u64,
    pub(super) fetch: bool,
    pub(super) in_kernel: bool,
    pub(super) object: &'a str,
    pub(super) kind: &'a str,
    /// From where the object begins, and its bytes.
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) line: &'a str,
}

/// Writes a format: is handed the accesses one by one, named, and the end of each interval.
pub(super) trait AccessWriter {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()>;
    /// An interval of a process ends: when it began and ended.
    fn interval(&mut self, _pid: Pid, _began: u64, _ended: u64) -> Result<()> {
        Ok(())
    }
    /// Any other event, so long after the start, of which the format may have something.
    fn other(&mut self, _event: &Event, _since: u64) -> Result<()> {
        Ok(())
    }
    /// How many events it wrote, where that is not the number of accesses.
    fn events(&self) -> Option<u64> {
        None
    }
    fn finish(self: Box<Self>) -> Result<()>;
}
