//! When the programs ended whose pages are told of: all that one had is given back then.
//!
//! Nobody says that a process has ended, but each has a row at the end of each of its intervals, the last one when it
//! ends or is not looked at any more. Its intervals are numbered anew when it executes another program.
//!
//! Always true: a process whose last interval ended near the last one of all has not ended.

use pagemill_model::{Nanos, Pid, Touched};

use crate::recent::Table;

/// Of a process, ns since the recording began.
#[derive(Debug, Default)]
struct Intervals {
    /// When it began to execute another program, in order.
    executed: Vec<u64>,
    /// When the last interval ended.
    until: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Programs {
    processes: Table<Pid, Intervals>,
    /// When the last interval of all ended, ns since the recording began.
    until: u64,
    /// The longest time that an interval took, or was after the one before.
    longest: u64,
}

impl Programs {
    /// Takes in that an interval of a process has ended.
    pub(super) fn interval(&mut self, pid: Pid, row: &Touched, started: Nanos) {
        let ends = [row.began.unwrap_or(row.time), row.time];
        let [began, until] = ends.map(|time| time.since(started).0);
        let mut length = until.saturating_sub(began);
        if let Some(known) = self.processes.get_mut(&pid) {
            if row.number == Some(0) {
                known.executed.push(began);
            }
            length = length.max(until.saturating_sub(known.until));
            known.until = known.until.max(until);
        } else {
            self.processes.insert(pid, Intervals { executed: Vec::new(), until });
        }
        self.until = self.until.max(until);
        self.longest = self.longest.max(length);
    }

    /// When the program ended that touched something at a time, if it did before the end.
    pub(super) fn ended(&self, pid: Pid, touched: u64) -> Option<u64> {
        let Intervals { executed, until } = self.processes.get(&pid)?;
        let next = executed.partition_point(|began| *began <= touched);
        let near = self.longest.saturating_mul(2);
        executed
            .get(next)
            .or(Some(until).filter(|until| until.saturating_add(near) < self.until))
            .copied()
    }
}
