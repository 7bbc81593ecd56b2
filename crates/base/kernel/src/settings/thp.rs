//! Transparent huge pages (Documentation/admin-guide/mm/transhuge.rst): what the system allows.
//!
//! A setting is a line of words with the chosen one in brackets: `always [madvise] never`.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::error::present;
use crate::{Error, Linux, Result};

const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

/// Name of the loan of these settings (`crate::settings::loan`), under which whoever changes them borrows them.
pub const LOAN: &str = "thp";

/// Whether anonymous memory uses huge pages of the largest size.
pub const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Whether a page fault may wait for a huge page.
pub const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";

/// Whether anonymous memory uses pages of 64 KiB.
pub const MEDIUM: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";

/// Name of the loan of [`MEDIUM`] alone.
pub const MEDIUM_LOAN: &str = "thp-64kb";

/// A setting with a fixed set of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The value in force.
    pub active: String,
    /// All values that this kernel knows.
    pub options: Vec<String>,
}

/// As the kernel writes it: `a [b] c`.
impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |word: &String| match *word == self.active {
            true => format!("[{word}]"),
            false => word.clone(),
        };
        f.write_str(&self.options.iter().map(word).collect::<Vec<_>>().join(" "))
    }
}

impl Choice {
    /// Parses `a [b] c`.
    pub fn parse(text: &str) -> Option<Self> {
        let bare = |word: &str| word.trim_matches(['[', ']']).to_owned();
        let active = text.split_whitespace().find(|word| word.starts_with('['))?;
        Some(Self { active: bare(active), options: text.split_whitespace().map(bare).collect() })
    }
}

/// One size of huge page that this kernel offers (multi-size THP, kernel 6.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// Size of the page.
    pub bytes: u64,
    /// Whether anonymous memory uses it; absent for sizes of shared memory only.
    pub enabled: Option<Choice>,
    /// Whether shared memory uses it; absent before kernel 6.11.
    pub shmem_enabled: Option<Choice>,
}

/// Whether this process, and whatever it starts, is kept from huge pages (`prctl(PR_SET_THP_DISABLE)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disabled {
    /// Not: the system's settings hold.
    No,
    /// But for memory that asks for them with `MADV_HUGEPAGE` (kernel 6.18).
    ExceptAdvised,
    /// Altogether (kernel 3.15).
    Altogether,
}

const PR_SET_THP_DISABLE: libc::c_int = 41;
const PR_THP_DISABLE_EXCEPT_ADVISED: libc::c_ulong = 2;

/// Sets it for this process; what it starts from now on inherits it, over `exec` too. Changes nothing for others.
///
/// # Errors
/// This kernel cannot.
pub fn disable_here(how: Disabled) -> Result<()> {
    let none: libc::c_ulong = 0;
    let (on, flags): (libc::c_ulong, libc::c_ulong) = match how {
        Disabled::No => (0, 0),
        Disabled::ExceptAdvised => (1, PR_THP_DISABLE_EXCEPT_ADVISED),
        Disabled::Altogether => (1, 0),
    };
    // SAFETY: this option takes numbers only.
    let done = unsafe { libc::prctl(PR_SET_THP_DISABLE, on, flags, none, none) };
    if done == 0 {
        return Ok(());
    }
    let error = Error::last("set", "PR_SET_THP_DISABLE");
    Err(match how {
        Disabled::ExceptAdvised => error.advise(
            "boot kernel 6.18 or newer; before, the system's setting is in force for this program",
        ),
        _ => error,
    })
}

impl Linux {
    /// Whether anonymous memory uses huge pages of the largest size.
    ///
    /// # Errors
    /// The kernel has no transparent huge pages, or the file is not of the form that is known.
    pub fn thp_enabled(&self) -> Result<Choice> {
        self.choice(&format!("{DIRECTORY}/enabled"))
    }

