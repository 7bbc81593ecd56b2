//! glibc's malloc that gives free memory back early.

use pagemill_launch::allocator::Allocator;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// `MALLOC_TRIM_THRESHOLD_`, which also keeps large blocks in mappings of their own.
pub struct Trim;

impl Lever for Trim {
    fn description(&self) -> [&'static str; 3] {
        [
            "early trim",
            "glibc's malloc gives the top of its heap back from 128 KiB on, and unmaps large blocks (mallopt(3), \
         M_TRIM_THRESHOLD)",
            "glibc's malloc",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_set_malloc().map(|()| Start::with("MALLOC_TRIM_THRESHOLD_", "131072"))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        seen.only_with(Allocator::Glibc, || {
            let estimate = seen.given_back(
                "malloc gives back free memory at the end of its heap, and large blocks when they are freed: how much \
                 that is is not known",
            );
            // Only what lies at the end goes back.
            match seen.known() {
                Some(_) => {
                    let likely = estimate.memory / 2.0;
                    estimate.likely(likely)
                }
                None => estimate,
            }
        })
    }
}
