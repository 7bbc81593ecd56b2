//! Squares within squares, and the field of all particles by them (Carrier, Greengard and Rokhlin, SIAM J. Sci. Stat.
//! Comput. 9, 1988).
//!
//! A square with more than [`IN_A_LEAF`] particles is divided into four, empty ones left out; one that is not divided
//! is a *leaf*. Two squares *touch* if they have a point in common. Of two that touch, the larger is divided, or both
//! if they are of one size, until
//!
//! - they are leaves and touch: each particle acts on each;
//! - or are of one size and do not touch: the multipole series of each goes into the local one of the other;
//! - or are a leaf and a smaller square that does not touch it: the square's multipole series acts on the leaf's
//!   particles, and these go into the square's local series.
//!
//! These are the lists U, V, W and X of the source; each pair comes up once.

use super::expansion::{
    Binomials, NOTHING, Series, charge_to_local, charge_to_multipole, of_local, of_multipole,
};
use super::particle::Particle;
use crate::complex::Complex;

/// As many particles as the original's boxes hold.
const IN_A_LEAF: usize = 40;
/// No square is divided further, however many particles are at one place.
const DEEPEST: u32 = 31;

/// A square.
struct Square {
    center: Complex,
    /// Place in the grid of its level, which has 2^level squares a side.
    place: [u32; 2],
    level: u32,
    children: Vec<usize>,
    /// Of a leaf: whom it holds.
    particles: Vec<u32>,
    multipole: Series,
    local: Series,
}

impl Square {
    fn new(center: Complex, place: [u32; 2], level: u32) -> Self {
        let (children, particles) = (Vec::new(), Vec::new());
        let (multipole, local) = (NOTHING, NOTHING);
        Self { center, place, level, children, particles, multipole, local }
    }

    fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// First and last coordinate along an axis, in units of the smallest square.
    fn reach(&self, axis: usize) -> (u64, u64) {
        let side = 1 << (DEEPEST - self.level);
        let from = u64::from(self.place[axis]) * side;
        (from, from + side)
    }

    fn touches(&self, other: &Self) -> bool {
        (0..2).all(|axis| {
            let (a, b) = (self.reach(axis), other.reach(axis));
            a.0 <= b.1 && b.0 <= a.1
        })
    }
}

/// Computes the field at each particle.
pub(super) struct Tree<'a> {
    particles: &'a mut [Particle],
    squares: Vec<Square>,
    binomials: &'a Binomials,
}

impl<'a> Tree<'a> {
    /// The tree of these particles, of which there is at least one.
    pub(super) fn new(particles: &'a mut [Particle], binomials: &'a Binomials) -> Self {
        let (mut low, mut high) = (particles[0].position, particles[0].position);
        for Particle { position, .. } in particles.iter() {
            low = Complex::new(low.re.min(position.re), low.im.min(position.im));
            high = Complex::new(high.re.max(position.re), high.im.max(position.im));
        }
        let half = ((high.re - low.re).max(high.im - low.im) / 2.0).max(f64::MIN_POSITIVE);
        let all = (0..particles.len() as u32).collect();
        let squares = vec![Square::new((low + high) * 0.5, [0, 0], 0)];
        let mut tree = Self { particles, squares, binomials };
        tree.divide(0, half, all);
        tree
    }

    /// Squares in all.
    pub(super) fn len(&self) -> usize {
        self.squares.len()
    }

    /// Divides a square of half a side `half`, and finds the multipole series of it and of all below it.
    fn divide(&mut self, at: usize, half: f64, within: Vec<u32>) {
        let Square { center, place, level, .. } = self.squares[at];
        if within.len() <= IN_A_LEAF || level == DEEPEST {
            for &particle in &within {
                let Particle { charge, position, .. } = self.particles[particle as usize];
                charge_to_multipole(charge, position - center, &mut self.squares[at].multipole);
            }
            self.squares[at].particles = within;
            return;
        }
        let mut quarters: [Vec<u32>; 4] = Default::default();
        for particle in within {
            let position = self.particles[particle as usize].position;
            let (right, upper) = (position.re > center.re, position.im > center.im);
            quarters[usize::from(right) + 2 * usize::from(upper)].push(particle);
        }
        let half = half / 2.0;
        for (quarter, within) in quarters.into_iter().enumerate() {
            if within.is_empty() {
                continue;
            }
            let side = [quarter & 1, quarter >> 1];
            let shift = side.map(|side| if side == 1 { half } else { -half });
            let shift = Complex::new(shift[0], shift[1]);
            let place = [0, 1].map(|axis| 2 * place[axis] + side[axis] as u32);
            let child = self.squares.len();
            self.squares.push(Square::new(center + shift, place, level + 1));
            self.squares[at].children.push(child);
            self.divide(child, half, within);
            let multipole = self.squares[child].multipole;
            self.binomials.to_parent(&multipole, shift, &mut self.squares[at].multipole);
        }
    }

