//! Time in page faults, and their tail, each with its cause.

use pagemill_model::page::BASE;
use pagemill_model::{Nanos, units};

use super::finding::{Finding, Inconclusive, RecordedViews, Stake, percent, size, time};
use crate::faults::{Category, Cause, FaultView, LOSS_LIMIT, Slow, loss};
use crate::spikes::Spikes;

/// A smaller part of the time is not worth naming.
const PART: f64 = 0.05;
/// A fault from here on is a stall that somebody notices.
const STALL: u64 = 1_000_000;

/// That too many faults were lost.
pub(super) fn inconclusive(seen: &RecordedViews<'_>) -> Option<Inconclusive> {
    let (setup, view) = seen.faults?;
    let what = "time in page faults, and the longest of them";
    if loss(setup) > LOSS_LIMIT {
        return Some(Inconclusive {
            what,
            why: format!("{} of the faults were lost", percent(loss(setup))),
            next: format!("pagemill record --with faults --threshold 100us {}", seen.program()),
        });
    }
    let Some(untimed) = view.in_calls(setup) else { return forked(seen, view) };
    Some(Inconclusive {
        what,
        why: format!(
            "{untimed} of {} faults, of {} or more, were made by the kernel inside of system calls and are not timed: \
             calls that have memory filled (mmap with MAP_POPULATE, mlock, madvise) may be what stalls it",
            view.counted,
            size(untimed.saturating_mul(BASE))
        ),
        next: timed_calls(seen, "mmap,mlock,mlockall,madvise"),
    })
}

/// Of a program that was asked about stalls, that a fork itself may be one: it copies page tables, and that is no page
/// fault.
fn forked(seen: &RecordedViews<'_>, view: &FaultView) -> Option<Inconclusive> {
    /// Copies below which they are of private files that programs begin with.
    const MANY: u64 = 1024;
    view.spikes.filter(|spikes| spikes.faults == 0)?;
    let mut of = view.categories.iter();
    let (_, copies) = of.find(|(category, _)| *category == Category::CopyOnWrite)?;
    (copies.total() >= MANY).then(|| Inconclusive {
        what: "whether forks stall it",
        why: format!(
            "{} pages were copied after it forked; the call itself copies the page tables of all its memory while the \
             program waits, some milliseconds for each 100 MiB of small pages, and is no page fault",
            copies.total()
        ),
        next: timed_calls(seen, "clone,clone3,fork,vfork"),
    })
}

/// The command that times system calls.
fn timed_calls(seen: &RecordedViews<'_>, calls: &str) -> String {
    let program = seen.program();
    let program = program.strip_prefix("-- ").unwrap_or(&program);
    format!("strace -f -T -e trace={calls} {program}")
}

/// Fault time, fault tail, and stalls that were asked about: one finding where they are one matter.
pub(super) fn find(seen: &RecordedViews<'_>) -> Vec<Finding> {
    let Some((setup, view)) = seen.faults else { return Vec::new() };
    if loss(setup) > LOSS_LIMIT {
        return Vec::new();
    }
    let all = view.all.sum().0;
    let whole = view.duration.0.max(1);
    let mut took = None;
    if all as f64 >= whole as f64 * PART {
        let share = (all as f64 / whole as f64).min(1.0);
        let advice = cause(seen, view, setup.details);
        took = Some(Finding {
            subject: "faults",
            text: format!(
                "page faults took {} of {}, {}: {}",
                time(all),
                time(whole),
                led("it", view, &advice),
                advice.what,
            ),
            evidence: format!(
                "{} faults, {} of the time of one thread{}",
                view.counted,
                percent(share),
                dominant(view).map_or(String::new(), |(category, share)| {
                    format!(", {} of it in faults of the kind {}", percent(share), category.name())
                }),
            ),
            next: advice.next,
            stake: Stake::Time(Nanos(all)),
            share,
        });
    }
    let took_in = format!("page faults took {} of {}", time(all), time(whole));
    match (stalls(seen, view, setup.details), took, tail(seen, view)) {
        (Some(stalls), took, tail) => {
            let tail_text = tail.as_ref().map(|tail| tail.text.clone());
            let beside = took.as_ref().map(|_| took_in).into_iter().chain(tail_text);
            let evidence = [stalls.evidence.clone()].into_iter().chain(beside);
            let evidence = evidence.collect::<Vec<_>>().join("; ");
            let same = [took, tail].into_iter().flatten();
            vec![same.fold(Finding { evidence, ..stalls }, at_most)]
        }
        (None, Some(took), Some(tail)) if is_tail_of_most(view, setup.details) => {
            let evidence = format!("{}; {}", took.evidence, tail.text);
            vec![at_most(Finding { evidence, ..took }, tail)]
        }
        (None, took, tail) => took.into_iter().chain(tail).collect(),
    }
}

