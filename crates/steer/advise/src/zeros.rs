//! What of huge pages holds only zeros, by some of them, read from outside.

use pagemill_kernel::memory::huge_pages_of::Pages;
use pagemill_kernel::{Linux, page_size};
use pagemill_model::page::HUGE;
use pagemill_model::{Bytes, PageRange, Pid};

/// Huge pages that are read, at most.
const SAMPLED: usize = 64;

/// Bytes of zeros in some of the huge pages of a process, and how many of these were read.
#[derive(Clone, Copy, Debug)]
pub struct ZeroSample {
    bytes: u64,
    read: u64,
}

impl ZeroSample {
    /// None without any huge page. What is read counts as accessed.
    pub fn of(linux: &Linux, pid: Pid) -> Option<Self> {
        let pages = Pages::of(linux, pid).ok()?;
        let mut starts = Vec::new();
        for entry in linux.smaps(pid).ok()? {
            if entry.usage.anon_huge_pages.unwrap_or(0) == 0 {
                continue;
            }
            let runs = pages.runs(PageRange::new(entry.mapping.start..entry.mapping.end)).ok()?;
            for run in runs.into_iter().filter(|run| run.huge) {
                starts.extend((run.start..run.end).step_by(HUGE as usize));
            }
        }
        let step = starts.len().div_ceil(SAMPLED).max(1);
        let mut sample = Self { bytes: 0, read: 0 };
        for start in starts.into_iter().step_by(step) {
            // One that goes meanwhile is not read.
            let Ok(found) = pages.zeros(PageRange::of_huge(start)) else { continue };
            sample.bytes += found * page_size() as u64;
            sample.read += 1;
        }
        (sample.read > 0).then_some(sample)
    }

    /// Of so many bytes on huge pages those that are zeros, if all are like those that were read.
    pub fn bloat(self, huge: u64) -> u64 {
        (huge as f64 * self.bytes as f64 / (self.read * HUGE) as f64) as u64
    }

    /// In a sentence.
    pub fn note(self, huge: u64) -> String {
        format!(
            "about {} of its huge pages hold only zeros ({} of them were read)",
            Bytes(self.bloat(huge)).plain(),
            self.read
        )
    }
}
