//! One HTML file that opens offline: style and charts are inside, nothing is fetched. The one script is that of the
//! heat map, where there is one.
//! Light or dark follows the reader's setting.
//!
//! Always true: text that comes from outside (commands, names) passes through [`escape`]; only
//! what [`crate::report::chart`] and the heat map draw is put in as markup.

use std::fmt::Write as _;

use pagemill_analysis::heat::HeatView;

use super::chart::Svg;
use super::heat_map;

/// `text` as it may stand in HTML and SVG, both between tags and inside a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Neither HTML nor XML can carry other control characters, even escaped.
            other if other.is_control() && !matches!(other, '\n' | '\t') => {
                escaped.push('\u{fffd}')
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// A page under construction.
#[derive(Debug)]
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    /// An empty page; the title is also its first heading.
    pub fn new(title: &str) -> Self {
        let title = escape(title);
        Self { body: format!("<h1>{title}</h1>\n"), title }
    }

    /// A heading of the second rank.
    pub fn heading(&mut self, text: &str) -> &mut Self {
        self.element("h2", text)
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        self.element("p", text)
    }

    /// Text in which line breaks and spaces matter: a command, a formula.
    pub fn preformatted(&mut self, text: &str) -> &mut Self {
        self.element("pre", text)
    }

    /// A list of short texts; nothing if there are none.
    pub fn list(&mut self, items: &[String]) -> &mut Self {
        if items.is_empty() {
            return self;
        }
        self.body.push_str("<ul>\n");
        for item in items {
            self.element("li", item);
        }
        self.body.push_str("</ul>\n");
        self
    }

    /// A table. Cells that look like figures are set to the right.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>]) -> &mut Self {
        self.body.push_str("<div class=wide><table>\n<thead><tr>");
        for cell in header {
            let _ = write!(self.body, "<th>{}</th>", escape(cell));
        }
        self.body.push_str("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.body.push_str("<tr>");
            for cell in row {
                let class = if is_figure(cell) { " class=n" } else { "" };
                let _ = write!(self.body, "<td{class}>{}</td>", escape(cell));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</tbody></table></div>\n");
        self
    }

    /// A chart.
    pub fn chart(&mut self, svg: &Svg) -> &mut Self {
        let _ = writeln!(self.body, "<figure>{svg}</figure>");
        self
    }

    /// The heat map of objects over time; one to a page.
    pub fn heat_map(&mut self, view: &HeatView, page: u64) -> &mut Self {
        self.body.push_str(&heat_map::markup(view, page));
        self
    }

    /// The whole file.
    pub fn finish(&self) -> String {
        let Self { title, body } = self;
        format!(
            "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n\
             <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
            heat_map::STYLE
        )
    }

    fn element(&mut self, name: &str, text: &str) -> &mut Self {
        let _ = writeln!(self.body, "<{name}>{}</{name}>", escape(text));
        self
    }
}

/// Whether a cell starts as a number does.
pub fn is_figure(cell: &str) -> bool {
    let cell = cell.trim_start().trim_start_matches(['-', '+', '<', '>', '≤', '≥', '~']);
    cell.starts_with(|first: char| first.is_ascii_digit())
}

/// Series colours are Okabe and Ito's, which readers with colour blindness can tell apart; each
/// series has its own dash pattern too.
const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1c1c1e; --soft: #63636a; --line: #d4d4da; --page: #ffffff;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7; --s4: #b58900; --s5: #56b4e9; --s6: #6f4fa0; --s7: #555555; }
@media (prefers-color-scheme: dark) { :root { --text: #ececf0; --soft: #a0a0aa; --line: #3c3c44; --page: #17171a;
  --s0: #5ab0e8; --s1: #ff8a3d; --s2: #2fc79a; --s3: #e79ac6; --s4: #e0b93a; --s5: #9bd3f5; --s6: #b39ae0; --s7: #b0b0b0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
pre { border: 1px solid var(--line); border-radius: 4px; padding: .6rem; overflow-x: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { text-align: right; white-space: nowrap; }
figure { margin: 1rem 0; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--text); } svg .soft { fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; fill: none; }
svg .mark { stroke: var(--text); stroke-width: 1.5; fill: none; }
svg .l { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .l0 { stroke: var(--s0); } svg .l1 { stroke: var(--s1); stroke-dasharray: 7 3; } svg .l2 { stroke: var(--s2); stroke-dasharray: 2 3; }
svg .l3 { stroke: var(--s3); stroke-dasharray: 9 3 2 3; } svg .l4 { stroke: var(--s4); } svg .l5 { stroke: var(--s5); stroke-dasharray: 7 3; }
svg .l6 { stroke: var(--s6); stroke-dasharray: 2 3; } svg .l7 { stroke: var(--s7); stroke-dasharray: 9 3 2 3; }
svg .f0 { fill: var(--s0); } svg .f1 { fill: var(--s1); } svg .f2 { fill: var(--s2); } svg .f3 { fill: var(--s3); }
svg .f4 { fill: var(--s4); } svg .f5 { fill: var(--s5); } svg .f6 { fill: var(--s6); } svg .f7 { fill: var(--s7); }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::chart::{LineChart, Series};

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let mut page = Page::new("<script>alert('1')</script>");
        page.heading("a & b")
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
    }

    #[test]
    fn the_file_fetches_nothing() {
        let html = Page::new("offline").finish();
        for fetch in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!html.contains(fetch), "{fetch}");
        }
        assert!(html.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn figures_are_set_to_the_right_and_words_to_the_left() {
        let mut page = Page::new("t");
        page.table(&["a", "b"], &[vec!["12.5 MiB".into(), "none".into()]]);
        assert!(page.finish().contains("<td class=n>12.5 MiB</td><td>none</td>"));
    }
}
