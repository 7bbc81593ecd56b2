//! Clusters a stream of points online: the shape of PARSEC's `streamcluster`.
//!
//! A chunk of points is held in memory and divided among 10 to 20 *centers*, each itself a point, so that the distances
//! to them (squared, times the weight of the point) and a price for each center add up to little. Then only the centers
//! are kept, moved to the mean of their points and weighing as much as these; after the last chunk the centers
//! themselves are clustered in the same way.
//!
//! ```text
//!  a chunk ──► first centers ──► local search at this price ──► 10 to 20 centers? ──► means, weights
//!              (a point becomes     ▲  (is opening a center            │ no
//!               one with a chance   │   at point x a gain?)            ▼
//!               by its distance)    └──────────── price halved or raised
//! ```
//!
//! The search asks for a random point x which points would be nearer to it, and which centers would not pay any more if
//! their points went to x: it reads the coordinates of the whole chunk, in random order of rows, each time. That is
//! what memory sees.
//!
//! At full size PARSEC's native input, `10 20 128 1000000 200000 5000`: a million random points of 128 dimensions in
//! chunks of 200,000 (98 MiB). A share of it has fewer points in as much smaller chunks. Random numbers, their order
//! and the precision of each sum are the original's with one thread (the points of seed 1 are its points), so its
//! results hold here: a test has them. One thread.
//!
//! Checked, of each chunk: every point is at a center, at the distance that was counted; the cost that the steps of the
//! search made is the cost counted anew; in the end no point's weight is lost.

use std::time::Instant;

use crate::drand48::Drand48;
use crate::program::{Outcome, Params, Report};

/// The arguments of the original, in its order.
#[derive(Clone, Copy, Debug)]
struct Input {
    least: usize,
    most: usize,
    dimensions: usize,
    points: usize,
    chunk: usize,
    /// Centers of chunks that there is room for.
    centers: usize,
}

const NATIVE: Input = Input {
    least: 10,
    most: 20,
    dimensions: 128,
    points: 1_000_000,
    chunk: 200_000,
    centers: 5_000,
};

/// So many times k ln k candidates, and tries of each search.
const TRIES: f64 = 3.0;
/// A search goes on while it gains this share of the cost: at first, and once there are about as many centers as asked
/// for.
const ROUGH: f32 = 0.1;
const FINE: f32 = 0.001;
/// Two ways of adding up a chunk's cost, of single precision, differ by less.
const TOLERANCE: f64 = 1e-4;

/// A point; its coordinates stand in the block.
#[derive(Clone, Copy, Debug)]
struct Point {
    weight: f32,
    row: usize,
    /// Its center: a place in the list of points.
    center: usize,
    /// Squared distance to the center, times the weight.
    cost: f32,
}

/// Points and their coordinates.
struct Points {
    dimensions: usize,
    block: Vec<f32>,
    list: Vec<Point>,
}

impl Points {
    fn new(room: usize, dimensions: usize) -> Self {
        let point = |row| Point { weight: 1.0, row, center: 0, cost: 0.0 };
        let list = (0..room).map(point).collect();
        Self { dimensions, block: vec![0.0; room * dimensions], list }
    }

    fn row(&self, at: usize) -> &[f32] {
        let from = self.list[at].row * self.dimensions;
        &self.block[from..from + self.dimensions]
    }

    /// Squared distance. Added up in order, for the published results depend on it; by fours, for a build without
    /// optimisation.
    fn distance(&self, a: usize, b: usize) -> f32 {
        let (a, b) = (self.row(a), self.row(b));
        let ((fours, rest), (others, other_rest)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
        let mut sum = 0.0;
        for (a, b) in fours.iter().zip(others) {
            let d = [a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]];
            sum = sum + d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + d[3] * d[3];
        }
        rest.iter().zip(other_rest).fold(sum, |sum, (a, b)| sum + (a - b) * (a - b))
    }

