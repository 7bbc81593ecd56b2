//! The cache of one thread.

/// A thread's cache of free slots; made by [`crate::Heap::attach`].
#[derive(Debug)]
pub struct Cache {
    len: u32,
}
