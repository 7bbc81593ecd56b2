//! `gap-tc`: triangles, each counted once: of two neighbouring vertices, those common neighbours that come before both.
//! Vertices are numbered by degree first where few have most edges, so that the rows of hubs are short.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::csr::Graph;
use super::trial::{timed, trials};
use crate::program::{Outcome, Params};
use crate::team;

const TRIALS: usize = 3;
/// Vertices that a thread takes at a time.
const GRAIN: usize = 64;
/// Numbering by degree pays if the mean degree is so many times the median.
const SKEW: usize = 2;

pub(super) fn run(params: &Params) -> Outcome {
    let graph = Graph::of(params);
    let right = by_marks(&graph);
    let mut report = trials(params, &graph, TRIALS, |_| {
        let (time, triangles) = timed(|| triangles(&graph, params.threads));
        verify(triangles, right)?;
        Ok(time)
    })?;
    report.metrics.push(("triangles", right as f64));
    Ok(report)
}

fn verify(triangles: u64, right: u64) -> Result<(), String> {
    if triangles == right {
        return Ok(());
    }
    Err(format!("{triangles} triangles, by marks {right}"))
}

fn triangles(graph: &Graph, threads: usize) -> u64 {
    if is_skewed(graph) {
        count(&by_degree(graph, threads), threads)
    } else {
        count(graph, threads)
    }
}

fn is_skewed(graph: &Graph) -> bool {
    let mut degrees: Vec<usize> = graph.all().map(|vertex| graph.degree(vertex)).collect();
    degrees.sort_unstable();
    graph.entries() / graph.vertices > SKEW * degrees[graph.vertices / 2].max(1)
}

/// The same graph, the vertex of the highest degree first.
fn by_degree(graph: &Graph, threads: usize) -> Graph {
    let mut order: Vec<u32> = graph.all().collect();
    order.sort_unstable_by_key(|&vertex| (std::cmp::Reverse(graph.degree(vertex)), vertex));
    let mut names = vec![0; graph.vertices];
    order.iter().zip(0..).for_each(|(&old, new)| names[old as usize] = new);
    let upward = |&from: &u32| {
        let names = &names;
        let near = graph.neighbours(from).iter().filter(move |&&to| to > from);
        near.map(move |&to| (names[from as usize], names[to as usize]))
    };
    let edges: Vec<(u32, u32)> = graph.all().collect::<Vec<_>>().iter().flat_map(upward).collect();
    Graph::from_edges(graph.vertices, &edges, 0, threads)
}

fn count(graph: &Graph, threads: usize) -> u64 {
    let next = AtomicUsize::new(0);
    let counts = team::each(vec![(); threads], |()| {
        let mut count = 0;
        loop {
            let start = next.fetch_add(GRAIN, Relaxed);
            if start >= graph.vertices {
                return count;
            }
            for a in start as u32..graph.vertices.min(start + GRAIN) as u32 {
                let row = before(graph.neighbours(a), a);
                count +=
                    row.iter().map(|&b| common(row, before(graph.neighbours(b), b))).sum::<u64>();
            }
        }
    });
    counts.into_iter().sum()
}

/// The vertices of a row that come before this one.
fn before(row: &[u32], vertex: u32) -> &[u32] {
    &row[..row.partition_point(|&other| other < vertex)]
}

/// How many are in both rows.
fn common(a: &[u32], b: &[u32]) -> u64 {
    let mut count = 0;
    let mut rest = a;
    for &wanted in b {
        while let Some((&first, tail)) = rest.split_first() {
            if first >= wanted {
                count += u64::from(first == wanted);
                break;
            }
            rest = tail;
        }
        if rest.is_empty() {
            break;
        }
    }
    count
}

/// The number of triangles by another way: from each vertex to neighbours of higher degree, marked, and on from these.
fn by_marks(graph: &Graph) -> u64 {
    let higher = |from: u32| {
        let key = |vertex: u32| (graph.degree(vertex), vertex);
        let near = graph.neighbours(from).iter().copied();
        near.filter(move |&to| key(to) > key(from))
    };
    let mut marked = vec![false; graph.vertices];
    let mut count = 0;
    for from in graph.all() {
        higher(from).for_each(|to| marked[to as usize] = true);
        for to in higher(from) {
            count += higher(to).filter(|&end| marked[end as usize]).count() as u64;
        }
        higher(from).for_each(|to| marked[to as usize] = false);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Kind;

    /// The published verifier: common neighbours of the ends of each edge; each triangle is found six times.
    fn oracle(graph: &Graph) -> u64 {
        let edges = graph.all().flat_map(|a| graph.neighbours(a).iter().map(move |&b| (a, b)));
        let found = |(a, b)| common(graph.neighbours(a), graph.neighbours(b));
        edges.map(found).sum::<u64>() / 6
    }

    #[test]
    fn each_way_counts_the_same_triangles() {
        for (kind, skewed) in [(Kind::Kronecker, true), (Kind::Uniform, false)] {
            let graph = Graph::random(9, 16, kind, 2, 1);
            assert_eq!(is_skewed(&graph), skewed);
            let right = oracle(&graph);
            assert!(right > 0);
            assert_eq!(triangles(&graph, 3), right);
            assert_eq!(count(&graph, 1), right);
            assert_eq!(by_marks(&graph), right);
            verify(right, right).unwrap();
            assert!(verify(right - 1, right).unwrap_err().contains("by marks"));
        }
    }
}