    fn cost(&self, at: usize, center: usize) -> f32 {
        self.distance(at, center) * self.list[at].weight
    }
}

/// A number of `0.0 ..= 1.0`, as the original makes it.
fn share(random: &mut Drand48) -> f32 {
    random.next_u31() as f32 / i32::MAX as f32
}

/// Exchanges each of the first `count` items with a later one or itself.
fn shuffle<T>(items: &mut [T], count: usize, random: &mut Drand48) {
    for at in 0..count {
        let with = random.next_u31() as usize % (items.len() - at) + at;
        items.swap(at, with);
    }
}

/// Clusters one list of points.
struct Search<'a> {
    points: &'a mut Points,
    /// Price of a center.
    price: f64,
    is_center: Vec<bool>,
    centers: usize,
    /// Of each center, where its savings stand; of no meaning for other points.
    place: Vec<usize>,
    switches: Vec<bool>,
    savings: Vec<f64>,
    /// Distances computed.
    distances: u64,
}

impl<'a> Search<'a> {
    fn new(points: &'a mut Points) -> Self {
        let count = points.list.len();
        Self {
            points,
            price: 0.0,
            is_center: vec![false; count],
            centers: 0,
            place: vec![0; count],
            switches: vec![false; count],
            savings: Vec::new(),
            distances: 0,
        }
    }

    /// First centers: each point may become one, the likelier the more it costs. Returns the cost.
    fn open_at_random(&mut self, random: &mut Drand48) -> f64 {
        let (count, price) = (self.points.list.len(), self.price as f32);
        for at in 0..count {
            self.points.list[at].cost = self.points.cost(at, 0);
            self.points.list[at].center = 0;
        }
        self.centers = 1;
        for center in 1..count {
            let opens = share(random) < self.points.list[center].cost / price;
            if !opens {
                continue;
            }
            self.centers += 1;
            for at in 0..count {
                let cost = self.points.cost(at, center);
                if cost < self.points.list[at].cost {
                    self.points.list[at].cost = cost;
                    self.points.list[at].center = center;
                }
            }
        }
        self.distances += (self.centers * count) as u64;
        let cost = f64::from(price * self.centers as f32) + self.distances_cost();
        f64::from(cost as f32)
    }

    fn distances_cost(&self) -> f64 {
        self.points.list.iter().map(|point| f64::from(point.cost)).sum()
    }

    /// Points that may become centers, drawn by weight.
    fn candidates(&self, least: usize, random: &mut Drand48) -> Vec<usize> {
        let list = &self.points.list;
        let count = (TRIES * least as f64 * (least as f64).ln()) as usize;
        if count >= list.len() {
            return (0..list.len()).collect();
        }
        let mut sum = 0.0;
        let sums = list.iter().map(|point| {
            sum += point.weight;
            sum
        });
        let sums: Vec<f32> = sums.collect();
        let draw = |_| {
            let weight = share(random) * sum;
            sums.partition_point(|&sum| sum <= weight).min(list.len() - 1)
        };
        (0..count).map(draw).collect()
    }

