//! `frag compact`: mends fragmented memory and says what each step achieved.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::{check_order, order, score, tables};
use crate::exit::Exit;
use crate::fragmentation::compact::{self, Goal, Step};
use crate::fragmentation::look::Look;
use crate::report::text;

const EXAMPLES: &str = "\
Examples:
  sudo pagemill frag compact
  sudo pagemill frag compact --no-sweep        only what the kernel's own compaction does
  sudo pagemill frag compact --drop-caches     when files are most of what is in the way
  sudo pagemill frag compact --target 0.2 --json
";

const AFTER: &str = "\
Exit status: 0 the score is at most the target; 1 it is not, and why; 2 error; 4 not root.";

/// How far to go.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The order of the score; 9 is that of a 2 MiB page
    #[arg(long, default_value = "9", value_parser = order)]
    order: usize,
    /// Stop once the score is at most this
    #[arg(long, value_name = "SCORE", default_value = "0.05", value_parser = score)]
    target: f64,
    /// Leave the sweep out, which reserves free memory as huge pages for a moment
    #[arg(long)]
    no_sweep: bool,
    /// Drop clean caches first. Programs read their files from disk again afterwards
    #[arg(long)]
    drop_caches: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<Exit> {
    let linux = super::super::machine();
    let before = Look::take(&linux)?;
    check_order(arguments.order, before.orders())?;
    let goal = Goal {
        order: arguments.order,
        target: arguments.target,
        sweep: !arguments.no_sweep,
        drop_caches: arguments.drop_caches,
    };
    let steps = compact::run(&linux, goal, |_| {})?;
    let after = Look::take(&linux)?;
    if arguments.json {
        let value = json!({
            "schema": 1,
            "order": arguments.order,
            "target": arguments.target,
            "steps": steps.iter().map(step_json).collect::<Vec<_>>(),
            "before": tables::json(&before),
            "after": tables::json(&after),
        });
        println!("{value:#}");
    } else {
        println!("unusable free space index\n\n{}", tables::before_after(&before, &after));
        print!("{}", step_table(&steps));
    }
    let score = steps.last().map_or(0.0, |step| step.after);
    Ok(if score <= arguments.target { Exit::Ok } else { Exit::Finding })
}

fn step_table(steps: &[Step]) -> String {
    let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|step| {
            vec![
                step.name.to_owned(),
                format!("{:.3}", step.before),
                format!("{:.3}", step.after),
                format!("{:.2} s", step.took.as_secs_f64()),
                count(step.counters.migrated),
                count(step.counters.failed),
                count(step.counters.scanned),
                step.gave_up.clone().unwrap_or_default(),
            ]
        })
        .collect();
    let header =
        ["step", "before", "after", "took", "pages moved", "not moved", "looked at", "gave up"];
    text::table(&header, &rows)
}

fn step_json(step: &Step) -> serde_json::Value {
    json!({
        "step": step.name,
        "before": step.before,
        "after": step.after,
        "seconds": step.took.as_secs_f64(),
        "pages_scanned": step.counters.scanned,
        "free_pages_scanned": step.counters.free_scanned,
        "pages_migrated": step.counters.migrated,
        "pages_failed": step.counters.failed,
        "gave_up": step.gave_up,
    })
}
