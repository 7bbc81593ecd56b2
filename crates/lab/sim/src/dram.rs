//! One memory channel with DRAM timing, request by request.
//!
//! Terms: a *bank* holds one open row; a *rank* is a set of banks that shares activate and refresh
//! limits; all ranks share the data *bus*. Time is in clocks of the channel.
//!
//! Algorithm: the channel looks ahead by what a bank with another row open needs to answer (precharge, activate, read).
//! Among queued requests of the current direction it takes the one whose data could start first, the oldest among
//! equals: row hits and idle banks go ahead where the bus would idle (FR-FCFS), and one older than [`STARVED`] goes
//! first. One that would leave the bus idle is committed only when its activation is due, so that what waits for a
//! bank holds up no other. All that bounds a request's start only ever moves on, so what an earlier pass found is a
//! lower bound that spares most of them another pass. Writes wait in their own queue and are drained in runs between
//! two marks, or while no read waits. A row is closed after a burst unless another queued request wants it.
//!
//! *Refresh* is owed once an interval (JEDEC: tREFI) and takes the banks away for a while (tRFC). A controller may
//! postpone it, eight times on DDR4 (JESD79-4, refresh command), and makes it where nobody waits: Elastic Refresh
//! (Stuecheli et al., MICRO 2010) waits for an idle time of the rank that is the shorter, the more refreshes are owed.
//! Here it goes down in equal parts from a refresh's own length, for which idleness pays for it, to nothing when the
//! last one is postponed; then a refresh is made whoever waits. Where one rank's refresh holds up all cores, the others
//! are idle and are refreshed meanwhile, which is most of what postponing is worth. Devices with same-bank refresh
//! (DDR5: REFsb, tRFCsb) lose one bank of each group at a time, that much more often. Banks are precharged before. A
//! run begins with everything postponed, as after a long load; the first idle pass makes up for all of it, as those
//! before the run would have.
//!
//! Always so: bursts never overlap on the bus; a bank activates no sooner than its precharge allows;
//! a rank starts no more than four activates in a window; every read is answered once; each interval's refresh is made,
//! none later than may be postponed.

mod limits;
mod queue;

use self::limits::{Bank, Floor, Group, Limits, OPEN, Plan, Rank, Timing};
use self::queue::{Key, Queue};
use crate::machine::Machine;

pub use self::queue::Request;

/// Age in clocks from which a request is served before any other.
const STARVED: u32 = 6000;

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

/// A channel.
#[derive(Clone, Debug)]
pub struct Channel {
    limits: Limits,
    reads: Queue,
    writes: Queue,
    /// What holds for each rank in the present pass.
    floors: Vec<Floor>,
    draining: bool,
    served: u64,
    /// The best plan of the present direction while it is not yet due; commits and refreshes void it.
    planned: Option<Plan>,
    /// By how much an activation in another group may bring another one forward.
    slack: u64,
}

/// What a channel does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing waits.
    Idle,
    /// Nothing before this time.
    Wait(u64),
    /// A read was committed: its name and the end of its data.
    Read(u32, u64),
}

