//! `pagemill collect`: the cells of a run on many machines, as one file and as tables.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_model::units::counted;
use serde_json::{Value, json};

use crate::answer::{self, Layout};
use pagemill_experiments::colloid;
use pagemill_experiments::fleet::collect::Collected;
use pagemill_experiments::reproduce::html;
use pagemill_experiments::reproduce::terminal;
use pagemill_experiments::scoreboard::Scoreboard;

/// What it answers.
const LAYOUT: Layout = Layout::new("collect", 1, "failed");

const EXAMPLES: &str = "\
Examples:
  pagemill collect results/20261124-120000
  pagemill collect host1/results host2/results -o all.parquet
  pagemill collect all.parquet                     the tables again, from the file alone
  duckdb -c \"SELECT arm, median(value) FROM 'all.parquet' WHERE experiment = 'pauses' AND name = 'cpu' GROUP BY arm\"
";

const AFTER: &str = "\
Writes cells.parquet and cells.html into the first directory, or what -o and --html name.
Exit status: 0 every cell is there; 1 a cell failed or is missing; 2 usage, or cells that do not belong together.";

/// Whose results, and where to.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// Results directories of `reproduce`, or files that this has written.
    #[arg(required = true, value_name = "DIR")]
    sources: Vec<PathBuf>,
    /// The Parquet file, instead of cells.parquet in the first directory.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The page, instead of cells.html in the first directory.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Overwrites the files that -o and --html name.
    #[arg(short, long)]
    force: bool,
    /// Prints what was collected as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let first = arguments.sources.first().filter(|path| path.is_dir());
    // In its own directory what was collected before is what is collected again.
    let place = |named: &Option<PathBuf>, name: &str| match named {
        Some(path) => Some((path.clone(), arguments.force)),
        None => first.map(|directory| (directory.join(name), true)),
    };
    let table = place(&arguments.output, "cells.parquet");
    let page = place(&arguments.html, "cells.html");
    for (path, replaces) in table.iter().chain(&page) {
        files::check(path, *replaces)?;
    }
    let collected = Collected::from(&arguments.sources)?;
    let summary = collected.summary()?;
    let simulated = collected.simulated()?;
    let outcomes = collected.outcomes();
    let simulated = simulated.as_ref();
    // Of each experiment with tables of its own: its name, and these as text and as JSON.
    let tables = outcomes.tables.iter();
    let mut apart: Vec<(&str, String, Value)> =
        tables.map(|(name, tables)| (*name, tables.text(), tables.json())).collect();
    if let Some(report) = simulated {
        let text = format!("\n{}: {}", colloid::NAME, report.text());
        apart.push((colloid::NAME, text, report.json()?));
    }
    let mut written = Vec::new();
    if let Some((path, replaces)) = table {
        collected.write(&path, replaces)?;
        written.push(path);
    }
    if let Some((path, replaces)) = page {
        let page = html::render(&summary, simulated, &outcomes);
        files::write(&path, page, replaces)?;
        written.push(path);
    }
    let failed = collected.failed();
    if arguments.json {
        let failed = failed.iter().map(|(cell, why)| json!({ "cell": cell, "why": why }));
        let mut answer = json!({
            "cells": collected.cells.len(),
            "failed": failed.collect::<Vec<_>>(),
            "missing": collected.missing,
            "duplicates": collected.duplicates,
            "unlisted": collected.unlisted,
            "unreadable": collected.odd,
            "hosts": collected.hosts(),
            "builds": collected.builds(),
            "whole": [],
            "written": written,
            "summary": summary,
        });
        for (name, _, tables) in apart {
            answer[name] = tables;
        }
        answer::print(&LAYOUT, answer)?;
    } else {
        let mut text = terminal::render(&summary);
        apart.iter().for_each(|(_, tables, _)| text.push_str(tables));
        text.push_str(&Scoreboard::of(Some(&summary), simulated, &outcomes).text());
        pagemill_launch::stdio::stdout(&text);
    }
    say(&collected, &failed);
    written.iter().for_each(|path| notice!("wrote {}", path.display()));
    let whole = collected.missing.is_empty() && failed.is_empty() && collected.odd.is_empty();
    Ok(if whole { Exit::Ok } else { Exit::Finding })
}

/// What was collected and what was not, for people.
fn say(collected: &Collected, failed: &[(String, String)]) {
    let hosts = collected.hosts();
    let hosts: Vec<String> = hosts.iter().map(|(host, cells)| format!("{host}: {cells}")).collect();
    let from = if hosts.is_empty() { String::new() } else { format!(" ({})", hosts.join(", ")) };
    notice!("{}{from}", counted(collected.cells.len() as u64, "cell", "cells"));
    if collected.duplicates > 0 {
        notice!("{} cells were there twice; one of each is taken", collected.duplicates);
    }
    if let [_, _, ..] = collected.builds()[..] {
        notice!("these builds ran them: {}", collected.builds().join("; "));
    }
    for directory in &collected.unlisted {
        notice!(
            "what is missing in {} is not known: an earlier version ran there",
            directory.display()
        );
    }
    collected.odd.iter().for_each(|why| notice!("not taken: {why}"));
    for (cell, why) in failed {
        notice!("{cell} failed: {why}");
    }
    if !collected.missing.is_empty() {
        notice!("missing: {}", counted(collected.missing.len() as u64, "cell", "cells"));
        collected.missing.iter().for_each(|words| eprintln!("  {words}"));
    }
}
