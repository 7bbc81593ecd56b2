//! The command line: one subcommand a verb, examples first in each help text.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use pagemill_kernel::{Kind, Linux};
use pagemill_model::Bytes;

use crate::answer;
use crate::verbs::{GROUPS, Verb, WRAPPERS};
use pagemill_control::tier::daemon;
use pagemill_launch::exit::Exit;

/// Columns of help, at most.
const WIDEST: usize = 100;

/// See, score and steer how Linux programs use memory, without changing them.
#[derive(Debug, Parser)]
#[command(name = "pagemill", version, propagate_version = true, max_term_width = WIDEST)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Print sizes in bytes, without units.
    #[arg(long, global = true)]
    pub bytes: bool,
}

/// The group of verbs in which `help` stands, too.
const OTHERS: &str = "Besides";

/// The command with its verbs in groups in its help, which is so wide.
fn grouped(mut command: clap::Command, width: usize) -> clap::Command {
    command.build();
    let line = |name: &&str| {
        let verb = command.find_subcommand(name)?;
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        Some(format!("  {name:<10} {about}\n"))
    };
    let groups = GROUPS.iter().map(|(title, verbs)| {
        let own = (*title == OTHERS).then_some(&"help");
        let lines: String = verbs.iter().chain(own).filter_map(line).collect();
        format!("{title}:\n{lines}\n")
    });
    let groups: String = groups.collect();
    let groups = pagemill_launch::stdio::wrapped(&groups, width);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}"
    );
    command.help_template(template)
}

/// The command line with verbs that have another name now by that: `counters` and `plan --measure` are parts of
/// `advise`.
fn renamed(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_verb = |word: &OsString| !word.as_encoded_bytes().starts_with(b"-");
    let Some(at) = words.iter().skip(1).position(is_verb).map(|at| at + 1) else { return words };
    let measures =
        || words[at..].iter().take_while(|word| *word != "--").any(|word| word == "--measure");
    if words[at] == "counters" {
        words.splice(at..=at, ["advise", "--counters"].map(OsString::from));
    } else if words[at] == "plan" && measures() {
        words[at] = "advise".into();
    }
    words
}

impl Cli {
    /// All verbs, whose help is `width` columns wide; `None`: as wide as clap finds.
    fn sized(width: Option<u16>) -> clap::Command {
        // Verbs take it over when they are grouped, not later.
        let command = Self::command();
        match width.map(|width| usize::from(width).min(WIDEST)) {
            Some(width) => grouped(command.term_width(width), width),
            None => grouped(command, WIDEST),
        }
    }

    /// Reads the command line, and how answers are to be printed.
    pub fn read() -> Result<Self, clap::Error> {
        let command = Self::sized(pagemill_launch::stdio::terminal().flatten());
        let matches = command.try_get_matches_from(renamed(std::env::args_os().collect()))?;
        let mut verb = &matches;
        while let Some((_, inner)) = verb.subcommand() {
            verb = inner;
        }
        if let Ok(Some(table)) = verb.try_get_one::<String>("csv") {
            answer::as_csv(table);
        }
        Self::from_arg_matches(&matches)
    }

    /// Does what was asked for.
    pub fn run(self) -> anyhow::Result<Exit> {
        if self.bytes {
            Bytes::print_plain();
        }
        // A killed pagemill may have left settings changed.
        if self.verb.restores() {
            recover_settings(&pagemill_launch::context::machine());
        }
        self.verb.run(Self::command())
    }
}

/// Prints what clap has to say (an error, or the help that was asked for) and returns the exit code:
/// a wrapper's wrong usage is 125, since 2 may be its child's.
pub fn code_of_usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        eprint!("{}", error.render());
    } else {
        let text = error.render();
        pagemill_launch::stdio::help(&text.to_string(), &text.ansi().to_string());
    }
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let has = |word: &&str| words[1..].iter().any(|one| one == word);
    let wraps = |(verb, needs): &(&str, &[&str])| words[0] == *verb && needs.iter().all(has);
    let wraps = !words.is_empty() && WRAPPERS.iter().any(wraps);
    if !error.use_stderr() {
        return pagemill_launch::stdio::ended(ExitCode::SUCCESS);
    }
    let status = if wraps { 125 } else { 2 };
    answer::error(status, Some(&wrong_usage(&error.render().to_string())));
    ExitCode::from(status)
}

/// What clap says is wrong, a line, with what it may have meant.
fn wrong_usage(rendered: &str) -> String {
    let says = rendered.split("\n\nUsage:").next().unwrap_or_default();
    let says = says.split("\n\nFor more information").next().unwrap_or_default();
    let parts = says.trim_start_matches("error: ").split("\n\n");
    let line = |part: &str| part.split_whitespace().collect::<Vec<_>>().join(" ");
    parts.map(line).collect::<Vec<_>>().join("; ")
}

/// Restores the settings that a killed pagemill left changed. Every verb but those that say so does this first.
fn recover_settings(linux: &Linux) {
    match daemon::restore(linux) {
        Ok(restored) => {
            for what in restored {
                notice!("restored {what}, which a killed pagemill had left changed");
            }
        }
        // It is for who may to restore it.
        Err(error) if error.kind() == Kind::Permission => {}
        Err(error) => notice!("{error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_fits_a_narrow_terminal() {
        let mut command = Cli::sized(Some(60));
        let help = command.render_help().to_string();
        let wide = help.lines().filter(|line| line.len() > 60).collect::<Vec<_>>();
        assert!(wide.is_empty(), "{wide:?}");
        for verb in command.get_subcommands_mut() {
            let help = verb.render_long_help().to_string();
            // A word may be longer, and what options take stands in one line.
            let prose = |line: &&str| !line.trim_start().starts_with('-') && line.contains(". ");
            let wide = help.lines().filter(prose).find(|line| line.chars().count() > 60);
            assert_eq!(wide, None, "{}", verb.get_name());
        }
    }

    #[test]
    fn every_verb_stands_in_one_group_of_the_help() {
        let mut command = grouped(Cli::command(), WIDEST);
        let mut verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let mut listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        verbs.sort_unstable();
        listed.push("help");
        listed.sort_unstable();
        assert_eq!(verbs, listed);
        let help = command.render_help().to_string();
        let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("no {text:?} in {help}"));
        assert!(
            at("See:\n  doctor") < at("Score:\n  advise") && at("Steer:") < at("Research:"),
            "{help}"
        );
        assert!(
            help.contains("--bytes") && help.contains("\n  run        Run a program"),
            "{help}"
        );
    }
}
