//! Moves particles that attract each other, by the fast multipole method in the plane: the shape of SPLASH-2's `fmm`.
//!
//! Two clusters of particles, each as Plummer's model has it, the second a copy of the first; 5 steps of 0.025. In each
//! step a tree of squares is built anew ([`tree`]), the field of far particles is gathered in power series
//! ([`expansion`]), and near ones act on each other one by one. Series of some 740 bytes and particles of 80 are
//! visited in the order of the tree, not of memory, which the particles keep.
//!
//! At full size 16,384 particles and a precision of 1e-6, the original's base problem; a share of it has as many fewer
//! particles, and 16 has 262,144. The distribution of the particles, the law that moves them and the steps are the
//! original's; the random numbers are not.
//!
//! Deviations from the original: pairs of squares are found by walking down from the root and not kept in lists (they
//! are the same pairs); each pair of near particles is computed once, not twice; one thread.
//!
//! Checked: in the last step, the field at each particle is that which all others exert, summed up one by one, to 1e-6
//! of it (of more than 16,384 particles, so many of them that the sums have 2^26 terms).

mod expansion;
mod particle;
mod tree;

use std::f64::consts::{PI, SQRT_2};
use std::time::Instant;

use crate::complex::Complex;
use crate::program::{Outcome, Params, Report};
use expansion::Binomials;
use pagemill_model::random::Random;
use particle::Particle;
use tree::Tree;

const PARTICLES: usize = 16_384;
const STEPS: usize = 5;
const STEP: f64 = 0.025;
const PRECISION: f64 = 1e-6;
/// The model is cut off at this share of its mass, and at this radius.
const SHARE: f64 = 0.999;
const RADIUS: f64 = 9.0;
/// From one cluster to the other, along each axis.
const APART: f64 = 2.0;
/// Terms that the check of many particles may sum up.
const CHECKED: usize = 1 << 26;

/// A vector of this length and any direction.
fn any_direction(length: f64, random: &mut Random) -> Complex {
    loop {
        let vector = Complex::new(2.0 * random.unit() - 1.0, 2.0 * random.unit() - 1.0);
        if (f64::MIN_POSITIVE..=1.0).contains(&vector.square()) {
            return vector * (length / vector.size());
        }
    }
}

/// A particle of Plummer's model, at rest in the middle.
fn of_plummer(charge: f64, random: &mut Random) -> Particle {
    let scale = 3.0 * PI / 16.0;
    let radius = loop {
        let mass = SHARE * random.unit();
        let radius = 1.0 / (mass.powf(-2.0 / 3.0) - 1.0).sqrt();
        if radius <= RADIUS {
            break radius;
        }
    };
    let position = any_direction(scale * radius, random);
    let speed = loop {
        let (speed, density) = (random.unit(), 0.1 * random.unit());
        if density <= speed * speed * (1.0 - speed * speed).powf(3.5) {
            break SQRT_2 * speed / (1.0 + radius * radius).powf(0.25);
        }
    };
    let velocity = any_direction((1.0 / scale).sqrt() * speed, random);
    Particle { charge, position, velocity, acceleration: Complex::ZERO, field: Complex::ZERO }
}

/// Two clusters, at rest together and with their middle at 0.
fn two_clusters(count: usize, random: &mut Random) -> Vec<Particle> {
    let charge = 1.0 / count as f64 / count as f64;
    let first: Vec<_> = (0..count.div_ceil(2)).map(|_| of_plummer(charge, random)).collect();
    let apart = Complex::new(APART, APART);
    let copy = |one: &Particle| Particle { position: one.position + apart, ..*one };
    let mut all: Vec<_> = first.iter().copied().chain(first.iter().map(copy)).take(count).collect();
    let mean = |of: fn(&Particle) -> Complex| {
        let sum = all.iter().fold(Complex::ZERO, |sum, particle| sum + of(particle));
        sum * (1.0 / count as f64)
    };
    let (middle, drift) = (mean(|one| one.position), mean(|one| one.velocity));
    for particle in &mut all {
        particle.position = particle.position - middle;
        particle.velocity = particle.velocity - drift;
    }
    all
}

/// Moves a particle on, by the field at its place.
fn advance(particle: &mut Particle, first: bool) {
    // The field is the repulsion, mirrored.
    let acceleration = -particle.field.conjugate();
    if !first {
        particle.velocity += (acceleration - particle.acceleration) * (STEP / 2.0);
    }
    particle.acceleration = acceleration;
    let halfway = particle.velocity + acceleration * (STEP / 2.0);
    particle.position += halfway * STEP;
    particle.velocity = halfway + acceleration * (STEP / 2.0);
}

