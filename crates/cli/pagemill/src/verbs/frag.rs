//! `frag`: external fragmentation of this machine's free memory, shown, brought about and mended.

mod compact;
mod induce;
mod orders;
mod show;

use anyhow::Result;
use clap::{Args, Subcommand};
use pagemill_kernel::Kind;

use pagemill_launch::exit::{Exit, kind, permitted};

const EXAMPLES: &str = "\
Examples:
  pagemill frag show                                   scores of each node, zone and order
  pagemill frag show --json > before.json; make; pagemill frag show --against before.json
  sudo pagemill frag induce --target 0.85 -- ./bench   a program on fragmented memory
  sudo pagemill frag compact                           mend it, further than the kernel does
";

/// Show how fragmented free memory is, fragment it on purpose, or mend it.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    what: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Scores of each node, zone and order; pages hidden on the processors' lists; mobility
    Show(show::Arguments),
    /// Fragment free memory to a chosen degree, for as long as a program runs or until a signal comes
    Induce(induce::Arguments),
    /// Mend fragmented memory: drain, compact, sweep
    Compact(compact::Arguments),
}

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let outcome = match &arguments.what {
        Command::Show(arguments) => show::run(arguments),
        Command::Induce(arguments) => induce::run(arguments),
        Command::Compact(arguments) => compact::run(arguments),
    };
    match permitted(outcome) {
        Err(error) if kind(&error) == Some(Kind::Unsupported) => {
            notice!("{error:#}");
            Ok(Exit::Unsupported)
        }
        outcome => outcome,
    }
}