    /// What a center at point `x` would gain; if anything, it is opened, and centers that then do not pay are closed.
    fn gain(&mut self, x: usize, price: f64) -> f64 {
        let count = self.points.list.len();
        let mut centers = 0;
        for at in 0..count {
            if self.is_center[at] {
                self.place[at] = centers;
                centers += 1;
            }
        }
        self.savings.clear();
        self.savings.resize(centers, 0.0);
        self.switches.fill(false);
        self.distances += count as u64;
        let mut cost = 0.0;
        for at in 0..count {
            let there = self.points.cost(at, x);
            let point = self.points.list[at];
            if there < point.cost {
                self.switches[at] = true;
                cost += f64::from(there - point.cost);
            } else {
                // What is lost if its center closes and the point goes to x.
                self.savings[self.place[point.center]] += f64::from(point.cost - there);
            }
        }
        let mut closed = 0;
        for at in 0..count {
            if self.is_center[at] {
                let saved = &mut self.savings[self.place[at]];
                *saved += price;
                if *saved > 0.0 {
                    closed += 1;
                    cost -= *saved;
                }
            }
        }
        cost += price;
        if cost >= 0.0 {
            return 0.0;
        }
        for at in 0..count {
            let closes = self.savings[self.place[self.points.list[at].center]] > 0.0;
            if self.switches[at] || closes {
                self.points.list[at].cost = self.points.cost(at, x);
                self.points.list[at].center = x;
            }
        }
        for at in 0..count {
            if self.is_center[at] && self.savings[self.place[at]] > 0.0 {
                self.is_center[at] = false;
            }
        }
        self.is_center[x] = true;
        self.centers = self.centers + 1 - closed;
        -cost
    }

    /// Tries candidates until so many tries gain less than the share `least` of the cost. Returns the cost.
    fn improve(
        &mut self,
        candidates: &mut [usize],
        mut cost: f64,
        tries: usize,
        least: f32,
        random: &mut Drand48,
    ) -> f64 {
        let price = f64::from(self.price as f32);
        let mut gained = cost;
        while gained / cost > f64::from(least) {
            shuffle(candidates, candidates.len(), random);
            let tried = candidates.iter().cycle().take(tries);
            gained = tried.map(|&x| self.gain(x, price)).sum();
            cost -= gained;
        }
        f64::from(cost as f32)
    }

    /// Finds `least` to `most` centers. Returns the cost, or `None` of so few points that each is a center.
    fn run(&mut self, least: usize, most: usize, random: &mut Drand48) -> Option<f64> {
        let count = self.points.list.len();
        let all = |at| f64::from(self.points.distance(at, 0) * self.points.list[at].weight);
        let mut dear: f64 = (0..count).map(all).sum();
        let mut cheap = 0.0;
        self.price = (dear + cheap) / 2.0;
        if count <= most {
            for at in 0..count {
                let point = &mut self.points.list[at];
                (point.center, point.cost, self.is_center[at]) = (at, 0.0, true);
            }
            self.centers = count;
            return None;
        }
        shuffle(&mut self.points.list, count - 1, random);
        let mut cost = self.open_at_random(random);
        if self.centers < least {
            cost = self.open_at_random(random);
        }
        while self.centers < least {
            dear = self.price;
            self.price = (dear + cheap) / 2.0;
            shuffle(&mut self.points.list, count - 1, random);
            cost = self.open_at_random(random);
        }
        let mut candidates = self.candidates(least, random);
        for point in &self.points.list {
            self.is_center[point.center] = true;
        }
        let tries = (TRIES * most as f64 * (most as f64).ln()) as usize;
        loop {
            cost = self.improve(&mut candidates, cost, tries, ROUGH, random);
            let (k, low, high) = (self.centers as f64, least as f64, most as f64);
            if (k <= 1.1 * high && k >= 0.9 * low) || (k <= high + 2.0 && k >= low - 2.0) {
                cost = self.improve(&mut candidates, cost, tries, FINE, random);
            }
            let price = self.price;
            if self.centers > most {
                cheap = price;
            }
            if self.centers < least {
                dear = price;
            }
            if (least..=most).contains(&self.centers) {
                return Some(cost);
            }
            self.price = (dear + cheap) / 2.0;
            cost += (self.price - price) * self.centers as f64;
            if cheap >= 0.999 * dear {
                return Some(cost);
            }
        }
    }

