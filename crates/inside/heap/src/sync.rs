//! Atomics; under `cfg(loom)` they are loom's, so that a model test can explore every interleaving of the very code
//! that runs.

#[cfg(not(loom))]
pub use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
