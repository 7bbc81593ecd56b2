//! Ending what was started, before its time.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_kernel::process::signal;
use pagemill_model::Pid;

/// How long a command has to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks a command and what it has started to end, and sees to it that it does.
pub(crate) fn stop(child: &mut Child) -> Result<()> {
    // Whoever has ended meanwhile need not be told.
    let _ = signal::send_to_group(Pid(child.id()), signal::TERMINATE);
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = signal::send_to_group(Pid(child.id()), signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
