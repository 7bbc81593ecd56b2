//! `pagemill generate`: man pages, shell completions and the reference, from the same description of the command
//! line that parses it; and recordings of any size, for who tries readers on them.

mod reference;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;

use pagemill_launch::exit::Exit;
use pagemill_launch::files;
use pagemill_record::synthetic;

const EXAMPLES: &str = "\
Examples:
  pagemill generate bash >~/.local/share/bash-completion/completions/pagemill
  pagemill generate zsh >\"${fpath[1]}/_pagemill\"
  pagemill generate fish >~/.config/fish/completions/pagemill.fish
  pagemill generate man -o ~/.local/share/man/man1      # pagemill.1, pagemill-run.1, …
  pagemill generate man | man -l -                      # all of them, at once
  pagemill generate reference -o docs/reference         # Markdown: a page a verb, and the columns of recordings
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
    /// Directory to write: of a recording, or of manual pages or the reference, one file each.
    #[arg(
        short, long, value_name = "DIR", required_if_eq("target", "recording"),
        value_parser = crate::values::directory()
    )]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    /// Manual pages: with -o a file each, otherwise one after the other
    Man,
    /// The reference in Markdown: what each verb takes, and what the columns of a recording mean
    Reference,
    Bash,
    Zsh,
    Fish,
    /// A recording of accesses that nobody made, of any size: to try readers on
    Recording,
}

/// Prints the file on standard output; `command` is the command line that it describes.
pub fn run(arguments: &Arguments, mut command: Command) -> Result<Exit> {
    let mut text = Vec::new();
    match arguments.target {
        Target::Man => {
            command = without_help(command);
            let mut pages = Vec::new();
            man(&command, &mut pages).context("cannot write the manual page")?;
            match &arguments.output {
                Some(directory) => put(directory, pages)?,
                None => text.extend(pages.into_iter().flat_map(|(_, page)| page)),
            }
        }
        Target::Reference => {
            let pages = reference::pages(&without_help(command)).into_iter();
            let pages = pages.map(|(name, page)| (name, page.into_bytes()));
            match &arguments.output {
                Some(directory) => put(directory, pages.collect())?,
                None => text.extend(pages.flat_map(|(_, page)| page)),
            }
        }
        Target::Bash => clap_complete::generate(Shell::Bash, &mut command, "pagemill", &mut text),
        Target::Zsh => clap_complete::generate(Shell::Zsh, &mut command, "pagemill", &mut text),
        Target::Recording => {
            let output = arguments.output.as_deref().context("-o names the directory to write")?;
            ensure!(!output.exists(), "{} exists (choose another name)", output.display());
            synthetic::write(output, arguments.events).inspect_err(|_| {
                // A part of it would be in the way of the next one.
                let _ = std::fs::remove_dir_all(output);
            })?;
        }
        Target::Fish => clap_complete::generate(Shell::Fish, &mut command, "pagemill", &mut text),
    }
    pagemill_launch::stdio::is_verbatim();
    print!("{}", String::from_utf8_lossy(&text));
    Ok(Exit::Ok)
}

/// Without the verb help, which would have a page for each verb again.
fn without_help(command: Command) -> Command {
    let mut command = command
        .disable_help_subcommand(true)
        .mut_subcommands(|verb| verb.disable_help_subcommand(true));
    command.build();
    command
}

/// Writes a file each. A directory that was made for them goes again if that fails.
fn put(directory: &Path, pages: Vec<(String, Vec<u8>)>) -> Result<()> {
    let made = !directory.exists();
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let written =
        pages.iter().try_for_each(|(name, page)| files::write(&directory.join(name), page, true));
    written.inspect_err(|_| {
        if made {
            // Half of the pages would look like all of them.
            let _ = std::fs::remove_dir_all(directory);
        }
    })
}

/// The pages of a command and its verbs, with the names of their files.
fn man(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push((page.get_filename(), text));
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        man(verb, pages)?;
    }
    Ok(())
}
