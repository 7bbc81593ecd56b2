//! Heaps of running programs: finding one below a process, and asking it for a compaction pass.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pagemill_kernel::Linux;
use pagemill_launch::prepare;
use pagemill_launch::stats_page::{Page, locate};
use pagemill_model::{Bytes, Nanos, Pid};
use pagemill_report::heap::degradations;

/// How long a requested pass may take. It works in slices beside the program, which may be busy.
const COMPACT_PATIENCE: Duration = Duration::from_secs(60);

/// How long a wrapper's program is waited for: it may be about to be started, and to load the library.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// The program that runs under the wrapper `pid`: the topmost one that has a heap.
///
/// # Errors
/// None comes up within some seconds, or the wrapper ends.
pub fn under_wrapper(linux: &Linux, pid: Pid) -> Result<Pid> {
    let begun = Instant::now();
    loop {
        if let Some(program) = below(linux, pid).first() {
            return Ok(*program);
        }
        if begun.elapsed() > START_PATIENCE || linux.stat(pid).is_err() {
            bail!("process {pid} is pagemill itself, and no program with a heap runs under it");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Descendants of `pid` that run on the library, nearest first.
pub fn below(linux: &Linux, pid: Pid) -> Vec<Pid> {
    let mut found = linux.descendants(&[pid]).split_off(1);
    found.retain(|child| matches!(locate(linux, *child), Ok(Some(_))));
    found
}

/// Asks the heap of a process, whose statistics are on this page, for a pass and waits for it; what it gained.
///
/// # Errors
/// The process has ended, its heap has not started or does not compact, or no pass ends in time.
pub fn compact(page: &Page, pid: Pid) -> Result<String> {
    let Some(before) = page.read()? else {
        bail!("the heap of process {pid} has not started: there is nothing to compact")
    };
    if before.config_name().is_some_and(|name| !prepare::compacts(name)) {
        bail!(
            "the heap of process {pid} does not compact: its configuration is {} (start the program with: \
             pagemill run --heap compact -- CMD)",
            before.config_name().unwrap_or("unknown")
        );
    }
    let request = page.request_compaction()?;
    let begun = Instant::now();
    let after = loop {
        thread::sleep(Duration::from_millis(5));
        match page.read()? {
            Some(now) if now.request_done.is_some_and(|done| done >= request) => break now,
            _ if begun.elapsed() > COMPACT_PATIENCE => bail!(
                "the heap of process {pid} has not compacted within {} s: {}",
                COMPACT_PATIENCE.as_secs(),
                degradations(before.degraded.unwrap_or(0)).first().map_or(
                    "its helper thread is not running or the program is stopped",
                    String::as_str
                )
            ),
            _ => {}
        }
    };
    let size = |bytes: Option<u64>| Bytes(bytes.unwrap_or(0)).plain();
    let time = Nanos::from(begun.elapsed());
    Ok(format!(
        "compacted in {}: footprint {} -> {}",
        time.plain(),
        size(before.footprint_bytes),
        size(after.footprint_bytes)
    ))
}
