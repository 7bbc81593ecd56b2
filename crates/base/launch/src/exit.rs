//! How the binary ends: the exit codes that scripts may rely on.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | ok |
//! | 1 | a finding: a threshold passed, a regression |
//! | 2 | usage or error (of a wrapper: 125) |
//! | 3 | not supported on this machine |
//! | 4 | permission |
//! | 125, 126, 127 | a wrapper failed itself, could not execute, did not find the program (env(1)) |
//! | 128 + signal | ended by a signal, with an answer or with what was finished kept |
//!
//! A wrapper otherwise ends as its child did: with the same code, or by the same signal, which a shell shows as 128 +
//! signal. A verb is a wrapper where its line names a command whose status is passed on (`run`; `record`, `live` and
//! `frag induce` with `-- CMD`); then what is wrong before that has started, usage included, is 125, for 2 may be the
//! command's. `docs/exit-codes.md` says so to users.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::sync::OnceLock;

use pagemill_kernel::Kind;

/// How a verb ended, when it did not fail with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Ok,
    /// A finding.
    Finding,
    /// Wrong usage, or an error that has been said.
    Failed,
    /// Not supported on this machine; the verb has said why.
    Unsupported,
    /// A permission is missing; the verb has said which.
    Permission,
    /// A wrapper failed itself.
    WrapperFailed,
    /// A wrapper cannot execute the program.
    CannotExecute,
    /// A wrapper did not find the program.
    NotFound,
    /// A wrapper's child's code.
    Code(u8),
    /// Ended by this signal, with an answer or with what was finished kept.
    Interrupted(Interrupted),
    /// As a wrapper's child did, which this signal killed.
    Signal(i32),
}

impl Exit {
    /// As a wrapper's child ended.
    pub fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::WrapperFailed,
        }
    }

    /// The exit status; 0 of who is ended by a signal.
    pub fn status(self) -> u8 {
        match self {
            Self::Ok | Self::Signal(_) => 0,
            Self::Finding => 1,
            Self::Failed => 2,
            Self::Unsupported => 3,
            Self::Permission => 4,
            Self::WrapperFailed => 125,
            Self::CannotExecute => 126,
            Self::NotFound => 127,
            Self::Code(code) => code,
            Self::Interrupted(Interrupted(signal)) => of_signal(signal),
        }
    }
}

/// The code that a shell shows for who was ended by a signal.
fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The exit code that a shell would show for a child.
pub fn shown(status: ExitStatus) -> u8 {
    match Exit::of(status) {
        Exit::Signal(signal) => of_signal(signal),
        exit => exit.status(),
    }
}

/// The user or the system asked this process to end, by this signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted(pub i32);

impl Interrupted {
    /// The exit of who has an answer to give nevertheless: 128 and the signal's number.
    pub fn exit(self) -> Exit {
        Exit::Interrupted(self)
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The error that this process ends with.
static ERROR: OnceLock<String> = OnceLock::new();

/// Says an error with its chain of causes.
fn say(error: &anyhow::Error) {
    let text = format!("{error:#}");
    notice!("{text}");
    // There is one; a second would be of how it is told.
    let _ = ERROR.set(text);
}

/// What was said of the error that this process ends with, if that was said here.
pub fn said() -> Option<&'static str> {
    ERROR.get().map(String::as_str)
}

/// The outcome of a verb that `wraps` a command: our own error is 125.
///
/// # Errors
/// That of `outcome`, if it wraps no command.
pub fn of_wrapper(wraps: bool, outcome: anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    match outcome {
        Err(error) if wraps => {
            say(&error);
            Ok(Exit::WrapperFailed)
        }
        outcome => outcome,
    }
}

/// The outcome of a verb for which a missing permission has a code of its own.
///
/// # Errors
/// That of `outcome`, if it is not one of permission.
pub fn permitted(outcome: anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    match outcome {
        Err(error) if kind(&error) == Some(Kind::Permission) => {
            say(&error);
            Ok(Exit::Permission)
        }
        outcome => outcome,
    }
}

/// What the kernel refused, if that is the cause.
pub fn kind(error: &anyhow::Error) -> Option<Kind> {
    error.downcast_ref::<pagemill_kernel::Error>().map(pagemill_kernel::Error::kind)
}

/// Prints an error with its chain of causes and turns the outcome into the way in which this process ends.
pub fn report(outcome: anyhow::Result<Exit>) -> Exit {
    outcome.unwrap_or_else(|error| {
        say(&error);
        Exit::Failed
    })
}

/// The exit code, or the signal that this process is to be ended by.
pub fn code_of(exit: Exit) -> ExitCode {
    match exit {
        Exit::Signal(signal) => pagemill_kernel::process::signal::die_by(signal),
        exit => ExitCode::from(exit.status()),
    }
}
