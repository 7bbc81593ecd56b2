//! What the launcher remembers of a process and its regions.

use std::time::Duration;

use pagemill_kernel::Linux;
use pagemill_kernel::memory::huge_pages_of::Pages;
use pagemill_kernel::memory::maps::top_of_mappings;
use pagemill_model::Pid;
use pagemill_policy::huge::{Action, Figure};
use pagemill_prefault::board::{Process, ProcessWord, REGIONS};

use super::trial::Trial;
use super::view::RecentCosts;

/// What was measured of huge pages counts for so long.
const FRESH: Duration = Duration::from_millis(500);
/// Bytes that are growth.
const GROWN: u64 = 1 << 20;

/// What is remembered of a region.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Decided {
    pub(super) generation: u64,
    pub(super) action: Action,
    pub(super) at: Duration,
}

/// What is remembered of a process.
#[derive(Debug, Default)]
pub(super) struct Member {
    pub(super) decided: [Decided; REGIONS],
    pub(super) huge: u64,
    pub(super) made: Duration,
    pub(super) base: u64,
    pub(super) touched: Duration,
    /// Resident bytes when it was last seen to have grown.
    pub(super) seen_at: u64,
    /// Resident bytes when growth was worked out last.
    pub(super) resident: Option<(Duration, u64)>,
    pub(super) growth: Figure,
    pub(super) pages: Option<Pages>,
    pub(super) top: u64,
    /// The last huge page whose zeros were counted.
    pub(super) looked: u64,
    pub(super) known: bool,
    /// What its growth is tried under.
    pub(super) trial: Option<Trial>,
}

impl Member {
    /// How fast the process grows, bytes a millisecond of a window.
    fn grown(&mut self, process: Process<'_>, now: Duration) -> Figure {
        const WINDOW: Duration = Duration::from_millis(40);
        let resident = process.get(ProcessWord::Resident);
        let (then, before) = *self.resident.get_or_insert((now, resident));
        if now >= then + WINDOW {
            let passed = (now - then).as_millis() as u64;
            let seen = resident.saturating_sub(before) / passed;
            let smooth = self.growth.value().map_or(seen, |growth| growth.midpoint(seen));
            self.growth = Figure::Measured(smooth);
            self.resident = Some((now, resident));
        }
        self.growth
    }

    /// Takes in what the library counts: what has just come of it, and whether the process has grown.
    pub(super) fn seen(
        &mut self,
        linux: &Linux,
        process: Process<'_>,
        now: Duration,
    ) -> (RecentCosts, bool) {
        if !self.known {
            self.known = true;
            let maps = linux.maps(Pid(process.get(ProcessWord::Pid) as u32));
            self.top = top_of_mappings(&maps.unwrap_or_default());
        }
        let base =
            process.get(ProcessWord::BasePages).wrapping_add(process.get(ProcessWord::Heads));
        if process.get(ProcessWord::HugePages) != self.huge {
            (self.huge, self.made) = (process.get(ProcessWord::HugePages), now);
        }
        if base != self.base {
            (self.base, self.touched) = (base, now);
        }
        let resident = process.get(ProcessWord::Resident);
        let grew = resident.abs_diff(self.seen_at) >= GROWN;
        if grew {
            self.seen_at = resident;
        }
        let fresh = RecentCosts {
            huge: self.made + FRESH > now,
            base: self.touched + FRESH > now,
            growth: self.grown(process, now),
        };
        (fresh, grew)
    }
}
