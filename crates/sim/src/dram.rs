//! One memory channel with DRAM timing, request by request.
//!
//! Terms: a *bank* holds one open row; a *rank* is a set of banks that shares activate and refresh
//! limits; all ranks share the data *bus*. Time is in clocks of the channel.
//!
//! Algorithm: the channel looks ahead by what a bank with another row open needs to answer (precharge, activate, read).
//! Among queued requests of the current direction it takes the one whose data could start first, the oldest among
//! equals: row hits and idle banks go ahead where the bus would idle (FR-FCFS), and one older than [`STARVED`] goes
//! first. One that would leave the bus idle is committed only when its activation is due, so that what waits for a
//! bank holds up no other. Writes wait
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
    row: Option<u32>,
    activated: u64,
    activate_from: u64,
    precharge_from: u64,
}

/// Requests of one direction, oldest first.
#[derive(Clone, Debug)]
struct Queue {
    keys: Vec<u64>,
    ids: Vec<u32>,
    arrived: Vec<u64>,
    of_bank: Vec<u32>,
}

impl Queue {
    fn new(banks: usize) -> Self {
        Self { keys: Vec::new(), ids: Vec::new(), arrived: Vec::new(), of_bank: vec![0; banks] }
    }

    fn len(&self) -> usize {
        self.keys.len()
    }

    fn push(&mut self, request: Request) {
        self.keys.push(request.key());
        self.ids.push(request.id);
        self.arrived.push(request.arrived);
        self.of_bank[request.bank as usize] += 1;
    }

    /// Takes one out: its key, its name, and whether another one wants its row.
    fn take(&mut self, at: usize) -> (u64, u32, bool) {
        let key = self.keys.remove(at);
        self.arrived.remove(at);
        let bank = (key >> 32) as usize;
        self.of_bank[bank] -= 1;
        (key, self.ids.remove(at), self.of_bank[bank] > 0 && self.keys.contains(&key))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    activates: [u64; 4],
    oldest: usize,
    last_activate: u64,
    last_group: usize,
    write_end: u64,
    refresh: u64,
}

/// A channel.
#[derive(Clone, Debug)]
pub struct Channel {
    timing: Timing,
    shape: Shape,
    banks: Vec<Bank>,
    ranks: Vec<Rank>,
    /// Group and rank of each bank.
    places: Vec<(usize, usize)>,
    columns: Vec<u64>,
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
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    write: bool,
    at: usize,
    activate: Option<u64>,
    column: u64,
    data: u64,
}

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
                ..Rank::default()
            })
            .collect();
        Self {
            timing,
            shape,
            banks: vec![Bank::default(); shape.all()],
            ranks,
            places: (0..shape.all())
                .map(|bank| (bank / shape.banks, bank / shape.banks / shape.groups))
                .collect(),
            columns: vec![0; shape.ranks * shape.groups],
            reads: Queue::new(shape.all()),
            writes: Queue::new(shape.all()),
            draining: false,
            bus_free: 0,
            last_rank: 0,
            last_was_write: false,
            served: 0,
            next_refresh: 0,
            planned: None,
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
            let plan = self.plan(at, request.key(), request.arrived, write);
            if plan.data < planned.data {
                self.planned = Some(plan);
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
                    bank.row = None;
                    bank.activate_from = bank.activate_from.max(end);
                }
            }
        }
        self.next_refresh = self.ranks.iter().map(|rank| rank.refresh).min().unwrap_or(u64::MAX);
    }

    fn choose(&self, now: u64, write: bool) -> Plan {
        let queue = if write { &self.writes } else { &self.reads };
        let mut best = self.plan(0, queue.keys[0], now, write);
        if queue.arrived[0] + STARVED < now {
            return best;
        }
        for (at, &key) in queue.keys.iter().enumerate().skip(1) {
            // Nothing starts before the bus is free, and the older of two equals goes first.
            if best.data == self.bus_free {
                break;
            }
            let plan = self.plan(at, key, now, write);
            if plan.data < best.data {
                best = plan;
            }
        }
        best
    }

    fn plan(&self, at: usize, key: u64, now: u64, write: bool) -> Plan {
        let timing = &self.timing;
        let place = (key >> 32) as usize;
        let bank = &self.banks[place];
        let (group_at, rank_at) = self.places[place];
        let rank = &self.ranks[rank_at];
        let activate = (bank.row != Some(key as u32)).then(|| {
            let mut from = now.max(bank.activate_from);
            if bank.row.is_some() {
                from = from.max(now.max(bank.precharge_from) + timing.rp);
            }
            let gap = if rank.last_group == group_at { timing.rrd_l } else { timing.rrd_s };
            from.max(rank.last_activate + gap).max(rank.activates[rank.oldest] + timing.faw)
        });
        let mut column = activate.map_or(now, |activate| activate + timing.rcd);
        column = column.max(self.columns[group_at] + timing.ccd_l);
        if !write {
            column = column.max(rank.write_end + timing.wtr);
        }
        if activate.is_none() {
            column = column.max(bank.activated + timing.rcd);
        }
        let latency = if write { timing.cwl } else { timing.cl };
        let switched = self.last_rank != rank_at || self.last_was_write != write;
        let bus = self.bus_free + if switched { timing.turnaround } else { 0 };
        let data = (column + latency).max(bus);
        Plan { write, at, activate, column: data - latency, data }
    }

    fn commit(&mut self, plan: Plan, write: bool) -> u32 {
        let queue = if write { &mut self.writes } else { &mut self.reads };
        let (key, id, wanted) = queue.take(plan.at);
        let timing = &self.timing;
        let end = plan.data + timing.burst;
        let place = (key >> 32) as usize;
        let (group_at, rank_at) = self.places[place];
        let rank = &mut self.ranks[rank_at];
        let bank = &mut self.banks[place];
        if let Some(activate) = plan.activate {
            rank.activates[rank.oldest] = activate;
            rank.oldest = (rank.oldest + 1) % 4;
            rank.last_activate = activate;
            rank.last_group = group_at;
            bank.activated = activate;
            bank.row = Some(key as u32);
            bank.precharge_from = activate + timing.ras;
        }
        let recovered = if write { end + timing.wr } else { plan.column + timing.rtp };
        bank.precharge_from = bank.precharge_from.max(recovered);
        if !wanted {
            bank.row = None;
            bank.activate_from = bank.activate_from.max(bank.precharge_from + timing.rp);
        }
        if write {
            rank.write_end = end;
        }
        self.columns[group_at] = plan.column;
        self.bus_free = end;
        self.last_rank = rank_at;
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
