//! `/proc/vmstat`: counters of the memory management of the whole system since boot.

use crate::{Linux, Result};

/// The counters, looked at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vmstat(Vec<(String, u64)>);

impl Vmstat {
    /// The counter of this name; absent on a kernel without it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(counter, _)| counter == name).map(|&(_, value)| value)
    }

    /// By how much the counter has grown since `earlier`.
    pub fn since(&self, earlier: &Self, name: &str) -> Option<u64> {
        Some(self.get(name)?.saturating_sub(earlier.get(name)?))
    }
}

impl Linux {
    /// All counters.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn vmstat(&self) -> Result<Vmstat> {
        let text = self.read("/proc/vmstat")?;
        let line = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Ok(Vmstat(text.lines().filter_map(line).collect()))
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures;

    #[test]
    fn the_counters_of_a_real_machine_read() {
        let vmstat = fixtures::debian().vmstat().unwrap();
        assert_eq!(vmstat.get("compact_stall"), Some(0));
        assert!(vmstat.get("nr_free_pages").is_some_and(|pages| pages > 0));
        assert_eq!(vmstat.get("nr_unheard_of"), None);
        assert_eq!(vmstat.since(&vmstat, "pgfault"), Some(0));
    }
}
