//! Threads of workloads. Their number is part of what is measured, so none does without.

use std::io::Write as _;
use std::thread::{Builder, Scope, ScopedJoinHandle};

/// As [`Scope::spawn`], which panics where there are no more threads (`ulimit -u`): the process says so and ends
/// with 2.
pub(crate) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    Builder::new().spawn_scoped(scope, work).unwrap_or_else(|error| {
        // Who reads it may be gone.
        let _ = writeln!(
            std::io::stderr(),
            "pagemill: cannot start a thread: {error} (raise the limit on processes: ulimit -u)"
        );
        std::process::exit(2)
    })
}
