//! Accesses in a report: text and JSON.

use std::path::Path;

use pagemill_analysis::accesses::{AccessView, Counts};
use pagemill_analysis::findings::RecordedViews;
use pagemill_analysis::heat::{HeatView, ObjectHeat};
use pagemill_model::recording::Reader;
use pagemill_model::units::counted;
use pagemill_model::{AccessSetup, Bytes, Event, EventKind, Nanos};
use pagemill_record::summary::{Folds, Summary};
use serde_json::{Value, json};

use super::section::{Figure, Gather, Object, Section, SectionInput, SectionKind};
use crate::draw::chart::Series;
use crate::draw::html::Page;
use crate::draw::text;

/// Lines shown of each table.
const LINES: usize = 16;

/// Its line in the table.
pub const KIND: SectionKind = SectionKind {
    member: "accesses",
    shows: &[EventKind::Access, EventKind::Touched, EventKind::Allocation],
    begin,
};

fn begin(input: &mut SectionInput<'_>) -> Option<Box<dyn Gather>> {
    input.reader.meta().accesses.as_ref()?;
    Some(match input.known.take() {
        Some(summary) => Box::new(Gathered::Known(Box::new(summary))),
        None => Box::new(Gathered::Folds(Box::new(Folds::new(input.reader)))),
    })
}

/// What is known of accesses while a recording is read.
enum Gathered {
    /// All of it, from its summary.
    Known(Box<Summary>),
    /// What was read.
    Folds(Box<Folds>),
}

impl Gather for Gathered {
    fn event(&mut self, event: &Event) {
        if let Self::Folds(folds) = self {
            folds.event(event);
        }
    }

    fn finish(self: Box<Self>, path: &Path, reader: &Reader) -> Option<Box<dyn Section>> {
        let Summary { accesses: view, heat, .. } = match *self {
            Self::Known(summary) => *summary,
            Self::Folds(folds) => folds.keep(path, reader),
        };
        let (setup, page) = (reader.meta().accesses.clone()?, reader.meta().page_size.0);
        Some(Box::new(Accesses { setup, view, heat, page }))
    }
}

/// The accesses of a recording.
struct Accesses {
    setup: AccessSetup,
    view: AccessView,
    heat: HeatView,
    page: u64,
}

/// Characters of a strip, and what they are drawn with: nothing, then by powers of the most.
const STRIP: usize = 56;
const SHADES: [char; 6] = ['.', ':', '-', '=', '#', '@'];

/// What happened to an object over time, a character a stretch; each is shaded by the share of `most`, in powers of
/// four.
fn strip(object: &ObjectHeat, steps: u64, most: u64) -> String {
    let columns = columns(object, steps);
    let shade = |accesses: u64| match accesses {
        0 => ' ',
        accesses => {
            let below = (most / accesses.max(1)).max(1).ilog2() as usize / 2;
            SHADES[SHADES.len() - 1 - below.min(SHADES.len() - 1)]
        }
    };
    columns.into_iter().map(shade).collect()
}

fn columns(object: &ObjectHeat, steps: u64) -> [u64; STRIP] {
    let mut columns = [0_u64; STRIP];
    for (_, step, heat) in &object.cells {
        // A summary is a file that anybody may have written.
        let column = step.saturating_mul(STRIP as u64) / steps.max(1);
        let sum = &mut columns[column as usize % STRIP];
        *sum = heat.accesses().saturating_add(*sum);
    }
    columns
}

/// A name that fits into a column: its end says most.
fn fitted(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count - (width - 1)).collect();
    format!("…{end}")
}

fn row(name: String, counts: &Counts) -> Vec<String> {
    let reads = counts.accesses.saturating_sub(counts.writes).saturating_sub(counts.fetches);
    let mut row = vec![name];
    row.extend(
        [counts.pages, counts.written, reads, counts.writes, counts.fetches, counts.in_kernel]
            .map(|n| n.to_string()),
    );
    row
}

