//! Which page belongs on which memory tier: a *tracker* says who is hot, a *placer* says how much
//! goes where, [`compose`] makes a policy of one of each by name, [`drive`] has them decide, and [`live`] makes that a
//! policy over recorded views.
//!
//! | word | meaning |
//! |---|---|
//! | default tier | the tier with the lower unloaded latency, where pages are first allocated |
//! | alternate tier | the other one: CXL memory, another socket |
//! | share | the part of all reads that the default tier serves, in 0..=1 |
//! | shift | how much of the reads should change tier next, and in which direction |
//!
//! Trackers and placers know nothing of each other: `tpp+colloid` is a composition.

pub mod compose;
pub mod drive;
pub mod kind;
pub mod live;
pub mod place;
pub mod track;

/// One of two memory tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The tier with the lower unloaded latency.
    Default,
    /// The other tier.
    Alternate,
}

impl Tier {
    /// The tier a page would move to.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Default => Self::Alternate,
            Self::Alternate => Self::Default,
        }
    }
}

/// A page, numbered by the source of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Page(pub u32);

/// What one tier did over a quantum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Mean time a read spent in this tier, in nanoseconds, queueing included.
    pub latency_ns: f64,
    /// Reads served, per nanosecond.
    pub reads_per_ns: f64,
}

/// Both tiers over a quantum. Latency is measured as occupancy over rate (Little's law) or by a
/// probe; the policy does not care which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loads {
    /// The default tier.
    pub default: Load,
    /// The alternate tier.
    pub alternate: Load,
}

impl Loads {
    /// The part of all reads that the default tier serves; 1 when nothing is read at all.
    #[must_use]
    pub fn share(&self) -> f64 {
        let all = self.default.reads_per_ns + self.alternate.reads_per_ns;
        if all > 0.0 { (self.default.reads_per_ns / all).clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// An exponentially weighted average of occupancy and of rate, kept apart: the latency is their
/// quotient. Averaging the quotient itself would weigh idle moments as much as busy ones.
#[derive(Clone, Copy, Debug)]
pub struct SmoothedLoad {
    weight: f64,
    occupancy: Option<f64>,
    rate: f64,
}

impl SmoothedLoad {
    /// An average that gives `weight` (0..=1] to each new quantum.
    #[must_use]
    pub fn new(weight: f64) -> Self {
        Self { weight: weight.clamp(f64::MIN_POSITIVE, 1.0), occupancy: None, rate: 0.0 }
    }

    /// Takes one quantum in and returns the smoothed load.
    pub fn update(&mut self, load: Load) -> Load {
        let occupancy = load.latency_ns * load.reads_per_ns;
        match self.occupancy {
            None => {
                self.occupancy = Some(occupancy);
                self.rate = load.reads_per_ns;
            }
            Some(old) => {
                self.occupancy = Some(old + self.weight * (occupancy - old));
                self.rate += self.weight * (load.reads_per_ns - self.rate);
            }
        }
        let occupancy = self.occupancy.unwrap_or(0.0);
        let latency_ns = if self.rate > 0.0 { occupancy / self.rate } else { load.latency_ns };
        Load { latency_ns, reads_per_ns: self.rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_quantum_does_not_pull_the_latency_down() {
        let mut average = SmoothedLoad::new(0.5);
        average.update(Load { latency_ns: 200.0, reads_per_ns: 0.5 });
        let after = average.update(Load { latency_ns: 70.0, reads_per_ns: 0.001 });
        assert!(after.latency_ns > 195.0, "{after:?}");
    }

    #[test]
    fn a_machine_that_reads_nothing_has_its_reads_on_the_default_tier() {
        let idle = Load { latency_ns: 70.0, reads_per_ns: 0.0 };
        assert!((Loads { default: idle, alternate: idle }.share() - 1.0).abs() < f64::EPSILON);
    }
}
