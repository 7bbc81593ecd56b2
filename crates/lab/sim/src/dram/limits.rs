//! What bounds a command: the timing of banks, bank groups, ranks and bus, and their refreshes.

use super::queue::Key;

#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    pub(super) cl: u64,
    pub(super) rcd: u64,
    pub(super) rp: u64,
    pub(super) ras: u64,
    pub(super) cwl: u64,
    pub(super) ccd_l: u64,
    pub(super) rrd_l: u64,
    pub(super) rrd_s: u64,
    pub(super) faw: u64,
    pub(super) wtr: u64,
    pub(super) wr: u64,
    pub(super) rtp: u64,
    /// Clocks that a refresh takes, between two of them, and from when one is owed to when it must be made.
    pub(super) rfc: u64,
    pub(super) refi: u64,
    pub(super) postponed: u64,
    /// Refreshes in turn that make up one of all banks.
    pub(super) turns: usize,
    pub(super) burst: u64,
    pub(super) turnaround: u64,
    pub(super) write_high: usize,
    pub(super) write_low: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bank {
    /// The open row, as the key of those who want it; [`Key::NONE`] if none is open.
    pub(super) open: Key,
    /// When that row may be read or written.
    pub(super) column_from: u64,
    /// When another row may be activated, a precharge of the open one included.
    pub(super) activate_from: u64,
    pub(super) group: u32,
    pub(super) rank: u32,
}

/// What bounds all banks of a bank group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// When it may be read or written.
    pub(super) column_from: u64,
    /// When one of its banks may be activated after the last activations of its rank.
    pub(super) activate_from: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rank {
    /// The last four activations, from `oldest` on.
    pub(super) activates: [u64; 4],
    pub(super) oldest: usize,
    /// When it may be read after what was written.
    pub(super) read_from: u64,
    /// Since when a refresh is owed, or from when one will be; it began before the run.
    pub(super) owed: i64,
    /// Reads that wait for it.
    pub(super) waiting: u32,
    /// The end of the last data, and of the last refresh.
    pub(super) data_until: u64,
    pub(super) refreshed: u64,
    /// Whose turn it is, where not all banks are refreshed at once.
    pub(super) turn: usize,
    /// Whether what was postponed before the run has been made up for.
    pub(super) caught_up: bool,
}

impl Rank {
    /// When its next refresh begins if nothing changes, and whether that is because nobody waits.
    pub(super) fn next_refresh(&self, timing: &Timing) -> (u64, bool) {
        let Timing { rfc, refi, postponed, .. } = *timing;
        let due = self.owed + (postponed * refi) as i64;
        if self.waiting == 0 {
            // The more are owed, the shorter an idle time will do.
            let idle = self.data_until.max(self.refreshed) as i64;
            let first = (idle - self.owed).max(0) as u64 / refi;
            for more in first..postponed {
                let owed = self.owed + (more * refi) as i64;
                let begin = owed.max(idle + (rfc * (postponed - 1 - more) / postponed) as i64);
                if begin < owed + refi as i64 {
                    return (begin.max(0) as u64, true);
                }
            }
        }
        (due.max(self.refreshed as i64) as u64, false)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Floor {
    /// Before this no column command.
    pub(super) column: u64,
    /// Before this no data on the bus.
    pub(super) bus: u64,
    /// Before this no data at all, whatever the bank.
    pub(super) data: u64,
}

/// A scheduling pass over requests of a direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) now: u64,
    /// Clocks from a column command to its data.
    pub(super) delay: u64,
    pub(super) write: bool,
}

/// When commands may start and data be sent.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) timing: Timing,
    pub(super) banks: Vec<Bank>,
    pub(super) groups: Vec<Group>,
    pub(super) ranks: Vec<Rank>,
    pub(super) groups_of_rank: usize,
    pub(super) bus_free: u64,
    pub(super) last_rank: usize,
    pub(super) last_was_write: bool,
    pub(super) next_refresh: u64,
}

impl Limits {
    pub(super) const fn pass(&self, now: u64, write: bool) -> Pass {
        let delay = if write { self.timing.cwl } else { self.timing.cl };
        Pass { now, delay, write }
    }

    #[inline(always)]
    pub(super) fn floor(&self, rank: usize, pass: &Pass) -> Floor {
        let same = rank == self.last_rank && self.last_was_write == pass.write;
        let bus = self.bus_free + if same { 0 } else { self.timing.turnaround };
        let read_from = if pass.write { 0 } else { self.ranks[rank].read_from };
        let column = pass.now.max(read_from);
        Floor { column, bus, data: bus.max(column + pass.delay) }
    }

