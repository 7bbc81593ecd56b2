//! What is seen of a command as it is: where its memory is, how it grows, what is cold.

use pagemill_control::run_memory::{self, Memory};
use pagemill_launch::allocator::Allocator;
use pagemill_model::Bytes;
use pagemill_record::malloc_free::MallocFree;
use serde_json::{Value, json};

use crate::estimate::Estimate;

/// Anonymous memory that a lever on huge pages or on malloc would not be noticed for, bytes.
const LITTLE: u64 = 4 << 20;
/// One byte of so many live ones may be a header, or rounding to a size class.
const ROUNDED: u64 = 5;

/// What was seen in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Its wall time.
    pub seconds: f64,
    /// CPU time in user mode, seconds.
    pub user: f64,
    /// CPU time in kernel mode, seconds.
    pub system: f64,
    /// Page faults.
    pub faults: u64,
    /// Memory at its highest.
    pub peak: Memory,
    /// Mean memory, bytes.
    pub mean: f64,
    /// All looks.
    pub looks: Vec<Memory>,
    /// What was not accessed in the last part of a run, if that was looked at.
    pub cold: Option<Cold>,
    /// Zeros in huge pages, if these were read, bytes.
    pub bloat: Option<u64>,
    /// Which malloc its largest process has, if that is known.
    pub allocator: Option<Allocator>,
    /// What that held free while the process rested, if it was asked.
    pub malloc: Option<MallocFree>,
    /// Whether it runs on: what its malloc holds free is what levers would find.
    pub lives: bool,
}

/// Memory that was not accessed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cold {
    /// How much, bytes.
    pub bytes: u64,
    /// For how long, seconds.
    pub seconds: f64,
    /// What it is at the least and at the most, bytes, where a sample was looked at.
    pub range: Option<Bounds>,
}

/// What a number of bytes lies between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The least.
    pub low: u64,
    /// The most.
    pub high: u64,
}

impl Seen {
    /// Of looks at a run.
    pub fn of(looks: Vec<Memory>) -> Self {
        let peak = looks.iter().max_by_key(|look| look.bytes).copied().unwrap_or_default();
        let mean = run_memory::mean(&looks).unwrap_or(0.0);
        Self { peak, mean, looks, ..Self::default() }
    }

