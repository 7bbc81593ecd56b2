//! Copies of slots that the program may be writing at the same time.
//!
//! The KSM back end reads live slots without stopping anyone: a write in between only means that
//! two pages are not identical, which the kernel finds out by comparing them under its own write
//! protection. Such a read must not be a data race in the language's sense, so it is done by
//! machine instructions that the compiler cannot see into; on targets without that, by volatile
//! accesses of one byte.

use super::Bits;

/// Copies `len` bytes that others may be writing.
///
/// # Safety
/// `from..from + len` is readable and `to..to + len` writable memory, and they do not overlap; nobody else
/// reads or writes what lies at `to` through a Rust reference. Bytes written meanwhile by others may
/// arrive old, new or mixed.
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller vouches for both ranges; `rep movsb` with the direction flag clear (the
    // ABI's state) reads and writes exactly them, and the registers that it changes are declared.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: the caller vouches for both ranges; the loops move sixteen bytes, then one, at a time and
    // stop at `len`; the registers that they change are declared.
    unsafe {
        core::arch::asm!(
            "2: cmp {len}, #16",
            "b.lo 3f",
            "ldp {a}, {b}, [{from}], #16",
            "stp {a}, {b}, [{to}], #16",
            "sub {len}, {len}, #16",
            "b 2b",
            "3: cbz {len}, 4f",
            "ldrb {a:w}, [{from}], #1",
            "strb {a:w}, [{to}], #1",
            "sub {len}, {len}, #1",
            "b 3b",
            "4:",
            len = inout(reg) len => _, from = inout(reg) from => _, to = inout(reg) to => _,
            a = out(reg) _, b = out(reg) _,
            options(nostack),
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    for byte in 0..len {
        // SAFETY: `byte < len`, so both places lie in the ranges that the caller vouches for.
        unsafe { to.add(byte).write_volatile(from.add(byte).read_volatile()) };
    }
}

/// The byte ranges inside a unit that runs of set slots cover.
///
/// `phase` is the number of bytes by which slot 0 of `bits` begins before the unit, `len` the
/// unit's length in bytes; a slot that straddles an end is cut off there.
pub(crate) fn runs(
    bits: Bits,
    slot_size: usize,
    phase: usize,
    len: usize,
) -> impl Iterator<Item = core::ops::Range<usize>> {
    let mut slot = 0;
    core::iter::from_fn(move || {
        let first = next(&bits, slot, true)?;
        let last = next(&bits, first, false).unwrap_or(256);
        slot = last;
        let begin = (first * slot_size).saturating_sub(phase);
        let end = (last * slot_size).saturating_sub(phase).min(len);
        (begin < end).then_some(begin..end)
    })
}

/// The first slot from `from` on whose bit is `set`.
fn next(bits: &Bits, from: usize, set: bool) -> Option<usize> {
    let mut at = from;
    while at < 256 {
        let word = if set { bits[at / 64] } else { !bits[at / 64] } >> (at % 64);
        if word != 0 {
            return Some(at + word.trailing_zeros() as usize);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// The bits of the slots `first..first + count`, moved down to slot 0.
pub(crate) fn window(bits: &Bits, first: usize, count: usize) -> Bits {
    let mut out = [0; 4];
    let (word, shift) = (first / 64, first % 64);
    for (index, part) in out.iter_mut().enumerate() {
        let low = bits.get(word + index).copied().unwrap_or(0) >> shift;
        let high = bits.get(word + index + 1).copied().unwrap_or(0);
        *part = low | if shift == 0 { 0 } else { high << (64 - shift) };
        let from = index * 64;
        *part &= match count.saturating_sub(from) {
            0 => 0,
            some @ 1..64 => (1 << some) - 1,
            _ => u64::MAX,
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bit(bits: &Bits, slot: usize) -> bool {
        bits[slot / 64] >> (slot % 64) & 1 == 1
    }

    proptest! {
        #[test]
        fn a_window_moves_bits_down(bits in any::<Bits>(), first in 0usize..256, count in 0usize..257) {
            let moved = window(&bits, first, count);
            for slot in 0..256 {
                let expected = slot < count && first + slot < 256 && bit(&bits, first + slot);
                prop_assert_eq!(bit(&moved, slot), expected);
            }
        }

        #[test]
        fn runs_cover_the_bytes_of_set_slots(
            bits in any::<Bits>(), slot_size in 16usize..600, part in 0usize..16,
            len in 1usize..if cfg!(miri) { 400 } else { 40_000 },
        ) {
            let phase = part.min(slot_size - 1);
            let mut covered = vec![false; len];
            for run in runs(bits, slot_size, phase, len) {
                covered[run].fill(true);
            }
            for (byte, covered) in covered.iter().enumerate() {
                let slot = (byte + phase) / slot_size;
                prop_assert_eq!(*covered, slot < 256 && bit(&bits, slot), "byte {}", byte);
            }
        }

        #[test]
        fn a_copy_copies(from in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut to = vec![0; from.len()];
            // SAFETY: two vectors of the same length.
            unsafe { copy(to.as_mut_ptr(), from.as_ptr(), from.len()) };
            prop_assert_eq!(from, to);
        }
    }
}
