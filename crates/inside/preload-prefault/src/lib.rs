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
//! - A process that the launcher does not know of (no `PAGEMILL_HUGE`, another user, a full board) runs as without the
//!   library.
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

use core::ffi::{CStr, c_char, c_int};

use pagemill_prefault::board::Head;
use pagemill_preload_sys::{confine, libc, sys};

/// Layout of the board that this library writes; also what the file is known by.
#[unsafe(no_mangle)]
pub static pagemill_prefault_version: u64 = pagemill_prefault::board::VERSION;

/// The sources that it was built from: a launcher loads what was built with it.
#[unsafe(no_mangle)]
pub static pagemill_build: u64 = pagemill_preload_sys::BUILD;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}

/// Runs when the library is loaded. glibc hands every initialiser what it hands `main`.
extern "C" fn at_load(
    _count: c_int,
    _arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    calls::find_real();
    blocks::find_real();
    // SAFETY: the environment that the C library hands over: strings, then null.
    let Some(path) = (unsafe { variable(environment, b"PAGEMILL_HUGE") }) else { return };
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

/// The value of an environment variable.
///
/// # Safety
/// `environment` is null or an array of C strings that ends in null; the strings live as long as the answer is used.
unsafe fn variable(environment: *const *const c_char, name: &[u8]) -> Option<&'static CStr> {
    if environment.is_null() {
        return None;
    }
    let mut place = environment;
    // SAFETY: the caller's promise; the walk ends at the null.
    unsafe {
        while !(*place).is_null() {
            let entry = CStr::from_ptr(*place).to_bytes();
            if entry.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'=')) {
                return Some(CStr::from_ptr((*place).add(name.len() + 1)));
            }
            place = place.add(1);
        }
    }
    None
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = at_load;
