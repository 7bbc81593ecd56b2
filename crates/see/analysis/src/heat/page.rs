//! When a page of an object was used: as much as tells whether it rested for most of its life.
//!
//! A *rest* is the time from a touch to the next one. A page's life begins anew when it was given back to the system
//! and is touched again.
//!
//! There is one of these for each page, looked up with each access: with its key it fills a line of a processor's
//! cache. So what only rests are told by is kept in ticks of 65.5 us, rounded so that no rest is longer than it was.
//! They go to 78 hours; after those, pages do not rest.
//!
//! Always true: the rest that is kept is the longest of this life, and of those that are as long the latest, but for
//! the rounding.

use std::ops::Range;

/// Bits of a time in ns that are less than a tick.
const TICK: u32 = 16;
/// Never, as a number of ticks.
const NEVER: u32 = u32::MAX;

/// Ticks until a time, at the most.
fn ticks(time: u64) -> u32 {
    u32::try_from(time >> TICK).unwrap_or(NEVER).min(NEVER - 1)
}

/// Times are ns since the recording began, or ticks of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageUse {
    /// When it was touched last.
    pub(super) touched: u64,
    /// When it was written last; `u64::MAX` if it was not.
    written: u64,
    /// When it was touched for the first time in this life.
    first: u32,
    /// Its longest rest.
    rest: (u32, u32),
    /// When memory in it was given back last.
    freed: u32,
    /// Who touched it first.
    thread: u32,
    /// It was given back to the system.
    pub(super) gone: bool,
}

impl PageUse {
    /// A page that is about to be touched by this thread.
    pub(super) fn begin(thread: usize, time: u64) -> Self {
        Self {
            touched: time,
            written: u64::MAX,
            first: ticks(time),
            rest: (0, 0),
            freed: NEVER,
            thread: u32::try_from(thread).unwrap_or(u32::MAX),
            gone: false,
        }
    }

    /// It was touched not before `began`, as was seen at a `time`.
    pub(super) fn touch(&mut self, began: u64, time: u64, write: bool) {
        if self.gone {
            let first = ticks(time);
            (self.first, self.rest, self.freed, self.gone) = (first, (0, 0), NEVER, false);
        } else {
            let (from, to) = (ticks(self.touched.saturating_add((1 << TICK) - 1)), ticks(began));
            if from < to && to - from >= self.rest.1 - self.rest.0 {
                self.rest = (from, to);
            }
        }
        self.touched = self.touched.max(time);
        if write {
            self.written = self.written().map_or(time, |written| written.max(time));
        }
    }

    /// Memory in it was given back, or all of it to the system.
    pub(super) fn freed(&mut self, time: u64, gone: bool) {
        if !self.gone {
            (self.freed, self.gone) = (ticks(time), gone);
        }
    }

    pub(super) fn thread(&self) -> usize {
        self.thread as usize
    }

    /// When it was touched for the first time in this life.
    pub(super) fn first(&self) -> u64 {
        u64::from(self.first) << TICK
    }

    /// Its longest rest.
    pub(super) fn rest(&self) -> Range<u64> {
        u64::from(self.rest.0) << TICK..u64::from(self.rest.1) << TICK
    }

    /// When it was written last, if it was.
    pub(super) fn written(&self) -> Option<u64> {
        (self.written != u64::MAX).then_some(self.written)
    }

    /// When memory in it was given back last, if it was.
    pub(super) fn given_back(&self) -> Option<u64> {
        (self.freed != NEVER).then_some(u64::from(self.freed) << TICK)
    }
}
