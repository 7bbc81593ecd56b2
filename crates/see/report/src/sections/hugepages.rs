//! Huge pages in a report, and in the verb `hugepages`: text and JSON.

use pagemill_analysis::findings::RecordedViews;
use pagemill_analysis::hugepages::{HugePageFold, HugePageView, Use};
use pagemill_model::EventKind;
use serde_json::{Value, json};

use super::section::{Section, SectionKind, folding};
use crate::draw::chart::Series;
use crate::draw::html::Page;
use crate::draw::text;

/// Its line in the table.
pub const KIND: SectionKind = SectionKind {
    member: "hugepages",
    shows: &[EventKind::Mapping],
    begin: |_| {
        folding(HugePageFold::default(), |view| {
            (view.looks > 0).then(|| Box::new(view) as Box<dyn Section>)
        })
    },
};

impl Section for HugePageView {
    fn text(&self) -> String {
        text(self)
    }

    fn json(&self) -> Value {
        json(self)
    }

    fn see<'a>(&'a self, seen: &mut RecordedViews<'a>) {
        seen.hugepages = Some(self);
    }

    fn html(&self, page: &mut Page) {
        page.heading("Huge pages").preformatted(text(self).trim());
    }
}

/// Lines shown of each table.
const LINES: usize = 16;

/// The section as text.
pub fn text(view: &HugePageView) -> String {
    let percent =
        |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
    let row = |name: &str, used: &Use| {
        vec![
            name.to_owned(),
            used.anonymous.to_string(),
            used.huge.to_string(),
            percent(used.share()),
        ]
    };
    let mut out = String::from("\nhuge pages\n");
    let mut rows = vec![row("all", &view.total)];
    rows.extend(view.last.iter().take(LINES).map(|(name, used)| row(name, used)));
    let rest = &view.last[LINES.min(view.last.len())..];
    if !rest.is_empty() {
        let mut sum = Use::default();
        rest.iter().for_each(|(_, used)| sum.add(*used));
        rows.push(row(&format!("{} others", rest.len()), &sum));
    }
    out.push_str(&text::table(
        &["anonymous memory in", "resident", "on huge pages", "share"],
        &rows,
    ));
    let mut ranges: Vec<_> = view.ranges.iter().collect();
    ranges.sort_by_key(|range| std::cmp::Reverse(range.most.anonymous));
    let line = |range: &&pagemill_analysis::hugepages::Range| {
        row(&format!("{:x}-{:x} {}", range.start, range.end, range.name), &range.most)
    };
    let rows: Vec<_> = ranges.iter().take(LINES).map(line).collect();
    if view.looks > 1 {
        let header = ["merged range, most of all looks", "resident", "on huge pages", "share"];
        out.push_str(&format!("\n{}", text::table(&header, &rows)));
        let points = view.points.iter().filter_map(|(at, used)| Some((*at, used.share()? * 100.0)));
        let series = Series { name: "share on huge pages".into(), points: points.collect() };
        out.push_str(&format!("\n{}", text::chart(&[series], "%", "s", 72, 8)));
    }
    out.push_str(&format!(
        "\nefficiency {} = sum of the most huge memory of each merged range / sum of its most anonymous memory\n",
        percent(view.efficiency())
    ));
    out
}

/// The section as JSON.
pub fn json(view: &HugePageView) -> Value {
    let used = |used: &Use| {
        json!({
            "anonymous_bytes": used.anonymous.0, "huge_bytes": used.huge.0, "share": used.share()
        })
    };
    json!({
        "looks": view.looks,
        "total": used(&view.total),
        "mappings": view.last.iter().map(|(name, of)| json!({ "mapping": name, "use": used(of) })).collect::<Vec<_>>(),
        "ranges": view.ranges.iter().map(|range| json!({
            "start": range.start, "end": range.end, "mapping": range.name, "most": used(&range.most),
        })).collect::<Vec<_>>(),
        "efficiency": view.efficiency(),
        "timeline": view.points.iter().map(|(at, of)| json!({ "seconds": at, "use": used(of) })).collect::<Vec<_>>(),
    })
}
