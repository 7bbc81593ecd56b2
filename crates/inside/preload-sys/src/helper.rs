//! A helper thread of a preload library, from outside: whether there is one, its start, its bell and its end.
//!
//! It is a raw `clone` that the C library knows nothing of: an address space and signal dispositions shared, a
//! descriptor table of its own, all signals blocked, no thread-local storage.
//!
//! ```text
//!  off ──claimed──► starting ──set up──► running ──► failed
//!   ▲                  └─ refused ─► failed
//!   └──────── gone ◄── ending ◄── a call that needs a single thread
//! ```
//!
//! Always true: one thread at a time has claimed the start; who ends it finds `ending` until he says otherwise, so
//! that none is started meanwhile.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys;

/// There is none, and one may be started.
pub const OFF: u32 = 0;
/// Somebody starts it, or it sets itself up.
pub const STARTING: u32 = 1;
/// It works.
pub const RUNNING: u32 = 2;
/// There will be none.
pub const FAILED: u32 = 3;
/// Asked to end; whoever asked waits until the thread is gone and then says [`OFF`].
pub const ENDING: u32 = 4;

/// Between two looks at whether a thread is gone.
const LOOK_NS: u64 = 50_000;

/// What is known of a library's helper.
#[derive(Debug)]
pub struct Helper {
    /// [`OFF`] to [`ENDING`].
    pub state: AtomicU32,
    /// Changes when there is news; the helper sleeps on this word.
    pub bell: AtomicU32,
    /// The helper's thread number, while there is one.
    pub thread: AtomicU32,
    /// The stack's upper end, kept for the next start.
    stack: AtomicPtr<u8>,
    stack_len: usize,
}

impl Helper {
    /// None yet, which will have a stack of so many bytes.
    pub const fn new(stack_len: usize) -> Self {
        Self {
            state: AtomicU32::new(OFF),
            bell: AtomicU32::new(0),
            thread: AtomicU32::new(0),
            stack: AtomicPtr::new(core::ptr::null_mut()),
            stack_len,
        }
    }

    /// From off to starting: whether the caller is the one who starts it.
    pub fn claim(&self) -> bool {
        self.state.compare_exchange(OFF, STARTING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Starts the thread, for whoever has [claimed](Self::claim) it.
    ///
    /// # Errors
    /// The error number of the kernel's.
    ///
    /// # Safety
    /// `run` uses no thread-local storage, so it keeps to system calls; the caller's claim succeeded.
    pub unsafe fn spawn(&self, page_size: usize, run: extern "C" fn() -> !) -> Result<(), isize> {
        const NO_MEMORY: isize = 12;
        let top = self.stack(page_size).ok_or(NO_MEMORY)?;
        let mask = sys::set_signal_mask(!0);
        // SAFETY: the stack is the helper's alone, for the claim lets one start at a time; the rest is the caller's.
        let thread = unsafe { sys::spawn(top, run) };
        sys::set_signal_mask(mask);
        if sys::failed(thread) { Err(-thread) } else { Ok(()) }
    }

    /// The helper's stack, above a page that nobody may touch; made once.
    fn stack(&self, page_size: usize) -> Option<*mut u8> {
        let made = self.stack.load(Ordering::Acquire);
        if !made.is_null() {
            return Some(made);
        }
        let len = self.stack_len + page_size;
        let low = sys::map_anonymous(len, sys::PROT_READ | sys::PROT_WRITE, 0);
        if low.is_null() {
            return None;
        }
        // SAFETY: the lowest page of a new mapping, whose other end is the stack's top.
        let top = unsafe {
            sys::forbid(low, page_size);
            low.add(len)
        };
        self.stack.store(top, Ordering::Release);
        Some(top)
    }

    /// The thread's first act. Its descriptor table is shared until here: without one of its own it would keep the
    /// program's pipes and sockets open; then, an error number, rather no helper. A directory of its own, too: the
    /// program's may be unmounted once the program has left it; whoever shares its own with the program unshares first.
    ///
    /// # Errors
    /// The error number of the kernel's.
    pub fn enter(&self, name: &core::ffi::CStr) -> Result<(), isize> {
        let left = sys::leave_descriptors();
        if sys::failed(left) {
            return Err(-left);
        }
        sys::leave_directory();
        self.thread.store(sys::tid(), Ordering::Relaxed);
        sys::name_thread(name);
        Ok(())
    }

    /// Whether the calling thread is the helper.
    pub fn is_current(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == sys::tid()
    }

    /// Has the helper look at once.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        sys::futex_wake(&self.bell, 1);
    }

    /// Ends the helper; whether there was one. Then the state stays [`ENDING`], so that none is started.
    pub fn end(&self) -> bool {
        loop {
            match self.state.load(Ordering::Acquire) {
                OFF | FAILED => return false,
                RUNNING => {
                    let thread = self.thread.load(Ordering::Relaxed);
                    let asked = self.state.compare_exchange(
                        RUNNING,
                        ENDING,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    if asked.is_err() {
                        continue;
                    }
                    self.ring();
                    while sys::thread_exists(thread) {
                        sys::sleep(LOOK_NS);
                    }
                    return true;
                }
                // Another thread ends it, or it is not set up yet.
                _ => sys::sleep(LOOK_NS),
            }
        }
    }

    /// Makes `call`, which is refused to a process of several threads, while there is no helper; whether there was one.
    pub fn without(&self, call: impl Fn() -> c_int) -> (c_int, bool) {
        if !self.end() {
            return (call(), false);
        }
        let result = sys::retry(call);
        self.state.store(OFF, Ordering::Release);
        (result, true)
    }
}
