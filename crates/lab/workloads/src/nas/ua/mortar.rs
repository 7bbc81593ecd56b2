//! The points that elements share: the mortar.
//!
//! ```text
//!  faces, edges and corners that no smaller element cuts carry the unknowns: 9, 3 and 1 points
//!
//!  an edge that is cut:    o--1-2-3--o--1-2-3--o   9 unknowns, projected to the 5 points of the larger element
//!  a face that is cut:     9 x 9 of them, projected along one axis and then the other
//! ```
//!
//! `local` below are the unknowns of one element: 8 corners, then those of each edge (3, or 7 if cut), then of each
//! face (9, or 7 x 7 if cut). Which are cut is the element's `shape`.
#![expect(clippy::needless_range_loop, reason = "one index runs through several arrays")]

use std::collections::HashMap;

use super::element::{EDGE, Values};
use super::mesh::{Cell, Cover, Mesh};

/// Corners of an element, by bits: high along x, y, z.
const CORNERS: usize = 8;
/// Edges of an element: number `4 axis + first side + 2 second side`.
const EDGES: usize = 12;
/// Faces of an element: number `2 axis + side`.
const FACES: usize = 6;
/// Most unknowns of one element.
pub(super) const MOST: usize = CORNERS + EDGES * CUT + FACES * CUT * CUT;

/// Inner points of an edge, whole and cut.
const WHOLE: usize = 3;
const CUT: usize = 7;
/// Points of a cut edge with its ends.
const LINE: usize = CUT + 2;

/// From 9 points of a cut edge to the 3 inner ones of the larger element: the published projection of its halves.
const PROJECTION: [[f64; LINE]; WHOLE] = {
    const HALF: [[f64; EDGE]; WHOLE] = [
        [-0.177_284_321_861_569, 0.715_214_641_246_319_7, 0.439_868_065_031_610_4, 1.0 / 12.0, 0.0],
        [
            0.093_75,
            -0.228_575_793_037_547_1,
            0.208_333_333_333_333_3,
            0.356_179_959_704_213_7,
            0.070_312_5,
        ],
        [
            -0.037_001_392_424_145_3,
            1.0 / 12.0,
            -0.058_915_684_079_229_38,
            -0.048_547_974_579_653_34,
            0.0,
        ],
    ];
    let mut matrix = [[0.0; LINE]; WHOLE];
    let mut row = 0;
    while row < WHOLE {
        let mut at = 0;
        while at < EDGE {
            matrix[row][at] += HALF[row][at];
            // The other half is the mirror image.
            matrix[WHOLE - 1 - row][LINE - 1 - at] += HALF[row][at];
            at += 1;
        }
        row += 1;
    }
    matrix
};

/// The two axes that are not this one.
const OTHERS: [[usize; 2]; 3] = [[1, 2], [0, 2], [0, 1]];

/// Where corners, edges and faces are in an element.
pub(super) struct Places {
    corners: [usize; CORNERS],
    edges: [[usize; WHOLE]; EDGES],
    ends: [[usize; 2]; EDGES],
    faces: [[usize; WHOLE * WHOLE]; FACES],
    /// Edges of a face: along its first axis at the low and at the high side, then along the second.
    sides: [[usize; 4]; FACES],
    /// The points that no other element shares.
    pub(super) inner: [usize; 27],
}

const HIGH: usize = EDGE - 1;

fn point(place: [usize; 3]) -> usize {
    (place[2] * EDGE + place[1]) * EDGE + place[0]
}

