//! CPython without pymalloc, its own allocator of small objects, which gives an arena back only when nothing lives in
//! it.

use pagemill_launch::cpython::{MALLOC, VARIABLE};

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// `PYTHONMALLOC=malloc`.
pub struct Pymalloc;

impl Lever for Pymalloc {
    fn description(&self) -> [&'static str; 3] {
        [
            "no pymalloc",
            "CPython has small objects from malloc, not from arenas of its own that stay while anything lives in them",
            "CPython",
        ]
    }

    fn start(&self, _: &Target) -> Result<Start, String> {
        Ok(Start::with(VARIABLE, MALLOC))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        if !seen.pymalloc {
            return Estimate::nothing("it is not CPython with pymalloc");
        }
        let malloc = seen.malloc.map_or(0, |malloc| malloc.heap);
        let beside = seen.share(seen.peak.anonymous.saturating_sub(malloc));
        let why = "how much pymalloc's arenas keep free is not known";
        // malloc has more in front of each small object: mostly it takes more.
        Estimate::up_to(beside, 0.0, why).unknown().likely(0.0)
    }
}
