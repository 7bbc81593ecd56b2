//! `/proc/PID/oom_score_adj`: whom the kernel ends first when memory runs out, -1000 (never) to 1000
//! (first).

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::fs::{self, Mode, OFlags};

use pagemill_model::Pid;

use crate::{Linux, Result};

/// Gives the program that `command` will start this adjustment.
pub fn set_in(command: &mut Command, adjustment: i32) {
    let value = adjustment.to_string();
    let set = move || {
        let file =
            fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(file, value.as_bytes())?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes async-signal-safe calls only and neither
    // allocates nor locks: its text was made before.
    unsafe { command.pre_exec(set) };
}

impl Linux {
    /// The adjustment of process `pid`.
    ///
    /// # Errors
    /// The process has ended, or the file holds no number.
    pub fn oom_score_adj(&self, pid: Pid) -> Result<i32> {
        let text = self.read_of(pid, "oom_score_adj")?;
        let malformed = || crate::Error::malformed("oom_score_adj", format_args!("{text:?}"));
        text.trim().parse().map_err(|_| malformed())
    }

    /// Sets the adjustment of process `pid`. Anyone may raise their own.
    ///
    /// # Errors
    /// The process has ended, or the adjustment is lower than the caller may set.
    pub fn set_oom_score_adj(&self, pid: Pid, adjustment: i32) -> Result<()> {
        self.write(format!("/proc/{pid}/oom_score_adj"), &adjustment.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_can_be_the_first_to_go() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let linux = Linux::live();
        linux.set_oom_score_adj(Pid(child.id()), 1000).unwrap();
        assert_eq!(linux.oom_score_adj(Pid(child.id())).unwrap(), 1000);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_program_starts_with_the_adjustment_that_it_is_given() {
        let mut command = Command::new("cat");
        set_in(command.arg("/proc/self/oom_score_adj"), 777);
        assert_eq!(command.output().unwrap().stdout, b"777\n");
    }
}
