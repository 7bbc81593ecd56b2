//! What `record --with` can record: one recorder a word, all writing into one recording.
//!
//! ```text
//!  attach (program held, if the recorder wants its first instruction) ──► collect, collect, … ──► finish
//! ```
//!
//! A recorder looks at the process when its interval is over and writes what it saw; the loop that
//! calls it (`record`) owns the clock, the signals and the end.

#[cfg(target_arch = "x86_64")]
pub mod accesses;
#[cfg(target_arch = "x86_64")]
pub mod allocations;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod code;
#[cfg(target_arch = "x86_64")]
pub mod exact;
pub mod faults;
pub mod frag;
pub mod heap;
pub mod mappings;
#[cfg(target_arch = "x86_64")]
mod nearest;
#[cfg(target_arch = "x86_64")]
pub mod samples;
#[cfg(target_arch = "x86_64")]
pub mod sites;
#[cfg(target_arch = "x86_64")]
mod surroundings;
#[cfg(target_arch = "x86_64")]
pub mod written;

use std::time::Duration;

use anyhow::Result;
use pagemill_model::recording::Writer;

/// One kind of thing that is recorded.
pub trait Recorder {
    /// Time between two collections.
    fn interval(&self) -> Duration;

    /// Looks at the process and writes what it saw. A process that has ended is no error.
    fn collect(&mut self, writer: &mut Writer) -> Result<()>;

    /// A moment of the raster went by without one: the loop was late.
    fn missed(&mut self, _writer: &mut Writer) {}

    /// Writes what is left and completes the header. The process may have ended.
    fn finish(&mut self, writer: &mut Writer) -> Result<()>;

    /// How much there is so far, such as `120 samples`.
    fn amount(&self) -> String;

    /// Whether that is nothing at all, where nothing is no answer.
    fn is_empty(&self) -> bool {
        false
    }
}
