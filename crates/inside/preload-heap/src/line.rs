//! Text without an allocator.

use core::fmt::{self, Write};

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

    /// Ends it, at the cost of its last byte if it is full.
    pub(crate) fn end(&mut self) {
        self.len = self.len.min(self.bytes.len() - 1);
        // There is room for one byte.
        let _ = self.write_str("\n");
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
