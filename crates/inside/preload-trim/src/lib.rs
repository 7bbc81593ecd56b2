//! `libpagemill_trim.so`: has glibc's malloc give free memory back while the program rests (`run --trim`). It replaces
//! no allocator: every call goes on to the definition that would have been used without it.
//!
//! ```text
//!  free ──► the program's own            one in 256: is the heap worth it? ──► a thread: watch ──► malloc_trim(0)
//!   └───────────────────────────────────────┘
//! ```
//!
//! glibc returns free memory only from the end of its heap, and so keeps what lies below anything live;
//! `malloc_trim` returns every free page. It costs time, holds the locks of malloc, and what is needed again is faulted
//! in again: so it is called when the program rests ([`watch`]).
//!
//! The thread is a real one of the C library (`pthread_create`), for `malloc_trim` takes locks that the C library
//! leaves out in a program of one thread. It begins late ([`gate`]): a program that never holds a heap worth it stays
//! one of one thread.
//!
//! What always holds:
//! - Nothing here unwinds or prints; the thread has no signals, no descriptor of the program's, and no memory of its
//!   own but its stack.
//! - Where the program's `free` is not glibc's, calls are passed on and nothing else.
//! - A call that is refused to a process of several threads finds none of ours ([`calls`]); a program that confines
//!   itself has none from then on.
//! - A forked child begins anew.
#![no_std]

mod calls;
mod gate;
mod watch;
mod namespace {
    //! The thread ends before, and may begin again after.
    pagemill_preload_sys::interposed::namespace_calls!(crate::gate::without);
}

use pagemill_preload_sys::library::Environment;
use pagemill_preload_sys::sys;

/// What the file is known by.
#[unsafe(no_mangle)]
pub static pagemill_trim_version: u64 = 1;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}

pagemill_preload_sys::library::library!(at_load);

/// Runs when the library is loaded.
fn at_load(_: &Environment) {
    calls::find_real();
    namespace::find_real();
    gate::open(calls::next_free());
}
