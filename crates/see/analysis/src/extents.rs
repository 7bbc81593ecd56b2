//! What jemalloc holds and keeps free, read from its extents as they lie in memory (jemalloc 5).
//!
//! ```text
//!  radix tree, a word a page        the extent's data
//!  szind │ address of it │ slab ──► bits │ address │ size │ …
//!   16        48 bits       1       bits of 5.3: arena 12 │ slab 1 │ 4 flags │ state 3 │ szind 8 │ nfree 10 │ …
//!                                   5.2:         arena 12 │ slab 1 │ 3 flags │ state 2 │ szind 8 │ nfree 10 │ …
//! ```
//!
//! An extent in use is one large block, or a *slab*: equal regions of size class `szind`, of which `nfree` are free.
//! One that is not is dirty (its pages are in memory until they decay), muzzy (they were given by `MADV_FREE`), or
//! retained (address space). Which version wrote the bits, and whether it was built with classes of 8 or 16 bytes, is
//! told by which reading makes sense of all extents: the tree repeats slab and class, and a slab is full of regions.
//!
//! Properties:
//! - Either nearly all extents make sense, or there is no answer; a program that runs meanwhile may change a few.
//! - What threads keep in caches of their own counts as in use, as it does for jemalloc (`stats.allocated`).

use std::ops::Range;

/// Extents of a thousand that make no sense, at most: they changed while they were read.
const CHANGED: usize = 5;
/// The size class of what is in no use is beyond all.
const CLASSES: u64 = 232;
/// Pages that a large block has beyond its class, at most.
const PADDING: u64 = 4;
const PAGE: u64 = 4096;

/// An extent as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The word of the tree.
    pub leaf: u64,
    /// Its bits.
    pub bits: u64,
    /// Where it begins; of a large block up to a page behind that.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
}

/// What is in extents, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// In those that are in use.
    pub active: u64,
    /// In blocks and regions that are in use.
    pub live: u64,
    /// Dirty and muzzy ones.
    pub kept: Vec<Range<u64>>,
}

/// How the bits are laid out.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Bits of the state, and where they begin.
    state: (u32, u64),
    /// Where size class and free regions begin.
    class: u32,
    /// The least distance of two size classes, a power of two.
    quantum: u32,
}

const READINGS: [Reading; 4] = [
    Reading { state: (17, 7), class: 20, quantum: 4 },
    Reading { state: (17, 7), class: 20, quantum: 3 },
    Reading { state: (16, 3), class: 18, quantum: 4 },
    Reading { state: (16, 3), class: 18, quantum: 3 },
];

/// The address of an extent's data, from a word of the tree.
pub fn data_of(leaf: u64) -> u64 {
    // The highest of 48 bits is that of all above.
    (((leaf << 16) as i64 >> 16) as u64) & !0x7f
}

/// The bytes of a size class; the first four of 8 bytes, or one of 8 and four of 16, then four to a doubling.
fn class_size(class: u64, quantum: u32) -> Option<u64> {
    let unit = 1_u64 << quantum;
    let Some(class) = class.checked_sub(u64::from(quantum > 3)) else { return Some(8) };
    let Some(beyond) = class.checked_sub(4) else { return Some((class + 1) * unit) };
    let doubling = u32::try_from(beyond / 4).ok().filter(|doubling| *doubling < 48)?;
    Some((4 + beyond % 4 + 1) * (unit << doubling))
}

impl Reading {
    /// Adds what an extent holds, if it makes sense.
    fn add(self, extent: &Extent, sum: &mut Extents) -> Option<()> {
        let Extent { leaf, bits, address, size } = *extent;
        let (at, mask) = self.state;
        let class = bits >> self.class & 0xff;
        match bits >> at & mask {
            0 => {
                let bytes = class_size(class, self.quantum)?;
                let slab = bits >> 12 & 1;
                (class < CLASSES && class == leaf >> 48 && slab == leaf & 1).then_some(())?;
                let live = if slab == 1 {
                    let free = bits >> (self.class + 8) & 0x3ff;
                    size.is_multiple_of(bytes).then_some(())?;
                    (size / bytes).checked_sub(free)? * bytes
                } else {
                    (bytes <= size && size - bytes <= PADDING * PAGE).then_some(bytes)?
                };
                sum.active = sum.active.checked_add(size)?;
                sum.live += live;
            }
            1 | 2 => sum.kept.push(address..address.checked_add(size)?),
            // Retained, or changing hands.
            _ => {}
        }
        Some(())
    }

