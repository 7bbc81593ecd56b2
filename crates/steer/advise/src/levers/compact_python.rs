//! CPython on the compacting heap, without pymalloc: holes in pymalloc's arenas, which are mappings of its own, are out
//! of reach of any malloc, and glibc's malloc has the same holes.

use pagemill_launch::cpython::{MALLOC, VARIABLE};

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

fn start() -> Start {
    let words = ["run", "--heap", "compact", "--backend", "remap", "--"];
    Start { variables: Start::with(VARIABLE, MALLOC).variables, ..Start::on_heap(&words) }
}

/// `PYTHONMALLOC=malloc`, and `run --heap compact`, by remapping.
pub struct CompactPython;

impl Lever for CompactPython {
    fn description(&self) -> [&'static str; 3] {
        [
            "compact Python",
            "CPython has small objects from pagemill's heap, which lays pages with holes over each other",
            "CPython, a command that rests",
        ]
    }

    fn compacts_python(&self) -> bool {
        true
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        target.may_preload()?;
        target.has_heap()?;
        Ok(start())
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        if !seen.pymalloc {
            return Estimate::nothing("it is not CPython with pymalloc");
        }
        // Each small object costs more without pymalloc, and pages are merged at rest.
        if seen.rested() < seen.seconds / 2.0 {
            return Estimate::nothing("it hardly rests, and is compacted when it does");
        }
        let malloc = seen.malloc.map_or(0, |malloc| malloc.heap);
        let beside = seen.share(seen.peak.anonymous.saturating_sub(malloc));
        let why = "how much pymalloc's arenas keep free is not known";
        Estimate::up_to(beside, 0.0, why).unknown().likely(beside / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_control::run_memory::Memory;
    use pagemill_model::shell;

    /// 73 of 80 MiB were holes in pymalloc's arenas, and all that was tried was glibc's malloc, which has them, too.
    #[test]
    fn a_python_that_rests_is_tried_and_one_that_works_is_not() {
        let look = Memory { bytes: 80 << 20, anonymous: 76 << 20, threads: 1, ..Memory::default() };
        let seen = |pymalloc: bool, user: f64| {
            let all = RunObservation::of(vec![look]);
            CompactPython.estimate(&RunObservation { pymalloc, user, seconds: 2.0, ..all })
        };
        let rests = seen(true, 0.2);
        assert!(rests.unknown && rests.memory > 0.9 && rests.likely > 0.4, "{rests:?}");
        assert_eq!((seen(true, 1.9).memory, seen(false, 0.2).memory), (0.0, 0.0));
    }

    #[test]
    fn both_are_in_its_line() {
        let line = start().line(&["python3".into()]);
        let heap = "pagemill run --heap compact --backend remap -- python3";
        assert_eq!(line, format!("{VARIABLE}={} {heap}", shell::quoted(MALLOC)));
    }
}
