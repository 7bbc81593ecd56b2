//! `mbind(2)`: which node a range of this process's memory comes from; and the weights by which
//! weighted interleaving spreads new memory over nodes
//! (Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave).

use pagemill_model::Pid;

use crate::error::done;
use crate::memory::mapped::Mapped;
use crate::{Error, Linux, Result};

const WEIGHTS: &str = "/sys/kernel/mm/mempolicy/weighted_interleave";

/// The file that holds the weight of `node`.
pub fn weight_file(node: u32) -> String {
    format!("{WEIGHTS}/node{node}")
}

/// Writing a weight turns this off (kernel 6.16); writing `true` puts the firmware's weights back.
pub const AUTO_WEIGHTS: &str = "/sys/kernel/mm/mempolicy/weighted_interleave/auto";

/// The nodes that a process may have memory of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Their numbers.
    pub nodes: Vec<u32>,
    /// The same as the kernel lists them.
    pub list: String,
    /// What says so: a cpuset, or its memory policy.
    pub by: &'static str,
}

impl Linux {
    /// What binds a process to some nodes: its memory policy (`numactl --membind`, which `move_pages(2)` pays no heed
    /// to), else its cpuset; `None` where neither does, or cannot be read. A policy of single mappings is not looked
    /// for: it would take a walk over all page tables.
    pub fn memory_binding(&self, pid: Pid) -> Option<Binding> {
        let numa_maps = std::fs::File::open(self.path(format!("/proc/{pid}/numa_maps"))).ok();
        let first = numa_maps.and_then(|file| {
            let mut line = String::new();
            std::io::BufRead::read_line(
                &mut std::io::BufReader::with_capacity(512, file),
                &mut line,
            )
            .ok()?;
            line.split_whitespace().nth(1).map(str::to_owned)
        });
        if let Some(list) = first.as_deref().and_then(bound_to) {
            let nodes = crate::nodes::parse_list(&list).unwrap_or_default();
            return Some(Binding { nodes, list, by: "its memory policy (numactl --membind)" });
        }
        let status = self.read(format!("/proc/{pid}/status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?.trim();
        let nodes = crate::nodes::parse_list(list)?;
        let all = self.read("/sys/devices/system/node/has_memory").ok()?;
        let all = crate::nodes::parse_list(&all)?;
        let less = all.iter().any(|node| !nodes.contains(node));
        less.then(|| Binding { nodes, list: list.to_owned(), by: "its cpuset" })
    }
}

/// The nodes of a policy that binds, as `numa_maps` writes it: `bind:0-1`, `bind=static:0`.
fn bound_to(policy: &str) -> Option<String> {
    let (mode, nodes) = policy.split_once(':')?;
    (mode.split('=').next() == Some("bind")).then(|| nodes.to_owned())
}

/// Anonymous memory of this process that comes from one node.
#[derive(Debug)]
pub struct Bound(Mapped);

impl Bound {
    /// `len` bytes, zeroed, that `node` will provide as they are touched. `len` is rounded up to
    /// whole pages.
    ///
    /// # Errors
    /// There is no such node, or no address space left.
    pub fn on(node: u32, len: usize) -> Result<Self> {
        /// `MPOL_BIND`.
        const BIND: libc::c_int = 2;
        let len = len.max(1).next_multiple_of(crate::page_size());
        let memory = Mapped::anonymous(len, 0)
            .map_err(|error| Error::io("map", format_args!("{len} bytes"), error))?;
        let mut mask = [0_u64; 16];
        if let Some(word) = mask.get_mut(node as usize / 64) {
            *word |= 1 << (node % 64);
        }
        // SAFETY: the range is the mapping made above; `mask` has the 1024 bits announced and lives
        // across the call (the kernel counts one bit less than it is told).
        let refused = unsafe {
            let (start, mask) = (memory.start(), mask.as_ptr());
            libc::syscall(libc::SYS_mbind, start, len, BIND, mask, 1024 + 1_usize, 0)
        };
        if refused < 0 {
            return Err(Error::last("bind memory to", format_args!("node {node}")));
        }
        Ok(Self(memory))
    }

    /// Takes the policy back: what has been touched stays where it is, and may move.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn release(&mut self) -> Result<()> {
        /// `MPOL_DEFAULT`.
        const DEFAULT: libc::c_int = 0;
        let none = std::ptr::null::<u64>();
        // SAFETY: the range is this value's own mapping; without a mask none is read.
        let refused = unsafe {
            libc::syscall(libc::SYS_mbind, self.0.start(), self.len(), DEFAULT, none, 0_usize, 0)
        };
        if refused < 0 { Err(Error::last("unbind", "memory")) } else { Ok(()) }
    }

    /// Asks for huge pages where it is touched from now on, so that few reads wait for a page table.
    ///
    /// # Errors
    /// The kernel has no huge pages.
    pub fn ask_for_huge_pages(&mut self) -> Result<()> {
        self.0.advise(libc::MADV_HUGEPAGE).map_err(|error| {
            Error::io("ask for huge pages for", format_args!("{} bytes", self.len()), error)
        })
    }

    /// Locks it in memory.
    ///
    /// # Errors
    /// The limit of locked memory is lower.
    pub fn lock(&mut self) -> Result<()> {
        // SAFETY: the range is this value's own mapping; locking changes no byte of it.
        let locked = unsafe { libc::mlock(self.0.start().cast(), self.len()) };
        done(locked, "lock", format_args!("{} bytes", self.len()))
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable for `len` bytes, zeroed by the kernel where it
        // was not written, lives as long as `self`, and nothing else refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.0.start(), self.len()) }
    }

    /// Bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "it has at least a page")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.0.address()
    }
}

/// Forks a child that maps all memory of this process too and waits for its end.
///
/// # Errors
/// No more processes may be started.
pub fn fork_a_sleeper() -> Result<()> {
    // SAFETY: the child only waits, by async-signal-safe calls, and leaves without running anything of
    // this process.
    match unsafe { libc::fork() } {
        -1 => Err(Error::last("fork", "a child")),
        0 => {
            // SAFETY: these calls take numbers only. The child ends with its parent.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::move_pages::{PageLocation, locate};

    #[test]
    fn a_policy_that_binds_is_told_from_those_that_prefer() {
        assert_eq!(bound_to("bind:0"), Some("0".into()));
        assert_eq!(bound_to("bind=static:0-1"), Some("0-1".into()));
        for other in ["default", "prefer:0", "interleave:0-1", "weighted interleave:0-1", "local"] {
            assert_eq!(bound_to(other), None, "{other}");
        }
        // The kernel counts this process among those that may use all nodes, unless somebody has bound the tests.
        if let Some(binding) = Linux::live().memory_binding(Pid::own()) {
            assert!(!binding.nodes.is_empty(), "{binding:?}");
        }
    }

    #[test]
    fn bound_memory_is_where_it_should_be() {
        let mut memory = match Bound::on(0, 3 * 4096 + 1) {
            Ok(memory) => memory,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        assert_eq!(memory.bytes().len() % crate::page_size(), 0);
        memory.bytes().fill(7);
        memory.release().unwrap();
        if let Err(error) = memory.lock() {
            eprintln!("skipped: {error}");
        }
        match locate(Pid::own(), &[memory.address()]) {
            Ok(places) => assert_eq!(places, [PageLocation::Node(0)]),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }

    #[test]
    fn a_node_that_does_not_exist_is_an_error() {
        assert!(Bound::on(1000, 4096).is_err());
    }
}
