//! The levers, a file each, in a list that begins with what asks least of who uses it: of two that do the same the
//! first is chosen.

pub mod ahead;
pub mod allocators;
pub mod always;
pub mod arenas;
pub mod compact;
pub mod ksm;
pub mod malloc_huge;
pub mod medium;
pub mod never;
pub mod plain;
pub mod purge;
pub mod pymalloc;
pub mod rest;
pub mod slower_memory;
pub mod tried;
pub mod trim;

use crate::lever::Lever;

/// All levers, what asks least first.
pub const REGISTRY: &[&dyn Lever] = &[
    &arenas::Arenas,
    &trim::Trim,
    &rest::Rest,
    &pymalloc::Pymalloc,
    &malloc_huge::MallocHuge,
    &purge::AT_ONCE,
    &purge::BEHIND,
    &purge::MIMALLOC,
    &never::Never,
    &allocators::JEMALLOC,
    &allocators::MIMALLOC,
    &allocators::TCMALLOC,
    &plain::Plain,
    &compact::Compact,
    &medium::Medium,
    &always::Always,
    &tried::Tried,
    &ahead::Ahead,
    &ksm::Ksm,
    &slower_memory::SlowerMemory,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levers_have_names_of_their_own() {
        let mut names: Vec<&str> = REGISTRY.iter().map(|lever| lever.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), REGISTRY.len());
    }
}
