//! `gap-sssp`: shortest paths by delta-stepping (Meyer and Sanders, 2003): vertices wait in buckets by their distance,
//! and all of a bucket are relaxed at once, by all threads.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::csr::{Graph, Weights};
use super::trial::{EMPTY, timed, trials};
use crate::program::{Outcome, Params};
use crate::team;

const TRIALS: usize = 64;
/// Width of a bucket.
const DELTA: u32 = 16;
/// Vertices of a bucket that a thread takes at a time.
const GRAIN: usize = 64;
/// No way.
const FAR: u32 = u32::MAX;

pub(super) fn run(params: &Params) -> Outcome {
    let graph = Graph::of(params);
    let weights = graph.weights();
    trials(params, &graph, TRIALS, |random| {
        let source = graph.source(random).ok_or(EMPTY)?;
        let (time, distances) = timed(|| search(&graph, &weights, source, params.threads));
        verify(&graph, &weights, source, &distances)?;
        Ok(time)
    })
}

/// Distance of each vertex from the source.
fn search(graph: &Graph, weights: &Weights, source: u32, threads: usize) -> Vec<u32> {
    let mut distances: Vec<AtomicU32> = graph.all().map(|_| AtomicU32::new(FAR)).collect();
    distances[source as usize] = AtomicU32::new(0);
    let mut bucket = vec![source];
    let mut number = 0;
    // Each thread's buckets.
    let mut waiting: Vec<Vec<Vec<u32>>> = vec![Vec::new(); threads];
    loop {
        let next = AtomicUsize::new(0);
        let count = threads.min(bucket.len().div_ceil(GRAIN));
        let own: Vec<_> = waiting.iter_mut().take(count).collect();
        team::each(own, |waiting| {
            loop {
                let start = next.fetch_add(GRAIN, Relaxed).min(bucket.len());
                let part = &bucket[start..bucket.len().min(start + GRAIN)];
                if part.is_empty() {
                    return;
                }
                for &from in part {
                    relax(graph, weights, &distances, from, number, waiting);
                }
            }
        });
        let first = |own: &Vec<Vec<u32>>| own.iter().position(|bucket| !bucket.is_empty());
        let Some(least) = waiting.iter().filter_map(first).min() else {
            return distances.into_iter().map(AtomicU32::into_inner).collect();
        };
        number = least;
        bucket.clear();
        for own in &mut waiting {
            if let Some(own) = own.get_mut(least) {
                bucket.append(own);
            }
        }
    }
}

/// Relaxes the edges of a vertex, unless it was when it was in a bucket before this one.
fn relax(
    graph: &Graph,
    weights: &Weights,
    distances: &[AtomicU32],
    from: u32,
    number: usize,
    waiting: &mut Vec<Vec<u32>>,
) {
    let here = distances[from as usize].load(Relaxed);
    if ((here / DELTA) as usize) < number {
        return;
    }
    for (to, weight) in weights.edges(graph, from) {
        let there = here + weight;
        if there < distances[to as usize].load(Relaxed)
            && there < distances[to as usize].fetch_min(there, Relaxed)
        {
            let place = (there / DELTA) as usize;
            if waiting.len() <= place {
                waiting.resize_with(place + 1, Vec::new);
            }
            waiting[place].push(to);
        }
    }
}

/// Weights are positive, so that distances are right if no edge shortens one and each but the source's is that of some
/// neighbour plus the edge from it.
fn verify(graph: &Graph, weights: &Weights, source: u32, distances: &[u32]) -> Result<(), String> {
    for vertex in graph.all() {
        let here = distances[vertex as usize];
        let mut reached = vertex == source && here == 0 || here == FAR;
        for (from, weight) in weights.edges(graph, vertex) {
            let through = distances[from as usize].saturating_add(weight);
            if through < here {
                return Err(format!(
                    "vertex {vertex} is at {here}, but through {from} at {through}"
                ));
            }
            reached |= vertex != source && through == here && distances[from as usize] != FAR;
        }
        if !reached {
            return Err(format!("vertex {vertex} is at {here}, but no edge leads there"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::graph::Kind;

    /// By Dijkstra, the published verifier.
    fn oracle(graph: &Graph, weights: &Weights, source: u32) -> Vec<u32> {
        let mut distances = vec![FAR; graph.vertices];
        distances[source as usize] = 0;
        let mut heap = BinaryHeap::from([Reverse((0, source))]);
        while let Some(Reverse((here, from))) = heap.pop() {
            for (to, weight) in weights.edges(graph, from) {
                if here == distances[from as usize] && here + weight < distances[to as usize] {
                    distances[to as usize] = here + weight;
                    heap.push(Reverse((here + weight, to)));
                }
            }
        }
        distances
    }

    #[test]
    fn distances_are_those_of_dijkstra_and_wrong_ones_are_found() {
        for kind in Kind::ALL {
            let graph = Graph::random(9, 3, kind, 2, 1);
            let weights = graph.weights();
            let source = graph.all().find(|&vertex| graph.degree(vertex) > 0).unwrap();
            let mut distances = search(&graph, &weights, source, 3);
            assert_eq!(distances, oracle(&graph, &weights, source));
            let near = distances.iter().position(|&at| at != 0 && at != FAR).unwrap();
            distances[near] += 1;
            assert!(verify(&graph, &weights, source, &distances).is_err());
            distances[near] -= 2;
            assert!(verify(&graph, &weights, source, &distances).is_err());
        }
    }
}