impl Channel {
    /// An idle channel of a machine; the `number`-th of `of` channels, whose refreshes are staggered.
    #[must_use]
    pub fn new(machine: &Machine, number: usize, of: usize) -> Self {
        let clocks = |key: &str| machine.get(&format!("dram.{key}")).round() as u64;
        let shape = Shape::of(machine);
        let same_bank = machine.get("dram.rfc_sb") > 0.0;
        let turns = if same_bank { shape.banks } else { 1 };
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
            rfc: if same_bank { clocks("rfc_sb") } else { clocks("rfc") },
            refi: clocks("refi") / turns as u64,
            postponed: clocks("postponed") * turns as u64,
            turns,
            burst: clocks("burst"),
            turnaround: clocks("turnaround"),
            write_high: clocks("write_high") as usize,
            write_low: clocks("write_low") as usize,
        };
        let stagger =
            |rank: usize| timing.refi * (rank * of + number + 1) as u64 / (shape.ranks * of) as u64;
        let ranks = (0..shape.ranks)
            .map(|rank| Rank {
                owed: stagger(rank) as i64 - (timing.postponed * timing.refi) as i64,
                read_from: timing.wtr,
                ..Rank::default()
            })
            .collect();
        let group =
            Group { column_from: timing.ccd_l, activate_from: timing.rrd_s.max(timing.faw) };
        let bank = |bank: usize| Bank {
            open: Key::NONE,
            column_from: 0,
            activate_from: 0,
            group: (bank / shape.banks) as u32,
            rank: (bank / shape.banks / shape.groups) as u32,
        };
        Self {
            limits: Limits {
                timing,
                banks: (0..shape.all()).map(bank).collect(),
                groups: vec![group; shape.ranks * shape.groups],
                ranks,
                groups_of_rank: shape.groups,
                bus_free: 0,
                last_rank: 0,
                last_was_write: false,
                next_refresh: 0,
            },
            reads: Queue::new(shape.all()),
            writes: Queue::new(shape.all()),
            floors: vec![Floor::default(); shape.ranks],
            draining: false,
            served: 0,
            planned: None,
            slack: timing.rrd_l.saturating_sub(2 * timing.rrd_s),
        }
    }

    /// Time from a lone request to the end of its data, in clocks: activate, read and burst.
    #[must_use]
    pub const fn idle_latency(&self) -> u64 {
        let timing = &self.limits.timing;
        timing.rcd + timing.cl + timing.burst
    }

    /// Lines served so far, in both directions.
    #[must_use]
    pub const fn served(&self) -> u64 {
        self.served
    }

    /// Queues a request.
    #[inline]
    pub fn push(&mut self, request: Request, write: bool) {
        let key = Key::new(self.limits.banks[request.bank as usize].rank, &request);
        if !write {
            // A refresh that has begun because nobody waited goes on.
            self.refresh(request.arrived);
            self.limits.ranks[key.rank()].waiting += 1;
        }
        let at = self.queue(write).push(key, &request);
        if let Some(planned) = &mut self.planned
            && planned.write == write
        {
            let pass = self.limits.pass(request.arrived, write);
            let floor = self.limits.floor(key.rank(), &pass);
            if floor.data < planned.data {
                let (activate, ready) = self.limits.start(key, &pass, &floor);
                let data = ready.max(floor.bus);
                if data < planned.data {
                    *planned = Plan { write, at, activate, data };
                }
            }
        }
    }

    #[inline]
    fn refresh(&mut self, now: u64) {
        if now >= self.limits.next_refresh {
            self.planned = None;
            self.limits.refresh(now);
        }
    }

    /// Whether the bus is taken for so long that nothing is to be chosen yet.
    #[inline]
    #[must_use]
    pub const fn busy(&self, now: u64) -> bool {
        self.limits.bus_free > now + self.longest()
    }

    /// Clocks that a closed bank takes to answer.
    const fn lead(&self) -> u64 {
        self.limits.timing.rcd + self.limits.timing.cl
    }

    /// Clocks that a bank with another row open takes: a precharge more.
    const fn longest(&self) -> u64 {
        self.lead() + self.limits.timing.rp
    }

    /// Commits what is due at `now`, up to the next read; call again until nothing is left to do at this time.
    #[inline]
    pub fn next(&mut self, now: u64) -> Next {
        loop {
            let Some(write) = self.direction() else {
                return Next::Idle;
            };
            let bus_free = self.limits.bus_free;
            if self.busy(now) {
                return Next::Wait(bus_free - self.longest());
            }
            self.refresh(now);
            let plan = match self.planned {
                Some(plan) if plan.write == write => plan,
                _ => self.choose(now, write),
            };
            if plan.data > bus_free && plan.data > now + self.lead() {
                self.planned = Some(plan);
                return Next::Wait(plan.data - self.lead());
            }
            self.planned = None;
            self.served += 1;
            let (key, id, wanted) = self.queue(write).take(plan.at);
            self.limits.commit(&plan, key, wanted);
            if !write {
                return Next::Read(id, plan.data + self.limits.timing.burst);
            }
        }
    }

    #[inline]
    const fn direction(&mut self) -> Option<bool> {
        let timing = &self.limits.timing;
        let (reads, writes) = (self.reads.len, self.writes.len);
        self.draining = writes >= timing.write_high || self.draining && writes > timing.write_low;
        if self.draining || (reads == 0 && writes > timing.write_low) {
            Some(true)
        } else if reads == 0 {
            None
        } else {
            Some(false)
        }
    }

    /// The plan whose data start first, the oldest among equals. What a rank allows at best, and what earlier looks at
    /// a request said, spare most of them another one.
    fn choose(&mut self, now: u64, write: bool) -> Plan {
        let (limits, slack) = (&self.limits, self.slack);
        let queue = if write { &mut self.writes } else { &mut self.reads };
        let pass = limits.pass(now, write);
        let mut first = u64::MAX;
        for (rank, floor) in self.floors.iter_mut().enumerate() {
            *floor = limits.floor(rank, &pass);
            first = first.min(floor.data);
        }
        let mut at = queue.oldest;
        let mut best = Plan { write, at, activate: OPEN, data: u64::MAX };
        let starved = (now as u32).wrapping_sub(queue.entries[at as usize].arrived) > STARVED;
        // Nothing starts before `first`, and the older of two equals goes first.
        while best.data > first
            && let Some(entry) = queue.entries.get_mut(at as usize)
        {
            let floor = &self.floors[entry.key.rank()];
            if entry.ready.max(floor.data) < best.data {
                let (activate, ready) = limits.start(entry.key, &pass, floor);
                entry.ready = ready - slack;
                let data = ready.max(floor.bus);
                if data < best.data {
                    best = Plan { write, at, activate, data };
                }
                if starved {
                    break;
                }
            }
            at = entry.younger;
        }
        best
    }

    const fn queue(&mut self, write: bool) -> &mut Queue {
        if write { &mut self.writes } else { &mut self.reads }
    }
}

