//! What the library says: one line on standard error, once a reason, only when it does less than
//! asked or the program misuses the heap. Nothing on success.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::{start, sys};

/// A line on the stack; what does not fit is cut off.
pub(crate) struct Line {
    bytes: [u8; 320],
    len: usize,
}

impl Line {
    /// An empty line.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 320], len: 0 }
    }

    /// What was written so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.len;
        let taken = text.len().min(room);
        self.bytes[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

/// Writes `pagemill: ` and the text as one line to standard error.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    // Writing to a Line cannot fail.
    let _ = write!(line, "pagemill: {text}");
    line.len = line.len.min(line.bytes.len() - 1);
    let _ = line.write_str("\n");
    sys::write(2, line.bytes());
}

/// Reasons said so far, as bits of [`pagemill_heap::stats::degraded`].
static SAID: AtomicU64 = AtomicU64::new(0);

/// Notes a degradation in the statistics and says it, unless it was said before or the user asked
/// for silence (`PAGEMILL_QUIET=1`).
pub(crate) fn degraded(reason: u64, text: fmt::Arguments<'_>) {
    crate::pagemill_stats.degraded.fetch_or(reason, Ordering::Relaxed);
    if SAID.fetch_or(reason, Ordering::Relaxed) & reason == 0 && !start::settings().quiet {
        line(text);
    }
}
