//! `libpagemill_heap.so`: the C malloc family over the compacting heap; glue only.
//!
//! ```text
//!  c, cxx, report ──► interim, thread ──► start ──► fork, exit, copied ──► settings ──► environment
//!    └─► heap ──► os ──► diagnostics
//!
//!  hooks (of os) ──► copied, refresh ──► heap
//!    └─► helper ──► helper::housekeeping ──► heap, kernel, pressure
//! ```
//!
//! `helper::work` and `helper::state` are what the program's threads and the helper know of each other. `os` knows what
//! is over the heap by the trait `Hooks`.
//!
//! What always holds:
//! - Nothing here allocates through the library's own functions while it holds a lock of the heap.
//! - Nothing changes `errno` but a failure that C says sets it: the kernel is called without libc.
//! - Nothing unwinds; nothing is printed on success.
#![no_std]

mod c;
mod copied;
mod cxx;
mod detour;
mod diagnostics;
mod environment;
mod exit;
mod fork;
mod heap;
mod helper;
mod hooks;
mod interim;
mod kernel;
mod line;
mod namespace;
mod os;
mod pressure;
mod raw_fork;
mod refresh;
mod report;
mod settings;
mod spans;
mod start;
mod stats;
mod thread;
mod tls;
mod vma_stripe;

use pagemill_preload_sys::library::Environment;
use pagemill_preload_sys::sys;

pagemill_preload_sys::library::library!(at_load);

/// Runs when the library is loaded: a program that never allocates has a heap with statistics too.
fn at_load(_: &Environment) {
    start::ensure();
    raw_fork::find_real();
    namespace::find_real();
    #[cfg(target_arch = "x86_64")]
    detour::set_up();
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    match info.location() {
        Some(place) => diagnostics::line(format_args!(
            "the heap's own data are wrong at {}:{}: by a write of the program outside its objects \
             (run --heap h finds many), or else by a defect of pagemill, which please report; the program is stopped \
             (SIGABRT)",
            place.file(),
            place.line()
        )),
        None => diagnostics::line(format_args!(
            "the heap's own data are wrong; the program is stopped (SIGABRT)"
        )),
    }
    sys::abort()
}
