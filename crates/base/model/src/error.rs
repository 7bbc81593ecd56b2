//! The error of this crate.

use std::fmt;
use std::io;
use std::path::Path;

/// What went wrong, in words that a program can match on. Kinds are only ever added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The path is not a recording.
    NoRecording,
    /// The recording was written by a newer pagemill.
    Newer,
    /// A file of the recording cannot be understood.
    Damaged,
    /// The target exists and overwriting was not asked for.
    Exists,
    /// The operating system refused.
    Io,
    /// A quantity is not in the documented form.
    Unit,
    /// A source of events failed; the message is the source's own.
    Source,
}

/// An error with what failed, on what, and why.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: Kind,
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error with this message.
    pub fn new(kind: Kind, message: impl fmt::Display) -> Self {
        Self { kind, message: message.to_string(), source: None }
    }

    /// The operating system refused `action` on `path`.
    pub(crate) fn io(action: &str, path: &Path, error: io::Error) -> Self {
        let message = format!("cannot {action} {}", path.display());
        Self { kind: Kind::Io, message, source: Some(Box::new(error)) }
    }

    /// The file at `path` cannot be understood.
    pub(crate) fn damaged(path: &Path, why: impl fmt::Display) -> Self {
        Self::new(Kind::Damaged, format_args!("{} is damaged: {why}", path.display()))
    }

    /// What went wrong, in a form to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// The result of reading or writing a recording.
pub type Result<T> = std::result::Result<T, Error>;
