//! The pagemill binary: the command line, verbs and exit codes. Only this crate knows flags, prints answers and ends
//! the process.
#![forbid(unsafe_code)]

// Its macros print what a reader may end, and note what is lost.
#[macro_use]
extern crate pagemill_launch;

mod answer;
mod cli;
mod policies;
mod values;
mod verbs;

use pagemill_launch::exit;

#[global_allocator]
static MEMORY: pagemill_kernel::memory::exhausted::ExitWhenExhausted =
    pagemill_kernel::memory::exhausted::ExitWhenExhausted;

fn main() -> std::process::ExitCode {
    pagemill_kernel::process::signal::survive_file_size_limit();
    pagemill_kernel::process::stack::with_room(verb)
}

fn verb() -> std::process::ExitCode {
    match cli::Cli::read() {
        Ok(cli) => {
            let exit = exit::report(cli.run());
            answer::no_answer(exit);
            pagemill_launch::stdio::ended(exit::code_of(exit))
        }
        Err(error) => cli::code_of_usage(&error),
    }
}