    /// What [`run`](Self::run) left must hold.
    fn check(&self, cost: Option<f64>) -> Result<(), String> {
        let open = self.is_center.iter().filter(|&&is| is).count();
        if open != self.centers {
            return Err(format!("{open} centers are open, and {} were counted", self.centers));
        }
        for (at, point) in self.points.list.iter().enumerate() {
            if !self.is_center[point.center] {
                return Err(format!("point {at} is at {}, which is not a center", point.center));
            }
            let recounted = self.points.cost(at, point.center);
            if point.cost != recounted {
                let counted = point.cost;
                return Err(format!("point {at} costs {recounted}, and {counted} was counted"));
            }
        }
        let recounted = self.price * self.centers as f64 + self.distances_cost();
        match cost {
            Some(cost) if (cost - recounted).abs() > TOLERANCE * recounted => {
                Err(format!("all costs {recounted}, and {cost} was counted"))
            }
            _ => Ok(()),
        }
    }
}

/// Moves each center to the mean of its points, and gives it their weight.
fn to_means(points: &mut Points) {
    for at in 0..points.list.len() {
        let Point { weight, center, row, .. } = points.list[at];
        if center == at {
            continue;
        }
        let moved = points.list[center].row * points.dimensions;
        let from = row * points.dimensions;
        let share = weight / (points.list[center].weight + weight);
        for of in 0..points.dimensions {
            let there = f64::from(points.block[moved + of]) * (1.0 - f64::from(share));
            points.block[moved + of] = there as f32 + points.block[from + of] * share;
        }
        points.list[center].weight += weight;
    }
}

/// What came of a run.
struct Clustered {
    /// Number in the stream (counted in the order that each chunk was left in) and weight of each center.
    centers: Vec<(usize, f32)>,
    chunks: u64,
    distances: u64,
    seconds: f64,
}

fn cluster(input: Input, seed: u64) -> Result<Clustered, String> {
    let Input { least, most, dimensions, .. } = input;
    let mut random = Drand48::new(seed);
    let mut points = Points::new(input.chunk, dimensions);
    let mut centers = Points::new(input.centers, dimensions);
    centers.list.clear();
    let mut numbers = Vec::new();
    let (mut chunks, mut distances, mut seconds, mut read) = (0, 0, 0.0, 0);
    let mut search = |points: &mut Points, random: &mut Drand48| -> Result<(), String> {
        let mut search = Search::new(points);
        let begun = Instant::now();
        let cost = search.run(least, most, random);
        seconds += begun.elapsed().as_secs_f64();
        distances += search.distances;
        search.check(cost)?;
        to_means(points);
        Ok(())
    };
    while read < input.points {
        let count = input.chunk.min(input.points - read);
        for coordinate in &mut points.block[..count * dimensions] {
            *coordinate = share(&mut random);
        }
        if count < points.list.len() {
            points.list.truncate(count);
            points.list.iter_mut().enumerate().for_each(|(row, point)| point.row = row);
        }
        points.list.iter_mut().for_each(|point| point.weight = 1.0);
        search(&mut points, &mut random)?;
        chunks += 1;
        let mut is_center = vec![false; count];
        for point in &points.list {
            is_center[point.center] = true;
        }
        for at in (0..count).filter(|&at| is_center[at]) {
            let row = centers.list.len();
            if row == input.centers {
                return Err(format!("more than {row} centers of chunks"));
            }
            let to = row * dimensions;
            centers.block[to..to + dimensions].copy_from_slice(points.row(at));
            let weight = points.list[at].weight;
            centers.list.push(Point { weight, row, center: 0, cost: 0.0 });
            numbers.push(read + at);
        }
        read += count;
    }
    search(&mut centers, &mut random)?;
    let mut is_center = vec![false; centers.list.len()];
    for point in &centers.list {
        is_center[point.center] = true;
    }
    let left = (0..is_center.len()).filter(|&at| is_center[at]);
    let centers: Vec<_> = left.map(|at| (numbers[at], centers.list[at].weight)).collect();
    let weight: f64 = centers.iter().map(|(_, weight)| f64::from(*weight)).sum();
    if weight != input.points as f64 {
        return Err(format!("{} points weigh {weight} in the end", input.points));
    }
    Ok(Clustered { centers, chunks, distances, seconds })
}

