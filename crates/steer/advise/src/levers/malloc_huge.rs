//! glibc's malloc that asks for huge pages.

use pagemill_launch::allocator::Allocator;

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// `glibc.malloc.hugetlb=1`: `madvise(MADV_HUGEPAGE)` for all that malloc maps (glibc 2.35).
pub struct MallocHuge;

impl Lever for MallocHuge {
    fn description(&self) -> [&'static str; 3] {
        [
            "malloc huge",
            "glibc's malloc asks for huge pages (glibc.malloc.hugetlb=1)",
            "glibc 2.35, its malloc, and the setting madvise",
        ]
    }

    fn start(&self, target: &Target) -> Result<Start, String> {
        match target.thp.as_deref() {
            Some("madvise") => {
                let huge = "glibc.malloc.hugetlb=1";
                target.may_set_malloc().map(|()| Start::added("GLIBC_TUNABLES", ":", huge))
            }
            Some("always") => Err("the system gives huge pages without being asked".into()),
            _ => Err("transparent huge pages are off on this system".into()),
        }
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        seen.only_with(Allocator::Glibc, || seen.more_huge_pages())
    }
}
