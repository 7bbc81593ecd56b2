//! Correct under stress: real programs on `libpagemill_heap.so` while it compacts all the time.
//!
//! The programs in `tests/programs` are compiled on the spot and check themselves; the system's own programs must do
//! exactly what they do without the library. Variables for whoever hunts a failure:
//!
//! | variable | meaning |
//! |---|---|
//! | `PAGEMILL_SOAK=SECONDS` | each timed test runs that long, and every program under every configuration |
//! | `PAGEMILL_SEED=N` | the seed; printed with each failure, else taken from the clock |
//! | `PAGEMILL_HEAP_LIB=FILE` | this build of our library |
//! | `PAGEMILL_STRESS_ALLOCATOR=FILE` | another library in place of ours (`none`: the C library's) |

#[cfg(test)]
#[path = "../support/mod.rs"]
mod support;

mod differential;
mod forks;
mod harness;
mod io;
mod liberties;
mod limits;
mod misuse;
mod programs;
mod setting;
mod signals;
mod threads;
