//! Addresses and pages of several processes, as recordings tell them.

use std::collections::BTreeMap;

use pagemill_model::{Pid, Vpn};

/// An address of a process; in order by process first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessAddress {
    /// The process.
    pub pid: Pid,
    /// The address.
    pub address: u64,
}

impl ProcessAddress {
    /// Of both.
    pub const fn new(pid: Pid, address: u64) -> Self {
        Self { pid, address }
    }
}

/// A page of a process; in order by process first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessPage {
    /// The process.
    pub pid: Pid,
    /// The number of the page.
    pub vpn: Vpn,
}

impl ProcessPage {
    /// By the number of the page.
    pub const fn new(pid: Pid, number: u64) -> Self {
        Self { pid, vpn: Vpn(number) }
    }
}

/// Ranges by where they begin: their end, and what they are.
pub type Ranges<T> = BTreeMap<ProcessAddress, (u64, T)>;

/// Puts a range that is not empty in place of what it overlaps, in part or whole.
pub fn lay<T>(ranges: &mut Ranges<T>, at: ProcessAddress, (end, what): (u64, T)) {
    // None overlaps another, so the last ones before its end.
    let below = ranges.range(ProcessAddress::new(at.pid, 0)..ProcessAddress::new(at.pid, end));
    let over = below.rev().take_while(|(_, (other_end, _))| *other_end > at.address);
    let stale: Vec<_> = over.map(|(key, _)| *key).collect();
    for key in stale {
        ranges.remove(&key);
    }
    ranges.insert(at, (end, what));
}
