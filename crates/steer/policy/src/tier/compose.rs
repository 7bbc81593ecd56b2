//! Policies by name: a tracker, alone or with `+` and a placer. The simulator and the daemon make theirs here, from the
//! same rows, so what is simulated is what runs.
//!
//! To add one: a file in `track/` or `place/` with its [`TrackerKind`] or [`PlacerKind`], and its line in [`TRACKERS`]
//! or [`PLACERS`].

use super::drive::{FaultDriven, Sampled};
use super::kind::{HintFaultSettings, PageSize, PlacerKind, Terms, TrackerKind, Watches};
use super::place::{colloid, pack, ucb};
use super::track::{RegionTracker, damon, hemem, memtis, tpp};

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
    Regions(Box<dyn RegionTracker>),
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
        Watches::Nothing | Watches::AccessedBits(_) => placer.name.is_empty(),
        Watches::HintFaults(_) => placer.by_faults,
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
    Some(composed(tracker, placer, terms))
}

fn composed(tracker: &'static TrackerKind, placer: &PlacerKind, terms: &Terms) -> Composed {
    let engine = match tracker.watches {
        Watches::Nothing => Engine::Still,
        Watches::AccessedBits(tracker) => Engine::Regions(tracker()),
        Watches::HintFaults(tracker) => {
            let settings = HintFaultSettings { colloid: placer.balances, ..terms.kernel };
            Engine::Faults(Box::new(FaultDriven::new(tracker(settings), terms.fault_weight)))
        }
        Watches::Samples(counter) => Engine::Samples(Box::new(Sampled::new(
            counter(terms),
            (placer.make)(terms),
            terms.weight,
        ))),
    };
    Composed { tracker, balances: placer.balances, engine }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::track::{Counter, Fault, FaultTracker, NodeMemory, Nodes, Verdict};
    use crate::tier::{Page, Tier};

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

    /// A tracker of each sort that is none of the listed: it demotes, makes frame 77 old, and calls hot what has 77.
    #[derive(Debug)]
    struct Dummy;

    impl FaultTracker for Dummy {
        fn stamps(&self, _tier: Tier) -> bool {
            false
        }
        fn fault(&mut self, _fault: Fault) -> Verdict {
            Verdict::Demote
        }
    }

    impl RegionTracker for Dummy {
        fn run(&mut self, from_us: u64, _until_us: u64, nodes: &mut dyn Nodes) {
            nodes.make_old(Tier::Default, 77, from_us);
        }
    }

    impl Counter for Dummy {
        fn sample(&mut self, _page: Page) {}
        fn heat(&self, _page: Page) -> u32 {
            0
        }
        fn grow(&mut self, _pages: usize) {}
        fn forget(&mut self, _page: Page) {}
        fn hot(&self, _capacity: usize) -> u32 {
            77
        }
    }

    /// Takes down which frames were made old.
    struct Old(Vec<usize>);

    impl Nodes for Old {
        fn frames(&self, _tier: Tier) -> usize {
            0
        }
        fn frame_bytes(&self) -> u64 {
            4096
        }
        fn make_old(&mut self, _tier: Tier, frame: usize, _now_us: u64) {
            self.0.push(frame);
        }
        fn young(&mut self, _tier: Tier, _frame: usize, _now_us: u64) -> bool {
            false
        }
        fn memory(&self) -> NodeMemory {
            NodeMemory { free: 0, all: 0 }
        }
        fn migrate(&mut self, _tier: Tier, _frame: usize) {}
    }

    #[test]
    fn a_tracker_is_what_its_row_makes_and_needs_no_other_place() {
        const fn row(watches: Watches) -> TrackerKind {
            TrackerKind { name: "dummy", watches, page: PageSize::Base, splits: false }
        }
        static ROWS: [TrackerKind; 3] = [
            row(Watches::HintFaults(|_| Box::new(Dummy))),
            row(Watches::AccessedBits(|| Box::new(Dummy))),
            row(Watches::Samples(|_| Box::new(Dummy))),
        ];
        let mut made = [0; 3];
        for (row, placer) in ROWS.iter().flat_map(|row| PLACERS.iter().map(move |it| (row, it))) {
            match composed(row, placer, &Terms::LIVE).engine {
                Engine::Still => panic!("{}", placer.name),
                Engine::Faults(mut driver) => {
                    assert!(!driver.stamps(Tier::Alternate));
                    assert_eq!(driver.fault(1, Tier::Alternate, 0.0, true), Verdict::Demote);
                    made[0] += 1;
                }
                Engine::Regions(mut driver) => {
                    let mut nodes = Old(Vec::new());
                    driver.run(0, 1, &mut nodes);
                    assert_eq!(nodes.0, [77]);
                    made[1] += 1;
                }
                Engine::Samples(mut driver) => {
                    assert_eq!(driver.counter().hot(1), 77);
                    made[2] += 1;
                }
            }
        }
        assert_eq!(made, [PLACERS.len(); 3]);
    }
}
