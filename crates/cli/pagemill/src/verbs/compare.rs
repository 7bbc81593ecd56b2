//! `compare`: what changed from one recording to another: memory, page faults, and who accessed which object.
//!
//! Figures that both recordings have stand beside each other with their ratio; those of one alone are not compared.
//! Two recordings are two runs: a difference says nothing of chance, which `--tolerance` is for.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use pagemill_analysis::faults::FaultFold;
use pagemill_analysis::heap::HeapFold;
use pagemill_model::{Bytes, Fold as _, Source as _};
use serde_json::json;

use pagemill_launch::exit::Exit;
use pagemill_record::summary::{self, Folds, Summary};
use pagemill_report::draw::text;

const EXAMPLES: &str = "\
Examples:
  pagemill compare before after
  pagemill compare before after --tolerance 5       a finding if a figure grew by more than 5 %
  pagemill compare before after --json
";

const AFTER: &str = "\
Exit status: 0 shown; 1 with --tolerance, a figure grew by more than that; 2 one is no recording.";

/// Which recordings.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The recording to compare with.
    #[arg(value_name = "REC")]
    before: PathBuf,
    /// The other recording.
    #[arg(value_name = "REC")]
    after: PathBuf,
    /// Percent by which a figure may grow; objects are not judged.
    #[arg(long, value_name = "PERCENT")]
    tolerance: Option<f64>,
    #[command(flatten)]
    redact: crate::values::Redact,
    #[command(flatten)]
    printed: crate::values::Printed,
}

/// The figure of how long was recorded.
const LENGTH: &str = "length";

/// Objects that are shown.
const OBJECTS: usize = 20;

/// A figure of a recording: name, unit, value.
#[derive(Clone, Debug, PartialEq)]
struct Figure {
    name: String,
    unit: &'static str,
    value: f64,
}

/// An object: name, kind, pages, accesses, share of writes.
type Object = (String, String, u64, u64, f64);

struct Side {
    figures: Vec<Figure>,
    objects: Vec<Object>,
}

