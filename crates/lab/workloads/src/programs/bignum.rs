//! Natural numbers of any size, each a heap block of its own: what `cfrac` computes with.
//!
//! Limbs are 32 bits, least significant first, without leading zero limbs (zero has none).
//! Nothing is done in place: every operation allocates its result, as the original program's
//! package does. That is the point of it here.

use std::cmp::Ordering;

/// A natural number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Natural(Vec<u32>);

impl From<u128> for Natural {
    fn from(mut value: u128) -> Self {
        let mut limbs = Vec::with_capacity(4);
        while value > 0 {
            limbs.push(value as u32);
            value >>= 32;
        }
        Self(limbs)
    }
}

impl Natural {
    fn trimmed(mut limbs: Vec<u32>) -> Self {
        while limbs.last() == Some(&0) {
            limbs.pop();
        }
        Self(limbs)
    }

    /// Whether this is zero.
    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is one.
    pub fn is_one(&self) -> bool {
        self.0 == [1]
    }

    /// The value if it fits.
    pub fn to_u128(&self) -> Option<u128> {
        (self.0.len() <= 4)
            .then(|| self.0.iter().rev().fold(0, |value, &limb| value << 32 | u128::from(limb)))
    }

    /// `self + other`.
    pub fn plus(&self, other: &Self) -> Self {
        let (long, short) =
            if self.0.len() < other.0.len() { (other, self) } else { (self, other) };
        let mut limbs = Vec::with_capacity(long.0.len() + 1);
        let mut carry = 0_u64;
        for (place, &limb) in long.0.iter().enumerate() {
            carry += u64::from(limb) + u64::from(short.0.get(place).copied().unwrap_or(0));
            limbs.push(carry as u32);
            carry >>= 32;
        }
        limbs.push(carry as u32);
        Self::trimmed(limbs)
    }

    /// `self - other`; panics if `other` is larger.
    pub fn minus(&self, other: &Self) -> Self {
        assert!(self.compare(other) != Ordering::Less, "the difference is negative");
        let mut limbs = Vec::with_capacity(self.0.len());
        let mut borrow = 0_i64;
        for (place, &limb) in self.0.iter().enumerate() {
            let digit =
                i64::from(limb) - i64::from(other.0.get(place).copied().unwrap_or(0)) - borrow;
            borrow = i64::from(digit < 0);
            limbs.push(digit as u32);
        }
        Self::trimmed(limbs)
    }

    /// `self * other`.
    pub fn times(&self, other: &Self) -> Self {
        let mut limbs = vec![0_u32; self.0.len() + other.0.len()];
        for (low, &left) in self.0.iter().enumerate() {
            let mut carry = 0_u64;
            for (high, &right) in other.0.iter().enumerate() {
                carry += u64::from(left) * u64::from(right) + u64::from(limbs[low + high]);
                limbs[low + high] = carry as u32;
                carry >>= 32;
            }
            limbs[low + other.0.len()] = carry as u32;
        }
        Self::trimmed(limbs)
    }

    /// Quotient and remainder by a small divisor, which must not be zero.
    pub fn divided_by_small(&self, divisor: u32) -> (Self, u32) {
        let mut limbs = self.0.clone();
        let mut rest = 0_u64;
        for limb in limbs.iter_mut().rev() {
            rest = rest << 32 | u64::from(*limb);
            *limb = (rest / u64::from(divisor)) as u32;
            rest %= u64::from(divisor);
        }
        (Self::trimmed(limbs), rest as u32)
    }

    /// Quotient and remainder (Knuth, volume 2, algorithm D); `divisor` must not be zero.
    pub fn divided_by(&self, divisor: &Self) -> (Self, Self) {
        assert!(!divisor.is_zero(), "division by zero");
        if self.compare(divisor) == Ordering::Less {
            return (Self(Vec::new()), self.clone());
        }
        if let [only] = divisor.0[..] {
            let (quotient, rest) = self.divided_by_small(only);
            return (quotient, Self::from(u128::from(rest)));
        }
        let shift = divisor.0[divisor.0.len() - 1].leading_zeros();
        let divisor = divisor.shifted_left(shift);
        let mut rest = self.shifted_left(shift).0;
        rest.resize(self.0.len() + 1, 0);
        let length = divisor.0.len();
        let top = u64::from(divisor.0[length - 1]);
        let next = u64::from(divisor.0[length - 2]);
        let mut quotient = vec![0_u32; rest.len() - length];
        for place in (0..quotient.len()).rev() {
            let head = u64::from(rest[place + length]) << 32 | u64::from(rest[place + length - 1]);
            let (mut guess, mut left) = (head / top, head % top);
            while guess >> 32 != 0
                || guess * next > (left << 32 | u64::from(rest[place + length - 2]))
            {
                guess -= 1;
                left += top;
                if left >> 32 != 0 {
                    break;
                }
            }
            let (mut borrow, mut carry) = (0_i64, 0_u64);
            for (index, &limb) in divisor.0.iter().enumerate() {
                carry += guess * u64::from(limb);
                let digit = i64::from(rest[place + index]) - i64::from(carry as u32) - borrow;
                borrow = i64::from(digit < 0);
                rest[place + index] = digit as u32;
                carry >>= 32;
            }
            let digit = i64::from(rest[place + length]) - carry as i64 - borrow;
            rest[place + length] = digit as u32;
            if digit < 0 {
                // The guess was one too large: add the divisor back.
                guess -= 1;
                let mut carry = 0_u64;
                for (index, &limb) in divisor.0.iter().enumerate() {
                    carry += u64::from(rest[place + index]) + u64::from(limb);
                    rest[place + index] = carry as u32;
                    carry >>= 32;
                }
                rest[place + length] = rest[place + length].wrapping_add(carry as u32);
            }
            quotient[place] = guess as u32;
        }
        (Self::trimmed(quotient), Self::trimmed(rest).shifted_right(shift))
    }

