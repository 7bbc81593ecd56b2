//! The pagemill binary: verbs, reports, progress and exit codes. Only this crate knows flags,
//! colours and HTML.
#![forbid(unsafe_code)]

mod capability;
mod cli;
mod exit;
mod governor;
mod library;
mod program;
mod stats_page;
mod verbs;

use clap::Parser;

fn main() -> std::process::ExitCode {
    exit::code_of(cli::Cli::parse().verb.run())
}
