//! glibc's malloc that gives all free memory back whenever the command rests.

use pagemill_launch::allocator::Allocator;
use pagemill_launch::library;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::{Merging, RunObservation, UNKNOWN, bytes};

/// A command that rests for less in all, seconds, is not noticed to rest.
const REST: f64 = 0.4;

/// `run --trim`: `malloc_trim(0)` at rest.
pub struct TrimAtRest;

impl Lever for TrimAtRest {
    fn description(&self) -> [&'static str; 3] {
        [
            "trim at rest",
            "glibc's malloc gives back all free pages whenever the command rests (malloc_trim(3))",
            "glibc's malloc",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        library::find_trim().map_err(|error| error.to_string())?;
        Ok(Start::behind(&["run", "--trim", "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        seen.only_with(Allocator::Glibc, || at_rest(seen))
    }
}

/// What is free whenever it rests.
fn at_rest(seen: &RunObservation) -> Estimate {
    if seen.rested() < REST {
        return Estimate::nothing("it hardly rests, and is trimmed when it does");
    }
    if let Some(malloc) = seen.malloc {
        let share = seen.share(malloc.returnable);
        let whole = bytes(malloc.returnable as f64);
        return Estimate::up_to(
            share,
            0.0,
            format!("glibc's malloc has {whole} free in whole pages"),
        );
    }
    let other = seen.other_malloc(Merging::Never);
    let why = match other.memory {
        0.0 => other.why,
        _ => UNKNOWN.into(),
    };
    Estimate { time: 0.0, why, ..other }
}
