//! Complex numbers, as the Fourier transform of `nas-ft` and the power series of `fmm` compute with them.

use std::ops::{Add, AddAssign, Mul, Neg, Sub};

/// A complex number; a vector of the plane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Complex {
    /// Real part; along the first axis.
    pub re: f64,
    /// Imaginary part; along the second axis.
    pub im: f64,
}

impl Complex {
    /// 0.
    pub const ZERO: Self = Self { re: 0.0, im: 0.0 };
    /// 1.
    pub const ONE: Self = Self { re: 1.0, im: 0.0 };

    /// With these parts.
    #[must_use]
    pub const fn new(re: f64, im: f64) -> Self {
        Self { re, im }
    }

    /// Mirrored at the real axis.
    #[must_use]
    pub const fn conjugate(self) -> Self {
        Self { re: self.re, im: -self.im }
    }

    /// The square of its size.
    #[must_use]
    pub fn square(self) -> f64 {
        self.re * self.re + self.im * self.im
    }

    /// Its distance from 0.
    #[must_use]
    pub fn size(self) -> f64 {
        self.square().sqrt()
    }

    /// 1 / this; 0 of 0, so that charges at one place leave each other alone.
    #[inline]
    #[must_use]
    pub fn inverse(self) -> Self {
        let square = self.square();
        self.conjugate() * if square > 0.0 { 1.0 / square } else { 0.0 }
    }
}

impl From<(f64, f64)> for Complex {
    #[inline]
    fn from((re, im): (f64, f64)) -> Self {
        Self { re, im }
    }
}

impl From<Complex> for (f64, f64) {
    #[inline]
    fn from(Complex { re, im }: Complex) -> Self {
        (re, im)
    }
}

impl Add for Complex {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

impl AddAssign for Complex {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Complex {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }
}

impl Neg for Complex {
    type Output = Self;
    #[inline]
    fn neg(self) -> Self {
        Self { re: -self.re, im: -self.im }
    }
}

impl Mul for Complex {
    type Output = Self;
    #[inline]
    fn mul(self, other: Self) -> Self {
        Self {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }
}

impl Mul<f64> for Complex {
    type Output = Self;
    #[inline]
    fn mul(self, by: f64) -> Self {
        Self { re: self.re * by, im: self.im * by }
    }
}
