//! A random undirected graph in compressed rows.

use pagemill_model::random::{Random, mix};

use super::kind::Kind;
use crate::program::Params;
use crate::team;

/// Vertices of each class, as a power of two.
const VERTICES: [u32; 4] = [10, 16, 20, 22];
/// Quadrants of R-MAT: none, target, source or both high.
const QUADRANTS: [f64; 3] = [0.57, 0.19, 0.19];
/// Edges that are drawn from one seed.
const BLOCK: usize = 1 << 16;
/// Weights are 1 to this.
const WEIGHTS: u64 = 255;

/// A graph; every edge is in the rows of both of its ends, none twice, none from a vertex to itself.
pub(super) struct Graph {
    pub(super) vertices: usize,
    starts: Vec<usize>,
    targets: Vec<u32>,
    seed: u64,
}

impl Graph {
    /// The graph of the class, the kind and the degree.
    pub(super) fn of(params: &Params) -> Self {
        let power = VERTICES[params.class as usize];
        Self::random(power, params.degree, params.graph, params.seed, params.threads)
    }

    pub(super) fn random(power: u32, degree: usize, kind: Kind, seed: u64, threads: usize) -> Self {
        let vertices = 1_usize << power;
        let mut edges = vec![(0, 0); vertices * degree];
        let blocks: Vec<_> = edges.chunks_mut(BLOCK).enumerate().collect();
        let lists = team::ranges(blocks.len(), threads);
        let mut blocks = blocks.into_iter();
        let parts: Vec<Vec<_>> =
            lists.iter().map(|list| blocks.by_ref().take(list.len()).collect()).collect();
        team::each(parts, |blocks| {
            for (number, block) in blocks {
                let mut random = Random::new(mix(seed ^ mix(number as u64)));
                block.fill_with(|| draw(power, kind, &mut random));
            }
        });
        if kind == Kind::Kronecker {
            // The vertices with most edges are not the first ones.
            let mut names: Vec<u32> = (0..vertices as u32).collect();
            Random::new(mix(seed)).shuffle(&mut names);
            for (a, b) in &mut edges {
                (*a, *b) = (names[*a as usize], names[*b as usize]);
            }
        }
        Self::from_edges(vertices, &edges, seed, threads)
    }

    pub(super) fn from_edges(
        vertices: usize,
        edges: &[(u32, u32)],
        seed: u64,
        threads: usize,
    ) -> Self {
        let mut starts = vec![0; vertices + 1];
        let real = || edges.iter().filter(|(a, b)| a != b);
        for &(a, b) in real() {
            starts[a as usize + 1] += 1;
            starts[b as usize + 1] += 1;
        }
        for at in 0..vertices {
            starts[at + 1] += starts[at];
        }
        let mut next = starts.clone();
        let mut targets = vec![0; starts[vertices]];
        for &(a, b) in real() {
            for (from, to) in [(a, b), (b, a)] {
                targets[next[from as usize]] = to;
                next[from as usize] += 1;
            }
        }
        sort_rows(&starts, &mut targets, threads);
        // Edges that were drawn twice go.
        let mut kept = 0;
        let mut row = 0;
        for vertex in 0..vertices {
            let end = starts[vertex + 1];
            starts[vertex] = kept;
            let mut last = None;
            while row < end {
                if last != Some(targets[row]) {
                    last = Some(targets[row]);
                    targets[kept] = targets[row];
                    kept += 1;
                }
                row += 1;
            }
        }
        starts[vertices] = kept;
        targets.truncate(kept);
        targets.shrink_to_fit();
        Self { vertices, starts, targets, seed }
    }

    /// Neighbours, in ascending order.
    #[inline]
    pub(super) fn neighbours(&self, vertex: u32) -> &[u32] {
        let vertex = vertex as usize;
        &self.targets[self.starts[vertex]..self.starts[vertex + 1]]
    }

    pub(super) fn degree(&self, vertex: u32) -> usize {
        self.neighbours(vertex).len()
    }

    /// Twice the number of edges: each is in two rows.
    pub(super) fn entries(&self) -> usize {
        self.targets.len()
    }

    /// The vertices.
    pub(super) fn all(&self) -> std::ops::Range<u32> {
        0..self.vertices as u32
    }

