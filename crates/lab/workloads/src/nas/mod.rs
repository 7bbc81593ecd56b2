//! Kernels of the NAS parallel benchmarks, each checked against its published result.
//!
//! | name | kernel | what its memory sees |
//! |---|---|---|
//! | `nas-is` | integer sort by counting | random increments over a key table |
//! | `nas-cg` | conjugate gradient on a random sparse matrix | streamed matrix, gathered vector |
//! | `nas-mg` | multigrid on a periodic cube | long strided sweeps over several grid sizes |
//! | `nas-ft` | 3-D fast Fourier transform | transposing strides over one large array |
//! | `nas-ep` | Gaussian pairs, nothing stored | almost none |
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

mod cg;
mod ep;
mod ft;
mod is;
mod mg;
mod pseudorandom;
mod team;

use std::fmt;
use std::str::FromStr;

use crate::programs::Program;

/// Size of a problem, in the benchmark's own letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A sample: well under a second.
    S,
    /// A workstation of 1994.
    W,
    /// The smallest standard size.
    A,
    /// Four times as much work as A, or more.
    B,
}

impl Class {
    /// Every class, smallest first.
    pub const ALL: [Self; 4] = [Self::S, Self::W, Self::A, Self::B];

    /// The entry of this class in a table that has one for each.
    fn of<T: Copy>(self, table: [T; 4]) -> T {
        table[self as usize]
    }
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|class| class.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("there is no class {text:?}; valid classes: S, W, A, B"))
    }
}

/// The kernels, in the order of the documentation.
pub const PROGRAMS: [Program; 5] = [
    Program { name: "nas-is", summary: "NAS integer sort (--class, --threads)", run: is::run },
    Program {
        name: "nas-cg",
        summary: "NAS conjugate gradient (--class, --threads)",
        run: cg::run,
    },
    Program { name: "nas-mg", summary: "NAS multigrid (--class, --threads)", run: mg::run },
    Program {
        name: "nas-ft",
        summary: "NAS 3-D fast Fourier transform (--class, --threads)",
        run: ft::run,
    },
    Program {
        name: "nas-ep",
        summary: "NAS embarrassingly parallel Gaussian pairs (--class, --threads)",
        run: ep::run,
    },
];

/// Whether `value` is within a relative `tolerance` of the published `reference`.
fn agrees(value: f64, reference: f64, tolerance: f64) -> bool {
    // Written so that a NaN does not agree.
    ((value - reference) / reference).abs() <= tolerance
}

/// The sentence for a value that is not the published one.
fn differs(kernel: &str, class: Class, what: &str, value: f64, reference: f64) -> String {
    format!("{kernel} class {class}: {what} is {value:.13e}, published {reference:.13e}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::Params;

    #[test]
    fn class_s_of_every_kernel_has_the_published_result_on_one_and_on_three_threads() {
        for program in &PROGRAMS {
            for threads in [1, 3] {
                let params = Params { threads, class: Class::S, ..Params::default() };
                let report = (program.run)(&params).unwrap();
                assert_eq!(report.workload, program.name);
                assert!(report.check.contains("published"), "{report:?}");
            }
        }
    }

    #[test]
    fn classes_are_read_in_either_case_and_others_are_named() {
        assert_eq!("a".parse(), Ok(Class::A));
        assert_eq!("W".parse(), Ok(Class::W));
        assert!("C".parse::<Class>().unwrap_err().contains("S, W, A, B"));
    }

    #[test]
    fn a_value_beside_the_published_one_does_not_agree() {
        assert!(agrees(1.0 + 1e-9, 1.0, 1e-8));
        assert!(!agrees(1.0 + 1e-7, 1.0, 1e-8));
        assert!(!agrees(f64::NAN, 1.0, 1e-8));
    }
}
