//! Settings of an allocator that the command has: free pages go back earlier.

use pagemill_launch::allocator::Allocator;
use pagemill_launch::program;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::{RunObservation, UNKNOWN};

/// Settings of jemalloc or mimalloc.
pub struct Purge {
    name: &'static str,
    what: &'static str,
    of: Allocator,
    settings: &'static str,
}

/// jemalloc's pages go back when they are freed.
pub const AT_ONCE: Purge = Purge {
    name: "purge at once",
    what: "jemalloc gives free pages back when they are freed, not 10 s later (dirty_decay_ms)",
    of: Allocator::Jemalloc,
    settings: "dirty_decay_ms:0",
};

/// jemalloc's pages go back within a second, by a thread of its own.
pub const BEHIND: Purge = Purge {
    name: "purge behind",
    what: "a thread of jemalloc gives free pages back within a second, also while the command rests",
    of: Allocator::Jemalloc,
    settings: "background_thread:true,dirty_decay_ms:1000",
};

/// mimalloc's pages go back when they are freed.
pub const MIMALLOC: Purge = Purge {
    name: "mimalloc purge",
    what: "mimalloc gives free pages back when they are freed",
    of: Allocator::Mimalloc,
    settings: "0",
};

impl Lever for Purge {
    fn description(&self) -> [&'static str; 3] {
        [self.name, self.what, self.of.name()]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        if self.of == Allocator::Mimalloc {
            // The name of version 2.1 on, and that before.
            let mut start = Start::with("MIMALLOC_PURGE_DELAY", self.settings);
            start.variables.push(("MIMALLOC_DECOMMIT_DELAY", self.settings.into()));
            return Ok(start);
        }
        // A program that carries it under other names has another name for its settings, too.
        let name = match program::own_allocator(&target.path) {
            Some((_, "je_malloc")) => "JE_MALLOC_CONF",
            Some((_, "_rjem_malloc")) => "_RJEM_MALLOC_CONF",
            _ => "MALLOC_CONF",
        };
        Ok(Start::added(name, ",", self.settings))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        let why = UNKNOWN;
        seen.only_with(self.of, || seen.given_back(why))
    }
}
