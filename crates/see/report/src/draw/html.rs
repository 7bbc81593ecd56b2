//! One HTML file that opens offline: style and charts are inside, nothing is fetched. The one script is that of the
//! heat map, where there is one.
//! Light or dark follows the reader's setting.
//!
//! Always true: text that comes from outside (commands, names) passes through [`escape`]; only
//! what [`crate::draw::chart`] and the heat map draw is put in as markup. The file is well-formed as XML too.

use pagemill_analysis::heat::HeatView;

use super::chart::Svg;
use super::markup::{Attributes, Markup, escape};
use super::{flame, heat_map};

/// A page under construction.
#[derive(Debug)]
pub struct Page {
    title: String,
    body: Markup,
    /// What stands in front of the contents, where the page has them, and the headings behind.
    contents: Option<(Markup, Vec<String>)>,
}

impl Page {
    /// An empty page; the title is also its first heading.
    pub fn new(title: &str) -> Self {
        let mut body = Markup::default();
        body.text("h1", &[], title).raw("\n");
        Self { body, title: title.to_owned(), contents: None }
    }

    /// A heading of the second rank.
    pub fn heading(&mut self, text: &str) -> &mut Self {
        let Some((_, headings)) = &mut self.contents else { return self.element("h2", text) };
        headings.push(text.to_owned());
        let place = format!("part-{}", headings.len());
        self.body.text("h2", &[("id", &place)], text).raw("\n");
        self
    }

    /// A heading of the third rank.
    pub fn heading_below(&mut self, text: &str) -> &mut Self {
        self.element("h3", text)
    }

    /// Links to all headings of the second rank that follow; once to a page.
    pub fn contents(&mut self) -> &mut Self {
        self.contents = Some((std::mem::take(&mut self.body), Vec::new()));
        self
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        self.element("p", text)
    }

    /// A paragraph in which what stands between two backticks is code.
    pub fn prose(&mut self, text: &str) -> &mut Self {
        self.body.open("p", &[]);
        let mut rest = text;
        while let Some((before, (code, after))) =
            rest.split_once('`').and_then(|(before, after)| Some((before, after.split_once('`')?)))
        {
            self.body.escaped(before).text("code", &[], code);
            rest = after;
        }
        self.body.escaped(rest).close("p").raw("\n");
        self
    }

    /// Text in which line breaks and spaces matter: a command, a formula.
    pub fn preformatted(&mut self, text: &str) -> &mut Self {
        self.element("pre", text)
    }

    /// A command, which is broken where there is no room.
    pub fn command(&mut self, text: &str) -> &mut Self {
        self.body.text("pre", &[("class", &"command")], text).raw("\n");
        self
    }

    /// A list of short texts; nothing if there are none.
    pub fn list(&mut self, items: &[String]) -> &mut Self {
        if items.is_empty() {
            return self;
        }
        self.body.open("ul", &[]).raw("\n");
        for item in items {
            self.element("li", item);
        }
        self.body.close("ul").raw("\n");
        self
    }

    /// Labels and what is said of each; words and figures alike begin at the left, and long ones are broken.
    pub fn facts(&mut self, rows: &[Vec<String>]) -> &mut Self {
        let body = &mut self.body;
        body.open("table", &[("class", &"facts")]).open("tbody", &[]).raw("\n");
        for row in rows {
            body.open("tr", &[]);
            for cell in row {
                body.text("td", &[], cell);
            }
            body.close("tr").raw("\n");
        }
        body.close("tbody").close("table").raw("\n");
        self
    }

