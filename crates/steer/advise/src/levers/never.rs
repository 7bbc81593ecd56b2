//! No huge pages at all.

use pagemill_policy::huge::Policy as _;
use pagemill_policy::huge::linux::Linux;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::{RunObservation, bytes};

/// Transparent huge pages switched off for the command and what it starts.
pub struct Never;

impl Lever for Never {
    fn description(&self) -> [&'static str; 3] {
        [
            "no huge pages",
            "transparent huge pages are switched off for the command (PR_SET_THP_DISABLE)",
            "",
        ]
    }

    fn start(&self, _: &Target) -> Result<Start, String> {
        Ok(Start::behind(&["run", "--huge", Linux::Never.name(), "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        let huge = seen.most_huge();
        if huge == 0 {
            return Estimate::nothing("it has no huge pages as it is");
        }
        let share = seen.share(seen.bloat.unwrap_or(huge));
        let why = match seen.bloat {
            Some(zeros) => format!("{} of its huge pages hold only zeros", bytes(zeros as f64)),
            None => {
                "how much of its huge pages it leaves untouched is not known: at most this".into()
            }
        };
        // What may be untouched of huge pages; and the zeroing of it, which is the kernel's time.
        Estimate::up_to(share, seen.system_share(), why)
    }
}
