//! Log-linear buckets of times: exact below 32 ns, and 32 buckets for each power of two above, so a
//! bucket is at most 1/32 (3 %) of its lower end wide.
//!
//! ```text
//!  bucket   0 … 31   32 … 63   64 … 95   96 … 127  …
//!  lower    0 … 31   32 … 63   64, 66 …  128, 132 …
//! ```
//!
//! Always true: every time is in exactly one bucket, buckets are in the order of their times, and
//! `lower(bucket(t)) <= t < lower(bucket(t) + 1)`. The kernel's part (`faults.bpf.c`) computes the same.

use crate::units::Nanos;

/// The bucket of a time.
pub fn bucket(time: Nanos) -> u32 {
    let Nanos(value) = time;
    if value < 32 {
        return value as u32;
    }
    let exponent = value.ilog2();
    (exponent - 4) << 5 | (value >> (exponent - 5)) as u32 & 31
}

/// The lowest time in a bucket; for a number beyond the last bucket, the largest time there is.
pub fn lower(bucket: u32) -> Nanos {
    if bucket < 32 {
        return Nanos(bucket.into());
    }
    let exponent = (bucket >> 5) + 4;
    let above = u64::from(32 + (bucket & 31));
    match exponent {
        ..=63 => Nanos(above << (exponent - 5)),
        _ => Nanos(u64::MAX),
    }
}

/// The middle of a bucket: what a time that is known to be in it is taken for.
pub fn middle(bucket: u32) -> Nanos {
    let (low, next) = (lower(bucket).0, lower(bucket.saturating_add(1)).0);
    Nanos(low + (next - low) / 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_times_are_exact_and_steps_double() {
        for value in 0..64 {
            assert_eq!((bucket(Nanos(value)), lower(value as u32)), (value as u32, Nanos(value)));
        }
        assert_eq!((bucket(Nanos(64)), bucket(Nanos(65)), bucket(Nanos(66))), (64, 64, 65));
        assert_eq!(lower(96), Nanos(128));
        assert_eq!(bucket(Nanos(u64::MAX)), 1919);
        assert_eq!(lower(1920), Nanos(u64::MAX));
    }

    proptest! {
        #[test]
        fn each_time_is_in_its_bucket_which_is_narrow(shift in 0..64, random: u64) {
            let time = Nanos(random >> shift);
            let (low, next) = (lower(bucket(time)), lower(bucket(time) + 1));
            prop_assert!(low <= time && (time < next || next.0 == u64::MAX));
            prop_assert!(next.0 - low.0 <= (low.0 / 32).max(1) + u64::from(next.0 == u64::MAX));
            prop_assert!((low..=next).contains(&middle(bucket(time))));
        }
    }
}
