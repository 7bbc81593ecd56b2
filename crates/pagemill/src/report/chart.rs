//! Charts as SVG that takes its colours from the style of [`crate::report::html`].
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

use std::fmt::{self, Write as _};

use super::html::escape;

/// A drawn chart.
#[derive(Clone, Debug)]
pub struct Svg(String);

impl Svg {
    /// Markup that a module beside this one drew.
    pub(super) fn of(markup: String) -> Self {
        Self(markup)
    }
}

impl fmt::Display for Svg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

const WIDTH: f64 = 860.0;
const COLOURS: usize = 8;

impl LineChart {
    /// Draws the chart; one without a point says so.
    pub fn svg(&self) -> Svg {
        const LEFT: f64 = 70.0;
        const TOP: f64 = 34.0;
        const PLOT: (f64, f64) = (WIDTH - LEFT - 20.0, 260.0);
        let points = || self.series.iter().flat_map(|series| &series.points).filter(finite);
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
                LEFT + (x - first) / (last - first).max(f64::MIN_POSITIVE) * PLOT.0,
                TOP + PLOT.1 * (1.0 - y / top),
            )
        };
        let mut out = String::new();
        let legend_rows = self.series.len().div_ceil(4);
        let height = TOP + PLOT.1 + 46.0 + 20.0 * legend_rows as f64;
        begin(&mut out, height, &self.title);
        if points().next().is_none() {
            let _ =
                write!(out, "<text class=soft x={LEFT} y=120>nothing was measured</text></svg>");
            return Svg(out);
        }
        for tick in &y_ticks {
            let (_, y) = at(first, *tick);
            let _ = write!(
                out,
                "<path class=grid d=\"M{LEFT} {y:.1}h{:.1}\"/><text class=soft text-anchor=end x={} y={:.1}>{}</text>",
                PLOT.0,
                LEFT - 8.0,
                y + 4.0,
                number(*tick)
            );
        }
        for tick in x_ticks.iter().filter(|tick| **tick >= first && **tick <= last) {
            let (x, _) = at(*tick, 0.0);
            let y = TOP + PLOT.1;
            let _ = write!(
                out,
                "<path class=grid d=\"M{x:.1} {y}v5\"/><text class=soft text-anchor=middle x={x:.1} y={}>{}</text>",
                y + 18.0,
                number(*tick)
            );
        }
        let _ = write!(
            out,
            "<text class=soft text-anchor=end x={} y={}>{}</text><text class=soft x=0 y={}>{}</text>",
            LEFT + PLOT.0,
            TOP + PLOT.1 + 34.0,
            escape(&self.x),
            TOP - 8.0,
            escape(&self.y)
        );
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
            let (column, row) = ((index % 4) as f64, (index / 4) as f64);
            let (x, y) = (LEFT + column * 195.0, TOP + PLOT.1 + 52.0 + 20.0 * row);
            let _ = write!(
                out,
                "<path class=\"l l{colour}\" d=\"{path}\"/><path class=\"l l{colour}\" d=\"M{x} {y}h24\"/>\
                 <text x={} y={}>{}</text>",
                x + 30.0,
                y + 4.0,
                escape(&series.name),
                colour = index % COLOURS
            );
        }
        out.push_str("</svg>");
        Svg(out)
    }
}

impl HeatMap {
    /// Draws the chart.
    pub fn svg(&self) -> Svg {
        const LEFT: f64 = 150.0;
        const ROW: f64 = 34.0;
        const TOP: f64 = 52.0;
        let width = (WIDTH - LEFT) / self.columns.len().max(1) as f64;
        let mut out = String::new();
        begin(&mut out, TOP + ROW * self.rows.len() as f64 + 8.0, &self.title);
        for (at, column) in self.columns.iter().enumerate() {
            let x = LEFT + width * (at as f64 + 0.5);
            let _ = write!(
                out,
                "<text class=soft text-anchor=middle x={x:.1} y={}>{}</text>",
                TOP - 8.0,
                escape(column)
            );
        }
        for (row, (name, cells)) in self.rows.iter().enumerate() {
            let y = TOP + ROW * row as f64;
            let _ = write!(out, "<text x=0 y={:.1}>{}</text>", y + 21.0, escape(name));
            for (at, cell) in cells.iter().enumerate() {
                let x = LEFT + width * at as f64;
                let shade = if cell.shade.is_finite() { cell.shade.clamp(-1.0, 1.0) } else { 0.0 };
                let _ = write!(
                    out,
                    "<rect fill=\"var(--s{})\" fill-opacity={:.2} x={x:.1} y={y:.1} width={:.1} height={}/>\
                     <text text-anchor=middle x={:.1} y={:.1}>{}</text>",
                    u8::from(shade > 0.0),
                    shade.abs() * 0.7,
                    width - 2.0,
                    ROW - 2.0,
                    x + width / 2.0,
                    y + 21.0,
                    escape(&cell.text)
                );
            }
        }
        out.push_str("</svg>");
        Svg(out)
    }
}

