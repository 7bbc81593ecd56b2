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
            // What is not in memory can be no less.
            let estimate = match seen.bounded(|malloc| malloc.returnable + malloc.pieces) {
                Some(free) => {
                    let size = bytes(free as f64);
                    let why = format!("its malloc holds {size} free in memory, in all arenas");
                    Estimate::up_to(seen.share(free), 0.0, why)
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

#[cfg(test)]
mod tests {
    use pagemill_control::run_memory::Memory;
    use pagemill_record::malloc_free::MallocFree;

    use super::*;

    /// 338.6 KiB free, of which 328.0 KiB were address space, "may bring 13 %".
    #[test]
    fn free_address_space_is_no_memory_that_one_arena_saves() {
        let (bytes, anonymous) = (2600 << 10, 2600 << 10);
        let look = Memory { bytes, anonymous, threads: 9, processes: 1, ..Memory::default() };
        let (heap, free) = (2000 << 10, 339 << 10);
        let memory = |pieces: u64| {
            let malloc = Some(MallocFree { heap, free, returnable: 0, pieces });
            let seen = RunObservation { malloc, lives: true, ..RunObservation::of(vec![look]) };
            Arenas.estimate(&seen).memory
        };
        assert!(memory(11 << 10) < 0.01 && memory(330 << 10) > 0.12, "{}", memory(11 << 10));
    }
}
