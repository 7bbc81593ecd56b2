//! Charts as SVG that takes its colours from the style of [`crate::draw::html`].
//!
//! A chart is a value with public fields; `svg` draws it. Axes start at zero, so that lengths and
//! heights compare as the quantities do. Values that are not finite are gaps.
//!
//! ```text
//!   title
//!   y |  ~~~ series            label |######---|---  0.83 unit
//!     |______ x                label |###-|--        0.41 unit
//!   -- a  -- b  (legend)             0   :1.0
//! ```
//!
//! A chart is drawn twice, for wide pages and for narrow ones, and the style shows one of them: drawn once and scaled,
//! its text would be too small on a narrow page. The title stands above it as text of the page, which breaks its lines.

use std::fmt::{self, Display, Write as _};

use super::markup::Markup;

/// A drawn chart.
#[derive(Clone, Debug)]
pub struct Svg(Markup);

impl Svg {
    /// What `draw` draws at a width, told the height of it; for each kind of page.
    pub(super) fn of(title: &str, draw: impl Fn(&mut Markup, f64) -> f64) -> Self {
        let mut out = Markup::default();
        out.text("figcaption", &[], title);
        for (class, width) in WIDTHS {
            let mut drawing = Markup::default();
            let height = draw(&mut drawing, width);
            let view = format!("0 0 {width} {height}");
            let attributes: [(&str, &dyn Display); 4] =
                [("class", &class), ("viewBox", &view), ("role", &"img"), ("aria-label", &title)];
            out.open("svg", &attributes).raw(drawing.as_str()).close("svg");
        }
        Self(out)
    }
}

impl Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One line of a [`LineChart`].
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points in the order in which they are joined; a value that is not finite breaks the line.
    pub points: Vec<(f64, f64)>,
}

/// Lines over a common axis, such as memory over time.
#[derive(Clone, Debug, Default)]
pub struct LineChart {
    /// What the chart shows.
    pub title: String,
    /// The horizontal quantity with its unit.
    pub x: String,
    /// The vertical quantity with its unit.
    pub y: String,
    /// The lines; the ninth has the colour of the first again.
    pub series: Vec<Series>,
}

/// One bar of a [`BarChart`].
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Name at the left.
    pub label: String,
    /// Length.
    pub value: f64,
    /// The ends of the whisker, if an interval is known.
    pub interval: Option<(f64, f64)>,
    /// Which colour of the style; bars of one arm share it.
    pub colour: usize,
}

/// Horizontal bars with interval whiskers, such as ratios of arms.
#[derive(Clone, Debug, Default)]
pub struct BarChart {
    /// What the chart shows.
    pub title: String,
    /// Unit after each value, empty for ratios.
    pub unit: String,
    /// The bars, top to bottom.
    pub bars: Vec<Bar>,
    /// A vertical line to compare with (1.0 for ratios; a published value).
    pub reference: Option<f64>,
}

/// A table whose cells are coloured by a value, such as errors.
#[derive(Clone, Debug, Default)]
pub struct HeatMap {
    /// What the chart shows.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Name and cells of each row.
    pub rows: Vec<(String, Vec<Heat>)>,
}

/// One cell of a [`HeatMap`].
#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// What stands in it.
    pub text: String,
    /// Its colour: from -1 over no colour to 1; one that is not finite has none.
    pub shade: f64,
}

/// Classes of the style, and how wide they are drawn: about as wide as they are shown.
const WIDTHS: [(&str, f64); 2] = [("wide", 860.0), ("narrow", 360.0)];
/// Drawings below that are narrow.
const NARROW: f64 = 600.0;
const COLOURS: usize = 8;
/// To the right of the lines.
const MARGIN: f64 = 20.0;

