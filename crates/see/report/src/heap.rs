//! What a heap says about itself, in words and in JSON: shared by `heap` and `report`.

use pagemill_analysis::heap::Pauses;
use pagemill_heap::stats::degraded;
use pagemill_launch::prepare;
use pagemill_model::HeapSample;
use pagemill_model::dataset::{Cell, Row as _};
use serde_json::{Map, Value, json};

/// Why a heap does less than it was asked to, each with what can be done about it.
pub fn degradations(bits: u64) -> Vec<String> {
    let known = [
        (
            degraded::NO_MEMFD,
            "no memfd: remapping is off (raise ulimit -n and -f, or allow memfd_create in the sandbox)",
        ),
        (
            degraded::NO_BARRIER,
            "no userfaultfd that also stops kernel writers: remapping is off \
             (run as root, or: setfacl -m u:$USER:rw /dev/userfaultfd; or use --ksm)",
        ),
        (
            degraded::NO_THREAD,
            "the helper thread could not be started (raise RLIMIT_NPROC or pids.max; allow clone in the sandbox)",
        ),
        (
            degraded::VMA_BUDGET,
            "the budget of mappings is used up: only groups worth more are merged (raise it: sysctl \
             vm.max_map_count=1048576)",
        ),
        (
            degraded::NO_MEMORY,
            "the kernel refused memory at least once (raise memory.max, RLIMIT_AS or RLIMIT_DATA)",
        ),
        (
            degraded::NO_KSM,
            "KSM was asked for and nobody runs ksmd, or the kernel has none (run --ksm as root, on a kernel with \
             CONFIG_KSM)",
        ),
        (
            degraded::PINS,
            "pages may be pinned by io_uring, AIO or O_DIRECT and this kernel cannot tell which: remapping is off \
             (a kernel with UFFDIO_MOVE, 6.8 or newer; or use --ksm)",
        ),
        (
            degraded::BAD_CONFIG,
            "a PAGEMILL_ variable has a value that cannot be used: its default holds (the program said which on \
             standard error)",
        ),
    ];
    let mut words: Vec<String> = known
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, text)| (*text).to_owned())
        .collect();
    let unknown = known.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    if unknown != 0 {
        words.push(format!("for reasons that only a newer pagemill knows (bits {unknown:#x})"));
    }
    words
}

/// Pages that the heap has offered to `ksmd` and that are not merged. The heap looks now and then, the
/// kernel's count is of this moment.
pub fn waiting_for_ksmd(sample: &HeapSample, page_size: u64) -> Option<u64> {
    let pending = sample.ksm_pending.filter(|_| sample.backend.as_deref() == Some("ksm"))?;
    let in_groups = sample.merged.map_or(u64::MAX, |merged| merged.0 / page_size.max(1));
    Some(pending.min(in_groups.saturating_sub(sample.ksm_merging_pages.unwrap_or(0))))
}

/// The back end in force, and why none is, if so.
pub fn back_end(sample: &HeapSample) -> String {
    let name = sample.backend.as_deref().unwrap_or("unknown");
    let why = match (name, sample.config.as_deref()) {
        ("none", Some(config)) if !prepare::compacts(config) => " (it does not compact)",
        ("none", _) if sample.degraded.unwrap_or(0) != 0 => " (see degraded, below)",
        ("none", _) => " (asked for, or none was needed yet)",
        _ => "",
    };
    format!("{name}{why}")
}

/// How many mappings the heap may hold, and whether that is what keeps it from merging more; `None`
/// where the back end holds none.
pub fn mapping_bound(sample: &HeapSample) -> Option<String> {
    let (held, allowed) = (sample.vmas?, sample.vma_budget?);
    // A batch takes what is left; a unit needs two, so the last one may stay free.
    if allowed == 0 || held + 1 < allowed {
        return Some(format!("of {allowed} allowed"));
    }
    let by_limit = sample.degraded.is_some_and(|bits| bits & degraded::VMA_BUDGET != 0);
    let why = if by_limit {
        "half of vm.max_map_count less the program's own"
    } else {
        "so that a fork, which copies each, stays fast; run --ksm has no such bound"
    };
    Some(format!("of {allowed} allowed: the bound is reached, no more is merged ({why})"))
}

