//! Memory ahead of a program that grows: the pure part of `run --huge`.
//!
//! - [`frontier`]: where a region of address space grows and how far ahead of it pages are provided.
//! - [`board`]: the words through which the libraries inside the programs and the launcher talk.
//!
//! Nothing here makes a system call or allocates: the library's thread runs inside other people's programs.
#![no_std]
#![forbid(unsafe_code)]

pub mod board;
pub mod frontier;

/// Bytes of a huge page, of both architectures with 4 KiB pages.
pub const HUGE: u64 = 2 << 20;

/// Bytes of a base page.
pub const PAGE: u64 = 4096;
