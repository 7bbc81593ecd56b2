//! A command's output while something else has the terminal: kept in a file without a name, and printed when the
//! terminal is free.
//!
//! Always true: what is printed is the program's own bytes, in the order in which it wrote them.

use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::stdio;

/// What a command printed to the terminal while the screen was shown.
#[derive(Debug)]
pub struct RedirectedOutput {
    /// Where it is, and how much of it was printed.
    file: Option<(File, u64)>,
    terminal: Option<File>,
}

impl RedirectedOutput {
    /// Sends those of the command's streams that are the terminal elsewhere.
    ///
    /// # Errors
    /// No file can be made to keep the output in.
    pub fn redirect(command: &mut Command) -> Result<Self> {
        if std::io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        let (out, err) = (stdio::terminal().is_some(), std::io::stderr().is_terminal());
        if !out && !err {
            return Ok(Self { file: None, terminal: None });
        }
        let place = std::env::temp_dir();
        let file = tempfile::tempfile_in(&place).with_context(|| no_room(&place))?;
        // Each has a place in the file of its own otherwise.
        let end = || appending(&file).with_context(|| no_room(&place));
        if out {
            command.stdout(end()?);
        }
        if err {
            command.stderr(end()?);
        }
        Ok(Self { file: Some((file, 0)), terminal: stdio::terminal_file() })
    }

    /// Prints what is new. It is the program's own output, which goes to the terminal as it is.
    pub fn print(&mut self) {
        let (Some((file, printed)), Some(terminal)) = (&mut self.file, &mut self.terminal) else {
            return;
        };
        let mut buffer = [0; 1 << 16];
        // A terminal that is gone has nobody to be told.
        while file.seek(SeekFrom::Start(*printed)).is_ok()
            && let Ok(read @ 1..) = file.read(&mut buffer)
            && terminal.write_all(&buffer[..read]).is_ok()
        {
            *printed += read as u64;
        }
    }
}

/// The file, opened so that whoever writes to it writes at its end.
fn appending(file: &File) -> std::io::Result<File> {
    use std::os::fd::AsRawFd as _;
    File::options().append(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn no_room(place: &Path) -> String {
    format!("cannot keep the program's output in {} (set TMPDIR, or redirect it)", place.display())
}
