//! The operating system of tests on ordinary memory, in one thread that nobody wakes.

use std::sync::atomic::AtomicU64;

use crate::os::{Misuse, Os};

pub(super) const PAGE: usize = 4096;

pub(super) struct Memory;

impl Os for Memory {
    os_on_memory!();

    fn wait(&self, _: &AtomicU64, _: u64) {}

    fn wake(&self, _: &AtomicU64) {}
}
