//! The levers, a file each.

pub mod ahead;
pub mod allocators;
pub mod always;
pub mod arenas;
pub mod colder;
pub mod compact;
pub mod ksm;
pub mod malloc_huge;
pub mod medium;
pub mod never;
pub mod plain;
pub mod purge;
pub mod rest;
pub mod tried;
pub mod trim;
