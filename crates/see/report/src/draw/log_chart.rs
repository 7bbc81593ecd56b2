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

use super::chart::{Plot, Series, Svg, line, nothing};
use super::markup::Markup;

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
        Svg::of(&self.title, |out, width| self.draw(out, width))
    }

    fn draw(&self, out: &mut Markup, width: f64) -> f64 {
        let plot = Plot::within(width);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let share = self.vertical == Vertical::Share;
        let (Some((left, right)), Some((bottom, top))) = (
            decades(points().map(|point| point.0)),
            if share { Some((0, 1)) } else { decades(points().map(|point| point.1)) },
        ) else {
            return nothing(out);
        };
        let scale = |exponent: f64, from: i32, to: i32| {
            ((exponent - f64::from(from)) / f64::from(to - from)).clamp(0.0, 1.0)
        };
        let x = |value: f64| plot.left + scale(value.log10(), left, right) * plot.width;
        let y = |value: f64| {
            let at = if share { value.clamp(0.0, 1.0) } else { scale(value.log10(), bottom, top) };
            plot.top + plot.height * (1.0 - at)
        };
        let rulers: Vec<(f64, String)> = if share {
            (0..=5).map(|i| f64::from(i) / 5.0).map(|at| (at, super::chart::number(at))).collect()
        } else {
            (bottom..=top).map(|e| (10f64.powi(e), power(e))).collect()
        };
        for (value, label) in rulers {
            plot.across(out, y(value), &label);
        }
        // So many decades that their labels do not touch.
        let apart = (44.0 * f64::from(right - left) / plot.width).ceil().max(1.0) as i32;
        for exponent in left..=right {
            let label =
                if (exponent - left) % apart == 0 { power(exponent) } else { String::new() };
            plot.up(out, x(10f64.powi(exponent)), -plot.height, &label);
        }
        plot.name(out, &self.x, &self.y);
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
            if !path.is_empty() {
                // A point alone would not show.
                path.push_str("h0.1");
                line(out, index, &path);
            }
        }
        plot.legend(out, &self.series)
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
        assert!(svg.contains("d=\"M70.0 30.0H455.0V160.0H840.0V290.0h0.1\""), "{svg}");
    }

    #[test]
    fn shares_reach_from_zero_to_one() {
        let svg = chart(&[(1.0, 0.0), (10.0, 1.0)], Vertical::Share);
        assert!(svg.contains("d=\"M70.0 290.0H840.0V30.0h0.1\""), "{svg}");
    }

    /// `100000` was drawn as `10000(`.
    #[test]
    fn the_last_value_ends_at_the_edge() {
        let svg = chart(&[(1.0, 1.0), (100_000.0, 0.1)], Vertical::Logarithmic);
        for edge in ["860.0", "360.0"] {
            let end = format!("text-anchor=\"end\" x=\"{edge}\"");
            assert_eq!(svg.matches(&end).count(), 1, "{edge}: {svg}");
        }
        assert!(svg.contains(">100000</text>"), "{svg}");
    }

    #[test]
    fn what_a_logarithm_cannot_show_is_left_out() {
        assert!(chart(&[(0.0, 1.0)], Vertical::Logarithmic).contains("nothing was measured"));
        let svg = chart(&[(0.0, 1.0), (5.0, 2.0)], Vertical::Logarithmic);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