/// Where the lines of a chart are: left, top, width, height.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plot {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Plot {
    /// In a drawing of this width.
    pub fn within(width: f64) -> Self {
        let (left, height) = if width < NARROW { (52.0, 220.0) } else { (70.0, 260.0) };
        Self { left, top: 30.0, width: width - left - MARGIN, height }
    }

    pub fn floor(self) -> f64 {
        self.top + self.height
    }

    /// Both quantities, the vertical one above its axis.
    pub fn name(self, out: &mut Markup, x: &str, y: &str) {
        let (right, below) = (self.left + self.width, self.floor() + 34.0);
        label(out, right, below, "end", x);
        label(out, 0.0, 14.0, "start", y);
    }

    /// A line across at a value of the vertical quantity.
    pub fn across(self, out: &mut Markup, y: f64, value: &str) {
        grid(out, &format!("M{} {y:.1}h{:.1}", self.left, self.width));
        label(out, self.left - 8.0, y + 4.0, "end", value);
    }

    /// A value of the horizontal quantity, and a line up from there, so long.
    pub fn up(self, out: &mut Markup, x: f64, length: f64, value: &str) {
        grid(out, &format!("M{x:.1} {}v{length}", self.floor()));
        // The last one would be cut off at the edge of the drawing.
        let edge = self.left + self.width + MARGIN;
        let (x, anchor) = match x + breadth(value) / 2.0 > edge {
            true => (edge, "end"),
            false => (x, "middle"),
        };
        label(out, x, self.floor() + 18.0, anchor, value);
    }

    /// The names of the lines, below; the height of the drawing.
    pub fn legend(self, out: &mut Markup, series: &[Series]) -> f64 {
        let columns = (self.width / 190.0).floor().max(1.0) as usize;
        for (index, series) in series.iter().enumerate() {
            let (column, row) = ((index % columns) as f64, (index / columns) as f64);
            let (x, y) = (self.left + column * 190.0, self.floor() + 52.0 + 20.0 * row);
            line(out, index, &format!("M{x} {y}h24"));
            out.text("text", &[("x", &(x + 30.0)), ("y", &(y + 4.0))], &series.name);
        }
        self.floor() + 46.0 + 20.0 * series.len().div_ceil(columns) as f64
    }
}

/// A text in the soft colour.
fn label(out: &mut Markup, x: f64, y: f64, anchor: &str, text: &str) {
    let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
    out.text("text", &[("class", &"soft"), ("text-anchor", &anchor), ("x", &x), ("y", &y)], text);
}

fn grid(out: &mut Markup, path: &str) {
    out.empty("path", &[("class", &"grid"), ("d", &path)]);
}

/// How broad a text is in the style's font, if it is digits mostly.
fn breadth(text: &str) -> f64 {
    const LETTER: f64 = 7.0;
    text.chars().count() as f64 * LETTER
}

/// A text in lines that fit a width, as far as its parts do.
fn broken(text: &str, width: f64) -> Vec<&str> {
    if breadth(text) <= width { vec![text] } else { text.split(" / ").collect() }
}

/// A line of a series.
pub(super) fn line(out: &mut Markup, index: usize, path: &str) {
    out.empty("path", &[("class", &format_args!("l l{}", index % COLOURS)), ("d", &path)]);
}

/// Says that there is nothing to draw; the height of that.
pub(super) fn nothing(out: &mut Markup) -> f64 {
    label(out, 0.0, 24.0, "start", "nothing was measured");
    40.0
}

impl LineChart {
    /// Over `x`, up to `y`.
    pub fn new(title: &str, x: &str, y: &str, series: Vec<Series>) -> Self {
        Self { title: title.into(), x: x.into(), y: y.into(), series }
    }

    /// Draws the chart; one without a point says so.
    pub fn svg(&self) -> Svg {
        Svg::of(&self.title, |out, width| self.draw(out, width))
    }

    fn draw(&self, out: &mut Markup, width: f64) -> f64 {
        let plot = Plot::within(width);
        let points = || self.series.iter().flat_map(|series| &series.points).filter(finite);
        if points().next().is_none() {
            return nothing(out);
        }
        let low = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let high = points().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
        let (x_ticks, y_ticks) = (
            ticks(low.min(0.0), high),
            ticks(0.0, points().map(|point| point.1).fold(0.0, f64::max)),
        );
        let (first, last) = (low.min(0.0), high.max(low + f64::MIN_POSITIVE));
        let top = y_ticks.last().copied().unwrap_or(1.0);
        let at = |x: f64, y: f64| {
            (
                plot.left + (x - first) / (last - first).max(f64::MIN_POSITIVE) * plot.width,
                plot.top + plot.height * (1.0 - y / top),
            )
        };
        for tick in &y_ticks {
            plot.across(out, at(first, *tick).1, &number(*tick));
        }
        for tick in x_ticks.iter().filter(|tick| **tick >= first && **tick <= last) {
            plot.up(out, at(*tick, 0.0).0, 5.0, &number(*tick));
        }
        plot.name(out, &self.x, &self.y);
        for (index, series) in self.series.iter().enumerate() {
            let mut path = String::new();
            let mut pen_down = false;
            for point in &series.points {
                if finite(&point) {
                    let (x, y) = at(point.0, point.1);
                    let _ = write!(path, "{}{x:.1} {y:.1}", if pen_down { 'L' } else { 'M' });
                    // A point alone would not show: close it into a dot-sized line.
                    if !pen_down {
                        path.push_str("h0.1");
                    }
                }
                pen_down = finite(&point);
            }
            line(out, index, &path);
        }
        plot.legend(out, &self.series)
    }
}

