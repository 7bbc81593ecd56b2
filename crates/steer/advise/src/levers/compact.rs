//! The compacting heap of pagemill.

use pagemill_launch::allocator::Allocator;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::levers::plain::ON_IT;
use crate::look::RunObservation;

/// `run --heap compact`, by remapping.
pub struct Compact;

impl Lever for Compact {
    fn name(&self) -> &'static str {
        "compacting heap"
    }

    fn what(&self) -> &'static str {
        "pagemill's heap, which lays pages with holes over each other"
    }

    fn needs(&self) -> &'static str {
        ""
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        target.has_heap()?;
        Ok(Start::behind(&["run", "--heap", "compact", "--backend", "remap", "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        match seen.allocator {
            Some(Allocator::Pagemill) => Estimate::nothing(ON_IT),
            _ => seen.other_malloc(true),
        }
    }
}