    /// A part of its memory at its highest, as a share.
    pub fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.peak.bytes.max(1) as f64
    }

    /// The most that was on huge pages at a time.
    pub fn most_huge(&self) -> u64 {
        self.looks.iter().map(|look| look.huge).max().unwrap_or(0)
    }

    /// The share of its CPU time that the kernel took.
    pub fn system_share(&self) -> f64 {
        self.system / (self.user + self.system).max(1e-9)
    }

    /// What was seen, in lines; `what` ran for that time. `live`: live bytes, if a heap has told.
    pub fn text(&self, what: &str, live: Option<u64>) -> String {
        let Self { seconds: time, user, system, faults, peak, .. } = self;
        let mut parts = vec![format!("anonymous {}", bytes(peak.anonymous as f64))];
        let mut part = |name: &str, value: u64| {
            if value >= 64 << 10 {
                parts.push(format!("{name} {}", bytes(value as f64)));
            }
        };
        part("files", peak.file);
        part("shared", peak.shared);
        part("swap", peak.swap);
        part("on huge pages", self.most_huge());
        part("free to the kernel (MADV_FREE)", peak.lazy_free);
        part("page tables", peak.page_tables);
        let mut text = format!(
            "{what:<12}{}: {} user, {} system, {faults} page faults\nmemory      {} at its highest: {}",
            seconds(*time),
            seconds(*user),
            seconds(*system),
            bytes(peak.bytes as f64),
            parts.join(", ")
        );
        if let Some(live) = live {
            text.push_str(&format!(
                "\nlive data   {} at its fullest (pagemill's heap was asked, under which it ran too)",
                bytes(live as f64)
            ));
        }
        if let Some(malloc) = self.malloc {
            text.push_str(&format!(
                "\nfree        {} of the {} that {} holds, {} of that in whole pages that it could give back",
                bytes(malloc.free as f64),
                bytes(malloc.heap as f64),
                self.allocator.map_or("malloc", Allocator::name),
                bytes(malloc.returnable as f64)
            ));
        } else if let Some(allocator) = self.allocator.filter(|_| self.lives) {
            text.push_str(&format!(
                "\nfree        not known: {} did not tell what it keeps free",
                allocator.name()
            ));
        }
        if let Some(cold) = self.cold {
            let range = cold.range.map_or_else(String::new, |Bounds { low, high }| {
                format!(" ({} to {}, by a sample)", bytes(low as f64), bytes(high as f64))
            });
            text.push_str(&format!(
                "\nunused      {}{range} of it were not accessed in the last {}",
                bytes(cold.bytes as f64),
                seconds(cold.seconds)
            ));
        }
        text
    }

    /// What was seen, as JSON.
    pub fn json(&self, live: Option<u64>) -> Value {
        let Self { seconds, user, system, faults, peak, mean, cold, bloat, malloc, .. } = self;
        let allocator = self.allocator.map(Allocator::name);
        json!({
            "seconds": seconds,
            "user_seconds": user,
            "system_seconds": system,
            "page_faults": faults,
            "mean_bytes": mean,
            "peak_bytes": peak.bytes,
            "anonymous_bytes": peak.anonymous,
            "file_bytes": peak.file,
            "shared_bytes": peak.shared,
            "swap_bytes": peak.swap,
            "huge_bytes": self.most_huge(),
            "huge_zero_bytes": bloat,
            "page_table_bytes": peak.page_tables,
            "threads": peak.threads,
            "processes": peak.processes,
            "live_bytes": live,
            "lazy_free_bytes": peak.lazy_free,
            "allocator": allocator,
            "malloc_heap_bytes": malloc.map(|malloc| malloc.heap),
            "malloc_free_bytes": malloc.map(|malloc| malloc.free),
            "malloc_returnable_bytes": malloc.map(|malloc| malloc.returnable),
            "cold_bytes": cold.map(|cold| cold.bytes),
            "cold_low_bytes": cold.and_then(|cold| Some(cold.range?.low)),
            "cold_high_bytes": cold.and_then(|cold| Some(cold.range?.high)),
            "cold_seconds": cold.map(|cold| cold.seconds),
        })
    }

    /// What another malloc may bring.
    pub fn other_malloc(&self) -> Estimate {
        if self.peak.anonymous.saturating_add(self.peak.shared) < LITTLE {
            return Estimate::nothing("it has less than 4 MiB that malloc could hold");
        }
        let anonymous = self.peak.anonymous;
        if let Some(malloc) = self.malloc.filter(|malloc| self.lives && malloc.heap > 0) {
            let live = malloc.heap - malloc.free;
            let share = self.share(anonymous.saturating_sub(live - live / ROUNDED));
            let why = format!(
                "{} are live in its malloc: the rest, and a fifth of that for headers and rounding",
                bytes(live as f64)
            );
            return Estimate::up_to(share, 1.0, why);
        }
        let share = self.share(anonymous);
        Estimate::up_to(share, 1.0, "what malloc holds, live and free, is a part of this")
    }

    /// What a setting of this malloc may bring: nothing to a program that has another.
    pub fn only_with(&self, needed: Allocator, estimate: impl FnOnce() -> Estimate) -> Estimate {
        match self.allocator {
            Some(has) if has != needed => {
                Estimate::nothing(format!("its malloc is {}", has.name()))
            }
            None if needed != Allocator::Glibc => {
                Estimate::nothing("which malloc it has is not known")
            }
            _ => estimate(),
        }
    }

    /// What giving free pages back may bring; `why` where nobody knows how many there are.
    pub fn given_back(&self, why: &str) -> Estimate {
        match self.malloc.filter(|_| self.lives) {
            Some(malloc) => {
                let share = self.share(malloc.returnable);
                Estimate::up_to(share, 0.0, "whole pages that its malloc holds free")
            }
            None => Estimate::up_to(self.share(self.peak.anonymous), 0.0, why),
        }
    }

    /// What more huge pages may bring: no memory, and any part of its time, for nobody counts page walks here.
    pub fn more_huge_pages(&self) -> Estimate {
        let base = self.peak.anonymous.saturating_sub(self.most_huge());
        if base < LITTLE {
            return Estimate::nothing("it has less than 4 MiB on base pages that could be huge");
        }
        let share = self.share(base);
        Estimate::up_to(0.0, 1.0, format!("{:.0} % of its memory is on base pages", share * 100.0))
    }
}

/// Bytes in words.
pub(crate) fn bytes(value: f64) -> String {
    Bytes(value.max(0.0) as u64).to_string().trim().to_owned()
}

/// A time in words.
pub(crate) fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{:.1} ms", value * 1e3) } else { format!("{value:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(anonymous: u64, huge: u64) -> Seen {
        let look = Memory { bytes: anonymous + 100, anonymous, huge, ..Memory::default() };
        Seen::of(vec![Memory { bytes: 50, ..look }, look])
    }

    #[test]
    fn what_is_little_can_bring_nothing() {
        assert_eq!(seen(LITTLE - 1, 0).more_huge_pages().time, 0.0);
        assert_eq!(seen(LITTLE - 1, 0).other_malloc().memory, 0.0);
        assert!(seen(LITTLE * 2, 0).more_huge_pages().time > 0.0);
        assert_eq!(seen(LITTLE * 2, LITTLE + 1).more_huge_pages().time, 0.0);
        assert!(seen(LITTLE * 2, 0).other_malloc().memory > 0.9);
        assert_eq!(Seen::default().share(1), 1.0, "nothing seen is no division by zero");
    }
}
