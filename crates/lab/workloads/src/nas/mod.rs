//! Kernels of the NAS parallel benchmarks, each checked against its published result.
//!
//! | name | kernel | what its memory sees |
//! |---|---|---|
//! | `nas-is` | integer sort by counting | random increments over a key table |
//! | `nas-cg` | conjugate gradient on a random sparse matrix | streamed matrix, gathered vector |
//! | `nas-mg` | multigrid on a periodic cube | long strided sweeps over several grid sizes |
//! | `nas-ft` | 3-D fast Fourier transform | transposing strides over one large array |
//! | `nas-ep` | Gaussian pairs, nothing stored | almost none |
//! | `nas-bt` | fluid in a cube, blocks of 5 x 5 along lines | lines along x, y and z, small dense blocks |
//! | `nas-sp` | fluid in a cube, five bands along lines | lines along x, y and z |
//! | `nas-lu` | fluid in a cube, over-relaxation | planes in order, each waiting for the one before |
//! | `nas-ua` | heat on an adaptive mesh | gathers and scatters through indices that change |
//! | `nas-dc` | data cube | counting sorts of a table by many choices of columns |
//!
//! Written from the specification (Bailey et al., *The NAS Parallel Benchmarks*, RNR-94-007; class
//! sizes and check values from the verification routines of NPB 3), not from its source text, so
//! seconds compare with nothing but the same kernel in another run. What does compare is the
//! result: random numbers, matrices, grids and iteration counts are the specified ones, and a run
//! whose result differs from the published value fails.
//!
//! Threads are forked for each parallel region and joined at its end, as an OpenMP program does;
//! with one thread everything runs on the caller. A result depends on the number of threads only
//! through the order of floating-point sums, far below the tolerance of the check.

mod agreement;
mod bt;
mod cg;
pub(crate) mod class;
mod dc;
mod ep;
mod flow;
mod ft;
mod is;
mod lu;
mod mg;
mod pseudorandom;
mod sp;
mod ua;

use crate::program::{Outcome, Params, Program};
pub use class::Class;

/// The kernels, in the order of the documentation.
pub const PROGRAMS: [Program; 10] = [
    kernel("nas-is", "NAS integer sort", is::run),
    kernel("nas-cg", "NAS conjugate gradient", cg::run),
    kernel("nas-mg", "NAS multigrid", mg::run),
    kernel("nas-ft", "NAS 3-D fast Fourier transform", ft::run),
    kernel("nas-ep", "NAS embarrassingly parallel Gaussian pairs", ep::run),
    kernel("nas-bt", "NAS block-tridiagonal solver of a fluid's equations", bt::run),
    kernel("nas-sp", "NAS scalar pentadiagonal solver of a fluid's equations", sp::run),
    kernel("nas-lu", "NAS symmetric over-relaxation of a fluid's equations", lu::run),
    kernel("nas-ua", "NAS heat on an unstructured adaptive mesh", ua::run),
    kernel("nas-dc", "NAS data cube: views of a table, grouped and summed", dc::run),
];

const fn kernel(
    name: &'static str,
    summary: &'static str,
    work: fn(&Params) -> Outcome,
) -> Program {
    Program { name, summary, takes: "threads class", work }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_s_of_every_kernel_has_the_published_result_on_one_and_on_three_threads() {
        for program in &PROGRAMS {
            for threads in [1, 3] {
                let params = Params { threads, class: Class::S, ..Params::default() };
                let report = program.run(&params).unwrap();
                assert!(report.check.contains("published"), "{report:?}");
            }
        }
    }
}
