//! The two sentences that stand first: why memory is what it is, and whether page faults stall the program.

use pagemill_analysis::findings::is_stored;
use pagemill_analysis::growth::steady;
use pagemill_analysis::heap::Children;
use pagemill_launch::prepare;
use pagemill_model::recording::Meta;
use pagemill_model::sums::sum;
use pagemill_model::units::counted;
use pagemill_model::{Bytes, FaultSetup, HeapSample, Nanos};

use crate::state::State;
use crate::state::faults::{MINUTE, STALL};
use crate::state::heat::{Anonymous, Region};
use crate::state::memory::memory;

/// A sentence, and whether it asks for attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The sentence.
    pub text: String,
    /// Whether it asks for attention.
    pub alert: bool,
}

/// A part of the memory from which on it is worth a word.
const PART: f64 = 0.2;

/// A part of the memory from which on what is cold is worth a word.
const COLD: f64 = 0.05;

/// What was not touched for a shorter time is not cold.
const ENOUGH: Nanos = Nanos(4_000_000_000);

/// A size as a sentence has it.
pub fn size(bytes: u64) -> String {
    Bytes(bytes).plain()
}

/// A time as a sentence has it.
pub fn time(nanos: Nanos) -> String {
    nanos.plain()
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// The sentences that there are.
pub fn says(state: &State, meta: &Meta) -> impl Iterator<Item = Sentence> {
    let memory = memory_sentence(state).or_else(|| accesses_sentence(state, meta));
    [memory, children_sentence(state), growth_sentence(state), faults_sentence(state, meta)]
        .into_iter()
        .flatten()
}

/// What is cold, of a recording of accesses without samples of memory.
fn accesses_sentence(state: &State, meta: &Meta) -> Option<Sentence> {
    meta.accesses.as_ref().filter(|setup| setup.without_address.is_none())?;
    let half = Nanos(state.length().0 / 2);
    // What is used all the time is seen once in the time between two rows.
    if half < Nanos(ENOUGH.0 / 4) || half.0 / 2 < state.heat.longest_pause().0 {
        return None;
    }
    let mut regions = state.heat.regions();
    regions.retain(|region| !is_stored(&region.name));
    let cold = |region: &Region| region.bytes - region.touched_within(half, state.now);
    let (all, of) = (sum(regions.iter().map(|region| region.bytes)), sum(regions.iter().map(cold)));
    if (of as f64) < COLD * all as f64 || of == 0 {
        return None;
    }
    let most = regions.iter().max_by_key(|region| cold(region))?;
    let text = format!(
        "{} of {} that it touched, most of it in {}, were not touched in the last {} of {}: pagemill report says what \
         could be swapped",
        size(of),
        size(all),
        most.name,
        time(half),
        time(state.length()),
    );
    Some(Sentence { text, alert: false })
}

/// What merges pages with holes: the heap by itself takes the time of a program that rests.
fn merger(rests: bool) -> &'static str {
    if rests {
        "pagemill run --heap compact merges such pages"
    } else {
        "pagemill run --heap compact merges such pages once it rests, with --ksm at any time"
    }
}

/// What merges pages with holes, and whether it still does.
fn merging(sample: &HeapSample, all: u64, rests: bool) -> String {
    if !sample.config.as_deref().is_some_and(prepare::compacts) {
        return format!("; {}", merger(rests));
    }
    let mergeable = sample.mergeable.map(|bytes| bytes.0);
    match (mergeable, sample.stopped_by.as_deref()) {
        (Some(bytes), _) if (bytes as f64) < PART * all as f64 => {
            "; what could be merged of such pages is".to_owned()
        }
        (Some(bytes), Some("fork")) => format!(
            "; {} could still be merged, but not within the bound on mappings: pagemill run --ksm has none",
            size(bytes)
        ),
        _ => "; compaction merges such pages".to_owned(),
    }
}

