//! One look at a running heap, as text and JSON.

use pagemill_analysis::heap::{HeapFold, HeapView, fragmentation_score, mean_occupancy};
use pagemill_kernel::page_size;
use pagemill_model::recording::NotMeasured;
use pagemill_model::{Bytes, Event, Fold as _, HeapSample, Nanos};
use serde_json::{Value, json};

use crate::draw::text;
use crate::heap::{
    PAUSES, STALLS, back_end, degradations, last_pass, mapping_bound, occupancy_label, pauses_json,
    percentiles, resting, sample_json, waiting_for_ksmd,
};

/// One look at the heap.
pub struct HeapFrame<'a> {
    /// Name of the process, as it is told.
    pub comm: &'a str,
    /// What is there just now.
    pub sample: &'a HeapSample,
    /// What the looks so far came to.
    pub view: HeapView,
    /// What is not measured, and why.
    pub not_measured: Vec<NotMeasured>,
}

impl HeapFrame<'_> {
    fn score(&self) -> Option<f64> {
        fragmentation_score(self.sample.live?, self.sample.footprint?)
    }

    /// The part of the pages that ksmd looks at which is this process's.
    fn ksmd_share(&self) -> Option<f64> {
        let all = self.sample.ksm_items_all.filter(|all| *all > 0)?;
        Some((self.sample.ksm_items? as f64 / all as f64).min(1.0))
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let totals = self.totals();
        json!({
            "comm": self.comm,
            "sample": sample_json(self.sample),
            "fragmentation_score": self.score(),
            "mean_occupancy": self.sample.occupancy.as_deref().and_then(mean_occupancy),
            "pauses": totals.pauses.as_ref().map(pauses_json),
            "stalls": totals.stalls.as_ref().map(pauses_json),
            "ksmd_share": self.ksmd_share(),
            "resting": resting(self.sample),
            "degraded": degradations(self.sample.degraded.unwrap_or(0)),
            "not_measured": self.not_measured,
        })
    }

    /// Totals since the heap started, from this sample alone.
    fn totals(&self) -> HeapView {
        let mut fold = HeapFold::default();
        let origin = HeapSample { time: Nanos(0), ..HeapSample::default() };
        fold.event(&Event::Heap(Box::new(origin)));
        fold.event(&Event::Heap(Box::new(self.sample.clone())));
        fold.view()
    }

    /// As text.
    pub fn text(&self) -> String {
        let sample = self.sample;
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let heap = match sample.live {
            Some(_) => format!(
                "configuration {}, back end {}, barrier {}",
                word(&sample.config),
                back_end(sample),
                word(&sample.barrier)
            ),
            None => "the heap has not started".to_owned(),
        };
        let mut out = format!("{} ({})   {heap}\n", self.comm, sample.pid.unwrap_or(0));
        for (title, rows) in [
            ("heap", self.heap_rows()),
            ("kernel's view", self.kernel_rows()),
            ("compaction", self.compaction_rows()),
        ] {
            if !rows.is_empty() {
                out.push_str(&format!("\n{}", text::table(&[title, "", ""], &rows)));
            }
        }
        self.occupancy(&mut out);
        let totals = self.totals();
        for (explained, name, durations) in
            [(PAUSES, "pauses", totals.pauses), (STALLS, "stalls", totals.stalls)]
        {
            let Some(durations) = durations.filter(|durations| durations.count > 0) else {
                continue;
            };
            let table = text::table(&[], &percentiles(&durations));
            let longest = durations
                .longest
                .map_or(String::new(), |longest| format!(", longest {}", longest.plain()));
            out.push_str(&format!("\n{explained}\n{table}{} {name}{longest}\n", durations.count));
        }
        let notes = [
            ("degraded", degradations(sample.degraded.unwrap_or(0))),
            (
                "not measured",
                self.not_measured
                    .iter()
                    .map(|missing| format!("{}: {}", missing.what, missing.why))
                    .collect(),
            ),
        ];
        for (title, lines) in notes {
            for line in lines {
                out.push_str(&format!("\n{title}: {line}\n"));
            }
        }
        out
    }

    fn heap_rows(&self) -> Vec<Vec<String>> {
        let sample = self.sample;
        let mut rows = Rows::default();
        rows.size("live", sample.live, "allocated, or in a thread's cache");
        rows.size(
            "footprint",
            sample.footprint,
            "physical memory of the heap, merged pages counted once",
        );
        rows.size("  peak", sample.footprint_peak, "");
        rows.size("  free and resident", sample.dirty, "given back after a while");
        rows.size("  in thread caches", sample.cached, "");
        rows.size("  large objects", sample.large, "");
        rows.size("own tables", sample.metadata, "");
        rows.size("address space", sample.mapped, "");
        rows.add(
            "fragmentation score",
            self.score().map(|score| format!("{score:.2}")),
            "1 - live / footprint",
        );
        rows.add("thread caches", sample.threads.map(|threads| threads.to_string()), "");
        rows.0
    }

    fn kernel_rows(&self) -> Vec<Vec<String>> {
        let sample = self.sample;
        let mut rows = Rows::default();
        rows.size("Pss", sample.pss, "a page shared by n mappings counts 1/n in each");
        rows.size(
            "unmapped images",
            sample.unmapped,
            "merged pages that no page table has until they are touched: in no Pss",
        );
        let memory = sample.pss.zip(sample.unmapped).map(|(pss, more)| Bytes(pss.0 + more.0));
        rows.size("memory", memory, "their sum: the one to believe");
        rows.size("Rss", sample.rss, "counts a merged page once for each alias, so too high");
        rows.size("swapped out", sample.swap.filter(|swap| swap.0 > 0), "");
        rows.size(
            "cgroup charge",
            sample.cgroup,
            "all processes in the group, kernel memory included",
        );
        rows.size("  kernel memory", sample.cgroup_kernel, "");
        rows.add("mappings", sample.mappings.map(|count| count.to_string()), "");
        rows.0
    }

    fn compaction_rows(&self) -> Vec<Vec<String>> {
        let sample = self.sample;
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let mut rows = Rows::default();
        rows.add("groups in force", number(sample.groups), "sets of pages that share one image");
        rows.size("  merged", sample.merged, "");
        rows.size("  saved", sample.saved, "");
        rows.size("free pages given back", sample.released, "in total");
        rows.add(
            "un-merged pages",
            number(sample.unmerged_pages),
            "written to after merging, in total",
        );
        rows.add(
            "groups given up",
            number(sample.aborted_groups),
            "changed, pinned or over budget, in total",
        );
        let budget = mapping_bound(sample).unwrap_or_default();
        rows.add("mappings held", number(sample.vmas), &budget);
        rows.add("passes", number(sample.passes), &self.triggers());
        let last = last_pass(sample).unwrap_or_default();
        rows.add("resting", resting(sample), last);
        rows.size("  could be saved", sample.mergeable, "as the last look at every span found");
        rows.size(
            "  left alone",
            sample.left_alone.filter(|bytes| bytes.0 > 0),
            "sparse pages that the program wrote lately, for a while",
        );
        rows.time("time of compaction", sample.compact, "wall time, in total");
        rows.time("CPU of the helper", sample.helper_cpu, "part of the process's CPU time");
        rows.time("CPU of the process", sample.cpu, "");
        let share = self.ksmd_share().map_or_else(
            || "since boot, for all processes".into(),
            |share| {
                let percent = share * 100.0;
                format!("since boot, for all processes; {percent:.1} % of the pages it looks at are this one's")
            },
        );
        rows.time("CPU of ksmd", sample.ksmd_cpu, &share);
        if self.view.samples > 1 {
            rows.time("  this process's share", self.view.ksmd_cpu, "since this view began");
        }
        rows.add(
            "waiting for ksmd",
            number(waiting_for_ksmd(sample, page_size() as u64)),
            "pages offered, not merged yet",
        );
        rows.0
    }

    fn triggers(&self) -> String {
        let sample = self.sample;
        let triggers = [
            ("score", sample.trigger_score),
            ("idle", sample.trigger_idle),
            ("pressure", sample.trigger_psi),
            ("cgroup", sample.trigger_cgroup),
            ("request", sample.trigger_request),
            ("not worth it", sample.gated),
        ];
        let some: Vec<String> = triggers
            .into_iter()
            .filter_map(|(name, count)| {
                count.filter(|count| *count > 0).map(|count| format!("{name} {count}"))
            })
            .collect();
        some.join(", ")
    }

    fn occupancy(&self, out: &mut String) {
        let Some(histogram) = self.sample.occupancy.as_deref() else { return };
        let Some(mean) = mean_occupancy(histogram) else { return };
        let most = histogram.iter().copied().max().unwrap_or(1).max(1);
        out.push_str(&format!("\nspans by live share (mean {:.0} %)\n", mean * 100.0));
        for (index, count) in histogram.iter().enumerate() {
            let label = occupancy_label(index, histogram.len());
            let bar = text::bar(*count as f64 / most as f64, 40);
            out.push_str(format!("{label:>9} {count:>9} {bar}").trim_end());
            out.push('\n');
        }
    }
}

/// Rows of name, value and remark; a value that was not measured leaves its row out.
#[derive(Default)]
struct Rows(Vec<Vec<String>>);

impl Rows {
    fn add(&mut self, name: &str, value: Option<String>, remark: &str) {
        self.0.extend(value.map(|value| vec![name.to_owned(), value, remark.to_owned()]));
    }

    fn size(&mut self, name: &str, value: Option<Bytes>, remark: &str) {
        self.add(name, value.map(|value| value.to_string()), remark);
    }

    fn time(&mut self, name: &str, value: Option<Nanos>, remark: &str) {
        self.add(name, value.map(|value| value.to_string()), remark);
    }
}
