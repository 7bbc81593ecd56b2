//! Memory ahead of the command's growth, on huge pages where they pay.

use pagemill_launch::library;
use pagemill_policy::huge::Policy as _;
use pagemill_policy::huge::cbmm_plus::CbmmPlus;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// `run --huge cbmm+`.
pub struct Ahead;

impl Lever for Ahead {
    fn description(&self) -> [&'static str; 3] {
        [
            "huge pages ahead",
            "memory is provided ahead of the command's growth, on huge pages where they pay",
            "",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        match target.thp.as_deref() {
            Some("madvise" | "always") => {}
            _ => return Err("transparent huge pages are off on this system".into()),
        }
        library::find_prefault().map_err(|error| error.to_string())?;
        Ok(Start::behind(&["run", "--huge", CbmmPlus::USUAL.name(), "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        seen.more_huge_pages()
    }
}