/// Where the memory is, and why it does not fall.
fn memory_sentence(state: &State) -> Option<Sentence> {
    let sample = state.memory.last.as_ref()?;
    let all = memory(sample)?;
    let heap = sample.live.zip(sample.footprint);
    let mut text = format!("{} of memory", size(all));
    text += &given_to_kernel(sample, all).unwrap_or_default();
    if let Some((Bytes(live), Bytes(footprint))) = heap.filter(|heap| heap.0.0 > 0) {
        let free = footprint.saturating_sub(live);
        let dirty = sample.dirty.map_or(0, |bytes| bytes.0).min(free);
        let kept = free - dirty;
        if kept as f64 >= PART * all as f64 {
            text += &format!(
                ", {} live: {} are free in the heap, on pages that it shares with what is live",
                size(live),
                size(kept)
            );
            text += &merging(sample, all, rests(state));
            return Some(Sentence { text, alert: true });
        }
        if dirty as f64 >= PART * all as f64 {
            text +=
                &format!(", {} live: {} are free and will be given back", size(live), size(dirty));
            return Some(Sentence { text, alert: false });
        }
        text += &format!(", {} live: it is what the program holds", size(live));
        return Some(Sentence { text, alert: false });
    }
    if let Some(malloc) = &state.memory.malloc {
        let name = malloc.malloc.as_deref().unwrap_or_default();
        let is_glibc = name == HeapSample::GLIBC;
        let bytes = |bytes: Option<Bytes>| bytes.map_or(0, |bytes| bytes.0);
        let (whole, pieces) = (bytes(malloc.malloc_returnable), bytes(malloc.malloc_pieces));
        let kept = whole.saturating_add(pieces).min(all);
        if kept as f64 >= PART * all as f64 {
            let (place, lever) = match whole >= pieces {
                true if is_glibc && rests(state) => {
                    ("whole pages: ", "pagemill run --trim has it give them back")
                }
                true if is_glibc => {
                    ("whole pages, and it does not rest: ", "pagemill run --heap compact")
                }
                true => ("whole pages, ", "which it gives back later, if at all"),
                false => ("pieces of pages: ", merger(rests(state))),
            };
            text += &format!(", {} of it free in {name}, most in {place}{lever}", size(kept));
            return Some(Sentence { text, alert: true });
        }
    }
    if let Some(Anonymous { bytes, huge }) =
        state.heat.anonymous().filter(|memory| memory.bytes > 0)
        && huge as f64 >= 0.5 * bytes as f64
    {
        text +=
            &format!(", {} of it on huge pages, which keep 2 MiB where a part is used", size(huge));
    }
    if let Some((window, warm, of)) = warm(state) {
        // What is free is not touched either.
        let cold = (of - warm).min(all).saturating_sub(lazy_free(sample));
        if cold as f64 >= COLD * all as f64 {
            text += &format!("; {} of it not touched in {}", size(cold), time(window));
        }
    }
    // Who grows is at its peak, and that stands below.
    if growth_sentence(state).is_none() {
        text += &from_its_peak(state, sample, all).unwrap_or_default();
    }
    Some(Sentence { text, alert: false })
}

/// That more is in processes that it started, where that is a good part of all.
fn children_sentence(state: &State) -> Option<Sentence> {
    let children = state.memory.children.filter(Children::matter)?;
    let look = children.largest.map_or_else(String::new, |pid| {
        let of = if children.processes == 1 { "it" } else { "the largest" };
        format!(": pagemill live -p {pid} looks into {of}")
    });
    let text = format!(
        "{} more in {} that it started{look}",
        size(children.memory.0),
        counted(children.processes, "process", "processes"),
    );
    Some(Sentence { text, alert: true })
}

/// What the program gave to the kernel, and the kernel has not taken yet, bytes.
fn lazy_free(sample: &HeapSample) -> u64 {
    sample.lazy_free.map_or(0, |bytes| bytes.0)
}

/// That much of its memory is that, as a part of a sentence.
fn given_to_kernel(sample: &HeapSample, all: u64) -> Option<String> {
    let free = lazy_free(sample).min(all);
    (free > 0 && free as f64 >= COLD * all as f64).then(|| {
        let free = size(free);
        format!(
            ", {free} of it free already (MADV_FREE): the kernel takes that when memory is short"
        )
    })
}

