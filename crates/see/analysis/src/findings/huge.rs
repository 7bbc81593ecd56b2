//! Huge pages: zeros on them, and memory that could be on them.

use std::collections::BTreeMap;

use pagemill_model::sums::sum;
use pagemill_model::{Bytes, Event, Fold, Pid};

use crate::addresses::ProcessAddress;

use super::finding::{Finding, Inconclusive, RecordedViews, Stake, percent, size};

/// Less is not worth naming.
const LEAST: u64 = 4 << 20;
/// Anonymous memory from which on page walks may cost something.
const LARGE: u64 = 256 << 20;
/// Part of it on huge pages below which there is something to gain.
const FEW: f64 = 0.1;

/// Zeros on huge pages and memory beside them.
pub(super) fn find(seen: &RecordedViews<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let resident = seen.heap.and_then(|view| view.pss.as_ref()).map(|pss| pss.peak as u64);
    if let Some(Bytes(bytes)) = seen.bloat
        && bytes >= LEAST
    {
        let share = bytes as f64 / resident.unwrap_or(bytes.saturating_mul(4)).max(bytes) as f64;
        found.push(Finding {
            subject: "bloat",
            text: format!(
                "{} of the memory on huge pages hold only zeros: base pages there would give them back",
                size(bytes)
            ),
            evidence: "zeros that the policy found when it last looked at each region".into(),
            next: format!("pagemill run --huge hawkeye {}", seen.program()),
            stake: Stake::Memory(Bytes(bytes)),
            share,
        });
    }
    if let Some(view) = seen.hugepages
        && view.total.anonymous.0 >= LARGE
        && let Some(share) = view.total.share().filter(|share| *share < FEW)
    {
        let base = view.total.anonymous.0.saturating_sub(view.total.huge.0);
        let place = view.last.first().map_or("", |(name, _)| name.as_str());
        found.push(Finding {
            subject: "huge",
            text: format!(
                "{} of anonymous memory, most of it in {place}, are on base pages: huge pages pay if it is accessed at \
                 random",
                size(base),
            ),
            evidence: format!("{} on huge pages at the last look", percent(share)),
            next: format!("pagemill advise --counters {}", seen.restart_command()),
            stake: Stake::Memory(Bytes(base)),
            // What it brings is not known: whatever was measured comes first.
            share: 0.01,
        });
    }
    found
}

/// That nobody looked what part of the huge pages that hold most of its memory is used.
pub(super) fn inconclusive(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    let total = &seen.hugepages?.total;
    let (huge, anonymous) = (total.huge.0, total.anonymous.0);
    let much = huge >= LEAST && huge >= anonymous / 2;
    (much && seen.bloat.is_none() && seen.accesses.is_none()).then(|| Inconclusive {
        what: "what part of its huge pages is used",
        why: format!(
            "{} of {} of anonymous memory are on huge pages, which keep 2 MiB where one page is used, and nobody \
             looked for zeros in them",
            size(huge),
            size(anonymous)
        ),
        next: format!("pagemill advise {}", seen.program()),
    })
}

/// Folds a huge page policy's looks into the zeros on huge pages, as they were last seen in each region.
#[derive(Clone, Debug, Default)]
pub struct BloatFold(BTreeMap<ProcessAddress, u64>);

impl Fold for BloatFold {
    /// Bytes; `None` where no policy looked for zeros.
    type View = Option<Bytes>;

    fn event(&mut self, event: &Event) {
        let Event::Huge(row) = event else { return };
        if let (Some(address), Some(zeros)) = (row.address, row.zeros) {
            let on_huge = row.huge == Some(1);
            let at = ProcessAddress::new(Pid::told(row.pid.unwrap_or(0)), address);
            self.0.insert(at, if on_huge { zeros } else { 0 });
        }
    }

    fn view(&self) -> Option<Bytes> {
        (!self.0.is_empty()).then(|| Bytes(sum(self.0.values().copied()).saturating_mul(4096)))
    }
}
