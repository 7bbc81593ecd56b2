//! Free memory inside the compacting heap, and whether compaction gets it back.

use pagemill_model::Bytes;

use super::{Finding, Seen, Stake, percent, size, time};
use crate::heap::{HeapView, Summary};

/// Less is not worth naming.
const LEAST: f64 = 4.0 * 1024.0 * 1024.0;
/// Nor is a smaller part of the footprint.
const PART: f64 = 0.2;

/// The memory behind the heap that holds nothing of the program.
pub(super) fn find(seen: &Seen<'_>) -> Vec<Finding> {
    let Some(view) = seen.heap else { return Vec::new() };
    let (Some(live), Some(footprint)) = (&view.live, &view.footprint) else { return Vec::new() };
    let free = footprint.last - live.last;
    if free < LEAST || free < footprint.last * PART {
        return Vec::new();
    }
    let share = free / footprint.last;
    vec![Finding {
        subject: "heap-free",
        text: format!(
            "{}{} of the heap's {} hold nothing of the program: {}",
            fell(live, footprint),
            size(free as u64),
            size(footprint.last as u64),
            compaction(view),
        ),
        evidence: format!(
            "fragmentation score {share:.2} at the end{}",
            view.occupancy.map_or(String::new(), |share| {
                format!(", spans of small objects {} full", percent(share))
            }),
        ),
        next: match works(view) {
            Some(_) if seen.lives => {
                format!("pagemill heap {} --compact", seen.meta.map_or(0, |meta| meta.pid))
            }
            // It compacted, and has ended: which lever gets at more is tried.
            Some(_) => format!("pagemill advise {}", seen.again()),
            None => format!("pagemill run --heap compact {}", seen.again()),
        },
        stake: Stake::Memory(Bytes(free as u64)),
        share,
    }]
}

/// Why memory did not fall where live data did, if so.
fn fell(live: &Summary, footprint: &Summary) -> String {
    let (freed, back) = (live.peak - live.last, footprint.peak - footprint.last);
    if freed < live.peak / 5.0 || back > freed / 2.0 {
        return String::new();
    }
    let peaked = live.points.iter().find(|point| point.1 == live.peak).map_or(0.0, |point| point.0);
    format!(
        "live data fell from {} at {} to {} and memory only by {}, for what is left lies on nearly all pages: ",
        size(live.peak as u64),
        time((peaked * 1e9) as u64),
        size(live.last as u64),
        size(back.max(0.0) as u64)
    )
}

/// What compaction saved, if it is on.
fn works(view: &HeapView) -> Option<u64> {
    let last = view.last.as_ref()?;
    let on = last.backend.as_deref().is_some_and(|backend| backend != "none");
    on.then_some(last.saved.map_or(0, |saved| saved.0))
}

fn compaction(view: &HeapView) -> String {
    let passes = view.passes.unwrap_or(0);
    match works(view) {
        None => "this configuration does not compact".into(),
        Some(0) if passes == 0 => "compaction has not run, for it waits until a pass pays".into(),
        Some(0) => format!("{passes} passes of compaction saved nothing"),
        Some(saved) => {
            format!("{passes} passes of compaction save {} and could not get at it", size(saved))
        }
    }
}
