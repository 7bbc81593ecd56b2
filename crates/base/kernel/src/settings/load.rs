//! What a machine is doing on the whole: load average, CPUs, memory in use, boot, frequency.

use crate::{Error, Linux, Result, kibibytes};

/// A look at the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Load average of the last minute, in hundredths.
    pub hundredths: u64,
    /// Memory, bytes.
    pub memory: u64,
    /// What programs could still have of it without swapping, bytes.
    pub available: u64,
}

impl Linux {
    /// Load average (proc(5), `/proc/loadavg`) and memory (`/proc/meminfo`).
    ///
    /// # Errors
    /// A file cannot be read, or is not of the form that is known.
    pub fn load(&self) -> Result<Load> {
        let text = self.read("/proc/loadavg")?;
        let first = text.split_whitespace().next().unwrap_or_default();
        let load: f64 = first
            .parse()
            .map_err(|_| Error::malformed("/proc/loadavg", format_args!("{first:?} is no load")))?;
        let memory = self.read("/proc/meminfo")?;
        let bytes = |key: &str| {
            let line = memory.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.and_then(kibibytes)
                .ok_or_else(|| Error::malformed("/proc/meminfo", format_args!("no {key}")))
        };
        Ok(Load {
            hundredths: (load * 100.0).round() as u64,
            memory: bytes("MemTotal")?,
            available: bytes("MemAvailable")?,
        })
    }

    /// Time that all CPUs together have been idle since boot (proc_stat(5), `idle` and `iowait`), in clock ticks.
    ///
    /// # Errors
    /// The file cannot be read, or has no line of all CPUs.
    pub fn idle_ticks(&self) -> Result<u64> {
        let text = self.read("/proc/stat")?;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
        let mut words = line.unwrap_or_default().split_whitespace().skip(3);
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok());
        match (next(), next()) {
            (Some(idle), Some(waiting)) => Ok(idle.saturating_add(waiting)),
            _ => Err(Error::malformed("/proc/stat", "no line of all CPUs")),
        }
    }

    /// Threads that run or wait for a CPU right now, the caller's among them.
    ///
    /// # Errors
    /// The file cannot be read, or does not say it.
    pub fn runnable(&self) -> Result<u64> {
        let text = self.read("/proc/stat")?;
        let count = text.lines().find_map(|line| line.strip_prefix("procs_running "));
        let count = count.and_then(|count| count.trim().parse().ok());
        count.ok_or_else(|| Error::malformed("/proc/stat", "no line procs_running"))
    }

    /// A name of this boot (random(4), `boot_id`).
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn boot(&self) -> Result<String> {
        self.read("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned())
    }

    /// Cycles in a microsecond, as the first processor of `/proc/cpuinfo` says; `None` where it does not.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn mhz(&self) -> Result<Option<u64>> {
        let text = self.read("/proc/cpuinfo")?;
        let line = text.lines().find(|line| line.starts_with("cpu MHz"));
        let mhz: Option<f64> = line.and_then(|line| line.split_once(':')?.1.trim().parse().ok());
        Ok(mhz.map(|mhz| mhz.round() as u64))
    }

    /// The load averages of the last 1, 5 and 15 minutes, as `/proc/loadavg` has them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn load_averages(&self) -> Result<String> {
        let text = self.read("/proc/loadavg")?;
        Ok(text.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
    }

    /// What this machine is called.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn hostname(&self) -> Result<String> {
        self.read("/proc/sys/kernel/hostname").map(|text| text.trim().to_owned())
    }

    /// The name of the first processor of `/proc/cpuinfo`; `None` where it has none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn processor(&self) -> Result<Option<String>> {
        let text = self.read("/proc/cpuinfo")?;
        let line = text.lines().find(|line| line.starts_with("model name"));
        Ok(line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned())))
    }

    /// Bytes of the first processor's cache of this level that holds data; `None` where the kernel names none.
    pub fn cache_bytes(&self, level: u32) -> Option<u64> {
        (0..8).find_map(|index| {
            let read = |name: &str| {
                let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
                Some(self.read(path).ok()?.trim().to_owned())
            };
            let holds_data = read("type")? != "Instruction";
            let size = read("size")?;
            let kib: u64 = size.strip_suffix('K')?.parse().ok()?;
            (holds_data && read("level")? == level.to_string()).then(|| kib.checked_mul(1024))?
        })
    }

    /// Whether it is a virtual machine, as its first processor says (the flag `hypervisor`).
    pub fn is_virtual(&self) -> bool {
        let text = self.read("/proc/cpuinfo").unwrap_or_default();
        let mut lines = text.lines().filter(|line| line.starts_with("flags"));
        lines.next().is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Writes a file of a machine at `root`.
    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_machine_is_read() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| put(root.path(), path, text);
        put("proc/loadavg", "1.27 0.90 0.50 2/300 4711\n");
        put("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:    400 kB\n");
        put("proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2599.998\n");
        let linux = Linux::at(root.path());
        let load = linux.load().unwrap();
        assert_eq!(load, Load { hundredths: 127, memory: 1_024_000, available: 409_600 });
        assert_eq!(linux.mhz().unwrap(), Some(2600));
        put("proc/loadavg", "much");
        assert!(linux.load().unwrap_err().to_string().contains("no load"));
        put("proc/cpuinfo", "processor\t: 0\n");
        assert_eq!(linux.mhz().unwrap(), None);
    }

    /// Found by a fuzzer: `1844674407370955161 kB` of free swap were a panic, and in a release build another number.
    #[test]
    fn more_than_there_can_be_is_malformed() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| put(root.path(), path, text);
        put("proc/loadavg", "1.27 0.80 0.70 3/110 4242\n");
        let much = format!("{} kB", u64::MAX / 10);
        put("proc/meminfo", &format!("SwapFree: {much}\nMemTotal: {much}\nMemAvailable: {much}\n"));
        put("proc/7/smaps_rollup", &format!("1000-2000 ---p 0 00:00 0 [rollup]\nRss: {much}\n"));
        put("proc/stat", &format!("cpu  1 2 3 {0} {0}\n", u64::MAX));
        put("sys/devices/system/node/has_memory", "0-4294967295\n");
        let linux = Linux::at(root.path());
        assert!(linux.free_swap().is_err() && linux.load().is_err());
        assert!(linux.smaps_rollup(pagemill_model::Pid(7)).is_err());
        assert_eq!(linux.idle_ticks().unwrap(), u64::MAX);
        assert!(linux.memory_nodes().is_err());
    }
}