fn read_side(path: &Path, redact: bool) -> Result<Side> {
    let mut reader = pagemill_launch::context::recording(path, redact)?;
    let known = summary::read(&mut reader);
    let meta = reader.meta().clone();
    let mut heap = HeapFold::default();
    let mut faults = meta.faults.as_ref().map(|setup| FaultFold::new(setup, meta.started));
    let mut folds = (meta.accesses.is_some() && known.is_none()).then(|| Folds::new(&reader));
    while let Some(event) = reader.next_event()? {
        heap.event(&event);
        faults.iter_mut().for_each(|fold| fold.event(&event));
        folds.iter_mut().for_each(|fold| fold.event(&event));
    }
    let mut figures = Vec::new();
    let mut put = |name: &str, unit, value: Option<f64>| {
        figures.extend(value.map(|value| Figure { name: name.into(), unit, value }));
    };
    put(LENGTH, "s", meta.ended.map(|ended| ended.since(meta.started).seconds()));
    let view = heap.view();
    let memory = [
        ("memory", &view.memory),
        ("Pss", &view.pss),
        ("cgroup charge", &view.cgroup),
        ("heap footprint", &view.footprint),
        ("heap live", &view.live),
    ];
    for (name, summary) in memory {
        put(&format!("{name}, mean"), "B", summary.as_ref().map(|summary| summary.mean));
        put(&format!("{name}, peak"), "B", summary.as_ref().map(|summary| summary.peak));
    }
    put("CPU time", "s", view.cpu.map(|time| time.seconds()));
    if let Some(faults) = faults {
        let view = faults.view();
        put("page faults", "", Some(view.counted as f64));
        for (name, share) in [("median fault", 0.5), ("p99 fault", 0.99), ("p99.9 fault", 0.999)] {
            put(name, "ns", view.all.quantile(share).map(|time| time.0 as f64));
        }
    }
    let summary: Option<Summary> = known.or_else(|| folds.map(|folds| folds.keep(path, &reader)));
    let mut objects = Vec::new();
    if let Some(Summary { accesses, heat, .. }) = summary {
        put("pages touched", "", Some(accesses.total.pages as f64));
        put("pages written", "", Some(accesses.total.written as f64));
        put("accesses", "", Some(accesses.total.accesses as f64));
        let most = accesses.working_set.iter().map(|point| point.1).max();
        put("largest working set", "B", most.map(|pages| (pages * meta.page_size.0) as f64));
        put("threads that access", "", Some(accesses.threads.len() as f64));
        objects = heat
            .objects
            .iter()
            .map(|object| {
                let all = object.total.accesses();
                let share = object.total.writes as f64 / all.max(1) as f64;
                (object.name.clone(), object.kind.clone(), object.pages, all, share)
            })
            .collect();
    }
    Ok(Side { figures, objects })
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
    let empty = |(name, kind, ..): &Object| (name.clone(), kind.clone(), 0, 0, 0.0);
    let find = |side: &Side, of: &Object| {
        side.objects.iter().find(|other| (&other.0, &other.1) == (&of.0, &of.1)).cloned()
    };
    let mut both: Vec<(Object, Object)> = before
        .objects
        .iter()
        .map(|one| (one.clone(), find(after, one).unwrap_or_else(|| empty(one))))
        .collect();
    let new = after.objects.iter().filter(|one| find(before, one).is_none());
    both.extend(new.map(|one| (empty(one), one.clone())));
    both.sort_by_key(|(a, b)| (std::cmp::Reverse(a.3.abs_diff(b.3)), a.0.clone()));
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
        "ns" => pagemill_model::Nanos(value.max(0.0) as u64).to_string(),
        _ => format!("{value:.0}"),
    }
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let (before, after) = (
        read_side(&arguments.before, arguments.redact.redact)?,
        read_side(&arguments.after, arguments.redact.redact)?,
    );
    let figures = pairs(&before, &after);
    let objects = changes(&before, &after);
    let grown: Vec<&str> = match arguments.tolerance {
        Some(percent) => figures
            .iter()
            // How long was recorded says nothing of the program.
            .filter(|(name, ..)| name != LENGTH)
            .filter(|(_, _, before, after)| *after > before * (1.0 + percent / 100.0))
            .map(|(name, ..)| name.as_str())
            .collect(),
        None => Vec::new(),
    };
    if arguments.printed.json {
        let figures = figures.iter().map(|(name, unit, before, after)| {
            json!({ "name": name, "unit": unit, "before": before, "after": after })
        });
        let side = |(_, _, pages, accesses, writes): &Object| json!({ "pages": pages, "accesses": accesses, "write_share": writes });
        let objects = objects
            .iter()
            .map(|(a, b)| json!({ "name": a.0, "kind": a.1, "before": side(a), "after": side(b) }));
        let value = json!({
            "figures": figures.collect::<Vec<_>>(), "objects": objects.collect::<Vec<_>>(), "grown": grown,
        });
        crate::answer::print("compare", value)?;
    } else {
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
                    a.0.clone(),
                    a.1.clone(),
                    a.2.to_string(),
                    b.2.to_string(),
                    a.3.to_string(),
                    b.3.to_string(),
                    ratio(a.3 as f64, b.3 as f64),
                    percent(a.4),
                    percent(b.4),
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
        pagemill_launch::stdio::stdout(&out);
    }
    if grown.is_empty() {
        return Ok(Exit::Ok);
    }
    eprintln!("pagemill: grew by more than the tolerance: {}", grown.join(", "));
    Ok(Exit::Finding)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(objects: &[(&str, u64)], figures: &[(&str, f64)]) -> Side {
        let object =
            |(name, all): &(&str, u64)| ((*name).to_owned(), "global".to_owned(), 1, *all, 0.0);
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
        let order: Vec<_> =
            changes(&before, &after).iter().map(|(a, b)| (a.0.clone(), a.3, b.3)).collect();
        assert_eq!(order, [("b".into(), 500, 0), ("c".into(), 0, 90), ("a".into(), 10, 12)]);
        assert_eq!(pairs(&before, &after), [("pages".into(), "", 3.0, 4.0)]);
    }
}
