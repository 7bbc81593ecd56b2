//! Memory that is kept and not used: not touched any more, or only read.
//!
//! A page is *cold* if it was used last in the first half of the recording and its memory was not given back before the
//! last eighth: a program that ends may touch and free all that it has. When a page was used last in that sense is told
//! by [`crate::residency`]. It is *written once* if it was written last in the first half and read in the second.
//! Samples of accesses say nothing of what is not accessed. Pages of files that are cold and were not written are in
//! the page cache, mapped or not: the kernel drops them by itself when memory is short, and needs no swap for it. They
//! are told apart, from a larger amount on.

use pagemill_model::sums::sum;
use pagemill_model::{AccessSetup, Bytes, Nanos};

use super::finding::{Finding, Inconclusive, RecordedViews, Stake, code, percent, size, time};
use crate::accesses::{AccessView, FileUse};
use crate::heat::{HeatView, LastUse, ObjectHeat};
use crate::objects::is_in_memory;
pub use crate::objects::is_stored;

/// Less is not worth naming.
const LEAST: u64 = 1 << 20;
/// Nor is a smaller part of the memory.
const PART: f64 = 0.05;
/// Of memory that is only read, for less can be done about it.
const PART_READ: f64 = 0.25;
/// Of files, which the kernel drops by itself, less is not worth naming.
const LEAST_FILE: u64 = 16 << 20;
/// A part of all memory that was given back by the end which is worth a word.
const PART_GONE: f64 = 0.5;
/// Objects that are named, of each sort.
const NAMED: usize = 2;
/// Steps of time below which a half of them says little.
const STEPS: u64 = 8;
/// Times the length that was asked for from which an interval is late.
const LATE: u64 = 4;
/// Part of an object's cold pages by whose last touch it is told since when they are.
const MOST_OF_THEM: f64 = 0.99;

/// Why it cannot be told what is cold.
pub(super) fn inconclusive(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    let (setup, accesses, _) = seen.accesses?;
    let Err(why) = when(seen)? else {
        return never_touched(seen).or_else(|| given_back(seen));
    };
    // Shorter intervals than these cost more than they tell.
    let shorter = Nanos((setup.interval.0 / 4).max(1_000_000));
    let next = match setup.without_address {
        Some(_) => format!("pagemill record --with accesses {}", seen.program()),
        // Of many small blocks it is the notes of who asked for them that keep the recorder busy.
        None if late(setup, accesses) && seen.has_allocations() => {
            format!("pagemill record --with accesses --no-sites {}", seen.program())
        }
        None if late(setup, accesses) => format!("pagemill advise {}", seen.program()),
        None => format!(
            "pagemill record --with accesses --access-interval {} {}",
            time(shorter.0).replace(' ', ""),
            seen.program()
        ),
    };
    Some(Inconclusive { what: "what memory is cold", why, next })
}

/// Whether intervals took much longer than was asked for: the recorder was busy, and shorter ones would be so, too.
fn late(setup: &AccessSetup, accesses: &AccessView) -> bool {
    let longest = accesses.lengths.iter().copied().max().unwrap_or(0);
    longest > setup.interval.0.saturating_mul(LATE)
}

/// Of a program that ran before its recording, what it held by then and did not touch is in no row.
fn never_touched(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    seen.meta?.command.is_empty().then(|| Inconclusive {
        what: "how much memory was not touched at all",
        why: "the program ran before, and only what it touched since is recorded".into(),
        next: format!("pagemill advise {}", seen.program()),
    })
}

/// Of what a program frees before its end it is not told since when it was not used: only what is there near the end is
/// judged.
fn given_back(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    let (_, _, heat) = seen.accesses?;
    let own = || heat.objects.iter().filter(|object| !is_file(object));
    let touched = sum(own().map(|object| object.pages));
    let left = sum(own().map(|object| pages(&object.last_touched)));
    let [bytes, gone] = [touched, touched.saturating_sub(left)].map(|pages| seen.bytes(pages));
    (gone >= LEAST && gone as f64 >= bytes as f64 * PART_GONE).then(|| Inconclusive {
        what: "what memory was cold before it was freed",
        why: format!(
            "{} of the {} that were touched held nothing any more near the end",
            size(gone),
            size(bytes)
        ),
        next: format!("pagemill advise {}", seen.program()),
    })
}

