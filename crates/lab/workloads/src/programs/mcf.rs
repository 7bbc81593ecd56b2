//! `mcf`: the cheapest flow through a network, by the network simplex method.
//!
//! ```text
//!  a tree of arcs spans all nodes; an arc outside of it that would lower the cost enters, the one of the cycle that is
//!  full first leaves; the potentials of the part that moved change by the same amount
//! ```
//!
//! The kind of program that 429.mcf and 605.mcf_s of SPEC are: nodes and arcs as structures, the tree by parent, child
//! and siblings, entering arcs sought in blocks. Written from the textbook (Ahuja, Magnanti and Orlin, *Network Flows*,
//! chapter 11; strongly feasible trees by Cunningham), not from their text.
//!
//! Check: the flow keeps every bound and balances every node, and complementary slackness holds: an arc with a positive
//! reduced cost is empty, one with a negative one is full. That proves that no flow is cheaper. `operations` counts
//! pivots.

use std::time::Instant;

use crate::program::{Outcome, Params, Report};
use pagemill_model::random::Random;

/// Nodes at full size.
const NODES: usize = 60_000;
/// Random arcs for each node.
const DEGREE: usize = 10;
const COSTS: u64 = 10_000;
const CAPACITIES: u64 = 1_000;
const SUPPLIES: u64 = 500;
const NONE: u32 = u32::MAX;
const UNLIMITED: i64 = i64::MAX / 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Tree,
    Empty,
    Full,
}

#[derive(Clone, Debug)]
struct Arc {
    tail: u32,
    head: u32,
    cost: i64,
    capacity: i64,
    flow: i64,
    state: State,
}

#[derive(Clone, Debug)]
struct Node {
    potential: i64,
    supply: i64,
    parent: u32,
    /// The arc between this node and its parent.
    arc: u32,
    depth: u32,
    child: u32,
    next: u32,
    previous: u32,
}

struct Network {
    nodes: Vec<Node>,
    /// Those of the network, then one to or from the root for each node.
    arcs: Vec<Arc>,
    real: usize,
    /// Where the search for an entering arc goes on.
    search: usize,
    /// Nodes of the part that moves.
    moving: Vec<u32>,
}

pub(super) fn run(params: &Params) -> Outcome {
    let mut network = random(params.scaled(NODES).max(2), params.seed);
    let started = Instant::now();
    let pivots = network.solve();
    let seconds = started.elapsed().as_secs_f64();
    let cost = network.certify()?;
    Ok(Report {
        operations: pivots,
        seconds,
        metrics: vec![
            ("nodes", (network.nodes.len() - 1) as f64),
            ("arcs", network.real as f64),
            ("cost", cost as f64),
        ],
        check: format!("a flow of cost {cost} that complementary slackness proves cheapest"),
    })
}

/// A network with a flow: a ring of arcs without a limit makes one possible.
fn random(nodes: usize, seed: u64) -> Network {
    let mut random = Random::new(seed);
    let mut supplies = vec![0; nodes];
    for from in 0..nodes / 2 {
        let amount = random.below(SUPPLIES + 1) as i64;
        supplies[from] += amount;
        supplies[nodes - 1 - from] -= amount;
    }
    random.shuffle(&mut supplies);
    let mut arcs = Vec::with_capacity(nodes * (DEGREE + 1));
    for from in 0..nodes {
        let ring = (from + 1) % nodes;
        arcs.push((from, ring, COSTS as i64, UNLIMITED));
        for _ in 0..DEGREE {
            let to = random.index(nodes);
            let cost = 1 + random.below(COSTS) as i64;
            arcs.push((from, to, cost, 1 + random.below(CAPACITIES) as i64));
        }
    }
    arcs.retain(|(from, to, ..)| from != to);
    Network::new(&supplies, &arcs)
}