/// How many intervals there were, and how long they were by the clock.
fn intervals(lengths: &[u64], asked: Nanos) -> String {
    let words = |ns: u64| Nanos(ns).plain();
    let asked = format!("{} of useful time were asked for", asked.plain());
    let count = counted(lengths.len() as u64, "interval", "intervals");
    match spread(lengths) {
        Some([least, _, most]) if least == most => format!("{count} of {} ({asked})", words(least)),
        Some([least, median, most]) => {
            format!(
                "{count} of {} to {}, median {} ({asked})",
                words(least),
                words(most),
                words(median)
            )
        }
        None => format!("{count} ({asked})"),
    }
}

/// The least, the median and the greatest.
fn spread(lengths: &[u64]) -> Option<[u64; 3]> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    Some([*sorted.first()?, *sorted.get(sorted.len() / 2)?, *sorted.last()?])
}

impl Section for Accesses {
    fn text(&self) -> String {
        let Self { setup, view, page, .. } = self;
        let mut out = format!("\naccesses, by {}", setup.back_end);
        match setup.without_address {
            Some(without) => out.push_str(&format!(
                ", {} samples, and {without} without an address\n",
                view.total.accesses
            )),
            None => out.push_str(&format!(", {}\n", intervals(&view.lengths, setup.interval))),
        }
        const HEADER: [&str; 7] =
            ["what", "pages", "written", "reads", "writes", "fetches", "in kernel"];
        if let Some(yielded) = setup.yielded {
            out.push_str(&format!("{}\n", yielded.words()));
        }
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
        out.push_str(&self.objects_over_time());
        if view.intervals > 0 {
            let mib = |pages: u64| pages.saturating_mul(*page) as f64 / f64::from(1 << 20);
            let points = view.working_set.iter().map(|&(at, pages)| (at, mib(pages)));
            let series =
                Series { name: "working set of an interval".into(), points: points.collect() };
            out.push_str(&format!("\n{}", text::chart(&[series], "MiB", "s", 72, 10)));
            let most = view.working_set.iter().map(|point| point.1).max().unwrap_or(0);
            out.push_str(&format!(
                "largest working set of an interval {}\n",
                Bytes(most.saturating_mul(*page)).plain()
            ));
        }
        if view.kept > 0 {
            out.push_str(&format!(
                "{} of intervals may not have been touched in them: copies since a fork\n",
                counted(view.kept, "page", "pages")
            ));
        }
        out.push_str(&self.left_out());
        if setup.lost > 0 {
            let rest = if view.intervals > 0 { "; the pages are complete" } else { "" };
            out.push_str(&format!("{} accesses were lost{rest}\n", setup.lost));
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

    fn html(&self, page: &mut Page) {
        page.heading("Accesses").heat_map(&self.heat, self.page);
        page.preformatted(self.text().trim());
        // Samples do not tell what is not used.
        if self.setup.without_address.is_none() {
            page.flame_graph(&self.heat, self.page);
        }
    }

    fn length(&self) -> Option<String> {
        let steps = Nanos(self.heat.step.saturating_mul(self.heat.steps));
        let length = match self.view.working_set.last() {
            Some(point) => Nanos((point.0 * 1e9) as u64),
            // Samples have no intervals.
            None => steps,
        };
        Some(length.plain())
    }

    fn json(&self) -> Value {
        let counts = |counts: &Counts| {
            json!({
                "pages": counts.pages, "written_pages": counts.written, "accesses": counts.accesses,
                "writes": counts.writes, "fetches": counts.fetches, "in_kernel": counts.in_kernel,
            })
        };
        let named = |(name, of): &(String, Counts)| json!({ "name": name, "counts": counts(of) });
        let threads = |(thread, of): &(u64, Counts)| json!({ "tid": thread, "counts": counts(of) });
        let objects = |object: &ObjectHeat| {
            let first = |(thread, pages): &(usize, u64)| {
                let tid = self.heat.threads.get(*thread);
                json!({ "tid": tid, "pages": pages })
            };
            let line = |(line, reads, writes): &(usize, u64, u64)| {
                let name = self.heat.lines.get(*line).map(|line| &line.name);
                json!({ "line": name, "reads": reads, "writes": writes })
            };
            json!({
                "name": object.name, "kind": object.kind, "detail": object.detail,
                "bytes": object.bytes, "pages": object.pages, "written_pages": object.written,
                "reads": object.total.reads, "writes": object.total.writes,
                "threads": object.total.threads.count_ones(),
                "first_touched_by": object.first_by.iter().map(first).collect::<Vec<_>>(),
                "lines": object.lines.iter().map(line).collect::<Vec<_>>(),
            })
        };
        let lines =
            self.heat.lines.iter().map(
                |line| json!({ "line": line.name, "reads": line.reads, "writes": line.writes }),
            );
        json!({
            "objects": self.heat.objects.iter().map(objects).collect::<Vec<_>>(),
            "lines": lines.collect::<Vec<_>>(),
            "in_objects": self.heat.in_objects,
            "left_out_pages": self.heat.left_out,
            "left_out_accesses": self.view.left_out,
            "intervals": self.view.intervals,
            "interval_ns": spread(&self.view.lengths).map(|[least, median, most]| json!({
                "asked": self.setup.interval, "least": least, "median": median, "most": most,
            })),
            "total": counts(&self.view.total),
            "mappings": self.view.mappings.iter().map(named).collect::<Vec<_>>(),
            "threads": self.view.threads.iter().map(threads).collect::<Vec<_>>(),
            "working_set_pages": self.view.working_set,
            "kept_pages": self.view.kept,
        })
    }

    fn see<'a>(&'a self, seen: &mut RecordedViews<'a>) {
        seen.accesses = Some((&self.setup, &self.view, &self.heat));
    }

    fn figures(&self) -> Vec<Figure> {
        let figure =
            |name: &str, unit, value: u64| Figure { name: name.into(), unit, value: value as f64 };
        let total = &self.view.total;
        let mut figures = vec![
            figure("pages touched", "", total.pages),
            figure("pages written", "", total.written),
            figure("accesses", "", total.accesses),
        ];
        let most = self.view.working_set.iter().map(|point| point.1).max();
        figures.extend(
            most.map(|pages| figure("largest working set", "B", pages.saturating_mul(self.page))),
        );
        figures.push(figure("threads that access", "", self.view.threads.len() as u64));
        figures
    }

    fn objects(&self) -> Vec<Object> {
        let object = |object: &ObjectHeat| {
            let accesses = object.total.accesses();
            Object {
                name: object.name.clone(),
                kind: object.kind.clone(),
                pages: object.pages,
                accesses,
                writes: object.total.writes as f64 / accesses.max(1) as f64,
            }
        };
        self.heat.objects.iter().map(object).collect()
    }
}

impl Accesses {
    /// What is in none of the tables, for there is more than is told apart.
    fn left_out(&self) -> String {
        let mut out = String::new();
        if self.heat.left_out > 0 {
            out.push_str(&format!(
                "in none of the objects above: {} of intervals, or accesses; there are more than a machine with this \
                 much \
                 memory looks at\n",
                counted(self.heat.left_out, "page", "pages")
            ));
        }
        if self.view.left_out > 0 {
            out.push_str(&format!(
                "of no mapping and thread above: {}; they are to more pages than a machine with this much memory tells \
                 apart\n",
                counted(self.view.left_out, "access", "accesses")
            ));
        }
        out
    }

