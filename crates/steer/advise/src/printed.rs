//! What a command prints, read while it does: a digest of all of it, and its end.

use std::collections::VecDeque;
use std::io::Read;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use pagemill_kernel::process::thread;
use pagemill_model::digest::Digest;
use regex::bytes::Regex;

/// How much of what it prints is kept to look for the metric in.
const KEPT: usize = 1 << 20;

/// What a command prints, read while it does.
pub struct Printed {
    /// Digest of all of it.
    pub digest: u64,
    kept: Vec<u8>,
}

impl Printed {
    /// Reads a stream to its end, in a thread of its own.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn read(mut from: impl Read + Send + 'static) -> Result<Reading> {
        let reading = thread::start(move || {
            let (mut digest, mut kept) = (Digest::default(), VecDeque::new());
            let mut buffer = vec![0; 1 << 16];
            loop {
                match from.read(&mut buffer)? {
                    0 => break,
                    length => {
                        digest.take(&buffer[..length]);
                        kept.extend(&buffer[..length]);
                        let over = kept.len().saturating_sub(KEPT);
                        kept.drain(..over);
                    }
                }
            }
            Ok(Self { digest: digest.0, kept: kept.into() })
        });
        Ok(Reading(reading?))
    }

    /// The number that the metric's group last matched.
    pub fn last(&self, metric: &Regex) -> Option<f64> {
        let found = metric.captures_iter(&self.kept).last()?;
        let number = found.get(1).or_else(|| found.get(0))?;
        std::str::from_utf8(number.as_bytes()).ok()?.replace(',', "").parse().ok()
    }

    /// The last line that is not empty.
    pub fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.kept);
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        line.trim().chars().take(200).collect()
    }
}

/// A stream that is being read.
pub struct Reading(JoinHandle<std::io::Result<Printed>>);

impl Reading {
    /// What was read, when it has ended.
    ///
    /// # Errors
    /// The stream cannot be read.
    pub fn end(self) -> Result<Printed> {
        let read = self.0.join().map_err(|_| anyhow::anyhow!("the reader has failed"))?;
        read.context("cannot read what the command prints")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_that_the_metric_names_is_taken() {
        let text = b"requests per second: 1,200.5 now\nrequests per second: 99\nand no more\n\n";
        let printed = Printed::read(&text[..]).unwrap().end().unwrap();
        let metric = |text| Regex::new(text).unwrap();
        assert_eq!(printed.last(&metric("per second: ([0-9.,]+)")), Some(99.0));
        assert_eq!(printed.last(&metric("[0-9,.]+ now")), None, "that is no number");
        assert_eq!(printed.last(&metric("([0-9,.]+) now")), Some(1200.5));
        assert_eq!(printed.last(&metric("latency: ([0-9]+)")), None);
        assert_eq!(printed.last_line(), "and no more");
    }

    #[test]
    fn what_is_long_is_digested_whole_and_its_end_kept() {
        let long = vec![7_u8; KEPT + 5];
        let read =
            |bytes: Vec<u8>| Printed::read(std::io::Cursor::new(bytes)).unwrap().end().unwrap();
        let mut other = long.clone();
        other[0] = 8;
        let (one, two) = (read(long.clone()), read(other));
        assert_ne!(one.digest, two.digest);
        assert_eq!(one.kept.len(), KEPT);
        assert_eq!(read(long).digest, one.digest);
    }
}