    /// A table. Cells that look like figures are set to the right, but for those of the first column: names.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>]) -> &mut Self {
        let body = &mut self.body;
        body.open("div", &[("class", &"scroll")]).open("table", &[]).raw("\n");
        body.open("thead", &[]).open("tr", &[]);
        for cell in header {
            body.text("th", &[], cell);
        }
        body.close("tr").close("thead").raw("\n").open("tbody", &[]).raw("\n");
        for row in rows {
            body.open("tr", &[]);
            for (column, cell) in row.iter().enumerate() {
                // A sentence may begin with a number.
                let figure = column > 0 && is_figure(cell) && cell.chars().count() <= FIGURE;
                let class: Attributes<'_> = if figure { &[("class", &"n")] } else { &[] };
                body.text("td", class, cell);
            }
            body.close("tr").raw("\n");
        }
        body.close("tbody").close("table").close("div").raw("\n");
        self
    }

    /// A chart.
    pub fn chart(&mut self, svg: &Svg) -> &mut Self {
        self.body.open("figure", &[]).raw(&svg.to_string()).close("figure").raw("\n");
        self
    }

    /// The heat map of objects over time; one to a page.
    pub fn heat_map(&mut self, view: &HeatView, page: u64) -> &mut Self {
        self.body.raw(&heat_map::markup(view, page));
        self
    }

    /// The flame graph of resident memory; one to a page. Nothing where none is known to be.
    pub fn flame_graph(&mut self, view: &HeatView, page: u64) -> &mut Self {
        if let Some(markup) = flame::markup(view, page) {
            self.heading("Who asked for what is not touched any more").body.raw(&markup);
        }
        self
    }

    /// The whole file.
    pub fn finish(&self) -> String {
        let (title, body) = (escape(&self.title), &self.body);
        let mut front = Markup::default();
        if let Some((before, headings)) = &self.contents {
            front.raw(before.as_str()).open("nav", &[]).open("ul", &[]).raw("\n");
            for (number, heading) in headings.iter().enumerate() {
                let place = format!("#part-{}", number + 1);
                front.open("li", &[]).text("a", &[("href", &place)], heading).close("li").raw("\n");
            }
            front.close("ul").close("nav").raw("\n");
        }
        let file = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>\n{STYLE}{}{}</style>\n</head>\n<body>\n{front}{body}</body>\n</html>\n",
            heat_map::STYLE,
            flame::STYLE
        );
        // Every page that a test makes is parsed strictly.
        #[cfg(test)]
        {
            let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
            if let Err(error) = roxmltree::Document::parse_with_options(&file, options) {
                panic!("{error}: {file}");
            }
        }
        file
    }

    fn element(&mut self, name: &str, text: &str) -> &mut Self {
        self.body.text(name, &[], text).raw("\n");
        self
    }
}

/// Characters of a cell that is set as a figure, at most.
const FIGURE: usize = 40;

/// Whether a cell starts as a number does.
pub fn is_figure(cell: &str) -> bool {
    let cell = cell.trim_start().trim_start_matches(['-', '+', '<', '>', '≤', '≥', '~']);
    cell.starts_with(|first: char| first.is_ascii_digit())
}

/// Series colours are Okabe and Ito's, which readers with colour blindness can tell apart; each
/// series has its own dash pattern too.
const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1c1c1e; --soft: #63636a; --line: #d4d4da; --page: #ffffff;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7;
  --s4: #b58900; --s5: #56b4e9; --s6: #6f4fa0; --s7: #555555; }
