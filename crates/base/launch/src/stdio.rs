//! Printing that a reader may end: `println!`, `print!`, `eprintln!`, `eprint!` and `notice!` for all crates.
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

/// A line about this work, such as `pagemill: nothing is recorded`, to [`stderr`](crate::stdio::stderr).
#[macro_export]
macro_rules! notice {
    ($($words:tt)*) => { $crate::__say!(stderr, ::std::format!("pagemill: {}\n", ::std::format_args!($($words)*))) };
}

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use unicode_width::UnicodeWidthStr as _;

/// Whether something that was to be read later is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// The control sequences that we send ourselves.
const SCREEN: &str = "\x1b[H\x1b[2J";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// Whether a character could steer a terminal, or changes the direction of writing (Unicode's bidi controls), for what
/// is read would not be what is there. New lines and tabs do neither.
pub fn steers(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with what [`steers`] spelled out, as JSON has it (`\u001b`): names of processes, files and symbols are
/// other people's.
pub fn printable(text: &str) -> Cow<'_, str> {
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
pub(crate) fn standard_output() -> io::Stdout {
    io::stdout()
}

/// Whether what is written is for programs, which count on its lines.
static VERBATIM: AtomicBool = AtomicBool::new(false);

/// What is written to standard output from here on is no text for people: it stays as it is on a terminal, too.
pub fn is_verbatim() {
    VERBATIM.store(true, Ordering::Relaxed);
}

/// Writes text to standard output. On a terminal its lines are as wide as it at the most.
pub fn stdout(text: &str) {
    note(standard_output().write_all(fitting(&printable(text)).as_bytes()));
}

/// The same, of what a reader must not pass over: red on a terminal, unless `NO_COLOR` is set (no-color.org).
pub fn alert(text: &str) {
    if !coloured() || text.is_empty() {
        return stdout(text);
    }
    let text = format!("{RED}{}{PLAIN}\n", fitting(&printable(text.trim_end())));
    note(standard_output().write_all(text.as_bytes()));
}

/// Whether what is printed may have colours.
fn coloured() -> bool {
    terminal().is_some() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes help to standard output, `styled` on a terminal; lines that are wider than it are broken, and plain.
pub fn help(plain: &str, styled: &str) {
    let shown = if coloured() { styled } else { plain };
    let lines = plain.lines().zip(shown.lines());
    let text = lines.map(|(plain, shown)| match fitting(plain) {
        Cow::Borrowed(_) => format!("{shown}\n"),
        Cow::Owned(broken) => format!("{broken}\n"),
    });
    note(standard_output().write_all(text.collect::<String>().as_bytes()));
}

fn fitting(text: &str) -> Cow<'_, str> {
    match terminal().flatten() {
        Some(width) if !VERBATIM.load(Ordering::Relaxed) => wrapped(text, width.into()),
        _ => Cow::Borrowed(text),
    }
}

/// The text with lines of at most so many columns, broken at spaces. What follows a line's label goes on below what
/// stood beside the label. A word that is longer stays whole, for who copies it.
pub fn wrapped(text: &str, width: usize) -> Cow<'_, str> {
    if text.lines().all(|line| line.width() <= width) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        let (mut rest, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let begins = rest.len() - rest.trim_start().len();
        let label = rest[begins..].find("  ").map(|at| begins + at);
        let beside =
            label.map_or(begins, |at| at + rest[at..].len() - rest[at..].trim_start().len());
        let indent = rest[..beside].width();
        let indent = if indent > width / 2 { begins.min(width / 2) } else { indent };
        let mut room = width;
        while rest.width() > room {
            let after_a_word = |at: &usize| !rest[..*at].trim().is_empty();
            let mut places = rest.match_indices(' ').map(|(at, _)| at).filter(after_a_word);
            let Some(first) = places.next() else { break };
            let at = places.take_while(|at| rest[..*at].width() <= room).last().unwrap_or(first);
            out.push_str(rest[..at].trim_end());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            rest = rest[at..].trim_start();
            room = width - indent;
        }
        out.push_str(rest);
        out.push_str(end);
    }
    Cow::Owned(out)
}

/// Writes text to standard error. Where nobody can be told, nobody is.
pub fn stderr(text: &str) {
    let _ = io::stderr().write_all(printable(text).as_bytes());
}

/// One of several looks at something that changes; on a terminal it takes the place of the one before if `clears`.
/// `false`: nobody reads any more.
pub fn frame(text: &str, clears: bool) -> bool {
    let mut out = standard_output().lock();
    let before = if clears && out.is_terminal() { SCREEN } else { "" };
    let written = out.write_all(format!("{before}{}", fitting(&printable(text))).as_bytes());
    let outcome = written.and_then(|()| out.flush());
    let read = outcome.is_ok();
    note(outcome);
    read
}

/// Whether standard output is a terminal, and then its width, if that is known.
pub fn terminal() -> Option<Option<u16>> {
    let out = standard_output();
    // `stty cols 60` where nobody has told the height leaves that 0.
    let width = || rustix::termios::tcgetwinsize(&out).ok().map(|size| size.ws_col);
    out.is_terminal().then(|| width().filter(|width| *width > 0))
}

/// The terminal, for who draws on it: standard output if that is one, else the one that this process was started from.
pub fn terminal_file() -> Option<File> {
    let out = standard_output();
    if out.is_terminal() {
        return out.as_fd().try_clone_to_owned().ok().map(File::from);
    }
    File::options().read(true).write(true).open("/dev/tty").ok()
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
        notice!(
            "standard output could not be written (is the disk full?): what it holds is not whole"
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

    #[test]
    fn long_lines_end_at_a_space_and_go_on_below_what_stood_beside_the_label() {
        let text = "length  one two three four\n\n  five six seven eight nine\nshort\n";
        let expected = "length  one two\n        three\n        four\n\n  five six seven\n  eight nine\nshort\n";
        assert_eq!(wrapped(text, 16), expected);
        assert_eq!(
            wrapped("see /a/path/that/nobody/breaks now", 12),
            "see\n/a/path/that/nobody/breaks\nnow"
        );
    }

    proptest! {
        #[test]
        fn wrapping_keeps_every_word_and_only_a_word_alone_is_too_long(
            text in "([a-zü…]{0,9}[ ]{1,3}){0,12}\n?([a-z]{1,30} ){0,9}\n?", width in 1..40_usize
        ) {
            let out = wrapped(&text, width).into_owned();
            prop_assert!(out.split_whitespace().eq(text.split_whitespace()));
            for line in out.lines().filter(|line| line.trim_end().width() > width) {
                prop_assert_eq!(line.split_whitespace().count(), 1, "{:?} of {:?}", line, &out);
            }
        }

        #[test]
        fn nothing_printable_changes_and_json_stays_what_it_says(text: String) {
            let json = serde_json::to_string(&text).unwrap();
            let printed = printable(&json).into_owned();
            prop_assert_eq!(serde_json::from_str::<String>(&printed).unwrap(), text);
            prop_assert!(printed.chars().all(|c| !c.is_control()));
        }
    }
}
