//! What each experiment needs, takes, and has kept.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use pagemill_launch::progress::minutes;
use serde_json::{Value, json};

use super::plan::{self, Options};
use super::request::Request;
use super::{arm, finished, input};
use crate::registry;

/// What there is to say of all experiments that were asked for.
pub struct Listing {
    entries: Vec<Entry>,
    /// Cells and time of them all.
    whole: String,
}

impl Listing {
    /// As text.
    pub fn text(&self) -> String {
        let text: String = self.entries.iter().map(Entry::text).collect();
        let arms = arm::NAMES.join(" ");
        let groups = registry::groups().into_iter();
        let groups = groups.map(|(name, members)| format!(", {name} ({})", members.join(" ")));
        let groups =
            format!("mesh (redis-fragmentation to browsers){}", groups.collect::<String>());
        format!("{text}\nall of it: {}\narms: {arms}\ngroups: {groups}\n", self.whole)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let rows: Vec<_> = self.entries.iter().map(Entry::json).collect();
        json!({ "experiments": rows, "takes": self.whole, "arms": arm::NAMES })
    }
}

/// What there is to say of an experiment: facts by name.
struct Entry {
    name: String,
    title: String,
    facts: Vec<(&'static str, String)>,
}

impl Entry {
    fn text(&self) -> String {
        let line = |name: &str, words: &str| format!("{name:20} {words}\n");
        let facts = self.facts.iter().map(|(fact, words)| line("", &format!("{fact}: {words}")));
        line(&self.name, &self.title) + &facts.collect::<String>()
    }

    fn json(&self) -> Value {
        let of = |fact: &str| {
            let all = self.facts.iter().filter(|(name, _)| *name == fact);
            all.map(|(_, words)| words.as_str()).collect::<Vec<_>>()
        };
        json!({
            "name": self.name,
            "title": self.title,
            "arms": of("arms").first(),
            "needs": of("needs").first(),
            "takes": of("takes").first(),
            "kept": of("kept"),
        })
    }
}

/// Cells and time, in full and with `--quick`.
fn takes_text([(cells, full), (fewer, quick)]: [(usize, Duration); 2]) -> String {
    let (full, quick) = (minutes(full), minutes(quick));
    format!("{cells} cells, about {full}; quick {fewer}, {quick}")
}

/// What each experiment needs, how long it takes, and what is kept of it: in `results`, and in this binary.
///
/// # Errors
/// There is no such directory, or what was chosen is of no experiment.
pub fn list(request: &Request, results: Option<&Path>) -> Result<Listing> {
    let (options, experiments) = (&request.options, request.selected()?);
    let mut entries = Vec::new();
    let mut whole = [(0, Duration::ZERO); 2];
    let mut takes = |of: [(usize, Duration); 2]| {
        for ((cells, time), (more, longer)) in whole.iter_mut().zip(of) {
            *cells += more;
            *time += longer;
        }
        takes_text(of)
    };
    if let Some(results) = results {
        ensure!(results.is_dir(), "there is no results directory {}", results.display());
    }
    let kept = results.map(finished::all).transpose()?.map(|(cells, _)| cells).unwrap_or_default();
    let kept = |name: &str| {
        let of =
            kept.iter().filter(|(cell, kept)| cell.experiment == name && kept.failed.is_none());
        let took: Vec<f64> = of.map(|(_, kept)| kept.seconds).collect();
        let time = minutes(Duration::from_secs_f64(took.iter().sum()));
        let words = |results: &Path| match took.len() {
            0 => format!("0 cells in {}", results.display()),
            all => format!("{all} cells in {}, which took {time}", results.display()),
        };
        results.map(|results| ("kept", words(results)))
    };
    for one in &experiments {
        let needs = match input::needs(one) {
            programs if programs.is_empty() => "nothing".to_owned(),
            programs => programs.join(", "),
        };
        let arms = options.arms.as_ref().unwrap_or(&one.arms).join(" ");
        let runs = options.repetitions.unwrap_or(one.repetitions);
        let of = |quick| plan::amount(one, &Options { quick, ..options.clone() });
        let mut facts = vec![
            ("arms", format!("{arms}; {runs} runs each")),
            ("needs", needs),
            ("takes", takes([of(false)?, of(true)?])),
        ];
        facts.extend(kept(&one.name));
        entries.push(Entry { name: one.name.clone(), title: one.title.clone(), facts });
    }
    let is_also = |name: &&str| request.experiments.is_empty() && registry::is_by_name(name);
    let also = registry::names().into_iter().filter(is_also);
    for name in request.apart().into_iter().chain(also) {
        let Some(one) = registry::definition(name) else { continue };
        let runs = match options.repetitions.unwrap_or(one.full.repetitions) {
            1 => String::new(),
            runs => format!("; {runs} runs each"),
        };
        let mut facts = vec![
            ("arms", format!("{}{runs}", request.arms(name).unwrap_or(&one.arms).join(" "))),
            ("needs", one.needs.clone()),
        ];
        let amounts = [request.amount(name, false)?, request.amount(name, true)?];
        // All of it is what runs without a name.
        let by_name = is_also(&name);
        let words = if by_name { takes_text(amounts) } else { takes(amounts) };
        let more = if one.full_size.is_some() { full_size(request, name)? } else { String::new() };
        let end = if by_name { "; by name only" } else { "" };
        facts.push(("takes", format!("{words}{more}{end}")));
        facts.extend(kept(name));
        if let Some(kept) = registry::kept(name, None) {
            let machine = kept?.machine.join("; ");
            facts.push(("kept", format!("figures for --from-kept, of {machine}")));
        }
        entries.push(Entry { name: name.to_owned(), title: one.title.clone(), facts });
    }
    Ok(Listing { entries, whole: takes_text(whole) })
}

/// What its programs take at the sizes of the publication.
fn full_size(request: &Request, name: &str) -> Result<String> {
    let mut full_size = request.clone();
    full_size.options.full_size = true;
    let (cells, time) = full_size.amount(name, false)?;
    Ok(format!("; with --full-size {cells}, {}", minutes(time)))
}
