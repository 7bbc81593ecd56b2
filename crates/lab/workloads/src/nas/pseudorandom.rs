//! The benchmark's generator: `x(k+1) = a x(k) mod 2^46`, numbers `x(k) 2^-46` in (0, 1)
//! (RNR-94-007, section 2.3). Integers, so that every bit of a stream is exact.

/// The multiplier of every kernel, 5^13.
pub(super) const MULTIPLIER: u64 = 1_220_703_125;
/// The seed of every kernel but EP.
pub(super) const SEED: u64 = 314_159_265;

const MASK: u64 = (1 << 46) - 1;

/// A place in the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream(u64);

impl Stream {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed & MASK)
    }

    /// The stream `count` numbers further on, in O(log count).
    pub(super) fn skipped(self, count: u64) -> Self {
        // 2^46 divides 2^64, so wrapping products are exact modulo 2^46.
        let (mut factor, mut power, mut left) = (1_u64, MULTIPLIER, count);
        while left > 0 {
            if left & 1 == 1 {
                factor = factor.wrapping_mul(power) & MASK;
            }
            power = power.wrapping_mul(power) & MASK;
            left >>= 1;
        }
        Self(self.0.wrapping_mul(factor) & MASK)
    }

    /// The next number, in (0, 1).
    #[inline]
    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER) & MASK;
        self.0 as f64 * (1.0 / (1_u64 << 46) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipping_is_drawing_and_throwing_away() {
        let mut drawn = Stream::new(SEED);
        for _ in 0..1000 {
            drawn.next();
        }
        assert_eq!(Stream::new(SEED).skipped(1000).next(), drawn.next());
    }
}
