//! Ways to back the command's growth, tried on itself while it runs.

use pagemill_launch::library;
use pagemill_policy::huge::Policy as _;
use pagemill_policy::huge::auto::Auto;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// `run --huge auto`.
pub struct Tried;

impl Lever for Tried {
    fn description(&self) -> [&'static str; 3] {
        [
            "pages by trial",
            "pieces of the command's growth are tried on base pages, 64 KiB and 2 MiB while it runs, and the \
             cheapest is kept",
            "a command that grows for seconds",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        match target.thp.as_deref() {
            Some("madvise" | "always") => {}
            _ => return Err("transparent huge pages are off on this system".into()),
        }
        library::find_prefault().map_err(|error| error.to_string())?;
        Ok(Start::behind(&["run", "--huge", Auto::THROUGHPUT.name(), "--"]))
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        seen.more_huge_pages()
    }
}