impl Places {
    pub(super) fn new() -> Self {
        let corners =
            std::array::from_fn(|bits| point([0, 1, 2].map(|axis| HIGH * (bits >> axis & 1))));
        let edge = |edge: usize, along: usize| {
            let (axis, [b, c]) = (edge / 4, OTHERS[edge / 4]);
            let mut place = [0; 3];
            (place[axis], place[b], place[c]) = (along, HIGH * (edge & 1), HIGH * (edge >> 1 & 1));
            place
        };
        let corner = |place: [usize; 3]| {
            (0..3).map(|axis| usize::from(place[axis] == HIGH) << axis).sum::<usize>()
        };
        let face = |face: usize, at: usize| {
            let (axis, [b, c]) = (face / 2, OTHERS[face / 2]);
            let mut place = [0; 3];
            (place[axis], place[b], place[c]) = (HIGH * (face % 2), at % WHOLE + 1, at / WHOLE + 1);
            point(place)
        };
        let side = |face: usize, number: usize| {
            let (axis, [b, c], at) = (face / 2, OTHERS[face / 2], face % 2);
            let (along, other) = if number < 2 { (b, c) } else { (c, b) };
            let mut sides = [0; 3];
            (sides[axis], sides[other]) = (at, number % 2);
            let [first, second] = OTHERS[along];
            4 * along + sides[first] + 2 * sides[second]
        };
        Self {
            corners,
            edges: std::array::from_fn(|number| [1, 2, 3].map(|at| point(edge(number, at)))),
            ends: std::array::from_fn(|number| [0, HIGH].map(|at| corner(edge(number, at)))),
            faces: std::array::from_fn(|number| std::array::from_fn(|at| face(number, at))),
            sides: std::array::from_fn(|number| [0, 1, 2, 3].map(|at| side(number, at))),
            inner: std::array::from_fn(|at| point([at % 3 + 1, at / 3 % 3 + 1, at / 9 + 1])),
        }
    }
}

/// Which edges and faces of an element are cut: bits 0 to 11, and 12 to 17.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Shape(u32);

impl Shape {
    fn cuts_edge(self, edge: usize) -> bool {
        self.0 >> edge & 1 == 1
    }

    fn cuts_face(self, face: usize) -> bool {
        self.0 >> (EDGES + face) & 1 == 1
    }

    /// Where the unknowns of each edge and face begin, and their count.
    fn starts(self) -> ([usize; EDGES], [usize; FACES], usize) {
        let mut next = CORNERS;
        let mut take = |count: usize| {
            next += count;
            next - count
        };
        let edges =
            std::array::from_fn(|edge| take(if self.cuts_edge(edge) { CUT } else { WHOLE }));
        let faces = std::array::from_fn(|face| {
            take(if self.cuts_face(face) { CUT * CUT } else { WHOLE * WHOLE })
        });
        (edges, faces, next)
    }

    /// Unknowns of the element.
    pub(super) fn count(self) -> usize {
        self.starts().2
    }

    /// Sets the outer points of an element from its unknowns.
    pub(super) fn expand(self, places: &Places, local: &[f64], values: &mut Values) {
        let (edges, faces, _) = self.starts();
        for (corner, &at) in places.corners.iter().enumerate() {
            values[at] = local[corner];
        }
        let line = |edge: usize| {
            let mut line = [0.0; LINE];
            let [low, high] = places.ends[edge];
            (line[0], line[LINE - 1]) = (local[low], local[high]);
            line[1..=CUT].copy_from_slice(&local[edges[edge]..edges[edge] + CUT]);
            line
        };
        for edge in 0..EDGES {
            let own = if self.cuts_edge(edge) {
                project(&line(edge))
            } else {
                [0, 1, 2].map(|at| local[edges[edge] + at])
            };
            for (&at, value) in places.edges[edge].iter().zip(own) {
                values[at] = value;
            }
        }
        for face in 0..FACES {
            let start = faces[face];
            if !self.cuts_face(face) {
                for (at, &point) in places.faces[face].iter().enumerate() {
                    values[point] = local[start + at];
                }
                continue;
            }
            let [low, high, left, right] = places.sides[face].map(line);
            let mut rows = [[0.0; WHOLE]; LINE];
            (rows[0], rows[LINE - 1]) = (project(&low), project(&high));
            for row in 0..CUT {
                let mut whole = [0.0; LINE];
                (whole[0], whole[LINE - 1]) = (left[row + 1], right[row + 1]);
                whole[1..=CUT].copy_from_slice(&local[start + row * CUT..start + (row + 1) * CUT]);
                rows[row + 1] = project(&whole);
            }
            for across in 0..WHOLE {
                let own = project(&rows.map(|row| row[across]));
                for (along, value) in own.into_iter().enumerate() {
                    values[places.faces[face][along * WHOLE + across]] = value;
                }
            }
        }
    }

