//! `gap-bfs`: breadth-first search that turns round when most vertices are in reach (Beamer and others, SC 2012).

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::csr::Graph;
use super::trial::{EMPTY, timed, trials};
use crate::program::{Outcome, Params};
use crate::team;

const TRIALS: usize = 64;
/// Towards the frontier once its edges are more than one in so many of those left.
const ALPHA: usize = 15;
/// From the frontier again once it has less than one in so many vertices.
const BETA: usize = 18;
/// No parent.
const NONE: u32 = u32::MAX;
/// Vertices of a frontier that a thread takes at a time.
const GRAIN: usize = 64;
const BITS: usize = u64::BITS as usize;

pub(super) fn run(params: &Params) -> Outcome {
    let graph = Graph::of(params);
    trials(params, &graph, TRIALS, |random| {
        let source = graph.source(random).ok_or(EMPTY)?;
        let (time, parents) = timed(|| search(&graph, source, params.threads));
        verify(&graph, source, &parents)?;
        Ok(time)
    })
}

/// The parent of each vertex that can be reached, that of the source itself.
fn search(graph: &Graph, source: u32, threads: usize) -> Vec<u32> {
    let mut parents: Vec<AtomicU32> = graph.all().map(|_| AtomicU32::new(NONE)).collect();
    parents[source as usize] = AtomicU32::new(source);
    let mut queue = vec![source];
    let mut edges_left = graph.entries();
    let mut edges = graph.degree(source);
    while !queue.is_empty() {
        if edges > edges_left / ALPHA {
            let mut front = vec![0_u64; graph.vertices.div_ceil(BITS)];
            for &vertex in &queue {
                front[vertex as usize / BITS] |= 1 << (vertex as usize % BITS);
            }
            let mut awake = queue.len();
            loop {
                let before = awake;
                (front, awake) = towards(graph, &parents, &front, threads);
                if awake == 0 || (awake < before && awake <= graph.vertices / BETA) {
                    break;
                }
            }
            queue = members(&front);
            edges = 1;
        } else {
            edges_left = edges_left.saturating_sub(edges);
            (queue, edges) = onwards(graph, &parents, &queue, threads);
        }
    }
    parents.into_iter().map(AtomicU32::into_inner).collect()
}

/// From each vertex of the frontier to its neighbours without a parent. Returns these and the sum of their degrees.
fn onwards(
    graph: &Graph,
    parents: &[AtomicU32],
    queue: &[u32],
    threads: usize,
) -> (Vec<u32>, usize) {
    let next = AtomicUsize::new(0);
    let threads = threads.min(queue.len().div_ceil(GRAIN));
    let found = team::each(vec![(); threads], |()| {
        let (mut found, mut edges) = (Vec::new(), 0);
        loop {
            let start = next.fetch_add(GRAIN, Relaxed).min(queue.len());
            let part = &queue[start..queue.len().min(start + GRAIN)];
            if part.is_empty() {
                return (found, edges);
            }
            for &from in part {
                for &to in graph.neighbours(from) {
                    let parent = &parents[to as usize];
                    if parent.load(Relaxed) == NONE
                        && parent.compare_exchange(NONE, from, Relaxed, Relaxed).is_ok()
                    {
                        found.push(to);
                        edges += graph.degree(to);
                    }
                }
            }
        }
    });
    let edges = found.iter().map(|(_, edges)| edges).sum();
    (found.into_iter().flat_map(|(found, _)| found).collect(), edges)
}

/// From each vertex without a parent to a neighbour in the frontier. Returns the next frontier and its size.
fn towards(
    graph: &Graph,
    parents: &[AtomicU32],
    front: &[u64],
    threads: usize,
) -> (Vec<u64>, usize) {
    let mut next = vec![0_u64; front.len()];
    let awake = team::each(team::slabs(&mut next, 1, threads), |(first, words)| {
        let mut awake = 0;
        for (at, word) in words.iter_mut().enumerate() {
            let low = (first + at) * BITS;
            let end = graph.vertices.min(low + BITS);
            for (vertex, parent) in (low..).zip(&parents[low..end]) {
                if parent.load(Relaxed) != NONE {
                    continue;
                }
                let near =
                    |&&from: &&u32| front[from as usize / BITS] >> (from as usize % BITS) & 1 == 1;
                if let Some(&from) = graph.neighbours(vertex as u32).iter().find(near) {
                    parent.store(from, Relaxed);
                    *word |= 1 << (vertex - low);
                    awake += 1;
                }
            }
        }
        awake
    });
    (next, awake.into_iter().sum())
}

/// The vertices of a set of bits.
fn members(bits: &[u64]) -> Vec<u32> {
    let mut members = Vec::new();
    for (at, &word) in bits.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            members.push((at * BITS) as u32 + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
    members
}

/// Steps from the source to each vertex, by a serial search; [`NONE`] where there is no way.
pub(super) fn depths(graph: &Graph, source: u32) -> Vec<u32> {
    let mut depths = vec![NONE; graph.vertices];
    depths[source as usize] = 0;
    let mut queue = vec![source];
    let mut at = 0;
    while let Some(&from) = queue.get(at) {
        at += 1;
        for &to in graph.neighbours(from) {
            if depths[to as usize] == NONE {
                depths[to as usize] = depths[from as usize] + 1;
                queue.push(to);
            }
        }
    }
    depths
}

fn verify(graph: &Graph, source: u32, parents: &[u32]) -> Result<(), String> {
    let depths = depths(graph, source);
    for vertex in graph.all() {
        let (depth, parent) = (depths[vertex as usize], parents[vertex as usize]);
        let right = if vertex == source {
            parent == source
        } else if depth == NONE {
            parent == NONE
        } else {
            parent != NONE
                && graph.neighbours(vertex).binary_search(&parent).is_ok()
                && depths[parent as usize] + 1 == depth
        };
        if !right {
            return Err(format!(
                "vertex {vertex}, {depth} steps from {source}, has the parent {parent}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Kind;

    #[test]
    fn a_wrong_parent_is_found() {
        let graph = Graph::random(9, 8, Kind::Uniform, 2, 1);
        let mut parents = search(&graph, 4, 2);
        verify(&graph, 4, &parents).unwrap();
        let far = parents.iter().position(|&parent| parent != 4 && parent != NONE).unwrap();
        let right = std::mem::replace(&mut parents[far], far as u32);
        assert!(verify(&graph, 4, &parents).unwrap_err().contains("has the parent"));
        parents[far] = right;
        parents[far] = NONE;
        assert!(verify(&graph, 4, &parents).is_err());
    }
}
