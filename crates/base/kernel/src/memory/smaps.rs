//! `/proc/PID/smaps` and `smaps_rollup`: how much physical memory a process uses (proc_pid_smaps(5)).
//!
//! Rss counts a page once a mapping that shows it, so memory that a process maps twice, or that it
//! shares, is counted too often. Pss divides each page by the number of its mappings: the sum over
//! all processes is the memory really in use. pagemill reports Pss.
//!
//! A field that this kernel does not print is `None`.

use pagemill_model::Pid;

use crate::memory::maps::Mapping;
use crate::{Error, Kind, Linux, Result, kibibytes};

macro_rules! usage {
    ($($(#[$doc:meta])* $field:ident = $key:literal,)*) => {
        /// Physical memory of one mapping or of a whole process. All values are bytes.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Usage {
            $($(#[$doc])* pub $field: Option<u64>,)*
        }

        impl Usage {
            /// The field that the kernel calls `key`.
            fn field(&mut self, key: &str) -> Option<&mut Option<u64>> {
                match key {
                    $($key => Some(&mut self.$field),)*
                    _ => None,
                }
            }

            /// Adds `other` field by field; what either lacks stays what the other has.
            fn add(&mut self, other: &Self) {
                $(self.$field = match (self.$field, other.$field) {
                    (Some(a), Some(b)) => Some(a.saturating_add(b)),
                    (a, b) => a.or(b),
                };)*
            }
        }
    };
}

usage! {
    /// Resident set: pages that the mapping shows, each counted in full.
    rss = "Rss",
    /// Proportional set: each page divided by the number of its mappings.
    pss = "Pss",
    /// The dirty part of `pss`.
    pss_dirty = "Pss_Dirty",
    /// The anonymous part of `pss` (rollup only).
    pss_anon = "Pss_Anon",
    /// The file-backed part of `pss` (rollup only).
    pss_file = "Pss_File",
    /// The shared-memory part of `pss`, memfds included (rollup only).
    pss_shmem = "Pss_Shmem",
    /// Clean pages that more than one mapping shows.
    shared_clean = "Shared_Clean",
    /// Dirty pages that more than one mapping shows.
    shared_dirty = "Shared_Dirty",
    /// Clean pages of this mapping only.
    private_clean = "Private_Clean",
    /// Dirty pages of this mapping only.
    private_dirty = "Private_Dirty",
    /// Pages marked as accessed.
    referenced = "Referenced",
    /// Pages that belong to no file.
    anonymous = "Anonymous",
    /// Pages that the kernel merged (KSM), zero pages not counted.
    ksm = "KSM",
    /// Pages that `MADV_FREE` lets the kernel take back.
    lazy_free = "LazyFree",
    /// Anonymous memory in huge pages that one page-table entry maps.
    anon_huge_pages = "AnonHugePages",
    /// The same for shared memory.
    shmem_pmd_mapped = "ShmemPmdMapped",
    /// The same for files.
    file_pmd_mapped = "FilePmdMapped",
    /// Pages of hugetlbfs in shared mappings; not part of `rss`.
    shared_hugetlb = "Shared_Hugetlb",
    /// Pages of hugetlbfs in private mappings; not part of `rss`.
    private_hugetlb = "Private_Hugetlb",
    /// Anonymous memory in swap.
    swap = "Swap",
    /// Proportional share of memory in swap.
    swap_pss = "SwapPss",
    /// Memory locked by `mlock`.
    locked = "Locked",
}

/// One mapping with the physical memory behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingUsage {
    /// Where it is and what it maps.
    pub mapping: Mapping,
    /// What it takes.
    pub usage: Usage,
    /// Flags of the area in the kernel's two-letter words, such as `hg` (huge pages advised), `mg`
    /// (may be merged) or `uw` (userfaultfd write tracking).
    pub flags: Vec<String>,
}

impl MappingUsage {
    fn flag(&self, any: &[&str]) -> bool {
        self.flags.iter().any(|flag| any.contains(&flag.as_str()))
    }

    /// Whether a driver put pages of its own into it, or none at all (`VM_IO`, `VM_PFNMAP`, `VM_MIXEDMAP`): a page
    /// table entry that is dropped there may be lost for good.
    pub fn of_driver(&self) -> bool {
        self.flag(&["io", "pf", "mm"])
    }

    /// Whether it is of hugetlbfs.
    pub fn huge_pages(&self) -> bool {
        self.flag(&["ht"])
    }
}

impl Linux {
    /// Physical memory of the whole process `pid`. Kernels before 4.14 have no rollup; there the sum
    /// over its mappings is returned.
    ///
    /// # Errors
    /// The process has ended or may not be looked into, or the file is not of the form that is known.
    pub fn smaps_rollup(&self, pid: Pid) -> Result<Usage> {
        match self.read_of(pid, "smaps_rollup") {
            Ok(text) => {
                let path = self.process_file(pid, "smaps_rollup");
                let mut mappings =
                    parse(&text).map_err(|why| Error::malformed(path.display(), why))?;
                match mappings.pop() {
                    Some(whole) if mappings.is_empty() => Ok(whole.usage),
                    _ => Err(Error::malformed(path.display(), "not exactly one entry")),
                }
            }
            Err(error) if error.kind() == Kind::NotFound => {
                let mut sum = Usage::default();
                self.smaps(pid)?.iter().for_each(|entry| sum.add(&entry.usage));
                Ok(sum)
            }
            Err(error) => Err(error),
        }
    }

    /// Marks all pages of `pid` as not accessed: [`Usage::referenced`] counts from here (proc_pid_clear_refs(5)). The
    /// program's next access to each page walks its page table again, and costs no more than that.
    ///
    /// # Errors
    /// The process has ended, or may not be looked into.
    pub fn clear_referenced(&self, pid: Pid) -> Result<()> {
        self.write(format!("/proc/{pid}/clear_refs"), "1")
    }

    /// Physical memory of each mapping of `pid`, in address order.
    ///
    /// # Errors
    /// As of [`Linux::smaps_rollup`].
    pub fn smaps(&self, pid: Pid) -> Result<Vec<MappingUsage>> {
        let text = self.read_of(pid, "smaps")?;
        parse(&text).map_err(|why| Error::malformed(self.process_file(pid, "smaps").display(), why))
    }
}

/// Parses either file. A line that starts with an address opens an entry; the others are
/// `Key:  value kB`, `Key: value` or `VmFlags: aa bb`.
fn parse(text: &str) -> std::result::Result<Vec<MappingUsage>, String> {
    let mut entries: Vec<MappingUsage> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = Mapping::parse(line) {
            // One that grew while the file was read may be listed again.
            entries.pop_if(|last| last.mapping.start >= mapping.start);
            entries.push(MappingUsage { mapping, usage: Usage::default(), flags: Vec::new() });
            continue;
        }
        let entry = entries.last_mut().ok_or_else(|| format!("{line:?} before any mapping"))?;
        let (key, value) = line.split_once(':').ok_or_else(|| format!("{line:?}"))?;
        if key == "VmFlags" {
            entry.flags = value.split_whitespace().map(str::to_owned).collect();
        } else if let Some(field) = entry.usage.field(key) {
            *field = Some(kibibytes(value).ok_or_else(|| format!("{line:?}"))?);
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_rollup_of_a_real_process_reads_in_bytes() {
        let usage = fixtures::debian().smaps_rollup(fixtures::PROCESS).unwrap();
        assert_eq!(usage.rss, Some(1736 * 1024));
        assert_eq!(usage.pss_shmem, Some(0));
        assert_eq!(usage.pss.unwrap(), usage.pss_anon.unwrap() + usage.pss_file.unwrap());
    }

    #[test]
    fn the_mappings_of_a_real_process_add_up_to_its_rollup() {
        let linux = fixtures::debian();
        let mut sum = Usage::default();
        for entry in linux.smaps(fixtures::PROCESS).unwrap() {
            assert!(!entry.flags.is_empty(), "{:?}", entry.mapping);
            sum.add(&entry.usage);
        }
        let rollup = linux.smaps_rollup(fixtures::PROCESS).unwrap();
        assert_eq!((sum.rss, sum.anonymous), (rollup.rss, rollup.anonymous));
    }

    #[test]
    fn a_field_that_the_kernel_does_not_print_is_absent() {
        let text = "1000-2000 rw-p 00000000 00:00 0 \nRss:  4 kB\nTHPeligible:  0\n";
        let usage = parse(text).unwrap().pop().unwrap().usage;
        assert_eq!((usage.rss, usage.pss, usage.ksm), (Some(4096), None, None));
    }

    #[test]
    fn a_mapping_that_is_listed_twice_counts_once() {
        let text = "1000-2000 rw-p 00000000 00:00 0 [heap]\nRss:  4 kB\n1000-3000 rw-p 00000000 00:00 0 \
                    [heap]\nRss:  8 kB\n";
        let entries = parse(text).unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].usage.rss, Some(8192));
    }

    #[test]
    fn memory_that_this_process_touches_shows_in_its_rollup() {
        // More than the tests beside this one hold, which come and go: a difference of two looks would count theirs.
        let ballast = vec![1_u8; 256 << 20];
        let seen = Linux::live().smaps_rollup(Pid::own()).unwrap().pss_anon.unwrap();
        assert!(seen >= ballast.len() as u64, "{seen} of {} B", ballast.len());
    }
}
