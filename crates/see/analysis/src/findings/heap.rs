//! Free memory inside the compacting heap, and whether compaction gets it back; and inside the program's own malloc,
//! where that was asked, and why it stays there.

use pagemill_model::event::HeapSample;
use pagemill_model::recording::NotMeasured;
use pagemill_model::{Bytes, Nanos, units};

use super::finding::{Finding, Inconclusive, REST, RecordedViews, Stake, percent, size, time};
use super::growth;
use crate::heap::{Children, HeapView, Malloc, Summary};

/// Less is not worth naming.
const LEAST: f64 = 4.0 * 1024.0 * 1024.0;
/// Nor is a smaller part of the footprint.
const PART: f64 = 0.2;

/// The memory behind the heap that holds nothing of the program.
pub(super) fn find(seen: &RecordedViews<'_>) -> Vec<Finding> {
    let Some(view) = seen.heap else { return Vec::new() };
    let (Some(live), Some(footprint)) = (&view.live, &view.footprint) else {
        let all = [malloc(seen, view), pymalloc(seen, view), lazy_free(seen, view)];
        return all.into_iter().flatten().collect();
    };
    // What was freed a moment ago goes back by itself.
    let dirty = view.last.as_ref().and_then(|last| last.dirty).map_or(0, |dirty| dirty.0);
    let free = footprint.last - live.last - dirty as f64;
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
            Some(_) => format!("pagemill advise {}", seen.restart_command()),
            None => format!("pagemill run --heap compact {}", seen.restart_command()),
        },
        stake: Stake::Memory(Bytes(free as u64)),
        share,
    }]
}

/// What was so at a moment: memory, anonymous memory in it, and what the program's own malloc had said by then.
#[derive(Clone, Copy)]
struct Moment<'a> {
    at: Nanos,
    memory: f64,
    anonymous: Option<Bytes>,
    malloc: Option<&'a Malloc>,
}

/// The end and, of a program that was seen to end, the last time that its memory was high: which has more at stake.
fn moment<'a>(
    seen: &RecordedViews<'_>,
    view: &'a HeapView,
    stake: impl Fn(&Moment<'a>) -> f64,
) -> Option<Moment<'a>> {
    let end = Moment {
        at: view.duration,
        memory: view.memory.as_ref()?.last,
        anonymous: view.last.as_ref()?.pss_anon,
        malloc: view.malloc.as_ref(),
    };
    let plateau = view.plateau.as_ref().filter(|_| seen.has_ended()).map(|plateau| Moment {
        at: plateau.at,
        memory: plateau.memory.0 as f64,
        anonymous: plateau.anonymous,
        malloc: plateau.malloc.as_ref(),
    });
    Some(plateau.filter(|plateau| stake(plateau) > stake(&end)).unwrap_or(end))
}

/// What malloc keeps at most of memory.
fn kept(moment: &Moment<'_>) -> f64 {
    let of = |malloc: &Malloc| malloc.returnable.0.saturating_add(malloc.pieces.0) as f64;
    moment.malloc.map_or(0.0, of).min(moment.memory)
}