/// What compaction waits for and until when, as the heap said when it last refreshed its numbers; `None` where it said
/// nothing.
pub fn resting(sample: &HeapSample) -> Option<String> {
    let left =
        sample.waits_until.zip(sample.refreshed).map(|(until, now)| until.0.saturating_sub(now.0));
    let seconds = left.filter(|left| *left > 0).map(|left| left.div_ceil(1_000_000_000));
    let waits = seconds.map_or_else(|| "waits".to_owned(), |seconds| format!("waits {seconds} s"));
    let looks = seconds.map_or_else(String::new, |seconds| format!(", looks again in {seconds} s"));
    Some(match sample.waits_for.as_deref()? {
        "pass" => "no: a pass is under way".to_owned(),
        "fragments" => format!("not fragmented enough for a pass{looks}"),
        "gain" => format!("nothing left that is worth a pass{looks}"),
        "pause" => format!("{waits}: last passes gained too little"),
        "worth" => format!("{waits}: what is left to save is not worth the work yet"),
        "share" => format!("{waits}: the share of CPU time for compaction is used up"),
        "period" => format!("{waits}: the time between two passes is not over"),
        _ => return None,
    })
}

/// What the last pass ended with, if that is not that all was done.
pub fn last_pass(sample: &HeapSample) -> Option<&'static str> {
    match sample.stopped_by.as_deref()? {
        "work" => Some("the last pass ended as the program worked again"),
        "fork" | "limit" => Some("the last pass ended at the bound on mappings"),
        "share" => Some("the last pass ended as its share of CPU time was used up"),
        "refused" => Some("the last pass ended as the kernel refused memory, an image or an offer"),
        _ => None,
    }
}

/// Name of a bucket of the occupancy histogram: the last one holds full spans.
pub fn occupancy_label(index: usize, buckets: usize) -> String {
    if index + 1 == buckets {
        return "full".to_owned();
    }
    let percent = |index: usize| index * 100 / (buckets - 1);
    format!("{}-{} %", percent(index), percent(index + 1))
}

/// What pauses are, over their table.
pub const PAUSES: &str = "pauses (times for which a group's pages could not be written; a share is known to within \
                          its bucket)";

/// What stalls are, over theirs.
pub const STALLS: &str =
    "stalls (times for which a thread of the program waited because of compaction, at most)";

/// Rows of a table: share, and the bucket that it lies in.
pub fn percentiles(pauses: &Pauses) -> Vec<Vec<String>> {
    let row = |(share, from, below): &(f64, _, _)| {
        let share = format!("{} %", (share * 1000.0).round() / 10.0);
        vec![share, format!("{from} to {below}")]
    };
    pauses.percentiles.iter().map(row).collect()
}

/// Pauses or stalls as JSON.
pub fn pauses_json(pauses: &Pauses) -> Value {
    let percentile = |(share, from, below): &(
        f64,
        pagemill_model::Nanos,
        pagemill_model::Nanos,
    )| { json!({ "share": share, "from_ns": from.0, "below_ns": below.0 }) };
    json!({
        "count": pauses.count,
        "longest_ns": pauses.longest.map(|longest| longest.0),
        "longest_bucket": pauses.longest_bucket().map(|(from, below)| {
            json!({ "from_ns": from.0, "below_ns": below.0 })
        }),
        "longest_of_life_ns": pauses.longest_of_life.map(|longest| longest.0),
        "percentiles": pauses.percentiles.iter().map(percentile).collect::<Vec<_>>(),
        "log2_buckets": pauses.buckets,
    })
}

