//! Pure decisions. A policy is a function of a view: it reads no clock, does no I/O and calls no
//! kernel; time is a field of the view and randomness, where a policy needs any, a seed. The same
//! value therefore decides on the simulated machine, on a live one and over a recording.
#![forbid(unsafe_code)]

pub mod huge;
pub mod tier;