/// A finding of the same matter as another: what could be gained at most is the larger of both.
fn at_most(one: Finding, other: Finding) -> Finding {
    match other.share > one.share {
        true => Finding { stake: other.stake, share: other.share, ..one },
        false => one,
    }
}

/// Whether the longest fault took so long by what most of the time went into.
fn is_tail_of_most(view: &FaultView, details: bool) -> bool {
    let most = match (dominant(view).map(|(category, _)| category), part(&view.slow)) {
        (Some(Category::Major), _) => Cause::Io,
        (Some(Category::CopyOnWrite), _) => Cause::Copy,
        _ if !details => Cause::Unknown,
        (_, Some(part)) => part.cause,
        (_, None) => Cause::Zeroing,
    };
    let mut worst = view.worst.iter().filter(|moment| !is_ours(&moment.place));
    worst.next().is_some_and(|worst| worst.cause == most)
}

/// That faults explain stalls of the length that was asked about: some took so long, or many shorter ones together may.
fn stalls(seen: &RecordedViews<'_>, view: &FaultView, details: bool) -> Option<Finding> {
    let spikes = view.spikes.filter(|spikes| spikes.faults > 0 || spikes.bursts > 0)?;
    let Spikes { length, faults, bursts, ended } = spikes;
    let advice = cause(seen, view, details);
    let what = advice.what;
    let took = length.0.saturating_mul(faults);
    let took = Nanos(took.saturating_add(length.0.div_ceil(2).saturating_mul(bursts)));
    let length = time(length.0);
    let (one, more) = (format!("stretch of {length}"), format!("stretches of {length}"));
    let copied = copied(view);
    let stretches = units::counted(bursts, &one, &more);
    let text = match (faults, spikes.only_at_the_start(view.duration)) {
        (0, Some(last)) => format!(
            "page faults explain no stalls of {length} after its first {}: until then a thread spent half or more of \
             {stretches} in faults that took less each, {}{copied}: {what}",
            time(last.0),
            led("it", view, &advice)
        ),
        (0, None) => format!(
            "page faults may explain stalls of {length}: in {stretches} a thread spent half or more in faults that \
             took less each, {}{copied}: {what}",
            led("it", view, &advice)
        ),
        (faults, _) => {
            let beside = match bursts {
                0 => String::new(),
                _ => {
                    format!("; in {stretches} beside, a thread spent half or more in shorter ones")
                }
            };
            format!(
                "page faults explain stalls of {length}: {faults} of them took that long or longer{beside}; \
                 {}{copied}: {what}",
                led("the time in faults was", view, &advice)
            )
        }
    };
    Some(Finding {
        subject: "stalls",
        text,
        evidence: format!(
            "{} faults{}{}",
            view.counted,
            ended.map_or_else(String::new, |(first, last)| format!(
                ", these between {} and {} of {}",
                time(first.0),
                time(last.0),
                time(view.duration.0)
            )),
            view.longest_of(&view.all).map_or_else(String::new, |longest| format!(
                ", the longest of {}",
                time(longest.0)
            )),
        ),
        next: advice.next,
        stake: Stake::Time(took),
        share: (took.0 as f64 / view.duration.0.max(1) as f64).min(1.0),
    })
}

/// What most of the time went into, or, where nothing took half of it, what took most and what came next. The kind of
/// the faults says it of some, and of others what the slow ones' time went into.
fn led(of: &str, view: &FaultView, advice: &Advice) -> String {
    let parts = parts(&view.slow);
    let named = advice.part.is_some_and(|cause| parts.iter().any(|part| part.cause == cause));
    match parts[..] {
        [first, second, ..] if named && first.time.saturating_mul(2) <= view.slow.time.0 => {
            let share = |part: Part| percent(part.time as f64 / view.slow.time.0.max(1) as f64);
            let (most, next) = (share(first), share(second));
            format!("{most} of {of} {} and {next} {}", first.words, second.words)
        }
        _ => format!("most of {of} {}", advice.why),
    }
}

