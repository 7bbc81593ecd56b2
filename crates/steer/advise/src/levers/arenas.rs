//! glibc's malloc with one arena: threads share free memory instead of each keeping its own.

use pagemill_launch::allocator::Allocator;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::{RunObservation, UNKNOWN, bytes};

/// `MALLOC_ARENA_MAX=1`.
pub struct Arenas;

impl Lever for Arenas {
    fn description(&self) -> [&'static str; 3] {
        [
            "one arena",
            "glibc's malloc keeps one arena for all threads (mallopt(3), M_ARENA_MAX)",
            "glibc's malloc",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_set_malloc().map(|()| Start::with("MALLOC_ARENA_MAX", "1"))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        if seen.peak.threads <= seen.peak.processes {
            return Estimate::nothing("it has one thread, and so one arena");
        }
        seen.only_with(Allocator::Glibc, || {
            let estimate = match seen.known() {
                Some(malloc) => {
                    let free = bytes(malloc.free as f64);
                    let why = format!("its malloc holds {free} free, in all arenas");
                    Estimate::up_to(seen.share(malloc.free), 0.0, why)
                }
                None => Estimate::up_to(seen.share(seen.peak.anonymous), 0.0, UNKNOWN).unknown(),
            };
            // All arenas but one, if each has its part of it.
            let threads = seen.peak.threads.saturating_sub(seen.peak.processes) + 1;
            let likely = estimate.memory * (1.0 - 1.0 / threads as f64);
            estimate.likely(likely)
        })
    }
}
