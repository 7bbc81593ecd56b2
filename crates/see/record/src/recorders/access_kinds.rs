//! `--with accesses` and `--with sites`: x86-64 only, for their code decodes its instructions or is written for it.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use pagemill_kernel::Linux;
use pagemill_model::EventKind;

use super::recorder::{Attached, Options, Process, Recorder, RecorderKind, Start};

/// The word `accesses`: samples of them, for the other ways of seeing accesses have loops of their own.
pub const ACCESSES: RecorderKind = RecorderKind {
    name: "accesses",
    about: "Which pages are touched, all of them, and by whom first (by itself)",
    writes: &[EventKind::Access, EventKind::Touched, EventKind::Allocation, EventKind::Mapping],
    pane: Some("heat"),
    start: Start::Suspended,
    attach: sample,
};

/// The word `sites`.
pub const SITES: RecorderKind = RecorderKind {
    name: "sites",
    about: "Which code of a command asks for memory of 1 MiB or more, for rows of a profile by call site",
    writes: &[EventKind::Allocation, EventKind::Mapping],
    pane: None,
    start: Start::With(note),
    attach: |_, _, _| {
        anyhow::bail!(
            "a running program cannot be made to load the library that notes call sites (start it: pagemill record \
             --with sites -- CMD)"
        )
    },
};

#[cfg(target_arch = "x86_64")]
fn sample(linux: &Linux, process: Process, options: &Options) -> Attached {
    let period = options.period.max(super::samples::LEAST_PERIOD);
    let Process { pid, started } = process;
    Ok(Some(Box::new(super::samples::AccessSamples::attach(linux, pid, period, started)?)))
}

#[cfg(target_arch = "x86_64")]
fn note(linux: &Linux, path: &Path, command: &mut Command) -> Result<Box<dyn Recorder>> {
    use anyhow::Context as _;
    let sites = super::sites::Sites::begin(linux, path, command);
    Ok(Box::new(sites.context("call sites cannot be noted")?))
}

#[cfg(not(target_arch = "x86_64"))]
fn sample(_: &Linux, _: Process, _: &Options) -> Attached {
    anyhow::bail!("accesses are sampled on x86-64 only")
}

#[cfg(not(target_arch = "x86_64"))]
fn note(_: &Linux, _: &Path, _: &mut Command) -> Result<Box<dyn Recorder>> {
    anyhow::bail!("call sites are noted on x86-64 only")
}