/// That much of the time went into copies after a fork, where something else took more.
fn copied(view: &FaultView) -> String {
    const MUCH: f64 = 0.2;
    let mut others = view.categories.iter().skip(1);
    let times =
        others.find(|(category, _)| *category == Category::CopyOnWrite).map(|(_, times)| times);
    let share = times.map_or(0.0, |times| times.sum().0 as f64 / view.all.sum().0.max(1) as f64);
    match share {
        MUCH.. => format!(", and {} of it copying pages that a fork left shared", percent(share)),
        _ => String::new(),
    }
}

/// The kind of faults with the most time, and its part of all.
fn dominant(view: &FaultView) -> Option<(Category, f64)> {
    let (category, times) = view.categories.first()?;
    Some((*category, times.sum().0 as f64 / view.all.sum().0.max(1) as f64))
}

/// Why it takes time, what could be done, and the command that says more.
struct Advice {
    /// The part of the slow faults' time that says why, where not the kind of faults does.
    part: Option<Cause>,
    why: &'static str,
    what: &'static str,
    next: String,
}

impl Advice {
    fn new(why: &'static str, what: &'static str, next: String) -> Self {
        Self { part: None, why, what, next }
    }
}

fn cause(seen: &RecordedViews<'_>, view: &FaultView, details: bool) -> Advice {
    let program = seen.restart_command();
    let category = dominant(view).map(|(category, _)| category);
    match category {
        Some(Category::Major) => reading(view, &program),
        Some(Category::CopyOnWrite) => Advice::new(
            "copying pages that a fork left shared",
            "fewer pages written while the child lives would shorten it",
            format!("pagemill record --with accesses {program}"),
        ),
        _ if !details => Advice::new(
            "of a kind that only BPF tells",
            "recorded as root, the report says what it went into",
            format!("sudo pagemill record --with faults {program}"),
        ),
        _ => of_part(view, category, &program),
    }
}

/// Where a file or swap is read.
fn reading(view: &FaultView, program: &str) -> Advice {
    match (first_from_a_file(view), view.read.often()) {
        (true, true) => Advice::new(
            "reading files that were not in memory",
            "parts of them were read before in this recording: something takes them out of memory (memory that is \
             short, posix_fadvise), or they are read page by page (MADV_RANDOM)",
            format!("pagemill record --with heap,pressure {program}"),
        ),
        (true, false) => Advice::new(
            "reading files that were not in memory yet",
            "a second run finds them there, unless memory is short",
            format!("pagemill record --with faults,pressure {program}"),
        ),
        (false, _) => Advice::new(
            "waiting for files or swap",
            "the working set does not fit, or is read in small pieces",
            format!("pagemill record --with heap,pressure {program}"),
        ),
    }
}

/// What the part of the slow faults' time asks for that took most.
fn of_part(view: &FaultView, category: Option<Category>, program: &str) -> Advice {
    let Some(Part { cause, words, .. }) = part(&view.slow) else {
        let (what, next) = fewer_faults(category, false, program);
        return Advice::new("zeroing and mapping new pages", what, next);
    };
    let pressure = |with: &str| format!("pagemill record --with {with},pressure {program}");
    let trials = || format!("pagemill advise {program}");
    let (what, next) = match cause {
        Cause::Io => return Advice { part: Some(cause), ..reading(view, program) },
        Cause::Compaction => (
            "less of it where free memory is not fragmented",
            "sudo pagemill frag compact".to_owned(),
        ),
        Cause::Reclaim => ("memory is short", pressure("heap")),
        Cause::Host if view.filled.often() => (
            "memory that is kept and not given back to the system is not waited for again",
            trials(),
        ),
        Cause::Host => (
            "they were first touches, of memory that was not given back before: less new memory, or no huge pages \
             where little of each is used, would shorten it",
            trials(),
        ),
        Cause::Asleep => (
            "who answers its page faults (userfaultfd, a file system of a process) takes that long",
            pressure("faults"),
        ),
        Cause::Locks => {
            ("fewer threads that map, unmap or fault at once would shorten it", trials())
        }
        Cause::Cpu => (
            "it is no lever's of memory: fewer threads at once, or CPUs of its own, would shorten it",
            pressure("faults"),
        ),
        Cause::Waiting => fewer_faults(category, view.several_threads, program),
        _ => fewer_faults(category, false, program),
    };
    Advice { part: Some(cause), why: words, what, next }
}

