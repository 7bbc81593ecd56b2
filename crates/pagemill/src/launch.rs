//! Starting and supervising a program.

pub mod prepare;
pub mod supervise;
