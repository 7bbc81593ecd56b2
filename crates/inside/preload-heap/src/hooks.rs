//! What comes of what the heap's system tells: the helper starts, a copy of the process is put in order, the statistics
//! are refreshed.

use core::sync::atomic::AtomicU64;

use crate::heap::{HEAP, HeapHooks};
use crate::helper::{self, state};
use crate::os::Hooks;
use crate::{copied, refresh};

impl Hooks for HeapHooks {
    #[inline]
    fn grown(mapped: usize) {
        helper::wanted(mapped);
    }

    #[inline]
    fn repair_copy() -> bool {
        copied::repair()
    }

    #[inline]
    fn compacts_under(word: &AtomicU64) -> bool {
        HEAP.compacts_under(word)
    }

    #[inline]
    fn on_slow_path(now_ns: impl Fn() -> u64) {
        if !state::works() {
            refresh::due(now_ns);
        }
    }
}
