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
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// With what it came from in the alternate form (`{:#}`).
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) if f.alternate() => write!(f, ": {source}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk was "cannot write PART" and no more.
    #[test]
    fn an_error_says_why_where_that_is_asked_for() {
        let full = Error::io("write", Path::new("part"), io::Error::from_raw_os_error(28));
        assert_eq!(full.to_string(), "cannot write part");
        assert!(format!("{full:#}").contains("cannot write part: No space left on device"));
    }
}