@media (prefers-color-scheme: dark) { :root { --text: #ececf0; --soft: #a0a0aa; --line: #3c3c44; --page: #17171a;
  --s0: #5ab0e8; --s1: #ff8a3d; --s2: #2fc79a; --s3: #e79ac6;
  --s4: #e0b93a; --s5: #9bd3f5; --s6: #b39ae0; --s7: #b0b0b0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
a { color: var(--s0); }
pre { border: 1px solid var(--line); border-radius: 4px; padding: .6rem; overflow-x: auto; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { text-align: right; white-space: nowrap; }
.facts td { overflow-wrap: anywhere; } .facts td:first-child { white-space: nowrap; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; font-size: 13px; margin-bottom: .3rem; }
svg.narrow { display: none; } @media (max-width: 640px) { svg.narrow { display: block; } svg.wide { display: none; } }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--text); } svg .soft { fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; fill: none; }
svg .mark { stroke: var(--text); stroke-width: 1.5; fill: none; }
svg .l { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .l0 { stroke: var(--s0); } svg .l1 { stroke: var(--s1); stroke-dasharray: 7 3; }
svg .l2 { stroke: var(--s2); stroke-dasharray: 2 3; }
svg .l3 { stroke: var(--s3); stroke-dasharray: 9 3 2 3; } svg .l4 { stroke: var(--s4); }
svg .l5 { stroke: var(--s5); stroke-dasharray: 7 3; }
svg .l6 { stroke: var(--s6); stroke-dasharray: 2 3; } svg .l7 { stroke: var(--s7); stroke-dasharray: 9 3 2 3; }
svg .f0 { fill: var(--s0); } svg .f1 { fill: var(--s1); } svg .f2 { fill: var(--s2); } svg .f3 { fill: var(--s3); }
svg .f4 { fill: var(--s4); } svg .f5 { fill: var(--s5); } svg .f6 { fill: var(--s6); } svg .f7 { fill: var(--s7); }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::chart::{Bar, BarChart, Heat, HeatMap, LineChart, Series};
    use crate::draw::log_chart::LogChart;

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let mut page = Page::new("<script>alert('1')</script>");
        page.contents()
            .heading("a & b")
            .paragraph("\"quoted\" \u{1b}[31m")
            .list(&["<b>".into()])
            .table(&["<th>"], &[vec!["<td>".into()]])
            .chart(
                &LineChart {
                    title: "</svg><script>".into(),
                    series: vec![Series { name: "\"><x".into(), points: vec![(0.0, 1.0)] }],
                    ..LineChart::default()
                }
                .svg(),
            );
        let html = page.finish();
        assert!(!html.contains("<script"), "{html}");
        assert!(!html.contains("<b>") && !html.contains("<x") && !html.contains('\u{1b}'));
        assert!(html.contains("a &amp; b") && html.contains("&quot;quoted&quot;"));
        assert!(html.contains("<a href=\"#part-1\">a &amp; b</a>"), "{html}");
        assert!(html.contains("<h2 id=\"part-1\">a &amp; b</h2>"), "{html}");
    }

    /// 126 rectangles of a report were `<rect … height=32/>`, which browsers read as a height of "32/" and do not draw.
    #[test]
    fn every_kind_of_chart_is_well_formed_and_its_lengths_are_numbers() {
        let cell = |text: &str, shade| Heat { text: text.into(), shade };
        let points = vec![(1.0, 3.0), (10.0, 0.5)];
        let series = vec![Series { name: "a<b".into(), points }];
        let mut page = Page::new("charts");
        page.chart(&LineChart { series: series.clone(), ..LineChart::default() }.svg())
            .chart(&LogChart { series, ..LogChart::default() }.svg())
            .chart(
                &HeatMap {
                    columns: vec!["0x".into(), "1x".into()],
                    rows: vec![("r&d".into(), vec![cell("-5 %", -0.5), cell("-", f64::NAN)])],
                    ..HeatMap::default()
                }
                .svg(),
            )
            .chart(
                &BarChart {
                    bars: vec![Bar { interval: Some((0.5, 2.0)), value: 1.0, ..Bar::default() }],
                    reference: Some(1.0),
                    ..BarChart::default()
                }
                .svg(),
            )
            .heat_map(&HeatView { step: 1, steps: 4, ..HeatView::default() }, 4096);
        let html = page.finish();
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        let parsed = roxmltree::Document::parse_with_options(&html, options).unwrap();
        let mut lengths = 0;
        for element in
            parsed.descendants().filter(|node| ["rect", "text"].contains(&node.tag_name().name()))
        {
            for name in ["x", "y", "width", "height"] {
                if let Some(value) = element.attribute(name) {
                    assert!(value.parse::<f64>().is_ok_and(|v| v >= 0.0), "{name}={value:?}");
                    lengths += 1;
                }
            }
        }
        assert!(lengths > 60, "{lengths}");
    }

    #[test]
    fn the_file_fetches_nothing() {
        let html = Page::new("offline").finish();
        for fetch in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(fetch), "{fetch}");
        }
        assert!(html.contains("prefers-color-scheme: dark"));
    }

    /// A kernel's version stood at the right edge, and on a narrow screen behind it, for it begins with a digit.
    #[test]
    fn facts_are_set_to_the_left() {
        let mut page = Page::new("t");
        page.facts(&[vec!["kernel".into(), "6.18.44 x86_64".into()]]);
        let html = page.finish();
        assert!(html.contains("<td>kernel</td><td>6.18.44 x86_64</td>"), "{html}");
    }

    #[test]
    fn figures_are_set_to_the_right_and_words_to_the_left() {
        let mut page = Page::new("t");
        page.table(
            &["a", "b", "c"],
            &[vec!["64 KiB pages".into(), "12.5 MiB".into(), "none".into()]],
        );
        let row = "<td>64 KiB pages</td><td class=\"n\">12.5 MiB</td><td>none</td>";
        assert!(page.finish().contains(row));
    }
}
