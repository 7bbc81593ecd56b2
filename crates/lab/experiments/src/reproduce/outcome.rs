//! What came of a cell, if its arm was what it says.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::arm::{Allocator, Arm};
use super::target::{Observations, Sample, heap_metrics};
use pagemill_launch::prepare;
use pagemill_launch::stats_page::Snapshot;
use pagemill_report::heap as heap_report;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Results by name, in bytes, seconds and counts.
    pub metrics: BTreeMap<String, f64>,
    /// Memory over time.
    pub samples: Vec<Sample>,
    /// What a reader should know: back end in force, version of a bundled server.
    pub notes: Vec<String>,
    /// A digest of the output, where arms must agree on it.
    pub digest: Option<u64>,
    /// What else came of it, in the words of its experiment.
    pub part: Option<Value>,
}

impl Outcome {
    /// Of what an experiment says in words of its own.
    ///
    /// # Errors
    /// For what is no JSON.
    pub fn of<T: Serialize>(part: &T) -> Result<Self> {
        Ok(Self { part: Some(serde_json::to_value(part)?), ..Self::default() })
    }

    /// What the experiment said, if it is of this kind.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        T::deserialize(self.part.as_ref()?).ok()
    }
}

/// What is said of a run in which nothing could be measured.
pub const TOO_SHORT: &str =
    "too short at this scale: the program ended before its memory was read once (a larger --scale)";

impl Observations {
    /// Whether a run was over before anything could be told of it: one or two looks may both be before the loader has
    /// mapped the arm's library, or before its heap has started.
    pub(super) fn is_too_short(&self, arm: &Arm) -> bool {
        let begun = match &arm.allocator {
            Allocator::Library(_) => self.library,
            Allocator::Ours { .. } => self.heap.is_some(),
            Allocator::Bundled { .. } | Allocator::Own => true,
        };
        self.samples.is_empty() || (!begun && self.samples.len() < 3)
    }
}

/// Makes sure that the arm was what it says: its library loaded, its heap started.
///
/// # Errors
/// It was not, or the program ended before its memory was read once.
pub fn checked(arm: &Arm, seen: Observations) -> Result<Outcome> {
    let Observations { samples, heap, library } = seen;
    ensure!(!samples.is_empty(), "the program ended before its memory was read once");
    let mut outcome = Outcome { samples, ..Outcome::default() };
    match &arm.allocator {
        Allocator::Library(path) => {
            ensure!(library, "{} was not loaded into the program", path.display());
        }
        Allocator::Ours { config, ksm, .. } => {
            let heap = heap.context("no heap of ours started in the program")?;
            ensure!(
                heap.config_name().is_none_or(|name| name == *config),
                "the heap runs as {:?}, not as {config:?}",
                heap.config_name()
            );
            let (backend, barrier) = (heap.backend_name(), heap.barrier_name());
            if prepare::compacts(config) {
                outcome.notes.push(in_force(&heap, backend, barrier));
                let wanted = if *ksm { "ksm" } else { "remap" };
                // A heap too small to compact has no back end, which is no contradiction.
                let other = backend.filter(|&backend| backend != wanted && backend != "none");
                if let Some(other) = other {
                    bail!("the heap compacts by {other}, not by {wanted}");
                }
            }
            outcome.metrics.extend(heap_metrics(&heap));
        }
        Allocator::Bundled { .. } | Allocator::Own => {}
    }
    Ok(outcome)
}

fn in_force(heap: &Snapshot, backend: Option<&str>, barrier: Option<&str>) -> String {
    let reasons = heap_report::degradations(heap.degraded.unwrap_or(0));
    let mut text = format!(
        "back end {}, barrier {}",
        backend.unwrap_or("unknown"),
        barrier.unwrap_or("unknown")
    );
    if !reasons.is_empty() {
        text.push_str(&format!("; degraded: {}", reasons.join(", ")));
    }
    text
}

/// The last line with something in it.
pub fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, pss: u64) -> Sample {
        Sample { seconds, pss, charge: Some(pss + 1) }
    }

    #[test]
    fn an_arm_without_its_library_is_an_error() {
        let seen = || Observations { samples: vec![sample(0.0, 5)], ..Observations::default() };
        let arm = |allocator| Arm { name: "glibc", allocator };
        let library = checked(&arm(Allocator::Library("/lib/x.so".into())), seen());
        assert!(library.unwrap_err().to_string().contains("/lib/x.so was not loaded"));
        let ours = Allocator::Ours { library: "l".into(), config: "1y", ksm: false };
        assert!(checked(&arm(ours), seen()).unwrap_err().to_string().contains("no heap of ours"));
    }

    /// Such runs had failed: nothing was read, or all that was read was before the loader had come to the library.
    #[test]
    fn a_run_that_was_over_too_soon_is_told_from_an_arm_that_is_not_what_it_says() {
        let arm = |allocator| Arm { name: "glibc", allocator };
        let library = arm(Allocator::Library("/lib/x.so".into()));
        let seen = |count: u32, library| {
            let samples = (0..count).map(|at| sample(f64::from(at), 5)).collect();
            Observations { samples, library, ..Observations::default() }
        };
        assert!(seen(0, false).is_too_short(&library) && seen(2, false).is_too_short(&library));
        assert!(!seen(3, false).is_too_short(&library), "that is an arm without its library");
        assert!(!seen(1, true).is_too_short(&library));
        let ours = arm(Allocator::Ours { library: "l".into(), config: "1y", ksm: false });
        assert!(seen(1, true).is_too_short(&ours), "its heap has not started");
        assert!(seen(0, false).is_too_short(&arm(Allocator::Own)));
        assert!(!seen(1, false).is_too_short(&arm(Allocator::Own)));
    }

    #[test]
    fn a_heap_that_runs_otherwise_than_asked_is_an_error() {
        let ours = Allocator::Ours { library: "l".into(), config: "1y", ksm: false };
        let arm = Arm { name: "1y-remap", allocator: ours };
        let with = |config, backend| {
            let heap =
                Snapshot { config: Some(config), backend: Some(backend), ..Snapshot::default() };
            checked(
                &arm,
                Observations { samples: vec![sample(0.0, 5)], heap: Some(heap), library: true },
            )
        };
        assert!(with(4, 2).is_ok());
        assert!(with(4, 1).unwrap_err().to_string().contains("compacts by ksm"));
        assert!(with(0, 0).unwrap_err().to_string().contains("runs as Some(\"0n\")"));
    }
}
