//! A histogram of how long single calls took, by powers of two of nanoseconds.
//!
//! A call that took long may have waited for a CPU rather than for the allocator. [`RunDelay`]
//! reads the time that this thread spent runnable but not running (`/proc/thread-self/schedstat`,
//! second field), so that this wait can be taken off a long call.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Buckets: bucket `i` counts durations in `[2^i, 2^(i+1))` ns, bucket 0 also those below 1 ns.
pub const BUCKETS: usize = 40;

/// The histogram.
#[derive(Clone, Debug)]
pub struct Pauses {
    counts: [u64; BUCKETS],
    longest: Duration,
    total: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], longest: Duration::ZERO, total: Duration::ZERO }
    }
}

impl Pauses {
    /// Counts one call.
    #[inline]
    pub fn record(&mut self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        let bucket = (63 - (nanos | 1).leading_zeros() as usize).min(BUCKETS - 1);
        self.counts[bucket] += 1;
        self.total += took;
        self.longest = self.longest.max(took);
    }

    /// Calls counted.
    pub fn calls(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest call.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Mean duration in nanoseconds; zero without calls.
    pub fn mean_nanos(&self) -> f64 {
        match self.calls() {
            0 => 0.0,
            calls => self.total.as_nanos() as f64 / calls as f64,
        }
    }

    /// Calls of at least `2^bucket` ns.
    pub fn at_least_bucket(&self, bucket: usize) -> u64 {
        self.counts[bucket.min(BUCKETS)..].iter().sum()
    }

    /// Upper edge in nanoseconds of the bucket in which the quantile `share` (0 to 1) lies.
    pub fn quantile_upper_nanos(&self, share: f64) -> u64 {
        let wanted = (self.calls() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return 2 << bucket;
            }
        }
        2 << (BUCKETS - 1)
    }
}

/// How long this thread has waited for a CPU. Reads allocate nothing.
#[derive(Debug)]
pub struct RunDelay(Option<File>);

impl RunDelay {
    /// Of the calling thread; reads zero for ever where the kernel keeps no such account.
    pub fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Wait since the thread began.
    pub fn read(&self) -> Duration {
        let mut buffer = [0_u8; 96];
        let nanos = self
            .0
            .as_ref()
            .and_then(|file| file.read_at(&mut buffer, 0).ok())
            .and_then(|length| std::str::from_utf8(&buffer[..length]).ok())
            .and_then(|text| text.split_ascii_whitespace().nth(1))
            .and_then(|field| field.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_their_power_of_two() {
        let mut pauses = Pauses::default();
        for nanos in [0, 1, 2, 3, 1023, 1024, 1_000_000] {
            pauses.record(Duration::from_nanos(nanos));
        }
        assert_eq!(pauses.calls(), 7);
        assert_eq!(pauses.longest(), Duration::from_millis(1));
        assert_eq!(pauses.at_least_bucket(10), 2);
        assert_eq!(pauses.at_least_bucket(1), 5);
        assert_eq!(pauses.quantile_upper_nanos(0.5), 4);
        assert_eq!(pauses.quantile_upper_nanos(1.0), 1 << 20);
    }

    #[test]
    fn the_run_delay_never_falls() {
        let delay = RunDelay::of_this_thread();
        let before = delay.read();
        std::thread::yield_now();
        assert!(delay.read() >= before);
    }
}
