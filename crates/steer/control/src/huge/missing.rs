//! What the prefault library lacks in programs, in words.

use pagemill_prefault::board::degraded;

/// Bits of [`degraded`] and what they mean.
const MISSING: [(u64, &str); 6] = [
    (
        degraded::NO_MOVE,
        "nothing is provided ahead: no userfaultfd that moves pages (Linux 6.8, or a seccomp filter)",
    ),
    (
        degraded::NO_THREAD,
        "a program has no helper thread: it may not be started, or a seccomp filter made it leave",
    ),
    (
        degraded::NO_QUERY,
        "only what programs map themselves is seen, not what their malloc does (PROCMAP_QUERY, Linux 6.11)",
    ),
    (
        degraded::NO_SCAN,
        "nothing is provided ahead: the kernel does not tell which pages are there (PAGEMAP_SCAN, Linux 6.7)",
    ),
    (
        degraded::REFUSED_BY_PROGRAM,
        "a program refuses huge pages (PR_SET_THP_DISABLE; redis: --disable-thp no): base pages are provided",
    ),
    (
        degraded::LIMITED,
        "a program has locked its memory or limited its address space: nothing is provided ahead",
    ),
];

/// Says of each of these bits what it means; the bits.
pub fn say(bits: u64) -> u64 {
    for (_, what) in MISSING.iter().filter(|(bit, _)| bits & bit != 0) {
        notice!("{what}");
    }
    bits
}
