//! The heap of pagemill without compaction: free pages are given back, nothing is merged.

use pagemill_launch::allocator::Allocator;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::{Merging, RunObservation};

/// Who runs on that heap.
pub const PLAIN: Allocator = Allocator::Other("pagemill's heap, which does not compact here");
/// What is said of pagemill's heap where the program runs on it.
pub(crate) const ON_IT: &str = "it runs on pagemill's heap as it is";

/// `run --heap plain`.
pub struct Plain;

impl Lever for Plain {
    fn description(&self) -> [&'static str; 3] {
        ["plain heap", "pagemill's heap, which gives free pages back and merges nothing", ""]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        target.has_heap()?;
        Ok(Start::on_heap(&["run", "--heap", "plain", "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        match seen.allocator {
            Some(PLAIN | Allocator::Pagemill) => Estimate::nothing(ON_IT),
            _ => seen.other_malloc(Merging::Never),
        }
    }
}