    /// The transpose of [`expand`](Self::expand): sums of what each unknown contributed to. `local` is filled anew.
    pub(super) fn contract(self, places: &Places, values: &Values, local: &mut [f64]) {
        let (edges, faces, count) = self.starts();
        local[..count].fill(0.0);
        for (corner, &at) in places.corners.iter().enumerate() {
            local[corner] = values[at];
        }
        let add = |edge: usize, line: &[f64; LINE], local: &mut [f64]| {
            let [low, high] = places.ends[edge];
            local[low] += line[0];
            local[high] += line[LINE - 1];
            for (local, part) in local[edges[edge]..].iter_mut().zip(&line[1..=CUT]) {
                *local += part;
            }
        };
        for edge in 0..EDGES {
            let own = places.edges[edge].map(|at| values[at]);
            if self.cuts_edge(edge) {
                add(edge, &spread(own), local);
            } else {
                local[edges[edge]..edges[edge] + WHOLE].copy_from_slice(&own);
            }
        }
        for face in 0..FACES {
            let start = faces[face];
            let own = places.faces[face].map(|at| values[at]);
            if !self.cuts_face(face) {
                local[start..start + own.len()].copy_from_slice(&own);
                continue;
            }
            let columns: [[f64; LINE]; WHOLE] = std::array::from_fn(|across| {
                spread([0, 1, 2].map(|along| own[along * WHOLE + across]))
            });
            let rows: [[f64; LINE]; LINE] =
                std::array::from_fn(|row| spread(columns.map(|column| column[row])));
            let [low, high, left, right] = places.sides[face];
            add(low, &rows[0], local);
            add(high, &rows[LINE - 1], local);
            // The corners are in the rows above.
            let inner = |column: usize| {
                let mut line = rows.map(|row| row[column]);
                (line[0], line[LINE - 1]) = (0.0, 0.0);
                line
            };
            add(left, &inner(0), local);
            add(right, &inner(LINE - 1), local);
            for row in 0..CUT {
                let to = start + row * CUT;
                local[to..to + CUT].copy_from_slice(&rows[row + 1][1..=CUT]);
            }
        }
    }

    /// Calls `with(unknown, point, weight)` for each unknown that is a point of the element. Corners weigh a third for
    /// each face that is not cut.
    pub(super) fn each_point(self, places: &Places, mut with: impl FnMut(usize, usize, f64)) {
        let (edges, faces, _) = self.starts();
        for (corner, &at) in places.corners.iter().enumerate() {
            let whole = (0..3).filter(|axis| !self.cuts_face(2 * axis + (corner >> axis & 1)));
            with(corner, at, whole.count() as f64 / 3.0);
        }
        for edge in (0..EDGES).filter(|&edge| !self.cuts_edge(edge)) {
            let points = places.edges[edge].iter().enumerate();
            points.for_each(|(at, &point)| with(edges[edge] + at, point, 1.0));
        }
        for face in (0..FACES).filter(|&face| !self.cuts_face(face)) {
            let points = places.faces[face].iter().enumerate();
            points.for_each(|(at, &point)| with(faces[face] + at, point, 1.0));
        }
    }

    /// Calls `with` for each unknown on a face.
    fn each_on_face(self, places: &Places, face: usize, mut with: impl FnMut(usize)) {
        let (edges, faces, _) = self.starts();
        for side in places.sides[face] {
            places.ends[side].into_iter().for_each(&mut with);
            let count = if self.cuts_edge(side) { CUT } else { WHOLE };
            (edges[side]..edges[side] + count).for_each(&mut with);
        }
        (faces[face]..faces[face] + WHOLE * WHOLE).for_each(&mut with);
    }
}

#[inline(always)]
fn project(line: &[f64; LINE]) -> [f64; WHOLE] {
    PROJECTION.map(|row| row.iter().zip(line).map(|(factor, value)| factor * value).sum())
}