impl HeatMap {
    /// Draws the chart.
    pub fn svg(&self) -> Svg {
        Svg::of(&self.title, |out, width| self.draw(out, width))
    }

    fn draw(&self, out: &mut Markup, all: f64) -> f64 {
        const TOP: f64 = 26.0;
        const LINE: f64 = 14.0;
        // Names stand beside their cells, or above them.
        let (left, above) = if all < NARROW { (0.0, 18.0) } else { (150.0, 0.0) };
        let width = (all - left) / self.columns.len().max(1) as f64;
        let texts = self.rows.iter().flat_map(|(_, cells)| cells);
        let most = texts.map(|cell| broken(&cell.text, width).len()).max().unwrap_or(1);
        let height = 20.0 + LINE * most.max(1) as f64;
        let row_height = height + above;
        for (at, column) in self.columns.iter().enumerate() {
            label(out, left + width * (at as f64 + 0.5), TOP - 8.0, "middle", column);
        }
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            let y = TOP + row_height * row as f64 + above;
            let baseline = if above > 0.0 { y - 5.0 } else { y + 21.0 };
            out.text("text", &[("x", &0), ("y", &format_args!("{baseline:.1}"))], name);
            for (at, cell) in cells.iter().enumerate() {
                let x = left + width * at as f64;
                let shade = if cell.shade.is_finite() { cell.shade.clamp(-1.0, 1.0) } else { 0.0 };
                out.empty(
                    "rect",
                    &[
                        ("fill", &format_args!("var(--s{})", u8::from(shade > 0.0))),
                        ("fill-opacity", &format_args!("{:.2}", shade.abs() * 0.7)),
                        ("x", &format_args!("{x:.1}")),
                        ("y", &format_args!("{y:.1}")),
                        ("width", &format_args!("{:.1}", (width - 2.0).max(0.0))),
                        ("height", &(height - 2.0)),
                    ],
                );
                let middle = format!("{:.1}", x + width / 2.0);
                let lines = broken(&cell.text, width);
                let first = y + 21.0 + LINE * (most - lines.len()) as f64 / 2.0;
                for (at, line) in lines.iter().enumerate() {
                    let y = first + LINE * at as f64;
                    let attributes: [(&str, &dyn Display); 3] =
                        [("text-anchor", &"middle"), ("x", &middle), ("y", &y)];
                    out.text("text", &attributes, line);
                }
            }
        }
        TOP + row_height * self.rows.len() as f64 + 8.0
    }
}

impl BarChart {
    /// Draws the chart; one without a bar says so.
    pub fn svg(&self) -> Svg {
        Svg::of(&self.title, |out, width| self.draw(out, width))
    }

    fn draw(&self, out: &mut Markup, width: f64) -> f64 {
        const TOP: f64 = 8.0;
        const ROW: f64 = 26.0;
        if self.bars.is_empty() {
            return nothing(out);
        }
        // Names stand beside their bars, or above them.
        let (left, above, values) =
            if width < NARROW { (0.0, 16.0, 100.0) } else { (230.0, 0.0, 130.0) };
        let space = width - left - values;
        let longest = self
            .bars
            .iter()
            .flat_map(|bar| [bar.value, bar.interval.map_or(0.0, |(_, high)| high)])
            .chain(self.reference)
            .filter(|value| value.is_finite())
            .fold(0.0, f64::max);
        let ticks = ticks(0.0, longest);
        let top = ticks.last().copied().unwrap_or(1.0);
        let length = |value: f64| {
            if value.is_finite() { (value / top).clamp(0.0, 1.0) * space } else { 0.0 }
        };
        let bottom = TOP + (ROW + above) * self.bars.len() as f64;
        for (index, tick) in ticks.iter().enumerate() {
            let x = left + length(*tick);
            grid(out, &format!("M{x:.1} {TOP}V{bottom}"));
            // The first would be cut off at the edge.
            let anchor = if index == 0 && left == 0.0 { "start" } else { "middle" };
            label(out, x, bottom + 16.0, anchor, &number(*tick));
        }
        for (index, bar) in self.bars.iter().enumerate() {
            let y = TOP + (ROW + above) * index as f64 + above;
            let middle = y + ROW / 2.0;
            let mut end = length(bar.value);
            let (x, baseline, anchor) =
                if above > 0.0 { (0.0, y, "start") } else { (left - 8.0, middle + 4.0, "end") };
            let attributes: [(&str, &dyn Display); 3] =
                [("text-anchor", &anchor), ("x", &x), ("y", &baseline)];
            out.text("text", &attributes, &bar.label);
            out.empty(
                "rect",
                &[
                    ("class", &format_args!("f{}", bar.colour % COLOURS)),
                    ("x", &left),
                    ("y", &(y + 5.0)),
                    ("width", &format_args!("{end:.1}")),
                    ("height", &(ROW - 10.0)),
                ],
            );
            if let Some((low, high)) = bar.interval {
                let (from, to) = (left + length(low), left + length(high));
                end = end.max(to - left);
                let a = middle - 4.0;
                let path = format!("M{from:.1} {a}v8M{from:.1} {middle}H{to:.1}M{to:.1} {a}v8");
                out.empty("path", &[("class", &"mark"), ("d", &path)]);
            }
            let value = format!("{} {}", number(bar.value), self.unit);
            let x = format!("{:.1}", left + end + 8.0);
            out.text("text", &[("x", &x), ("y", &(middle + 4.0))], &value);
        }
        if let Some(reference) = self.reference {
            let path = format!("M{:.1} {TOP}V{bottom}", left + length(reference));
            out.empty("path", &[("class", &"mark"), ("stroke-dasharray", &"4 3"), ("d", &path)]);
        }
        bottom + 30.0
    }
}

