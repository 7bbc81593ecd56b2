//! How much fast memory a program needs: the throughput of the best static placement by the size of the fast tier.
//!
//! The hottest pages are on the fast tier, by their heat at the end where it moves; brute force says how many of them
//! are best there. Page tables are on the fast tier, and the slow one holds whatever is left.
//!
//! Always so: more fast memory is not slower (but for the grid of shares that are tried); with all memory fast the
//! throughput is that of [`Sweep::all`].

use crate::run::{Prepared, Setup};
use crate::workload::GIB;

/// The best placement with so much fast memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Fast memory, bytes.
    pub fast: f64,
    /// Share of reads on it.
    pub share: f64,
    /// Units of the workload's metric a second.
    pub units_per_s: f64,
}

/// A program on a machine, ready to be placed on a fast tier of any size.
#[derive(Clone, Debug)]
pub struct Sweep {
    setup: Setup,
    prepared: Prepared,
    all: f64,
}

impl Sweep {
    /// Simulates what the tiers do at each share. `tick` is called after each point with its number and their count.
    #[must_use]
    pub fn prepare(setup: &Setup, tick: &mut dyn FnMut(usize, usize)) -> Self {
        let mut setup = setup.clone();
        if setup.moves_at.take().is_some() {
            for class in &mut setup.workload.classes {
                class.weight = class.later;
            }
        }
        let bytes = setup.workload.bytes();
        setup.machine = setup.machine.with("tier.alternate.capacity_gib", bytes / GIB);
        setup.workload.default_gib = Some(bytes / GIB);
        let prepared = setup.prepare(tick);
        let mut sweep = Self { setup, prepared, all: 0.0 };
        sweep.all = sweep.at(bytes).units_per_s;
        sweep
    }

    /// Bytes of the program.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.setup.workload.bytes()
    }

    /// Units a second with all memory fast.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.all
    }

    /// The best placement with `fast` bytes of fast memory.
    #[must_use]
    pub fn at(&self, fast: f64) -> Placement {
        let mut setup = self.setup.clone();
        setup.workload.default_gib = Some(fast / GIB);
        let (share, units_per_s) = setup.best(&self.prepared);
        Placement { fast, share, units_per_s }
    }

    /// The least fast memory, in bytes, with which the program has so large a part of [`Sweep::all`], to a thousandth
    /// of its size.
    #[must_use]
    pub fn needs(&self, part: f64) -> f64 {
        let enough = |fast: f64| self.at(fast).units_per_s >= part * self.all;
        if enough(0.0) {
            return 0.0;
        }
        let (mut short, mut long) = (0.0, self.bytes());
        while long - short > self.bytes() / 1000.0 {
            let middle = f64::midpoint(short, long);
            if enough(middle) { long = middle } else { short = middle }
        }
        long
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{ICELAKE, Machine};
    use crate::surface::Sampling;
    use crate::workload::{Class, Workload, chase};

    /// Nine of ten accesses go to an eighth of the memory.
    fn skewed(gib: f64, hot: f64) -> Setup {
        let like = chase(gib);
        let class = |name: &str, part: f64, weight: f64| Class {
            name: name.to_owned(),
            bytes: part * gib * GIB,
            weight,
            later: weight,
        };
        Setup {
            machine: Machine::parse(ICELAKE).unwrap(),
            workload: Workload {
                classes: vec![class("cold", 1.0 - hot, 0.1), class("hot", hot, 0.9)],
                ..like
            },
            policy: "none".to_owned(),
            steps: 0.0,
            later_steps: None,
            moves_at: None,
            seconds: 1.0,
            scale: 64.0,
            noise: 0.0,
            seed: 1,
            sampling: Sampling { measure_ns: 1_000_000.0, ..Sampling::default() },
        }
    }

    #[test]
    fn more_fast_memory_is_never_slower_and_what_is_needed_is_the_hot_part() {
        let sweep = Sweep::prepare(&skewed(8.0, 0.125), &mut |_, _| {});
        let sizes = (0..=32).map(|part| sweep.at(f64::from(part) / 32.0 * sweep.bytes()));
        let speeds: Vec<f64> = sizes.map(|at| at.units_per_s).collect();
        // Shares are tried on a grid.
        assert!(speeds.windows(2).all(|pair| pair[1] > 0.999 * pair[0]), "{speeds:?}");
        assert!((speeds[32] - sweep.all()).abs() < 1e-6 && speeds[0] < sweep.all());
        // A chase spends its time waiting: with the hot part fast, nine of ten waits for the slow tier are gone.
        let time = |speed: f64| 1.0 / speed;
        let hot = time(sweep.all()) + 0.1 * (time(speeds[0]) - time(sweep.all()));
        let needs = sweep.needs(0.97 * time(sweep.all()) / hot) / GIB;
        assert!((0.5..1.1).contains(&needs), "{needs} GiB of 1");
        assert!(sweep.at(sweep.needs(0.999)).units_per_s >= 0.999 * sweep.all());
        assert_eq!(sweep.needs(0.0), 0.0);
    }
}