/// The largest error of a field, as a share of it, among `checked` particles; infinite where none is due and there is
/// one, and where it is no number.
fn worst_error(particles: &[Particle], checked: usize) -> f64 {
    let error = |at: usize| {
        let Particle { position, field, .. } = particles[at];
        let direct = particles.iter().enumerate().fold(Complex::ZERO, |sum, (other, particle)| {
            let away = if other == at { Complex::ZERO } else { position - particle.position };
            sum + away.inverse() * particle.charge
        });
        let error = (field - direct).size();
        match error {
            0.0 => 0.0,
            error if error.is_nan() => f64::INFINITY,
            error => error / direct.size(),
        }
    };
    // Evenly over all: the first and the second half are clusters.
    (0..checked).map(|at| error(at * particles.len() / checked)).fold(0.0, f64::max)
}

/// What came of a run.
struct Moved {
    squares: usize,
    checked: usize,
    worst: f64,
    seconds: f64,
}

/// Moves the particles through all steps.
fn simulate(particles: &mut [Particle]) -> Moved {
    let count = particles.len();
    let binomials = Binomials::new();
    let checked = if count <= PARTICLES { count } else { (CHECKED / count).max(1) };
    let (mut seconds, mut squares, mut worst) = (0.0, 0, 0.0);
    for step in 0..STEPS {
        let begun = Instant::now();
        let mut tree = Tree::new(particles, &binomials);
        tree.fields();
        squares = tree.len();
        seconds += begun.elapsed().as_secs_f64();
        if step == STEPS - 1 {
            worst = worst_error(particles, checked);
        }
        let begun = Instant::now();
        particles.iter_mut().for_each(|particle| advance(particle, step == 0));
        seconds += begun.elapsed().as_secs_f64();
    }
    Moved { squares, checked, worst, seconds }
}

pub(super) fn run(params: &Params) -> Outcome {
    let count = params.scaled(PARTICLES);
    let moved = simulate(&mut two_clusters(count, &mut Random::new(params.seed)));
    if moved.worst > PRECISION {
        return Err(format!(
            "a field is wrong by {:e} of it, more than {PRECISION:e}",
            moved.worst
        )
        .into());
    }
    Ok(Report {
        operations: (count * STEPS) as u64,
        seconds: moved.seconds,
        metrics: vec![
            ("particles", count as f64),
            ("squares", moved.squares as f64),
            ("checked", moved.checked as f64),
            ("worst_error", moved.worst),
        ],
        check: format!(
            "the field at {} of {count} particles is that of all others summed up, to {PRECISION:e}",
            moved.checked
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_that_of_all_pairs() {
        // Few enough for one square; for one division; for many, of several sizes.
        for count in [1, 2, 3, 39, 41, 160, 2_001] {
            let moved = simulate(&mut two_clusters(count, &mut Random::new(5)));
            assert_eq!(moved.checked, count);
            assert!(moved.worst <= PRECISION, "{count} particles: {:e}", moved.worst);
        }
    }

    #[test]
    fn particles_attract_each_other_and_stay_together_where_they_are() {
        let mut particles = two_clusters(2, &mut Random::new(1));
        let apart = |all: &[Particle]| (all[0].position - all[1].position).size();
        let at_first = apart(&particles);
        let binomials = Binomials::new();
        for step in 0..100 {
            Tree::new(&mut particles, &binomials).fields();
            particles.iter_mut().for_each(|particle| advance(particle, step == 0));
        }
        assert!(apart(&particles) < at_first, "{particles:?}");
        let sum = particles[0].position + particles[1].position;
        assert!(sum.size() < 1e-12, "{particles:?}");
    }

    #[test]
    fn a_wrong_field_is_found() {
        let mut particles = two_clusters(300, &mut Random::new(5));
        Tree::new(&mut particles, &Binomials::new()).fields();
        assert!(worst_error(&particles, 300) <= PRECISION);
        particles[200].field = particles[200].field * 1.00001;
        assert!(worst_error(&particles, 300) > PRECISION);
        particles[200].field = Complex::new(f64::NAN, 0.0);
        assert_eq!(worst_error(&particles, 300), f64::INFINITY);
    }

    #[test]
    fn particles_at_one_place_end_the_division_and_leave_each_other_alone() {
        let mut particles = two_clusters(100, &mut Random::new(1));
        for particle in &mut particles[..60] {
            particle.position = Complex::new(0.1, 0.2);
        }
        Tree::new(&mut particles, &Binomials::new()).fields();
        assert!(worst_error(&particles, 100) <= PRECISION);
        particles.iter_mut().for_each(|particle| particle.position = Complex::ZERO);
        Tree::new(&mut particles, &Binomials::new()).fields();
        assert_eq!(worst_error(&particles, 100), 0.0);
    }
}
