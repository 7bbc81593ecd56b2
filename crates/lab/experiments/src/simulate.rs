//! What `pagemill simulate` runs besides published figures: a program on the simulated machine, policies side by side.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | which machine, and which program on it |
//! | [`placement`] | a run of each placement policy |
//! | [`probe`] | this machine's memory nodes as a machine file |
//! | [`sweep`] | throughput by the size of the fast tier |
//! | [`huge`] | a run of each huge page policy |
//! | [`huge_recorded`] | a recording of page faults as a program on it |

pub mod huge;
pub mod huge_recorded;
pub mod machine;
pub mod placement;
pub mod probe;
pub mod sweep;
