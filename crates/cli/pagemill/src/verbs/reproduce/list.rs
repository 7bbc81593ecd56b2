//! `reproduce --list`: what each experiment needs, takes, and has kept.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use pagemill_kernel::signal;
use pagemill_launch::progress::minutes;

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

/// What there is to say of an experiment.
struct Entry<'a> {
    name: &'a str,
    title: &'a str,
    lines: Vec<String>,
}

impl Entry<'_> {
    fn text(self) -> String {
        let line = |name: &str, words: &str| format!("{name:20} {words}\n");
        let lines: String = self.lines.iter().map(|words| line("", words)).collect();
        line(self.name, self.title) + &lines
    }
}

/// Cells and time, in full and with `--quick`.
fn takes([(cells, full), (fewer, quick)]: [(usize, Duration); 2]) -> String {
    let (full, quick) = (minutes(full), minutes(quick));
    format!("takes: {cells} cells, about {full}; quick {fewer}, {quick}")
}

impl Arguments {
    /// What each experiment needs, how long it takes, and what is kept of it: in `results`, and in this binary.
    pub(super) fn listed(&self, experiments: &[Experiment], asked: &Asked) -> Result<String> {
        let mut text = String::new();
        let results = self.output.as_deref();
        let kept = results.map(keep::all).transpose()?.map(|(cells, _)| cells).unwrap_or_default();
        let kept = |name: &str| {
            let of =
                kept.iter().filter(|(cell, kept)| cell.experiment == name && kept.failed.is_none());
            results.map(|results| format!("kept: {} cells in {}", of.count(), results.display()))
        };
        for one in experiments {
            let needs = match input::needs(one) {
                programs if programs.is_empty() => "nothing".to_owned(),
                programs => programs.join(", "),
            };
            let mut lines = vec![
                format!("arms: {}; {} runs each", one.arms.join(" "), one.repetitions),
                format!("needs: {needs}"),
                takes([plan::amount(one, false)?, plan::amount(one, true)?]),
            ];
            lines.extend(kept(&one.name));
            text.push_str(&Entry { name: &one.name, title: &one.title, lines }.text());
        }
        for name in asked.apart() {
            let Some(one) = definition::find(name) else { continue };
            let runs = match one.full.repetitions {
                1 => String::new(),
                runs => format!("; {runs} runs each"),
            };
            let mut lines = vec![
                format!("arms: {}{runs}", one.arms.join(" ")),
                format!("needs: {}", one.needs),
            ];
            lines.push(takes([self.amount(name, false)?, self.amount(name, true)?]));
            lines.extend(kept(name));
            if name == moca::NAME {
                let machine = Kept::built_in()?.machine.join("; ");
                lines.push(format!("kept: figures for --from-kept, of {machine}"));
            }
            text.push_str(&Entry { name, title: &one.title, lines }.text());
        }
        for [name, title, needs, takes] in apart_listed() {
            if !self.experiments.is_empty() && !self.experiments.contains(&name) {
                continue;
            }
            let mut lines = vec![format!("needs: {needs}")];
            lines.extend((!takes.is_empty()).then(|| format!("takes: {takes}")));
            text.push_str(&Entry { name: &name, title: &title, lines }.text());
        }
        text.push_str(&format!("\narms: {}\n", arm::NAMES.join(" ")));
        text.push_str("groups: mesh\n");
        Ok(text)
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
