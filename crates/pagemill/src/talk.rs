//! Printing that a reader may end: `println!`, `print!`, `eprintln!` and `eprint!` for this crate.
//!
//! Those of the standard library panic when nobody reads any more (`pagemill doctor | head -1`,
//! `pagemill reproduce 2>&1 | head`), and a panic ends this program at once: scratch directories stay,
//! borrowed settings are not given back. A reader who has seen enough is no failure, so what cannot be
//! written is dropped, and the work is finished. What a full disk did not take is dropped, too, but [`ended`] says so.

/// Writes the text to the stream in one call, if somebody reads it.
macro_rules! say {
    ($stream:ident, $text:expr) => {{
        let written = ::std::io::Write::write_all(&mut ::std::io::$stream(), $text.as_bytes());
        $crate::talk::note(stringify!($stream), written);
    }};
}

macro_rules! println {
    ($($words:tt)*) => { say!(stdout, ::std::format!("{}\n", ::std::format_args!($($words)*))) };
}

macro_rules! print {
    ($($words:tt)*) => { say!(stdout, ::std::format!($($words)*)) };
}

macro_rules! eprintln {
    ($($words:tt)*) => { say!(stderr, ::std::format!("{}\n", ::std::format_args!($($words)*))) };
}

macro_rules! eprint {
    ($($words:tt)*) => { say!(stderr, ::std::format!($($words)*)) };
}

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether something that was to be read later is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// Notes what became of a write to a stream.
pub fn note(stream: &str, outcome: std::io::Result<()>) {
    if outcome.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe) && stream == "stdout" {
        LOST.store(true, Ordering::Relaxed);
    }
}

/// The exit code of a verb that ended with `code`: an error where its output could not be written.
pub fn ended(code: ExitCode) -> ExitCode {
    note("stdout", std::io::stdout().flush());
    if code != ExitCode::SUCCESS || !LOST.load(Ordering::Relaxed) {
        return code;
    }
    eprintln!(
        "pagemill: standard output could not be written (is the disk full?): what it holds is not whole"
    );
    ExitCode::from(2)
}
