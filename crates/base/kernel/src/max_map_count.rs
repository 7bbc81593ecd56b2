//! `vm.max_map_count`: how many mappings one process may have. Remapping needs one for each page
//! that leaves its place.

use crate::{Linux, Result};

impl Linux {
    /// Mappings that a process may have.
    pub fn max_map_count(&self) -> Result<u64> {
        self.read_number("/proc/sys/vm/max_map_count")
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures;

    #[test]
    fn the_limit_of_a_real_machine_reads() {
        assert_eq!(fixtures::debian().max_map_count().unwrap(), 65_530);
    }
}
