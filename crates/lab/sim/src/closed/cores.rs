//! What cores do: issue, walk, wait for lines, retire, stream, copy.

use super::bench::{Bench, Flight, RequestKind};
use super::event::{of, what};
use super::group::{CoreKind, Walks};
use crate::stream::MemoryRequest;

/// The nearest whole number of one that is not negative, the greater of two: `f64::round`, without the call that it is
/// on processors whose least version has no instruction for it.
fn nearest(number: f64) -> u64 {
    let whole = number as u64;
    whole + u64::from(number - whole as f64 >= 0.5)
}

impl Bench<'_> {
    pub(super) fn issue(&mut self, core: u32, slot: u32, walks: &Walks) {
        if self.random.chance(walks.part) {
            if self.cores[core as usize].walks < self.walkers {
                self.walk(core, slot, walks);
            } else {
                self.cores[core as usize].waiting.push_back(slot);
            }
        } else {
            self.read(core, slot);
        }
    }

    fn walk(&mut self, core: u32, slot: u32, walks: &Walks) {
        self.cores[core as usize].walks += 1;
        if self.random.chance(walks.miss) {
            let tier = usize::from(!self.random.chance(walks.default_share));
            self.send(core, slot, tier, RequestKind::Walk, None);
        } else {
            let end = self.wheel.now() + self.cores[core as usize].pace.hit;
            self.wheel.push(end, of(what::WALKED, core, slot));
        }
    }

    pub(super) fn walked(&mut self, core: u32, slot: u32) {
        let state = &mut self.cores[core as usize];
        state.walks -= 1;
        if let Some(next) = state.waiting.pop_front()
            && let CoreKind::Window { walks, .. } = self.kind(core)
        {
            self.walk(core, next, walks);
        }
        self.read(core, slot);
    }

    fn read(&mut self, core: u32, slot: u32) {
        let &CoreKind::Window { lines, .. } = self.kind(core) else {
            return;
        };
        let tier = self.tier_of(core);
        if lines <= 1.0 {
            self.send(core, slot, tier, RequestKind::Read, None);
            return;
        }
        let more = u32::from(self.random.chance(lines.fract()));
        let count = lines as u32 + more;
        self.cores[core as usize].slots[slot as usize].left = count - 1;
        // Neighbours: on channels in turn, within a page.
        let first = self.random.bits() >> 8 & !7;
        for line in 0..count {
            self.send(core, slot, tier, RequestKind::Read, Some(first + u64::from(line)));
        }
    }

    pub(super) fn done(&mut self, id: u32) {
        let Flight { purpose, tier, core, slot, sent, line, .. } = self.flights[id as usize];
        self.free.push(id);
        if self.measuring && purpose != RequestKind::Ahead {
            self.reads[tier as usize] += 1;
            self.waited[tier as usize] += self.wheel.now() - sent;
        }
        let core = u32::from(core);
        if purpose == RequestKind::Walk {
            self.walked(core, slot);
            return;
        }
        match self.kind(core) {
            CoreKind::Copy { .. } => {
                self.send(core, 0, 1 - tier as usize, RequestKind::Write, Some(line));
            }
            CoreKind::Stream { .. } => self.came(core, line),
            &CoreKind::Window { mispredicted, .. } => {
                let left = &mut self.cores[core as usize].slots[slot as usize].left;
                if *left > 0 {
                    *left -= 1;
                    return;
                }
                self.count(core, None);
                self.retire(core, slot, mispredicted);
            }
        }
    }

    fn tier_of(&mut self, core: u32) -> usize {
        let share = self.cores[core as usize].default_share;
        usize::from(!(share >= 1.0 || self.random.chance(share)))
    }

    /// Counts an operation and sends back what it wrote.
    fn count(&mut self, core: u32, line: Option<u64>) {
        let state = &mut self.cores[core as usize];
        if self.measuring {
            self.ops[state.group] += 1;
        }
        let mut debt = state.debt + state.writes_per_read;
        while debt >= 1.0 {
            debt -= 1.0;
            let tier = self.tier_of(core);
            self.send(core, 0, tier, RequestKind::Write, line);
        }
        self.cores[core as usize].debt = debt;
    }

    /// The line that a slot of a stream core stands for: the low bits of a line that is not far from the core's.
    pub(super) fn near_line(&self, core: u32, slot: u32) -> u64 {
        let line = self.cores[core as usize].line;
        let near = line & !0xffff | u64::from(slot);
        if near + 0x8000 < line {
            near + 0x1_0000
        } else if near > line + 0x8000 {
            near - 0x1_0000
        } else {
            near
        }
    }

    pub(super) fn demand(&mut self, core: u32) {
        let mut asked = std::mem::take(&mut self.asked);
        asked.clear();
        let state = &mut self.cores[core as usize];
        if let Some(stream) = &mut state.stream {
            stream.demand(&mut asked);
        }
        let near = self.wheel.now() + state.pace.near;
        for ask in asked.drain(..) {
            match ask {
                MemoryRequest::Near { line } => {
                    self.wheel.push(near, of(what::NEAR, core, (line & 0xffff) as u32));
                }
                MemoryRequest::Read { line, ahead } => {
                    let purpose = if ahead { RequestKind::Ahead } else { RequestKind::Read };
                    let tier = self.tier_of(core);
                    self.send(core, 0, tier, purpose, Some(line));
                }
            }
        }
        self.asked = asked;
    }

    pub(super) fn came(&mut self, core: u32, line: u64) {
        let &CoreKind::Stream { lag, .. } = self.kind(core) else {
            return;
        };
        let state = &mut self.cores[core as usize];
        state.line = line;
        if let Some(stream) = &mut state.stream
            && stream.came(line)
        {
            self.count(core, Some(line.saturating_sub(lag)));
            self.demand(core);
        }
    }

    fn retire(&mut self, core: u32, slot: u32, mispredicted: f64) {
        let now = self.wheel.now() as f64;
        let state = &mut self.cores[core as usize];
        state.slots[slot as usize].finished = true;
        loop {
            let head = state.head;
            if !std::mem::take(&mut state.slots[head].finished) {
                return;
            }
            state.head = if head + 1 == state.slots.len() { 0 } else { head + 1 };
            let mut enter = state.front_free.max(now);
            if mispredicted > 0.0 && self.random.chance(mispredicted) {
                enter += state.pace.penalty;
            }
            state.front_free = enter + state.pace.front;
            self.wheel.push(nearest(enter + state.pace.issue), of(what::ISSUE, core, head as u32));
        }
    }

    pub(super) fn copy(&mut self, core: u32) {
        let &CoreKind::Copy { lines_per_ns } = self.kind(core) else {
            return;
        };
        if lines_per_ns <= 0.0 {
            return;
        }
        for tier in 0..2 {
            let line = self.cores[core as usize].line;
            self.cores[core as usize].line += 1;
            self.send(core, 0, tier, RequestKind::Ahead, Some(line));
        }
        let gap = 1.0 / lines_per_ns / self.clock;
        let next = self.wheel.now() + self.random.exponential(gap).ceil() as u64;
        self.wheel.push(next, of(what::COPY, core, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nearest_rounds_as_the_library_does(whole in 0_u64..1 << 52, part in 0.0_f64..1.0) {
            for number in [whole as f64 + part, whole as f64 + 0.5, part, 0.5_f64.next_down(), whole as f64] {
                prop_assert_eq!(nearest(number), number.round() as u64);
            }
        }
    }
}
