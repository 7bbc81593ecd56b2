//! Memory that grew all the time and was not given back.

use pagemill_model::sums::sum;
use pagemill_model::{Bytes, Nanos};

use super::finding::{Finding, RecordedViews, Stake, code, percent, size, time};
use crate::growth::{Growth, steady};
use crate::heat::ObjectHeat;

/// Who ran for a shorter time was making its data still, s.
const SHORTEST: f64 = 2.0;
/// Who grows until then, as a part of the time, grows until it ends.
const TO_THE_END: f64 = 0.875;
/// A part of the highest from which on it is near that.
const NEAR: f64 = 0.99;

/// That it grew steadily, by samples of memory or else by its allocations.
pub(super) fn find(seen: &RecordedViews<'_>) -> Option<Finding> {
    sampled(seen).or_else(|| allocated(seen))
}

/// That what it allocated and did not free grew, where memory was not sampled.
fn allocated(seen: &RecordedViews<'_>) -> Option<Finding> {
    let (_, _, heat) =
        seen.accesses.filter(|_| seen.heap.is_none_or(|view| view.held.is_none()))?;
    if seen.lacks_allocations().is_some() {
        return None;
    }
    // What it frees as it ends says nothing of the time before: near its highest it was for the last time before that.
    let highest = heat.live.iter().map(|point| point.1.0).max()?;
    let near = |(_, bytes): &(Nanos, Bytes)| bytes.0 as f64 >= highest as f64 * NEAR;
    let end = match seen.has_ended() {
        true => heat.live.iter().rposition(near)?,
        false => heat.live.len() - 1,
    };
    let points = heat.live[..=end].iter().map(|(at, bytes)| (at.0 as f64 / 1e9, bytes.0 as f64));
    let points: Vec<_> = points.collect();
    let whole = heat.step.saturating_mul(heat.steps) as f64 / 1e9;
    let to_the_end = |growth: &Growth| growth.until >= whole * TO_THE_END;
    let long = |growth: &Growth| growth.seconds() >= SHORTEST;
    let growth = steady(&points).filter(|growth| long(growth) && to_the_end(growth))?;
    let bytes = growth.bytes;
    let pages = |of: &&ObjectHeat| sum(of.last_touched.iter().map(|(_, pages)| *pages));
    let allocations = heat.objects.iter().filter(|object| object.kind == "allocation");
    let by = allocations.max_by_key(pages).map(|object| code(&object.name));
    Some(Finding {
        subject: "growth",
        text: format!(
            "what it allocated and did not free grew by {} in {}, steadily{}: it leaks, or keeps all data that it \
             makes",
            size(bytes as u64),
            time((growth.seconds() * 1e9) as u64),
            if seen.has_ended() { " until it ended" } else { "" },
        ),
        evidence: format!(
            "{} a second, by the notes of its allocations{}",
            size(growth.rate() as u64),
            by.map_or_else(String::new, |by| format!("; most pages are of {by}")),
        ),
        next: next(seen),
        stake: Stake::Memory(Bytes(bytes as u64)),
        share: (bytes / (highest as f64).max(1.0)).min(1.0),
    })
}

/// By samples of memory.
fn sampled(seen: &RecordedViews<'_>) -> Option<Finding> {
    let view = seen.heap?;
    let held = view.held.as_ref()?;
    // What it gives back as it ends says nothing of the time before.
    let end = match (seen.has_ended(), &view.plateau) {
        (true, Some(plateau)) => plateau.at.seconds(),
        _ => f64::INFINITY,
    };
    let points: Vec<_> = held.points.iter().copied().take_while(|point| point.0 <= end).collect();
    let growth = steady(&points).filter(|growth| growth.seconds() >= SHORTEST)?;
    let Growth { bytes, from, until, .. } = growth;
    let seconds = |seconds: f64| time((seconds * 1e9) as u64);
    let from_the_first = held.points.first().is_some_and(|first| from <= first.0);
    let span = match from_the_first {
        true => seconds(growth.seconds()),
        false => format!("{}, from {} on", seconds(growth.seconds()), seconds(from)),
    };
    Some(Finding {
        subject: "growth",
        text: format!(
            "memory grew by {} in {span}, steadily{}, and {} of it was given back: it leaks, or keeps all data that it \
             makes",
            size(bytes as u64),
            if seen.has_ended() { " until it ended" } else { "" },
            if growth.given_back * 100.0 < bytes { "nothing" } else { "next to nothing" },
        ),
        evidence: format!(
            "{} a second in each part of that time, to {} at {}; {} of the largest",
            size(growth.rate() as u64),
            size(points.last().map_or(0.0, |point| point.1) as u64),
            seconds(until),
            percent(bytes / held.peak.max(1.0)),
        ),
        next: next(seen),
        stake: Stake::Memory(Bytes(bytes as u64)),
        share: (bytes / held.peak.max(1.0)).min(1.0),
    })
}