/// That it has grown steadily until now, whatever else is to be said of its memory.
fn growth_sentence(state: &State) -> Option<Sentence> {
    /// Who grows for a shorter time sets itself up, as likely as not.
    const SHORTEST: f64 = 2.0;
    const LONG: f64 = 30.0;
    let since = Nanos(state.now.0.saturating_sub(MINUTE.0));
    let growth = steady(&state.memory.held.since(since))?;
    if growth.seconds() < SHORTEST {
        return None;
    }
    let text = format!(
        "it grew by {} a second for {}, steadily, and gave {} back",
        size(growth.rate() as u64),
        time(Nanos((growth.seconds() * 1e9) as u64)),
        if growth.given_back * 100.0 < growth.bytes { "nothing" } else { "next to nothing" },
    );
    Some(Sentence { text, alert: growth.seconds() >= LONG })
}

/// How far it is below its highest, as the end of a sentence. What lay between two looks the kernel knows, of the
/// resident set.
fn from_its_peak(state: &State, sample: &HeapSample, all: u64) -> Option<String> {
    /// A part below which it is the same, and bytes.
    const APART: f64 = 0.05;
    const LEAST: u64 = 1 << 20;
    if let Some((Bytes(now), Bytes(peak))) = sample.rss.zip(sample.peak_rss) {
        let below = peak.saturating_sub(now);
        if below >= LEAST && below as f64 >= APART * peak as f64 {
            let share = percent(below as f64 / peak as f64);
            return Some(format!("; {share} below its highest so far, {} resident", size(peak)));
        }
    }
    let highest = state.memory.history.highest().filter(|highest| *highest > 0.0)?;
    Some(match 1.0 - all as f64 / highest {
        below if below >= APART => format!("; {} below its peak", percent(below)),
        _ if size(all) == size(highest as u64) => "; at its peak".to_owned(),
        // The largest value stands beside it, and is another one.
        _ => format!("; near its peak of {}", size(highest as u64)),
    })
}

/// Whether it uses so little of a CPU that `run --trim` would trim it; of a program that is not known to work, too.
fn rests(state: &State) -> bool {
    /// Who uses a smaller part of a CPU rests.
    const REST: f64 = 0.05;
    state.memory.used.is_none_or(|used| used < REST)
}

/// How long the window is, how much of the memory of mappings was touched in it, and how much there is; `None` while it
/// is too short to tell.
fn warm(state: &State) -> Option<(Nanos, u64, u64)> {
    let window = state.heat.window().filter(|window| *window >= ENOUGH)?;
    let known =
        state.heat.regions().into_iter().filter_map(|region| Some((region.warm?, region.bytes)));
    let (warm, of) = known.fold((0_u64, 0_u64), |(warm, of), (more, bytes)| {
        (warm.saturating_add(more.min(bytes)), of.saturating_add(bytes))
    });
    (of > 0).then_some((window, warm, of))
}

/// Whether page faults are what stalls it.
fn faults_sentence(state: &State, meta: &Meta) -> Option<Sentence> {
    let setup = meta.faults.as_ref()?;
    let stalls: Vec<_> = state.faults.stalls(MINUTE, state.now).collect();
    let span = if state.length() < MINUTE { "so far" } else { "in the last minute" };
    let bursts = match state.faults.bursts(state.now) {
        0 => None,
        bursts => {
            let stretches =
                if bursts == 1 { "one stretch".to_owned() } else { format!("{bursts} stretches") };
            Some(format!(
                "in {stretches} of {} a thread spent half or more in shorter ones",
                time(STALL)
            ))
        }
    };
    if let Some(worst) = stalls.iter().max_by_key(|stall| stall.latency) {
        let many = match stalls.len() {
            1 => "one page fault".to_owned(),
            many => format!("{many} page faults"),
        };
        let text = format!(
            "{many} of {} or more {span}, the longest {}: {}, in {}{}",
            time(STALL),
            time(worst.latency),
            worst.cause.name(),
            worst.place,
            bursts.map_or_else(String::new, |bursts| format!("; {bursts}"))
        );
        return Some(Sentence { text, alert: true });
    }
    let none = format!("no page fault of {} or more {span}", time(STALL));
    let text = match &bursts {
        _ if setup.back_end == "counters" => {
            "page faults are counted and not timed here: whether they stall the program is unknown"
                .to_owned()
        }
        Some(bursts) => format!("{none}, but {bursts}"),
        None if is_untold(state, setup) => {
            format!("{none}; whether shorter ones are stalls together is not known here")
        }
        None => format!("{none}: they explain no spikes of that length"),
    };
    Some(Sentence { text, alert: bursts.is_some() })
}

