//! Compaction and the lists of the processors (Documentation/admin-guide/sysctl/vm.rst): having the
//! kernel gather free memory.
//!
//! - **compact**: moves pages to the end of each zone until free and used memory are apart. It may give
//!   up early without an error.
//! - **drain**: frees the pages on the lists of the processors, which then join their buddies. No file
//!   does that alone, but a list that must be short is emptied when the statistics of its
//!   processor are refreshed: so the permitted length is set to its least, the statistics are refreshed and
//!   the length is put back. No page moves.

use std::path::Path;

use crate::settings::loan::Loan;
use crate::{Kind, Linux, Result};

/// How eagerly the kernel compacts on its own, 0 to 100 (kernel 5.9).
pub const PROACTIVENESS: &str = "/proc/sys/vm/compaction_proactiveness";

/// The share of a zone, 1 in this many pages, that a processor may keep on its list; 0: the kernel
/// chooses (kernel 5.14).
pub const HIGH_FRACTION: &str = "/proc/sys/vm/percpu_pagelist_high_fraction";

/// The number of huge pages in the reserved pool.
pub const RESERVED_HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// How much rather memory of programs is swapped out than files are reclaimed; 0: only files, as long as there are
/// some.
pub const SWAPPINESS: &str = "/proc/sys/vm/swappiness";

/// Names of the loans of these settings, one for each group that is changed together: who borrows
/// a file must do so under the one name, or two borrowers would put back each other's values.
pub const COMPACTION_LOAN: &str = "compaction";
/// See [`COMPACTION_LOAN`]: [`HIGH_FRACTION`].
pub const LISTS_LOAN: &str = "pagelists";
/// See [`COMPACTION_LOAN`]: [`RESERVED_HUGE_PAGES`] and [`SWAPPINESS`].
pub const RESERVED_LOAN: &str = "hugepages";

const COMPACT: &str = "/proc/sys/vm/compact_memory";
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
const SLABS: &str = "/sys/kernel/slab";
const REFRESH: &str = "/proc/sys/vm/stat_refresh";

/// So small a share that no list keeps anything; the kernel takes numbers up to that of `int`.
pub const NOTHING_KEPT: &str = "1000000000";

/// A refresh frees a few thousand pages of each list at most. So refreshes go on until this many in a
/// row have freed fewer than [`LITTLE`] pages, but not for ever: programs fill the lists meanwhile.
const IN_VAIN: usize = 3;
const LITTLE: u64 = 64;
const REFRESHES: usize = 1000;

/// What the kernel may drop with [`Linux::drop_caches`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Clean pages of files.
    Pages,
    /// Names and attributes of files, and what else can be reclaimed of the kernel's own.
    Slab,
}

impl Linux {
    /// Whether this process may compact: tried by opening the file for writing.
    ///
    /// # Errors
    /// It may not, or this kernel has no compaction.
    pub fn may_compact(&self) -> Result<()> {
        self.may_write(COMPACT)
    }

    /// Compacts every zone. Comes back when the kernel is done or has given up.
    ///
    /// # Errors
    /// As of [`Linux::may_compact`].
    pub fn compact_memory(&self) -> Result<()> {
        self.write(COMPACT, "1").map_err(root)
    }

    /// Huge pages in the reserved pool.
    ///
    /// # Errors
    /// The file cannot be read, or holds no number.
    pub fn reserved_huge_pages(&self) -> Result<u64> {
        self.read_number(RESERVED_HUGE_PAGES)
    }

    /// Drops clean caches.
    ///
    /// # Errors
    /// The caller is not root.
    pub fn drop_caches(&self, cache: Cache) -> Result<()> {
        let which = match cache {
            Cache::Pages => "1",
            Cache::Slab => "2",
        };
        self.write(DROP_CACHES, which).map_err(root)
    }

    /// Has each cache of the kernel's objects give back its slabs that hold none. What this kernel does not offer, or
    /// this user may not do, is left out: it frees what may be freed, no more.
    pub fn shrink_slabs(&self) {
        let caches = std::fs::read_dir(self.path(SLABS));
        for cache in caches.into_iter().flatten().flatten() {
            let _ = std::fs::write(cache.path().join("shrink"), "1");
        }
    }

