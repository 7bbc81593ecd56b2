//! A core that reads consecutive lines, with the hardware that fetches ahead of it.
//!
//! Terms: a *fill buffer* holds an L1 miss until its line comes; the *streamer* of the L2 cache fetches the
//! lines that follow each request, up to a distance, within the request's 4 KiB page (Intel Optimization
//! Reference Manual, data prefetching). It "adjusts dynamically to the number of outstanding requests per core": with
//! many it goes less far ahead. The manual gives no law; here the distance shrinks in proportion to how full the
//! *superqueue* is, which holds all that the L2 cache has outstanding. A line is *demanded* once a fill buffer waits
//! for it. The *window* is what the reorder buffer holds; lines leave it in order.
//!
//! Algorithm: the core demands the next line whenever a fill buffer is free and the window has room. Each demand lets
//! the streamer fetch up to [`PER_REQUEST`] more lines. A demanded line that has been fetched comes from the L2 cache,
//! one that is on its way is waited for, any other is read from memory.
//!
//! Always so: no more demanded lines than fill buffers; the streamer is never further ahead than its distance
//! and never leaves the page of the last demand.

/// Lines fetched for one request ("one or two prefetches").
pub const PER_REQUEST: u64 = 2;
/// Lines of a 4 KiB page.
const PAGE: u64 = 64;
/// Lines remembered: more than can be on their way.
const RING: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away,
    Fetching,
    Fetched,
    Demanded,
    Nearing,
    Done,
}

/// What the core asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRequest {
    /// This line from memory.
    Read {
        /// The line.
        line: u64,
        /// Whether the streamer asks, so that no fill buffer waits.
        ahead: bool,
    },
    /// This fetched line from the L2 cache.
    Near {
        /// The line.
        line: u64,
    },
}

/// The state of one such core.
#[derive(Clone, Debug)]
pub struct Stream {
    lines: Box<[State; RING]>,
    oldest: u64,
    next: u64,
    ahead: u64,
    window: u64,
    buffers: usize,
    busy: usize,
    away: u64,
    /// How far the streamer runs ahead, by what is outstanding; nothing beyond a full superqueue.
    reach: Vec<u64>,
}

impl Stream {
    /// A core at `line` with this window and this many fill buffers, whose streamer runs this many lines ahead while
    /// nothing else is outstanding in a superqueue of `queue` entries.
    #[must_use]
    pub fn new(line: u64, window: usize, buffers: usize, distance: usize, queue: usize) -> Self {
        let half = RING as u64 / 2;
        let (distance, queue) = ((distance as u64).min(half - 1), (queue as u64).max(1));
        Self {
            lines: Box::new([State::Away; RING]),
            oldest: line,
            next: line,
            ahead: line,
            window: (window as u64).clamp(1, half - 1),
            buffers: buffers.max(1),
            busy: 0,
            away: 0,
            reach: (0..=queue).map(|away| distance * (queue - away) / queue).collect(),
        }
    }

    fn state(&mut self, line: u64) -> &mut State {
        &mut self.lines[line as usize % RING]
    }

    /// Fills the free buffers; appends what is asked for.
    pub fn demand(&mut self, asked: &mut Vec<MemoryRequest>) {
        while self.busy < self.buffers && self.next < self.oldest + self.window {
            let line = self.next;
            self.next += 1;
            self.busy += 1;
            match *self.state(line) {
                State::Away => {
                    asked.push(MemoryRequest::Read { line, ahead: false });
                    self.away += 1;
                    *self.state(line) = State::Demanded;
                }
                State::Fetching => *self.state(line) = State::Demanded,
                State::Fetched => {
                    asked.push(MemoryRequest::Near { line });
                    *self.state(line) = State::Nearing;
                }
                // Lines between `oldest` and `oldest + window + distance` have a place each, for that is below `RING`.
                State::Demanded | State::Nearing | State::Done => {}
            }
            self.ahead = self.ahead.max(line + 1);
            let end = (line / PAGE + 1) * PAGE;
            for _ in 0..PER_REQUEST {
                let reach = self.reach.get(self.away as usize).copied().unwrap_or(0);
                if self.ahead < end && self.ahead <= line + reach {
                    let line = self.ahead;
                    *self.state(line) = State::Fetching;
                    asked.push(MemoryRequest::Read { line, ahead: true });
                    self.ahead += 1;
                    self.away += 1;
                }
            }
        }
    }

    /// A line has come; true if a fill buffer waited for it.
    pub fn came(&mut self, line: u64) -> bool {
        let state = *self.state(line);
        self.away -= u64::from(state != State::Nearing);
        if !matches!(state, State::Demanded | State::Nearing) {
            *self.state(line) = State::Fetched;
            return false;
        }
        *self.state(line) = State::Done;
        self.busy -= 1;
        while *self.state(self.oldest) == State::Done {
            *self.state(self.oldest) = State::Away;
            self.oldest += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_distance_and_page_bound_what_is_on_its_way(
            buffers in 1_usize..16, distance in 0_usize..32, picks in prop::collection::vec(any::<u16>(), 1..400),
        ) {
            let mut stream = Stream::new(7, 70, buffers, distance, 48);
            let (mut away, mut asked) = (Vec::new(), Vec::new());
            let mut seen = std::collections::HashSet::new();
            for pick in picks {
                asked.clear();
                stream.demand(&mut asked);
                prop_assert!(stream.away <= 48 + 16);
                prop_assert!(stream.busy <= buffers && stream.next <= stream.oldest + 70);
                prop_assert!(!away.is_empty() || !asked.is_empty(), "nothing on its way");
                for ask in &asked {
                    match *ask {
                        MemoryRequest::Read { line, ahead } => {
                            prop_assert!(seen.insert(line), "{line} asked for twice");
                            if ahead {
                                prop_assert!(line < stream.next + distance as u64);
                                prop_assert!(line / PAGE <= (stream.next - 1) / PAGE);
                            }
                            away.push(line);
                        }
                        MemoryRequest::Near { line } => away.push(line),
                    }
                }
                let line = away.swap_remove(pick as usize % away.len());
                stream.came(line);
            }
        }
    }
}
