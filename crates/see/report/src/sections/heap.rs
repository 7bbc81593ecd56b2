//! The memory of a process and of its heap in a report: text, JSON and HTML.

use pagemill_analysis::findings::RecordedViews;
use pagemill_analysis::heap::{HeapFold, HeapView, Malloc, Pauses, Summary};
use pagemill_model::{Bytes, EventKind, Nanos};
use serde_json::{Map, Value, json};

use super::section::{Figure, Section, SectionKind, folding};
use crate::draw::chart::{Bar, BarChart, LineChart, Series};
use crate::draw::html::Page;
use crate::draw::text;
use crate::heap as heap_report;

/// Its line in the table. It is there without a sample, too: then it says that there was none.
pub const KIND: SectionKind = SectionKind {
    member: "view",
    shows: &[EventKind::Heap],
    begin: |_| folding(HeapFold::default(), |view| Some(Box::new(view))),
};

/// What is said where samples have no figure of memory.
pub const NONE: &str = "no memory was measured";
const MEMORY_HEADER: [&str; 4] = ["memory", "mean", "peak", "last"];
const FORMULA: &str = "Pss = sum over pages of page size / mappings of the page: merged pages count once. \
Rss counts them once an alias, so it is too high.\nfragmentation score = 1 - live / footprint";

impl Section for HeapView {
    fn is_shown(&self) -> bool {
        self.samples > 0
    }

    fn length(&self) -> Option<String> {
        let length = self.duration.to_string();
        let word = if self.samples == 1 { "sample" } else { "samples" };
        (self.samples > 0).then(|| format!("{}, {} {word}", length.trim(), self.samples))
    }

    fn header(&self) -> Vec<(&'static str, String)> {
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let last = self.last.iter().filter(|last| last.live.is_some());
        let line = last.map(|last| {
            let (config, back_end) = (word(&last.config), heap_report::back_end(last));
            let place = "pagemill's heap, in place of the program's own malloc";
            (
                "heap",
                format!("{config}, back end {back_end}, barrier {} ({place})", word(&last.barrier)),
            )
        });
        let malloc = self.malloc.iter().map(|Malloc { name, heap, free, returnable, .. }| {
            let as_of = self.malloc_as_of().map_or(String::new(), |as_of| format!(" ({as_of})"));
            let text = format!(
                "{name} holds {}, {} of it free, {} of that in memory in whole pages{as_of}",
                heap.plain(),
                free.plain(),
                returnable.plain()
            );
            ("malloc", text)
        });
        line.chain(malloc).collect()
    }

    fn text(&self) -> String {
        let memory = memory(self);
        let mut out = match memory.is_empty() {
            true => format!("\n{NONE}\n"),
            false => format!(
                "\n{}\n{FORMULA}\n\n{}",
                text::table(&MEMORY_HEADER, &memory),
                text::chart(&series(self), "MiB", "s", 72, 14)
            ),
        };
        for (title, rows) in [("compaction", compaction(self)), ("CPU", cpu(self))] {
            if !rows.is_empty() {
                out.push_str(&format!("\n{title}\n{}", text::table(&[], &rows)));
            }
        }
        for (_, explained, header, rows) in durations(self) {
            out.push_str(&format!("\n{explained}\n{}", text::table(&header, &rows)));
        }
        out
    }

