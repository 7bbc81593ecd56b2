//! What the libraries that programs are made to load share. It runs inside other people's programs: nothing here
//! allocates, unwinds, prints or touches `errno` but where it says so.
//!
//! | module | is |
//! |---|---|
//! | `sys` | system calls without the C library |
//! | `libc` | the few functions of the C library that are needed, by weak reference |
//! | `next` | the definitions behind a library's own |
//! | `library` | what each has, and its start |
//! | `interposed` | what several put in the place of the C library's functions |
//! | `confine` | a helper thread gives up the rights that it was born with |
//! | `helper` | a helper thread's start, bell and end |
//! | `sites` | the layout of the ring in which call sites are noted, which the recorder reads |
#![no_std]

pub mod confine;
pub mod helper;
pub mod interposed;
pub mod libc;
pub mod library;
pub mod next;
pub mod sites;
pub mod sys;

include!(concat!(env!("OUT_DIR"), "/build.rs"));