fn finite(point: &&(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

/// Round numbers from at most `low` to at least `high`, about five of them.
pub fn ticks(low: f64, high: f64) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return vec![low.min(0.0), low.max(0.0) + 1.0];
    }
    let rough = span / 5.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * magnitude)
        .find(|step| *step >= rough * 0.999_999)
        .unwrap_or(magnitude * 10.0);
    let first = (low / step).floor() as i64;
    let last = (high / step - 1e-9).ceil() as i64;
    (first..=last).map(|index| index as f64 * step).collect()
}

/// A number with as many decimals as its size asks for.
pub fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = if size == 0.0 || size >= 100.0 {
        0
    } else if size >= 10.0 {
        1
    } else if size >= 0.1 {
        2
    } else {
        4
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heat_map_colours_by_sign_and_escapes_its_text() {
        let cell = |text: &str, shade| Heat { text: text.into(), shade };
        let map = HeatMap {
            title: "errors".into(),
            columns: vec!["0x".into(), "1x".into(), "2x".into()],
            rows: vec![(
                "a<b".into(),
                vec![cell("-5 %", -0.5), cell("+9 %", 4.0), cell("-", f64::NAN)],
            )],
        };
        let svg = map.svg().to_string();
        assert!(svg.contains("var(--s0)\" fill-opacity=\"0.35\""), "{svg}");
        assert!(svg.contains("var(--s1)\" fill-opacity=\"0.70\""), "{svg}");
        assert!(svg.contains("fill-opacity=\"0.00\"") && svg.contains("a&lt;b"), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_enclose_the_range() {
        assert_eq!(ticks(0.0, 250.0), [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]);
        for high in [0.003, 0.9, 1.0, 7.3, 99.0, 1e6, 3.7e9] {
            let ticks = ticks(0.0, high);
            assert!((3..=7).contains(&ticks.len()), "{high}: {ticks:?}");
            assert!(ticks[0] <= 0.0 && *ticks.last().unwrap() >= high * (1.0 - 1e-9), "{ticks:?}");
        }
        assert_eq!(ticks(0.0, 0.0), [0.0, 1.0]);
    }

    #[test]
    fn numbers_keep_the_decimals_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (184.3, "184"),
            (18.43, "18.4"),
            (0.69, "0.69"),
            (1.0, "1"),
            (0.0123, "0.0123"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_line_ends_where_its_last_point_is_and_breaks_at_gaps() {
        let chart = LineChart {
            series: vec![Series {
                name: "pss".into(),
                points: vec![(0.0, 0.0), (1.0, 5.0), (2.0, f64::NAN), (4.0, 10.0)],
            }],
            ..LineChart::default()
        };
        let svg = chart.svg().to_string();
        // Left bottom, one gap, right top.
        assert!(svg.contains("d=\"M70.0 290.0h0.1L262.5 160.0M840.0 30.0h0.1\""), "{svg}");
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |value, interval| Bar { label: "a".into(), value, interval, colour: 0 };
        let chart = BarChart {
            bars: vec![bar(1.0, None), bar(0.5, Some((0.4, 0.6)))],
            reference: Some(1.0),
            ..BarChart::default()
        };
        let svg = chart.svg().to_string();
        assert!(svg.contains("width=\"500.0\"") && svg.contains("width=\"250.0\""), "{svg}");
        assert!(svg.contains("M430.0 ") && svg.contains("H530.0"), "{svg}");
    }

    #[test]
    fn charts_of_nothing_say_so() {
        assert!(LineChart::default().svg().to_string().contains("nothing was measured"));
        assert!(BarChart::default().svg().to_string().contains("nothing was measured"));
    }
}