    /// All extents; none where too many make no sense.
    fn sum(self, extents: &[Extent]) -> Option<Extents> {
        let mut sum = Extents::default();
        let senseless = extents.iter().filter(|extent| self.add(extent, &mut sum).is_none());
        let senseless = senseless.count();
        (senseless * 1000 <= extents.len() * CHANGED).then_some(sum)
    }
}

/// What is in these extents; none where they are no jemalloc's, or of a version that is not known.
pub fn sum(extents: &[Extent]) -> Option<Extents> {
    let sums = READINGS.iter().filter_map(|reading| reading.sum(extents));
    sums.max_by_key(|sum| sum.active).filter(|sum| sum.active > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn size_classes_are_those_of_jemalloc() {
        let first = |quantum| (0..12).map(move |class| class_size(class, quantum).unwrap());
        assert!(first(4).eq([8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224]));
        assert!(first(3).eq([8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]));
        // 16 KiB is the first large one, and 2 MiB.
        assert_eq!((class_size(36, 4), class_size(64, 4)), (Some(16 << 10), Some(2 << 20)));
    }

    /// Extents of these classes, states and free parts, as `reading` would have them.
    fn written(reading: Reading, all: &[(u64, bool, u64, u64)]) -> (Vec<Extent>, Extents) {
        let (mut extents, mut truth) = (Vec::new(), Extents::default());
        let mut address = 0x7f00_0000_0000;
        for &(class, slab, state, free) in all {
            let bytes = class_size(class, reading.quantum).unwrap();
            let regions = if slab { PAGE / (bytes & bytes.wrapping_neg()).min(PAGE) } else { 1 };
            let slab = slab && state == 0;
            let size = if slab { regions * bytes } else { bytes.next_multiple_of(PAGE) + PAGE };
            let free = if slab { free % (regions + 1) } else { 0 };
            let class = if state == 0 { class } else { CLASSES };
            let bits =
                7 | u64::from(slab) << 12 | state << reading.state.0 | class << reading.class;
            let bits = bits | free << (reading.class + 8);
            let leaf = class << 48 | 0x7f12_3456_7880 | u64::from(slab);
            extents.push(Extent { leaf, bits, address, size });
            match state {
                0 if slab => truth.live += (regions - free) * bytes,
                0 => truth.live += bytes,
                1 | 2 => truth.kept.push(address..address + size),
                _ => {}
            }
            truth.active += if state == 0 { size } else { 0 };
            address += size;
        }
        (extents, truth)
    }

    proptest! {
        #[test]
        fn what_either_version_wrote_is_read_to_the_byte(
            which in 0_usize..4,
            all in prop::collection::vec((0_u64..36, 0_u64..4, 0_u64..512), 300..400),
        ) {
            // All classes, as many as a real heap has, so that readings are told apart.
            let slabs = (0..36).map(|class| (class, true, 0, 3));
            let others = all.into_iter().map(|(class, state, free)| (class, true, state, free));
            let all: Vec<_> = slabs.chain(others).chain([(40, false, 0, 0)]).collect();
            let (extents, truth) = written(READINGS[which], &all);
            prop_assert_eq!(sum(&extents), Some(truth));
            prop_assert_eq!(data_of(extents[0].leaf), 0x7f12_3456_7880);
        }

        #[test]
        fn anything_else_has_no_answer(words in prop::collection::vec(any::<[u64; 4]>(), 50..60)) {
            let extents: Vec<_> = words
                .into_iter()
                .map(|[leaf, bits, address, size]| Extent { leaf, bits, address: address >> 1, size: size >> 1 })
                .collect();
            prop_assert_eq!(sum(&extents), None);
        }
    }
}