    /// The remainder by `divisor`, which must not be zero.
    pub fn modulo(&self, divisor: &Self) -> Self {
        self.divided_by(divisor).1
    }

    fn shifted_left(&self, bits: u32) -> Self {
        let mut limbs = Vec::with_capacity(self.0.len() + 1);
        let mut carry = 0_u64;
        for &limb in &self.0 {
            carry |= u64::from(limb) << bits;
            limbs.push(carry as u32);
            carry >>= 32;
        }
        limbs.push(carry as u32);
        Self::trimmed(limbs)
    }

    fn shifted_right(&self, bits: u32) -> Self {
        let mut limbs = self.0.clone();
        let mut carry = 0_u64;
        for limb in limbs.iter_mut().rev() {
            let both = carry << 32 | u64::from(*limb);
            *limb = (both >> bits) as u32;
            carry = both & ((1 << bits) - 1);
        }
        Self::trimmed(limbs)
    }

    /// Order by value.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// The largest number whose square is not above this one (Newton's iteration from above).
    pub fn square_root(&self) -> Self {
        if self.is_zero() {
            return self.clone();
        }
        let mut root = Self(vec![0; self.0.len().div_ceil(2)])
            .plus(&Self::power_of_32(self.0.len().div_ceil(2)));
        loop {
            let next = root.plus(&self.divided_by(&root).0).shifted_right(1);
            if next.compare(&root) != Ordering::Less {
                return root;
            }
            root = next;
        }
    }

    /// 2^(32 * limbs).
    fn power_of_32(limbs: usize) -> Self {
        let mut value = vec![0; limbs];
        value.push(1);
        Self(value)
    }

    /// Greatest common divisor.
    pub fn common_divisor(&self, other: &Self) -> Self {
        let (mut left, mut right) = (self.clone(), other.clone());
        while !right.is_zero() {
            let rest = left.modulo(&right);
            left = right;
            right = rest;
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_model::random::Random;

    /// A value of random length, with runs of ones and zeros, where carries go wrong.
    fn value(random: &mut Random) -> u128 {
        let wide = u128::from(random.bits()) << 64 | u128::from(random.bits());
        let cut = wide >> random.index(128);
        match random.index(4) {
            0 => cut | 0xffff_ffff_0000_0000,
            1 => cut & !0xffff_ffff_0000_0000,
            _ => cut,
        }
    }

    #[test]
    fn arithmetic_agrees_with_machine_arithmetic() {
        let mut random = Random::new(5);
        for _ in 0..20_000 {
            let (a, b) = (value(&mut random) >> 1, value(&mut random) >> 1);
            let (left, right) = (Natural::from(a), Natural::from(b));
            assert_eq!(left.plus(&right).to_u128(), Some(a + b));
            assert_eq!(left.compare(&right), a.cmp(&b));
            if a >= b {
                assert_eq!(left.minus(&right).to_u128(), Some(a - b));
            }
            if let (Some(by), Some(left_over)) = (a.checked_div(b), a.checked_rem(b)) {
                let (quotient, rest) = left.divided_by(&right);
                assert_eq!((quotient.to_u128(), rest.to_u128()), (Some(by), Some(left_over)));
            }
        }
    }

    #[test]
    fn quotient_times_divisor_plus_rest_is_the_dividend() {
        let mut random = Random::new(6);
        for _ in 0..20_000 {
            let a = Natural::from(value(&mut random)).times(&Natural::from(value(&mut random)));
            let b = Natural::from(value(&mut random).max(1));
            let (quotient, rest) = a.divided_by(&b);
            assert_eq!(rest.compare(&b), Ordering::Less);
            assert_eq!(quotient.times(&b).plus(&rest), a);
        }
    }

    #[test]
    fn roots_and_divisors() {
        let mut random = Random::new(7);
        for _ in 0..2_000 {
            let a = Natural::from(value(&mut random));
            let root = a.square_root();
            let above = root.plus(&Natural::from(1));
            assert_ne!(root.times(&root).compare(&a), Ordering::Greater, "{a:?}");
            assert_eq!(above.times(&above).compare(&a), Ordering::Greater, "{a:?}");
        }
        let divisor = Natural::from(2 * 3 * 7).common_divisor(&Natural::from(5 * 6 * 11));
        assert_eq!(divisor.to_u128(), Some(6));
    }
}