    /// Objects: what they are, who uses them, and when.
    fn objects_over_time(&self) -> String {
        let heat = &self.heat;
        let shown: Vec<&ObjectHeat> = heat.objects.iter().take(LINES).collect();
        if shown.is_empty() {
            return String::new();
        }
        let mut out = format!("\n{}", self.object_table(&shown));
        let left = heat.objects.len() - shown.len();
        if left > 0 {
            out.push_str(&format!(
                "and {} more\n",
                heat.others.saturating_sub(1).saturating_add(left as u64)
            ));
        }
        out.push_str(&format!(
            "{:.2} % of accesses are to globals, allocations and stacks, the others by the name of their mapping\n",
            heat.in_objects as f64 * 100.0 / heat.accesses.max(1) as f64
        ));
        let most = shown.iter().flat_map(|object| columns(object, heat.steps)).max().unwrap_or(0);
        let seconds = Nanos(heat.step.saturating_mul(heat.steps));
        out.push_str(&format!(
            "\naccesses over {}; @ is {most}, a shade less is a quarter\n",
            seconds.plain()
        ));
        for object in &shown {
            let strip = strip(object, heat.steps, most);
            out.push_str(format!("{:>32} |{strip}|\n", fitted(&object.name, 32)).trim_end());
            out.push('\n');
        }
        let lines: Vec<_> = heat
            .lines
            .iter()
            .take(LINES)
            .map(|line| {
                vec![fitted(&line.name, 76), line.reads.to_string(), line.writes.to_string()]
            })
            .collect();
        if !lines.is_empty() {
            out.push_str(&format!(
                "\n{}",
                text::table(&["accesses by line of code", "reads", "writes"], &lines)
            ));
        }
        out
    }

