//! `reproduce --list`: what each experiment needs, takes, and has kept.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use pagemill_launch::progress::minutes;

#[cfg(target_arch = "x86_64")]
use pagemill_experiments::huge_slices;
use pagemill_experiments::moca::kept::Kept;
use pagemill_experiments::reproduce::arm;
use pagemill_experiments::reproduce::experiment::Experiment;
use pagemill_experiments::reproduce::{input, keep, plan};
use pagemill_experiments::{colloid, fragmentation, huge_pages, moca, overhead};

use super::{SIMULATED, SIMULATED_FULL, SIMULATED_QUICK};

/// How long the experiment on access traces takes.
const MOCA_TAKES: &str = "quick 5 min";

/// The experiments with tables of their own: name, title, needs, takes in full and with `--quick` where that is known.
fn apart_listed() -> Vec<[String; 4]> {
    let row = |name: &str, title: &str, needs: &str, takes: &str| {
        [name, title, needs, takes].map(str::to_owned)
    };
    let quick = |time: Duration| format!("{} of a processor", minutes(time));
    let simulated = format!("{}; quick {}", quick(SIMULATED_FULL), quick(SIMULATED_QUICK));
    vec![
        row(fragmentation::NAME, fragmentation::TITLE, "root", "18 min; quick 1 min"),
        row(
            huge_pages::NAME,
            huge_pages::TITLE,
            "root; programs that are not here are left out",
            "quick 2 min 10 s at most",
        ),
        row(moca::NAME, moca::TITLE, "nothing; for every access qemu-user", MOCA_TAKES),
        row(
            SIMULATED,
            "tiered memory: the evaluation of Colloid (SOSP 2024) on the simulated machine",
            "nothing",
            &simulated,
        ),
        row(overhead::NAME, &format!("{}; by name only", overhead::TITLE), "nothing", ""),
        #[cfg(target_arch = "x86_64")]
        row(huge_slices::NAME, &format!("{}; by name only", huge_slices::TITLE), "huge pages", ""),
    ]
}

/// What each experiment needs, how long it takes, and what is kept of it: in `results`, and in this binary.
pub(super) fn list(
    experiments: &[Experiment],
    names: &[String],
    results: Option<&Path>,
) -> Result<String> {
    let mut text = String::new();
    let line = |name: &str, words: &str| format!("{name:20} {words}\n");
    let kept = results.map(keep::all).transpose()?.map(|(cells, _)| cells).unwrap_or_default();
    for one in experiments {
        let ((cells, full), (fewer, quick)) = (plan::amount(one, false)?, plan::amount(one, true)?);
        let needs = match input::needs(one) {
            programs if programs.is_empty() => "nothing".to_owned(),
            programs => programs.join(", "),
        };
        text.push_str(&line(&one.name, &one.title));
        text.push_str(&line(
            "",
            &format!("arms: {}; {} runs each", one.arms.join(" "), one.repetitions),
        ));
        text.push_str(&line("", &format!("needs: {needs}")));
        text.push_str(&line(
            "",
            &format!(
                "takes: {cells} cells, about {}; quick {fewer}, {}",
                minutes(full),
                minutes(quick)
            ),
        ));
        if let Some(results) = results {
            let of = kept
                .iter()
                .filter(|(cell, kept)| cell.experiment == one.name && kept.failed.is_none());
            text.push_str(&line(
                "",
                &format!("kept: {} cells in {}", of.count(), results.display()),
            ));
        }
    }
    for [name, title, needs, takes] in apart_listed() {
        if !names.is_empty() && !names.contains(&name) {
            continue;
        }
        text.push_str(&line(&name, &title));
        if name == huge_pages::NAME {
            text.push_str(&line("", &format!("arms: {}", huge_pages::ARMS.join(" "))));
        }
        if name == SIMULATED {
            text.push_str(&line("", &format!("figures: {}", colloid::FIGURES.join(" "))));
        }
        text.push_str(&line("", &format!("needs: {needs}")));
        if !takes.is_empty() {
            text.push_str(&line("", &format!("takes: {takes}")));
        }
        if name == moca::NAME {
            let machine = Kept::built_in()?.machine.join("; ");
            text.push_str(&line("", &format!("kept: figures for --from-kept, of {machine}")));
        }
    }
    text.push_str(&format!("\narms: {}\n", arm::NAMES.join(" ")));
    text.push_str("groups: mesh\n");
    Ok(text)
}