/// Whether short faults might be stalls together and nobody says when each of them was: rows were lost, or it is a
/// recording of an earlier version.
fn is_untold(state: &State, setup: &FaultSetup) -> bool {
    let untold = setup.lost_rows > 0 || (setup.sum.is_none() && setup.threshold.0 > 0);
    untold && state.faults.took(state.now) >= Nanos(STALL.0 / 2)
}

#[cfg(test)]
mod tests {
    use pagemill_model::fault::SUM;
    use pagemill_model::{
        AccessSetup, Event, Fault, FaultCounts, FaultSum, HeapSample, MappingSample, Touched,
        latency,
    };

    use super::*;

    const MIB: u64 = 1 << 20;

    fn state(sample: HeapSample) -> State {
        let mut state = State::default();
        let time = Nanos(1_000_000_000);
        let sample = HeapSample { time, pss: Some(Bytes(200 * MIB)), ..sample };
        state.event(&Event::Heap(Box::new(sample)), &Meta::default());
        state
    }

    fn heap(live: u64, footprint: u64, dirty: u64, config: &str) -> String {
        let bytes = |mib: u64| Some(Bytes(mib * MIB));
        let says = memory_sentence(&state(HeapSample {
            live: bytes(live),
            footprint: bytes(footprint),
            dirty: bytes(dirty),
            config: Some(config.into()),
            ..HeapSample::default()
        }));
        let Sentence { text, alert } = says.unwrap();
        format!("{}{text}", if alert { "! " } else { "" })
    }

    #[test]
    fn why_memory_does_not_fall_is_said_of_our_heap() {
        assert!(heap(180, 195, 0, "1y").ends_with("180.0 MiB live: it is what the program holds"));
        let kept = heap(90, 190, 10, "0n");
        assert!(
            kept.starts_with("! 200.0 MiB of memory, 90.0 MiB live: 90.0 MiB are free"),
            "{kept}"
        );
        assert!(kept.ends_with("pagemill run --heap compact merges such pages"), "{kept}");
        assert!(heap(90, 190, 10, "1y").ends_with("; compaction merges such pages"));
        let merges = |mergeable, stopped: &str| {
            let (mergeable, stopped_by) = (Some(Bytes(mergeable * MIB)), Some(stopped.to_owned()));
            let config = Some("1y".to_owned());
            let sample = HeapSample { mergeable, stopped_by, config, ..HeapSample::default() };
            merging(&sample, 200 * MIB, true)
        };
        assert!(merges(1, "fork").ends_with("could be merged of such pages is"));
        assert!(merges(80, "fork").starts_with("; 80.0 MiB could still be merged, but not within"));
        assert_eq!(merges(80, "work"), "; compaction merges such pages");
        assert!(heap(90, 190, 90, "1y").ends_with("90.0 MiB are free and will be given back"));
        assert!(memory_sentence(&State::default()).is_none(), "nothing was measured");
    }

    /// "at its peak" stood above a larger `max`.
    #[test]
    fn at_its_peak_is_who_has_the_largest_value_that_is_shown() {
        let mut state = state(HeapSample::default());
        let mut says = |pss: u64| {
            let (time, pss) = (Nanos(2_000_000_000), Some(Bytes(pss * MIB)));
            let sample = HeapSample { time, pss, ..HeapSample::default() };
            state.event(&Event::Heap(Box::new(sample)), &Meta::default());
            memory_sentence(&state).unwrap().text
        };
        assert!(says(200).ends_with("; at its peak"));
        assert!(says(198).ends_with("; near its peak of 200.0 MiB"));
        assert!(says(150).ends_with(" below its peak"));
    }

