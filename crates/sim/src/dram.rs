//! One memory channel with DRAM timing, request by request.
//!
//! Terms: a *bank* holds one open row; a *rank* is a set of banks that shares activate and refresh
//! limits; all ranks share the data *bus*. Time is in clocks of the channel.
//!
//! Algorithm: the channel looks ahead by what a bank with another row open needs to answer (precharge, activate, read).
//! Among queued requests of the current direction it takes the one whose data could start first, the oldest among
//! equals: row hits and idle banks go ahead where the bus would idle (FR-FCFS), and one older than [`STARVED`] goes
//! first. One that would leave the bus idle is committed only when its activation is due, so that what waits for a
//! bank holds up no other. All that bounds a request's start only ever moves on, so what an earlier look found is a lower
//! bound that spares most of them another look. Writes wait
//! in their own queue and are drained in runs between two marks, or while no read waits. A row is closed after
//! a burst unless another queued request wants it.
//!
//! Always so: bursts never overlap on the bus; a bank activates no sooner than its precharge allows;
//! a rank starts no more than four activates in a window; every read is answered once.

use crate::machine::Machine;

/// Age in clocks from which a request is served before any other.
const STARVED: u64 = 6000;

#[derive(Clone, Copy, Debug)]
struct Timing {
    cl: u64,
    rcd: u64,
    rp: u64,
    ras: u64,
    cwl: u64,
    ccd_l: u64,
    rrd_l: u64,
    rrd_s: u64,
    faw: u64,
    wtr: u64,
    wr: u64,
    rtp: u64,
    rfc: u64,
    refi: u64,
    burst: u64,
    turnaround: u64,
    write_high: usize,
    write_low: usize,
}

/// The shape of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Ranks.
    pub ranks: usize,
    /// Bank groups of a rank.
    pub groups: usize,
    /// Banks of a group.
    pub banks: usize,
    /// Lines of a row.
    pub row_lines: u64,
}

impl Shape {
    /// Reads the shape of a machine's channels.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        Self {
            ranks: machine.get("dram.ranks") as usize,
            groups: machine.get("dram.bank_groups") as usize,
            banks: machine.get("dram.banks") as usize,
            row_lines: machine.get("dram.row_lines") as u64,
        }
    }

    /// Banks of the whole channel.
    #[must_use]
    pub const fn all(&self) -> usize {
        self.ranks * self.groups * self.banks
    }
}

/// A request for one line.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The requester's name for it.
    pub id: u32,
    /// Bank, counted over ranks and groups.
    pub bank: u16,
    /// Row of the bank.
    pub row: u32,
    /// When it reached the channel.
    pub arrived: u64,
}

