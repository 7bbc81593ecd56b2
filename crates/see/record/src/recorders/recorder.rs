//! What every recorder is, what is asked of it, and how it comes to its process.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{EventKind, Nanos, Pid};

use super::faults::options::Options as FaultOptions;

/// One kind of thing that is recorded.
pub trait Recorder {
    /// Time between two collections.
    fn interval(&self) -> Duration;

    /// Says in the header of a recording that is about to begin what is known by now.
    fn begin(&self, _meta: &mut Meta) {}

    /// Looks at the process and writes what it saw. A process that has ended is no error.
    ///
    /// # Errors
    /// What was seen cannot be written, or the process not be looked into.
    fn collect(&mut self, writer: &mut Writer) -> Result<()>;

    /// Somebody is about to see what there is: writes what is known by now and held back for a later moment.
    ///
    /// # Errors
    /// As of [`Recorder::collect`].
    fn flush(&mut self, _writer: &mut Writer) -> Result<()> {
        Ok(())
    }

    /// Pages are about to be marked as not accessed: looks at what would count as accessed by that, and at other times
    /// only if nobody marks pages ([`Options::marks`]).
    ///
    /// # Errors
    /// As of [`Recorder::collect`].
    fn before_marks(&mut self, _writer: &mut Writer) -> Result<()> {
        Ok(())
    }

    /// A moment of the raster went by without one: the loop was late.
    fn missed(&mut self, _writer: &mut Writer) {}

    /// Writes what is left and completes the header. The process may have ended.
    ///
    /// # Errors
    /// As of [`Recorder::collect`].
    fn finish(&mut self, writer: &mut Writer) -> Result<()>;

    /// How much there is so far, such as `120 samples`.
    fn amount(&self) -> String;

    /// Whether that is nothing at all, where nothing is no answer.
    fn is_empty(&self) -> bool {
        false
    }
}

/// What is asked of recorders.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time between samples.
    pub interval: Duration,
    /// Of page faults.
    pub faults: FaultOptions,
    /// Of samples of accesses: time between two of a thread.
    pub period: Nanos,
    /// A command runs on its own malloc, not on pagemill's heap.
    pub own_malloc: bool,
    /// Pages are marked as not accessed now and then.
    pub marks: bool,
}

/// The process that is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// It was started to be recorded.
    pub started: bool,
}

/// How a program is started for a recorder.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// As it is; the recorder is attached when it runs.
    Plain,
    /// On the compacting heap; the recorder is attached when it runs.
    OnHeap,
    /// Suspended before its first instruction until the recorder is attached.
    Suspended,
    /// With what the recorder adds to its command; the program is at the path.
    With(fn(&Linux, &Path, &mut Command) -> Result<Box<dyn Recorder>>),
}

/// A recorder that follows a process; nothing if that has ended.
pub type Attached = Result<Option<Box<dyn Recorder>>>;

/// A word of `record --with`.
#[derive(Clone, Copy, Debug)]
pub struct RecorderKind {
    /// The word.
    pub name: &'static str,
    /// What it records.
    pub about: &'static str,
    /// The kinds of events that it writes.
    pub writes: &'static [EventKind],
    /// What `live` has it for, as it says where that cannot be measured; nothing where it has no use for it.
    pub pane: Option<&'static str>,
    /// How a program is started for it.
    pub start: Start,
    /// Begins to follow a process.
    pub attach: fn(&Linux, Process, &Options) -> Attached,
}
