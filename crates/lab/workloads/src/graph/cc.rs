//! `gap-cc`: connected components by Afforest (Sutton, Ben-Nun and Barak, IPDPS 2018): trees are linked by the first
//! two neighbours of each vertex; then only vertices outside of the largest tree need their other edges.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use pagemill_model::random::Random;

use super::csr::Graph;
use super::trial::{timed, trials};
use crate::program::{Outcome, Params};
use crate::team;

const TRIALS: usize = 16;
/// Neighbours that each vertex is linked by first.
const ROUNDS: usize = 2;
/// Vertices that are asked for the largest tree.
const SAMPLES: usize = 1024;

pub(super) fn run(params: &Params) -> Outcome {
    let graph = Graph::of(params);
    trials(params, &graph, TRIALS, |random| {
        let (time, labels) = timed(|| components(&graph, random, params.threads));
        verify(&graph, &labels)?;
        Ok(time)
    })
}

/// A label for each vertex, the same within a component.
fn components(graph: &Graph, random: &mut Random, threads: usize) -> Vec<u32> {
    let labels: Vec<AtomicU32> = graph.all().map(AtomicU32::new).collect();
    let each = |work: &(dyn Fn(u32) + Sync)| {
        team::each(team::ranges(graph.vertices, threads), |range| {
            range.for_each(|vertex| work(vertex as u32));
        });
    };
    for round in 0..ROUNDS {
        each(&|vertex| {
            if let Some(&to) = graph.neighbours(vertex).get(round) {
                link(&labels, vertex, to);
            }
        });
        each(&|vertex| compress(&labels, vertex));
    }
    let largest = most_frequent(&labels, random);
    each(&|vertex| {
        if labels[vertex as usize].load(Relaxed) != largest {
            let near = graph.neighbours(vertex);
            near.iter().skip(ROUNDS).for_each(|&to| link(&labels, vertex, to));
        }
    });
    each(&|vertex| compress(&labels, vertex));
    labels.into_iter().map(AtomicU32::into_inner).collect()
}

/// Joins the trees of two vertices: the root with the higher number hangs on the other.
fn link(labels: &[AtomicU32], a: u32, b: u32) {
    let parent = |of: u32| labels[of as usize].load(Relaxed);
    let (mut a, mut b) = (parent(a), parent(b));
    while a != b {
        let (high, low) = (a.max(b), a.min(b));
        let above = parent(high);
        if above == low {
            return;
        }
        let root = &labels[high as usize];
        if above == high && root.compare_exchange(high, low, Relaxed, Relaxed).is_ok() {
            return;
        }
        (a, b) = (parent(parent(high)), parent(low));
    }
}

/// Hangs a vertex on its root.
fn compress(labels: &[AtomicU32], vertex: u32) {
    let own = &labels[vertex as usize];
    loop {
        let parent = own.load(Relaxed);
        let above = labels[parent as usize].load(Relaxed);
        if above == parent {
            return;
        }
        own.store(above, Relaxed);
    }
}

fn most_frequent(labels: &[AtomicU32], random: &mut Random) -> u32 {
    let sample = |_| labels[random.index(labels.len())].load(Relaxed);
    let mut samples: Vec<u32> = (0..SAMPLES).map(sample).collect();
    samples.sort_unstable();
    let runs = samples.chunk_by(|a, b| a == b);
    runs.max_by_key(|run| run.len()).map_or(0, |run| run[0])
}

/// Edges must join equal labels, and there must be as many labels as components.
fn verify(graph: &Graph, labels: &[u32]) -> Result<(), String> {
    let mut seen = vec![false; graph.vertices];
    let mut components = 0_usize;
    let mut queue = Vec::new();
    for start in graph.all() {
        if std::mem::replace(&mut seen[start as usize], true) {
            continue;
        }
        components += 1;
        queue.push(start);
        while let Some(from) = queue.pop() {
            for &to in graph.neighbours(from) {
                if labels[from as usize] != labels[to as usize] {
                    return Err(format!("an edge joins {from} and {to}, which have other labels"));
                }
                if !std::mem::replace(&mut seen[to as usize], true) {
                    queue.push(to);
                }
            }
        }
    }
    let mut distinct = labels.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() != components {
        return Err(format!("{} labels for {components} components", distinct.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_labels_are_found() {
        // A triangle, a pair and a vertex of its own.
        let edges = [(0, 1), (1, 2), (0, 2), (3, 4)];
        let graph = Graph::from_edges(6, &edges, 1, 1);
        let mut labels = components(&graph, &mut Random::new(1), 2);
        verify(&graph, &labels).unwrap();
        assert_eq!(labels, [0, 0, 0, 3, 3, 5]);
        labels[5] = 0;
        assert!(verify(&graph, &labels).unwrap_err().contains("2 labels for 3"));
        labels[2] = 5;
        assert!(verify(&graph, &labels).unwrap_err().contains("an edge joins"));
    }
}
