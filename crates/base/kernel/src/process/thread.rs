//! Starting threads, of which a user may have no more (`ulimit -u`, a control group).

use std::thread::{Builder, JoinHandle};

use crate::{Error, Result, process::limits};

/// As [`std::thread::spawn`], which panics where there are no more threads.
///
/// # Errors
/// No more threads may be started.
pub fn start<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    Builder::new().spawn(run).map_err(|error| match limits::advice(&error) {
        Some(advice) => Error::io("start", "a thread", error).advise(advice),
        None => Error::io("start", "a thread", error),
    })
}
