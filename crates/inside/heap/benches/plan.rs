//! The planner against the random pairing of the paper, and over unit sizes: prints tables.
//!
//! `cargo bench -p pagemill-heap --bench plan`

use std::time::Instant;

use pagemill_heap::plan::{self, Gain, Geometry, Limits, NONE, Scratch, pack};

const PAGE: u32 = 4096;

/// A seeded generator (xorshift64*), so that every run plans the same input.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn chance(&mut self, share: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= share
    }
}

/// Slots of a region, live with the given probability each.
fn region(slots: usize, share: f64) -> Vec<bool> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    (0..slots).map(|_| random.chance(share)).collect()
}

fn units<const W: usize>(region: &[bool], slots: usize) -> Vec<[u64; W]> {
    region
        .chunks_exact(slots)
        .map(|unit| {
            let mut bits = [0; W];
            for (slot, live) in unit.iter().enumerate() {
                bits[slot / 64] |= u64::from(*live) << (slot % 64);
            }
            bits
        })
        .collect()
}

/// Groups and gain of our planner, and the time it took in milliseconds.
fn ours<const W: usize>(bits: &[[u64; W]], geometry: &Geometry, limits: Limits) -> (Gain, f64) {
    let n = bits.len();
    let (mut order, mut unions, mut sizes) = (vec![0; n], vec![[0; W]; n], vec![0; n]);
    let mut group = vec![NONE; n];
    let begin = Instant::now();
    let scratch = Scratch { order: &mut order, unions: &mut unions, sizes: &mut sizes };
    let groups = pack(bits, limits, scratch, &mut group);
    let (mut members, mut starts) = (vec![0; n], vec![0; n + 1]);
    plan::arrange(&mut group, groups, |_| true, &mut members, &mut starts, &mut sizes);
    let time = begin.elapsed().as_secs_f64() * 1e3;
    (plan::gain(bits, |_| true, geometry, &group, &mut unions), time)
}

/// `SplitMesher` (Mesh, PLDI 2019, figure 2): shuffle, split in two, probe `t` = 64 partners; run
/// again and again on what it made, until a pass finds fewer than one pair in a hundred units.
fn split_mesher<const W: usize>(bits: &[[u64; W]]) -> (usize, f64) {
    let mut random = Random(42);
    let mut left: Vec<[u64; W]> =
        bits.iter().copied().filter(|bits| plan::population(bits) > 0).collect();
    let begin = Instant::now();
    loop {
        for i in (1..left.len()).rev() {
            left.swap(i, random.below(i + 1));
        }
        let half = left.len() / 2;
        let mut meshed = vec![false; left.len()];
        let mut found = 0;
        for probe in 0..64.min(half) {
            for i in 0..half {
                let j = half + (i + probe) % half;
                if !meshed[i] && !meshed[j] && left[i].iter().zip(&left[j]).all(|(a, b)| a & b == 0)
                {
                    let other = left[j];
                    left[i].iter_mut().zip(other).for_each(|(word, more)| *word |= more);
                    (meshed[i], meshed[j]) = (true, true);
                    found += 1;
                }
            }
        }
        // The joined units take part in the next pass as one.
        left = (0..left.len()).filter(|i| !(meshed[*i] && *i >= half)).map(|i| left[i]).collect();
        if found * 100 <= left.len() {
            return (left.len(), begin.elapsed().as_secs_f64() * 1e3);
        }
    }
}

fn row<const W: usize>(region: &[bool], slots_a_page: usize, pages: usize, limits: Limits) {
    let bits: Vec<[u64; W]> = units(region, slots_a_page * pages);
    let slot_size = PAGE / slots_a_page as u32;
    let geometry = Geometry { slot_size, phase: 0, pages: pages as u8, page_size: PAGE };
    let (gain, time) = ours(&bits, &geometry, limits);
    let all: u32 = bits.iter().map(|unit| geometry.touched(unit).count_ones()).sum();
    let live: u32 = bits.iter().map(plan::population).sum();
    println!(
        "{pages:>4} {:>7} {:>7} {:>7} {:>7} {:>9} {:>9} {:>8.1} {time:>8.1}",
        bits.len(),
        gain.groups,
        gain.units,
        gain.runs,
        all,
        all - gain.saved(),
        f64::from(live) / slots_a_page as f64,
        // The pages that the live bytes would fill if they could be moved at will.
    );
}

fn main() {
    for (share, slots_a_page) in [(0.092, 16), (0.33, 16), (0.25, 16), (0.092, 8)] {
        println!("43,750 pages, {slots_a_page} slots a page, {:.1} % live", share * 100.0);
        println!("unit   units  groups  merged    runs    before     after    bound       ms");
        let region = region(43_750 * slots_a_page, share);
        row::<1>(&region, slots_a_page, 1, Limits::DEFAULT);
        row::<1>(&region, slots_a_page, 2, Limits::DEFAULT);
        row::<1>(&region, slots_a_page, 4, Limits::DEFAULT);
        row::<2>(&region, slots_a_page, 8, Limits::DEFAULT);
        row::<4>(&region, slots_a_page, 16, Limits::DEFAULT);
        println!();
    }
    println!("against SplitMesher (t = 64, repeated), 8,192 single-page units: pages left");
    println!("slots  live   units   ours (ms)        paper (ms)");
    for slots in [16, 64, 256] {
        for share in [0.05, 0.1, 0.2, 0.3, 0.4, 0.5] {
            let region = region(8192 * slots, share);
            let bits: Vec<[u64; 4]> = units(&region, slots);
            let occupied = bits.iter().filter(|bits| plan::population(bits) > 0).count();
            let slot_size = PAGE / slots as u32;
            let geometry = Geometry { slot_size, phase: 0, pages: 1, page_size: PAGE };
            let (gain, time) = ours(&bits, &geometry, Limits::DEFAULT);
            let left = occupied - gain.saved() as usize;
            let (theirs, their_time) = split_mesher(&bits);
            println!(
                "{slots:>5} {:>4.0} % {occupied:>6} {left:>7} ({time:>5.1}) {theirs:>9} ({their_time:>6.1})",
                share * 100.0
            );
            assert!(left <= theirs, "the random pairing saves more: {theirs} < {left}");
        }
    }
}