/// The step of a recording of accesses before which is early: what was used last then is not used any more. Or why it
/// tells too little.
fn when(seen: &RecordedViews<'_>) -> Option<Result<u64, String>> {
    let (setup, accesses, heat) = seen.accesses?;
    if setup.without_address.is_some() {
        return Some(Err("accesses were sampled, and samples do not tell what is not used".into()));
    }
    if setup.lost > heat.accesses / 100 {
        return Some(Err(format!("{} accesses were lost of {}", setup.lost, heat.accesses)));
    }
    // What is used all the time may have no access in the last interval, if that was cut short.
    let longest = accesses.lengths.iter().copied().max().unwrap_or(0).div_ceil(heat.step.max(1));
    let clear = heat.steps.saturating_sub(longest.saturating_add(longest / 2));
    if heat.steps < STEPS || clear < heat.steps / 4 {
        return Some(Err(format!(
            "the recording is too coarse: it lasted {}, and its longest interval {}",
            time(heat.step.saturating_mul(heat.steps)),
            time(longest.saturating_mul(heat.step)),
        )));
    }
    Some(Ok(clear.min(heat.steps / 2)))
}

/// Cold and write-once memory by object.
pub(super) fn find(seen: &RecordedViews<'_>) -> Vec<Finding> {
    let (Some((_, accesses, heat)), Some(Ok(before))) = (seen.accesses, when(seen)) else {
        return Vec::new();
    };
    let all = sum(heat.objects.iter().map(|object| pages(&object.last_touched)));
    let mut found = Vec::new();
    for find in [cold, written_once] {
        let of = heat.objects.iter().filter(|object| !is_file(object));
        let of = of.filter_map(|object| find(seen, heat, object, Pages { all, before }));
        let mut of: Vec<Finding> = of.collect();
        of.sort_by(|a, b| b.share.total_cmp(&a.share));
        of.truncate(NAMED);
        found.extend(of);
    }
    let files = accesses.files.iter().filter_map(|file| cold_file(seen, heat, file, before));
    found.extend(files.max_by(|a, b| a.share.total_cmp(&b.share)));
    found
}

/// Whether its pages are those of a file that is stored somewhere.
fn is_file(object: &ObjectHeat) -> bool {
    object.kind == "mapping" && is_stored(&object.name)
}

/// The pages of a recording that are resident, and the step before which is early.
#[derive(Clone, Copy, Debug)]
struct Pages {
    all: u64,
    before: u64,
}

/// Pages of a histogram over steps.
fn pages(of: &[LastUse]) -> u64 {
    sum(of.iter().map(|(_, pages)| *pages))
}

/// Pages that were told of early, and by when most of them were used last, ns.
struct EarlyPages {
    pages: u64,
    since: u64,
}

fn early(of: &[LastUse], heat: &HeatView, before: u64) -> EarlyPages {
    let early: Vec<_> = of.iter().filter(|(step, _)| *step < before).copied().collect();
    let since = reached(&early, MOST_OF_THEM).map_or(0, |step| step.saturating_add(1));
    EarlyPages { pages: pages(&early), since: since.saturating_mul(heat.step) }
}

/// The step by which this part of the pages is told.
fn reached(of: &[LastUse], part: f64) -> Option<u64> {
    let (all, mut seen) = (pages(of), 0_u64);
    let last = of.iter().find(|(_, pages)| {
        seen = seen.saturating_add(*pages);
        seen as f64 >= all as f64 * part
    });
    last.map(|(step, _)| *step)
}

/// When an object's cold pages were not touched, and what came then.
fn rest(
    seen: &RecordedViews<'_>,
    heat: &HeatView,
    object: &ObjectHeat,
    cold: &EarlyPages,
) -> String {
    let at = |step: u64| time(heat.step.saturating_mul(step));
    let (since, end) = (time(cold.since), at(heat.steps));
    let ended = pages(&object.rested_until);
    let few = cold.pages as f64 * (1.0 - MOST_OF_THEM);
    let until = reached(&object.rested_until, 1.0 - MOST_OF_THEM);
    let Some(until) = until.filter(|_| ended as f64 > few) else {
        return format!("after {since} of {end}");
    };
    let freed = object.rested_freed;
    let then = match freed as f64 {
        some if some <= few => "only near the end".to_owned(),
        all if all >= cold.pages as f64 * MOST_OF_THEM => "only freed".into(),
        _ => format!("{} of them freed", size(seen.bytes(freed.min(cold.pages)))),
    };
    format!("from {since} to {} of {end}, and then {then}", at(until))
}

fn name(object: &ObjectHeat) -> String {
    match object.kind.as_str() {
        "mapping" => object.name.clone(),
        _ => code(&object.name),
    }
}

