//! The kernel's own placement: hint faults that promote hot pages, and reclaim that demotes cold ones
//! (Documentation/admin-guide/sysctl/kernel.rst, `numa_balancing`; mm/memory-tiers.c).
//!
//! `numa_balancing` is a sum: 1 balances between sockets, 2 promotes between tiers. What came of it is
//! counted in [`crate::memory::vmstat`] and, by node, in [`crate::nodes`].

use crate::error::present;
use crate::{Linux, Result};

/// The switch of hint faults.
pub const NUMA_BALANCING: &str = "/proc/sys/kernel/numa_balancing";
/// How much may be promoted a second, in MB.
pub const PROMOTE_RATE_LIMIT: &str = "/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps";
/// The switch of demotion by reclaim.
pub const DEMOTION_ENABLED: &str = "/sys/kernel/mm/numa/demotion_enabled";

/// The switches. Absent means that this kernel does not have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// 0 off, 1 between sockets, 2 between tiers, 3 both.
    pub mode: Option<u64>,
    /// MB a second.
    pub promote_rate_limit: Option<u64>,
    /// Whether reclaim demotes instead of swapping.
    pub demotion: Option<bool>,
}

impl Linux {
    /// The switches.
    ///
    /// # Errors
    /// A file is there and cannot be read, or holds no number.
    pub fn numa_balancing(&self) -> Result<Balancing> {
        let demotion = present(self.read(DEMOTION_ENABLED))?;
        Ok(Balancing {
            mode: present(self.read_number(NUMA_BALANCING))?,
            promote_rate_limit: present(self.read_number(PROMOTE_RATE_LIMIT))?,
            demotion: demotion.map(|text| matches!(text.trim(), "true" | "1")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_switches_of_a_machine_with_two_nodes_are_read() {
        let linux = fixtures::two_nodes();
        let balancing = linux.numa_balancing().unwrap();
        assert_eq!((balancing.mode, balancing.demotion), (Some(1), Some(false)));
        assert_eq!(balancing.promote_rate_limit, Some(65536));
        assert_eq!(linux.vmstat().unwrap().get("pgpromote_success"), Some(0));
    }

    #[test]
    fn a_kernel_without_them_has_none() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Linux::at(root.path()).numa_balancing().unwrap(), Balancing::default());
    }
}
