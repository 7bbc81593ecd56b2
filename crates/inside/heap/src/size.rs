//! Size classes: multiples of 16 up to 128, then eight a doubling up to 32 KiB; 72 classes.
//!
//! ```text
//!  class    0   1  ...   7 |   8   9 ...  15 |  16  17 ...  23 | ... |    64 ...    71
//!  bytes   16  32  ... 128 | 144 160 ... 256 | 288 320 ... 512 | ... | 18432 ... 32768
//! ```
//!
//! Properties: every size is a multiple of 16; [`class_of`] gives the smallest class that fits; a
//! slot wastes at most 15 bytes up to 128 and an eighth of itself above.

/// Number of classes.
pub const CLASSES: usize = 72;

/// Largest object that lives in a slot, in bytes.
pub const SMALL_MAX: usize = 32 * 1024;

/// Bytes of a granule: the unit of the page heap and of the page map, whatever the page size is.
pub const GRANULE: usize = 4096;

/// Bytes of a chunk: what the page heap takes from the operating system at a time.
pub const CHUNK: usize = 2 << 20;

/// Longest span in bytes.
pub const SPAN_MAX: usize = 64 * 1024;

/// Most slots in a span, so that its bitmaps are four words.
pub const SLOTS_MAX: usize = 256;

const fn size_at(class: usize) -> u32 {
    if class < 8 {
        16 * (class as u32 + 1)
    } else {
        let doubling = (class - 8) / 8;
        let step = (class - 8) % 8 + 1;
        (128 << doubling) + (step as u32) * (16 << doubling)
    }
}

/// Bytes a slot, by class.
pub static SIZES: [u32; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        sizes[class] = size_at(class);
        class += 1;
    }
    sizes
};

/// Entries of [`RECIPROCALS`]: a power of two, so that a number below it needs no check.
const NUMBERS: usize = 128;

/// By class + 1, the reciprocal of each slot size, and zero: `2^32 / size` rounded up: for an offset below 64 KiB,
/// `offset * reciprocal >> 32` is the quotient, and the low half is below the reciprocal exactly if
/// the size divides the offset (Lemire, Kaser, Kurz: Faster remainder by direct computation, 2019).
static RECIPROCALS: [u32; NUMBERS] = {
    let mut reciprocals = [0; NUMBERS];
    let mut class = 0;
    while class < CLASSES {
        reciprocals[class + 1] = u32::MAX / size_at(class) + 1;
        class += 1;
    }
    reciprocals
};

static LOOKUP: [u8; SMALL_MAX / 16 + 1] = {
    let mut lookup = [0; SMALL_MAX / 16 + 1];
    let mut index = 0;
    let mut class = 0;
    while index < lookup.len() {
        if index * 16 > size_at(class) as usize {
            class += 1;
        }
        lookup[index] = class as u8;
        index += 1;
    }
    lookup
};

/// The smallest class whose slots hold `size` bytes; `size` is at most [`SMALL_MAX`].
#[inline(always)]
pub fn class_of(size: usize) -> usize {
    usize::from(LOOKUP[(size + 15) >> 4])
}

/// The smallest class whose slots hold `size` bytes and all begin at multiples of `align` (a power of two up to
/// [`GRANULE`], as spans begin at granules); `None` if there is none.
pub fn class_of_aligned(align: usize, size: usize) -> Option<usize> {
    if align > GRANULE || size > SMALL_MAX {
        return None;
    }
    (class_of(size.max(align).min(SMALL_MAX))..CLASSES)
        .find(|&class| SIZES[class] as usize & (align - 1) == 0)
}

/// The slot that `offset` (below 64 KiB) lies in.
#[inline(always)]
pub fn slot_at(class: usize, offset: usize) -> usize {
    ((u64::from(RECIPROCALS[class + 1]) * offset as u64) >> 32) as usize
}

/// The reciprocal of a class for its number plus one; zero for zero, and up to 127.
#[inline(always)]
pub fn reciprocal_of(number: usize) -> u32 {
    RECIPROCALS[number % NUMBERS]
}