/// Points at any scale: more than may be centers, so that there is something to search.
const SMALLEST: usize = 2 * NATIVE.most;

pub(super) fn run(params: &Params) -> Outcome {
    let input = Input {
        points: params.scaled(NATIVE.points).max(SMALLEST),
        chunk: params.scaled(NATIVE.chunk).max(SMALLEST),
        ..NATIVE
    };
    let clustered = cluster(input, params.seed)?;
    Ok(Report {
        operations: clustered.distances,
        seconds: clustered.seconds,
        metrics: vec![
            ("points", input.points as f64),
            ("chunks", clustered.chunks as f64),
            ("centers", clustered.centers.len() as f64),
        ],
        check: format!(
            "{} points in {} clusters, each at the distance that was counted; costs are what the steps made of them",
            input.points,
            clustered.centers.len()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn centers(arguments: [usize; 6]) -> Vec<(usize, f32)> {
        let [least, most, dimensions, points, chunk, centers] = arguments;
        let input = Input { least, most, dimensions, points, chunk, centers };
        cluster(input, 1).unwrap().centers
    }

    // What the original writes with one thread: number and weight of each center.

    #[test]
    fn the_tests_of_the_original_give_its_results() {
        assert_eq!(centers([2, 5, 1, 10, 10, 5]), [(3, 6.0), (6, 4.0)]);
        assert_eq!(centers([3, 10, 3, 16, 16, 10]), [(4, 3.0), (9, 8.0), (12, 5.0)]);
    }

    #[test]
    fn its_small_simulation_gives_its_result() {
        let expected = [
            (25, 357.0),
            (336, 196.0),
            (603, 293.0),
            (613, 326.0),
            (797, 732.0),
            (831, 342.0),
            (1090, 210.0),
            (1186, 229.0),
            (1897, 257.0),
            (2177, 290.0),
            (2516, 237.0),
            (2897, 424.0),
            (3093, 203.0),
        ];
        assert_eq!(centers([10, 20, 32, 4096, 4096, 1000]), expected);
    }

    #[test]
    fn chunks_are_clustered_again_and_no_weight_is_lost() {
        // The last chunk is smaller than the others.
        let centers = centers([3, 6, 4, 210, 50, 100]);
        assert!((3..=6).contains(&centers.len()), "{centers:?}");
        assert_eq!(centers.iter().map(|(_, weight)| weight).sum::<f32>(), 210.0);
        let few = Input { least: 3, most: 6, dimensions: 4, points: 210, chunk: 50, centers: 10 };
        let error = cluster(few, 1).err().unwrap();
        assert!(error.contains("more than 10 centers"), "{error}");
    }

    #[test]
    fn a_few_points_are_their_own_centers() {
        for points in [1, 2, 10] {
            let centers = centers([10, 20, 2, points, points, 20]);
            let each: Vec<_> = (0..points).map(|at| (at, 1.0)).collect();
            assert_eq!(centers, each);
        }
    }

    #[test]
    fn a_wrong_cost_and_a_closed_center_are_found() {
        let mut points = Points::new(3, 1);
        points.block.copy_from_slice(&[0.0, 1.0, 3.0]);
        let mut search = Search::new(&mut points);
        assert_eq!(search.run(3, 3, &mut Drand48::new(1)), None);
        search.check(None).unwrap();
        search.points.list[1].center = 0;
        assert!(search.check(None).unwrap_err().contains("costs 1"));
        search.points.list[1].cost = 1.0;
        search.check(None).unwrap();
        let error = search.check(Some(2.0 * search.price)).unwrap_err();
        assert!(error.contains("was counted"), "{error}");
        search.is_center[2] = false;
        assert!(search.check(None).unwrap_err().contains("2 centers are open"));
        search.centers = 2;
        assert!(search.check(None).unwrap_err().contains("not a center"));
    }
}
