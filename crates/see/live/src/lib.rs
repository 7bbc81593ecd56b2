//! One screen that shows a program's memory while it runs: where it is and when it was touched last, why it does not
//! fall, which page faults are long and why, how fragmented the machine is, what a tiering daemon does.
//!
//! ```text
//!  a process, by recorders ──┐
//!  a command, by recorders ──┼─► Feed: events ─► State (folds, bounded) ─► draw: lines ─► terminal, or text once
//!  a recording, as it grows ─┘
//! ```
//!
//! Always true: the state is of bounded size however long the program runs; what is drawn is a function of state, size
//! and theme; the process that is looked at is never stopped, signalled or written to, and goes on when the view ends;
//! the terminal is left as it was found, also after a panic or an error.
#![forbid(unsafe_code)]

pub mod draw;
pub mod feed;
pub mod json;
pub mod state;
pub mod terminal;
