//! Scores of free memory beside the kernel's own (`/sys/kernel/debug/extfrag`).

use anyhow::Result;
use pagemill_analysis::fragmentation::{external, unusable};
use pagemill_kernel::Linux;
use pagemill_kernel::memory::extfrag::{Extfrag, Scores};
use pagemill_model::Order;

/// What came of comparing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreCheck {
    /// Scores that are the kernel's.
    pub equal: u64,
    /// Scores that are not.
    pub unequal: u64,
    /// Times that a zone's free memory changed between the readings: it is not compared then.
    pub changed: u64,
}

/// Compares until `wanted` scores have been; `at` hears how many were. Those that differ are said. Needs root.
///
/// # Errors
/// The caller is not root, or a file of the kernel cannot be read.
pub fn check(linux: &Linux, wanted: u64, mut at: impl FnMut(u64)) -> Result<ScoreCheck> {
    let files = Extfrag::open(linux)?;
    let mut all = ScoreCheck::default();
    while all.equal + all.unequal < wanted {
        let before = linux.buddyinfo()?;
        let (ours_unusable, ours_external) = (files.unusable()?, files.external()?);
        let after = linux.buddyinfo()?;
        at(all.equal + all.unequal);
        for (zone, later) in before.iter().zip(&after) {
            if zone != later {
                all.changed += 1;
                continue;
            }
            let of = |scores: &[Scores]| {
                let found =
                    scores.iter().find(|s| (s.node, &s.zone) == (zone.node, &zone.zone)).cloned();
                found.map(|scores| scores.printed).unwrap_or_default()
            };
            for (index, theirs) in
                [unusable, external].into_iter().zip([of(&ours_unusable), of(&ours_external)])
            {
                for (order, theirs) in Order::first(theirs.len()).zip(&theirs) {
                    let ours = index(&zone.blocks, order).to_string();
                    if ours == *theirs {
                        all.equal += 1;
                    } else {
                        all.unequal += 1;
                        notice!(
                            "node {} {} order {order}: {ours}, the kernel says {theirs}, of {:?}",
                            zone.node,
                            zone.zone,
                            zone.blocks
                        );
                    }
                }
            }
        }
    }
    Ok(all)
}
