//! `astar`: cheapest ways across a map of terrain, by A*.
//!
//! ```text
//!  open list (a heap by cost so far + the least that can follow) ─► node, a block of its own ─► its four neighbours
//! ```
//!
//! The kind of program that 473.astar of SPEC is: a map with dear ground and walls, many searches, each of which
//! allocates a node for every place that it sees and frees them all at its end. Written from the textbook (Hart,
//! Nilsson and Raphael, *A Formal Basis for the Heuristic Determination of Minimum Cost Paths*, 1968).
//!
//! Check: each way goes from neighbour to neighbour and costs what the search says, and for one search in eight the
//! same search without a heuristic, which is Dijkstra's, finds the same cost. `operations` counts places expanded.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;

use pagemill_model::random::Random;

use crate::program::{Outcome, Params, Report};

/// Side of the map at full size.
const SIDE: usize = 1200;
/// Searches at full size.
const SEARCHES: usize = 24;
/// Cost of the dearest ground; the cheapest is 1.
const DEAREST: u64 = 9;

struct Map {
    side: usize,
    /// What entering a place costs; 0 is a wall.
    ground: Vec<u8>,
}

struct Node {
    cost: u64,
    from: usize,
    closed: bool,
}

/// A way, or none, and how many places were expanded.
type SearchResult = (Option<(u64, Vec<usize>)>, u64);

pub(super) fn run(params: &Params) -> Outcome {
    // The work of a search grows with the map's area.
    let side = ((SIDE as f64 * params.scale.sqrt()) as usize).max(8);
    let searches = params.scaled(SEARCHES).max(8);
    let mut random = Random::new(params.seed);
    let map = Map::random(side, &mut random);
    let (mut expanded, mut total, mut ways) = (0, 0, 0);
    let started = Instant::now();
    for search in 0..searches {
        let ends = (random.index(side * side), random.index(side * side));
        let (way, count) = map.search(ends, true);
        expanded += count;
        if search % 8 == 0 {
            let (other, count) = map.search(ends, false);
            expanded += count;
            let costs = |way: &Option<(u64, Vec<usize>)>| way.as_ref().map(|way| way.0);
            if costs(&way) != costs(&other) {
                return Err(format!("{:?}, Dijkstra: {:?}", costs(&way), costs(&other)).into());
            }
        }
        if let Some((cost, way)) = way {
            map.walk(ends, &way, cost)?;
            total += cost;
            ways += 1;
        }
    }
    Ok(Report {
        operations: expanded,
        seconds: started.elapsed().as_secs_f64(),
        metrics: vec![
            ("searches", searches as f64),
            ("ways", f64::from(ways)),
            ("cost", total as f64),
        ],
        check: format!(
            "{ways} ways of cost {total}, each walked, one in eight as cheap as Dijkstra's"
        ),
    })
}

impl Map {
    /// Ground of random cost, a fifth of it walls.
    fn random(side: usize, random: &mut Random) -> Self {
        let mut place = || if random.below(5) == 0 { 0 } else { 1 + random.below(DEAREST) as u8 };
        Self { side, ground: (0..side * side).map(|_| place()).collect() }
    }

    fn neighbours(&self, at: usize) -> impl Iterator<Item = usize> {
        let (side, x, y) = (self.side, at % self.side, at / self.side);
        let left = (x > 0).then(|| at - 1);
        let right = (x + 1 < side).then(|| at + 1);
        let up = (y > 0).then(|| at - side);
        let down = (y + 1 < side).then(|| at + side);
        [left, right, up, down].into_iter().flatten()
    }

    /// The least that a way between two places can cost.
    fn least(&self, from: usize, to: usize) -> u64 {
        let apart = (from % self.side).abs_diff(to % self.side)
            + (from / self.side).abs_diff(to / self.side);
        apart as u64
    }

    /// The cheapest way, if there is one.
    fn search(&self, (start, goal): (usize, usize), heuristic: bool) -> SearchResult {
        let ahead = |at| if heuristic { self.least(at, goal) } else { 0 };
        // A block for each node is the point of this program.
        let mut nodes: HashMap<usize, Box<Node>> = HashMap::new();
        let mut open = BinaryHeap::new();
        let mut expanded = 0;
        nodes.insert(start, Box::new(Node { cost: 0, from: start, closed: false }));
        open.push(Reverse((ahead(start), start)));
        while let Some(Reverse((_, at))) = open.pop() {
            let Some(node) = nodes.get_mut(&at).filter(|node| !node.closed) else { continue };
            node.closed = true;
            expanded += 1;
            if at == goal {
                return (Some(way(&nodes, start, goal)), expanded);
            }
            let so_far = node.cost;
            for next in self.neighbours(at) {
                let ground = u64::from(self.ground[next]);
                let cost = so_far + ground;
                if ground == 0 || nodes.get(&next).is_some_and(|node| node.cost <= cost) {
                    continue;
                }
                nodes.insert(next, Box::new(Node { cost, from: at, closed: false }));
                open.push(Reverse((cost + ahead(next), next)));
            }
        }
        (None, expanded)
    }

    /// Fails unless the places lead from one end to the other, over no wall, at this cost.
    fn walk(&self, (start, goal): (usize, usize), way: &[usize], cost: u64) -> Result<(), String> {
        let steps = way.windows(2).all(|pair| self.neighbours(pair[0]).any(|next| next == pair[1]));
        let sum: u64 = way[1..].iter().map(|&at| u64::from(self.ground[at])).sum();
        let free = way[1..].iter().all(|&at| self.ground[at] > 0);
        if !steps
            || !free
            || sum != cost
            || way.first() != Some(&start)
            || way.last() != Some(&goal)
        {
            return Err(format!("no way of cost {cost} from {start} to {goal}: {way:?}"));
        }
        Ok(())
    }
}

/// Back from the goal, then turned round.
fn way(nodes: &HashMap<usize, Box<Node>>, start: usize, goal: usize) -> (u64, Vec<usize>) {
    let mut places = vec![goal];
    let mut at = goal;
    while at != start {
        at = nodes[&at].from;
        places.push(at);
    }
    places.reverse();
    (nodes[&goal].cost, places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_round_a_wall_is_found_and_no_way_through_it() {
        // Row by row; the wall has a gap at its lower end, then none.
        let mut map = Map { side: 3, ground: vec![1, 0, 1, 1, 0, 1, 1, 1, 1] };
        let (way, _) = map.search((0, 2), true);
        assert_eq!(way, Some((6, vec![0, 3, 6, 7, 8, 5, 2])));
        assert!(map.walk((0, 2), &[0, 3, 6, 7, 8, 5, 2], 6).is_ok());
        assert!(map.walk((0, 2), &[0, 1, 2], 1).is_err());
        map.ground[7] = 0;
        assert_eq!(map.search((0, 2), true).0, None);
    }

    #[test]
    fn fewer_places_are_expanded_than_by_dijkstra() {
        let map = Map::random(60, &mut Random::new(3));
        let ends = (0..3600).filter(|&at| map.ground[at] > 0);
        let ends: Vec<usize> = ends.collect();
        let ends = (ends[10], ends[ends.len() - 10]);
        let (with, without) = (map.search(ends, true), map.search(ends, false));
        assert_eq!(with.0.map(|way| way.0), without.0.map(|way| way.0));
        assert!(with.1 < without.1);
    }
}
