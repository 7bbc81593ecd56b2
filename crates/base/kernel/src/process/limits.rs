//! What this process may use at most (getrlimit(2)).

use crate::{Linux, Result};

/// A limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `RLIMIT_NOFILE`, descriptors.
    Descriptors,
    /// `RLIMIT_AS`, bytes.
    AddressSpace,
    /// `RLIMIT_STACK`, bytes: of the first thread.
    Stack,
}

impl Resource {
    /// The soft limit of this process; `None` without one.
    pub fn limit(self) -> Option<u64> {
        let resource = match self {
            Self::Descriptors => rustix::process::Resource::Nofile,
            Self::AddressSpace => rustix::process::Resource::As,
            Self::Stack => rustix::process::Resource::Stack,
        };
        rustix::process::getrlimit(resource).current
    }
}

impl Linux {
    /// How many mappings a process may have (`vm.max_map_count`). Remapping needs one for each page that leaves its
    /// place.
    ///
    /// # Errors
    /// The file cannot be read, or holds no number.
    pub fn max_map_count(&self) -> Result<u64> {
        self.read_number("/proc/sys/vm/max_map_count")
    }
}

/// What to do about an error that says nothing but that something has run out here.
pub fn advice(error: &std::io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EAGAIN => Some("raise the limit on processes, ulimit -u, or end some"),
        libc::EMFILE => Some("raise the limit on open files: ulimit -n"),
        libc::ENFILE => Some("the system has no room for more open files: close some"),
        libc::ENOMEM => {
            Some("raise the limit on memory, ulimit -v or the control group's, or free some")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_a_real_machine_reads() {
        assert_eq!(crate::fixtures::debian().max_map_count().unwrap(), 65_530);
    }

    #[test]
    fn the_limit_of_descriptors_is_what_the_kernel_says() {
        let text = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let soft = line.split_whitespace().next().unwrap().parse().ok();
        assert_eq!(Resource::Descriptors.limit(), soft);
    }
}
