//! Power series of the field of charges in the plane, as complex numbers (Greengard and Rokhlin, J. Comput. Phys. 73,
//! 1987).
//!
//! The field of charges q_j at z_j is f(z) = Σ q_j / (z − z_j). Around a center c it is
//!
//! - far from all of them, a *multipole* series: f(z) = Σ_k a_k / (z − c)^(k+1), with a_k = Σ q_j (z_j − c)^k;
//! - near c, if all of them are far, a *local* series: f(z) = Σ_m b_m (z − c)^m.
//!
//! ```text
//!  charges ──► multipole ──► multipole of the parent
//!     │            │ └─────────────────────────────► field at a point
//!     └──────► local ◄──┘
//!                └──► local of the children ──► field at a point
//! ```
//!
//! Cut off after [`TERMS`] terms, the error shrinks with ((4 − √2) / √2)^TERMS for squares of one size that do not
//! touch: 1e-6 with 23.

use crate::complex::Complex;

/// Terms kept: ln(1e6) / ln((4 − √2) / √2), rounded up.
pub(super) const TERMS: usize = 23;

/// Two of them, as far as a series of a series goes.
const ROWS: usize = 2 * TERMS;

/// Coefficients of a series.
pub(super) type Series = [Complex; TERMS];

/// A series without a term.
pub(super) const NOTHING: Series = [Complex::ZERO; TERMS];

/// How many ways there are to choose; all that the moves of series need.
pub(super) struct Binomials {
    /// `of[n][k]`: k of n.
    of: [[f64; TERMS]; ROWS],
    /// `along[k][m]`: k of k + m.
    along: [[f64; TERMS]; TERMS],
}

impl Binomials {
    pub(super) fn new() -> Self {
        let mut of = [[0.0; TERMS]; ROWS];
        for n in 0..ROWS {
            of[n][0] = 1.0;
            for k in 1..TERMS.min(n + 1) {
                of[n][k] = of[n - 1][k - 1] + of[n - 1][k];
            }
        }
        let along = std::array::from_fn(|k| std::array::from_fn(|m| of[k + m][k]));
        Self { of, along }
    }

    /// Adds to the multipole series of a parent that of a child, which is `shift` away from it.
    pub(super) fn to_parent(&self, child: &Series, shift: Complex, parent: &mut Series) {
        let powers = powers(shift);
        for k in 0..TERMS {
            for l in 0..=k {
                parent[k] += powers[k - l] * child[l] * self.of[k][l];
            }
        }
    }

    /// Adds to a local series what charges, given by their multipole series `away` from it, do there.
    pub(super) fn to_local(&self, multipole: &Series, away: Complex, local: &mut Series) {
        let inverse = away.inverse();
        let (mut power, mut sums) = (-inverse, [[0.0; TERMS]; 2]);
        for (term, row) in multipole.iter().zip(&self.along) {
            let term = *term * power;
            power = -(power * inverse);
            // Apart, and along the row, so that the compiler makes vectors of it.
            for (sum, of) in sums[0].iter_mut().zip(row) {
                *sum += term.re * of;
            }
            for (sum, of) in sums[1].iter_mut().zip(row) {
                *sum += term.im * of;
            }
        }
        let mut power = Complex::ONE;
        for (m, term) in local.iter_mut().enumerate() {
            *term += Complex::new(sums[0][m], sums[1][m]) * power;
            power = power * inverse;
        }
    }

    /// Adds to the local series of a child, `shift` away from its parent, that of the parent.
    pub(super) fn to_child(&self, parent: &Series, shift: Complex, child: &mut Series) {
        let powers = powers(shift);
        for m in 0..TERMS {
            for l in m..TERMS {
                child[m] += powers[l - m] * parent[l] * self.of[l][m];
            }
        }
    }
}

fn powers(of: Complex) -> Series {
    let mut power = Complex::ONE;
    std::array::from_fn(|_| {
        let now = power;
        power = power * of;
        now
    })
}

/// Adds a charge, `away` from the center, to a multipole series.
pub(super) fn charge_to_multipole(charge: f64, away: Complex, multipole: &mut Series) {
    let mut power = Complex::new(charge, 0.0);
    for term in multipole {
        *term += power;
        power = power * away;
    }
}

/// Adds what a charge, `away` from the center, does near it to a local series.
pub(super) fn charge_to_local(charge: f64, away: Complex, local: &mut Series) {
    let inverse = away.inverse();
    let mut power = inverse * -charge;
    for term in local {
        *term += power;
        power = power * inverse;
    }
}

/// The field of a multipole series `away` from its center.
pub(super) fn of_multipole(multipole: &Series, away: Complex) -> Complex {
    let inverse = away.inverse();
    multipole.iter().rev().fold(Complex::ZERO, |sum, term| (sum + *term) * inverse)
}

/// The field of a local series `away` from its center.
pub(super) fn of_local(local: &Series, away: Complex) -> Complex {
    local.iter().rev().fold(Complex::ZERO, |sum, term| sum * away + *term)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHARGES: [(f64, Complex); 3] = [
        (1.0, Complex { re: 0.3, im: -0.2 }),
        (0.5, Complex { re: -0.4, im: 0.1 }),
        (2.0, Complex { re: 0.1, im: 0.4 }),
    ];

    fn direct(at: Complex) -> Complex {
        CHARGES
            .iter()
            .fold(Complex::ZERO, |sum, (charge, place)| sum + (at - *place).inverse() * *charge)
    }

    fn multipole(center: Complex) -> Series {
        let mut series = NOTHING;
        for (charge, place) in CHARGES {
            charge_to_multipole(charge, place - center, &mut series);
        }
        series
    }

    fn holds(found: Complex, at: Complex) {
        let error = (found - direct(at)).size() / direct(at).size();
        assert!(error < 1e-6, "{error} at {at:?}");
    }

    /// Each arrow of the module's picture leads to the field of the charges themselves.
    #[test]
    fn each_way_to_the_field_gives_that_of_the_charges() {
        let binomials = Binomials::new();
        let far = Complex::new(2.1, 1.3);
        let of_all = multipole(Complex::ZERO);
        holds(of_multipole(&of_all, far), far);
        let mut parent = NOTHING;
        let shift = Complex::new(0.5, 0.5);
        binomials.to_parent(&of_all, shift, &mut parent);
        // The parent is centered at -shift.
        holds(of_multipole(&parent, far + shift), far);
        let center = Complex::new(2.0, 1.0);
        let mut local = NOTHING;
        binomials.to_local(&of_all, Complex::ZERO - center, &mut local);
        holds(of_local(&local, far - center), far);
        let mut child = NOTHING;
        let shift = Complex::new(0.25, 0.25);
        binomials.to_child(&local, shift, &mut child);
        holds(of_local(&child, far - (center + shift)), far);
        let mut of_charges = NOTHING;
        for (charge, place) in CHARGES {
            charge_to_local(charge, place - center, &mut of_charges);
        }
        holds(of_local(&of_charges, far - center), far);
    }

    #[test]
    fn a_charge_leaves_another_at_its_place_alone() {
        assert_eq!(Complex::ZERO.inverse(), Complex::ZERO);
    }
}