impl Request {
    /// Bank above, row below: equal keys want the same open row.
    const fn key(&self) -> u64 {
        (self.bank as u64) << 32 | self.row as u64
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Bank {
    /// The open row, and the key of those who want it; [`CLOSED`] if none is open.
    open: u64,
    /// When that row may be read or written.
    column_from: u64,
    /// When another row may be activated, a precharge of the open one included.
    activate_from: u64,
    group: usize,
    rank: usize,
}

/// The key of no request: no bank has this number.
const CLOSED: u64 = u64::MAX;

/// A queued request.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    /// When its data could start at the earliest, bus apart, as far as is known: all that bounds it only ever moves on.
    ready: u64,
    arrived: u64,
    id: u32,
}

/// Requests of one direction, oldest first.
#[derive(Clone, Debug)]
struct Queue {
    entries: Vec<Entry>,
    of_bank: Vec<u32>,
}

impl Queue {
    fn new(banks: usize) -> Self {
        Self { entries: Vec::new(), of_bank: vec![0; banks] }
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn push(&mut self, request: Request) {
        let Request { id, arrived, .. } = request;
        self.entries.push(Entry { key: request.key(), ready: 0, arrived, id });
        self.of_bank[request.bank as usize] += 1;
    }

    /// Takes one out: its key, its name, and whether another one wants its row.
    fn take(&mut self, at: usize) -> (u64, u32, bool) {
        let Entry { key, id, .. } = self.entries.remove(at);
        let left = &mut self.of_bank[(key >> 32) as usize];
        *left -= 1;
        (key, id, *left > 0 && self.entries.iter().any(|entry| entry.key == key))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// The last four activations, from `oldest` on.
    activates: [u64; 4],
    oldest: usize,
    /// When the oldest of them leaves the window.
    window_end: u64,
    last_activate: u64,
    last_group: usize,
    /// When it may be read after what was written.
    read_from: u64,
    refresh: u64,
}

/// A channel.
#[derive(Clone, Debug)]
pub struct Channel {
    timing: Timing,
    shape: Shape,
    banks: Vec<Bank>,
    ranks: Vec<Rank>,
    /// When each bank group may be read or written.
    column_from: Vec<u64>,
    reads: Queue,
    writes: Queue,
    draining: bool,
    bus_free: u64,
    last_rank: usize,
    last_was_write: bool,
    served: u64,
    next_refresh: u64,
    /// The best plan of the present direction while it is not yet due; commits and refreshes void it.
    planned: Option<Plan>,
    /// By how much an activation in another group may bring another one forward.
    slack: u64,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    write: bool,
    at: usize,
    start: Start,
    /// When its data start.
    data: u64,
}

/// When a request could start, the bus apart.
#[derive(Clone, Copy, Debug)]
struct Start {
    /// When its row is activated; [`OPEN`] if it is open.
    activate: u64,
    /// When its data start, if the bus is free then.
    ready: u64,
}

const OPEN: u64 = u64::MAX;

impl Channel {
    /// An idle channel of a machine; the `number`-th of `of` channels, whose refreshes are staggered.
    #[must_use]
    pub fn new(machine: &Machine, number: usize, of: usize) -> Self {
        let clocks = |key: &str| machine.get(&format!("dram.{key}")).round() as u64;
        let timing = Timing {
            cl: clocks("cl"),
            rcd: clocks("rcd"),
            rp: clocks("rp"),
            ras: clocks("ras"),
            cwl: clocks("cwl"),
            ccd_l: clocks("ccd_l"),
            rrd_l: clocks("rrd_l"),
            rrd_s: clocks("rrd_s"),
            faw: clocks("faw"),
            wtr: clocks("wtr_l"),
            wr: clocks("wr"),
            rtp: clocks("rtp"),
            rfc: clocks("rfc"),
            refi: clocks("refi"),
            burst: clocks("burst"),
            turnaround: clocks("turnaround"),
            write_high: clocks("write_high") as usize,
            write_low: clocks("write_low") as usize,
        };
        let shape = Shape::of(machine);
        let ranks = (0..shape.ranks)
            .map(|rank| Rank {
                refresh: timing.refi * (rank * of + number + 1) as u64 / (shape.ranks * of) as u64,
                window_end: timing.faw,
                read_from: timing.wtr,
                ..Rank::default()
            })
            .collect();
        Self {
            timing,
            shape,
            banks: (0..shape.all())
                .map(|bank| Bank {
                    open: CLOSED,
                    group: bank / shape.banks,
                    rank: bank / shape.banks / shape.groups,
                    ..Bank::default()
                })
                .collect(),
            ranks,
            column_from: vec![timing.ccd_l; shape.ranks * shape.groups],
            reads: Queue::new(shape.all()),
            writes: Queue::new(shape.all()),
            draining: false,
            bus_free: 0,
            last_rank: 0,
            last_was_write: false,
            served: 0,
            next_refresh: 0,
            planned: None,
            slack: timing.rrd_l.saturating_sub(2 * timing.rrd_s),
        }
    }

    /// Time from a lone request to the end of its data, in clocks: activate, read and burst.
    #[must_use]
    pub const fn idle_latency(&self) -> u64 {
        self.timing.rcd + self.timing.cl + self.timing.burst
    }

    /// Lines served so far, in both directions.
    #[must_use]
    pub const fn served(&self) -> u64 {
        self.served
    }

    /// Queues a request.
    pub fn push(&mut self, request: Request, write: bool) {
        let queue = if write { &mut self.writes } else { &mut self.reads };
        queue.push(request);
        let at = queue.len() - 1;
        if let Some(planned) = self.planned
            && planned.write == write
        {
            let (start, data) = self.start(request.key(), request.arrived, write);
            if data < planned.data {
                self.planned = Some(Plan { write, at, start, data });
            }
        }
    }

    /// Commits what is due at `now`; appends each read and the end of its data to `done`.
    /// Returns when to call again, if anything waits.
    pub fn advance(&mut self, now: u64, done: &mut Vec<(u32, u64)>) -> Option<u64> {
        // A closed bank answers after `lead`, one with another row open a precharge later.
        let lead = self.timing.rcd + self.timing.cl;
        let longest = lead + self.timing.rp;
        loop {
            let write = self.direction()?;
            if self.bus_free > now + longest {
                return Some(self.bus_free - longest);
            }
            self.refresh(now);
            let plan = match self.planned {
                Some(plan) if plan.write == write => plan,
                _ => self.choose(now, write),
            };
            if plan.data > self.bus_free && plan.data > now + lead {
                self.planned = Some(plan);
                return Some(plan.data - lead);
            }
            self.planned = None;
            let id = self.commit(plan, write);
            if !write {
                done.push((id, plan.data + self.timing.burst));
            }
        }
    }

    fn direction(&mut self) -> Option<bool> {
        if self.writes.len() >= self.timing.write_high {
            self.draining = true;
        } else if self.writes.len() <= self.timing.write_low {
            self.draining = false;
        }
        if self.draining || (self.reads.len() == 0 && self.writes.len() > self.timing.write_low) {
            Some(true)
        } else if self.reads.len() == 0 {
            None
        } else {
            Some(false)
        }
    }

    fn refresh(&mut self, now: u64) {
        let per_rank = self.shape.groups * self.shape.banks;
        if now < self.next_refresh {
            return;
        }
        self.planned = None;
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            while rank.refresh <= now {
                let end = rank.refresh + self.timing.rfc;
                rank.refresh += self.timing.refi;
                for bank in &mut self.banks[at * per_rank..(at + 1) * per_rank] {
                    bank.open = CLOSED;
                    bank.activate_from = bank.activate_from.max(end);
                }
            }
        }
        self.next_refresh = self.ranks.iter().map(|rank| rank.refresh).min().unwrap_or(u64::MAX);
    }

    /// The plan whose data start first, the oldest among equals. What earlier looks at a request said spares most of them another one.
    fn choose(&mut self, now: u64, write: bool) -> Plan {
        let mut entries = std::mem::take(&mut self.queue(write).entries);
        let oldest = entries[0];
        let (start, data) = self.start(oldest.key, now, write);
        let mut best = Plan { write, at: 0, start, data };
        if oldest.arrived + STARVED >= now {
            for (at, entry) in entries.iter_mut().enumerate().skip(1) {
                // Nothing starts before the bus is free, and the older of two equals goes first.
                if best.data == self.bus_free {
                    break;
                }
                if entry.ready >= best.data {
                    continue;
                }
                let (start, data) = self.start(entry.key, now, write);
                entry.ready = start.ready - self.slack;
                if data < best.data {
                    best = Plan { write, at, start, data };
                }
            }
        }
        self.queue(write).entries = entries;
        best
    }

    const fn queue(&mut self, write: bool) -> &mut Queue {
        if write { &mut self.writes } else { &mut self.reads }
    }

    /// When a request could start, and when its data would, the bus considered.
    #[inline(always)]
    fn start(&self, key: u64, now: u64, write: bool) -> (Start, u64) {
        let timing = &self.timing;
        let bank = &self.banks[(key >> 32) as usize];
        let rank = &self.ranks[bank.rank];
        let from = self.column_from[bank.group];
        let (activate, column) = if bank.open == key {
            (OPEN, from.max(now).max(bank.column_from))
        } else {
            let precharge = if bank.open == CLOSED { 0 } else { timing.rp };
            let gap = if rank.last_group == bank.group { timing.rrd_l } else { timing.rrd_s };
            let activate = (now + precharge)
                .max(bank.activate_from)
                .max(rank.last_activate + gap)
                .max(rank.window_end);
            (activate, from.max(activate + timing.rcd))
        };
        let ready =
            if write { column + timing.cwl } else { column.max(rank.read_from) + timing.cl };
        let same = bank.rank == self.last_rank && self.last_was_write == write;
        let bus = self.bus_free + if same { 0 } else { timing.turnaround };
        (Start { activate, ready }, ready.max(bus))
    }

    fn commit(&mut self, plan: Plan, write: bool) -> u32 {
        let (key, id, wanted) = self.queue(write).take(plan.at);
        let timing = &self.timing;
        let end = plan.data + timing.burst;
        let column = plan.data - if write { timing.cwl } else { timing.cl };
        let bank = &mut self.banks[(key >> 32) as usize];
        let rank = &mut self.ranks[bank.rank];
        let activate = plan.start.activate;
        if activate != OPEN {
            rank.activates[rank.oldest] = activate;
            rank.oldest = (rank.oldest + 1) % 4;
            rank.window_end = rank.activates[rank.oldest] + timing.faw;
            rank.last_activate = activate;
            rank.last_group = bank.group;
            bank.open = key;
            bank.column_from = activate + timing.rcd;
            bank.activate_from = activate + timing.ras + timing.rp;
        }
        let recovered = if write { end + timing.wr } else { column + timing.rtp };
        bank.activate_from = bank.activate_from.max(recovered + timing.rp);
        if !wanted {
            bank.open = CLOSED;
        }
        if write {
            rank.read_from = end + timing.wtr;
        }
        self.column_from[bank.group] = column + timing.ccd_l;
        self.bus_free = end;
        self.last_rank = bank.rank;
        self.last_was_write = write;
        self.served += 1;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ICELAKE;
    use crate::random::Random;
    use proptest::prelude::*;

    fn channel() -> Channel {
        Channel::new(&Machine::parse(ICELAKE).unwrap(), 0, 8)
    }

    fn drain(channel: &mut Channel, mut now: u64) -> Vec<(u32, u64)> {
        let mut done = Vec::new();
        while let Some(wake) = channel.advance(now, &mut done) {
            now = wake.max(now + 1);
        }
        done
    }

    #[test]
    fn a_lone_read_takes_activate_plus_read_plus_burst() {
        let mut channel = channel();
        channel.push(Request { id: 1, bank: 0, row: 5, arrived: 100 }, false);
        assert_eq!(drain(&mut channel, 100), vec![(1, 100 + 22 + 22 + 4)]);
    }

    #[test]
    fn a_second_row_of_a_bank_waits_for_the_row_cycle() {
        let mut channel = channel();
        for (id, row) in [(1, 5), (2, 6)] {
            channel.push(Request { id, bank: 0, row, arrived: 100 }, false);
        }
        let done = drain(&mut channel, 100);
        assert_eq!(done[1].1 - done[0].1, 52 + 22);
    }

    #[test]
    fn random_reads_of_one_channel_stay_below_the_bus_and_reach_most_of_it() {
        let mut channel = channel();
        let mut random = Random::new(3);
        let (mut done, mut now, mut served, mut id) = (Vec::new(), 0, 0, 0);
        let mut waiting = 0;
        while served < 20_000 {
            while waiting < 48 {
                channel.push(
                    Request {
                        id,
                        bank: random.below(32) as u16,
                        row: random.bits() as u32,
                        arrived: now,
                    },
                    false,
                );
                id += 1;
                waiting += 1;
            }
            done.clear();
            let wake = channel.advance(now, &mut done);
            waiting -= done.len();
            served += done.len();
            now = wake.unwrap_or(now + 1).max(now + 1);
        }
        let busy = 20_000.0 * 4.0 / now as f64;
        assert!((0.6..1.0).contains(&busy), "{busy}");
    }

    proptest! {
        #[test]
        fn the_choice_is_that_of_a_look_at_every_request(
            // Too short for any of them to be starved.
            requests in prop::collection::vec((0_u64..19, 0_u16..32, 0_u32..3, any::<bool>()), 1..300),
        ) {
            let mut channel = channel();
            let (mut now, mut done) = (0, Vec::new());
            for (id, (gap, bank, row, write)) in requests.into_iter().enumerate() {
                channel.push(Request { id: id as u32, bank, row, arrived: now }, write);
                channel.advance(now, &mut done);
                now += gap;
                channel.refresh(now);
                // A plan does not outlive a look at the other direction, whose bounds it does not know.
                channel.planned = None;
                for write in [false, true] {
                    if channel.queue(write).len() > 0 {
                        let naive = (0..channel.queue(write).len())
                            .map(|at| {
                                let key = channel.queue(write).entries[at].key;
                                let (start, data) = channel.start(key, now, write);
                                (at, data, start.activate)
                            })
                            .min_by_key(|plan| (plan.1, plan.0));
                        let chosen = channel.choose(now, write);
                        prop_assert_eq!(Some((chosen.at, chosen.data, chosen.start.activate)), naive);
                    }
                }
            }
        }

        #[test]
        fn bursts_never_overlap_and_every_read_is_answered_once(
            requests in prop::collection::vec((0_u16..32, 0_u32..3, any::<bool>()), 1..200),
        ) {
            let mut channel = channel();
            let mut reads = 0;
            for (id, (bank, row, write)) in requests.into_iter().enumerate() {
                channel.push(Request { id: id as u32, bank, row, arrived: 0 }, write);
                reads += u32::from(!write);
            }
            let done = drain(&mut channel, 0);
            prop_assert_eq!(done.len() as u32, reads);
            let mut ends: Vec<u64> = done.iter().map(|d| d.1).collect();
            ends.sort_unstable();
            prop_assert!(ends.windows(2).all(|pair| pair[1] - pair[0] >= 4));
            let mut ids: Vec<u32> = done.iter().map(|d| d.0).collect();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len() as u32, reads);
        }
    }
}