/// Whether a slot of a class with this reciprocal begins at `offset`. False for reciprocal 0.
#[inline(always)]
pub fn is_slot_start(reciprocal: u32, offset: u32) -> bool {
    offset.wrapping_mul(reciprocal) < reciprocal
}

/// The shape of a class's spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Length in granules.
    pub granules: usize,
    /// Alignment in granules.
    pub align: usize,
    /// Slots.
    pub slots: usize,
    /// Whole pages of the operating system; 0 if the span may share a page with others.
    pub pages: usize,
}

/// The shape of a class's spans under this page size: at most 64 KiB and 256 slots; whole pages, or, where those
/// would waste more than an eighth, whole granules that share a page with other spans.
pub fn geometry(class: usize, page: usize) -> Geometry {
    let size = SIZES[class] as usize;
    let full = SPAN_MAX.min(SLOTS_MAX * size);
    let shape = |unit: usize| {
        let slots = (full - full % unit) / size;
        (slots, (slots * size).next_multiple_of(unit))
    };
    let (slots, len) = shape(page);
    if slots > 0 && len - slots * size <= len / 8 {
        let (granules, align, pages) = (len / GRANULE, page / GRANULE, len / page);
        return Geometry { granules, align, slots, pages };
    }
    let (slots, len) = shape(GRANULE);
    Geometry { granules: len / GRANULE, align: 1, slots, pages: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_fits() {
        for size in 0..=SMALL_MAX {
            let class = class_of(size);
            assert!(SIZES[class] as usize >= size, "{size}");
            assert!(class == 0 || (SIZES[class - 1] as usize) < size.max(1), "{size}");
        }
        assert_eq!(SIZES[CLASSES - 1] as usize, SMALL_MAX);
    }

    #[test]
    fn sizes_rise_in_steps_of_at_most_an_eighth() {
        for class in 1..CLASSES {
            let (below, size) = (SIZES[class - 1], SIZES[class]);
            assert_eq!(size % 16, 0);
            assert!(size - below <= 16.max(below / 8), "{below} {size}");
        }
    }

    #[test]
    fn reciprocals_divide_exactly_for_every_offset() {
        for (class, &size) in SIZES.iter().enumerate() {
            let size = size as usize;
            for offset in 0..SPAN_MAX {
                assert_eq!(slot_at(class, offset), offset / size, "{offset} / {size}");
                assert_eq!(
                    is_slot_start(reciprocal_of(class + 1), offset as u32),
                    offset % size == 0,
                    "{offset} % {size}"
                );
                assert!(!is_slot_start(reciprocal_of(0), offset as u32));
            }
        }
    }

    #[test]
    fn spans_are_whole_units_and_waste_little() {
        for page in [4096, 16384, 65536] {
            for (class, &size) in SIZES.iter().enumerate() {
                let shape = geometry(class, page);
                let len = shape.granules * GRANULE;
                let used = shape.slots * size as usize;
                assert!((1..=SLOTS_MAX).contains(&shape.slots));
                assert!(used <= len && len <= SPAN_MAX);
                assert!(len - used < page && len - used <= len / 8, "{page} {class} {shape:?}");
                assert_eq!(len % (shape.align * GRANULE), 0);
                assert!(shape.pages <= 16);
                assert!(shape.pages == 0 || shape.pages * page == len);
                assert!(shape.pages > 0 || page > GRANULE);
            }
        }
    }

    #[test]
    fn aligned_classes_keep_every_slot_aligned() {
        for shift in 0..=12 {
            let align = 1 << shift;
            for size in (0..=SMALL_MAX).step_by(7) {
                if let Some(class) = class_of_aligned(align, size) {
                    assert!(SIZES[class] as usize >= size);
                    assert_eq!(SIZES[class] as usize % align, 0);
                } else {
                    assert!(size + align > SMALL_MAX, "{align} {size}");
                }
            }
        }
    }
}
