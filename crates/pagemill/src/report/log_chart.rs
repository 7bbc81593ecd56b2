//! Step lines over a logarithmic horizontal axis, for distributions of times; the vertical axis is
//! logarithmic too, or a share from 0 to 1.
//!
//! ```text
//!   title
//!   y |‾‾‾\_              a value holds from its point to the next: a step
//!     |     ‾\___ series
//!     |1____10____100 x
//! ```

use std::fmt::Write as _;

use super::chart::{Series, Svg};
use super::html::escape;

/// What the vertical axis is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vertical {
    /// From 0 to 1.
    #[default]
    Share,
    /// Powers of ten.
    Logarithmic,
}

/// Step lines.
#[derive(Clone, Debug, Default)]
pub struct LogChart {
    /// What the chart shows.
    pub title: String,
    /// The horizontal quantity with its unit.
    pub x: String,
    /// The vertical quantity with its unit.
    pub y: String,
    /// What the vertical axis is.
    pub vertical: Vertical,
    /// The lines; points that are not positive cannot be shown and are left out.
    pub series: Vec<Series>,
}

const LEFT: f64 = 70.0;
const TOP: f64 = 34.0;
const WIDTH: f64 = 860.0;
const PLOT: (f64, f64) = (WIDTH - LEFT - 20.0, 260.0);
const COLOURS: usize = 8;

/// The powers of ten around positive values: exponents of the lowest and the highest.
fn decades(values: impl Iterator<Item = f64>) -> Option<(i32, i32)> {
    let (low, high) = values
        .filter(|value| value.is_finite() && *value > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    (high > 0.0).then(|| {
        let (low, high) = (low.log10().floor() as i32, high.log10().ceil() as i32);
        (low, high.max(low + 1))
    })
}

/// A power of ten as people write it.
fn power(exponent: i32) -> String {
    match exponent {
        -3..=5 => super::chart::number(10f64.powi(exponent)),
        _ => format!("1e{exponent}"),
    }
}

impl LogChart {
    /// Draws the chart; one without a point says so.
    pub fn svg(&self) -> Svg {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let rows = self.series.len().div_ceil(4);
        let height = TOP + PLOT.1 + 46.0 + 20.0 * rows as f64;
        let title = escape(&self.title);
        let mut out = format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=img aria-label=\"{title}\"><text x=0 y=14 font-weight=600>{title}</text>"
        );
        let share = self.vertical == Vertical::Share;
        let (Some((left, right)), Some((bottom, top))) = (
            decades(points().map(|point| point.0)),
            if share { Some((0, 1)) } else { decades(points().map(|point| point.1)) },
        ) else {
            let _ =
                write!(out, "<text class=soft x={LEFT} y=120>nothing was measured</text></svg>");
            return Svg::of(out);
        };
        let scale = |exponent: f64, from: i32, to: i32| {
            ((exponent - f64::from(from)) / f64::from(to - from)).clamp(0.0, 1.0)
        };
        let x = |value: f64| LEFT + scale(value.log10(), left, right) * PLOT.0;
        let y = |value: f64| {
            let at = if share { value.clamp(0.0, 1.0) } else { scale(value.log10(), bottom, top) };
            TOP + PLOT.1 * (1.0 - at)
        };
        let rulers: Vec<(f64, String)> = if share {
            (0..=5).map(|i| f64::from(i) / 5.0).map(|at| (at, super::chart::number(at))).collect()
        } else {
            (bottom..=top).map(|e| (10f64.powi(e), power(e))).collect()
        };
        for (value, label) in rulers {
            let at = y(value);
            let _ = write!(
                out,
                "<path class=grid d=\"M{LEFT} {at:.1}h{:.1}\"/><text class=soft text-anchor=end x={} y={:.1}>{label}</text>",
                PLOT.0,
                LEFT - 8.0,
                at + 4.0
            );
        }
        let floor = TOP + PLOT.1;
        for exponent in left..=right {
            let _ = write!(
                out,
                "<path class=grid d=\"M{at:.1} {TOP}V{floor}\"/><text class=soft text-anchor=middle x={at:.1} y={}>{}</text>",
                floor + 18.0,
                power(exponent),
                at = x(10f64.powi(exponent))
            );
        }
        let _ = write!(
            out,
            "<text class=soft text-anchor=end x={} y={}>{}</text><text class=soft x=0 y={}>{}</text>",
            LEFT + PLOT.0,
            floor + 34.0,
            escape(&self.x),
            TOP - 8.0,
            escape(&self.y)
        );
        for (index, series) in self.series.iter().enumerate() {
            let mut path = String::new();
            for (at, value) in &series.points {
                let shown = *at > 0.0 && at.is_finite() && value.is_finite();
                if shown && (share || *value > 0.0) {
                    let (x, y) = (x(*at), y(*value));
                    let _ = match path.is_empty() {
                        true => write!(path, "M{x:.1} {y:.1}"),
                        false => write!(path, "H{x:.1}V{y:.1}"),
                    };
                }
            }
            // A point alone would not show.
            path.push_str("h0.1");
            let (at, row) = ((index % 4) as f64, (index / 4) as f64);
            let (lx, ly) = (LEFT + at * 195.0, floor + 52.0 + 20.0 * row);
            if path.len() > "h0.1".len() {
                let _ = write!(out, "<path class=\"l l{}\" d=\"{path}\"/>", index % COLOURS);
            }
            let _ = write!(
                out,
                "<path class=\"l l{}\" d=\"M{lx} {ly}h24\"/><text x={} y={}>{}</text>",
                index % COLOURS,
                lx + 30.0,
                ly + 4.0,
                escape(&series.name)
            );
        }
        out.push_str("</svg>");
        Svg::of(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)], vertical: Vertical) -> String {
        let series = vec![Series { name: "a".into(), points: points.to_vec() }];
        LogChart { vertical, series, ..LogChart::default() }.svg().to_string()
    }

    #[test]
    fn decades_are_evenly_spaced_and_values_are_steps() {
        let svg = chart(&[(1.0, 1.0), (10.0, 0.1), (100.0, 0.01)], Vertical::Logarithmic);
        assert!(svg.contains("d=\"M70.0 34.0H455.0V164.0H840.0V294.0h0.1\""), "{svg}");
    }

    #[test]
    fn shares_reach_from_zero_to_one() {
        let svg = chart(&[(1.0, 0.0), (10.0, 1.0)], Vertical::Share);
        assert!(svg.contains("d=\"M70.0 294.0H840.0V34.0h0.1\""), "{svg}");
    }

    #[test]
    fn what_a_logarithm_cannot_show_is_left_out() {
        assert!(chart(&[(0.0, 1.0)], Vertical::Logarithmic).contains("nothing was measured"));
        let svg = chart(&[(0.0, 1.0), (5.0, 2.0)], Vertical::Logarithmic);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
