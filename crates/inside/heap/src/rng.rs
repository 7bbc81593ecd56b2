//! A small, fast generator (wyrand), one a thread cache: it decides layouts, not secrets.

/// The state.
#[derive(Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that begins at `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (product >> 64) as u64 ^ product as u64
    }

    /// A number below `bound`, which is at least 1; the bias is below `bound / 2^32`.
    #[inline]
    pub fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// Puts `items`, far fewer than 2^16, in random order (Fisher and Yates).
    #[inline]
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        let (mut bits, mut left) = (0, 0);
        for last in (1..items.len()).rev() {
            if left == 0 {
                (bits, left) = (self.next(), 4);
            }
            items.swap(last, ((bits & 0xffff) as usize * (last + 1)) >> 16);
            (bits, left) = (bits >> 16, left - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_bound_are_spread_evenly() {
        let mut rng = Rng::new(7);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[rng.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_000..11_000).contains(&count)), "{counts:?}");
    }

    #[test]
    fn a_shuffle_is_a_permutation_and_reaches_every_place() {
        let mut rng = Rng::new(1);
        let mut reached = [[false; 8]; 8];
        for _ in 0..1000 {
            let mut items: [usize; 8] = core::array::from_fn(|i| i);
            rng.shuffle(&mut items);
            for (place, &item) in items.iter().enumerate() {
                reached[item][place] = true;
            }
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
        assert_eq!(reached, [[true; 8]; 8]);
    }
}