    /// "at its peak" was said of 135 KiB: looked at each second, a program that fills and frees 32 MiB twice a second
    /// was never met at its peak.
    #[test]
    fn a_peak_between_two_looks_is_the_kernels() {
        let says = |rss: u64, peak: Option<u64>| {
            let sample = HeapSample {
                rss: Some(Bytes(rss << 10)),
                peak_rss: peak.map(|peak| Bytes(peak << 10)),
                ..HeapSample::default()
            };
            memory_sentence(&state(sample)).unwrap().text
        };
        let below = says(1600, Some(33 << 10));
        assert!(below.ends_with("; 95 % below its highest so far, 33.0 MiB resident"), "{below}");
        assert!(says(32 << 10, Some(33 << 10)).ends_with("; at its peak"));
        assert!(says(600, Some(1600)).ends_with("; at its peak"), "a library more or less");
        assert!(says(1600, None).ends_with("; at its peak"));
    }

    /// "at its peak" was all that was said of a leak of 23 MiB a second.
    #[test]
    fn who_grows_steadily_is_said_to_and_by_how_much_a_second() {
        let says = |seconds: u64, until: u64| {
            let mut state = State::default();
            for second in 1..=seconds {
                let mib = 25 + 23 * second.min(until);
                let sample = HeapSample {
                    time: Nanos(second * 1_000_000_000),
                    pss: Some(Bytes(mib * MIB)),
                    pss_anon: Some(Bytes(mib * MIB)),
                    ..HeapSample::default()
                };
                state.event(&Event::Heap(Box::new(sample)), &Meta::default());
            }
            let says: Vec<_> = super::says(&state, &Meta::default()).collect();
            let text =
                says.iter().map(|sentence| sentence.text.as_str()).collect::<Vec<_>>().join("; ");
            (text, says.iter().any(|sentence| sentence.alert))
        };
        let (text, alert) = says(9, 9);
        let expected = " MiB of memory; it grew by 23.0 MiB a second for 8.0 s, steadily, and gave nothing back";
        assert!(text.ends_with(expected) && !alert, "{text}");
        let (text, alert) = says(100, 100);
        assert!(text.contains("by 23.0 MiB a second for 60.0 s, steadily") && alert, "{text}");
        for (seconds, until) in [(3, 3), (9, 6), (60, 20)] {
            let (text, alert) = says(seconds, until);
            assert!(text.ends_with("; at its peak") && !alert, "{seconds} {until}: {text}");
        }
    }

    /// "100.2 MiB of memory; at its peak" was said of what the program had given to the kernel.
    #[test]
    fn what_the_program_gave_to_the_kernel_is_said_to_be_free() {
        let says = |mib: Option<u64>| {
            let lazy_free = mib.map(|mib| Bytes(mib * MIB));
            let sentence =
                memory_sentence(&state(HeapSample { lazy_free, ..HeapSample::default() }));
            let Sentence { text, alert } = sentence.unwrap();
            assert!(!alert);
            text
        };
        let expected = "200.0 MiB of memory, 190.0 MiB of it free already (MADV_FREE): the kernel takes that when \
                        memory is short; at its peak";
        assert_eq!(says(Some(190)), expected);
        for little in [Some(9), Some(0), None] {
            assert_eq!(says(little), "200.0 MiB of memory; at its peak");
        }
        assert!(says(Some(1 << 20)).contains("200.0 MiB of it free"), "no more than there is");
    }

    /// "33.0 MiB of memory; at its peak" was all that was said of a server whose workers had 168.
    #[test]
    fn what_other_processes_hold_that_it_started_is_said_while_they_run() {
        let says = |looks: &[Option<u64>]| {
            let mut state = state(HeapSample::default());
            for (children, time) in looks.iter().zip(2..) {
                let sample = HeapSample {
                    time: Nanos(time * 1_000_000_000),
                    pss: Some(Bytes(33 * MIB)),
                    children: *children,
                    children_pss: children.map(|count| Bytes(count * 42 * MIB)),
                    largest_child: children.filter(|count| *count > 0).map(|_| 9),
                    ..HeapSample::default()
                };
                state.event(&Event::Heap(Box::new(sample)), &Meta::default());
            }
            children_sentence(&state).map(|sentence| sentence.text)
        };
        let four = "168.0 MiB more in 4 processes that it started: pagemill live -p 9 looks into the largest";
        assert_eq!(says(&[Some(4), None]).as_deref(), Some(four), "nobody looked the last time");
        assert!(
            says(&[Some(1)])
                .unwrap()
                .ends_with(" 1 process that it started: pagemill live -p 9 looks into it")
        );
        assert_eq!(says(&[Some(4), Some(0)]), None);
        assert_eq!(says(&[None]), None);
    }

