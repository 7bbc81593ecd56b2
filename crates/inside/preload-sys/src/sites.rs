//! The ring that `libpagemill_sites.so` writes and `record --with accesses` reads.
//!
//! ```text
//!  word 0       VERSION
//!  word 1       tickets given out so far
//!  word 2       where a traced program has code for plain calls of mmap and munmap; 0: nowhere
//!  word 3       smallest size that is noted; if it is not 0, what is given back is not noted, and mmap is
//!  word 8       slots of 8 words: ticket + 1 (written last), time stamp counter or 0, address, size, process, 3 of
//!               the stack
//! ```
//!
//! A slot whose size has a number in its top byte is followed by so many with 7 more words of the stack each.

/// What the first word says.
pub const VERSION: u64 = 0x7061_6765_0000_0002;
/// The word that says where `inside` is.
pub const INSIDE: usize = 2;
/// The word that says which size is noted.
pub const LEAST: usize = 3;
/// Words before the slots.
pub const HEADER: usize = 8;
/// Words of a slot.
pub const SLOT: usize = 8;
/// Slots: 32 MiB, half of what a container has to share by default. On a busy machine the recorder reads late.
pub const SLOTS: usize = 1 << 19;
/// Words in all.
pub const WORDS: usize = HEADER + SLOT * SLOTS;
/// Size of what is given back.
pub const FREED: u64 = (1 << 56) - 1;
/// Slots that follow that of a large allocation.
pub const MORE: usize = 1;
