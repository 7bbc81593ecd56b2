//! Pages of 64 KiB at every first touch.

use pagemill_policy::huge::Policy as _;
use pagemill_policy::huge::linux::Linux;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// The setting `always` of that size, borrowed while the command runs.
pub struct Medium;

impl Lever for Medium {
    fn description(&self) -> [&'static str; 3] {
        [
            "64 KiB pages",
            "pages of 64 KiB at every first touch; the system's setting of that size is borrowed while the command \
             runs",
            "root, Linux 6.8",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_borrow()?;
        match target.linux.thp_medium() {
            Some(setting) if setting.active == "always" => {
                return Err("that is how it is on this system".into());
            }
            None => return Err("this kernel has no pages of 64 KiB (6.8 does)".into()),
            Some(_) => {}
        }
        Ok(Start::behind(&["run", "--huge", Linux::Medium.name(), "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        seen.more_huge_pages()
    }
}
