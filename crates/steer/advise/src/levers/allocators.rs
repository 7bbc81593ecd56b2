//! The common allocators, preloaded.

use std::path::Path;

use pagemill_launch::library::distributed;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// An allocator of the distribution.
pub struct Allocator {
    name: &'static str,
    what: &'static str,
    package: &'static str,
    files: &'static [&'static str],
}

/// jemalloc.
pub const JEMALLOC: Allocator = Allocator {
    name: "jemalloc",
    what: "jemalloc in place of the command's malloc",
    package: "libjemalloc2",
    files: &["libjemalloc.so.2"],
};

/// mimalloc.
pub const MIMALLOC: Allocator = Allocator {
    name: "mimalloc",
    what: "mimalloc in place of the command's malloc",
    package: "libmimalloc2.0",
    files: &["libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so.3"],
};

/// tcmalloc.
pub const TCMALLOC: Allocator = Allocator {
    name: "tcmalloc",
    what: "tcmalloc in place of the command's malloc",
    package: "libtcmalloc-minimal4",
    files: &["libtcmalloc_minimal.so.4"],
};

impl Lever for Allocator {
    fn description(&self) -> [&'static str; 3] {
        [self.name, self.what, self.package]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        let path = distributed(self.name, self.package, self.files)?;
        Ok(Start::loading(Path::new(&path)))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        match seen.allocator {
            Some(has) if has.name() == self.name => Estimate::nothing("it has it as it is"),
            _ => seen.other_malloc(false),
        }
    }
}
