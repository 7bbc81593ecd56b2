//! The compacting heap of pagemill.

use pagemill_launch::allocator::Allocator;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::levers::plain::ON_IT;
use crate::observation::{Merging, RunObservation};

/// `run --heap compact`, by remapping.
pub struct Compact;

impl Lever for Compact {
    fn description(&self) -> [&'static str; 3] {
        ["compacting heap", "pagemill's heap, which lays pages with holes over each other", ""]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        target.has_heap()?;
        Ok(Start::on_heap(&["run", "--heap", "compact", "--backend", "remap", "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        match seen.allocator {
            Some(Allocator::Pagemill) => Estimate::nothing(ON_IT),
            _ => seen.other_malloc(Merging::AtRest),
        }
    }
}
