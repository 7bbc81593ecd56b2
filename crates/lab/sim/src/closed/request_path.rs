//! The way of a request to memory and back: its channel, bank and row; the link; the channel's commits.

use super::bench::{Bench, Flight, RequestKind};
use super::event::what;
use crate::dram::{Next, Request};

impl Bench<'_> {
    /// Channel of a tier, bank and row of a line of a stream: consecutive lines go to the channels in turn, and in a
    /// channel to two bank groups in turn, whose rows they fill before the next bank comes (the order that Pessl et
    /// al., USENIX Security 2016, found on Intel's DDR4 controllers: bit 7 chooses the bank group, bits from 14 the
    /// bank).
    fn place(&self, tier: usize, line: u64) -> (usize, u64, u32) {
        let (range, split) = (&self.paths[tier].channels, &self.split);
        let (inside, _) = split.channels[tier].of(line);
        let (inside_pair, group) = split.pair.of(inside);
        let (visit, _) = split.row.of(inside_pair);
        // Rows are spread over the other banks by a hash, as the controller's exclusive ors do.
        let spread = visit.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (_, other) = split.others.of(spread);
        let (pair, inside_group) = split.banks.of(other);
        let bank = (pair * split.pair.by + group) * split.banks.by + inside_group;
        // A hash of the address decides where each run of channels begins, so that streams do not march in step.
        let begin = inside.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (_, channel) = split.channels[tier].of(line + begin);
        (range.start + channel as usize, bank, visit as u32)
    }

    /// Sends a request on its way to a channel of `tier`; without a line, to any bank and row.
    pub(super) fn send(
        &mut self,
        core: u32,
        slot: u32,
        tier: usize,
        purpose: RequestKind,
        line: Option<u64>,
    ) {
        let (channel, bank, row) = match line {
            Some(line) => self.place(tier, line),
            None => {
                let bits = self.random.bits();
                let range = &self.paths[tier].channels;
                let pick = |bits: u64, of: usize| ((bits & 0xffff) * of as u64) >> 16;
                let channel = range.start + pick(bits, range.len()) as usize;
                (channel, pick(bits >> 16, self.shape.all()), (bits >> 32) as u32)
            }
        };
        let now = self.wheel.now();
        let flight = Flight {
            purpose,
            tier: tier as u8,
            bank: bank as u16,
            core: core as u16,
            channel: channel as u16,
            slot,
            row,
            sent: now,
            line: line.unwrap_or(0),
        };
        let write = purpose == RequestKind::Write;
        if self.paths[tier].linked {
            let id = self.depart(flight);
            let time = self.cross(0, if write { self.data } else { self.control });
            if write {
                self.cross(1, self.control);
            }
            self.wheel.push(time, what::ARRIVE << 28 | id);
        } else {
            // Nobody asks what became of a write.
            let id = if write { 0 } else { self.depart(flight) };
            self.enter(id, &flight);
        }
    }

    /// Notes a request on its way; returns its name.
    fn depart(&mut self, flight: Flight) -> u32 {
        if let Some(id) = self.free.pop() {
            self.flights[id as usize] = flight;
            id
        } else {
            self.flights.push(flight);
            self.flights.len() as u32 - 1
        }
    }

    fn cross(&mut self, direction: usize, clocks: f64) -> u64 {
        let start = self.link[direction].max(self.wheel.now() as f64);
        self.link[direction] = start + clocks;
        self.link[direction] as u64
    }

    pub(super) fn arrive(&mut self, id: u32) {
        let flight = self.flights[id as usize];
        if flight.purpose == RequestKind::Write {
            self.free.push(id);
        }
        self.enter(id, &flight);
    }

    /// A request reaches its channel.
    fn enter(&mut self, id: u32, flight: &Flight) {
        let arrived = self.wheel.now();
        let request = Request { id, bank: flight.bank, row: flight.row, arrived };
        let channel = u32::from(flight.channel);
        let queue = &mut self.channels[channel as usize];
        queue.push(request, flight.purpose == RequestKind::Write);
        // A wake that is due when the bus will be free is due still.
        if !(queue.busy(arrived) && self.wakes[channel as usize] != u64::MAX) {
            self.advance(channel);
        }
    }

    pub(super) fn advance(&mut self, channel: u32) {
        let now = self.wheel.now();
        loop {
            match self.channels[channel as usize].next(now) {
                Next::Idle => return,
                Next::Wait(wake) => {
                    let wake = wake.max(now + 1);
                    if wake != self.wakes[channel as usize] {
                        self.wakes[channel as usize] = wake;
                        self.wheel.push(wake, what::WAKE << 28 | channel);
                    }
                    return;
                }
                Next::Read(id, end) => {
                    let path = &self.paths[self.flights[id as usize].tier as usize];
                    if path.linked {
                        self.wheel.push(end, what::DATA << 28 | id);
                    } else {
                        self.wheel.push(end + path.constant, what::DONE << 28 | id);
                    }
                }
            }
        }
    }

    pub(super) fn reply(&mut self, id: u32) {
        let constant = self.paths[self.flights[id as usize].tier as usize].constant;
        let time = self.cross(1, self.data) + constant;
        self.wheel.push(time, what::DONE << 28 | id);
    }
}
