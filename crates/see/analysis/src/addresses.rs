//! Addresses and pages of several processes, as recordings tell them.

use pagemill_model::Vpn;

/// An address of a process; in order by process first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessAddress {
    /// The process.
    pub pid: u64,
    /// The address.
    pub address: u64,
}

impl ProcessAddress {
    /// Of both.
    pub const fn new(pid: u64, address: u64) -> Self {
        Self { pid, address }
    }
}

/// A page of a process; in order by process first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessPage {
    /// The process.
    pub pid: u64,
    /// The number of the page.
    pub vpn: Vpn,
}

impl ProcessPage {
    /// By the number of the page.
    pub const fn new(pid: u64, number: u64) -> Self {
        Self { pid, vpn: Vpn(number) }
    }
}
