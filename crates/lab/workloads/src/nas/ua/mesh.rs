//! A cube cut into eight again and again: finest where the source is, neighbours differing by one level at most.

use std::collections::HashMap;

use super::element::{Values, halves, whole};

/// An element: its side is `2^-level`, its low corner `at` times that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) level: u8,
    pub(super) at: [u16; 3],
}

/// What lies where a cell would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cover {
    Outside,
    Same,
    Larger(Cell),
    Smaller,
}

/// Offsets to the neighbours across faces and edges.
pub(super) fn neighbours() -> impl Iterator<Item = [i32; 3]> {
    (0..27)
        .map(|at| [at % 3 - 1, at / 3 % 3 - 1, at / 9 - 1])
        .filter(|by| (1..=2).contains(&by.iter().filter(|&&by| by != 0).count()))
}

impl Cell {
    pub(super) const ROOT: Self = Self { level: 0, at: [0; 3] };

    pub(super) fn side(self) -> f64 {
        0.5_f64.powi(i32::from(self.level))
    }

    pub(super) fn beside(self, by: [i32; 3]) -> Option<Self> {
        let last = (1 << self.level) - 1;
        let mut at = self.at;
        for (at, by) in at.iter_mut().zip(by) {
            let moved = i32::from(*at) + by;
            if !(0..=last).contains(&moved) {
                return None;
            }
            *at = moved as u16;
        }
        Some(Self { at, ..self })
    }

    /// The part of it that is high along x, y, z where bits 0, 1, 2 are set.
    fn child(self, bits: usize) -> Self {
        let half = |axis: usize| 2 * self.at[axis] + (bits >> axis & 1) as u16;
        Self { level: self.level + 1, at: [half(0), half(1), half(2)] }
    }

    fn parent(self) -> Option<Self> {
        Some(Self { level: self.level.checked_sub(1)?, at: self.at.map(|at| at / 2) })
    }

    /// Place along the curve that visits the eight parts of a cell one after the other.
    fn order(self) -> u64 {
        let mut order = 0;
        for bit in 0..16 {
            for axis in 0..3 {
                let at = u64::from(self.at[axis]) << (15 - self.level);
                order |= (at >> bit & 1) << (3 * bit + axis);
            }
        }
        order
    }
}

/// The ball in which heat is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ball {
    pub(super) center: [f64; 3],
    pub(super) radius: f64,
}

impl Ball {
    fn touches(&self, cell: Cell) -> bool {
        let side = cell.side();
        let distances = [0, 1, 2].map(|axis| {
            let low = f64::from(cell.at[axis]) * side;
            let at = self.center[axis];
            if at < low { low - at } else { (at - (low + side)).max(0.0) }
        });
        distances.iter().map(|distance| distance * distance).sum::<f64>()
            < self.radius * self.radius
    }
}

/// Elements and the values in them.
pub(super) struct Mesh {
    elements: HashMap<Cell, Box<Values>>,
}

impl Mesh {
    pub(super) fn new(cells: &[Cell], values: &[Values]) -> Self {
        let boxed = cells.iter().zip(values).map(|(&cell, &values)| (cell, Box::new(values)));
        Self { elements: boxed.collect() }
    }

    /// The elements, in the order of the curve.
    pub(super) fn into_parts(self) -> (Vec<Cell>, Vec<Values>) {
        let mut elements: Vec<_> = self.elements.into_iter().collect();
        elements.sort_unstable_by_key(|(cell, _)| cell.order());
        elements.into_iter().map(|(cell, values)| (cell, *values)).unzip()
    }

    pub(super) fn cover(&self, cell: Option<Cell>) -> Cover {
        let Some(cell) = cell else { return Cover::Outside };
        if self.elements.contains_key(&cell) {
            return Cover::Same;
        }
        let mut around = cell;
        while let Some(parent) = around.parent() {
            if self.elements.contains_key(&parent) {
                return Cover::Larger(parent);
            }
            around = parent;
        }
        Cover::Smaller
    }

    /// Cuts elements that touch the ball until they are of level `finest`, and those beside them as far as is needed;
    /// then makes one of each eight that do not touch it, where the neighbours allow it. Returns whether any was.
    pub(super) fn adapt(&mut self, ball: Ball, finest: u8) -> bool {
        let mut changed = false;
        loop {
            let touching = |cell: &&Cell| cell.level < finest && ball.touches(**cell);
            let cells: Vec<Cell> = self.elements.keys().filter(touching).copied().collect();
            if cells.is_empty() {
                break;
            }
            changed = true;
            cells.into_iter().for_each(|cell| self.cut(cell));
        }
        loop {
            let first = |cell: &Cell| cell.at.iter().all(|at| at % 2 == 0);
            let cells = self.elements.keys().filter(|cell| first(cell));
            let parents: Vec<Cell> = cells
                .filter_map(|cell| cell.parent())
                .filter(|&parent| (0..8).all(|bits| self.mergeable(parent.child(bits), ball)))
                .collect();
            if parents.is_empty() {
                return changed;
            }
            changed = true;
            parents.into_iter().for_each(|parent| self.merge(parent));
        }
    }

    /// Whether the element is there, does not touch the ball and has no smaller neighbour.
    fn mergeable(&self, cell: Cell, ball: Ball) -> bool {
        self.elements.contains_key(&cell)
            && !ball.touches(cell)
            && neighbours().all(|by| self.cover(cell.beside(by)) != Cover::Smaller)
    }

    /// Cuts an element, larger neighbours before it.
    fn cut(&mut self, cell: Cell) {
        for by in neighbours() {
            if let Cover::Larger(larger) = self.cover(cell.beside(by)) {
                self.cut(larger);
            }
        }
        let Some(values) = self.elements.remove(&cell) else { return };
        for (bits, values) in halves(&values).into_iter().enumerate() {
            self.elements.insert(cell.child(bits), Box::new(values));
        }
    }

    fn merge(&mut self, parent: Cell) {
        let parts = [0, 1, 2, 3, 4, 5, 6, 7].map(|bits| self.elements.remove(&parent.child(bits)));
        let values = parts.map(|part| part.map_or([0.0; 125], |values| *values));
        self.elements.insert(parent, Box::new(whole(&values)));
    }
}
