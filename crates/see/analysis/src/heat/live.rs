//! Bytes of allocations of a process that are live, over time.
//!
//! Always true: there are [`MOST`] points at most, in the order of time, each with what was live just before it.

use pagemill_model::{Bytes, Nanos};

/// Points at most; then every other is left out, and they lie twice as far apart.
const MOST: usize = 512;
/// How far apart points lie at first, ns.
const APART: u64 = 1_000_000;

/// What is live, the most that was, and when.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    pub(super) now: u64,
    pub(super) most: u64,
    pub(super) at: u64,
    points: Vec<(Nanos, Bytes)>,
    /// How often they were made rarer.
    halved: u32,
}

impl Live {
    /// So many bytes were freed and allocated, `since` ns after the recording began.
    pub(super) fn changed(&mut self, since: u64, freed: u64, allocated: u64) {
        let last = self.points.last().map_or(0, |point| point.0.0);
        if since.saturating_sub(last) >= APART << self.halved {
            self.points.push((Nanos(since), Bytes(self.now)));
        }
        if self.points.len() >= MOST {
            let mut number = 0;
            self.points.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.halved += 1;
        }
        self.now = self.now.saturating_sub(freed).saturating_add(allocated);
        if self.now > self.most {
            (self.most, self.at) = (self.now, since);
        }
    }

    /// Moments since the recording began.
    pub(super) fn points(&self) -> Vec<(Nanos, Bytes)> {
        self.points.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_few_and_tell_the_whole_time() {
        let mut live = Live::default();
        for ms in 0..20_000_u64 {
            live.changed(ms * 1_000_000, 0, 1000);
        }
        live.changed(20_000_000_000, 19_999_000, 0);
        let points = live.points();
        assert!((200..MOST).contains(&points.len()), "{}", points.len());
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(points.iter().all(|(at, bytes)| bytes.0 == at.0 / 1000), "{points:?}");
        assert_eq!((live.now, live.most, live.at), (1000, 20_000_000, 19_999_000_000));
    }
}