    fn object_table(&self, shown: &[&ObjectHeat]) -> String {
        let heat = &self.heat;
        let threads = |object: &ObjectHeat| match object.total.threads.count_ones() {
            64 => "64 or more".to_owned(),
            count => count.to_string(),
        };
        let known = |bytes| if bytes > 0 { Bytes(bytes).to_string() } else { "-".into() };
        let rows: Vec<_> = shown
            .iter()
            .map(|object| {
                let total = object.total.accesses().max(1);
                let first = match object.first_by.first() {
                    Some((thread, pages)) => format!(
                        "{} ({:.0} %)",
                        heat.threads.get(*thread).copied().unwrap_or(0),
                        *pages as f64 * 100.0 / object.pages.max(1) as f64
                    ),
                    None => "-".into(),
                };
                vec![
                    fitted(&object.name, 44),
                    object.kind.clone(),
                    known(object.bytes),
                    object.pages.to_string(),
                    object.total.accesses().to_string(),
                    format!("{:.0} %", object.total.writes as f64 * 100.0 / total as f64),
                    first,
                    threads(object),
                ]
            })
            .collect();
        const HEADER: [&str; 8] = [
            "object",
            "kind",
            "size",
            "pages",
            "accesses",
            "writes",
            "first touched by",
            "threads",
        ];
        text::table(&HEADER, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_analysis::heat::Heat;

    /// A shell of ten short programs had "11 intervals of 50 ms useful time" in 37 ms.
    #[test]
    fn intervals_are_as_long_as_they_were() {
        let asked = Nanos(50_000_000);
        assert_eq!(
            intervals(&[3_000_000, 1_000_000, 2_500_000], asked),
            "3 intervals of 1.0 ms to 3.0 ms, median 2.5 ms (50.0 ms of useful time were asked for)"
        );
        assert_eq!(
            intervals(&[7_000_000], asked),
            "1 interval of 7.0 ms (50.0 ms of useful time were asked for)"
        );
        assert_eq!(intervals(&[], asked), "0 intervals (50.0 ms of useful time were asked for)");
    }

    /// A summary is a file that anybody may have written: an object's line that is not listed ended the report.
    #[test]
    fn a_crafted_summary_ends_no_report() {
        let object = ObjectHeat {
            lines: vec![(7, u64::MAX, 1)],
            first_by: vec![(9, 1)],
            cells: vec![(0, u64::MAX, Heat { reads: u64::MAX, writes: 1, ..Heat::default() })],
            ..ObjectHeat::default()
        };
        let heat =
            HeatView { step: u64::MAX, steps: 3, objects: vec![object], ..HeatView::default() };
        let (setup, view) = (AccessSetup::default(), AccessView::default());
        let accesses = Accesses { setup, view, heat, page: u64::MAX };
        assert!(accesses.json()["objects"][0]["lines"][0]["line"].is_null());
        assert!(!accesses.text().is_empty() && accesses.length().is_some());
    }
}
