//! What a heap says about itself, in words and in JSON: shared by `heap` and `report`.

use pagemill_analysis::heap::Pauses;
use pagemill_heap::stats::degraded;
use pagemill_model::HeapSample;
use pagemill_model::dataset::{Cell, Row as _};
use serde_json::{Map, Value, json};

/// Why a heap does less than it was asked to, each with what can be done about it.
pub fn degradations(bits: u64) -> Vec<String> {
    let known = [
        (
            degraded::NO_MEMFD,
            "no memfd: remapping is off (allow memfd_create in the seccomp filter)",
        ),
        (
            degraded::NO_BARRIER,
            "no userfaultfd that also stops kernel writers: remapping is off \
             (run as root, or: setfacl -m u:$USER:rw /dev/userfaultfd; or use --ksm)",
        ),
        (
            degraded::NO_THREAD,
            "the helper thread could not be started (raise RLIMIT_NPROC or pids.max)",
        ),
        (
            degraded::VMA_BUDGET,
            "the budget of mappings is used up: only groups worth more are merged (raise it: sysctl vm.max_map_count=1048576)",
        ),
        (
            degraded::NO_MEMORY,
            "the kernel refused memory at least once (raise memory.max, RLIMIT_AS or RLIMIT_DATA)",
        ),
        (
            degraded::NO_KSM,
            "KSM was asked for and is not available (run as root on a kernel with CONFIG_KSM)",
        ),
        (
            degraded::PINS,
            "pages may be pinned by io_uring, AIO or O_DIRECT and this kernel cannot tell which: remapping is off \
             (a kernel with UFFDIO_MOVE, 6.8 or newer; or use --ksm)",
        ),
        (
            degraded::BAD_CONFIG,
            "PAGEMILL_MESH named an unknown configuration: the default 1y is in force",
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

/// Name of a bucket of the occupancy histogram: the last one holds full spans.
pub fn occupancy_label(index: usize, buckets: usize) -> String {
    if index + 1 == buckets {
        return "full".to_owned();
    }
    let percent = |index: usize| index * 100 / (buckets - 1);
    format!("{}-{} %", percent(index), percent(index + 1))
}

/// Rows of a table: share, and the bucket that it lies in.
pub fn percentiles(pauses: &Pauses) -> Vec<Vec<String>> {
    let row = |(share, from, below): &(f64, _, _)| {
        let share = format!("{} %", (share * 1000.0).round() / 10.0);
        vec![share, format!("{from} to {below}")]
    };
    pauses.percentiles.iter().map(row).collect()
}

/// Pauses as JSON.
pub fn pauses_json(pauses: &Pauses) -> Value {
    let percentile = |(share, from, below): &(
        f64,
        pagemill_model::Nanos,
        pagemill_model::Nanos,
    )| { json!({ "share": share, "from_ns": from.0, "below_ns": below.0 }) };
    json!({
        "count": pauses.count,
        "longest_ns": pauses.longest.map(|longest| longest.0),
        "longest_bucket": pauses.longest_bucket().map(|(from, below)| json!({ "from_ns": from.0, "below_ns": below.0 })),
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
            Cell::Text(text) => json!(text),
        };
        fields.insert(column.name.into(), value);
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
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
    fn what_was_not_measured_is_not_in_the_json() {
        let sample = HeapSample { pid: Some(3), passes: Some(0), ..HeapSample::default() };
        assert_eq!(sample_json(&sample), json!({ "time_ns": 0, "pid": 3, "passes": 0 }));
    }
}