impl Network {
    /// Of supplies (negative: demands) that sum to 0, and arcs (from, to, cost, capacity). Begins with all flow over
    /// the root, which is dearer than any other way.
    fn new(supplies: &[i64], arcs: &[(usize, usize, i64, i64)]) -> Self {
        let root = supplies.len() as u32;
        let dear = (supplies.len() as i64 + 1) * arcs.iter().map(|arc| arc.2).max().unwrap_or(1);
        let real = arcs.len();
        let of = |&(tail, head, cost, capacity): &(usize, usize, i64, i64)| Arc {
            tail: tail as u32,
            head: head as u32,
            cost,
            capacity,
            flow: 0,
            state: State::Empty,
        };
        let mut arcs: Vec<Arc> = arcs.iter().map(of).collect();
        let mut nodes = Vec::with_capacity(supplies.len() + 1);
        for (at, &supply) in (0..).zip(supplies) {
            let (tail, head, potential) =
                if supply >= 0 { (at, root, -dear) } else { (root, at, dear) };
            let flow = supply.abs();
            let arc = arcs.len() as u32;
            arcs.push(Arc {
                tail,
                head,
                cost: dear,
                capacity: UNLIMITED,
                flow,
                state: State::Tree,
            });
            let next = if at + 1 < root { at + 1 } else { NONE };
            let previous = at.checked_sub(1).unwrap_or(NONE);
            let links = (root, 1, NONE);
            let (parent, depth, child) = links;
            nodes.push(Node { potential, supply, parent, arc, depth, child, next, previous });
        }
        nodes.push(Node {
            potential: 0,
            supply: 0,
            parent: NONE,
            arc: NONE,
            depth: 0,
            child: if supplies.is_empty() { NONE } else { 0 },
            next: NONE,
            previous: NONE,
        });
        Self { nodes, arcs, real, search: 0, moving: Vec::new() }
    }

    #[inline(always)]
    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn reduced_cost(&self, arc: &Arc) -> i64 {
        arc.cost + self.node(arc.tail).potential - self.node(arc.head).potential
    }

    /// Pivots until no arc enters. Returns how often.
    fn solve(&mut self) -> u64 {
        let mut pivots = 0;
        while let Some(entering) = self.entering() {
            self.pivot(entering);
            pivots += 1;
        }
        pivots
    }

    /// The arc that promises most in the next block with any.
    fn entering(&mut self) -> Option<u32> {
        let block = ((self.real as f64).sqrt() as usize).max(16);
        let (mut best, mut found) = (0, None);
        let mut left = block;
        for _ in 0..self.real {
            let arc = &self.arcs[self.search];
            let gain = match arc.state {
                State::Tree => 0,
                State::Empty => -self.reduced_cost(arc),
                State::Full => self.reduced_cost(arc),
            };
            if gain > best {
                (best, found) = (gain, Some(self.search as u32));
            }
            self.search += 1;
            if self.search == self.real {
                self.search = 0;
            }
            left -= 1;
            if left == 0 {
                if found.is_some() {
                    return found;
                }
                left = block;
            }
        }
        found
    }

    /// How much more can flow along a tree arc, up from `node` to its parent or down.
    fn room(&self, node: u32, up: bool) -> i64 {
        let arc = &self.arcs[self.node(node).arc as usize];
        if (arc.tail == node) == up { arc.capacity - arc.flow } else { arc.flow }
    }

    fn add(&mut self, node: u32, up: bool, amount: i64) {
        let arc = &mut self.arcs[self.nodes[node as usize].arc as usize];
        arc.flow += if (arc.tail == node) == up { amount } else { -amount };
    }

