//! `reproduce --list`: what each experiment needs, takes, and has kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::signal;
use pagemill_launch::progress::minutes;
use serde_json::{Value, json};

#[cfg(target_arch = "x86_64")]
use pagemill_experiments::huge_slices;
use pagemill_experiments::moca::kept::Kept;
use pagemill_experiments::reproduce::arm;
use pagemill_experiments::reproduce::experiment::Experiment;
use pagemill_experiments::reproduce::input::{self, Inputs};
use pagemill_experiments::reproduce::{definition, keep, plan, series};
use pagemill_experiments::{moca, overhead};

use super::fleet::stage;
use super::{Arguments, Asked};

/// The experiments with tables of their own: name, title, needs, takes in full and with `--quick` where that is known.
fn apart_listed() -> Vec<[String; 4]> {
    let row = |name: &str, title: &str, needs: &str, takes: &str| {
        [name, title, needs, takes].map(str::to_owned)
    };
    vec![
        row(overhead::NAME, &format!("{}; by name only", overhead::TITLE), "nothing", ""),
        #[cfg(target_arch = "x86_64")]
        row(huge_slices::NAME, &format!("{}; by name only", huge_slices::TITLE), "huge pages", ""),
    ]
}

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
            let mut facts = vec![
                ("arms", format!("{}; {} runs each", one.arms.join(" "), one.repetitions)),
                ("needs", needs),
                ("takes", takes([plan::amount(one, false)?, plan::amount(one, true)?])),
            ];
            facts.extend(kept(&one.name));
            entries.push(Entry { name: &one.name, title: &one.title, facts });
        }
        for name in asked.apart() {
            let Some(one) = definition::find(name) else { continue };
            let runs = match one.full.repetitions {
                1 => String::new(),
                runs => format!("; {runs} runs each"),
            };
            let mut facts = vec![
                ("arms", format!("{}{runs}", one.arms.join(" "))),
                ("needs", one.needs.clone()),
            ];
            facts.push(("takes", takes([self.amount(name, false)?, self.amount(name, true)?])));
            facts.extend(kept(name));
            if name == moca::NAME {
                let machine = Kept::built_in()?.machine.join("; ");
                facts.push(("kept", format!("figures for --from-kept, of {machine}")));
            }
            entries.push(Entry { name, title: &one.title, facts });
        }
        let apart = apart_listed();
        let wanted =
            |row: &&[String; 4]| self.experiments.is_empty() || self.experiments.contains(&row[0]);
        for [name, title, needs, takes] in apart.iter().filter(wanted) {
            let mut facts = vec![("needs", needs.clone())];
            facts.extend((!takes.is_empty()).then(|| ("takes", takes.clone())));
            entries.push(Entry { name, title, facts });
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

    /// Cells of an experiment with tables of its own, where everything is installed, and roughly how long they take.
    fn amount(&self, name: &str, quick: bool) -> Result<(usize, Duration)> {
        let asked = Self { quick, ..self.clone() };
        let signals = signal::Signals::block(&[])?;
        let inputs = Inputs::new(PathBuf::new(), self.seed)?;
        let stage = stage(&signals, PathBuf::new());
        let series = asked.series(name, &stage, &inputs)?;
        Ok(series.map(|series| series::amount(series.as_ref())).unwrap_or_default())
    }
}