#[inline(always)]
fn spread(own: [f64; WHOLE]) -> [f64; LINE] {
    std::array::from_fn(|at| (0..WHOLE).map(|row| PROJECTION[row][at] * own[row]).sum())
}

/// The unknowns of a mesh.
pub(super) struct Mortar {
    pub(super) count: usize,
    pub(super) shapes: Vec<Shape>,
    /// Numbers of the unknowns of each element, one element after the other.
    unknowns: Vec<u32>,
    starts: Vec<usize>,
    /// 0 for an unknown on the surface of the cube, 1 for another.
    pub(super) free: Vec<f64>,
    /// Of which elements the faces are on the surface: bits by face.
    pub(super) surface: Vec<u8>,
}

/// A corner (kind 0), an edge (1 + axis) or a face (4 + axis), its level and place.
type Key = (u8, u8, [u16; 3]);

/// Numbers given so far.
#[derive(Default)]
struct Numbers {
    given: HashMap<Key, u32>,
    next: u32,
}

impl Numbers {
    fn of(&mut self, kind: usize, level: u8, place: [u16; 3]) -> u32 {
        // Corners have no level.
        let key = if kind == 0 {
            (0, 0, place.map(|at| at << (14 - level)))
        } else {
            (kind as u8, level, place)
        };
        let points = [1, 3, 9][kind.div_ceil(3)];
        let next = &mut self.next;
        *self.given.entry(key).or_insert_with(|| {
            *next += points;
            *next - points
        })
    }
}

fn moved(mut place: [u16; 3], axis: usize, by: u16) -> [u16; 3] {
    place[axis] += by;
    place
}

impl Mortar {
    pub(super) fn new(cells: &[Cell], mesh: &Mesh, places: &Places) -> Self {
        let mut numbers = Numbers::default();
        let mut mortar = Self {
            count: 0,
            shapes: Vec::with_capacity(cells.len()),
            unknowns: Vec::new(),
            starts: vec![0],
            free: Vec::new(),
            surface: Vec::with_capacity(cells.len()),
        };
        for &cell in cells {
            let (shape, surface) = shape(cell, mesh);
            mortar.shapes.push(shape);
            mortar.surface.push(surface);
            number(cell, shape, &mut numbers, &mut mortar.unknowns);
            mortar.starts.push(mortar.unknowns.len());
        }
        mortar.count = numbers.next as usize;
        mortar.free = vec![1.0; mortar.count];
        for element in 0..cells.len() {
            for face in (0..FACES).filter(|face| mortar.surface[element] >> face & 1 == 1) {
                let unknowns = &mortar.unknowns[mortar.starts[element]..];
                mortar.shapes[element].each_on_face(places, face, |at| {
                    mortar.free[unknowns[at] as usize] = 0.0;
                });
            }
        }
        mortar
    }

    pub(super) fn unknowns(&self, element: usize) -> &[u32] {
        &self.unknowns[self.starts[element]..self.starts[element + 1]]
    }
}

/// What of an element is cut by smaller neighbours, and which of its faces are on the surface.
fn shape(cell: Cell, mesh: &Mesh) -> (Shape, u8) {
    let mut bits = 0;
    let mut surface = 0;
    let smaller = |by: [i32; 3]| mesh.cover(cell.beside(by)) == Cover::Smaller;
    let out = |bit: usize| 2 * bit as i32 - 1;
    for face in 0..FACES {
        let mut by = [0; 3];
        by[face / 2] = out(face % 2);
        match mesh.cover(cell.beside(by)) {
            Cover::Smaller => bits |= 1 << (EDGES + face),
            Cover::Outside => surface |= 1 << face,
            Cover::Same | Cover::Larger(_) => {}
        }
    }
    for edge in 0..EDGES {
        let [b, c] = OTHERS[edge / 4];
        let (mut first, mut second, mut both) = ([0; 3], [0; 3], [0; 3]);
        (first[b], both[b]) = (out(edge & 1), out(edge & 1));
        (second[c], both[c]) = (out(edge >> 1 & 1), out(edge >> 1 & 1));
        if smaller(first) || smaller(second) || smaller(both) {
            bits |= 1 << edge;
        }
    }
    (Shape(bits), surface)
}

