//! Policies by name: a tracker, alone or with `+` and a placer. The simulator and the daemon make theirs here, from the same
//! rows, so what is simulated is what runs.
//!
//! To add one: a file in `track/` or `place/` with its [`TrackerKind`] or [`PlacerKind`], and its line in [`TRACKERS`] or [`PLACERS`].

use super::drive::{FaultDriven, Sampled};
use super::place::{Placer, climb, colloid, pack};
use super::track::tpp::{self, Config};
use super::track::{Counter, hemem, memtis};

/// Who watches whether pages are hot.
pub const TRACKERS: &[&TrackerKind] = &[&NONE, &tpp::KIND, &hemem::KIND, &memtis::KIND];

/// How much goes where.
pub const PLACERS: &[&PlacerKind] =
    &[&pack::KIND, &colloid::PROPORTIONAL, &colloid::WATERMARK, &climb::KIND];

const NONE: TrackerKind =
    TrackerKind { name: "none", watches: Watches::Nothing, page: PageSize::Base, splits: false };

/// A kind of tracker.
#[derive(Debug)]
pub struct TrackerKind {
    /// Its name.
    pub name: &'static str,
    /// What it sees of the program.
    pub watches: Watches,
    /// The pages that the published system moves.
    pub page: PageSize,
    /// Whether it splits huge pages whose heat lies in few places.
    pub splits: bool,
}

/// What a tracker sees of a program.
#[derive(Clone, Copy, Debug)]
pub enum Watches {
    /// Nothing: no page moves.
    Nothing,
    /// Hint faults, which decide one by one.
    HintFaults,
    /// Sampled loads, which this counts.
    Samples(fn(&Terms) -> Box<dyn Counter>),
}

/// A size of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageSize {
    /// The processor's smallest.
    Base,
    /// What one entry of a page middle directory maps.
    Huge,
}

/// A kind of placer.
#[derive(Debug)]
pub struct PlacerKind {
    /// What follows the `+`; empty for the one that a tracker's name alone stands for.
    pub name: &'static str,
    /// Makes one.
    pub make: fn(&Terms) -> Box<dyn Placer>,
    /// Whether it needs the tiers' latencies.
    pub balances: bool,
    /// Whether it goes with hint faults, too.
    pub by_faults: bool,
}

/// What a policy cannot choose: how many pages there are, how long a quantum is, how exact the readings are.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Pages to begin with.
    pub pages: usize,
    /// Samples between two halvings of MEMTIS's counts.
    pub cooling: u64,
    /// Weight of a quantum in the smoothed loads, where samples are counted.
    pub weight: f64,
    /// Latencies this close, as a part of the default tier's, are equal to the proportional step.
    pub delta: f64,
    /// The same for the binary search.
    pub search_delta: f64,
    /// The binary search calls an interval of shares below this closed.
    pub search_epsilon: f64,
    /// Quanta whose mean rate is one step of a climb.
    pub patience: u32,
    /// The kernel's knobs for hint faults; `colloid` is the policy's to say.
    pub kernel: Config,
    /// Weight of a quantum in the smoothed latencies, where hint faults decide.
    pub fault_weight: f64,
}

impl Terms {
    /// Quanta of a second or so of a live machine. The ports smooth by a sixteenth each 10 ms: over a second that average
    /// would have forgotten nearly all that was before. What a probe sees varies by some percent. The paper's hundredth
    /// of the share is finer than the heat of one page of 2 MiB in all but large programs: a shift that no page fits into would be
    /// asked for forever. The kernel moves pages at its own pace.
    pub const LIVE: Self = Self {
        pages: 0,
        cooling: 1 << 20,
        weight: 0.5,
        delta: 0.05,
        search_delta: 0.05,
        search_epsilon: 0.1,
        patience: 5,
        kernel: Config {
            threshold_ms: 1000.0,
            pages_per_second: u64::MAX,
            adapt_ms: 1000,
            colloid: false,
        },
        // That of the published module when it sleeps between readings.
        fault_weight: 0.5,
    };

    /// Quanta of 10 ms, read without noise: the constants of the paper and of the HeMem port. A quarter of a second for each
    /// mean of a climb.
    pub const TEN_MS: Self =
        Self { weight: 0.0625, delta: 0.01, search_epsilon: 0.01, patience: 25, ..Self::LIVE };
}

/// What decides.
#[derive(Debug)]
pub enum Engine {
    /// Nothing is decided.
    Still,
    /// Fault by fault.
    Faults(Box<FaultDriven>),
    /// Quantum by quantum, by what was sampled.
    Samples(Box<Sampled>),
}

/// A policy that has seen nothing.
#[derive(Debug)]
pub struct Composed {
    /// Its tracker.
    pub tracker: &'static TrackerKind,
    /// Whether it needs the tiers' latencies.
    pub balances: bool,
    /// What decides.
    pub engine: Engine,
}

fn goes(tracker: &TrackerKind, placer: &PlacerKind) -> bool {
    match tracker.watches {
        Watches::Nothing => placer.name.is_empty(),
        Watches::HintFaults => placer.by_faults,
        Watches::Samples(_) => true,
    }
}

/// The names of all policies.
#[must_use]
pub fn names() -> Vec<String> {
    let of = |tracker: &'static TrackerKind| {
        let placers = PLACERS.iter().filter(|placer| goes(tracker, placer));
        placers.map(|placer| match placer.name {
            "" => tracker.name.to_owned(),
            name => format!("{}+{name}", tracker.name),
        })
    };
    TRACKERS.iter().copied().flat_map(of).collect()
}

/// The rows of a policy, if `name` is one.
#[must_use]
pub fn find(name: &str) -> Option<(&'static TrackerKind, &'static PlacerKind)> {
    let (tracker, placer) = match name.split_once('+') {
        Some((_, "")) => return None,
        Some(both) => both,
        None => (name, ""),
    };
    let tracker = TRACKERS.iter().find(|row| row.name == tracker)?;
    let placer = PLACERS.iter().find(|row| row.name == placer)?;
    goes(tracker, placer).then_some((*tracker, *placer))
}

/// The policy of this name, if it is one of [`names`].
#[must_use]
pub fn compose(name: &str, terms: &Terms) -> Option<Composed> {
    let (tracker, placer) = find(name)?;
    let engine = match tracker.watches {
        Watches::Nothing => Engine::Still,
        Watches::HintFaults => {
            let config = Config { colloid: placer.balances, ..terms.kernel };
            Engine::Faults(Box::new(FaultDriven::new(config, terms.fault_weight)))
        }
        Watches::Samples(counter) => Engine::Samples(Box::new(Sampled::new(
            counter(terms),
            (placer.make)(terms),
            terms.weight,
        ))),
    };
    Some(Composed { tracker, balances: placer.balances, engine })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_policy_and_no_other_text_is_any() {
        let names = names();
        assert_eq!(names.len(), 1 + 2 + 4 + 4, "{names:?}");
        for name in &names {
            let (tracker, placer) = find(name).unwrap();
            let again = format!("{}+{}", tracker.name, placer.name);
            assert_eq!(again.trim_end_matches('+'), name);
            let composed = compose(name, &Terms::LIVE).unwrap();
            assert_eq!(composed.balances, name.contains('+'), "{name}");
        }
        for text in [
            "",
            "+",
            "lru",
            "hemem+",
            "hemem+lru",
            "none+colloid",
            "tpp+climb",
            "+colloid",
            "hemem+colloid+climb",
        ] {
            assert!(find(text).is_none(), "{text}");
        }
    }
}