#[cfg(test)]
mod tests {
    use super::queue::NONE;
    use super::*;
    use crate::machine::ICELAKE;
    use pagemill_model::random::Random;
    use proptest::prelude::*;

    fn channel() -> Channel {
        Channel::new(&Machine::parse(ICELAKE).unwrap(), 0, 8)
    }

    fn drain(channel: &mut Channel, mut now: u64) -> Vec<(u32, u64)> {
        let mut done = Vec::new();
        loop {
            match channel.next(now) {
                Next::Idle => return done,
                Next::Wait(wake) => now = wake.max(now + 1),
                Next::Read(id, end) => done.push((id, end)),
            }
        }
    }

    #[test]
    fn a_lone_read_takes_activate_plus_read_plus_burst() {
        let mut channel = channel();
        channel.push(Request { id: 1, bank: 0, row: 5, arrived: 3000 }, false);
        assert_eq!(drain(&mut channel, 3000), vec![(1, 3000 + 22 + 22 + 4)]);
    }

    #[test]
    fn a_second_row_of_a_bank_waits_for_the_row_cycle() {
        let mut channel = channel();
        for (id, row) in [(1, 5), (2, 6)] {
            channel.push(Request { id, bank: 0, row, arrived: 3000 }, false);
        }
        let done = drain(&mut channel, 3000);
        assert_eq!(done[1].1 - done[0].1, 52 + 22);
    }

    /// How long reads take that come every hundred clocks for seven intervals and pause for two: mean and longest.
    fn in_bursts(machine: &Machine) -> (f64, u64) {
        let mut channel = Channel::new(machine, 0, 8);
        let burst = |begin: u64| (0..880).map(move |at| begin + at * 100);
        let times: Vec<u64> = (0..6)
            .flat_map(|number| burst(20_000 + number * 113_000))
            .map(|arrived| {
                channel.push(Request { id: 1, bank: 0, row: arrived as u32, arrived }, false);
                drain(&mut channel, arrived)[0].1 - arrived
            })
            .collect();
        (times.iter().sum::<u64>() as f64 / times.len() as f64, *times.iter().max().unwrap())
    }

