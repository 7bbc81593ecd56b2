//! What of a chunk is offered to `ksmd`.
//!
//! `ksmd` looks at everything that was offered to it, again and again, so only the granules (16 KiB) of a
//! chunk that hold planned pages are offered. Each run of them is a mapping of its own: a chunk has at most
//! its share of [`RUNS`], the larger the heap the fewer, and the smallest gaps between them are offered too.
//!
//! ```text
//!  chunk    ..##.#....######..#.....##......    # planned pages
//!  offered  ..####....######..#.....##......    the smallest gap is closed: four runs
//! ```

use super::CHUNK;

/// Runs of offered memory in all chunks together, more or less: each makes two mappings more, which a
/// fork copies in half a microsecond each.
pub(super) const RUNS: usize = 1000;

/// Least length of a part of a chunk that is offered as a whole, so that a chunk has at most as many as a
/// word has bits.
pub(super) const GRANULE: usize = CHUNK / u128::BITS as usize;

/// What of a chunk was offered to `ksmd`.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    /// Address of the chunk.
    pub(super) chunk: usize,
    /// Its granules that were.
    pub(super) granules: u128,
}

/// The runs of ones, lowest first.
pub(super) fn runs_of(granules: u128) -> impl Iterator<Item = u128> {
    let mut rest = granules;
    core::iter::from_fn(move || {
        let first = 1u128.checked_shl(rest.trailing_zeros())?;
        // Adding to a run carries to the bit behind it, or out of the word.
        let run = rest & !rest.wrapping_add(first);
        rest &= !run;
        Some(run)
    })
}

/// With the least gaps closed until there are at most so many runs (one at least).
pub(super) fn joined(granules: u128, runs: usize) -> u128 {
    let mut all = granules;
    while runs_of(all).count() > runs {
        let hull = u128::MAX << all.trailing_zeros() & u128::MAX >> all.leading_zeros();
        all |= runs_of(!all & hull).min_by_key(|gap| gap.count_ones()).unwrap_or(u128::MAX);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_least_gaps_are_closed() {
        assert_eq!(joined(0, 4), 0);
        assert_eq!(joined(u128::MAX, 1), u128::MAX);
        assert_eq!(joined(0b1_0001_0001_0001, 4), 0b1_0001_0001_0001);
        assert_eq!(joined(0b1001_0001_0001_0001, 4), 0b1111_0001_0001_0001);
        assert_eq!(joined(1 << 127 | 1, 1), u128::MAX);
    }

    proptest! {
        #[test]
        fn what_was_planned_is_offered_in_few_runs(granules in any::<u128>(), most in 1..40usize) {
            let offered = joined(granules, most);
            prop_assert_eq!(offered & granules, granules);
            prop_assert!(runs_of(offered).count() <= most);
            prop_assert_eq!(runs_of(offered).fold(0, |all, run| all | run), offered);
            prop_assert_eq!(offered.leading_zeros(), granules.leading_zeros());
            prop_assert_eq!(offered.trailing_zeros(), granules.trailing_zeros());
        }
    }
}
