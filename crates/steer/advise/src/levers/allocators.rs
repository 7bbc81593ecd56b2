//! The common allocators, preloaded.

use pagemill_launch::allocator::Distributed;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::{Merging, RunObservation};

/// An allocator of the distribution.
pub struct Preloaded(pub &'static Distributed);

impl Lever for Preloaded {
    fn description(&self) -> [&'static str; 3] {
        [self.0.name, self.0.does, self.0.package]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        Ok(Start::loading(&self.0.find()?))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        match seen.allocator {
            Some(has) if has.name() == self.0.name => Estimate::nothing("it has it as it is"),
            _ => seen.other_malloc(Merging::Never),
        }
    }
}
