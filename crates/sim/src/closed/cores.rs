//! What cores do: issue, walk, wait for lines, retire, stream, copy.

use super::{Bench, Kind, Purpose, Walks, of, what};
use crate::stream::Ask;

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
            self.send(core, slot, tier, Purpose::Walk, None);
        } else {
            let end = self.wheel.now() + self.clocks(walks.hit_ns);
            self.wheel.push(end, of(what::WALKED, core, slot));
        }
    }

    pub(super) fn walked(&mut self, core: u32, slot: u32) {
        self.cores[core as usize].walks -= 1;
        if let Some(next) = self.cores[core as usize].waiting.pop_front()
            && let Kind::Window { walks, .. } = self.kind(core)
        {
            self.walk(core, next, walks);
        }
        self.read(core, slot);
    }

    fn read(&mut self, core: u32, slot: u32) {
        let &Kind::Window { lines, .. } = self.kind(core) else {
            return;
        };
        let tier = self.tier_of(core);
        if lines <= 1.0 {
            self.send(core, slot, tier, Purpose::Read, None);
            return;
        }
        let more = u32::from(self.random.chance(lines.fract()));
        let count = lines as u32 + more;
        self.cores[core as usize].left[slot as usize] = count - 1;
        // Neighbours: on channels in turn, within a page.
        let first = self.random.bits() >> 8 & !7;
        for line in 0..count {
            self.send(core, slot, tier, Purpose::Read, Some(first + u64::from(line)));
        }
    }

    pub(super) fn done(&mut self, id: u32) {
        let flight = self.flights[id as usize];
        self.free.push(id);
        if self.measuring && flight.purpose != Purpose::Ahead {
            self.reads[flight.tier as usize] += 1;
            self.waited[flight.tier as usize] += self.wheel.now() - flight.sent;
        }
        if flight.purpose == Purpose::Walk {
            self.walked(flight.core, flight.slot);
            return;
        }
        match self.kind(flight.core) {
            Kind::Copy { .. } => {
                let line = Some(flight.line);
                self.send(flight.core, 0, 1 - flight.tier as usize, Purpose::Write, line);
            }
            Kind::Stream { .. } => self.came(flight.core, flight.line),
            kind @ Kind::Window { .. } => {
                let left = &mut self.cores[flight.core as usize].left[flight.slot as usize];
                if *left > 0 {
                    *left -= 1;
                    return;
                }
                self.count(flight.core, None);
                self.retire(flight.core, flight.slot, kind);
            }
        }
    }

    fn tier_of(&mut self, core: u32) -> usize {
        let share = self.groups[self.cores[core as usize].group].default_share;
        usize::from(!(share >= 1.0 || self.random.chance(share)))
    }

    /// Counts an operation and sends back what it wrote.
    fn count(&mut self, core: u32, line: Option<u64>) {
        let group = self.cores[core as usize].group;
        if self.measuring {
            self.ops[group] += 1;
        }
        self.cores[core as usize].debt += self.groups[group].writes_per_read;
        while self.cores[core as usize].debt >= 1.0 {
            self.cores[core as usize].debt -= 1.0;
            let tier = self.tier_of(core);
            self.send(core, 0, tier, Purpose::Write, line);
        }
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
        let &Kind::Stream { near_ns, .. } = self.kind(core) else {
            return;
        };
        let mut asked = std::mem::take(&mut self.asked);
        asked.clear();
        if let Some(stream) = &mut self.cores[core as usize].stream {
            stream.demand(&mut asked);
        }
        let near = self.wheel.now() + self.clocks(near_ns).max(1);
        for ask in asked.drain(..) {
            match ask {
                Ask::Near { line } => {
                    self.wheel.push(near, of(what::NEAR, core, (line & 0xffff) as u32));
                }
                Ask::Read { line, ahead } => {
                    let purpose = if ahead { Purpose::Ahead } else { Purpose::Read };
                    let tier = self.tier_of(core);
                    self.send(core, 0, tier, purpose, Some(line));
                }
            }
        }
        self.asked = asked;
    }

    pub(super) fn came(&mut self, core: u32, line: u64) {
        let &Kind::Stream { lag, .. } = self.kind(core) else {
            return;
        };
        self.cores[core as usize].line = line;
        if let Some(stream) = &mut self.cores[core as usize].stream
            && stream.came(line)
        {
            self.count(core, Some(line.saturating_sub(lag)));
            self.demand(core);
        }
    }

    fn retire(&mut self, core: u32, slot: u32, kind: &Kind) {
        let &Kind::Window { front_ns, issue_ns, mispredicted, penalty_ns, .. } = kind else {
            return;
        };
        let (clock, now) = (self.clock, self.wheel.now() as f64);
        self.cores[core as usize].finished[slot as usize] = true;
        loop {
            let state = &mut self.cores[core as usize];
            let head = state.head;
            if !state.finished[head] {
                return;
            }
            state.finished[head] = false;
            state.head = if head + 1 == state.slots { 0 } else { head + 1 };
            let mut enter = state.front_free.max(now);
            if mispredicted > 0.0 && self.random.chance(mispredicted) {
                enter += penalty_ns / clock;
            }
            self.cores[core as usize].front_free = enter + front_ns / clock;
            let issue = (enter + issue_ns / clock).round() as u64;
            self.wheel.push(issue, of(what::ISSUE, core, head as u32));
        }
    }

    pub(super) fn copy(&mut self, core: u32) {
        let &Kind::Copy { lines_per_ns } = self.kind(core) else {
            return;
        };
        if lines_per_ns <= 0.0 {
            return;
        }
        for tier in 0..2 {
            let line = self.cores[core as usize].line;
            self.cores[core as usize].line += 1;
            self.send(core, 0, tier, Purpose::Ahead, Some(line));
        }
        let gap = 1.0 / lines_per_ns / self.clock;
        let next = self.wheel.now() + self.random.exponential(gap).ceil() as u64;
        self.wheel.push(next, of(what::COPY, core, 0));
    }
}
