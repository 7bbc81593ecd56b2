//! Sizes of pages, as the machines have them whose memory is told apart here: x86-64, and aarch64 with granules of
//! 4 KiB.
//!
//! What a running system has instead is asked for where it matters (`kernel::page_size`, a recording's `page_size`).

/// Bytes of a base page.
pub const BASE: u64 = 4096;
/// Bytes of a huge page, which is one entry of the level above base pages.
pub const HUGE: u64 = 2 << 20;
/// Base pages of a huge page.
pub const PER_HUGE: u64 = HUGE / BASE;
