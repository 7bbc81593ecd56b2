//! Policies by name: a tracker, alone or with `+` and a placer. The simulator and the daemon make theirs here, from the
//! same rows, so what is simulated is what runs.
//!
//! To add one: a file in `track/` or `place/` with its [`TrackerKind`] or [`PlacerKind`], and its line in [`TRACKERS`]
//! or [`PLACERS`].

use super::drive::{FaultDriven, Sampled};
use super::kind::{HintFaultSettings, PageSize, PlacerKind, Terms, TrackerKind, Watches};
use super::place::damos::Damos;
use super::place::{colloid, pack, ucb};
use super::track::{damon, hemem, memtis, tpp};

/// Who watches whether pages are hot.
pub const TRACKERS: &[&TrackerKind] =
    &[&NONE, &tpp::KIND, &damon::KIND, &hemem::KIND, &memtis::KIND];

/// How much goes where.
pub const PLACERS: &[&PlacerKind] =
    &[&pack::KIND, &colloid::PROPORTIONAL, &colloid::WATERMARK, &ucb::KIND];

const NONE: TrackerKind =
    TrackerKind { name: "none", watches: Watches::Nothing, page: PageSize::Base, splits: false };

/// What decides.
#[derive(Debug)]
pub enum Engine {
    /// Nothing is decided.
    Still,
    /// Fault by fault.
    Faults(Box<FaultDriven>),
    /// Region by region, in its own time.
    Regions(Box<Damos>),
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
        Watches::Nothing | Watches::AccessedBits => placer.name.is_empty(),
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
        Watches::AccessedBits => Engine::Regions(Box::default()),
        Watches::HintFaults => {
            let knobs = HintFaultSettings { colloid: placer.balances, ..terms.kernel };
            Engine::Faults(Box::new(FaultDriven::new(knobs, terms.fault_weight)))
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
        let different: std::collections::BTreeSet<&String> = names.iter().collect();
        assert!(different.len() == names.len() && names.len() > TRACKERS.len(), "{names:?}");
        for name in &names {
            let (tracker, placer) = find(name).unwrap();
            let again = format!("{}+{}", tracker.name, placer.name);
            assert_eq!(again.trim_end_matches('+'), name);
            let composed = compose(name, &Terms::LIVE).unwrap();
            assert_eq!(composed.balances, placer.balances, "{name}");
        }
        for text in [
            "",
            "+",
            "lru",
            "hemem+",
            "hemem+lru",
            "none+colloid",
            "tpp+ucb",
            "damon+colloid",
            "+colloid",
            "hemem+colloid+ucb",
            "hemem+climb",
        ] {
            assert!(find(text).is_none(), "{text}");
        }
    }
}
