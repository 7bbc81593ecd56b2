//! A particle, on its way.

use crate::complex::Complex;

/// A particle. Its charge is its mass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Particle {
    pub(super) charge: f64,
    pub(super) position: Complex,
    pub(super) velocity: Complex,
    pub(super) acceleration: Complex,
    /// Σ q / (z − z_j) over all others.
    pub(super) field: Complex,
}
