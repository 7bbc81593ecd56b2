//! Recordings: a directory with `meta.json` and one Parquet dataset for each kind of event.
//!
//! ```text
//!  pagemill-redis-server.4711/
//!    meta.json                              command, kernel, clock, what was not measured, losses
//!    heap/part-00000-<checksum>.parquet     written under a name that starts with a dot, and
//!    heap/part-00001-<checksum>.parquet     renamed into place when whole
//! ```
//!
//! Events of all kinds are read back as one sequence, by their stamps.
//!
//! Always true: a file under its final name is whole, so a killed run keeps all but its last rows;
//! `meta.json` says `recording` until the writer has finished, so a reader knows that the end is
//! missing; it counts the finished parts and their rows, so a reader knows which are gone; a part
//! whose content does not match the checksum in its name is refused before it is decoded, and so are header and
//! summary by theirs ([`seal`]); nothing that is not a recording is ever removed.

use crate::digest::Digest;

mod buffer;
mod follower;
mod meta;
mod reader;
mod redact;
mod seal;
mod writer;

pub(crate) use buffer::{Buffer, buffers};
pub use follower::Follower;
pub use meta::{Losses, Meta, NotMeasured, Parts, SCHEMA, State};
pub use reader::{Missing, Reader};
pub use redact::Redactor;
pub use seal::keep_summary;
pub use writer::Writer;

/// Name of the file that makes a directory a recording.
pub(crate) const META: &str = "meta.json";

/// Name of the file in which what millions of events add up to is kept, so that they are read once.
pub(crate) const SUMMARY: &str = "summary.json";

/// Checksum of a part (XXH3, 64 bits): against damage, not against malice.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

/// Whether this is the content that a checksum is of; recordings had another one before (FNV-1a, byte by byte).
pub(crate) fn is_of(bytes: &[u8], sum: u64) -> bool {
    checksum(bytes) == sum || Digest::of(bytes) == sum
}

/// File name of part `number` with this content.
pub(crate) fn part_name(number: u64, bytes: &[u8]) -> String {
    format!("part-{number:05}-{:016x}.parquet", checksum(bytes))
}

/// What the name of a part says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartName {
    pub(crate) number: u64,
    pub(crate) checksum: u64,
}

/// That of a part; `None` for any other file.
pub(crate) fn parse_part_name(name: &str) -> Option<PartName> {
    let (number, checksum) =
        name.strip_prefix("part-")?.strip_suffix(".parquet")?.split_once('-')?;
    let (number, checksum) = (number.parse().ok()?, u64::from_str_radix(checksum, 16).ok()?);
    Some(PartName { number, checksum })
}

#[cfg(test)]
mod tests;
