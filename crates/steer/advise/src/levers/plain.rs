//! The heap of pagemill without compaction: free pages are given back, nothing is merged.

use crate::lever::{Estimate, Lever, Start, Target};
use crate::look::Seen;

/// `run --heap plain`.
pub struct Plain;

impl Lever for Plain {
    fn name(&self) -> &'static str {
        "plain heap"
    }

    fn what(&self) -> &'static str {
        "pagemill's heap, which gives free pages back and merges nothing"
    }

    fn needs(&self) -> &'static str {
        ""
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        target.has_heap()?;
        Ok(Start::behind(&["run", "--heap", "plain", "--"]))
    }

    fn estimate(&self, seen: &Seen) -> Estimate {
        seen.other_malloc(false)
    }
}
