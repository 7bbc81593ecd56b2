//! Bitmaps of up to 256 slots: four words.

use core::ops::Range;

/// A bit a slot.
pub type Bits = [u64; 4];

/// The bits of `range`, which ends at 256 at most.
pub fn range(range: Range<usize>) -> Bits {
    let mut bits = [0; 4];
    for (index, word) in bits.iter_mut().enumerate() {
        *word = below(range.end.saturating_sub(64 * index))
            & !below(range.start.saturating_sub(64 * index));
    }
    bits
}

/// The lowest `count` bits of a word.
#[inline]
pub fn below(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// The valid bits of word `index` of a bitmap of `slots` bits.
#[inline]
pub fn valid(slots: usize, index: usize) -> u64 {
    below(slots.saturating_sub(64 * index))
}

/// The slots of `size` bytes, of `slots`, that overlap the pages `pages` of `page` bytes.
pub fn slots_on(pages: Range<usize>, page: usize, size: usize, slots: usize) -> Bits {
    let first = pages.start * page / size;
    let end = (pages.end * page).div_ceil(size).min(slots);
    range(first.min(end)..end)
}

/// The `count` set bits of `word` from bit `from` on, going round.
#[inline]
pub fn take(word: u64, count: usize, from: u32) -> u64 {
    if word.count_ones() as usize <= count {
        return word;
    }
    let mut left = word.rotate_right(from);
    let whole = left;
    for _ in 0..count {
        left &= left - 1;
    }
    (whole & !left).rotate_left(from)
}

/// Whether no bit is set.
pub fn none(bits: &Bits) -> bool {
    bits.iter().all(|&word| word == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn has(bits: &Bits, slot: usize) -> bool {
        bits[slot / 64] >> (slot % 64) & 1 == 1
    }

    proptest! {
        #[test]
        fn a_range_has_exactly_its_bits(start in 0_usize..=256, len in 0_usize..=256) {
            let end = (start + len).min(256);
            let bits = range(start..end);
            for slot in 0..256 {
                prop_assert_eq!(has(&bits, slot), (start..end).contains(&slot));
            }
        }

        #[test]
        fn slots_on_pages_are_those_that_overlap(
            size in 1_usize..=2048, first in 0_usize..16, len in 1_usize..=16, page_shift in 12_u32..=16
        ) {
            let (size, page) = (size * 16, 1_usize << page_shift);
            let slots = (65536 / size).min(256);
            let pages = first..(first + len).min(16);
            let bits = slots_on(pages.clone(), page, size, slots);
            for slot in 0..slots {
                let overlaps = slot * size < pages.end * page && (slot + 1) * size > pages.start * page;
                prop_assert_eq!(has(&bits, slot), overlaps, "slot {}", slot);
            }
            for slot in slots..256 {
                prop_assert!(!has(&bits, slot));
            }
        }

        #[test]
        fn taking_gives_as_many_bits_as_asked_of_those_there(word: u64, count in 0_usize..=64, from in 0_u32..64) {
            let taken = take(word, count, from);
            prop_assert_eq!(taken & !word, 0);
            prop_assert_eq!(taken.count_ones() as usize, count.min(word.count_ones() as usize));
        }
    }
}
