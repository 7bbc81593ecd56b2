//! Stripes: the mappings that the heap's memory is cut into.

use pagemill_preload_sys::sys;

/// Address space that chunks share one mapping in: 16 MiB. Whoever reads a process's memory use (`smaps_rollup`) lets
/// others change its mappings between two mappings only, so a short one keeps the compactor, and threads that wait for
/// frozen pages, from waiting for long: some 0.3 ms.
pub(crate) const VMA_STRIPE: usize = 16 << 20;

/// What keeps the memory of one stripe from becoming one mapping with its neighbours': every other is not reserved,
/// which the kernel heeds unless it promises all memory (`vm.overcommit_memory` 2), where stripes do become one.
pub(crate) fn flags(at: usize) -> usize {
    if at / VMA_STRIPE % 2 == 1 { sys::MAP_NORESERVE } else { 0 }
}
