//! The report as JSON: stable names, fields are only added, absent means not measured.

use pagemill_analysis::heap::Summary;
use pagemill_model::Nanos;
use serde_json::{Map, Value, json};

use super::accesses::Accesses;
use super::faults::Faults;
use pagemill_report::hugepages;

use super::{Report, decisions, frag, summary};
use pagemill_report::heap as heap_report;

/// The whole report.
pub(super) fn value(report: &Report) -> Value {
    let view = &report.view;
    let mut fields = Map::new();
    let quantities = [
        ("memory_bytes", &view.memory),
        ("pss_bytes", &view.pss),
        ("rss_bytes", &view.rss),
        ("cgroup_bytes", &view.cgroup),
        ("cgroup_kernel_bytes", &view.cgroup_kernel),
        ("footprint_bytes", &view.footprint),
        ("live_bytes", &view.live),
        ("fragmentation_score", &view.score),
    ];
    for (name, quantity) in quantities {
        if let Some(Summary { mean, peak, last, .. }) = quantity {
            fields.insert(name.into(), json!({ "mean": mean, "peak": peak, "last": last }));
        }
    }
    let nanos = |time: Option<Nanos>| time.map(|time| time.0);
    let numbers = [
        ("cpu_ns", nanos(view.cpu)),
        ("helper_cpu_ns", nanos(view.helper_cpu)),
        ("ksmd_cpu_share_ns", nanos(view.ksmd_cpu)),
        ("compact_ns", nanos(view.compact)),
        ("passes", view.passes),
        ("unmerged_pages", view.unmerged_pages),
        ("aborted_groups", view.aborted_groups),
    ];
    for (name, number) in numbers {
        fields.extend(number.map(|number| (name.to_owned(), json!(number))));
    }
    fields.extend(view.occupancy.map(|share| ("mean_occupancy".to_owned(), json!(share))));
    for (name, durations) in [("pauses", &view.pauses), ("stalls", &view.stalls)] {
        fields.extend(durations.as_ref().map(|it| (name.to_owned(), heap_report::pauses_json(it))));
    }
    fields.insert("samples".into(), json!(view.samples));
    fields.insert("duration_ns".into(), json!(view.duration.0));
    json!({
        "meta": report.reader.meta(),
        "truncated_at_ns": report.reader.truncated_at().map(|at| at.0),
        "missing": report.reader.missing().map(|missing| {
            let ranges: Vec<_> = missing.parts.iter().map(|(_, range)| [range.start, range.end - 1]).collect();
            json!({ "samples": missing.rows, "heap_parts": ranges })
        }),
        "view": fields,
        "faults": report.faults.as_ref().map(Faults::json),
        "hugepages": report.hugepages.as_ref().map(hugepages::json),
        "frag": report.frag.as_ref().map(frag::json),
        "decisions": report.decisions.as_ref().map(|rows| decisions::json(rows)),
        "accesses": report.accesses.as_ref().map(Accesses::json),
        "degraded": summary::degraded(report),
        "last": view.last.as_ref().map(heap_report::sample_json),
    })
}
