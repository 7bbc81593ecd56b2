//! Trials of a kernel, as often as the suite has them.

use std::time::{Duration, Instant};

use pagemill_model::random::Random;

use super::csr::Graph;
use crate::program::{Failure, Outcome, Params, Report};

/// Runs `trial` as often as the suite does, `full` times the scale. A trial returns how long its timed part took.
pub(super) fn trials(
    params: &Params,
    graph: &Graph,
    full: usize,
    mut trial: impl FnMut(&mut Random) -> Result<Duration, String>,
) -> Outcome {
    if graph.entries() == 0 {
        return Err(Failure::Outside(EMPTY.into()));
    }
    let trials = params.scaled(full);
    let mut random = Random::new(params.seed);
    let mut seconds = Vec::with_capacity(trials);
    for _ in 0..trials {
        seconds.push(trial(&mut random)?.as_secs_f64());
    }
    let all: f64 = seconds.iter().sum();
    Ok(Report {
        operations: (graph.entries() / 2 * trials) as u64,
        seconds: all,
        metrics: vec![
            ("vertices", graph.vertices as f64),
            ("edges", (graph.entries() / 2) as f64),
            ("trials", trials as f64),
            ("trial_seconds", all / trials as f64),
        ],
        check: format!("{trials} trials on a {} graph, each result verified", params.graph),
    })
}

/// How long `work` takes, and what it makes.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let started = Instant::now();
    let made = work();
    (started.elapsed(), made)
}

/// What is said of a graph without an edge.
pub(super) const EMPTY: &str = "the graph has no edge; take a larger --degree";
