//! The few functions of the C library that the allocator needs, by weak reference.
//!
//! The library names no other library (`DT_NEEDED` is empty): the dynamic loader finds these in whatever the
//! program brings. A weak reference that it does not find is null, and what needs it degrades.

/// The address of a symbol of another library, or zero.
#[macro_export]
#[doc(hidden)]
macro_rules! weak {
    ($name:literal) => {{
        let address: usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: reads this library's global offset table, which the loader filled before any
        // of its code ran and made read-only.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {0}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                concat!(".weak ", $name),
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) address,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        address
    }};
}
pub use weak;

/// The function of this type at a weak reference, if there is one.
#[macro_export]
#[doc(hidden)]
macro_rules! function {
    ($name:literal, $type:ty) => {{
        let address = $crate::libc::weak!($name);
        // SAFETY: a symbol of this name is, by the C library's interface, a function of this type;
        // `Option` of a function pointer is null for none.
        unsafe { core::mem::transmute::<usize, Option<$type>>(address) }
    }};
}
pub use function;

use core::ffi::{c_char, c_int, c_void};

/// "Out of memory", the error that a failed allocation leaves in `errno`.
pub const ENOMEM: c_int = 12;
/// "Function not implemented".
pub const ENOSYS: c_int = 38;
/// "Invalid argument".
pub const EINVAL: c_int = 22;

/// Where the calling thread's `errno` is.
pub fn errno_place() -> Option<*mut c_int> {
    let location = function!("__errno_location", unsafe extern "C" fn() -> *mut c_int)?;
    // SAFETY: takes nothing and returns the address of the thread's own errno.
    Some(unsafe { location() })
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: c_int) {
    if let Some(place) = errno_place() {
        // SAFETY: the thread's own errno.
        unsafe { *place = value };
    }
}

/// A key whose destructor runs at each thread's exit, or `None`.
pub fn thread_key(destructor: unsafe extern "C" fn(*mut c_void)) -> Option<u32> {
    type Create = unsafe extern "C" fn(*mut u32, unsafe extern "C" fn(*mut c_void)) -> c_int;
    let create = function!("pthread_key_create", Create)?;
    let mut key = 0;
    // SAFETY: writes one key; the destructor is never unloaded (the library is linked nodelete).
    (unsafe { create(&raw mut key, destructor) } == 0).then_some(key)
}

/// Sets the calling thread's value of a key; may allocate for keys above the first 32.
#[expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the value is kept, and nobody follows it here"
)]
pub fn set_thread_value(key: u32, value: *mut c_void) -> bool {
    type Set = unsafe extern "C" fn(u32, *const c_void) -> c_int;
    match function!("pthread_setspecific", Set) {
        // SAFETY: the key came from thread_key.
        Some(set) => unsafe { set(key, value) == 0 },
        None => false,
    }
}

/// Registers the three handlers of `fork(2)`.
pub fn at_fork(
    prepare: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> bool {
    type Handler = unsafe extern "C" fn();
    type Glibc = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;
    type Posix = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;
    if let Some(register) = function!("__register_atfork", Glibc) {
        // SAFETY: handlers that are never unloaded; no library handle, so they are never removed.
        return unsafe { register(prepare, parent, child, core::ptr::null_mut()) == 0 };
    }
    match function!("pthread_atfork", Posix) {
        // SAFETY: as above, for C libraries that have only the public name.
        Some(register) => unsafe { register(prepare, parent, child) == 0 },
        None => false,
    }
}

/// What the C library's functions return for what a system call did: its result, or -1 and `errno`.
pub extern "C" fn answer(result: isize) -> isize {
    if crate::sys::failed(result) {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// The next definition of a function behind this library's own, or null. May allocate.
pub fn next_definition(name: &core::ffi::CStr) -> *mut c_void {
    const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;
    type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    match function!("dlsym", Lookup) {
        // SAFETY: a special handle and a string that ends in a zero byte.
        Some(lookup) => unsafe { lookup(RTLD_NEXT, name.as_ptr()) },
        None => core::ptr::null_mut(),
    }
}

/// A symbol of a library that is loaded already, even if only for some other library's use; null if
/// there is none. May allocate.
pub fn in_loaded(library: &core::ffi::CStr, name: &core::ffi::CStr) -> *mut c_void {
    const RTLD_LAZY: c_int = 1;
    const RTLD_NOLOAD: c_int = 4;
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    let (Some(open), Some(lookup)) = (function!("dlopen", Open), function!("dlsym", Lookup)) else {
        return core::ptr::null_mut();
    };
    // SAFETY: opens nothing new; the handle, if any, is kept, so what it names stays loaded.
    unsafe {
        let handle = open(library.as_ptr(), RTLD_LAZY | RTLD_NOLOAD);
        if handle.is_null() { handle } else { lookup(handle, name.as_ptr()) }
    }
}
