//! `nas-ft`: a diffusion equation in three dimensions, solved in the frequency domain.
//!
//! ```text
//!  U = FFT(random complex numbers)
//!  iteration t: U(k) *= exp(-4 alpha pi^2 |k|^2);  u = inverse FFT(U), not scaled;  checksum(u)
//!  checksum = sum over j in 1..=1024 of u(j mod nx, 3 j mod ny, 5 j mod nz), over nx ny nz
//! ```
//!
//! Arrays are x fastest. A transform along y or z gathers sixteen neighbouring lines at a time.
//!
//! Check: every checksum, to 1e-12. `operations` counts points transformed, once a dimension.

use std::f64::consts::PI;
use std::time::Instant;

use super::agreement::agrees;
use super::class::Class;
use super::pseudorandom::{SEED, Stream};
use crate::complex::Complex;
use crate::program::{Outcome, Params, Report};
use crate::team;

const ALPHA: f64 = 1e-6;
const TOLERANCE: f64 = 1e-12;
/// Lines gathered at a time.
const LINES: usize = 16;

/// Points in x, y and z, and the published checksums, one an iteration.
#[derive(Clone, Copy)]
struct Size([usize; 3], &'static [(f64, f64)]);

const SIZES: [Size; 4] = [
    Size(
        [64, 64, 64],
        &[
            (5.546_087_004_964e2, 4.845_363_331_978e2),
            (5.546_385_409_189e2, 4.865_304_269_511e2),
            (5.546_148_406_171e2, 4.883_910_722_336e2),
            (5.545_423_607_415e2, 4.901_273_169_046e2),
            (5.544_255_039_624e2, 4.917_475_857_993e2),
            (5.542_683_411_902e2, 4.932_597_244_941e2),
        ],
    ),
    Size(
        [128, 128, 32],
        &[
            (5.673_612_178_944e2, 5.293_246_849_175e2),
            (5.631_436_885_271e2, 5.282_149_986_629e2),
            (5.594_024_089_970e2, 5.270_996_558_037e2),
            (5.560_698_047_020e2, 5.260_027_904_925e2),
            (5.530_898_991_250e2, 5.249_400_845_633e2),
            (5.504_159_734_538e2, 5.239_212_247_086e2),
        ],
    ),
    Size(
        [256, 256, 128],
        &[
            (5.046_735_008_193e2, 5.114_047_905_510e2),
            (5.059_412_319_734e2, 5.098_809_666_433e2),
            (5.069_376_896_287e2, 5.098_144_042_213e2),
            (5.077_892_868_474e2, 5.101_336_130_759e2),
            (5.085_233_095_391e2, 5.104_914_655_194e2),
            (5.091_487_099_959e2, 5.107_917_842_803e2),
        ],
    ),
    Size(
        [512, 256, 256],
        &[
            (5.177_643_571_579e2, 5.077_803_458_597e2),
            (5.154_521_291_263e2, 5.088_249_431_599e2),
            (5.146_409_228_649e2, 5.096_208_912_659e2),
            (5.142_378_756_213e2, 5.101_023_387_619e2),
            (5.139_626_667_737e2, 5.103_976_610_617e2),
            (5.137_423_460_082e2, 5.105_948_019_802e2),
            (5.135_547_056_878e2, 5.107_404_165_783e2),
            (5.133_910_925_466e2, 5.108_576_573_661e2),
            (5.132_470_705_390e2, 5.109_577_278_523e2),
            (5.131_197_729_984e2, 5.110_460_304_483e2),
            (5.130_070_319_283e2, 5.111_252_433_800e2),
            (5.129_070_537_032e2, 5.111_968_077_718e2),
            (5.128_182_883_502e2, 5.112_616_233_064e2),
            (5.127_393_733_383e2, 5.113_203_605_551e2),
            (5.126_691_062_020e2, 5.113_735_928_093e2),
            (5.126_064_276_004e2, 5.114_218_460_548e2),
            (5.125_504_076_570e2, 5.114_656_139_760e2),
            (5.125_002_331_720e2, 5.115_053_595_966e2),
            (5.124_551_951_846e2, 5.115_415_130_407e2),
            (5.124_146_770_029e2, 5.115_744_692_211e2),
        ],
    ),
];

/// A complex number in an array: a pair, for an array of zero pairs comes zeroed from the kernel (a structure's is
/// written by whoever makes it), so that each thread touches its own part first.
type Stored = (f64, f64);

pub(super) fn run(params: &Params) -> Outcome {
    let class: Class = params.class;
    let Size(sides, published) = class.of(SIZES);
    let points: usize = sides.iter().product();
    let started = Instant::now();
    evolve(class, noise(sides, params.threads), params.threads)?;
    Ok(Report {
        operations: (3 * points * (published.len() + 1)) as u64,
        seconds: started.elapsed().as_secs_f64(),
        metrics: Vec::new(),
        check: format!("class {class}: all {} checksums are the published ones", published.len()),
    })
}

/// The steps from this field; an error if the checksum after one is not the published one.
fn evolve(class: Class, mut frequencies: Vec<Stored>, threads: usize) -> Result<(), String> {
    let Size(sides, published) = class.of(SIZES);
    let decay = decay(sides, threads);
    transform(&mut frequencies, sides, Direction::Forward, threads);
    let mut field = vec![(0.0, 0.0); frequencies.len()];
    for (iteration, &(real, imaginary)) in published.iter().enumerate() {
        let parts: Vec<_> = team::slabs(&mut frequencies, 1, threads)
            .into_iter()
            .zip(team::slabs(&mut field, 1, threads))
            .collect();
        team::each(parts, |((first, frequencies), (_, field))| {
            for ((frequency, field), decay) in
                frequencies.iter_mut().zip(field).zip(&decay[first..])
            {
                *frequency = (Complex::from(*frequency) * *decay).into();
                *field = *frequency;
            }
        });
        transform(&mut field, sides, Direction::Backward, threads);
        let sum = checksum(&field, sides);
        for (what, found, published) in
            [("real part", sum.re, real), ("imaginary part", sum.im, imaginary)]
        {
            let what = format!("{what} of checksum {}", iteration + 1);
            agrees(class, &what, found, published, TOLERANCE)?;
        }
    }
    Ok(())
}

/// The random field that everything starts from.
fn noise([nx, ny, nz]: [usize; 3], threads: usize) -> Vec<Stored> {
    let mut field = vec![(0.0, 0.0); nx * ny * nz];
    team::each(team::slabs(&mut field, 1, threads), |(first, slab)| {
        let mut stream = Stream::new(SEED).skipped(2 * first as u64);
        for point in slab {
            *point = (stream.next(), stream.next());
        }
    });
    field
}

/// What each frequency is multiplied by in one step.
fn decay([nx, ny, nz]: [usize; 3], threads: usize) -> Vec<f64> {
    // Frequencies beyond the half are negative ones.
    let signed = |index: usize, side: usize| ((index + side / 2) % side) as f64 - (side / 2) as f64;
    let mut decay = vec![0.0; nx * ny * nz];
    team::each(team::slabs(&mut decay, nx * ny, threads), |(first, slab)| {
        for (place, factor) in slab.iter_mut().enumerate() {
            let (x, y, z) = (place % nx, place / nx % ny, first + place / nx / ny);
            let squares = signed(x, nx).powi(2) + signed(y, ny).powi(2) + signed(z, nz).powi(2);
            *factor = (-4.0 * ALPHA * PI * PI * squares).exp();
        }
    });
    decay
}

fn checksum(field: &[Stored], [nx, ny, nz]: [usize; 3]) -> Complex {
    let sum = (1..=1024).fold(Complex::ZERO, |sum, j| {
        sum + field[j % nx + nx * (3 * j % ny + ny * (5 * j % nz))].into()
    });
    let points = (nx * ny * nz) as f64;
    Complex::new(sum.re / points, sum.im / points)
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Backward,
}

/// A transform in all three dimensions, in place, not scaled.
fn transform(field: &mut [Stored], sides: [usize; 3], direction: Direction, threads: usize) {
    let [nx, ny, nz] = sides;
    // Within one plane, lines along x and y; a plane belongs to one thread.
    let (along_x, along_y) = (Roots::new(nx, direction), Roots::new(ny, direction));
    team::each(team::slabs(field, nx * ny, threads), |(_, slab)| {
        let mut scratch = Scratch::new(nx.max(ny));
        for plane in slab.chunks_exact_mut(nx * ny) {
            for row in plane.chunks_exact_mut(nx) {
                along_x.transform(row, &mut scratch.other[..nx], 1);
            }
            for first in (0..nx).step_by(LINES) {
                let lines = LINES.min(nx - first);
                let block = &mut scratch.lines[..lines * ny];
                for (row, part) in plane.chunks_exact(nx).zip(block.chunks_exact_mut(lines)) {
                    part.copy_from_slice(&row[first..first + lines]);
                }
                along_y.transform(block, &mut scratch.other[..lines * ny], lines);
                for (row, part) in plane.chunks_exact_mut(nx).zip(block.chunks_exact(lines)) {
                    row[first..first + lines].copy_from_slice(part);
                }
            }
        }
    });
    // Along z a line crosses every plane: each thread has some columns of all of them.
    let along_z = Roots::new(nz, direction);
    let columns = team::ranges(nx * ny / LINES, threads);
    let mut owned: Vec<Vec<&mut [Stored]>> =
        columns.iter().map(|_| Vec::with_capacity(nz)).collect();
    for mut plane in field.chunks_exact_mut(nx * ny) {
        for (range, owned) in columns.iter().zip(&mut owned) {
            let (part, rest) = plane.split_at_mut(range.len() * LINES);
            owned.push(part);
            plane = rest;
        }
    }
    team::each(owned, |mut planes| {
        let mut scratch = Scratch::new(nz);
        let width = planes.first().map_or(0, |plane| plane.len());
        for first in (0..width).step_by(LINES) {
            let range = first..first + LINES;
            for (plane, part) in planes.iter().zip(scratch.lines.chunks_exact_mut(LINES)) {
                part.copy_from_slice(&plane[range.clone()]);
            }
            along_z.transform(&mut scratch.lines, &mut scratch.other, LINES);
            for (plane, part) in planes.iter_mut().zip(scratch.lines.chunks_exact(LINES)) {
                plane[range.clone()].copy_from_slice(part);
            }
        }
    });
}

/// Room for a block of lines, twice.
struct Scratch {
    lines: Vec<Stored>,
    other: Vec<Stored>,
}

impl Scratch {
    fn new(side: usize) -> Self {
        Self { lines: vec![(0.0, 0.0); LINES * side], other: vec![(0.0, 0.0); LINES * side] }
    }
}

/// The roots of unity of a one-dimensional transform.
struct Roots {
    side: usize,
    roots: Vec<Complex>,
}

impl Roots {
    /// For `side` points, a power of two. The forward sign is plus, as the benchmark has it.
    fn new(side: usize, direction: Direction) -> Self {
        let sign = if direction == Direction::Forward { 1.0 } else { -1.0 };
        let roots = (0..side / 2)
            .map(|index| {
                let angle = 2.0 * PI * index as f64 / side as f64;
                Complex::new(angle.cos(), sign * angle.sin())
            })
            .collect();
        Self { side, roots }
    }

    /// Transforms `lines` interleaved lines in place, by Stockham's autosort: each pass reads
    /// from one array and writes to the other, in order.
    fn transform(&self, data: &mut [Stored], other: &mut [Stored], lines: usize) {
        let (mut from, mut to) = (&mut *data, &mut *other);
        let mut groups = self.side / 2;
        let mut width = lines;
        let mut passes = 0;
        while groups > 0 {
            let half = from.len() / 2;
            let step = self.side / 2 / groups;
            for group in 0..groups {
                let root = self.roots[group * step];
                let input = group * width;
                let output = 2 * group * width;
                for at in 0..width {
                    let a = Complex::from(from[input + at]);
                    let b = Complex::from(from[half + input + at]);
                    to[output + at] = (a + b).into();
                    to[output + width + at] = ((a - b) * root).into();
                }
            }
            (from, to) = (to, from);
            groups /= 2;
            width *= 2;
            passes += 1;
        }
        if passes % 2 == 1 {
            to.copy_from_slice(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_point_is_found() {
        let Size(sides, _) = Class::S.of(SIZES);
        let mut field = noise(sides, 1);
        field[12_345].1 += 1e-3;
        assert!(evolve(Class::S, field, 1).unwrap_err().contains("of checksum 1 is"));
    }

    #[test]
    fn a_transform_is_the_sum_that_defines_it() {
        let mut stream = Stream::new(SEED);
        for side in [1, 2, 4, 32] {
            for lines in [1, 3] {
                let data: Vec<Stored> =
                    (0..side * lines).map(|_| (stream.next(), stream.next())).collect();
                let mut transformed = data.clone();
                let mut other = data.clone();
                Roots::new(side, Direction::Forward).transform(&mut transformed, &mut other, lines);
                for line in 0..lines {
                    for frequency in 0..side {
                        let sum = (0..side).fold(Complex::ZERO, |sum, at| {
                            let angle = 2.0 * PI * (frequency * at) as f64 / side as f64;
                            let root = Complex::new(angle.cos(), angle.sin());
                            sum + Complex::from(data[at * lines + line]) * root
                        });
                        let found = Complex::from(transformed[frequency * lines + line]);
                        assert!((found - sum).size() < 1e-12 * side as f64);
                    }
                }
            }
        }
    }
}
