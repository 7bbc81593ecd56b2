//! The one generator of the simulator: `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014). It is small,
//! passes `BigCrush`, and any seed is a good seed.

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in 0..`below`; 0 for 0.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(below)) >> 64) as u64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_seed_is_a_stream() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..9).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
