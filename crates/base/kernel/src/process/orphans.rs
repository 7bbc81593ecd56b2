//! Processes that outlive their parent: they become children of the nearest ancestor that asked for them
//! (prctl(2), `PR_SET_CHILD_SUBREAPER`), so that whoever started a program sees what it leaves behind, a daemon among
//! it, and can end it.

use std::time::{Duration, Instant};

use pagemill_model::Pid;

use crate::error::done;
use crate::process::signal::send;
use crate::{Linux, Result};

/// Makes this process the one that orphans among its descendants become children of.
///
/// # Errors
/// The kernel refuses it.
pub fn adopt() -> Result<()> {
    // SAFETY: this option takes numbers only.
    done(
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) },
        "set",
        "PR_SET_CHILD_SUBREAPER",
    )
}

/// Takes note of a child that has ended; whether it has.
fn reap(pid: Pid) -> bool {
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    let done = unsafe { libc::waitpid(pid.0 as libc::pid_t, &mut status, libc::WNOHANG) };
    // Not our child, or no longer: nothing is left to wait for.
    done != 0
}

/// The children of this process that have not ended, `known` ones left out. Those that have are waited for, so what
/// they used counts as used by children that have ended.
///
/// # Errors
/// The children cannot be listed.
pub fn left(linux: &Linux, known: &[Pid]) -> Result<Vec<Pid>> {
    let mut children = linux.children(Pid::own())?;
    children.retain(|pid| !known.contains(pid) && !reap(*pid));
    Ok(children)
}

/// How long a process has to end when it is asked to, before it is killed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Ends all children of this process but `known` ones, and what these leave behind in turn.
///
/// # Errors
/// The children cannot be listed, or one does not end.
pub fn end(linux: &Linux, known: &[Pid]) -> Result<()> {
    let begun = Instant::now();
    let mut asked = Vec::new();
    loop {
        let left = left(linux, known)?;
        if left.is_empty() {
            return Ok(());
        }
        let late = begun.elapsed() > PATIENCE;
        for pid in left {
            if late {
                // It may have ended by itself.
                let _ = send(pid, libc::SIGKILL);
            } else if !asked.contains(&pid) {
                let _ = send(pid, libc::SIGTERM);
                asked.push(pid);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// In a process of its own: the children of this one are those of the tests beside.
    #[test]
    fn what_a_program_leaves_behind_is_found_and_ended() {
        if std::env::var_os("ORPHANS_TEST").is_none() {
            let me = std::env::current_exe().unwrap();
            let name = "process::orphans::tests::what_a_program_leaves_behind_is_found_and_ended";
            let mut again = Command::new(me);
            again.args(["--exact", name, "--test-threads=1"]).env("ORPHANS_TEST", "1");
            let done = again.output().unwrap();
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        adopt().unwrap();
        let linux = Linux::live();
        let daemon = "setsid sleep 1000 >/dev/null 2>&1 & exit 0";
        assert!(Command::new("sh").args(["-c", daemon]).status().unwrap().success());
        let found = left(&linux, &[]).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(left(&linux, &found).unwrap().is_empty());
        end(&linux, &[]).unwrap();
        assert!(left(&linux, &[]).unwrap().is_empty());
        assert!(linux.stat(found[0]).is_err(), "it is gone, and waited for");
    }
}
