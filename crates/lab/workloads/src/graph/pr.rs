//! `gap-pr`: PageRank by iteration, each vertex pulling from its neighbours, until all changes together are below 1e-4.

use super::csr::Graph;
use super::trial::{timed, trials};
use crate::program::{Outcome, Params};
use crate::team;

const TRIALS: usize = 16;
const DAMPING: f64 = 0.85;
const TOLERANCE: f64 = 1e-4;
const MOST_ITERATIONS: usize = 100;

pub(super) fn run(params: &Params) -> Outcome {
    let graph = Graph::of(params);
    trials(params, &graph, TRIALS, |_| {
        let (time, ranks) = timed(|| ranks(&graph, params.threads));
        verify(&graph, &ranks)?;
        Ok(time)
    })
}

fn ranks(graph: &Graph, threads: usize) -> Vec<f32> {
    let vertices = graph.vertices as f64;
    let base = (1.0 - DAMPING) / vertices;
    let mut ranks = vec![(1.0 / vertices) as f32; graph.vertices];
    let mut shares = vec![0.0_f32; graph.vertices];
    for _ in 0..MOST_ITERATIONS {
        let from = &ranks;
        team::each(team::slabs(&mut shares, 1, threads), |(first, shares)| {
            for (at, share) in shares.iter_mut().enumerate() {
                let vertex = first + at;
                *share = from[vertex] / graph.degree(vertex as u32).max(1) as f32;
            }
        });
        let shares = &shares;
        let changes = team::each(team::slabs(&mut ranks, 1, threads), |(first, ranks)| {
            let mut change = 0.0;
            for (at, rank) in ranks.iter_mut().enumerate() {
                let near = graph.neighbours((first + at) as u32);
                let sum: f32 = near.iter().map(|&from| shares[from as usize]).sum();
                let new = (base + DAMPING * f64::from(sum)) as f32;
                change += f64::from((new - *rank).abs());
                *rank = new;
            }
            change
        });
        if changes.into_iter().sum::<f64>() < TOLERANCE {
            break;
        }
    }
    ranks
}

/// One more iteration, pushed along the edges, must change less than the tolerance.
fn verify(graph: &Graph, ranks: &[f32]) -> Result<(), String> {
    let mut sums = vec![0.0_f64; graph.vertices];
    for vertex in graph.all() {
        let share = f64::from(ranks[vertex as usize]) / graph.degree(vertex).max(1) as f64;
        graph.neighbours(vertex).iter().for_each(|&to| sums[to as usize] += share);
    }
    let base = (1.0 - DAMPING) / graph.vertices as f64;
    let changes =
        sums.iter().zip(ranks).map(|(sum, &rank)| (base + DAMPING * sum - f64::from(rank)).abs());
    let change: f64 = changes.sum();
    if change < TOLERANCE {
        Ok(())
    } else {
        Err(format!("one more iteration changes the ranks by {change:e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Kind;

    #[test]
    fn a_wrong_rank_is_found() {
        let graph = Graph::random(9, 8, Kind::Kronecker, 2, 1);
        let mut ranks = ranks(&graph, 2);
        verify(&graph, &ranks).unwrap();
        ranks[17] += 2e-4;
        assert!(verify(&graph, &ranks).unwrap_err().contains("changes the ranks"));
    }
}
