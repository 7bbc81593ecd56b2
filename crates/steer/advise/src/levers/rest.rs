//! glibc's malloc that gives all free memory back whenever the command rests.

use pagemill_launch::allocator::Allocator;
use pagemill_launch::library;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::look::Seen;

/// A command that rests for less in all, seconds, is not noticed to rest.
const REST: f64 = 0.4;

/// `run --trim`: `malloc_trim(0)` at rest.
pub struct Rest;

impl Lever for Rest {
    fn name(&self) -> &'static str {
        "trim at rest"
    }

    fn what(&self) -> &'static str {
        "glibc's malloc gives back all free pages whenever the command rests (malloc_trim(3))"
    }

    fn needs(&self) -> &'static str {
        "glibc's malloc"
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        library::find_trim().map_err(|error| error.to_string())?;
        Ok(Start::behind(&["run", "--trim", "--"]))
    }

    fn estimate(&self, seen: &Seen) -> Estimate {
        seen.only_with(Allocator::Glibc, || at_rest(seen))
    }
}

/// What is free whenever it rests.
fn at_rest(seen: &Seen) -> Estimate {
    // Several threads may work at once: then a rest is missed here, which only costs a trial.
    let threads = seen.peak.threads.max(1) as f64;
    let waited = seen.looks.last().and_then(|look| look.waited).unwrap_or_default().as_secs_f64();
    if seen.seconds - (seen.user + seen.system + waited) / threads < REST {
        return Estimate::nothing("it hardly rests, and is trimmed when it does");
    }
    if let Some(malloc) = seen.malloc {
        let share = seen.share(malloc.returnable);
        return Estimate::up_to(share, 0.0, "whole pages that glibc's malloc held free at rest");
    }
    let estimate = seen.other_malloc();
    let why = match estimate.memory {
        0.0 => estimate.why,
        _ => "what malloc keeps free while it rests is a part of this".into(),
    };
    Estimate::up_to(estimate.memory, 0.0, why)
}
