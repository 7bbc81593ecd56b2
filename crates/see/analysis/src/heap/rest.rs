//! Whether a process rests while its malloc keeps memory free, by its CPU time at each sample: only at rest can that
//! memory be given back without holding the program up (`run --trim`).
//!
//! A *window* reaches back from a sample to the last one that is [`LENGTH`] older or more.
//!
//! Always true: what a window tells of depends on its own samples and on the reading of malloc before its end only.

use std::collections::VecDeque;

use pagemill_model::{Bytes, Nanos};

/// A rest is no shorter. CPU time is told in ticks of 10 ms, and `run --trim` waits for as long.
const LENGTH: Nanos = Nanos(200_000_000);

/// Finds windows in which the process used little, sample by sample.
#[derive(Clone, Debug, Default)]
pub(super) struct RestFold {
    /// Samples from the begin of the window on: time, CPU time until then, ns.
    window: VecDeque<(Nanos, u64)>,
    /// Of each window, what malloc had said by its end that it keeps free in whole pages, and the part of a CPU that
    /// the process used.
    windows: Vec<(u64, f64)>,
}

impl RestFold {
    /// Takes in a sample; `kept`: what malloc last said that it keeps free in whole pages.
    pub(super) fn push(&mut self, time: Nanos, cpu: Option<Nanos>, kept: Option<Bytes>) {
        let Some(Nanos(cpu)) = cpu else { return };
        // Another program that the process executes goes on counting; a count that falls is another process's.
        if self.window.back().is_some_and(|(_, before)| cpu < *before) {
            self.window.clear();
        }
        self.window.push_back((time, cpu));
        while self.window.get(1).is_some_and(|(next, _)| time.since(*next) >= LENGTH) {
            self.window.pop_front();
        }
        let Some((begin, before)) = self.window.front().copied() else { return };
        let span = time.since(begin);
        if let (Some(Bytes(kept)), true) = (kept, span >= LENGTH) {
            self.windows.push((kept, (cpu - before) as f64 / span.0 as f64));
        }
    }

    /// The least part of a CPU that was used in a window while malloc kept `kept` or more; none without such a window.
    pub(super) fn least_use(&self, kept: Bytes) -> Option<f64> {
        let windows = self.windows.iter().filter(|window| window.0 >= kept.0);
        windows.map(|window| window.1).reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Samples each 100 ms: milliseconds of CPU time since the one before, what malloc keeps.
    fn fold(samples: &[(u64, Option<u64>)]) -> RestFold {
        let (mut fold, mut cpu) = (RestFold::default(), 0);
        for (number, (more, kept)) in samples.iter().enumerate() {
            cpu += more * MS;
            fold.push(Nanos(number as u64 * 100 * MS), Some(Nanos(cpu)), kept.map(Bytes));
        }
        fold
    }

    #[test]
    fn a_rest_counts_while_malloc_keeps_memory_and_not_before() {
        let busy = [(0, Some(9)), (10, Some(9)), (10, Some(9)), (10, Some(9))];
        assert_eq!(fold(&busy).least_use(Bytes(9)), Some(0.1));
        assert_eq!(fold(&busy).least_use(Bytes(10)), None);
        // It waited for its input before it had anything.
        let waited = [(0, None), (0, Some(0)), (0, Some(0)), (100, Some(9)), (100, Some(9))];
        assert_eq!(fold(&waited).least_use(Bytes(1)), Some(0.5), "half of that window is waiting");
        let rested = [(0, Some(9)), (100, Some(9)), (0, Some(9)), (0, Some(9)), (100, Some(9))];
        assert_eq!(fold(&rested).least_use(Bytes(9)), Some(0.0));
        assert_eq!(fold(&rested[..3]).least_use(Bytes(9)), Some(0.5), "too short a rest");
        assert_eq!(RestFold::default().least_use(Bytes(0)), None);
    }

    #[test]
    fn far_samples_make_windows_of_their_own_length() {
        let mut fold = RestFold::default();
        for second in 0..4 {
            let cpu = Nanos(if second < 2 { 0 } else { second * 500 * MS });
            fold.push(Nanos(second * 1000 * MS), Some(cpu), Some(Bytes(1)));
        }
        assert_eq!(fold.windows.iter().map(|window| window.1).collect::<Vec<_>>(), [0.0, 1.0, 0.5]);
    }
}
