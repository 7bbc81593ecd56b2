//! What changed from one recording to another: figures, and who accessed which object.

use std::path::Path;

use anyhow::Result;
use pagemill_launch::context::recording;
use pagemill_model::{Bytes, Nanos};
use serde_json::{Value, json};

use crate::draw::text;
use crate::sections::{Figure, Object, ReportOptions, Section, Sections};

/// The figure of how long was recorded.
const LENGTH: &str = "length";

/// Objects that are shown.
const OBJECTS: usize = 20;

/// One of two recordings.
struct Side {
    figures: Vec<Figure>,
    objects: Vec<Object>,
}

fn read_side(path: &Path, redact: bool) -> Result<Side> {
    let mut reader = recording(path, redact)?;
    // What was lost is not judged here.
    let sections =
        Sections::read(path, &mut reader, ReportOptions { allow_loss: true, spike: None })?;
    let meta = reader.meta();
    let length = meta.ended.map(|ended| ended.since(meta.started).seconds());
    let length = length.map(|value| Figure { name: LENGTH.into(), unit: "s", value });
    Ok(Side {
        figures: length.into_iter().chain(sections.iter().flat_map(Section::figures)).collect(),
        objects: sections.iter().flat_map(Section::objects).collect(),
    })
}

/// What both have: name, unit, before, after.
fn pairs(before: &Side, after: &Side) -> Vec<(String, &'static str, f64, f64)> {
    let pair = |figure: &Figure| {
        let other = after.figures.iter().find(|other| other.name == figure.name)?;
        Some((figure.name.clone(), figure.unit, figure.value, other.value))
    };
    before.figures.iter().filter_map(pair).collect()
}

/// Objects by the change of their accesses, the largest first; one that a side does not have is zero there.
fn changes(before: &Side, after: &Side) -> Vec<(Object, Object)> {
    let empty = |of: &Object| Object {
        name: of.name.clone(),
        kind: of.kind.clone(),
        pages: 0,
        accesses: 0,
        writes: 0.0,
    };
    let find = |side: &Side, of: &Object| {
        side.objects
            .iter()
            .find(|other| (&other.name, &other.kind) == (&of.name, &of.kind))
            .cloned()
    };
    let mut both: Vec<(Object, Object)> = before
        .objects
        .iter()
        .map(|one| (one.clone(), find(after, one).unwrap_or_else(|| empty(one))))
        .collect();
    let new = after.objects.iter().filter(|one| find(before, one).is_none());
    both.extend(new.map(|one| (empty(one), one.clone())));
    both.sort_by_key(|(a, b)| (std::cmp::Reverse(a.accesses.abs_diff(b.accesses)), a.name.clone()));
    both
}

fn ratio(before: f64, after: f64) -> String {
    match before {
        0.0 => "-".into(),
        before => format!("{:.3}", after / before),
    }
}

fn value(value: f64, unit: &str) -> String {
    match unit {
        "B" => Bytes(value.max(0.0) as u64).to_string(),
        "s" => format!("{value:.3} s"),
        "ns" => Nanos(value.max(0.0) as u64).to_string(),
        _ => format!("{value:.0}"),
    }
}

/// Two recordings beside each other.
pub struct Comparison {
    /// What both have: name, unit, before, after.
    figures: Vec<(String, &'static str, f64, f64)>,
    objects: Vec<(Object, Object)>,
}

impl Comparison {
    /// Of two recordings, with names left out if they are to be passed on.
    ///
    /// # Errors
    /// One is no recording, or damaged.
    pub fn read(before: &Path, after: &Path, redact: bool) -> Result<Self> {
        let (before, after) = (read_side(before, redact)?, read_side(after, redact)?);
        Ok(Self { figures: pairs(&before, &after), objects: changes(&before, &after) })
    }

    /// The figures that grew by more than this percentage.
    pub fn grown(&self, percent: f64) -> Vec<&str> {
        // How long was recorded says nothing of the program.
        let judged = self.figures.iter().filter(|(name, ..)| name != LENGTH);
        judged
            .filter(|(_, _, before, after)| *after > before * (1.0 + percent / 100.0))
            .map(|(name, ..)| name.as_str())
            .collect()
    }

    /// As JSON.
    pub fn json(&self, grown: &[&str]) -> Value {
        let figures = self.figures.iter().map(|(name, unit, before, after)| {
            json!({ "name": name, "unit": unit, "before": before, "after": after })
        });
        let side = |of: &Object| json!({ "pages": of.pages, "accesses": of.accesses, "write_share": of.writes });
        let objects = self.objects.iter().map(
            |(a, b)| json!({ "name": a.name, "kind": a.kind, "before": side(a), "after": side(b) }),
        );
        json!({
            "figures": figures.collect::<Vec<_>>(), "objects": objects.collect::<Vec<_>>(), "grown": grown,
        })
    }

    /// As tables.
    pub fn text(&self) -> String {
        let Self { figures, objects } = self;
        let rows: Vec<Vec<String>> = figures
            .iter()
            .map(|(name, unit, a, b)| {
                vec![name.clone(), value(*a, unit), value(*b, unit), ratio(*a, *b)]
            })
            .collect();
        let mut out = text::table(&["", "before", "after", "ratio"], &rows);
        let rows: Vec<Vec<String>> = objects
            .iter()
            .take(OBJECTS)
            .map(|(a, b)| {
                let percent = |share: f64| format!("{:.0} %", share * 100.0);
                vec![
                    a.name.clone(),
                    a.kind.clone(),
                    a.pages.to_string(),
                    b.pages.to_string(),
                    a.accesses.to_string(),
                    b.accesses.to_string(),
                    ratio(a.accesses as f64, b.accesses as f64),
                    percent(a.writes),
                    percent(b.writes),
                ]
            })
            .collect();
        if !rows.is_empty() {
            const HEADER: [&str; 9] = [
                "object", "kind", "pages", "after", "accesses", "after", "ratio", "writes", "after",
            ];
            out.push_str(&format!(
                "\nobjects, by how much their accesses changed\n{}",
                text::table(&HEADER, &rows)
            ));
            if objects.len() > OBJECTS {
                out.push_str(&format!("and {} more\n", objects.len() - OBJECTS));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(objects: &[(&str, u64)], figures: &[(&str, f64)]) -> Side {
        let object = |(name, accesses): &(&str, u64)| Object {
            name: (*name).to_owned(),
            kind: "global".to_owned(),
            pages: 1,
            accesses: *accesses,
            writes: 0.0,
        };
        let figure =
            |(name, value): &(&str, f64)| Figure { name: (*name).into(), unit: "", value: *value };
        Side {
            figures: figures.iter().map(figure).collect(),
            objects: objects.iter().map(object).collect(),
        }
    }

    #[test]
    fn what_only_one_side_has_is_zero_on_the_other_and_the_largest_change_comes_first() {
        let before = side(&[("a", 10), ("b", 500)], &[("pages", 3.0), ("old", 1.0)]);
        let after = side(&[("a", 12), ("c", 90)], &[("pages", 4.0), ("new", 1.0)]);
        let order: Vec<_> = changes(&before, &after)
            .iter()
            .map(|(a, b)| (a.name.clone(), a.accesses, b.accesses))
            .collect();
        assert_eq!(order, [("b".into(), 500, 0), ("c".into(), 0, 90), ("a".into(), 10, 12)]);
        assert_eq!(pairs(&before, &after), [("pages".into(), "", 3.0, 4.0)]);
    }
}
