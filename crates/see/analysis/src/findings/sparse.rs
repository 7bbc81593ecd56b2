//! Who keeps pages resident: pages of which little is live, by who allocated that, and why memory did not fall.

use pagemill_model::sums::sum;
use pagemill_model::units::counted;
use pagemill_model::{Bytes, HeapSample};

use crate::heat::HeatView;

use super::finding::{
    Finding, Inconclusive, REST, RecordedViews, Stake, code, percent, size, time,
};

/// Less is not worth naming.
const LEAST: u64 = 1 << 20;
/// Nor is a smaller part of the memory.
const PART: f64 = 0.05;

/// That allocations were not seen, where accesses were.
pub(super) fn inconclusive(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    seen.accesses?;
    let why = seen.lacks_allocations()?;
    if seen.lost_notes().is_some() {
        return None;
    }
    let lost = seen.meta.map_or(0.0, |meta| meta.losses.part_of_notes());
    // A program that notes faster than the recorder reads does so again, however it is recorded: what would give pages
    // back is tried without notes.
    let (share, next) = match lost > 0.0 {
        true => (
            format!(
                " ({} of them; on a machine that is less busy it is less); what would give pages back is told without \
                 them",
                percent(lost)
            ),
            format!("pagemill advise {}", seen.restart_command()),
        ),
        false => {
            (String::new(), format!("pagemill record --with accesses {}", seen.restart_command()))
        }
    };
    Some(Inconclusive {
        what: "who keeps pages resident",
        why: format!("allocations were not, or not all, seen: {why}{share}"),
        next,
    })
}

/// Sparse pages by call site, and pages in which nothing is live.
pub(super) fn find(seen: &RecordedViews<'_>) -> Vec<Finding> {
    let Some((_, _, heat)) = seen.accesses else { return Vec::new() };
    // What is live is known of all allocations or of none.
    let lost = seen.lost_notes();
    if seen.lacks_allocations().is_some() && lost.is_none() {
        return Vec::new();
    }
    let lost = lost.map_or(String::new(), |part| {
        format!("; {} of the notes on allocations were lost, so it is about so much", percent(part))
    });
    let touched = heat.objects.iter().flat_map(|object| &object.last_touched);
    let kept = heat.kept;
    // Those that were freed late are among both.
    let free = kept.free_pages.saturating_sub(kept.free_late);
    let all = sum(touched.map(|(_, pages)| *pages)).saturating_add(free);
    let part = |pages: u64| pages as f64 / all.max(1) as f64;
    let fell = fell(seen, heat);
    let mut found = Vec::new();
    if let Some(site) = heat.sparse.first() {
        let pages = sum(heat.sparse.iter().map(|site| site.pages));
        let live = sum(heat.sparse.iter().map(|site| site.live));
        let bytes = seen.bytes(pages).saturating_sub(live);
        let share = part(pages);
        if bytes >= LEAST && share >= PART {
            found.push(Finding {
                subject: "sparse",
                text: format!(
                    "{fell}{} stay resident for {} of live data, most of it allocated by {}: objects that live keep \
                     their pages, and compaction could merge them",
                    size(seen.bytes(pages)),
                    size(live),
                    code(&site.name),
                ),
                evidence: format!(
                    "{} of which at most a quarter is live, {} of them by {}{lost}",
                    counted(pages, "page", "pages"),
                    percent(site.pages as f64 / pages.max(1) as f64),
                    code(&site.name),
                ),
                next: format!("pagemill run --heap compact {}", seen.restart_command()),
                stake: Stake::Memory(Bytes(bytes)),
                share,
            });
        }
    }
    let free = kept_free(seen, heat);
    let (bytes, share) = (seen.bytes(free), part(free));
    if bytes >= LEAST && share >= PART {
        let fell = if found.is_empty() { fell } else { String::new() };
        let lever = for_whole_pages(seen);
        found.push(Finding {
            subject: "heap-free",
            text: format!(
                "{fell}{} of pages were given back to the allocator, which may keep them for later{}",
                size(bytes),
                lever.words
            ),
            evidence: format!(
                "{} that held data and hold none at the end{lost}",
                counted(free, "page", "pages")
            ),
            next: format!("{} {}", lever.command, seen.restart_command()),
            stake: Stake::Memory(Bytes(bytes)),
            // The system may have them already: the allocator was not asked.
            share: share / 2.0,
        });
    }
    found
}

/// Memory that fell, and what fell with it, as the beginning of a sentence.
fn fell(seen: &RecordedViews<'_>, heat: &HeatView) -> String {
    let kept = heat.kept;
    match kept.peak.0.saturating_sub(kept.live.0) {
        // It had most near its end: then it freed all to end.
        _ if seen.has_ended() && ends(heat, kept.peaked.0) => String::new(),
        freed if freed > kept.peak.0 / 5 => format!(
            "of {} live at {}, {} are live at the end, and resident memory did not fall with them: ",
            size(kept.peak.0),
            time(kept.peaked.0),
            size(kept.live.0)
        ),
        _ => String::new(),
    }
}

/// Free pages that an allocator may keep: what a program frees as it ends it does not.
fn kept_free(seen: &RecordedViews<'_>, heat: &HeatView) -> u64 {
    let kept = heat.kept;
    match seen.has_ended() {
        true => kept.free_pages.saturating_sub(kept.free_late.max(kept.free_ending)),
        false => kept.free_pages,
    }
}

/// Whether that was in the last eighth of the time.
fn ends(heat: &HeatView, at: u64) -> bool {
    let end = heat.step.saturating_mul(heat.steps);
    at >= end - end / 8
}

/// What has an allocator give whole pages back.
pub(super) struct Lever {
    words: &'static str,
    pub(super) command: &'static str,
}

/// By whose malloc it is and whether the program rests, as far as that was seen.
pub(super) fn for_whole_pages(seen: &RecordedViews<'_>) -> Lever {
    let malloc = seen.heap.and_then(|view| view.malloc.as_ref());
    let glibc = malloc.is_none_or(|malloc| malloc.name == HeapSample::GLIBC);
    match malloc.and_then(|malloc| malloc.least_use) {
        _ if !glibc => Lever {
            words: ", and gives them back some time after, while it is asked for memory",
            command: "pagemill advise",
        },
        Some(least) if least >= REST => Lever {
            words: "; run --trim has them given back when a program rests, and this one did not",
            command: "pagemill run --heap compact",
        },
        _ => Lever {
            words: " (with glibc: malloc_trim returns them to the system, and run --trim calls it when the program \
                    rests)",
            command: "pagemill run --trim",
        },
    }
}
