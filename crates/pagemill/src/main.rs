//! The pagemill binary: verbs, reports, progress and exit codes. Only this crate knows flags,
//! colours and HTML.
#![forbid(unsafe_code)]

// Before all others: they print by its macros.
#[macro_use]
mod talk;

mod answer;
mod capability;
mod cli;
mod context;
mod costs;
mod decisions;
mod exit;
mod experiments;
mod files;
mod fragmentation;
mod free_memory;
mod governor;
mod heap_words;
mod huge;
mod input;
mod launch;
mod library;
mod parts;
mod plan;
mod program;
mod recorders;
mod report;
mod reproduce;
mod run_cost;
mod sampler;
mod stats_page;
mod summary;
mod symbols;
mod synthetic;
mod tier;
mod values;
mod verbs;

fn main() -> std::process::ExitCode {
    pagemill_kernel::signal::survive_file_size_limit();
    match cli::Cli::read() {
        Ok(cli) => talk::ended(exit::code_of(cli.run())),
        Err(error) => cli::code_of_usage(&error),
    }
}
