//! Printing that a reader may end: `println!`, `print!`, `eprintln!` and `eprint!` for this crate.
//!
//! Those of the standard library panic when nobody reads any more (`pagemill doctor | head -1`,
//! `pagemill reproduce 2>&1 | head`), and a panic ends this program at once: scratch directories stay,
//! borrowed settings are not given back. A reader who has seen enough is no failure, so what cannot be
//! written is dropped, and the work is finished.

/// Writes the text to the stream in one call, if somebody reads it.
macro_rules! say {
    ($stream:ident, $text:expr) => {{
        let _ = ::std::io::Write::write_all(&mut ::std::io::$stream(), $text.as_bytes());
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