/// That the program's own malloc keeps memory free, and why it does not go back.
fn malloc(seen: &RecordedViews<'_>, view: &HeapView) -> Option<Finding> {
    let moment = moment(seen, view, kept)?;
    let Malloc { name, at, heap, returnable, pieces, least_use, .. } = moment.malloc?;
    let (kept, memory) = (kept(&moment), moment.memory);
    if kept < LEAST || kept < memory * PART {
        return None;
    }
    let whole = returnable.0 >= pieces.0;
    let glibc = name == HeapSample::GLIBC;
    let rests = least_use.is_some_and(|least| least < REST);
    let why = match (whole, glibc) {
        (true, true) => {
            "most are whole pages, but of its own accord it gives back only what lies at the end of its heap, and \
             something that lives lies behind them"
        }
        (true, false) => {
            "most are whole pages, which it gives back some time after they were freed, while it is asked for memory"
        }
        (false, _) => {
            "most are pieces of pages on which something lives, too, and no malloc gives back a part of a page"
        }
    };
    let trim = match least_use {
        _ if !(whole && glibc) => String::new(),
        Some(_) if rests => "; it rests at times, and run --trim has them given back then".into(),
        Some(least) => format!(
            "; run --trim has them given back when a program rests, and this one always used {} of a CPU or more",
            percent(*least)
        ),
        None => "; run --trim has them given back when a program rests, which was not seen".into(),
    };
    let as_of = view.as_of(*at).map_or(String::new(), |as_of| format!(" ({as_of})"));
    Some(Finding {
        subject: "malloc-free",
        text: format!(
            "{} of {} of memory are free{as_of}, and {name} keeps them: {why}{trim}",
            size(kept as u64),
            size(memory as u64)
        ),
        evidence: format!(
            "{name}, read from outside {:.1} s after the beginning: {} of address space, {} free in whole pages in \
             memory, {} in pieces of pages",
            at.seconds(),
            size(heap.0),
            size(returnable.0),
            size(pieces.0)
        ),
        next: match (whole, glibc) {
            (true, true) if rests => format!("pagemill run --trim {}", seen.restart_command()),
            (true, false) => format!("pagemill advise {}", seen.program()),
            _ => format!("pagemill run --heap compact {}", seen.restart_command()),
        },
        stake: Stake::Memory(Bytes(kept as u64)),
        share: kept / memory.max(1.0),
    })
}

/// That most memory of a CPython is in arenas of its own allocator, of which nobody knows what is free.
fn pymalloc(seen: &RecordedViews<'_>, view: &HeapView) -> Option<Finding> {
    let mut missing = seen.meta?.not_measured.iter();
    missing.find(|missing| missing.what == NotMeasured::PYMALLOC)?;
    // Where memory grows all the time, what malloc held when it was read last says nothing of the rest.
    if growth::find(seen).is_some() {
        return None;
    }
    let heap = |moment: &Moment<'_>| moment.malloc.map_or(0, |malloc| malloc.heap.0);
    let beside = |moment: &Moment<'_>| {
        moment.anonymous.map_or(0, |bytes| bytes.0.saturating_sub(heap(moment))) as f64
    };
    let moment = moment(seen, view, beside)?;
    let (beside, malloc, memory) = (beside(&moment), heap(&moment), moment.memory);
    let when = match view.as_of(moment.at) {
        Some(as_of) => format!(", {as_of}"),
        None => " at the end".to_owned(),
    };
    if beside < LEAST || beside < memory * PART {
        return None;
    }
    Some(Finding {
        subject: "pymalloc",
        text: format!(
            "it is CPython: {} of {} of memory are outside of malloc's heap: large blocks, and arenas of pymalloc, its \
             own allocator of small objects, which gives an arena (1 MiB; 256 KiB before Python 3.10) back only when \
             nothing lives in it; what is free in them is not known, and PYTHONMALLOC=malloc does without them, on the \
             compacting heap without the holes, too",
            size(beside as u64),
            size(memory as u64)
        ),
        evidence: match malloc {
            0 => format!("anonymous memory{when}; its malloc was not read"),
            malloc => {
                format!("anonymous memory less {} of its malloc's heap{when}", size(malloc))
            }
        },
        next: format!(
            "pagemill advise --levers 'no pymalloc,compact Python' {}",
            seen.restart_command()
        ),
        stake: Stake::Memory(Bytes(beside as u64)),
        // Most of it may be live.
        share: beside / memory.max(1.0) / 2.0,
    })
}

