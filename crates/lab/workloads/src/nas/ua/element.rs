//! One element: 5 x 5 x 5 points, those of Gauss, Legendre and Lobatto along each axis.
#![expect(clippy::needless_range_loop, reason = "one index runs through several arrays")]

/// Points along an axis.
pub(super) const EDGE: usize = 5;
/// Points of an element.
pub(super) const POINTS: usize = EDGE * EDGE * EDGE;

/// Values at the points of an element, x fastest.
pub(super) type Values = [f64; POINTS];

type Matrix = [[f64; EDGE]; EDGE];

/// The square root of 3/7.
const INNER: f64 = 0.654_653_670_707_977_1;
/// Places of the points in -1..1.
const PLACES: [f64; EDGE] = [-1.0, -INNER, 0.0, INNER, 1.0];
/// Weights of an integral over -1..1.
pub(super) const WEIGHTS: [f64; EDGE] = [0.1, 49.0 / 90.0, 32.0 / 45.0, 49.0 / 90.0, 0.1];

/// Places of the points in 0..1.
pub(super) fn places() -> [f64; EDGE] {
    PLACES.map(|place| place * 0.5 + 0.5)
}

/// The polynomial that is 1 at point `of` and 0 at the others, at `place`.
fn polynomial(of: usize, place: f64) -> f64 {
    let others = (0..EDGE).filter(|&other| other != of);
    others.map(|other| (place - PLACES[other]) / (PLACES[of] - PLACES[other])).product()
}

/// Its derivative.
fn slope(of: usize, place: f64) -> f64 {
    let others = |than: usize| (0..EDGE).filter(move |&other| other != of && other != than);
    let term = |at: usize| {
        let rest = others(at).map(|o| (place - PLACES[o]) / (PLACES[of] - PLACES[o]));
        rest.product::<f64>() / (PLACES[of] - PLACES[at])
    };
    (0..EDGE).filter(|&at| at != of).map(term).sum()
}

/// Values at the points of the half `bit` of a line, from those of the line.
fn to_half(bit: usize) -> Matrix {
    let shift = if bit == 0 { -0.5 } else { 0.5 };
    PLACES.map(|place| [0, 1, 2, 3, 4].map(|of| polynomial(of, place * 0.5 + shift)))
}

/// Values at the points of a line, from those of its halves; the middle from the first.
fn from_halves() -> [Matrix; 2] {
    let at = |place: f64| [0, 1, 2, 3, 4].map(|of| polynomial(of, place));
    let low = [at(-1.0), at(1.0 - 2.0 * INNER), at(1.0), [0.0; EDGE], [0.0; EDGE]];
    let high = [[0.0; EDGE], [0.0; EDGE], [0.0; EDGE], at(2.0 * INNER - 1.0), at(1.0)];
    [low, high]
}

/// Adds the values, multiplied by a matrix along each of the three axes.
fn add_product(values: &Values, along: [&Matrix; 3], into: &mut Values) {
    let mut from = *values;
    for (axis, matrix) in along.into_iter().enumerate() {
        let step = EDGE.pow(axis as u32);
        let mut to = [0.0; POINTS];
        for at in 0..POINTS {
            let place = at / step % EDGE;
            let first = at - place * step;
            to[at] = (0..EDGE).map(|of| matrix[place][of] * from[first + of * step]).sum();
        }
        from = to;
    }
    for (into, value) in into.iter_mut().zip(from) {
        *into += value;
    }
}

/// Values in the eight parts of an element, by interpolation.
pub(super) fn halves(values: &Values) -> [Values; 8] {
    let to = [to_half(0), to_half(1)];
    [0, 1, 2, 3, 4, 5, 6, 7].map(|bits: usize| {
        let mut part = [0.0; POINTS];
        add_product(values, [0, 1, 2].map(|axis| &to[bits >> axis & 1]), &mut part);
        part
    })
}

/// Values in an element from those in its eight parts.
pub(super) fn whole(parts: &[Values; 8]) -> Values {
    let from = from_halves();
    let mut values = [0.0; POINTS];
    for (bits, part) in parts.iter().enumerate() {
        add_product(part, [0, 1, 2].map(|axis| &from[bits >> axis & 1]), &mut values);
    }
    values
}

/// The matrices of the equations; those of an element of side `h` are multiples of them.
pub(super) struct Operators {
    /// Derivative along an axis: `[point][of]`.
    pub(super) derivative: Matrix,
    /// Products of derivatives, integrated over a line.
    stiffness: Matrix,
    /// Products of three weights.
    pub(super) mass: Values,
}

impl Operators {
    pub(super) fn new() -> Self {
        let derivative = PLACES.map(|place| [0, 1, 2, 3, 4].map(|of| slope(of, place)));
        let mut stiffness = [[0.0; EDGE]; EDGE];
        for (a, row) in stiffness.iter_mut().enumerate() {
            for (b, entry) in row.iter_mut().enumerate() {
                *entry =
                    (0..EDGE).map(|at| WEIGHTS[at] * derivative[at][a] * derivative[at][b]).sum();
            }
        }
        let mass = std::array::from_fn(|at| {
            WEIGHTS[at % EDGE] * WEIGHTS[at / EDGE % EDGE] * WEIGHTS[at / EDGE / EDGE]
        });
        Self { derivative, stiffness, mass }
    }

