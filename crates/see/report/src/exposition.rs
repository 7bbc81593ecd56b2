//! Metrics in the text format of Prometheus, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! Always true: the lines of a metric stand together below its help and its type, and a metric without a value is left
//! out; label values are escaped; a histogram's buckets are cumulative and end with `+Inf`.

use std::fmt::Write as _;

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// It goes up and down.
    Gauge,
    /// It only grows, from a start.
    Counter,
}

/// A histogram's values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    /// Upper ends, ascending, and how many values are at or below each.
    pub upto: Vec<(f64, u64)>,
    /// Sum of all values.
    pub sum: f64,
    /// How many there are.
    pub count: u64,
}

/// A metric that each of many things may have: its name after a common beginning, kind, help, and the value of one.
pub type MetricRow<T> = (&'static str, Metric, &'static str, fn(&T) -> Option<f64>);

/// A page of metrics.
#[derive(Clone, Debug, Default)]
pub struct Exposition(String);

/// Labels with their values, as they stand between braces; empty for none.
pub fn labels(pairs: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    pairs.iter().map(pair).collect::<Vec<_>>().join(",")
}

/// A number as the format has it.
fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        value => value.to_string(),
    }
}

impl Exposition {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "{name}{braced} {}", number(value));
    }

    /// Adds a metric with its values, each with its labels; one without values is left out. `help` has no line end.
    pub fn metric(&mut self, name: &str, kind: Metric, help: &str, values: &[(String, f64)]) {
        if values.is_empty() {
            return;
        }
        let kind = match kind {
            Metric::Gauge => "gauge",
            Metric::Counter => "counter",
        };
        self.head(name, kind, help);
        values.iter().for_each(|(labels, value)| self.line(name, labels, *value));
    }

    /// Adds metrics of things, each with its labels.
    pub fn metrics<T>(&mut self, begin: &str, things: &[(String, &T)], rows: &[MetricRow<T>]) {
        for (name, kind, help, value) in rows {
            let value = |(labels, thing): &(String, &T)| Some((labels.clone(), value(thing)?));
            let values: Vec<_> = things.iter().filter_map(value).collect();
            self.metric(&format!("{begin}{name}"), *kind, help, &values);
        }
    }

    /// Adds a histogram for each set of labels.
    pub fn histogram(&mut self, name: &str, help: &str, values: &[(String, Buckets)]) {
        if values.is_empty() {
            return;
        }
        self.head(name, "histogram", help);
        let (bucket, sum, count) =
            (format!("{name}_bucket"), format!("{name}_sum"), format!("{name}_count"));
        for (labels, values) in values {
            let comma = if labels.is_empty() { "" } else { "," };
            let all = [(f64::INFINITY, values.count)];
            for (upto, below) in values.upto.iter().chain(&all) {
                let labels = format!("{labels}{comma}le=\"{}\"", number(*upto));
                self.line(&bucket, &labels, *below as f64);
            }
            self.line(&sum, labels, values.sum);
            self.line(&count, labels, values.count as f64);
        }
    }

    /// The page.
    pub fn finish(self) -> String {
        self.0
    }

    /// Adds the metrics of another page.
    pub fn append(&mut self, other: Self) {
        self.0.push_str(&other.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_its_help_and_type_once_and_labels_are_escaped() {
        let mut page = Exposition::default();
        let odd = labels(&[("pid", "7"), ("comm", "a\"b\\c\nd")]);
        page.metric("a_bytes", Metric::Gauge, "Of a.", &[(odd, 1.5), (String::new(), 2e15)]);
        page.metric("b_total", Metric::Counter, "Of b.", &[]);
        assert_eq!(
            page.finish(),
            "# HELP a_bytes Of a.\n# TYPE a_bytes gauge\na_bytes{pid=\"7\",comm=\"a\\\"b\\\\c\\nd\"} 1.5\n\
             a_bytes 2000000000000000\n"
        );
    }

    #[test]
    fn a_histogram_ends_with_all_values() {
        let mut page = Exposition::default();
        let buckets = Buckets { upto: vec![(0.001, 3), (0.25, 5)], sum: 0.5, count: 6 };
        page.histogram("c_seconds", "Of c.", &[("pid=\"7\"".into(), buckets)]);
        let lines: Vec<String> = page.finish().lines().skip(2).map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "c_seconds_bucket{pid=\"7\",le=\"0.001\"} 3",
                "c_seconds_bucket{pid=\"7\",le=\"0.25\"} 5",
                "c_seconds_bucket{pid=\"7\",le=\"+Inf\"} 6",
                "c_seconds_sum{pid=\"7\"} 0.5",
                "c_seconds_count{pid=\"7\"} 6",
            ]
        );
    }
}