    /// A weight for each entry, the same in both rows of an edge.
    pub(super) fn weights(&self) -> Weights {
        let weight = |(a, b): (u32, u32)| {
            let edge = u64::from(a.min(b)) << 32 | u64::from(a.max(b));
            (1 + mix(edge ^ mix(self.seed)) % WEIGHTS) as u8
        };
        let entries = self.all().flat_map(|a| self.neighbours(a).iter().map(move |&b| (a, b)));
        Weights(entries.map(weight).collect())
    }

    /// A vertex that has neighbours, for each trial another; `None` if there is no edge.
    pub(super) fn source(&self, random: &mut Random) -> Option<u32> {
        if self.targets.is_empty() {
            return None;
        }
        loop {
            let vertex = random.index(self.vertices) as u32;
            if self.degree(vertex) > 0 {
                return Some(vertex);
            }
        }
    }
}

/// Weights of the entries of a graph.
pub(super) struct Weights(Vec<u8>);

impl Weights {
    /// Neighbours and the weights of the edges to them.
    #[inline]
    pub(super) fn edges<'a>(
        &'a self,
        graph: &'a Graph,
        vertex: u32,
    ) -> impl Iterator<Item = (u32, u32)> + 'a {
        let row = graph.starts[vertex as usize]..graph.starts[vertex as usize + 1];
        let weights = self.0[row].iter().map(|&weight| u32::from(weight));
        graph.neighbours(vertex).iter().copied().zip(weights)
    }
}

fn draw(power: u32, kind: Kind, random: &mut Random) -> (u32, u32) {
    match kind {
        Kind::Uniform => (random.below(1 << power) as u32, random.below(1 << power) as u32),
        Kind::Kronecker => {
            let [none, target, source] = QUADRANTS;
            let (mut a, mut b) = (0, 0);
            for _ in 0..power {
                let at = random.unit();
                let high_source = at >= none + target;
                let high_target =
                    if high_source { at >= none + target + source } else { at >= none };
                a = a << 1 | u32::from(high_source);
                b = b << 1 | u32::from(high_target);
            }
            (a, b)
        }
    }
}

/// Sorts each row, rows split among the threads.
fn sort_rows(starts: &[usize], targets: &mut [u32], threads: usize) {
    let mut rest = targets;
    let mut parts = Vec::new();
    for range in team::ranges(starts.len() - 1, threads) {
        let length = starts[range.end] - starts[range.start];
        let (mine, tail) = rest.split_at_mut(length);
        parts.push((range, mine));
        rest = tail;
    }
    team::each(parts, |(range, targets)| {
        let first = starts[range.start];
        for vertex in range {
            targets[starts[vertex] - first..starts[vertex + 1] - first].sort_unstable();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_hold_each_edge_at_both_ends_once() {
        for kind in Kind::ALL {
            let graph = Graph::random(8, 8, kind, 3, 2);
            for a in graph.all() {
                let row = graph.neighbours(a);
                assert!(row.is_sorted_by(|a, b| a < b), "{kind} {a}: {row:?}");
                assert!(!row.contains(&a));
                assert!(row.iter().all(|&b| graph.neighbours(b).contains(&a)));
            }
        }
    }

    #[test]
    fn a_kronecker_graph_has_hubs_and_a_uniform_one_none() {
        let most = |kind| {
            let graph = Graph::random(12, 16, kind, 1, 1);
            graph.all().map(|vertex| graph.degree(vertex)).max().unwrap()
        };
        assert!(most(Kind::Kronecker) > 400);
        assert!(most(Kind::Uniform) < 80);
    }

    #[test]
    fn threads_do_not_change_the_graph() {
        let one = Graph::random(10, 70, Kind::Kronecker, 5, 1);
        let three = Graph::random(10, 70, Kind::Kronecker, 5, 3);
        assert_eq!(one.targets, three.targets);
        let weights = one.weights();
        let back = |a, b| weights.edges(&one, b).find(|&(to, _)| to == a).unwrap().1;
        assert!(weights.edges(&one, 7).all(|(b, weight)| weight >= 1 && weight == back(7, b)));
    }
}