    #[test]
    fn a_refresh_waits_for_a_pause_and_takes_all_banks_or_one_of_each_group() {
        let machine = Machine::parse(ICELAKE).unwrap();
        let none = machine.with("dram.rfc", 1.0).with("dram.postponed", 0.0);
        let at_once = machine.with("dram.postponed", 0.0);
        let same_bank = at_once.with("dram.rfc_sb", 208.0);
        let [none, at_once, postponed, same_bank] =
            [none, at_once, machine, same_bank].map(|machine| in_bursts(&machine));
        assert!(at_once.1 > 600 && at_once.0 > none.0 + 10.0, "{at_once:?}, {none:?}");
        assert!(postponed.0 < none.0 + 0.2 * (at_once.0 - none.0), "{postponed:?}, {none:?}");
        // Reads of one bank wait for a quarter of the refreshes, each a quarter as long.
        assert!(same_bank.1 < 600 && same_bank.0 < at_once.0, "{same_bank:?}, {at_once:?}");
    }

    #[test]
    fn random_reads_of_one_channel_stay_below_the_bus_and_reach_most_of_it() {
        let mut channel = channel();
        let mut random = Random::new(3);
        let (mut now, mut served, mut id) = (0, 0, 0);
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
            match channel.next(now) {
                Next::Idle => now += 1,
                Next::Wait(wake) => now = wake.max(now + 1),
                Next::Read(..) => {
                    waiting -= 1;
                    served += 1;
                }
            }
        }
        let busy = 20_000.0 * 4.0 / now as f64;
        assert!((0.6..1.0).contains(&busy), "{busy}");
    }

    proptest! {
        #[test]
        fn every_interval_is_refreshed_once_and_no_later_than_may_be_postponed(
            requests in prop::collection::vec((0_u64..2000, 0_u16..32, any::<bool>()), 50..300),
            postponed in 0_u8..9, same_bank in any::<bool>(),
        ) {
            let machine = Machine::parse(ICELAKE).unwrap();
            let machine = machine
                .with("dram.postponed", postponed.into())
                .with("dram.rfc_sb", if same_bank { 208.0 } else { 0.0 });
            let mut channel = Channel::new(&machine, 0, 8);
            let timing = channel.limits.timing;
            let mut now = 0;
            for (id, (gap, bank, write)) in requests.into_iter().enumerate() {
                now += gap;
                channel.push(Request { id: id as u32, bank, row: id as u32, arrived: now }, write);
                while matches!(channel.next(now), Next::Read(..)) {}
                channel.refresh(now);
                for rank in &channel.limits.ranks {
                    let owed = now as i64 - rank.owed;
                    let most = (timing.postponed * timing.refi + timing.rfc * 2) as i64;
                    prop_assert!(owed <= most, "{owed} of {most}");
                    prop_assert!(-owed <= timing.refi as i64, "made in advance: {owed}");
                }
            }
        }

        #[test]
        fn the_choice_is_that_of_a_look_at_every_request(
            // Too short for any of them to be starved.
            requests in prop::collection::vec((0_u64..19, 0_u16..32, 0_u32..3, any::<bool>()), 1..300),
        ) {
            let mut channel = channel();
            let mut now = 0;
            for (id, (gap, bank, row, write)) in requests.into_iter().enumerate() {
                channel.push(Request { id: id as u32, bank, row, arrived: now }, write);
                while matches!(channel.next(now), Next::Read(..)) {}
                now += gap;
                if now >= channel.limits.next_refresh {
                    channel.limits.refresh(now);
                }
                // A plan does not outlive a pass over the other direction, whose bounds it does not know.
                channel.planned = None;
                for write in [false, true] {
                    if channel.queue(write).len > 0 {
                        let queue = if write { &channel.writes } else { &channel.reads };
                        let by_age = std::iter::successors(Some(queue.oldest), |&at| {
                            Some(queue.entries[at as usize].younger).filter(|&at| at != NONE)
                        });
                        let naive = by_age
                            .map(|at| {
                                let key = queue.entries[at as usize].key;
                                let pass = channel.limits.pass(now, write);
                                let floor = channel.limits.floor(key.rank(), &pass);
                                let (activate, ready) = channel.limits.start(key, &pass, &floor);
                                (at, ready.max(floor.bus), activate)
                            })
                            // The first of equals.
                            .min_by_key(|plan| plan.1);
                        let chosen = channel.choose(now, write);
                        prop_assert_eq!(Some((chosen.at, chosen.data, chosen.activate)), naive);
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
