//! The error of this crate: what failed, on what, why, and what to do about it.

use std::fmt;
use std::io;

/// What went wrong, in words that a program can match on. Kinds are only ever added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The file or interface does not exist.
    NotFound,
    /// The process that was asked about has ended.
    Gone,
    /// The caller lacks a permission.
    Permission,
    /// This kernel does not have the interface, or it is switched off.
    Unsupported,
    /// Something else holds the resource.
    Busy,
    /// The kernel, a limit or a cgroup refused memory.
    OutOfMemory,
    /// The kernel's answer was not in the documented form.
    Malformed,
    /// Anything else.
    Other,
}

/// What helps who may not look into a process: root is kept out of few, and then by something else.
pub(crate) fn not_permitted() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "it is kept from root too: by a container's capabilities, a security module or another user namespace; see \
         pagemill doctor"
    } else {
        "run as root or as the user who owns the process; see pagemill doctor"
    }
}

impl Kind {
    /// The kind of an operating system error.
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH) => Self::Gone,
            Some(libc::EPERM | libc::EACCES | libc::EROFS) => Self::Permission,
            Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::ENODEV | libc::ENXIO) => Self::Unsupported,
            Some(libc::EBUSY | libc::EEXIST | libc::EAGAIN) => Self::Busy,
            Some(libc::ENOMEM) => Self::OutOfMemory,
            Some(libc::ENOENT | libc::ENOTDIR) => Self::NotFound,
            _ => Self::Other,
        }
    }
}

/// A call to the kernel that failed.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    kind: Kind,
    action: &'static str,
    object: String,
    reason: String,
    advice: Option<String>,
    /// What the system reported; `reason` says it, so that it is no source, which would be printed after it.
    system: Option<io::Error>,
}

impl Error {
    /// The operating system refused `action` on `object`.
    pub fn io(action: &'static str, object: impl fmt::Display, error: io::Error) -> Self {
        Self {
            kind: Kind::of(&error),
            action,
            object: object.to_string(),
            reason: describe(&error),
            advice: None,
            system: Some(error),
        }
    }

    /// The last system call of this thread, which was `action` on `object`, failed.
    pub(crate) fn last(action: &'static str, object: impl fmt::Display) -> Self {
        Self::io(action, object, io::Error::last_os_error())
    }

    /// The content of `object` could not be understood.
    pub(crate) fn malformed(object: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::new(Kind::Malformed, "understand", object, reason)
    }

    /// An error that no system call reported.
    pub fn new(
        kind: Kind,
        action: &'static str,
        object: impl fmt::Display,
        reason: impl fmt::Display,
    ) -> Self {
        Self {
            kind,
            action,
            object: object.to_string(),
            reason: reason.to_string(),
            advice: None,
            system: None,
        }
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// What went wrong, in a form to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The operating system's error number, if it reported one.
    pub fn errno(&self) -> Option<i32> {
        self.system.as_ref().and_then(io::Error::raw_os_error)
    }

    /// Why it failed, without what and where.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}", self.action, self.object, self.reason)?;
        match &self.advice {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}

/// The C library's text for an error, without Rust's "(os error N)".
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}

/// The result of a call to the kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// What a call did that answers 0.
pub(crate) fn done(
    answer: libc::c_int,
    action: &'static str,
    object: impl fmt::Display,
) -> Result<()> {
    if answer == 0 { Ok(()) } else { Err(Error::last(action, object)) }
}

/// Turns what is not found into an absent value: a file that this kernel does not have yet.
pub(crate) fn present<T>(value: Result<T>) -> Result<Option<T>> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_what_on_what_why_and_what_to_do() {
        let refused = io::Error::from_raw_os_error(libc::EACCES);
        let error = Error::io("open", "/dev/userfaultfd", refused)
            .advise("run: chmod o+rw /dev/userfaultfd");
        assert_eq!(
            error.to_string(),
            "cannot open /dev/userfaultfd: permission denied (run: chmod o+rw /dev/userfaultfd)"
        );
        assert_eq!(error.kind(), Kind::Permission);
        assert_eq!(error.errno(), Some(libc::EACCES));
    }

    #[test]
    fn an_error_without_a_system_call_has_no_number() {
        let error = Error::malformed("/proc/1/maps", "line 3 has no address");
        assert_eq!(error.to_string(), "cannot understand /proc/1/maps: line 3 has no address");
        assert_eq!((error.kind(), error.errno()), (Kind::Malformed, None));
    }
}
