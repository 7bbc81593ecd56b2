//! The helper thread.
use core::sync::atomic::{AtomicU64, Ordering};
pub(crate) fn wanted(_mapped: usize) {}
pub(crate) fn forget() {}
pub(crate) fn lock() {}
pub(crate) fn unlock() {}
static P: AtomicU64 = AtomicU64::new(100);
pub(crate) fn period_ms() -> u64 { P.load(Ordering::Relaxed) }
pub(crate) fn set_period_ms(p: u64) { P.store(p, Ordering::Relaxed) }
pub(crate) fn request_pass() {}