/// Appends the numbers of an element's unknowns.
fn number(cell: Cell, shape: Shape, numbers: &mut Numbers, unknowns: &mut Vec<u32>) {
    let Cell { level, at } = cell;
    for bits in 0..CORNERS {
        let place = [0, 1, 2].map(|axis| at[axis] + (bits >> axis & 1) as u16);
        unknowns.push(numbers.of(0, level, place));
    }
    for edge in 0..EDGES {
        let (axis, [b, c]) = (edge / 4, OTHERS[edge / 4]);
        let start = moved(moved(at, b, (edge & 1) as u16), c, (edge >> 1 & 1) as u16);
        if shape.cuts_edge(edge) {
            let start = start.map(|at| 2 * at);
            let middle = moved(start, axis, 1);
            let first = numbers.of(1 + axis, level + 1, start);
            unknowns.extend(first..first + 3);
            unknowns.push(numbers.of(0, level + 1, middle));
            let second = numbers.of(1 + axis, level + 1, middle);
            unknowns.extend(second..second + 3);
        } else {
            let first = numbers.of(1 + axis, level, start);
            unknowns.extend(first..first + 3);
        }
    }
    for face in 0..FACES {
        let (axis, [b, c]) = (face / 2, OTHERS[face / 2]);
        let start = moved(at, axis, (face % 2) as u16);
        if !shape.cuts_face(face) {
            let first = numbers.of(4 + axis, level, start);
            unknowns.extend(first..first + 9);
            continue;
        }
        let start = start.map(|at| 2 * at);
        for v in 0..CUT {
            for u in 0..CUT {
                // The middle lines of a cut face are edges, their crossing is a corner.
                let place = moved(moved(start, b, u16::from(u >= 3)), c, u16::from(v >= 3));
                let (along, up) = (u as u32 % 4, v as u32 % 4);
                unknowns.push(match (u, v) {
                    (3, 3) => numbers.of(0, level + 1, place),
                    (_, 3) => numbers.of(1 + b, level + 1, place) + along,
                    (3, _) => numbers.of(1 + c, level + 1, place) + up,
                    _ => numbers.of(4 + axis, level + 1, place) + 3 * up + along,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::POINTS;
    use super::*;

    #[test]
    fn contracting_is_the_transpose_of_expanding() {
        let places = Places::new();
        // Nothing cut; an edge; a face and its edges; everything.
        let sides = places.sides[3].iter().fold(0, |bits, side| bits | 1 << side);
        for shape in [Shape(0), Shape(1 << 5), Shape(1 << 15 | sides), Shape((1 << 18) - 1)] {
            let count = shape.count();
            let some = |at: usize| ((at * 7919 % 101) as f64 - 50.0) / 7.0;
            let local: Vec<f64> = (0..count).map(some).collect();
            let other: Values = std::array::from_fn(|at| some(at + 13));
            let mut values = [0.0; POINTS];
            shape.expand(&places, &local, &mut values);
            let outer = |at: &usize| !places.inner.contains(at);
            let right: f64 = (0..POINTS).filter(outer).map(|at| values[at] * other[at]).sum();
            let mut sums = vec![1.0; MOST];
            shape.contract(&places, &other, &mut sums);
            let left: f64 = local.iter().zip(sums).map(|(local, sum)| local * sum).sum();
            assert!((left - right).abs() < 1e-9, "{shape:?}: {left} {right}");
        }
    }

    #[test]
    fn what_is_constant_stays_so_across_a_cut() {
        let places = Places::new();
        let shape = Shape((1 << 18) - 1);
        let mut values = [0.0; POINTS];
        shape.expand(&places, &vec![1.0; shape.count()], &mut values);
        for (at, value) in values.iter().enumerate() {
            let expected = if places.inner.contains(&at) { 0.0 } else { 1.0 };
            assert!((value - expected).abs() < 1e-12, "{at}: {value}");
        }
    }
}
