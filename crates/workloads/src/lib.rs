//! Kernels that experiments need and that no package provides.
#![forbid(unsafe_code)]
