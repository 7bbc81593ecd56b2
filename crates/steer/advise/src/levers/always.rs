//! Huge pages at every first touch.

use pagemill_policy::huge::Policy as _;
use pagemill_policy::huge::linux::Linux;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// The setting `always`, borrowed while the command runs.
pub struct Always;

impl Lever for Always {
    fn description(&self) -> [&'static str; 3] {
        [
            "huge pages always",
            "huge pages at every first touch; the system's setting is borrowed while the command runs",
            "root",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_borrow()?;
        match target.thp.as_deref() {
            Some("always") => return Err("that is how it is on this system".into()),
            None => return Err("this kernel has no transparent huge pages".into()),
            _ => {}
        }
        Ok(Start::behind(&["run", "--huge", Linux::Always.name(), "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        seen.more_huge_pages()
    }
}
