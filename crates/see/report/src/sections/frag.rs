//! Free memory in a report: text and JSON.

use pagemill_analysis::findings::RecordedViews;
use pagemill_analysis::fragmentation::timeline::{FragFold, FragView};
use pagemill_analysis::fragmentation::unusable;
use pagemill_model::frag::FragSample;
use pagemill_model::{EventKind, Order};
use serde_json::{Value, json};

use super::section::{Section, SectionKind, folding};
use crate::draw::chart::{LineChart, Series};
use crate::draw::html::Page;
use crate::draw::text;

/// Its line in the table.
pub const KIND: SectionKind = SectionKind {
    member: "frag",
    shows: &[EventKind::Frag],
    begin: |_| {
        folding(FragFold::default(), |view| {
            (view.looks > 0).then(|| Box::new(view) as Box<dyn Section>)
        })
    },
};

impl Section for FragView {
    fn text(&self) -> String {
        let orders =
            self.last.iter().filter_map(|zone| Some(zone.free_blocks.as_ref()?.len())).max();
        let names: Vec<String> = (0..orders.unwrap_or(0)).map(|order| order.to_string()).collect();
        let header: Vec<&str> =
            ["look", "zone"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let rows =
            [("first", &self.first), ("last", &self.last)].into_iter().flat_map(|(name, look)| {
                let zones = look.iter().map(move |zone| row(name, zone));
                let all =
                    FragView::scores(look).iter().map(ToString::to_string).collect::<Vec<_>>();
                zones.chain([lead(name, "large zones together").chain(all).collect()])
            });
        let rows: Vec<Vec<String>> = rows.collect();
        let mut out = format!(
            "\nfree memory of the machine: unusable free space index by order\n{}",
            text::table(&header, &rows)
        );
        if self.looks > 1 {
            let series =
                Series { name: format!("order {}", FragView::ORDER), points: self.points.clone() };
            out.push_str(&format!("\n{}", text::chart(&[series], "unusable", "s", 72, 8)));
        }
        out
    }

    fn json(&self) -> Value {
        let look = |look: &[FragSample]| {
            let zones = look.iter().map(|zone| {
                let blocks = zone.free_blocks.as_deref().unwrap_or_default();
                let scores: Vec<f64> = Order::first(blocks.len())
                    .map(|order| unusable(blocks, order).value())
                    .collect();
                json!({
                    "node": zone.node, "zone": zone.zone, "free_blocks": blocks,
                    "hidden_bytes": zone.hidden.map(|bytes| bytes.0), "unusable": scores,
                })
            });
            zones.collect::<Vec<_>>()
        };
        let score = |(at, score): &(_, _)| json!({"seconds": at, "unusable": score});
        let timeline: Vec<_> = self.points.iter().map(score).collect();
        json!({
            "looks": self.looks,
            "order": FragView::ORDER,
            "first": look(&self.first),
            "last": look(&self.last),
            "timeline": timeline,
            "hidden": self.hidden.iter().map(|(at, bytes)| json!({"seconds": at, "bytes": bytes})).collect::<Vec<_>>(),
        })
    }

    fn see<'a>(&'a self, seen: &mut RecordedViews<'a>) {
        seen.frag = Some(self);
    }

    fn html(&self, page: &mut Page) {
        page.heading("Free memory of the machine").chart(&chart(self).svg());
        page.preformatted(self.text().trim());
    }
}

/// The score over time, for the page.
fn chart(view: &FragView) -> LineChart {
    LineChart {
        title: format!("Unusable free space index of order {} over time", FragView::ORDER),
        x: "seconds".into(),
        y: "share of free memory in smaller blocks".into(),
        series: vec![Series { name: "large zones together".into(), points: view.points.clone() }],
    }
}

fn lead(look: &str, zone: &str) -> impl Iterator<Item = String> {
    [look.to_owned(), zone.to_owned()].into_iter()
}

fn row(look: &str, zone: &FragSample) -> Vec<String> {
    let name = format!(
        "node {} {}",
        zone.node.map_or("?".into(), |node| node.to_string()),
        zone.zone.as_deref().unwrap_or("?")
    );
    let blocks = zone.free_blocks.as_deref().unwrap_or_default();
    let scores = Order::first(blocks.len()).map(|order| unusable(blocks, order).to_string());
    lead(look, &name).chain(scores).collect()
}
