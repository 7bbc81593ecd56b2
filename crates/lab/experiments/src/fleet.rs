//! Experiments on many machines, by engines that exist: Slurm, GNU parallel.
//!
//! Terms. A *matrix* is the list of cells of one run and the options that they have in common. An *engine* runs
//! commands on machines; each of ours is one cell, and may be run anywhere, any number of times: whoever comes first
//! does it ([`crate::reproduce::keep`]).
//!
//! ```text
//!  matrix.json ──► engine ──► cell.sh N on any machine ──► cells/…json   one finished cell each
//!  cells.txt                  prolog.sh, the cell, epilog.sh              │ of any number of directories
//!                                                                        ▼
//!                                           collect ──► cells.parquet, and the tables of a run
//! ```
//!
//! Always true: what is submitted is written down first, as files that run by hand, too. A cell that was cut off is not
//! finished, and is among those that are submitted next time.

pub mod collect;
pub mod engine;
pub mod matrix;
pub mod one_cell;
pub mod parallel;
pub mod scripts;
pub mod slurm;
