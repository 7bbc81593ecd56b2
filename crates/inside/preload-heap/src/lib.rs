//! `libpagemill.so`: the C malloc family over the compacting heap; glue only.
//!
//! ```text
//!  c, cxx ──► thread ──► start ──► environment
//!    │           │         └─────► fork, say
//!    └─► HEAP ◄──┘            helper ──► HEAP
//!          └── os ──► sys, libc
//! ```
//!
//! What always holds:
//! - Nothing here allocates through the library's own functions while it holds a lock of the heap.
//! - Nothing changes `errno` but a failure that C says sets it: the kernel is called without libc.
//! - Nothing unwinds; nothing is printed on success.
#![no_std]

mod c;
mod cxx;
mod environment;
mod fork;
mod helper;
mod kernel;
mod namespace;
mod os;
mod pressure;
mod refresh;
mod report;
mod rounds;
mod say;
mod spans;
mod start;
mod thread;
mod tls;

use pagemill_heap::Heap;
use pagemill_heap::stats::StatsPage;
use pagemill_preload_sys::{confine, libc, sys};

/// The one heap.
static HEAP: Heap<os::Linux> = Heap::new(os::Linux::new());

/// The statistics page, found by its name from outside; see [`StatsPage`].
#[unsafe(no_mangle)]
pub static pagemill_stats: StatsPage = StatsPage::zeroed();

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    match info.location() {
        Some(place) => say::line(format_args!(
            "internal error at {}:{}: please report; the program is stopped (SIGABRT)",
            place.file(),
            place.line()
        )),
        None => say::line(format_args!(
            "internal error: please report; the program is stopped (SIGABRT)"
        )),
    }
    sys::abort()
}
