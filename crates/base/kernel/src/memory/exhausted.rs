//! What is said where there is no more memory: one line, and the process ends with 2.
//!
//! The standard library aborts, and where a backtrace of that is asked for (`RUST_BACKTRACE`), which takes memory too,
//! it waits for itself for ever.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;

/// The system's allocator, whose callers always get what they ask for or are no more.
#[derive(Debug)]
pub struct ExitWhenExhausted;

// SAFETY: every call is passed on as it is, with what its caller promises; what it returns is the system's.
unsafe impl GlobalAlloc for ExitWhenExhausted {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the same.
        or_end(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        or_end(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        or_end(unsafe { System.realloc(memory, layout, size) }, size)
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn or_end(memory: *mut u8, size: usize) -> *mut u8 {
    if memory.is_null() {
        end(size)
    }
    memory
}

/// Allocates nothing.
#[cold]
fn end(size: usize) -> ! {
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    // It fits.
    let _ = writeln!(
        rest,
        "pagemill: there is no memory for {size} bytes more (raise the limit: ulimit -v, ulimit -d, or the control \
         group's; or free some)"
    );
    let left = rest.len();
    let length = line.len() - left;
    // SAFETY: the line is as long; nobody could be told if it cannot be written.
    unsafe { libc::write(2, line.as_ptr().cast(), length) };
    // SAFETY: it may be called anywhere and does not return.
    unsafe { libc::_exit(2) }
}