    /// Of a leak whose malloc had a fifth of it free only the latter was said.
    #[test]
    fn that_it_grows_is_said_whatever_its_malloc_keeps() {
        let mut state = State::default();
        for quarter in 0..20_u64 {
            let pss = Some(Bytes((50 + 9 * quarter) * MIB / 4));
            let sample = HeapSample {
                time: Nanos(quarter * 250_000_000),
                pss,
                pss_anon: pss,
                malloc: Some("glibc's malloc".into()),
                malloc_returnable: Some(Bytes(40 * MIB)),
                ..HeapSample::default()
            };
            state.event(&Event::Heap(Box::new(sample)), &Meta::default());
        }
        let says: Vec<_> = says(&state, &Meta::default()).map(|sentence| sentence.text).collect();
        assert!(says[0].contains("of it free in glibc's malloc"), "{says:?}");
        let expected = "it grew by 9.0 MiB a second for 4.8 s, steadily, and gave nothing back";
        assert_eq!(says[1..], [expected]);
    }

    /// A recording of accesses began with no sentence at all.
    #[test]
    fn of_accesses_alone_it_is_said_what_is_cold() {
        let says = |rounds: u64, every: u64, setup: AccessSetup| {
            let page_size = Bytes(4096);
            let meta = Meta { pid: 7, page_size, accesses: Some(setup), ..Meta::default() };
            let mut state = State::of(&meta);
            for (start, name) in [(1_u64 << 30, "cold"), (2 << 30, "hot"), (3 << 30, "/a/file")] {
                let row = MappingSample {
                    time: Nanos(1),
                    pid: Some(7),
                    start: Some(start),
                    end: Some(start + 99 * MIB),
                    name: Some(name.into()),
                    ..MappingSample::default()
                };
                state.event(&Event::Mapping(Box::new(row)), &meta);
            }
            for round in 0..=rounds {
                let starts = [2_u64 << 30, 1 << 30, 3 << 30];
                let now = if round == 0 { &starts[..] } else { &starts[..1] };
                let row = Touched {
                    time: Nanos(1 + round * every),
                    pid: Some(7),
                    starts: Some(now.to_vec()),
                    pages: Some(vec![256, 99 * 256, 99 * 256][..now.len()].to_vec()),
                    ..Touched::default()
                };
                state.event(&Event::Touched(Box::new(row)), &meta);
            }
            super::says(&state, &meta).map(|sentence| sentence.text).collect::<Vec<_>>()
        };
        let expected = "99.0 MiB of 100.0 MiB that it touched, most of it in cold, were not touched in the last 2.5 s \
                        of 5.0 s: pagemill report says what could be swapped";
        assert_eq!(says(50, 100_000_000, AccessSetup::default()), [expected]);
        assert!(says(2, 2_500_000_000, AccessSetup::default()).is_empty(), "two intervals");
        let sampled = AccessSetup { without_address: Some(3), ..AccessSetup::default() };
        assert!(says(50, 100_000_000, sampled).is_empty());
    }

    #[test]
    fn what_another_malloc_keeps_is_said_until_it_says_otherwise() {
        let bytes = |mib: u64| Some(Bytes(mib * MIB));
        let asked = |whole: u64, pieces: u64| HeapSample {
            malloc: Some("glibc's malloc".into()),
            malloc_returnable: bytes(whole),
            malloc_pieces: bytes(pieces),
            ..HeapSample::default()
        };
        let mut state = state(asked(150, 10));
        let says = |state: &State| memory_sentence(state).unwrap().text;
        let expected = "200.0 MiB of memory, 160.0 MiB of it free in glibc's malloc, most in whole pages: pagemill run \
                        --trim has it give them back";
        assert_eq!(says(&state), expected);
        let mut second = 1;
        let mut next = |sample: HeapSample| {
            second += 1;
            let time = Nanos(second * 1_000_000_000);
            let sample = HeapSample { time, pss: bytes(200), ..sample };
            state.event(&Event::Heap(Box::new(sample)), &Meta::default());
            says(&state)
        };
        // It is not asked each time.
        assert_eq!(next(HeapSample::default()), expected);
        // Trimming waits for a rest, and was named for a program that has none.
        let cpu =
            |ms: u64| HeapSample { cpu: Some(Nanos(ms * 1_000_000)), ..HeapSample::default() };
        assert_eq!(next(cpu(10)), expected);
        assert!(next(cpu(310)).ends_with("and it does not rest: pagemill run --heap compact"));
        assert_eq!(next(cpu(320)), expected);
        assert!(next(asked(10, 150)).ends_with("--heap compact merges such pages"));
        assert!(!next(asked(10, 10)).contains("malloc"));
    }

