//! What this process may use at most (getrlimit(2)).

/// A limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `RLIMIT_NOFILE`, descriptors.
    Descriptors,
    /// `RLIMIT_AS`, bytes.
    AddressSpace,
}

impl Resource {
    /// The soft limit of this process; `None` without one.
    pub fn limit(self) -> Option<u64> {
        let resource = match self {
            Self::Descriptors => rustix::process::Resource::Nofile,
            Self::AddressSpace => rustix::process::Resource::As,
        };
        rustix::process::getrlimit(resource).current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_descriptors_is_what_the_kernel_says() {
        let text = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let soft = line.split_whitespace().next().unwrap().parse().ok();
        assert_eq!(Resource::Descriptors.limit(), soft);
    }
}
