//! `gap-bc`: betweenness centrality, approximated from four sources (Brandes, 2001): shortest paths are counted level
//! by level, and on the way back each vertex takes its share from those behind it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::csr::Graph;
use super::trial::{EMPTY, timed, trials};
use crate::program::{Outcome, Params};
use crate::team;

const TRIALS: usize = 16;
/// Sources of a trial.
const SOURCES: usize = 4;
const TOLERANCE: f64 = 1e-9;
const NONE: u32 = u32::MAX;

pub(super) fn run(params: &Params) -> Outcome {
    let graph = Graph::of(params);
    trials(params, &graph, TRIALS, |random| {
        let sources: Option<Vec<u32>> = (0..SOURCES).map(|_| graph.source(random)).collect();
        let sources = sources.ok_or(EMPTY)?;
        let (time, scores) = timed(|| centrality(&graph, &sources, params.threads));
        verify(&scores, &serial(&graph, &sources))?;
        Ok(time)
    })
}

/// Numbers that one thread sets and others read after it was joined.
struct Shared(Vec<AtomicU64>);

impl Shared {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    fn get(&self, at: u32) -> f64 {
        f64::from_bits(self.0[at as usize].load(Relaxed))
    }

    fn set(&self, at: u32, value: f64) {
        self.0[at as usize].store(value.to_bits(), Relaxed);
    }
}

/// The score of each vertex, of the highest 1.
fn centrality(graph: &Graph, sources: &[u32], threads: usize) -> Vec<f64> {
    let scores = Shared::new(graph.vertices);
    for &source in sources {
        let depths: Vec<AtomicU32> = graph.all().map(|_| AtomicU32::new(NONE)).collect();
        let depth = |vertex: u32| depths[vertex as usize].load(Relaxed);
        let paths = Shared::new(graph.vertices);
        let shares = Shared::new(graph.vertices);
        depths[source as usize].store(0, Relaxed);
        paths.set(source, 1.0);
        let mut levels = vec![vec![source]];
        while let Some(level) = levels.last().filter(|level| !level.is_empty()) {
            let next = levels.len() as u32;
            let found = team::each(team::ranges(level.len(), threads), |range| {
                let mut found = Vec::new();
                for &to in level[range].iter().flat_map(|&from| graph.neighbours(from)) {
                    let own = &depths[to as usize];
                    if own.load(Relaxed) == NONE
                        && own.compare_exchange(NONE, next, Relaxed, Relaxed).is_ok()
                    {
                        found.push(to);
                    }
                }
                found
            });
            let level: Vec<u32> = found.into_iter().flatten().collect();
            team::each(team::ranges(level.len(), threads), |range| {
                for &vertex in &level[range] {
                    let before = graph.neighbours(vertex).iter().copied();
                    let before = before.filter(|&from| depth(from) == next - 1);
                    paths.set(vertex, before.map(|from| paths.get(from)).sum());
                }
            });
            levels.push(level);
        }
        for (at, level) in levels.iter().enumerate().rev() {
            team::each(team::ranges(level.len(), threads), |range| {
                for &vertex in &level[range] {
                    let behind = graph.neighbours(vertex).iter().copied();
                    let behind = behind.filter(|&to| depth(to) == at as u32 + 1);
                    let sum: f64 = behind.map(|to| (1.0 + shares.get(to)) / paths.get(to)).sum();
                    let share = paths.get(vertex) * sum;
                    shares.set(vertex, share);
                    if vertex != source {
                        scores.set(vertex, scores.get(vertex) + share);
                    }
                }
            });
        }
    }
    normalised(graph.all().map(|vertex| scores.get(vertex)).collect())
}

fn normalised(mut scores: Vec<f64>) -> Vec<f64> {
    let most = scores.iter().copied().fold(0.0, f64::max);
    if most > 0.0 {
        scores.iter_mut().for_each(|score| *score /= most);
    }
    scores
}

/// The same by one queue and one stack, each edge pushed along.
fn serial(graph: &Graph, sources: &[u32]) -> Vec<f64> {
    let mut scores = vec![0.0; graph.vertices];
    for &source in sources {
        let mut depths = vec![NONE; graph.vertices];
        let mut paths = vec![0.0_f64; graph.vertices];
        let mut shares = vec![0.0_f64; graph.vertices];
        depths[source as usize] = 0;
        paths[source as usize] = 1.0;
        let mut order = vec![source];
        let mut at = 0;
        while let Some(&from) = order.get(at) {
            at += 1;
            for &to in graph.neighbours(from) {
                if depths[to as usize] == NONE {
                    depths[to as usize] = depths[from as usize] + 1;
                    order.push(to);
                }
                if depths[to as usize] == depths[from as usize] + 1 {
                    paths[to as usize] += paths[from as usize];
                }
            }
        }
        for &vertex in order.iter().rev() {
            let own = vertex as usize;
            for &from in graph.neighbours(vertex) {
                let from = from as usize;
                if depths[from].wrapping_add(1) == depths[own] {
                    shares[from] += paths[from] / paths[own] * (1.0 + shares[own]);
                }
            }
            if vertex != source {
                scores[own] += shares[own];
            }
        }
    }
    normalised(scores)
}

fn verify(scores: &[f64], oracle: &[f64]) -> Result<(), String> {
    let agree =
        |at: usize| (scores[at] - oracle[at]).abs() <= TOLERANCE * oracle[at].max(TOLERANCE);
    match (0..scores.len()).find(|&at| !agree(at)) {
        Some(at) => Err(format!("vertex {at} scores {}, serially {}", scores[at], oracle[at])),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_path_is_on_most_ways_and_a_wrong_score_is_found() {
        let graph = Graph::from_edges(5, &[(0, 1), (1, 2), (2, 3), (3, 4)], 1, 1);
        let mut scores = centrality(&graph, &[0, 1, 2, 3, 4], 2);
        // Pairs that a vertex is between: 0, 3, 4, 3, 0.
        let expected = [0.0, 0.75, 1.0, 0.75, 0.0];
        verify(&scores, &expected).unwrap();
        verify(&scores, &serial(&graph, &[0, 1, 2, 3, 4])).unwrap();
        scores[1] = f64::NAN;
        assert!(verify(&scores, &expected).unwrap_err().contains("vertex 1"));
    }
}