    #[test]
    fn stalls_are_told_with_their_cause_and_their_absence_is_told_too() {
        let setup = FaultSetup { details: true, ..FaultSetup::default() };
        let meta = Meta { faults: Some(setup), ..Meta::default() };
        let mut state = state(HeapSample::default());
        assert_eq!(faults_sentence(&state, &Meta::default()), None);
        let none = faults_sentence(&state, &meta).unwrap();
        assert!(!none.alert && none.text.starts_with("no page fault of 1.0 ms or more so far"));
        let (time, latency) = (Nanos(2_000_000_000), Nanos(5_000_000));
        let compaction = Some(Nanos(4_000_000));
        let fault = Fault { time, latency, compaction, ..Fault::default() };
        state.event(&Event::Fault(Box::new(fault)), &meta);
        let one = faults_sentence(&state, &meta).unwrap();
        let expected =
            "one page fault of 1.0 ms or more so far, the longest 5.0 ms: compaction, in unknown";
        assert_eq!((one.text.as_str(), one.alert), (expected, true));
        let counted = FaultSetup { back_end: "counters".into(), ..FaultSetup::default() };
        let meta = Meta { faults: Some(counted), ..Meta::default() };
        let text = faults_sentence(&State::default(), &meta).unwrap().text;
        assert!(text.ends_with("is unknown"), "{text}");
    }

    /// Once, a program that spent 13 ms at a time in faults of 2 us was said to have no spikes of them.
    #[test]
    fn many_short_faults_are_a_stall_together_and_where_they_may_be_that_is_not_denied() {
        let setup = FaultSetup { threshold: Nanos(100_000), ..FaultSetup::default() };
        let meta = Meta { faults: Some(setup.clone()), ..Meta::default() };
        let counts = FaultCounts {
            time: Nanos(1_500_000_000),
            flags: Some(0),
            buckets: Some(vec![latency::bucket(Nanos(2000)).into()]),
            counts: Some(vec![6000]),
        };
        let mut state = state(HeapSample::default());
        state.event(&Event::FaultCounts(Box::new(counts)), &meta);
        let text = faults_sentence(&state, &meta).unwrap().text;
        assert!(text.ends_with("is not known here"), "{text}");
        let setup = FaultSetup { sum: Some(SUM), ..setup };
        let meta = Meta { faults: Some(setup), ..meta };
        let text = faults_sentence(&state, &meta).unwrap().text;
        assert!(text.ends_with("explain no spikes of that length"), "{text}");
        for number in 1..=120 {
            let sum = FaultSum {
                time: Nanos(2_000_000_000 + number * 105_000),
                span: Some(Nanos(105_000)),
                took: Some(SUM),
                faults: Some(50),
                tid: Some(7),
                ..FaultSum::default()
            };
            state.event(&Event::FaultSum(Box::new(sum)), &meta);
        }
        let expected = "no page fault of 1.0 ms or more so far, but in 24 stretches of 1.0 ms a thread spent half or \
                        more in shorter ones";
        let says = faults_sentence(&state, &meta).unwrap();
        assert_eq!((says.text.as_str(), says.alert), (expected, true));
        state.at(Nanos(70_000_000_000));
        let text = faults_sentence(&state, &meta).unwrap().text;
        assert!(text.starts_with("no page fault of 1.0 ms or more in the last minute: "), "{text}");
    }
}