/// A sample as JSON, by the names of the recording's columns; what was not measured is left out.
pub fn sample_json(sample: &HeapSample) -> Value {
    let mut fields = Map::new();
    for (column, cell) in HeapSample::COLUMNS.iter().zip(sample.cells()) {
        let value = match cell {
            Cell::Absent => continue,
            Cell::Number(value) => json!(value),
            Cell::Numbers(values) => json!(values),
            Cell::Real(value) => json!(value),
            Cell::Text(text) => json!(text),
        };
        fields.insert(column.name.into(), value);
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use pagemill_model::{Bytes, Nanos};

    use super::*;

    #[test]
    fn every_degradation_has_words_and_a_newer_one_is_not_hidden() {
        assert_eq!(degradations(0), Vec::<String>::new());
        let all = degradations(u64::from(u8::MAX));
        assert_eq!(all.len(), 8);
        assert!(all.iter().all(|text| !text.contains("only a newer")));
        assert_eq!(degradations(degraded::NO_MEMFD | 1 << 40).len(), 2);
    }

    #[test]
    fn a_bound_on_mappings_that_is_reached_is_said_with_what_sets_it() {
        let words = |vmas, budget, degraded| {
            let sample = HeapSample {
                vmas: Some(vmas),
                vma_budget: Some(budget),
                degraded: Some(degraded),
                ..HeapSample::default()
            };
            mapping_bound(&sample).unwrap()
        };
        assert_eq!(words(10, 1000, 0), "of 1000 allowed");
        assert_eq!(words(998, 1000, 0), "of 1000 allowed");
        let reached = "of 1000 allowed: the bound is reached, no more is merged";
        assert!(words(999, 1000, 0).starts_with(reached));
        assert!(words(1000, 1000, 0).contains("fork"));
        assert!(words(1001, 1000, degraded::VMA_BUDGET).contains("max_map_count"));
        assert_eq!(mapping_bound(&HeapSample::default()), None);
    }

    #[test]
    fn what_compaction_waits_for_is_said_with_the_time_left() {
        let words = |waits: &str, until| {
            let sample = HeapSample {
                waits_for: Some(waits.into()),
                waits_until: Some(Nanos(until)),
                refreshed: Some(Nanos(7_000_000_000)),
                ..HeapSample::default()
            };
            resting(&sample)
        };
        let pause = "waits 41 s: last passes gained too little";
        assert_eq!(words("pause", 47_900_000_000).as_deref(), Some(pause));
        assert!(words("pause", 6_000_000_000).unwrap().starts_with("waits: "), "it is over");
        assert!(words("gain", 8_000_000_000).unwrap().ends_with(", looks again in 1 s"));
        assert!(!words("fragments", 0).unwrap().contains(" s"));
        let known = &pagemill_heap::stats::WAITS[1..];
        assert!(known.iter().all(|waits| words(waits, 0).is_some()));
        assert_eq!(words("unknown", 0), None);
        assert_eq!(resting(&HeapSample::default()), None);
        let ended = |by: &str| {
            last_pass(&HeapSample { stopped_by: Some(by.into()), ..HeapSample::default() })
        };
        let told = pagemill_heap::stats::STOPS.map(|by| ended(by).is_some());
        assert_eq!(told, [false, false, true, true, true, true, true]);
    }

    #[test]
    fn pages_that_the_kernel_has_merged_do_not_wait_for_ksmd() {
        let waiting = |merging| {
            let sample = HeapSample {
                backend: Some("ksm".into()),
                ksm_pending: Some(1000),
                merged: Some(Bytes(4096 * 1200)),
                ksm_merging_pages: merging,
                ..HeapSample::default()
            };
            waiting_for_ksmd(&sample, 4096)
        };
        assert_eq!([waiting(None), waiting(Some(0))], [Some(1000), Some(1000)]);
        assert_eq!([waiting(Some(900)), waiting(Some(1300))], [Some(300), Some(0)]);
        let remapped = HeapSample { ksm_pending: Some(7), ..HeapSample::default() };
        assert_eq!(waiting_for_ksmd(&remapped, 4096), None);
    }

    #[test]
    fn what_was_not_measured_is_not_in_the_json() {
        let sample = HeapSample { pid: Some(3), passes: Some(0), ..HeapSample::default() };
        assert_eq!(sample_json(&sample), json!({ "time_ns": 0, "pid": 3, "passes": 0 }));
    }
}