    /// What a fault does for a huge page where none is free.
    ///
    /// # Errors
    /// As of [`Linux::thp_enabled`].
    pub fn thp_defrag(&self) -> Result<Choice> {
        self.choice(&format!("{DIRECTORY}/defrag"))
    }

    /// Whether shared memory, memfds included, uses huge pages.
    ///
    /// # Errors
    /// As of [`Linux::thp_enabled`].
    pub fn thp_shmem_enabled(&self) -> Result<Choice> {
        self.choice(&format!("{DIRECTORY}/shmem_enabled"))
    }

    /// Whether anonymous memory uses pages of 64 KiB; `None` on kernels that have none.
    pub fn thp_medium(&self) -> Option<Choice> {
        self.choice(MEDIUM).ok()
    }

    /// Bytes of the largest size, which one page-table entry maps.
    ///
    /// # Errors
    /// As of [`Linux::thp_enabled`].
    pub fn thp_pmd_size(&self) -> Result<u64> {
        self.read_number(format!("{DIRECTORY}/hpage_pmd_size"))
    }

    /// The sizes on offer, smallest first; empty on kernels with one size only.
    ///
    /// # Errors
    /// The kernel has no transparent huge pages, or a file is not of the form that is known.
    pub fn thp_sizes(&self) -> Result<Vec<Size>> {
        let directory = self.path(DIRECTORY);
        let entries = std::fs::read_dir(&directory)
            .map_err(|error| Error::io("list", directory.display(), error))?;
        let mut sizes = Vec::new();
        for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
            let kibibytes =
                name.strip_prefix("hugepages-").and_then(|name| name.strip_suffix("kB"));
            let Some(Ok(kibibytes)) = kibibytes.map(str::parse::<u64>) else { continue };
            let Some(bytes) = kibibytes.checked_mul(1024) else { continue };
            sizes.push(Size {
                bytes,
                enabled: present(self.choice(&format!("{DIRECTORY}/{name}/enabled")))?,
                shmem_enabled: present(self.choice(&format!("{DIRECTORY}/{name}/shmem_enabled")))?,
            });
        }
        sizes.sort_by_key(|size| size.bytes);
        Ok(sizes)
    }

    /// A setting of the form `a [b] c`.
    pub(crate) fn choice(&self, path: &str) -> Result<Choice> {
        let text = self.read(path)?;
        Choice::parse(&text).ok_or_else(|| Error::malformed(path, format_args!("{text:?}")))
    }
}

/// Has the program that `command` will start, and all that it starts, do without transparent huge
/// pages (`PR_SET_THP_DISABLE`, since 3.15).
pub fn switch_off_in(command: &mut Command) {
    let switch_off = || {
        // SAFETY: this option of `prctl` takes numbers only.
        match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the closure makes one system call and neither allocates nor locks.
    unsafe { command.pre_exec(switch_off) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn the_settings_of_a_real_machine_read() {
        let linux = fixtures::debian();
        assert_eq!(linux.thp_enabled().unwrap().active, "madvise");
        assert_eq!(linux.thp_enabled().unwrap().options, ["always", "madvise", "never"]);
        assert_eq!(linux.thp_shmem_enabled().unwrap().active, "never");
        assert_eq!(linux.thp_pmd_size().unwrap(), 2 << 20);
    }

    #[test]
    fn the_sizes_come_smallest_first_and_an_absent_setting_stays_absent() {
        let sizes = fixtures::debian().thp_sizes().unwrap();
        assert!(sizes.windows(2).all(|pair| pair[0].bytes < pair[1].bytes));
        assert_eq!(sizes.first().unwrap().bytes, 8 << 10);
        assert_eq!(sizes.first().unwrap().enabled, None, "8 KiB is for shared memory only");
        assert_eq!(sizes.last().unwrap().enabled.as_ref().unwrap().active, "inherit");
    }

    #[test]
    fn a_line_without_a_choice_is_refused() {
        assert_eq!(Choice::parse("always madvise never"), None);
    }
}