/// Who asked for it.
fn next(seen: &RecordedViews<'_>) -> String {
    match seen.accesses {
        None => format!("pagemill record --with accesses {}", seen.program()),
        // Its allocations by call site are there, with when each was touched.
        Some(_) => format!("pagemill export {} --format folded -o growth.folded", seen.recording),
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::recording::Meta;
    use pagemill_model::{Event, Fold as _, HeapSample};

    use super::super::conclude;
    use super::*;
    use crate::heap::HeapFold;

    const MIB: f64 = 1048576.0;

    /// What is concluded of memory that goes so, in MiB each 100 ms; of a program that was seen to end, or lives.
    fn told(mib: &[f64], exit_status: Option<u64>) -> Vec<Finding> {
        let mut fold = HeapFold::default();
        for (number, mib) in mib.iter().enumerate() {
            let sample = HeapSample {
                time: Nanos(number as u64 * 100_000_000),
                pss: Some(Bytes((mib * MIB) as u64 + 3_000_000)),
                pss_anon: Some(Bytes((mib * MIB) as u64)),
                ..HeapSample::default()
            };
            fold.event(&Event::Heap(Box::new(sample)));
        }
        let view = fold.view();
        let command = vec!["./leak".into()];
        let meta = Meta { pid: 7, command, exit_status, ..Meta::default() };
        let seen =
            RecordedViews { heap: Some(&view), meta: Some(&meta), ..RecordedViews::default() };
        conclude(&seen).findings
    }

    fn rising(samples: u32, rate: f64) -> Vec<f64> {
        (0..=samples).map(|number| 25.0 + rate * f64::from(number) / 10.0).collect()
    }

    /// "nothing here is worth changing" was said of a program that leaks 23 MiB a second.
    #[test]
    fn a_leak_is_told_with_its_rate_and_a_start_is_not() {
        let found = told(&rising(80, 23.25), None);
        assert_eq!((found.len(), found[0].subject), (1, "growth"), "{found:?}");
        let begin = "memory grew by 186.0 MiB in 8.0 s, steadily, and nothing of it was given back";
        assert!(found[0].text.starts_with(begin), "{}", found[0].text);
        assert!(found[0].evidence.starts_with("23.2 MiB a second"), "{}", found[0].evidence);
        assert_eq!(found[0].next, "pagemill record --with accesses -- ./leak");
        assert_eq!(found[0].stake, Stake::Memory(Bytes((186.0 * MIB) as u64)));

        let start: Vec<f64> = rising(80, 50.0).into_iter().map(|mib| mib.min(225.0)).collect();
        assert_eq!(told(&start, None), []);
        // It still makes its data, or nobody could tell by then.
        assert_eq!(told(&rising(15, 100.0), Some(0)), []);
        assert_eq!(told(&rising(15, 100.0), None), []);
    }

    #[test]
    fn what_is_given_back_at_the_end_of_a_program_hides_no_leak_and_at_another_time_is_none() {
        let mut torn_down = rising(80, 20.0);
        torn_down.extend([120.0, 60.0, 5.0]);
        let found = told(&torn_down, Some(0));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].text.contains(" in 8.0 s, steadily until it ended, and"), "{found:?}");
        assert_eq!(told(&torn_down, None), []);
        // Of an end that nobody saw: it may be a phase.
        let mut phases = rising(80, 20.0);
        phases.splice(40..40, [5.0]);
        assert_eq!(told(&phases, Some(0)), []);
    }
}
