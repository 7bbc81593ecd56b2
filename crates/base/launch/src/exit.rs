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
//!
//! A wrapper otherwise ends as its child did: same code, or 128 + signal. A verb is a wrapper where its line names a
//! command whose status is passed on (`run`; `record`, `live` and `frag induce` with `-- CMD`); then what is wrong
//! before that has started, usage included, is 125, for 2 may be the command's. `docs/exit-codes.md` says so to users.

use std::process::ExitCode;

use pagemill_kernel::Kind;

/// How a verb ended, when it did not fail with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Ok,
    /// A finding.
    Finding,
    /// Not supported on this machine; the verb has said why.
    Unsupported,
    /// A permission is missing; the verb has said which.
    Permission,
    /// This code: a wrapper's child's, or 125 to 127.
    Code(u8),
    /// As a wrapper's child did, which this signal killed.
    Signal(i32),
}

/// The outcome of a verb that `wraps` a command: our own error is 125.
pub fn of_wrapper(wraps: bool, outcome: anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    match outcome {
        Err(error) if wraps => {
            eprintln!("pagemill: {error:#}");
            Ok(Exit::Code(125))
        }
        outcome => outcome,
    }
}

/// The outcome of a verb for which a missing permission has a code of its own.
pub fn permitted(outcome: anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    match outcome {
        Err(error) if kind(&error) == Some(Kind::Permission) => {
            eprintln!("pagemill: {error:#}");
            Ok(Exit::Permission)
        }
        outcome => outcome,
    }
}

/// What the kernel refused, if that is the cause.
pub fn kind(error: &anyhow::Error) -> Option<Kind> {
    error.downcast_ref::<pagemill_kernel::Error>().map(pagemill_kernel::Error::kind)
}

/// Prints an error with its chain of causes and turns the outcome into the process's exit code.
pub fn code_of(outcome: anyhow::Result<Exit>) -> ExitCode {
    match outcome {
        Ok(Exit::Ok) => ExitCode::SUCCESS,
        Ok(Exit::Finding) => ExitCode::from(1),
        Ok(Exit::Unsupported) => ExitCode::from(3),
        Ok(Exit::Permission) => ExitCode::from(4),
        Ok(Exit::Code(code)) => ExitCode::from(code),
        Ok(Exit::Signal(signal)) => pagemill_kernel::signal::die_by(signal),
        Err(error) => {
            eprintln!("pagemill: {error:#}");
            ExitCode::from(2)
        }
    }
}