    fn json(&self) -> Value {
        let view = self;
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
            ("peak_rss_bytes", view.peak_rss.map(|bytes| bytes.0)),
            ("passes", view.passes),
            ("unmerged_pages", view.unmerged_pages),
            ("aborted_groups", view.aborted_groups),
        ];
        for (name, number) in numbers {
            fields.extend(number.map(|number| (name.to_owned(), json!(number))));
        }
        fields.extend(view.occupancy.map(|share| ("mean_occupancy".to_owned(), json!(share))));
        for (name, durations) in [("pauses", &view.pauses), ("stalls", &view.stalls)] {
            fields.extend(
                durations.as_ref().map(|it| (name.to_owned(), heap_report::pauses_json(it))),
            );
        }
        fields.extend(view.malloc.as_ref().map(|malloc| {
            let value = json!({
                "name": malloc.name, "at_ns": malloc.at.0,
                "age_ns": view.duration.0.saturating_sub(malloc.at.0), "heap_bytes": malloc.heap.0,
                "free_bytes": malloc.free.0, "returnable_bytes": malloc.returnable.0,
                "pieces_bytes": malloc.pieces.0,
            });
            ("malloc".to_owned(), value)
        }));
        fields.extend(view.children.map(|children| {
            let value = json!({
                "at_ns": children.at.0, "processes": children.processes, "bytes": children.memory.0,
                "own_bytes": children.own.0, "largest_pid": children.largest,
            });
            ("children".to_owned(), value)
        }));
        fields.insert("samples".into(), json!(view.samples));
        fields.insert("duration_ns".into(), json!(view.duration.0));
        Value::Object(fields)
    }

    fn members(&self) -> Vec<(&'static str, Value)> {
        let last = self.last.as_ref().map(heap_report::sample_json);
        vec![("degraded", json!(self.degraded())), ("last", json!(last))]
    }

    fn html(&self, page: &mut Page) {
        let view = self;
        let memory = memory(view);
        page.heading("Memory");
        if memory.is_empty() {
            page.paragraph(NONE);
        } else {
            let chart = LineChart::new("Memory over time", "seconds", "MiB", series(view));
            page.chart(&chart.svg()).table(&MEMORY_HEADER, &memory).preformatted(FORMULA);
        }
        if let Some(score) = &view.score {
            let series = vec![Series { name: "score".into(), points: score.points.clone() }];
            let title = "Fragmentation score over time";
            let chart = LineChart::new(title, "seconds", "1 - live / footprint", series);
            page.chart(&chart.svg());
        }
        for (title, rows) in [("Compaction", compaction(view)), ("CPU", cpu(view))] {
            if !rows.is_empty() {
                page.heading(title).table(&["", ""], &rows);
            }
        }
        if let Some(histogram) = view.last.as_ref().and_then(|last| last.occupancy.as_ref()) {
            let bars = histogram.iter().enumerate().map(|(index, count)| Bar {
                label: heap_report::occupancy_label(index, histogram.len()),
                value: *count as f64,
                interval: None,
                colour: 0,
            });
            let chart = BarChart {
                title: "Spans by live share, at the end".into(),
                unit: "spans".into(),
                bars: bars.collect(),
                reference: None,
            };
            page.heading("Occupancy").chart(&chart.svg());
        }
        for (name, explained, header, rows) in durations(view) {
            page.heading(name).paragraph(explained).table(&header, &rows);
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name: String, unit, value| Figure { name, unit, value };
        let memory = [
            ("memory", &self.memory),
            ("Pss", &self.pss),
            ("cgroup charge", &self.cgroup),
            ("heap footprint", &self.footprint),
            ("heap live", &self.live),
        ];
        let measured = memory.into_iter().filter_map(|(name, of)| Some((name, of.as_ref()?)));
        let mut figures: Vec<Figure> = measured
            .flat_map(|(name, of)| {
                [
                    figure(format!("{name}, mean"), "B", of.mean),
                    figure(format!("{name}, peak"), "B", of.peak),
                ]
            })
            .collect();
        figures.extend(self.cpu.map(|time| figure("CPU time".into(), "s", time.seconds())));
        figures
    }

    fn see<'a>(&'a self, seen: &mut RecordedViews<'a>) {
        seen.heap = Some(self);
    }

    fn degraded(&self) -> Vec<String> {
        let bits = self.last.as_ref().and_then(|last| last.degraded);
        heap_report::degradations(bits.unwrap_or(0))
    }
}

/// Mean, peak and last of each quantity that was measured.
fn memory(view: &HeapView) -> Vec<Vec<String>> {
    let sizes = [
        ("memory", &view.memory),
        ("Pss", &view.pss),
        ("cgroup charge", &view.cgroup),
        ("  kernel part", &view.cgroup_kernel),
        ("heap footprint", &view.footprint),
        ("heap live", &view.live),
        ("Rss", &view.rss),
    ];
    let size = |value: f64| Bytes(value.max(0.0) as u64).to_string();
    let mut rows = Vec::new();
    for (name, summary) in sizes {
        if let Some(Summary { mean, peak, last, .. }) = summary {
            rows.push(vec![name.to_owned(), size(*mean), size(*peak), size(*last)]);
        }
    }
    if let Some(peak) = missed_peak(view) {
        rows.push(vec![MISSED.into(), String::new(), peak.to_string(), String::new()]);
    }
    if let Some(Summary { mean, peak, last, .. }) = &view.score {
        let score = |value: &f64| format!("{value:.2}");
        rows.push(vec!["fragmentation score".into(), score(mean), score(peak), score(last)]);
    }
    rows
}

/// What the highest resident set is called that no sample met.
const MISSED: &str = "  highest of its life";

