//! Hint faults: TPP (Maruf et al., ASPLOS 2023) as it stands in Linux 6.3 with
//! `numa_balancing=2`, and the two places where the Colloid port changes it.
//!
//! Terms: the scanner takes access away from pages of the alternate tier and stamps them; the next
//! touch faults. The *fault latency* is the time between stamp and fault: short means hot. A fault
//! below the *threshold* makes the page a candidate for promotion.
//!
//! Algorithm (kernel/sched/fair.c, `should_numa_migrate_memory`):
//! 1. free frames on the default tier: promote, and let the threshold start again from its ceiling;
//! 2. fault latency at or above the threshold: stay;
//! 3. count a candidate; above the promotion rate limit of this second: stay;
//! 4. promote.
//!
//! Once a scan period the threshold moves by an eighth of the reference (`ref_th * 2 / 16`): down where candidates
//! exceeded the rate limit by a tenth, up where they fell short by a tenth, never above twice it.
//!
//! The Colloid port asks for the boolean `overloaded` and (a) promotes nothing while it holds,
//! (b) stamps pages of the default tier too, and demotes a page that faults below the threshold while
//! it holds.
//!
//! Always so: promotions in one second stay within the rate limit except those into free frames; the
//! threshold stays within an eighth and twice its reference.

use super::{Fault, FaultTracker, Verdict};
use crate::tier::Tier;
use crate::tier::kind::{HintFaultSettings, PageSize, TrackerKind, Watches};

/// `tpp`.
pub const KIND: TrackerKind = TrackerKind {
    name: "tpp",
    watches: Watches::HintFaults(|settings| Box::new(Tpp::new(settings))),
    page: PageSize::Base,
    splits: false,
};

/// The state of the promotion path.
#[derive(Clone, Debug)]
pub struct Tpp {
    config: HintFaultSettings,
    threshold_ms: f64,
    candidates: u64,
    adapted_ms: u64,
    second: u64,
    promoted: u64,
}

/// Steps between nothing and twice the reference (`NUMA_MIGRATION_ADJUST_STEPS`).
const STEPS: f64 = 16.0;

impl Tpp {
    /// A tracker that has seen nothing.
    #[must_use]
    pub const fn new(config: HintFaultSettings) -> Self {
        Self {
            threshold_ms: config.threshold_ms,
            config,
            candidates: 0,
            adapted_ms: 0,
            second: 0,
            promoted: 0,
        }
    }

    /// The fault latency below which a page is hot, now.
    #[must_use]
    pub const fn threshold_ms(&self) -> f64 {
        self.threshold_ms
    }

    fn promotion(&mut self, fault: Fault, overloaded: bool) -> Verdict {
        if fault.room {
            self.threshold_ms = self.config.threshold_ms;
            return if overloaded { Verdict::Stay } else { Verdict::Promote };
        }
        self.adapt(fault.now_ms);
        if fault.latency_ms >= self.threshold_ms || overloaded {
            return Verdict::Stay;
        }
        self.candidates += 1;
        let second = fault.now_ms / 1000;
        if second != self.second {
            self.second = second;
            self.promoted = 0;
        }
        if self.promoted >= self.config.pages_per_second {
            return Verdict::Stay;
        }
        self.promoted += 1;
        Verdict::Promote
    }

    fn adapt(&mut self, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.adapted_ms);
        if elapsed < self.config.adapt_ms {
            return;
        }
        let wanted = self.config.pages_per_second as f64 * elapsed as f64 / 1000.0;
        let unit = self.config.threshold_ms * 2.0 / STEPS;
        let seen = self.candidates as f64;
        if seen > wanted * 1.1 {
            self.threshold_ms = (self.threshold_ms - unit).max(unit);
        } else if seen < wanted * 0.9 {
            self.threshold_ms = (self.threshold_ms + unit).min(2.0 * self.config.threshold_ms);
        }
        self.candidates = 0;
        self.adapted_ms = now_ms;
    }
}

impl FaultTracker for Tpp {
    fn stamps(&self, tier: Tier) -> bool {
        tier == Tier::Alternate || self.config.colloid
    }

    fn fault(&mut self, fault: Fault) -> Verdict {
        let overloaded = self.config.colloid && fault.overloaded;
        match fault.tier {
            Tier::Default if overloaded && fault.latency_ms < self.threshold_ms => Verdict::Demote,
            Tier::Default => Verdict::Stay,
            Tier::Alternate => self.promotion(fault, overloaded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(colloid: bool) -> HintFaultSettings {
        HintFaultSettings { threshold_ms: 1000.0, pages_per_second: 50, adapt_ms: 1000, colloid }
    }

    proptest! {
        #[test]
        fn promotions_stay_within_the_limit_and_the_threshold_within_its_range(
            faults in prop::collection::vec((0_u64..40, 0.0_f64..3000.0), 1..600),
        ) {
            let mut tpp = Tpp::new(config(false));
            let (mut now_ms, mut second, mut promoted) = (0, 0, 0);
            for (gap, latency_ms) in faults {
                now_ms += gap;
                let verdict = tpp.fault(Fault {
                    now_ms, tier: Tier::Alternate, latency_ms, room: false, overloaded: true,
                });
                if now_ms / 1000 != second {
                    second = now_ms / 1000;
                    promoted = 0;
                }
                promoted += u64::from(verdict == Verdict::Promote);
                prop_assert!(promoted <= 50);
                prop_assert!((125.0..=2000.0).contains(&tpp.threshold_ms()));
            }
        }

        #[test]
        fn an_overloaded_default_tier_takes_nothing_in_and_gives_hot_pages_away(
            latency_ms in 0.0_f64..3000.0, room in any::<bool>(),
        ) {
            let mut tpp = Tpp::new(config(true));
            let mut fault = Fault { now_ms: 1, tier: Tier::Alternate, latency_ms, room, overloaded: true };
            prop_assert_eq!(tpp.fault(fault), Verdict::Stay);
            fault.tier = Tier::Default;
            let hot = latency_ms < tpp.threshold_ms();
            prop_assert_eq!(tpp.fault(fault), if hot { Verdict::Demote } else { Verdict::Stay });
            fault.overloaded = false;
            prop_assert_eq!(tpp.fault(fault), Verdict::Stay);
        }
    }

    #[test]
    fn a_flood_of_candidates_lowers_the_threshold() {
        let mut tpp = Tpp::new(config(false));
        for now_ms in 0..5000 {
            for _ in 0..2 {
                tpp.fault(Fault {
                    now_ms,
                    tier: Tier::Alternate,
                    latency_ms: 1.0,
                    room: false,
                    overloaded: false,
                });
            }
        }
        assert!(tpp.threshold_ms() < 800.0, "{}", tpp.threshold_ms());
    }
}