/// What makes faults fewer, and the command: larger pages where the program faults in new ones. Which, if any, trials
/// tell: of 64 KiB one does for sixteen faults, and where a host has to find their memory first they are no faster.
/// `threads`: several of them may wait for each other.
fn fewer_faults(
    category: Option<Category>,
    threads: bool,
    program: &str,
) -> (&'static str, String) {
    let new = matches!(category, Some(Category::NewPage | Category::Huge | Category::HugeRefused));
    let what = match (threads, new) {
        (true, _) => "fewer faults, or fewer threads that map and unmap at once, would shorten it",
        (false, true) => {
            "fewer faults, for larger pages or memory that is kept, may shorten it: trials tell (by --goal tail and \
             --metric where it prints a latency)"
        }
        (false, false) => "fewer faults would shorten it",
    };
    let next = match new {
        true => format!("sudo pagemill advise --goal speed {program}"),
        false => format!("pagemill advise {program}"),
    };
    (what, next)
}

/// Whether most of the slow faults' time was spent in a file that is mapped.
fn first_from_a_file(view: &FaultView) -> bool {
    let memory = ["/memfd:", "/dev/", "/SYSV"];
    view.mappings.first().is_some_and(|(place, _)| {
        place.starts_with('/') && !memory.iter().any(|name| place.starts_with(name))
    })
}

/// A part of the slow faults' time: what it went into, how a sentence has it, and ns.
#[derive(Clone, Copy)]
struct Part {
    cause: Cause,
    words: &'static str,
    time: u64,
}

/// What took most first.
fn parts(slow: &Slow) -> Vec<Part> {
    let rest = match slow.waits_known {
        true => (Cause::Lookup, "lookup and allocation", slow.remainder()),
        false => (Cause::Waiting, "lookup, allocation and waiting for locks", slow.remainder()),
    };
    let parts = [
        rest,
        (Cause::Cpu, "waiting for a CPU that others had", slow.cpu),
        (Cause::Locks, "waiting for locks of the kernel", slow.locks),
        (Cause::Io, "reading files or swap", slow.reading),
        (Cause::Host, "waiting for memory that the host had to find first", slow.cold),
        (Cause::Asleep, "sleeping until another thread or process filled the page", slow.asleep),
        (Cause::Zeroing, "zeroing and mapping new pages", slow.clearing),
        (Cause::Reclaim, "reclaim of memory", slow.reclaim),
        (Cause::Compaction, "compaction of memory for huge pages", slow.compaction),
    ];
    let parts = parts.into_iter().filter(|(.., time)| time.0 > 0);
    let mut parts: Vec<_> =
        parts.map(|(cause, words, time)| Part { cause, words, time: time.0 }).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.time));
    parts
}

/// What advice is for: what most of the slow faults' time went into. Waiting for a CPU is nothing of memory's, and
/// hides what is where it took less than half.
fn part(slow: &Slow) -> Option<Part> {
    let parts = parts(slow);
    let small = |time: u64| time.saturating_mul(2) <= slow.time.0;
    let others = parts.iter().find(|part| part.cause != Cause::Cpu);
    let first = match parts.first() {
        Some(Part { cause: Cause::Cpu, time, .. }) if small(*time) => others.or(parts.first()),
        first => first,
    };
    first.copied()
}

/// Whether that is one of pagemill's own libraries, whose first pages may have to be read at the start: no fault of the
/// program's.
fn is_ours(place: &str) -> bool {
    place.rsplit('/').next().is_some_and(|name| name.starts_with("libpagemill_"))
}

/// The longest fault, if somebody notices it.
fn tail(seen: &RecordedViews<'_>, view: &FaultView) -> Option<Finding> {
    let worst = || view.worst.iter().filter(|moment| !is_ours(&moment.place));
    let stalls = worst().filter(|moment| moment.latency.0 >= STALL);
    let worst = worst().next()?;
    let (count, sum) =
        stalls.fold((0, 0_u64), |(n, sum), moment| (n + 1, moment.latency.0.saturating_add(sum)));
    if worst.latency.0 < STALL {
        return None;
    }
    let cause = worst.cause.name();
    Some(Finding {
        subject: "tail",
        text: format!(
            "the longest page fault took {}, {cause}, in {} at {}; {count} of the ten longest took 1 ms or more",
            time(worst.latency.0),
            worst.place,
            time(worst.at.0),
        ),
        evidence: format!("faults with a row of their own, thread {}", worst.tid.unwrap_or(0)),
        next: format!("pagemill report {} --spike 1ms", seen.recording),
        stake: Stake::Time(Nanos(sum)),
        share: (sum as f64 / view.duration.0.max(1) as f64).min(1.0),
    })
}
