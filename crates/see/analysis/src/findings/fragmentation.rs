//! Fragmentation of free memory, where it mattered: huge pages were asked for and refused, or memory was compacted.

use pagemill_model::Nanos;

use super::finding::{Finding, RecordedViews, Stake, percent, time};
use crate::faults::Category;
use crate::fragmentation::timeline::FragView;

/// Share of free memory in blocks too small for a huge page from which on it is fragmented.
const FRAGMENTED: f64 = 0.5;
/// Refused huge pages from which on it mattered.
const REFUSED: u64 = 16;

/// That free memory is fragmented, if anybody noticed.
pub(super) fn find(seen: &RecordedViews<'_>) -> Option<Finding> {
    let (frag, (_, faults)) = (seen.frag?, seen.faults?);
    let unusable = frag.points.last()?.1;
    let of = |(category, _): &&(Category, _)| *category == Category::HugeRefused;
    let refused = faults.categories.iter().find(of).map_or(0, |(_, times)| times.total());
    let compaction = faults.slow.compaction.0;
    if unusable < FRAGMENTED || refused < REFUSED && compaction == 0 {
        return None;
    }
    Some(Finding {
        subject: "fragmentation",
        text: format!(
            "{} of the machine's free memory are in blocks too small for a huge page: {refused} huge pages were \
             refused, and compaction took {}",
            percent(unusable),
            time(compaction),
        ),
        evidence: format!(
            "unusable free space index of order {} at the last look",
            FragView::ORDER
        ),
        next: "sudo pagemill frag compact".into(),
        stake: Stake::Time(Nanos(compaction)),
        share: (compaction as f64 / faults.duration.0.max(1) as f64).clamp(0.01, 1.0),
    })
}
