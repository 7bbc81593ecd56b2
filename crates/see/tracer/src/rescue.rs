//! The last help for a program whose tracer, injector and mapper were all killed: whoever keeps its listener
//! ([`pagemill_kernel::process::keeper`]) makes its memory its own, as its injector would have done.
//!
//! ```text
//!  all threads stop, the one that asks with its call unmade ──► memory anonymous again ──► the memory file closed ──►
//!  detach: the call is made again
//! ```

use std::fs::{File, OpenOptions};
use std::time::{Duration, Instant};

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::pagemap::Pagemap;
use pagemill_kernel::process::ptrace::{self, Stop};
use pagemill_kernel::{Error, Kind, Linux, Result};
use pagemill_model::Pid;

use crate::calls::{CLOSE, call};
use crate::copy::make_own;
use crate::inject::{Injection, Site};
use crate::layout::{OURS, in_injected_code};
use crate::stopped::{calm, comes_out, restart_call};

/// How long threads may take to stop.
const STOP: Duration = Duration::from_secs(5);

/// Stopped threads of a process, let go at the end.
struct StoppedThreads(Vec<Pid>);

impl Drop for StoppedThreads {
    fn drop(&mut self) {
        for &thread in &self.0 {
            // It may have been killed.
            let _ = ptrace::detach(thread, 0);
        }
    }
}

/// Makes the memory of the process its own that `thread` is of, which waits in a call; `unmake` has it come back from
/// that unmade.
pub(crate) fn rescue(thread: Pid, unmake: &dyn Fn()) -> Result<()> {
    let linux = Linux::live();
    let pid = linux.thread_group(thread)?;
    let (memory, number) = memory_file(&linux, pid)?;
    let mut held = StoppedThreads(Vec::new());
    hold(&linux, pid, thread, &mut held, unmake)?;
    let own = |mapping: &Mapping| mapping.name.starts_with(OURS) && !in_injected_code(mapping);
    let site = Site::find(&linux, pid)?;
    let calm = calm(&held.0).ok_or_else(|| gone(pid))?;
    let injection = Injection::with_trampoline(calm, &site)?;
    let pagemap = Pagemap::open(&linux, pid)?;
    for mapping in linux.maps(pid)?.iter().filter(|mapping| own(mapping)) {
        make_own(pid, (mapping, &memory), &pagemap, |call| injection.one(call))?;
    }
    injection.one(&call(CLOSE, [number]))?;
    Ok(())
}

fn failed(action: &'static str, error: std::io::Error) -> Error {
    Error::io(action, "the memory file", error)
}

fn gone(pid: Pid) -> Error {
    Error::new(Kind::Gone, "let go", format_args!("process {pid}"), "it has ended")
}

/// The memory file of a process, and its number there.
fn memory_file(linux: &Linux, pid: Pid) -> Result<(File, i64)> {
    let directory = linux.process_file(pid, "fd");
    let entries = std::fs::read_dir(&directory)
        .map_err(|error| Error::io("list", directory.display(), error))?;
    for entry in entries.flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (true, Some(number)) = (target.to_string_lossy().starts_with(OURS), number) {
            let opened = OpenOptions::new().read(true).write(true).open(entry.path());
            return Ok((opened.map_err(|error| failed("open", error))?, number));
        }
    }
    Err(Error::new(Kind::Gone, "let go", format_args!("process {pid}"), "it has no memory file"))
}

/// Stops all threads of a process, of which `asks` waits in a call.
fn hold(
    linux: &Linux,
    pid: Pid,
    asks: Pid,
    held: &mut StoppedThreads,
    unmake: &dyn Fn(),
) -> Result<()> {
    let limit = Instant::now() + STOP;
    let mut waiting = Vec::new();
    let mut unmade = false;
    loop {
        let mut fresh = false;
        for thread in linux.threads(pid)? {
            if !held.0.contains(&thread) && ptrace::seize(thread, ptrace::FOLLOW).is_ok() {
                held.0.push(thread);
                waiting.push(thread);
                fresh = true;
                // One that has ended says so.
                let _ = ptrace::interrupt(thread);
            }
        }
        if !held.0.contains(&asks) {
            return Err(gone(asks));
        }
        if !std::mem::replace(&mut unmade, true) {
            unmake();
        }
        waiting.retain(|&thread| match ptrace::poll_one(thread) {
            Ok(Some(Stop::Signal(number))) => {
                // Any stop takes the place of the one that was asked for.
                let _ = ptrace::resume(thread, number);
                let _ = ptrace::interrupt(thread);
                true
            }
            Ok(Some(Stop::Interrupted)) if comes_out(thread) => true,
            Ok(Some(stop)) => {
                if thread == asks && stop == Stop::Interrupted {
                    restart_call(thread);
                }
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        if waiting.is_empty() && !fresh {
            return Ok(());
        }
        if Instant::now() >= limit {
            let object = format!("process {pid}");
            return Err(Error::new(Kind::Busy, "let go", object, "a thread does not stop"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
