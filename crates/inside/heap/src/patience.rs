//! How long a signal handler waits for what its own thread may keep others from giving up.
//!
//! A handler that forks waits for the heap's locks and its helper. If it interrupted its thread within the heap, they
//! may wait for that thread, and in vain does the handler wait for them. A timer that fires meanwhile calls it again
//! before the thread can go on: waits that do not become shorter would keep the thread where it is for ever.
//!
//! Always true: waits in vain, one after another, come to less than one and a fifth of [`MOST_NS`]; no wait is longer
//! than that; one that was not in vain makes the next no shorter.

/// The longest wait, and the first, nanoseconds.
pub const MOST_NS: u64 = 20_000_000;
/// The shortest, but none.
const LEAST_NS: u64 = 1_000_000;

/// The wait after one of `patience` nanoseconds: an eighth of one that was in vain, then none; twice one that was not.
pub const fn next(patience: u64, in_vain: bool) -> u64 {
    if in_vain {
        let shorter = patience / 8;
        if shorter < LEAST_NS { 0 } else { shorter }
    } else {
        let longer = patience.saturating_mul(2);
        if longer < LEAST_NS {
            LEAST_NS
        } else if longer > MOST_NS {
            MOST_NS
        } else {
            longer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_add_up_to_little_and_others_bring_the_patience_back() {
        let mut patience = MOST_NS;
        let mut waits = [0; 4];
        for wait in &mut waits {
            *wait = patience;
            patience = next(patience, true);
        }
        assert_eq!(waits, [20_000_000, 2_500_000, 0, 0]);
        for _ in 0..6 {
            patience = next(patience, false);
        }
        assert_eq!(patience, MOST_NS);
        assert_eq!(next(u64::MAX, false), MOST_NS);
    }
}
