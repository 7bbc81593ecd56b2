//! Which memory is an alias of an image: what lies between two aliases is a mapping of its own already, so merging it
//! takes none more.
//!
//! ```text
//!  |A A A A|b b|A A A A|      three mappings; with an alias for b there are three still
//! ```

use super::CHUNK;
use super::table::Table;
use crate::os::Os;

/// Bytes that a bit stands for.
const GRANULE: usize = 4096;

const WORDS: usize = CHUNK / GRANULE / 64;

/// The aliases of a chunk.
#[derive(Clone, Copy)]
struct Aliased {
    chunk: usize,
    granules: [u64; WORDS],
}

/// All of them.
pub(crate) struct Aliases(Table<Aliased>);

impl Aliases {
    pub(crate) const fn new() -> Self {
        Self(Table::new())
    }

    /// Notes that a range is an alias, or is none any more. Where there is no memory for that, it counts as none.
    pub(crate) fn set(&mut self, os: &impl Os, start: usize, len: usize, alias: bool) {
        for at in (start..start + len).step_by(GRANULE) {
            let chunk = at / CHUNK * CHUNK;
            let place = match self.0.binary_search_by_key(&chunk, |entry| entry.chunk) {
                Ok(place) => place,
                Err(_) if !alias => continue,
                Err(place) => {
                    if !self.0.push(os, Aliased { chunk, granules: [0; WORDS] }) {
                        return;
                    }
                    self.0[place..].rotate_right(1);
                    place
                }
            };
            let granule = (at - chunk) / GRANULE;
            let word = &mut self.0[place].granules[granule / 64];
            *word = *word & !(1 << (granule % 64)) | u64::from(alias) << (granule % 64);
        }
    }

    /// Whether the memory at an address is an alias.
    fn has(&self, address: usize) -> bool {
        let chunk = address / CHUNK * CHUNK;
        let granule = (address - chunk) / GRANULE;
        self.0
            .binary_search_by_key(&chunk, |entry| entry.chunk)
            .is_ok_and(|place| self.0[place].granules[granule / 64] >> (granule % 64) & 1 == 1)
    }

    /// Mappings that there are more when a range that is none becomes an alias; `after`: what lies before it will be
    /// one.
    pub(crate) fn mappings_for(&self, start: usize, len: usize, after: bool) -> usize {
        let before = after || self.has(start - 1);
        2 - usize::from(before) - usize::from(self.has(start + len))
    }

    pub(crate) fn release(&mut self, os: &impl Os) {
        self.0.release(os);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::memory::Memory;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_counts_as_the_boundaries_that_it_adds(
            ranges in prop::collection::vec((0usize..1000, 1usize..20), 1..60), gone in any::<prop::sample::Index>(),
        ) {
            let base = 7 * CHUNK;
            let (os, mut aliases) = (Memory, Aliases::new());
            let (mut taken, mut boundaries) = (BTreeSet::new(), BTreeSet::new());
            for (first, count) in &ranges {
                if (*first..first + count).any(|granule| taken.contains(&granule)) {
                    continue;
                }
                let (start, len) = (base + first * GRANULE, count * GRANULE);
                let told = aliases.mappings_for(start, len, false);
                let fresh = [start, start + len].map(|at| usize::from(boundaries.insert(at)));
                prop_assert_eq!(told, fresh[0] + fresh[1]);
                prop_assert!(aliases.mappings_for(start, len, true) <= told);
                aliases.set(&os, start, len, true);
                taken.extend(*first..first + count);
            }
            let (first, count) = ranges[gone.index(ranges.len())];
            aliases.set(&os, base + first * GRANULE, count * GRANULE, false);
            for granule in 0..1030 {
                let alias = taken.contains(&granule) && !(first..first + count).contains(&granule);
                prop_assert_eq!(aliases.has(base + granule * GRANULE), alias);
            }
            aliases.release(&os);
        }
    }
}
