//! Printing that a reader may end: `println!`, `print!`, `eprintln!` and `eprint!` for this crate.
//!
//! Those of the standard library panic when nobody reads any more (`pagemill doctor | head -1`,
//! `pagemill reproduce 2>&1 | head`), and a panic ends this program at once: scratch directories stay,
//! borrowed settings are not given back. A reader who has seen enough is no failure, so what cannot be
//! written is dropped, and the work is finished. What a full disk did not take is dropped, too, but [`ended`] says so.
//!
//! Always true: nothing else writes to standard output (`clippy.toml` forbids it), so no loss is overlooked; and text
//! of others reaches no terminal as it is ([`printable`]).

/// Writes the text to the stream in one call, if somebody reads it.
#[doc(hidden)]
#[macro_export]
macro_rules! __say {
    ($stream:ident, $text:expr) => {
        $crate::stdio::$stream(&$text)
    };
}

/// As that of the standard library, to [`stdout`](crate::stdio::stdout).
#[macro_export]
macro_rules! println {
    ($($words:tt)*) => { $crate::__say!(stdout, ::std::format!("{}\n", ::std::format_args!($($words)*))) };
}

/// As that of the standard library, to [`stdout`](crate::stdio::stdout).
#[macro_export]
macro_rules! print {
    ($($words:tt)*) => { $crate::__say!(stdout, ::std::format!($($words)*)) };
}

/// As that of the standard library, to [`stderr`](crate::stdio::stderr).
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::__say!(stderr, ::std::format!("{}\n", ::std::format_args!($($words)*))) };
}

/// As that of the standard library, to [`stderr`](crate::stdio::stderr).
#[macro_export]
macro_rules! eprint {
    ($($words:tt)*) => { $crate::__say!(stderr, ::std::format!($($words)*)) };
}

/// A line that says how far a long piece of work is: the next one takes its place, and [`erase`](crate::stdio::erase)
/// ends it.
#[macro_export]
macro_rules! progress {
    ($($words:tt)*) => { $crate::stdio::progress(&::std::format!($($words)*)) };
}

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether something that was to be read later is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// The control sequences that we send ourselves.
const LINE: &str = "\r\x1b[K";
const SCREEN: &str = "\x1b[H\x1b[2J";

/// The text with what could steer a terminal spelled out, as JSON has it (`\u001b`): names of processes, files and
/// symbols are other people's. New lines and tabs stay. Changes of direction of writing (Unicode's bidi controls) are
/// spelled out, too, for what is read would not be what is there.
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if steers(c) {
            // A string takes all that is written to it.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that writes to it, and looks at what became of it"
)]
fn standard_output() -> io::Stdout {
    io::stdout()
}

/// Writes text to standard output.
pub fn stdout(text: &str) {
    note(standard_output().write_all(printable(text).as_bytes()));
}

/// Writes text to standard error. Where nobody can be told, nobody is.
pub fn stderr(text: &str) {
    let _ = io::stderr().write_all(printable(text).as_bytes());
}

/// See `progress!`.
pub fn progress(text: &str) {
    let _ = io::stderr().write_all(format!("{LINE}{}", printable(text)).as_bytes());
}

/// Takes the line of [`progress`] away.
pub fn erase() {
    let _ = io::stderr().write_all(LINE.as_bytes());
}

/// One of several looks at something that changes; on a terminal it takes the place of the one before if `clears`.
/// `false`: nobody reads any more.
pub fn frame(text: &str, clears: bool) -> bool {
    let mut out = standard_output().lock();
    let before = if clears && out.is_terminal() { SCREEN } else { "" };
    let written = out.write_all(format!("{before}{}", printable(text)).as_bytes());
    let outcome = written.and_then(|()| out.flush());
    let read = outcome.is_ok();
    note(outcome);
    read
}

/// Whether standard output is a terminal, and then its width, if that is known.
pub fn terminal() -> Option<Option<u16>> {
    let out = standard_output();
    out.is_terminal().then(|| Some(terminal_size::terminal_size_of(&out)?.0.0))
}

/// Whether what was said is of a part of what there was.
static PARTIAL: AtomicBool = AtomicBool::new(false);

/// What is said is not of the whole: the verb ends with an error, whatever it found.
pub fn is_partial() {
    PARTIAL.store(true, Ordering::Relaxed);
}

/// Notes what became of a write to standard output.
pub fn note(outcome: io::Result<()>) {
    if outcome.is_err_and(|error| error.kind() != ErrorKind::BrokenPipe) {
        LOST.store(true, Ordering::Relaxed);
    }
}

/// The exit code of a verb that ended with `code`: an error where its output could not be written.
pub fn ended(code: ExitCode) -> ExitCode {
    note(standard_output().flush());
    let (lost, partial) = (LOST.load(Ordering::Relaxed), PARTIAL.load(Ordering::Relaxed));
    if lost {
        eprintln!(
            "pagemill: standard output could not be written (is the disk full?): what it holds is not whole"
        );
    }
    if !lost && !partial {
        return code;
    }
    // What a wrapper's program said, or an error, is more than that.
    if code == ExitCode::SUCCESS || code == ExitCode::from(1) { ExitCode::from(2) } else { code }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_could_steer_a_terminal_is_spelled_out() {
        assert_eq!(printable("a\tb\n"), "a\tb\n");
        assert_eq!(printable("\x1b]0;owned\x07"), "\\u001b]0;owned\\u0007");
        assert_eq!(printable("\r\u{9b}2J\u{202e}x\x7f"), "\\u000d\\u009b2J\\u202ex\\u007f");
    }

    proptest! {
        #[test]
        fn nothing_printable_changes_and_json_stays_what_it_says(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            let printed = printable(&json).into_owned();
            prop_assert_eq!(serde_json::from_str::<String>(&printed).unwrap(), text);
            prop_assert!(printed.chars().all(|c| !c.is_control()));
        }
    }
}
