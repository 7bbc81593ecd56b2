//! Accesses in a report: text and JSON.

use pagemill_analysis::accesses::{AccessView, Counts};
use pagemill_model::{AccessSetup, Bytes, Nanos};
use serde_json::{Value, json};

use crate::report::chart::Series;
use crate::report::text;

/// Lines shown of each table.
const LINES: usize = 16;

/// The accesses of a recording.
pub(super) struct Accesses {
    pub(super) setup: AccessSetup,
    pub(super) view: AccessView,
    pub(super) page: u64,
}

fn row(name: String, counts: &Counts) -> Vec<String> {
    let reads =
        counts.accesses - counts.writes - counts.fetches.min(counts.accesses - counts.writes);
    let mut row = vec![name];
    row.extend(
        [counts.pages, counts.written, reads, counts.writes, counts.fetches, counts.in_kernel]
            .map(|n| n.to_string()),
    );
    row
}

impl Accesses {
    /// The section as text.
    pub(super) fn text(&self) -> String {
        let Self { setup, view, page } = self;
        let mut out = format!("\naccesses, by {}", setup.back_end);
        out.push_str(&format!(
            ", {} intervals of {} useful time\n",
            view.intervals,
            setup.interval.to_string().trim()
        ));
        const HEADER: [&str; 7] =
            ["what", "pages", "written", "reads", "writes", "fetches", "in kernel"];
        let mut rows = vec![row("all".into(), &view.total)];
        rows.extend(
            view.mappings.iter().take(LINES).map(|(name, counts)| row(name.clone(), counts)),
        );
        out.push_str(&text::table(&HEADER, &rows));
        if view.mappings.len() > LINES {
            out.push_str(&format!("and {} more\n", view.mappings.len() - LINES));
        }
        let rows: Vec<_> = view
            .threads
            .iter()
            .take(LINES)
            .map(|(thread, counts)| {
                let mut row = row(format!("thread {thread}"), counts);
                row.remove(2);
                row
            })
            .collect();
        if !rows.is_empty() {
            const HEADER: [&str; 6] =
                ["first accesses by", "pages", "reads", "writes", "fetches", "in kernel"];
            out.push_str(&format!("\n{}", text::table(&HEADER, &rows)));
        }
        let mib = |pages: u64| (pages * page) as f64 / f64::from(1 << 20);
        let points = view.working_set.iter().map(|&(at, pages)| (at, mib(pages)));
        let series = Series { name: "working set of an interval".into(), points: points.collect() };
        out.push_str(&format!("\n{}", text::chart(&[series], "MiB", "s", 72, 10)));
        let most = view.working_set.iter().map(|point| point.1).max().unwrap_or(0);
        out.push_str(&format!(
            "largest working set of an interval {}\n",
            Bytes(most * page).to_string().trim()
        ));
        if view.kept > 0 {
            out.push_str(&format!(
                "{} pages of intervals may not have been touched in them: copies since a fork\n",
                view.kept
            ));
        }
        if setup.lost > 0 {
            out.push_str(&format!("{} accesses were lost; the pages are complete\n", setup.lost));
        }
        for line in setup.not_used.iter() {
            out.push_str(&format!("not used: {line}\n"));
        }
        if !setup.untraced.is_empty() {
            out.push_str("\nnot traced\n");
            for line in &setup.untraced {
                out.push_str(&format!("  {line}\n"));
            }
        }
        out
    }

    /// How long was recorded.
    pub(super) fn length(&self) -> String {
        let seconds = self.view.working_set.last().map_or(0.0, |point| point.0);
        Nanos((seconds * 1e9) as u64).to_string().trim().to_owned()
    }

    /// The section as JSON.
    pub(super) fn json(&self) -> Value {
        let counts = |counts: &Counts| {
            json!({
                "pages": counts.pages, "written_pages": counts.written, "accesses": counts.accesses,
                "writes": counts.writes, "fetches": counts.fetches, "in_kernel": counts.in_kernel,
            })
        };
        let named = |(name, of): &(String, Counts)| json!({ "name": name, "counts": counts(of) });
        let threads = |(thread, of): &(u64, Counts)| json!({ "tid": thread, "counts": counts(of) });
        json!({
            "intervals": self.view.intervals,
            "total": counts(&self.view.total),
            "mappings": self.view.mappings.iter().map(named).collect::<Vec<_>>(),
            "threads": self.view.threads.iter().map(threads).collect::<Vec<_>>(),
            "working_set_pages": self.view.working_set,
            "kept_pages": self.view.kept,
        })
    }
}
