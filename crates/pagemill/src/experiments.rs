//! Experiments that are no programs to compare: placement on a simulated machine, and what the free memory
//! of this one looks like.

pub mod colloid;
pub mod fragmentation;