fn cold(
    seen: &RecordedViews<'_>,
    heat: &HeatView,
    object: &ObjectHeat,
    Pages { all, before }: Pages,
) -> Option<Finding> {
    let mut early_pages = early(&object.last_touched, heat, before);
    // Freed blocks of an allocator are no data: who keeps their pages is another finding.
    let freed = early(&object.last_touched_freed, heat, before).pages;
    early_pages.pages = early_pages.pages.saturating_sub(freed);
    let pages = early_pages.pages;
    let (bytes, share) = (seen.bytes(pages), pages as f64 / all.max(1) as f64);
    // When a mapping or a thread's stack was given back is not seen, nor is what the notes that were lost say.
    let sure = match object.kind.as_str() {
        "allocation" => seen.lacks_allocations().is_none(),
        kind => kind == "global",
    };
    (bytes >= LEAST && share >= PART).then(|| Finding {
        subject: "cold",
        text: format!(
            "{} of {} were not touched {}: {}could be swapped or live on a slower tier",
            size(bytes),
            name(object),
            rest(seen, heat, object, &early_pages),
            if sure { "" } else { "if they stayed mapped, they " },
        ),
        evidence: format!(
            "{} of the {} that are touched and not given back before the last eighth{}; its last accesses are in the \
             first half{}",
            percent(share),
            size(seen.bytes(all)),
            if sure { "" } else { " as far as known" },
            if object.rested_until.is_empty() { "" } else { ", but for those that came near the end" },
        ),
        next: format!("pagemill simulate {} --sweep", seen.recording),
        stake: Stake::Memory(Bytes(bytes)),
        share,
    })
}

/// Pages of a file that was read and is not used any more; of one that a single process had mapped once, for of others
/// it is not known which pages are the same.
fn cold_file(
    seen: &RecordedViews<'_>,
    heat: &HeatView,
    file: &FileUse,
    before: u64,
) -> Option<Finding> {
    let all = sum(file.last.iter().map(|(_, pages)| *pages));
    let size_of = heat.objects.iter().find(|object| is_file(object) && object.name == file.name);
    let once = size_of.is_none_or(|object| seen.bytes(all) <= object.bytes);
    let steps: Vec<LastUse> =
        file.last.iter().map(|(end, pages)| (end.0 / heat.step.max(1), *pages)).collect();
    let early = early(&steps, heat, before);
    // What was written is not clean, or no page of the file any more.
    let cold = early.pages.saturating_sub(file.written);
    let (bytes, share) = (seen.bytes(cold), cold as f64 / all.max(1) as f64);
    (once && file.processes == 1 && bytes >= LEAST_FILE && share >= PART_READ).then(|| Finding {
        subject: "cold-file",
        text: format!(
            "{} of the file {} were not touched after {} of {}: page cache, clean, so they are the first to go when \
             memory is short, and need no swap; madvise(MADV_PAGEOUT), or posix_fadvise(POSIX_FADV_DONTNEED) once it \
             is not mapped, drops them at once",
            size(bytes),
            file.name,
            time(early.since),
            time(heat.step.saturating_mul(heat.steps)),
        ),
        evidence: format!(
            "{} of the {} of it that were touched, with what the kernel maps around a touched page; none of them was \
             written",
            percent(share),
            size(seen.bytes(all)),
        ),
        next: format!("pagemill record --with heap,pressure {}", seen.program()),
        stake: Stake::Memory(Bytes(bytes)),
        // The kernel takes it by itself.
        share: share / 4.0,
    })
}

fn written_once(
    seen: &RecordedViews<'_>,
    heat: &HeatView,
    object: &ObjectHeat,
    Pages { all, before }: Pages,
) -> Option<Finding> {
    let EarlyPages { pages: written, since } = early(&object.last_written, heat, before);
    // What was not touched later was not read later; pages that were never written are in neither.
    let untouched = object.last_touched.iter().filter(|(step, _)| *step < before);
    let pages = written.saturating_sub(sum(untouched.map(|(_, pages)| *pages)));
    let (bytes, share) = (seen.bytes(pages), pages as f64 / all.max(1) as f64);
    (bytes >= LEAST && share >= PART_READ).then(|| Finding {
        subject: "write-once",
        text: format!(
            "{} of {} were not written after {} of {}, only read: {}a slower tier that reads well would do",
            size(bytes),
            name(object),
            time(since),
            time(heat.step.saturating_mul(heat.steps)),
            if is_in_memory(&object.name) { "" } else { "processes could share them, and " },
        ),
        evidence: format!(
            "{} of the {} that are touched and not given back before the last eighth",
            percent(share),
            size(seen.bytes(all)),
        ),
        next: format!("pagemill simulate {} --sweep", seen.recording),
        stake: Stake::Memory(Bytes(bytes)),
        // Less is won than by memory that is not used at all.
        share: share / 4.0,
    })
}
