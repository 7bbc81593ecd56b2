//! Namespaces that only a process of one thread may enter: the helper ends before the call and starts again after it.
//!
//! The kernel refuses `unshare` of a user namespace, of the address space and of signal handlers, and `setns` into a
//! user or time namespace, to a process of several threads. A program that has one thread of its own must not learn
//! that the heap has another. So the two functions are wrapped; a raw system call cannot be seen and is refused.
//!
//! What was merged stays merged without the helper. A new one starts when the heap next grows and takes the
//! engine over as a forked child does.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::helper::state;
use crate::{libc, sys};

type Unshare = unsafe extern "C" fn(c_int) -> c_int;
type Setns = unsafe extern "C" fn(c_int, c_int) -> c_int;
type Symbol = AtomicPtr<core::ffi::c_void>;

/// The C library's functions, found when the library is loaded: looking one up may allocate and so start a helper.
static REAL_UNSHARE: Symbol = AtomicPtr::new(core::ptr::null_mut());
static REAL_SETNS: Symbol = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn find_real() {
    REAL_UNSHARE.store(libc::next_definition(c"unshare"), Ordering::Release);
    REAL_SETNS.store(libc::next_definition(c"setns"), Ordering::Release);
}

/// Makes `call` without the helper if it needs a single thread.
fn alone(needed: bool, call: impl Fn() -> c_int) -> c_int {
    if needed { state::without(call) } else { call() }
}

/// What the C library's functions return: the result, or -1 and `errno`.
fn answer(result: isize) -> c_int {
    if sys::failed(result) {
        libc::set_errno(-result as c_int);
        return -1;
    }
    result as c_int
}

/// `unshare(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let real = REAL_UNSHARE.load(Ordering::Acquire);
    alone(sys::unshare_needs_one_thread(flags), || {
        if real.is_null() {
            return answer(sys::unshare(flags));
        }
        // SAFETY: a symbol of this name is a function of this type; its contract is the caller's promise.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Unshare>(real)(flags) }
    })
}

/// `setns(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    let real = REAL_SETNS.load(Ordering::Acquire);
    alone(sys::set_namespace_needs_one_thread(fd, kind), || {
        if real.is_null() {
            return answer(sys::set_namespace(fd, kind));
        }
        // SAFETY: a symbol of this name is a function of this type; its contract is the caller's promise.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Setns>(real)(fd, kind) }
    })
}
