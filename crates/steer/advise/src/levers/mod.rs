//! The levers, a file each, in a list that begins with what asks least of who uses it: of two that do the same the
//! first is chosen.

pub mod ahead;
pub mod allocators;
pub mod always;
pub mod arenas;
pub mod compact;
pub mod compact_python;
pub mod ksm;
pub mod malloc_huge;
pub mod medium;
pub mod never;
pub mod plain;
pub mod purge;
pub mod pymalloc;
pub mod slower_memory;
pub mod tried;
pub mod trim;
pub mod trim_at_rest;

use anyhow::{Result, bail};
use pagemill_launch::allocator;
use pagemill_launch::meant::meant;

use crate::lever::Lever;

/// All levers, what asks least first.
pub const REGISTRY: &[&dyn Lever] = &[
    &arenas::Arenas,
    &trim::Trim,
    &trim_at_rest::TrimAtRest,
    &pymalloc::Pymalloc,
    &malloc_huge::MallocHuge,
    &purge::AT_ONCE,
    &purge::BEHIND,
    &purge::MIMALLOC,
    &never::Never,
    &allocators::Preloaded(&allocator::JEMALLOC),
    &allocators::Preloaded(&allocator::MIMALLOC),
    &allocators::Preloaded(&allocator::TCMALLOC),
    &plain::Plain,
    &compact::Compact,
    &compact_python::CompactPython,
    &medium::Medium,
    &always::Always,
    &tried::Tried,
    &ahead::Ahead,
    &ksm::Ksm,
    &slower_memory::SlowerMemory,
];

/// That each of these is the name of a lever.
///
/// # Errors
/// One is none: with the name that may have been meant.
pub fn check(names: &[String]) -> Result<()> {
    let known = || REGISTRY.iter().map(|lever| lever.name());
    let wrong = names.iter().find(|name| !known().any(|known| known == name.as_str()));
    let Some(name) = wrong else { return Ok(()) };
    let meant = meant(name, known());
    bail!(
        "--levers: there is no lever {name:?}{meant}; there are: {}",
        known().collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_refused_with_the_nearest() {
        assert!(check(&["early trim".into(), "jemalloc".into()]).is_ok());
        let told = check(&["jemaloc".into()]).unwrap_err().to_string();
        assert!(
            told.contains(
                "no lever \"jemaloc\" (did you mean \"jemalloc\"?); there are: one arena,"
            ),
            "{told}"
        );
        let told = check(&["luck".into()]).unwrap_err().to_string();
        assert!(told.contains("no lever \"luck\"; there are"), "{told}");
    }

    #[test]
    fn levers_have_names_of_their_own() {
        let mut names: Vec<&str> = REGISTRY.iter().map(|lever| lever.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), REGISTRY.len());
    }
}