    /// Sets the field of each particle.
    pub(super) fn fields(&mut self) {
        for particle in self.particles.iter_mut() {
            particle.field = Complex::ZERO;
        }
        self.within(0);
        for at in 0..self.squares.len() {
            self.hand_down(at);
        }
    }

    /// All pairs in a square.
    fn within(&mut self, at: usize) {
        if self.squares[at].is_leaf() {
            let inside = std::mem::take(&mut self.squares[at].particles);
            for (before, &one) in inside.iter().enumerate() {
                self.act(one, &inside[..before]);
            }
            self.squares[at].particles = inside;
            return;
        }
        for first in 0..self.squares[at].children.len() {
            let one = self.squares[at].children[first];
            self.within(one);
            for second in 0..first {
                self.between(one, self.squares[at].children[second]);
            }
        }
    }

    /// All pairs of a particle in one square and one in another; neither is part of the other.
    fn between(&mut self, a: usize, b: usize) {
        let (one, other) = (&self.squares[a], &self.squares[b]);
        if !one.touches(other) {
            match one.level.cmp(&other.level) {
                std::cmp::Ordering::Equal => self.exchange(a, b),
                std::cmp::Ordering::Less => self.leaf_and_square(a, b),
                std::cmp::Ordering::Greater => self.leaf_and_square(b, a),
            }
            return;
        }
        // The larger is a leaf, or they are of one size: only then both may be divided.
        match (one.is_leaf(), other.is_leaf()) {
            (true, true) => {
                let inside = std::mem::take(&mut self.squares[a].particles);
                let others = std::mem::take(&mut self.squares[b].particles);
                for &particle in &inside {
                    self.act(particle, &others);
                }
                (self.squares[a].particles, self.squares[b].particles) = (inside, others);
            }
            (true, false) => self.each_child(b, |tree, child| tree.between(a, child)),
            (false, true) => self.each_child(a, |tree, child| tree.between(child, b)),
            (false, false) => self.each_child(a, |tree, child| {
                tree.each_child(b, |tree, other| tree.between(child, other));
            }),
        }
    }

    fn each_child(&mut self, at: usize, mut then: impl FnMut(&mut Self, usize)) {
        for child in 0..self.squares[at].children.len() {
            then(self, self.squares[at].children[child]);
        }
    }

    /// A particle and each of the others act on each other.
    fn act(&mut self, one: u32, others: &[u32]) {
        let Particle { charge, position, mut field, .. } = self.particles[one as usize];
        for &other in others {
            let other = &mut self.particles[other as usize];
            let inverse = (position - other.position).inverse();
            field += inverse * other.charge;
            other.field += inverse * -charge;
        }
        self.particles[one as usize].field = field;
    }

    fn exchange(&mut self, a: usize, b: usize) {
        let away = self.squares[b].center - self.squares[a].center;
        let (mut one, mut other) = (self.squares[a].local, self.squares[b].local);
        self.binomials.to_local(&self.squares[b].multipole, away, &mut one);
        self.binomials.to_local(&self.squares[a].multipole, -away, &mut other);
        (self.squares[a].local, self.squares[b].local) = (one, other);
    }

    fn leaf_and_square(&mut self, leaf: usize, square: usize) {
        let inside = std::mem::take(&mut self.squares[leaf].particles);
        let Square { center, multipole, local, .. } = &mut self.squares[square];
        for &particle in &inside {
            let particle = &mut self.particles[particle as usize];
            let away = particle.position - *center;
            particle.field += of_multipole(multipole, away);
            charge_to_local(particle.charge, away, local);
        }
        self.squares[leaf].particles = inside;
    }

    /// Hands a local series down to the children, which come later, or to the particles of a leaf.
    fn hand_down(&mut self, at: usize) {
        let (local, center) = (self.squares[at].local, self.squares[at].center);
        for &particle in &self.squares[at].particles {
            let particle = &mut self.particles[particle as usize];
            particle.field += of_local(&local, particle.position - center);
        }
        let binomials = self.binomials;
        self.each_child(at, |tree, child| {
            let child = &mut tree.squares[child];
            binomials.to_child(&local, child.center - center, &mut child.local);
        });
    }
}
