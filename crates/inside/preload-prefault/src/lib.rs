//! `libpagemill_prefault.so`: provides memory ahead of a program that grows. It replaces no `malloc`, but sees what is
//! asked of it; glue only.
//!
//! ```text
//!  blocks (malloc …) ─► calls (mmap, madvise, prctl …) ──► notes ──► helper ──► regions ──► pool ──► sys
//!                                                 └─ board (shared with the launcher)
//! ```
//!
//! The helper is a raw `clone` that the C library knows nothing of, as in `libpagemill_heap.so` (both use
//! `preload-sys`). It has the kernel populate private anonymous memory where nothing is yet, or moves zeroed pages
//! there: the program cannot tell either from a page that it touched for the first time itself.
//!
//! What always holds:
//! - Nothing here allocates, unwinds or prints; `errno` changes only as the wrapped functions change it.
//! - A mapping that is being grown into with huge pages is two for the kernel, advised and not; `mremap` makes it one
//!   again first, and the C library's own `mremap` in `realloc` copies where it would have moved.
//! - A process that the launcher does not know of (no `PAGEMILL_PREFAULT`, another user, a full board) runs as without
//!   the library.
#![no_std]

mod blocks;
mod board;
mod calls;
mod fork;
mod helper;
mod kernel;
mod notes;
mod pool;
mod regions;
mod namespace {
    //! The helper ends before and starts again after.
    pagemill_preload_sys::interposed::namespace_calls!(crate::helper::without);
}

use pagemill_prefault::board::Head;
use pagemill_preload_sys::library::Environment;
use pagemill_preload_sys::sys;

/// Layout of the board that this library writes; also what the file is known by.
#[unsafe(no_mangle)]
pub static pagemill_prefault_version: u64 = pagemill_prefault::board::VERSION;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}

pagemill_preload_sys::library::library!(at_load);

/// Runs when the library is loaded.
fn at_load(environment: &Environment) {
    calls::find_real();
    blocks::find_real();
    namespace::find_real();
    let Some(path) = environment.variable(b"PAGEMILL_PREFAULT") else { return };
    if !board::open(path) {
        return;
    }
    let filters = board::whole_board().map_or(0, |board| board.get(Head::Filters));
    if kernel::has_more_filters_than(filters) {
        helper::refuse();
    } else {
        blocks::start();
        fork::register();
        helper::start_at_load();
    }
}