/// That the program has given memory to the kernel that is counted as resident until somebody needs it.
fn lazy_free(seen: &RecordedViews<'_>, view: &HeapView) -> Option<Finding> {
    let memory = view.memory.as_ref()?.last;
    let free = (view.last.as_ref()?.lazy_free?.0 as f64).min(memory);
    (free >= LEAST && free >= memory * PART).then(|| Finding {
        subject: "lazy-free",
        text: format!(
            "{} of {} of memory are free already, given to the kernel by MADV_FREE: it takes them when memory is \
             short, and until then they count as resident",
            size(free as u64),
            size(memory as u64)
        ),
        evidence: "LazyFree of the last look (/proc/PID/smaps_rollup)".into(),
        next: format!("pagemill record --with heap,pressure {}", seen.program()),
        stake: Stake::Memory(Bytes(free as u64)),
        share: free / memory.max(1.0),
    })
}

/// That processes which it started hold a good part of the memory, of which samples of one process say nothing.
pub(super) fn children(seen: &RecordedViews<'_>) -> Option<Finding> {
    let children = seen.heap?.children.filter(Children::matter)?;
    let Children { at, processes, memory, own, largest } = children;
    let share = memory.0 as f64 / children.all().0.max(1) as f64;
    let of = units::counted(processes, "process", "processes");
    Some(Finding {
        subject: "children",
        text: format!(
            "{} of {} of memory were in {of} that it started, of which nothing more was recorded: it had {} itself",
            size(memory.0),
            size(children.all().0),
            size(own.0),
        ),
        evidence: format!(
            "Pss of each at {} (/proc/PID/smaps_rollup), shared pages once{}",
            time(at.0),
            largest.map_or_else(String::new, |pid| format!("; process {pid} had most"))
        ),
        next: match largest.filter(|_| seen.lives) {
            Some(pid) => format!("pagemill advise -p {pid}"),
            None => format!("pagemill advise {}", seen.restart_command()),
        },
        stake: Stake::Memory(memory),
        share,
    })
}

/// That the recorded process is not the one whose memory it is.
pub(super) fn elsewhere(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    let mut missing = seen.meta?.not_measured.iter();
    let missing =
        missing.find(|missing| missing.what == NotMeasured::WORKERS && seen.heap.is_some())?;
    if children(seen).is_some() {
        return None;
    }
    Some(Inconclusive {
        what: "who holds the memory of its child processes, which did most of the work",
        why: missing.why.clone(),
        next: format!("pagemill advise {}", seen.restart_command()),
    })
}

/// That nobody could say what the program's own malloc keeps free.
pub(super) fn inconclusive(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    let view = seen.heap?;
    let large = view.memory.as_ref()?.peak >= LEAST;
    (large && view.live.is_none() && view.malloc.is_none()).then(|| Inconclusive {
        what: "what the program's malloc keeps free",
        why: "it was not read, or could not be (see not measured)".into(),
        next: format!("pagemill advise {}", seen.program()),
    })
}

/// That a command ran on pagemill's heap, and what its own malloc would keep free is another matter.
pub(super) fn replaced(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    let view = seen.heap?;
    let started = seen.meta.is_some_and(|meta| !meta.command.is_empty());
    let large = view.memory.as_ref()?.peak >= LEAST;
    (large && started && view.live.is_some()).then(|| Inconclusive {
        what: "what the program's own malloc, or another one, would keep free",
        why: "it ran on pagemill's heap in place of its own malloc".into(),
        next: format!(
            "pagemill record --with heap,hugepages --heap none {}",
            seen.restart_command()
        ),
    })
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
    let of = units::counted(passes, "pass", "passes");
    match works(view) {
        None => "this configuration does not compact".into(),
        Some(0) if passes == 0 => "compaction has not run, for it waits until a pass pays".into(),
        Some(0) => format!("{of} of compaction saved nothing"),
        Some(saved) => {
            let save = if passes == 1 { "saves" } else { "save" };
            format!(
                "{of} of compaction {save} {} and did not get at it: while a program works they take little of its \
                 time",
                size(saved)
            )
        }
    }
}