    fn pivot(&mut self, entering: u32) {
        let arc = self.arcs[entering as usize].clone();
        // Flow goes from `first` over the arc to `second`, up to where their ways meet, and down to `first`.
        let (first, second) = match arc.state {
            State::Full => (arc.head, arc.tail),
            _ => (arc.tail, arc.head),
        };
        let (mut a, mut b) = (first, second);
        // The node whose arc leaves, on which side; of equal ones the last in the direction of the flow, from the top.
        let mut amount = arc.capacity;
        let (mut leaving_first, mut leaving_second) = (None, None);
        let (mut least_first, mut least_second) = (i64::MAX, i64::MAX);
        while a != b {
            if self.node(a).depth >= self.node(b).depth {
                let room = self.room(a, false);
                if room < least_first {
                    (least_first, leaving_first) = (room, Some(a));
                }
                a = self.node(a).parent;
            } else {
                let room = self.room(b, true);
                if room <= least_second {
                    (least_second, leaving_second) = (room, Some(b));
                }
                b = self.node(b).parent;
            }
        }
        let mut leaving = None;
        if least_first < amount {
            (amount, leaving) = (least_first, leaving_first.map(|node| (node, first, second)));
        }
        if least_second <= amount {
            (amount, leaving) = (least_second, leaving_second.map(|node| (node, second, first)));
        }
        if amount > 0 {
            let entering = &mut self.arcs[entering as usize];
            entering.flow += if arc.state == State::Full { -amount } else { amount };
            for (mut at, up) in [(first, false), (second, true)] {
                while at != a {
                    self.add(at, up, amount);
                    at = self.node(at).parent;
                }
            }
        }
        match leaving {
            None => {
                let entering = &mut self.arcs[entering as usize];
                entering.state = if arc.state == State::Full { State::Empty } else { State::Full };
            }
            Some((top, inside, outside)) => {
                let old = &mut self.arcs[self.nodes[top as usize].arc as usize];
                old.state = if old.flow == 0 { State::Empty } else { State::Full };
                self.arcs[entering as usize].state = State::Tree;
                self.hang(entering, top, inside, outside);
            }
        }
    }

