//! The one generator of random numbers: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Small, fast enough to stand
//! inside a timed loop, passes `BigCrush`, and any seed is a good seed. Not for anything that an adversary sees.

/// A seeded stream of numbers, the same on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    #[inline]
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0.0..1.0`.
    #[inline]
    pub const fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in `0..bound`, uniform to within `bound / 2^64`; 0 for 0.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.bits() as u128 * bound as u128) >> 64) as u64
    }

    /// An index into so many items; 0 for none.
    #[inline]
    pub const fn index(&mut self, items: usize) -> usize {
        self.below(items as u64) as usize
    }

    /// True with this probability.
    #[inline]
    pub const fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.index(choices.len())]
    }

    /// Puts `items` into a random order, each order equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// `value` as it is measured with a normally distributed error of this part of it (Box and Muller); never negative.
    pub fn measured(&mut self, value: f64, part: f64) -> f64 {
        let (radius, angle) =
            (self.unit().max(f64::MIN_POSITIVE), std::f64::consts::TAU * self.unit());
        let error = (-2.0 * radius.ln()).sqrt() * angle.cos();
        value * (1.0 + part * error).max(0.0)
    }

    /// Poisson distributed with this mean; above 64 by the normal approximation.
    pub fn poisson(&mut self, mean: f64) -> u64 {
        if mean > 64.0 {
            let (a, b) = (1.0 - self.unit(), self.unit());
            let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
            return (mean + mean.sqrt() * normal).round().max(0.0) as u64;
        }
        let (limit, mut product, mut count) = ((-mean).exp(), self.unit(), 0);
        while product > limit {
            product *= self.unit();
            count += 1;
        }
        count
    }
}

/// The finishing step of SplitMix64: a bijection of 64-bit words that looks random.
#[inline]
#[must_use]
pub const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_seed_zero_is_the_published_one() {
        // First outputs of the reference C implementation with state 0.
        let mut random = Random::new(0);
        assert_eq!(random.bits(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.bits(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(random.bits(), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn an_index_reaches_every_value_and_no_other() {
        let mut random = Random::new(1);
        let mut seen = [0_u32; 7];
        for _ in 0..7_000 {
            seen[random.index(7)] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn means_are_as_asked() {
        let mut random = Random::new(1);
        let mean = |f: &mut dyn FnMut() -> f64| (0..20_000).map(|_| f()).sum::<f64>() / 20_000.0;
        assert!((mean(&mut || random.exponential(3.0)) - 3.0).abs() < 0.1);
        let mut random = Random::new(2);
        assert!((mean(&mut || random.poisson(5.0) as f64) - 5.0).abs() < 0.1);
        assert!((mean(&mut || random.poisson(200.0) as f64) - 200.0).abs() < 1.0);
        assert!((mean(&mut || random.below(10) as f64) - 4.5).abs() < 0.1);
    }
}
