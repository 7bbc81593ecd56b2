//! What does not run here, and why.

use pagemill_experiments::reproduce::plan::{Skipped, say_skipped};
use pagemill_launch::exit::Exit;

/// Says that nothing of what was asked for can run here, and why.
pub(super) fn nothing_runs(skipped: &[Skipped], is_roots: bool) -> Exit {
    say_skipped(skipped);
    notice!("nothing of what was asked for can run here");
    let words = |skip: &Skipped| match &skip.arm {
        Some(arm) => (arm.clone(), skip.reason.clone()),
        None => (skip.experiment.clone(), skip.reason.clone()),
    };
    let whys: Vec<_> = skipped.iter().map(words).collect();
    let whys: Vec<(&str, String)> =
        whys.iter().map(|(what, why)| (what.as_str(), why.clone())).collect();
    no_answer(&whys, is_roots)
}

/// The exit of who ran nothing, which a reader of JSON is told with the reasons.
pub(super) fn no_answer(whys: &[(&str, String)], is_roots: bool) -> Exit {
    let exit = if is_roots { Exit::Permission } else { Exit::Unsupported };
    let whys = whys.iter().map(|(what, why)| format!("{what}: {why}")).collect::<Vec<_>>();
    let why = format!("nothing of what was asked for can run here: {}", whys.join("; "));
    crate::answer::error(exit.status(), Some(&why));
    exit
}