    /// When a request's row would be activated ([`OPEN`] if it is open) and its data could start, the bus apart.
    #[inline(always)]
    pub(super) fn start(&self, key: Key, pass: &Pass, floor: &Floor) -> (u64, u64) {
        let bank = &self.banks[key.bank()];
        let group = &self.groups[bank.group as usize];
        let precharge = if bank.open == Key::NONE { 0 } else { self.timing.rp };
        let activate = (pass.now + precharge).max(bank.activate_from).max(group.activate_from);
        let opened = activate + self.timing.rcd;
        let hit = bank.open == key;
        let from = if hit { bank.column_from } else { opened };
        let ready = from.max(group.column_from).max(floor.column) + pass.delay;
        (if hit { OPEN } else { activate }, ready)
    }

    /// Makes the refreshes that have begun by `now`.
    #[cold]
    pub(super) fn refresh(&mut self, now: u64) {
        let timing = self.timing;
        let per_rank = self.banks.len() / self.ranks.len();
        let per_group = per_rank / self.groups_of_rank;
        self.next_refresh = u64::MAX;
        for (rank, banks) in self.ranks.iter_mut().zip(self.banks.chunks_mut(per_rank)) {
            loop {
                let (begin, chosen) = rank.next_refresh(&timing);
                if begin > now {
                    self.next_refresh = self.next_refresh.min(begin);
                    break;
                }
                let interval = timing.refi as i64;
                if chosen && !rank.caught_up {
                    rank.owed += (begin as i64 - rank.owed).max(0) / interval * interval;
                }
                rank.caught_up = true;
                rank.owed += interval;
                let turn = rank.turn;
                rank.turn = (turn + 1) % timing.turns;
                let theirs = |at: usize| timing.turns == 1 || at % per_group == turn;
                let chosen = || banks.iter().enumerate().filter(|(at, _)| theirs(*at));
                let precharged = chosen().map(|(_, bank)| {
                    bank.activate_from + if bank.open == Key::NONE { 0 } else { timing.rp }
                });
                rank.refreshed = precharged.fold(begin, u64::max) + timing.rfc;
                for (_, bank) in banks.iter_mut().enumerate().filter(|(at, _)| theirs(*at)) {
                    bank.open = Key::NONE;
                    bank.activate_from = rank.refreshed;
                }
            }
        }
    }

    pub(super) fn commit(&mut self, plan: &Plan, key: Key, wanted: bool) {
        let timing = &self.timing;
        let end = plan.data + timing.burst;
        let column = plan.data - if plan.write { timing.cwl } else { timing.cl };
        let bank = &mut self.banks[key.bank()];
        let rank = &mut self.ranks[key.rank()];
        if plan.activate != OPEN {
            let activate = plan.activate;
            rank.activates[rank.oldest % 4] = activate;
            rank.oldest = (rank.oldest + 1) % 4;
            let window_end = rank.activates[rank.oldest] + timing.faw;
            let from = window_end.max(activate + timing.rrd_s);
            let first = key.rank() * self.groups_of_rank;
            for group in &mut self.groups[first..first + self.groups_of_rank] {
                group.activate_from = from;
            }
            self.groups[bank.group as usize].activate_from =
                window_end.max(activate + timing.rrd_l);
            bank.open = key;
            bank.column_from = activate + timing.rcd;
            bank.activate_from = activate + timing.ras + timing.rp;
        }
        let recovered = if plan.write { end + timing.wr } else { column + timing.rtp };
        bank.activate_from = bank.activate_from.max(recovered + timing.rp);
        bank.open = if wanted { bank.open } else { Key::NONE };
        rank.data_until = end;
        if plan.write {
            rank.read_from = end + timing.wtr;
        } else {
            rank.waiting -= 1;
        }
        if rank.waiting == 0 {
            self.next_refresh = self.next_refresh.min(rank.next_refresh(timing).0);
        }
        self.groups[bank.group as usize].column_from = column + timing.ccd_l;
        self.bus_free = end;
        self.last_rank = key.rank();
        self.last_was_write = plan.write;
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) write: bool,
    pub(super) at: u32,
    /// When its row is activated; [`OPEN`] if it is open.
    pub(super) activate: u64,
    /// When its data start.
    pub(super) data: u64,
}

pub(super) const OPEN: u64 = u64::MAX;