/// The highest resident set of the process's life by the kernel, if it is well above that of the samples: it lay
/// between two of them, or before the first.
fn missed_peak(view: &HeapView) -> Option<Bytes> {
    const PART: f64 = 1.05;
    const LEAST: f64 = 1024.0 * 1024.0;
    let (peak, sampled) = (view.peak_rss?, view.rss.as_ref()?.peak);
    (peak.0 as f64 >= (sampled * PART).max(sampled + LEAST)).then_some(peak)
}

/// The lines of the chart: MiB over seconds.
fn series(view: &HeapView) -> Vec<Series> {
    [
        ("Rss", &view.rss),
        ("memory", &view.memory),
        ("heap footprint", &view.footprint),
        ("heap live", &view.live),
    ]
    .into_iter()
    .filter_map(|(name, summary)| {
        let points = &summary.as_ref()?.points;
        let mib = |(at, bytes): &(f64, f64)| (*at, bytes / 1048576.0);
        Some(Series { name: name.into(), points: points.iter().map(mib).collect() })
    })
    .collect()
}

fn compaction(view: &HeapView) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: Option<String>| {
        rows.extend(value.map(|value| vec![name.to_owned(), value]));
    };
    let last = view.last.as_ref();
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    row("passes", number(view.passes));
    row("time of compaction, total", view.compact.map(|time| time.to_string()));
    row("groups in force at the end", number(last.and_then(|last| last.groups)));
    row(
        "saved by merging at the end",
        last.and_then(|last| last.saved).map(|saved| saved.to_string()),
    );
    row(
        "given back as free pages",
        last.and_then(|last| last.released).map(|size| size.to_string()),
    );
    row(
        "mappings held at the end",
        last.and_then(|last| {
            let bound = heap_report::mapping_bound(last)?;
            Some(format!("{} {bound}", last.vmas?))
        }),
    );
    row("pages un-merged by writes", number(view.unmerged_pages));
    row("groups given up", number(view.aborted_groups));
    row("mean occupancy of spans", view.occupancy.map(|share| format!("{:.0} %", share * 100.0)));
    rows
}

fn cpu(view: &HeapView) -> Vec<Vec<String>> {
    let rows = [
        ("process", view.cpu),
        ("  the heap's helper thread in that", view.helper_cpu),
        ("ksmd, by its share of pages looked at", view.ksmd_cpu),
    ];
    let row = |(name, time): (&str, Option<Nanos>)| Some(vec![name.to_owned(), time?.to_string()]);
    rows.into_iter().filter_map(row).collect()
}

/// Tables of pauses and stalls: name, explanation, header, rows.
fn durations(
    view: &HeapView,
) -> impl Iterator<Item = (&'static str, &'static str, [&'static str; 2], Vec<Vec<String>>)> {
    let of = |name, explained, one, durations: &Option<Pauses>| {
        Some((name, explained, ["share", one], rows(durations.as_ref()?)))
    };
    [
        of("Pauses", heap_report::PAUSES, "pause", &view.pauses),
        of("Stalls", heap_report::STALLS, "stall", &view.stalls),
    ]
    .into_iter()
    .flatten()
}

fn rows(pauses: &Pauses) -> Vec<Vec<String>> {
    let mut rows = heap_report::percentiles(pauses);
    rows.push(vec!["count".into(), pauses.count.to_string()]);
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    match (pauses.longest, pauses.longest_bucket()) {
        (Some(longest), _) => row("longest, exact", longest.to_string()),
        (None, Some((from, below))) => row("longest, its bucket", format!("{from} to {below}")),
        (None, None) => {}
    }
    if let (None, Some(life)) = (pauses.longest, pauses.longest_of_life) {
        row("longest of the heap's life, before this recording", life.to_string());
    }
    rows
}

#[cfg(test)]
mod tests {
    use pagemill_model::{Event, Fold as _, HeapSample};

    use super::*;

    #[test]
    fn a_peak_that_no_sample_met_stands_below_that_of_the_samples() {
        let told = |peak: u64| {
            let mut fold = HeapFold::default();
            let sample = HeapSample {
                rss: Some(Bytes(2 << 20)),
                peak_rss: Some(Bytes(peak)),
                ..HeapSample::default()
            };
            fold.event(&Event::Heap(Box::new(sample)));
            let view = fold.view();
            assert_eq!(view.json()["peak_rss_bytes"], peak);
            let row = view.text().lines().find(|line| line.starts_with(MISSED)).map(str::to_owned);
            row.map(|row| row.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(told(33 << 20).as_deref(), Some("highest of its life 33.0 MiB"));
        assert_eq!(told(2 << 20), None);
        assert_eq!(told(5 << 19), None);
    }
}