    /// `stiffness` times the integral of the products of gradients, plus `mass` times that of the products.
    pub(super) fn apply(&self, values: &Values, stiffness: f64, mass: f64) -> Values {
        let mut out = [0.0; POINTS];
        let matrix = &self.stiffness;
        for z in 0..EDGE {
            for y in 0..EDGE {
                let start = (z * EDGE + y) * EDGE;
                let (wy, wz) = (WEIGHTS[y], WEIGHTS[z]);
                let mut across = [0.0; EDGE];
                let mut up = [0.0; EDGE];
                let mut along = [0.0; EDGE];
                for of in 0..EDGE {
                    let in_row = values[start + of];
                    let row: &[f64; EDGE] = row(values, z, of);
                    let column: &[f64; EDGE] = self::row(values, of, y);
                    for x in 0..EDGE {
                        along[x] += matrix[of][x] * in_row;
                        across[x] += matrix[y][of] * row[x];
                        up[x] += matrix[z][of] * column[x];
                    }
                }
                for x in 0..EDGE {
                    let at = start + x;
                    let wx = WEIGHTS[x];
                    out[at] = stiffness
                        * (wy * wz * along[x] + wx * wz * across[x] + wx * wy * up[x])
                        + mass * self.mass[at] * values[at];
                }
            }
        }
        out
    }

    /// What the stiffness has of a point with itself.
    pub(super) fn diagonal(&self, at: usize) -> f64 {
        let place = [at % EDGE, at / EDGE % EDGE, at / EDGE / EDGE];
        let own = |axis: usize| {
            let (b, c) = (place[(axis + 1) % 3], place[(axis + 2) % 3]);
            self.stiffness[place[axis]][place[axis]] * WEIGHTS[b] * WEIGHTS[c]
        };
        own(0) + own(1) + own(2)
    }

    /// Sum of the derivatives along x, y and z at each point, over -1..1.
    pub(super) fn divergence(&self, values: &Values) -> Values {
        let mut out = [0.0; POINTS];
        let matrix = &self.derivative;
        for z in 0..EDGE {
            for y in 0..EDGE {
                let start = (z * EDGE + y) * EDGE;
                let mut sum = [0.0; EDGE];
                for of in 0..EDGE {
                    let in_row = values[start + of];
                    let (across, up) = (row(values, z, of), row(values, of, y));
                    for x in 0..EDGE {
                        sum[x] += matrix[x][of] * in_row
                            + matrix[y][of] * across[x]
                            + matrix[z][of] * up[x];
                    }
                }
                out[start..start + EDGE].copy_from_slice(&sum);
            }
        }
        out
    }
}

#[inline(always)]
fn row(values: &Values, z: usize, y: usize) -> &[f64; EDGE] {
    let (rows, _) = values.as_chunks();
    &rows[z * EDGE + y]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(of: impl Fn([f64; 3]) -> f64, low: [f64; 3], side: f64) -> Values {
        std::array::from_fn(|at| {
            let place = [at % EDGE, at / EDGE % EDGE, at / EDGE / EDGE];
            of([0, 1, 2].map(|axis| low[axis] + side * places()[place[axis]]))
        })
    }

    #[test]
    fn a_polynomial_survives_cutting_and_merging() {
        let of = |[x, y, z]: [f64; 3]| x.powi(4) - 2.0 * y * y * z + z.powi(3) + 1.0;
        let values = sample(of, [0.0; 3], 1.0);
        let parts = halves(&values);
        for (bits, part) in parts.iter().enumerate() {
            let low = [0, 1, 2].map(|axis| (bits >> axis & 1) as f64 * 0.5);
            let expected = sample(of, low, 0.5);
            assert!(part.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-13));
        }
        assert!(whole(&parts).iter().zip(values).all(|(a, b)| (a - b).abs() < 1e-13));
    }

    #[test]
    fn derivatives_and_integrals_of_a_polynomial_are_exact() {
        let operators = Operators::new();
        let values = sample(|[x, y, z]| x * x + 3.0 * y + z.powi(3), [-1.0; 3], 2.0);
        let expected = sample(|[x, _, z]| 2.0 * x + 3.0 + 3.0 * z * z, [-1.0; 3], 2.0);
        let found = operators.divergence(&values);
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
        // The integral of the squared gradient of x y: of x^2 + y^2 over the cube of side 2.
        let values = sample(|[x, y, _]| x * y, [-1.0; 3], 2.0);
        let product = operators.apply(&values, 1.0, 0.0);
        let sum: f64 = values.iter().zip(product).map(|(a, b)| a * b).sum();
        assert!((sum - 16.0 / 3.0).abs() < 1e-12, "{sum}");
    }
}
