//! Which random graph.

use std::fmt;
use std::str::FromStr;

/// How the edges of a random graph are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// R-MAT with 0.57, 0.19, 0.19, 0.05, as Graph500 has it: few vertices have most edges.
    Kronecker,
    /// Both ends uniform: every vertex has about as many edges.
    Uniform,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Kronecker, Self::Uniform];
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Kronecker => "kronecker",
            Self::Uniform => "uniform",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("there is no graph {text:?}; valid graphs: kronecker, uniform"))
    }
}
