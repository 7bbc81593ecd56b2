//! The compacting heap of pagemill, merged by the kernel.

use pagemill_launch::allocator::Allocator;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::levers::plain::ON_IT;
use crate::observation::{Merging, RunObservation};

/// `run --ksm`.
pub struct Ksm;

impl Lever for Ksm {
    fn description(&self) -> [&'static str; 3] {
        [
            "ksm heap",
            "pagemill's heap, whose pages with holes ksmd merges; opens a side channel between programs that offer \
         memory to it",
            "root",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        target.has_heap()?;
        if !target.root {
            return Err("switching ksmd on needs root".into());
        }
        if target.linux.ksm_counters().is_err() {
            return Err("this kernel has no KSM (CONFIG_KSM)".into());
        }
        Ok(Start { merged: true, ..Start::on_heap(&["run", "--ksm", "--heap", "compact", "--"]) })
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        // ksmd comes round once in seconds.
        if seen.seconds < 5.0 && !seen.lives {
            return Estimate::nothing(
                "ksmd needs several seconds to merge anything, and it ends before",
            );
        }
        match seen.allocator {
            Some(Allocator::Pagemill) => Estimate::nothing(ON_IT),
            _ => seen.other_malloc(Merging::AnyTime),
        }
    }
}