impl BarChart {
    /// Draws the chart; one without a bar says so.
    pub fn svg(&self) -> Svg {
        const LEFT: f64 = 230.0;
        const TOP: f64 = 34.0;
        const ROW: f64 = 26.0;
        let space = WIDTH - LEFT - 130.0;
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
        let bottom = TOP + ROW * self.bars.len() as f64;
        let mut out = String::new();
        begin(&mut out, bottom + 30.0, &self.title);
        if self.bars.is_empty() {
            out.push_str("<text class=soft x=0 y=50>nothing was measured</text></svg>");
            return Svg(out);
        }
        for tick in &ticks {
            let x = LEFT + length(*tick);
            let _ = write!(
                out,
                "<path class=grid d=\"M{x:.1} {TOP}V{bottom}\"/><text class=soft text-anchor=middle x={x:.1} y={}>{}</text>",
                bottom + 16.0,
                number(*tick)
            );
        }
        for (index, bar) in self.bars.iter().enumerate() {
            let y = TOP + ROW * index as f64;
            let middle = y + ROW / 2.0;
            let mut end = length(bar.value);
            let _ = write!(
                out,
                "<text text-anchor=end x={} y={}>{}</text><rect class=f{} x={LEFT} y={} width={end:.1} height={}></rect>",
                LEFT - 8.0,
                middle + 4.0,
                escape(&bar.label),
                bar.colour % COLOURS,
                y + 5.0,
                ROW - 10.0
            );
            if let Some((low, high)) = bar.interval {
                let (from, to) = (LEFT + length(low), LEFT + length(high));
                end = end.max(to - LEFT);
                let _ = write!(
                    out,
                    "<path class=mark d=\"M{from:.1} {a}v8M{from:.1} {middle}H{to:.1}M{to:.1} {a}v8\"/>",
                    a = middle - 4.0
                );
            }
            let _ = write!(
                out,
                "<text x={:.1} y={}>{} {}</text>",
                LEFT + end + 8.0,
                middle + 4.0,
                number(bar.value),
                escape(&self.unit)
            );
        }
        if let Some(reference) = self.reference {
            let x = LEFT + length(reference);
            let _ = write!(
                out,
                "<path class=mark stroke-dasharray=\"4 3\" d=\"M{x:.1} {TOP}V{bottom}\"/>"
            );
        }
        out.push_str("</svg>");
        Svg(out)
    }
}

fn begin(out: &mut String, height: f64, title: &str) {
    let title = escape(title);
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{title}\"><text x=0 y=14 font-weight=600>{title}</text>"
    );
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
        assert!(svg.contains("var(--s0)\" fill-opacity=0.35"), "{svg}");
        assert!(svg.contains("var(--s1)\" fill-opacity=0.70"), "{svg}");
        assert!(svg.contains("fill-opacity=0.00") && svg.contains("a&lt;b"), "{svg}");
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
        assert!(svg.contains("d=\"M70.0 294.0h0.1L262.5 164.0M840.0 34.0h0.1\""), "{svg}");
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
        assert!(svg.contains("width=500.0") && svg.contains("width=250.0"), "{svg}");
        assert!(svg.contains("M430.0 ") && svg.contains("H530.0"), "{svg}");
    }

    #[test]
    fn charts_of_nothing_say_so() {
        assert!(LineChart::default().svg().to_string().contains("nothing was measured"));
        assert!(BarChart::default().svg().to_string().contains("nothing was measured"));
    }
}
