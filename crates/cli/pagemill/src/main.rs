//! The pagemill binary: verbs, reports, progress and exit codes. Only this crate knows flags,
//! colours and HTML.
#![forbid(unsafe_code)]

// Its macros print what a reader may end, and note what is lost.
#[macro_use]
extern crate pagemill_launch;

mod answer;
mod cli;
mod values;
mod verbs;

fn main() -> std::process::ExitCode {
    pagemill_kernel::signal::survive_file_size_limit();
    match cli::Cli::read() {
        Ok(cli) => pagemill_launch::stdio::ended(pagemill_launch::exit::code_of(cli.run())),
        Err(error) => cli::code_of_usage(&error),
    }
}
