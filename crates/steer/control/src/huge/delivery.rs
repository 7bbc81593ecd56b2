//! How the launcher reaches a program: by the library within one that it starts, or from outside, where it runs
//! already.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_kernel::process::Stat;
use pagemill_kernel::process::signal::Signals;
use pagemill_launch::library;
use pagemill_launch::program::{self, Replaces, Verdict};
use pagemill_launch::supervise::Companion as _;

use super::launcher::Launcher;
use super::sites::Sites;

/// Has a command, whose program is at `path`, load the library that does what the launcher decides, and the one that
/// notes call sites where the profile names some. A program that takes no library is helped from outside only, which is
/// said.
///
/// # Errors
/// The library is not found.
pub fn inside(launcher: &mut Launcher, path: &Path, command: &mut Command) -> Result<()> {
    if !launcher.needs_library() {
        return Ok(());
    }
    let search = std::env::var_os("PATH");
    if let Verdict::Refused(refusal) =
        program::inspect_for(path, search.as_deref(), Replaces::Nothing).verdict
    {
        notice!(
            "{} takes no prefault library: {}; it is helped from outside only",
            path.display(),
            refusal.reason
        );
        return Ok(());
    }
    let library = library::find_prefault()?;
    let preload = library::preload(&library, library::preloaded(command).as_deref());
    command.env("LD_PRELOAD", preload).env("PAGEMILL_PREFAULT", launcher.board_path());
    if launcher.needs_sites() {
        match sites(path, command) {
            Ok(sites) => launcher.know_sites(sites),
            Err(error) => notice!("rows of the profile that name a site have no effect: {error:#}"),
        }
    }
    Ok(())
}

/// The library that notes who asks for memory is written for x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn sites(_: &Path, _: &mut Command) -> Result<Sites> {
    anyhow::bail!("call sites are noted on x86-64 only")
}

/// Has the command note which code asks for large memory.
#[cfg(target_arch = "x86_64")]
fn sites(path: &Path, command: &mut Command) -> Result<Sites> {
    let mut ring = pagemill_record::recorders::sites::noted_by(path, command)?;
    Ok(Sites::new(Box::new(move || ring.read())))
}

/// Collapses what a running process, the one of `stat`, uses, until it ends or a signal comes.
///
/// # Errors
/// What was decided cannot be recorded, or a setting not be restored.
pub fn outside(
    mut launcher: Launcher,
    linux: &Linux,
    stat: &Stat,
    signals: &Signals,
) -> Result<()> {
    // One with the same number later is another process.
    let lives =
        || linux.stat(stat.pid).is_ok_and(|now| now.started == stat.started && now.state != 'Z');
    while lives() {
        let pause = launcher.tick()?;
        if signals.wait(pause)?.is_some() {
            break;
        }
    }
    launcher.stop()
}