    /// Takes a node out of its parent's children.
    fn unlink(&mut self, node: u32) {
        let Node { parent, next, previous, .. } = *self.node(node);
        if previous == NONE {
            self.nodes[parent as usize].child = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
    }

    /// Makes a node the first child of another, over this arc.
    fn link(&mut self, node: u32, parent: u32, arc: u32) {
        let next = self.node(parent).child;
        if next != NONE {
            self.nodes[next as usize].previous = node;
        }
        self.nodes[parent as usize].child = node;
        let own = &mut self.nodes[node as usize];
        (own.parent, own.arc, own.next, own.previous) = (parent, arc, next, NONE);
    }

    /// Hangs the part below `top` on `outside`, by its node `inside`; on the way between them parents become children.
    fn hang(&mut self, entering: u32, top: u32, inside: u32, outside: u32) {
        let (mut node, mut parent, mut arc) = (inside, outside, entering);
        loop {
            let Node { parent: old_parent, arc: old_arc, .. } = *self.node(node);
            self.unlink(node);
            self.link(node, parent, arc);
            if node == top {
                break;
            }
            (parent, node, arc) = (node, old_parent, old_arc);
        }
        let over = &self.arcs[entering as usize];
        // So that the reduced cost of the new arc is 0.
        let reduced = self.reduced_cost(over);
        let change = if over.tail == inside { -reduced } else { reduced };
        let mut moving = std::mem::take(&mut self.moving);
        moving.push(inside);
        while let Some(at) = moving.pop() {
            let depth = self.node(self.node(at).parent).depth + 1;
            let own = &mut self.nodes[at as usize];
            own.depth = depth;
            own.potential += change;
            let mut child = own.child;
            while child != NONE {
                moving.push(child);
                child = self.node(child).next;
            }
        }
        self.moving = moving;
    }

    /// The cost of the flow, if it is one and no other is cheaper.
    fn certify(&self) -> Result<i64, String> {
        let mut left: Vec<i64> = self.nodes.iter().map(|node| node.supply).collect();
        let mut cost = 0;
        for (at, arc) in self.arcs.iter().enumerate() {
            if arc.flow < 0 || arc.flow > arc.capacity {
                return Err(format!("arc {at} carries {}, from 0 to {}", arc.flow, arc.capacity));
            }
            if at >= self.real && arc.flow > 0 {
                return Err(format!("node {} needs the root", at - self.real));
            }
            left[arc.tail as usize] -= arc.flow;
            left[arc.head as usize] += arc.flow;
            let reduced = self.reduced_cost(arc);
            if at < self.real
                && (reduced > 0 && arc.flow > 0 || reduced < 0 && arc.flow < arc.capacity)
            {
                return Err(format!(
                    "arc {at} has the reduced cost {reduced} and flow {}",
                    arc.flow
                ));
            }
            cost += arc.flow * arc.cost;
        }
        match left.iter().position(|&left| left != 0) {
            Some(node) => Err(format!("{} are left at node {node}", left[node])),
            None => Ok(cost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cheapest cost by shortest augmenting paths, found by relaxing all arcs until nothing changes.
    fn oracle(supplies: &[i64], arcs: &[(usize, usize, i64, i64)]) -> i64 {
        let mut left = supplies.to_vec();
        let mut flows = vec![0; arcs.len()];
        while let Some(source) = left.iter().position(|&left| left > 0) {
            let mut distances = vec![i64::MAX / 2; supplies.len()];
            let mut over = vec![(usize::MAX, false); supplies.len()];
            distances[source] = 0;
            let mut changed = true;
            while changed {
                changed = false;
                for (at, &(from, to, cost, capacity)) in arcs.iter().enumerate() {
                    for (from, to, cost, room, along) in [
                        (from, to, cost, capacity - flows[at], true),
                        (to, from, -cost, flows[at], false),
                    ] {
                        if room > 0 && distances[from] + cost < distances[to] {
                            (distances[to], over[to]) = (distances[from] + cost, (at, along));
                            changed = true;
                        }
                    }
                }
            }
            let sinks = (0..left.len()).filter(|&at| left[at] < 0);
            let sink = sinks.min_by_key(|&at| distances[at]).unwrap();
            let mut at = sink;
            while at != source {
                let (arc, along) = over[at];
                flows[arc] += if along { 1 } else { -1 };
                at = if along { arcs[arc].0 } else { arcs[arc].1 };
            }
            left[source] -= 1;
            left[sink] += 1;
        }
        flows.iter().zip(arcs).map(|(flow, arc)| flow * arc.2).sum()
    }

    #[test]
    fn costs_are_those_of_augmenting_paths() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let nodes = 2 + random.index(8);
            let mut supplies = vec![0; nodes];
            for _ in 0..3 {
                let amount = random.below(4) as i64;
                supplies[random.index(nodes)] += amount;
                supplies[random.index(nodes)] -= amount;
            }
            let mut arcs: Vec<_> = (0..nodes).map(|at| (at, (at + 1) % nodes, 50, 1000)).collect();
            for _ in 0..3 * nodes {
                let ends = (random.index(nodes), random.index(nodes));
                if ends.0 != ends.1 {
                    arcs.push((ends.0, ends.1, random.below(20) as i64, random.below(5) as i64));
                }
            }
            let mut network = Network::new(&supplies, &arcs);
            network.solve();
            assert_eq!(network.certify().unwrap(), oracle(&supplies, &arcs), "seed {seed}");
        }
    }

    #[test]
    fn a_flow_that_is_dearer_or_none_is_found() {
        let mut network = random(200, 3);
        assert!(network.certify().unwrap_err().contains("reduced cost"));
        network.solve();
        let cost = network.certify().unwrap();
        assert!(cost > 0);
        let used = network.arcs.iter().position(|arc| arc.flow > 0).unwrap();
        network.arcs[used].flow -= 1;
        assert!(network.certify().is_err());
        network.arcs[used].flow += 1;
        network.nodes[7].potential += 1;
        assert!(network.certify().unwrap_err().contains("reduced cost"));
        let mut narrow = Network::new(&[5, -5], &[(0, 1, 1, 3)]);
        narrow.solve();
        assert!(narrow.certify().unwrap_err().contains("needs the root"));
    }
}
