//! `reproduce --list`: what each experiment needs, takes, and has kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use pagemill_kernel::signal;
use pagemill_launch::progress::minutes;
use serde_json::{Value, json};

use pagemill_experiments::moca::kept::KeptRun;
use pagemill_experiments::reproduce::arm;
use pagemill_experiments::reproduce::experiment::Experiment;
use pagemill_experiments::reproduce::input::{self, Inputs};
use pagemill_experiments::reproduce::plan::Options;
use pagemill_experiments::reproduce::{definition, keep, plan, series};
use pagemill_experiments::{moca, overhead};

use super::arguments::Arguments;
use super::asked::Asked;
use super::stage::stage;

/// What there is to say of an experiment: facts by name.
struct Entry<'a> {
    name: &'a str,
    title: &'a str,
    facts: Vec<(&'static str, String)>,
}

impl Entry<'_> {
    fn text(&self) -> String {
        let line = |name: &str, words: &str| format!("{name:20} {words}\n");
        let facts = self.facts.iter().map(|(fact, words)| line("", &format!("{fact}: {words}")));
        line(self.name, self.title) + &facts.collect::<String>()
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

impl Arguments {
    /// What each experiment needs, how long it takes, and what is kept of it: in `results`, and in this binary.
    pub(super) fn list(&self, experiments: &[Experiment], asked: &Asked) -> Result<()> {
        let mut entries = Vec::new();
        let mut whole = [(0, Duration::ZERO); 2];
        let mut takes = |of: [(usize, Duration); 2]| {
            for ((cells, time), (more, longer)) in whole.iter_mut().zip(of) {
                *cells += more;
                *time += longer;
            }
            takes_text(of)
        };
        let results = self.output.as_deref();
        if let Some(results) = results {
            ensure!(results.is_dir(), "there is no results directory {}", results.display());
        }
        let kept = results.map(keep::all).transpose()?.map(|(cells, _)| cells).unwrap_or_default();
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
        for one in experiments {
            let needs = match input::needs(one) {
                programs if programs.is_empty() => "nothing".to_owned(),
                programs => programs.join(", "),
            };
            let arms = self.arms.as_ref().unwrap_or(&one.arms).join(" ");
            let runs = self.reps.unwrap_or(one.repetitions);
            let of = |quick| plan::amount(one, &Options { quick, ..self.options() });
            let mut facts = vec![
                ("arms", format!("{arms}; {runs} runs each")),
                ("needs", needs),
                ("takes", takes([of(false)?, of(true)?])),
            ];
            facts.extend(kept(&one.name));
            entries.push(Entry { name: &one.name, title: &one.title, facts });
        }
        let also = asked.all.then_some(overhead::NAME);
        for name in asked.apart.iter().copied().chain(also) {
            let Some(one) = definition::find(name) else { continue };
            let runs = match self.reps.unwrap_or(one.full.repetitions) {
                1 => String::new(),
                runs => format!("; {runs} runs each"),
            };
            let mut facts = vec![
                ("arms", format!("{}{runs}", self.arms(name).unwrap_or(&one.arms).join(" "))),
                ("needs", one.needs.clone()),
            ];
            let amounts = [self.amount(name, false)?, self.amount(name, true)?];
            // All of it is what runs without a name.
            let by_name = also == Some(name);
            let words = if by_name { takes_text(amounts) } else { takes(amounts) };
            let more = if one.full_size.is_some() { self.full_size(name)? } else { String::new() };
            let end = if by_name { "; by name only" } else { "" };
            facts.push(("takes", format!("{words}{more}{end}")));
            facts.extend(kept(name));
            if name == moca::NAME {
                let machine = KeptRun::built_in()?.machine.join("; ");
                facts.push(("kept", format!("figures for --from-kept, of {machine}")));
            }
            entries.push(Entry { name, title: &one.title, facts });
        }
        let whole = takes_text(whole);
        if self.json {
            let rows: Vec<_> = entries.iter().map(Entry::json).collect();
            return crate::answer::print(
                "reproduce-list",
                json!({ "experiments": rows, "takes": whole, "arms": arm::NAMES }),
            );
        }
        let text: String = entries.iter().map(Entry::text).collect();
        print!("{text}\nall of it: {whole}\narms: {}\ngroups: mesh\n", arm::NAMES.join(" "));
        Ok(())
    }

    /// What its programs take at the sizes of the publication.
    fn full_size(&self, name: &str) -> Result<String> {
        let full_size = Self { full_size: true, ..self.clone() };
        let (cells, time) = full_size.amount(name, false)?;
        Ok(format!("; with --full-size {cells}, {}", minutes(time)))
    }

    /// Cells of an experiment with tables of its own, where everything is installed, and roughly how long they take.
    fn amount(&self, name: &str, quick: bool) -> Result<(usize, Duration)> {
        let asked = Self { quick, ..self.clone() };
        let signals = signal::Signals::block(&[])?;
        let inputs = Inputs::new(PathBuf::new(), self.seed)?;
        let stage = stage(&signals, PathBuf::new());
        let series = asked.series(name, &stage, &inputs)?;
        Ok(series.map_or_else(Default::default, |series| {
            let amount = series::amount(series.as_ref(), None);
            (amount.cells, amount.time)
        }))
    }
}