    /// Has every processor bring its counters up to date, and its lists down to what they may hold.
    fn refresh_statistics(&self) -> Result<()> {
        // The file has no content; reading it does the work.
        self.read(REFRESH).map(drop).map_err(root)
    }

    /// Frees what the lists of the processors hold beyond what they may: all of it while
    /// [`HIGH_FRACTION`] is [`NOTHING_KEPT`].
    ///
    /// # Errors
    /// The counters cannot be refreshed, or `/proc/zoneinfo` not be read.
    pub fn refresh_lists(&self) -> Result<()> {
        let (mut hidden, mut in_vain) = (self.hidden_pages()?.unwrap_or(0), 0);
        for _ in 0..REFRESHES {
            self.refresh_statistics()?;
            let now = self.hidden_pages()?.unwrap_or(0);
            in_vain = if now + LITTLE > hidden { in_vain + 1 } else { 0 };
            hidden = now;
            if in_vain == IN_VAIN {
                break;
            }
        }
        Ok(())
    }

    /// Frees the pages on the lists of the processors; `directory` is where the journal lives. Returns
    /// how many were hidden before and after; absent where `/proc/zoneinfo` is.
    ///
    /// # Errors
    /// The setting cannot be borrowed or given back, or as of [`Linux::refresh_lists`].
    pub fn drain_lists(&self, directory: &Path) -> Result<(Option<u64>, Option<u64>)> {
        let before = self.hidden_pages()?;
        let loan = Loan::files(self, directory, LISTS_LOAN, &[HIGH_FRACTION])?;
        match loan.set(HIGH_FRACTION, NOTHING_KEPT) {
            // Before 5.14 the lists are short and refreshing alone has to do.
            Err(error) if error.kind() == Kind::Unsupported => {}
            other => other?,
        }
        self.refresh_lists()?;
        loan.give_back()?;
        Ok((before, self.hidden_pages()?))
    }
}

fn root(error: crate::Error) -> crate::Error {
    match error.kind() {
        Kind::Permission => error.advise("run as root"),
        Kind::NotFound => {
            error.advise("use a kernel with CONFIG_COMPACTION=y and CONFIG_PROC_FS=y")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_puts_the_length_of_the_lists_back() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        let zoneinfo = crate::fixtures::debian().path("/proc/zoneinfo");
        for path in [HIGH_FRACTION, REFRESH, "/proc/zoneinfo"] {
            let path = linux.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "8\n").unwrap();
        }
        std::fs::copy(zoneinfo, linux.path("/proc/zoneinfo")).unwrap();
        let directory = crate::settings::loan::directory(&linux);
        let (before, after) = linux.drain_lists(&directory).unwrap();
        assert!(before.is_some_and(|pages| pages > 1000));
        assert_eq!(before, after, "a snapshot has no processors");
        assert_eq!(linux.read(HIGH_FRACTION).unwrap().trim(), "8");
        assert_eq!(crate::settings::loan::left_over_files(&directory).unwrap(), []);
    }

    #[test]
    fn every_cache_of_objects_is_shrunk_and_none_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        linux.shrink_slabs();
        let shrink = |name: &str| linux.path(SLABS).join(name).join("shrink");
        for name in ["dentry", "filp"] {
            std::fs::create_dir_all(shrink(name).parent().unwrap()).unwrap();
            std::fs::write(shrink(name), "").unwrap();
        }
        linux.shrink_slabs();
        for name in ["dentry", "filp"] {
            assert_eq!(std::fs::read_to_string(shrink(name)).unwrap(), "1");
        }
    }

    #[test]
    fn a_kernel_without_compaction_says_what_it_lacks() {
        let root = tempfile::tempdir().unwrap();
        let error = Linux::at(root.path()).compact_memory().unwrap_err();
        assert!(error.to_string().contains("CONFIG_COMPACTION"), "{error}");
    }
}
