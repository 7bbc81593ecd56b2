//! `tier probe`: the memory nodes of this machine as a machine file for `simulate`.

use anyhow::Result;
use clap::Args;
use pagemill_experiments::simulate::probe::machine_file;
use pagemill_kernel::Linux;
use pagemill_launch::exit::Exit;
use pagemill_launch::stdio;
use pagemill_model::Nanos;

/// Which nodes, and how long.
#[derive(Clone, Debug, Args)]
pub struct Arguments {
    /// The memory nodes of the default and the alternate tier [default: the one pair that there is, else all there is]
    #[arg(long, value_name = "NODE,NODE", value_delimiter = ',', num_args = 1)]
    nodes: Vec<u32>,
    /// Time of each point of a curve
    #[arg(long = "for", value_name = "TIME", value_parser = crate::values::length, default_value = "300ms")]
    length: Nanos,
}

/// Measures and prints.
pub fn run(linux: &Linux, arguments: &Arguments) -> Result<Exit> {
    let text = machine_file(linux, &arguments.nodes, arguments.length.into())?;
    stdio::is_verbatim();
    stdio::stdout(&text);
    Ok(Exit::Ok)
}
