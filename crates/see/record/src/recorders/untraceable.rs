//! Which programs are not traced, told before one is started or when a traced one executes it.
//!
//! | program | why |
//! |---|---|
//! | a debugger | it traces by ptrace itself, and a thread has one tracer |
//! | one that gains a privilege | it gains nothing under a user's tracer |
//! | one built with a sanitizer whose shadow is at a fixed place | no room for the tracer's memory |

use std::path::Path;

use anyhow::Result;
use pagemill_kernel::process::Capability;
use pagemill_kernel::{Linux, process::privilege};
use pagemill_launch::program;
use pagemill_model::Pid;

/// A thread has one tracer, and the program of one of these would be ours.
const DEBUGGERS: [&str; 6] = ["gdb", "gdbserver", "lldb", "ltrace", "rr", "strace"];

/// Why a program is not started to be traced, if it is not.
///
/// # Errors
/// The program, or this process, cannot be looked at.
pub fn started(path: &Path) -> Result<Option<String>> {
    let shown = path.display();
    if path.file_name().is_some_and(|name| DEBUGGERS.iter().any(|debugger| name == *debugger)) {
        return Ok(Some(format!(
            "{shown} traces a program by ptrace, which is traced already then (record the program itself)"
        )));
    }
    // A user's tracer takes its privileges from a program; root's leaves them to it.
    let me = pagemill_launch::context::machine().status(Pid::own())?;
    if let Some(gain) = privilege::gain(path)?
        && !me.can(Capability::SysPtrace)
    {
        let bit = program::gain(gain);
        return Ok(Some(format!(
            "{shown} is {bit}, and it gains nothing while it is traced by a user (run as root)"
        )));
    }
    let search = std::env::var_os("PATH");
    let inspected = program::inspect_for(path, search.as_deref(), program::Replaces::Nothing);
    let sanitized = inspected.chain.last().and_then(|program| {
        let sanitizer = program::sanitizer_with_fixed_layout(program)?;
        let (program, crowded) = (program.display(), crowded(sanitizer));
        Some(format!("{program} {crowded} (use a build without it, or --backend sample)"))
    });
    Ok(sanitized)
}

/// Why a program of this sanitizer is not traced.
fn crowded(sanitizer: &str) -> String {
    format!(
        "is built with {sanitizer}, whose shadow takes fixed addresses and leaves no room for the tracer's memory"
    )
}

/// Why a program that a traced process has just executed may not be traced, if it may not.
pub fn executed(linux: &Linux, pid: Pid) -> Option<String> {
    let file = linux.process_file(pid, "exe");
    program::sanitizer_with_fixed_layout(&file)
        .map(|sanitizer| format!("it {}", crowded(sanitizer)))
}
