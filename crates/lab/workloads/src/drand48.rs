//! The random numbers of `srand48` and `lrand48` (POSIX), so that a program given the published seed has the published
//! input.

/// `lrand48`: the upper 31 of 48 bits of a linear congruential sequence.
#[derive(Clone, Debug)]
pub struct Drand48(u64);

impl Drand48 {
    /// As after `srand48(seed)`, which takes 32 bits of it.
    pub fn new(seed: u64) -> Self {
        Self((seed & 0xffff_ffff) << 16 | 0x330e)
    }

    /// `lrand48()`: below 2^31.
    #[inline]
    pub fn next_u31(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5_deec_e66d).wrapping_add(0xb) & ((1 << 48) - 1);
        (self.0 >> 17) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_c_library() {
        // As a program linked with glibc 2.36 printed them.
        let mut random = Drand48::new(1);
        let four: Vec<u32> = (0..4).map(|_| random.next_u31()).collect();
        assert_eq!(four, [89_400_484, 976_015_093, 1_792_756_325, 721_524_505]);
        assert_eq!(Drand48::new(7).next_u31(), 572_184_555);
    }
}
