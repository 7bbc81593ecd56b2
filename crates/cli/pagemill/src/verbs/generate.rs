//! `pagemill generate`: man pages and shell completions, from the same description of the command
//! line that parses it; and recordings of any size, for who tries readers on them.

use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::cli::Cli;
use pagemill_launch::exit::Exit;
use pagemill_record::synthetic;

const EXAMPLES: &str = "\
Examples:
  pagemill generate bash >~/.local/share/bash-completion/completions/pagemill
  pagemill generate zsh >\"${fpath[1]}/_pagemill\"
  pagemill generate fish >~/.config/fish/completions/pagemill.fish
  pagemill generate man -o ~/.local/share/man/man1      # pagemill.1, pagemill-run.1, …
  pagemill generate man | man -l -                      # all of them, at once
";

/// What to print.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES)]
pub struct Arguments {
    /// The kind of file
    target: Target,
    /// A recording: how many accesses.
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// Directory to write: of a recording, or of manual pages, one file each.
    #[arg(short, long, value_name = "DIR", required_if_eq("target", "recording"))]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    /// Manual pages: with -o a file each, otherwise one after the other
    Man,
    Bash,
    Zsh,
    Fish,
    /// A recording of accesses that nobody made, of any size: to try readers on
    Recording,
}

/// Prints the file on standard output.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let mut command = Cli::command();
    let mut text = Vec::new();
    match arguments.target {
        Target::Man => {
            // Without the verb help, which would have a page for each verb again.
            command = command
                .disable_help_subcommand(true)
                .mut_subcommands(|verb| verb.disable_help_subcommand(true));
            command.build();
            if let Some(directory) = &arguments.output {
                std::fs::create_dir_all(directory)
                    .and_then(|()| clap_mangen::generate_to(command, directory))
                    .with_context(|| {
                        format!("cannot write the manual pages to {}", directory.display())
                    })?;
                return Ok(Exit::Ok);
            }
            man(&command, &mut text).context("cannot write the manual page")?;
        }
        Target::Bash => clap_complete::generate(Shell::Bash, &mut command, "pagemill", &mut text),
        Target::Zsh => clap_complete::generate(Shell::Zsh, &mut command, "pagemill", &mut text),
        Target::Recording => {
            let output = arguments.output.as_deref().context("-o names the directory to write")?;
            synthetic::write(output, arguments.events)?;
        }
        Target::Fish => clap_complete::generate(Shell::Fish, &mut command, "pagemill", &mut text),
    }
    pagemill_launch::stdio::is_verbatim();
    print!("{}", String::from_utf8_lossy(&text));
    Ok(Exit::Ok)
}

fn man(command: &clap::Command, text: &mut Vec<u8>) -> io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(text)?;
    for verb in
        command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
    {
        clap_mangen::Man::new(verb.clone()).render(text)?;
    }
    Ok(())
}
