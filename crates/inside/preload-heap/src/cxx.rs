//! The twenty C++ operators, by their mangled names.
//!
//! A throwing `operator new` that finds no memory calls the program's new handler and tries again, for ever; without a
//! handler it throws `bad_alloc`. Handler and exception must not unwind through a Rust frame (the library aborts on
//! panic), so these operators are a few instructions each, with unwinding information of their own:
//!
//! ```text
//!  operator new(size):
//!    2: call allocate           ─► not null: return it
//!    3: call after_failure      ─► the new handler, or the function that throws
//!       call what it returned   (may unwind)
//!       again from 2
//! ```
//!
//! The functions of the C++ library are found when they are needed, for a program in C may load a C++ plugin later.

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};

use pagemill_preload_sys::{libc, sys};

use crate::{c, diagnostics};

extern "C" fn allocate(size: usize) -> *mut u8 {
    c::allocate(size)
}

extern "C" fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    if align.is_power_of_two() { c::allocate_aligned(align, size) } else { core::ptr::null_mut() }
}

/// A function of the C++ library that the program uses; zero if it uses none.
fn in_runtime(found: usize, name: &CStr) -> usize {
    if found != 0 {
        return found;
    }
    [c"libstdc++.so.6", c"libc++.so.1", c"libc++abi.so.1"]
        .into_iter()
        .map(|library| libc::in_loaded(library, name).addr())
        .find(|&address| address != 0)
        .unwrap_or(0)
}

/// The program's new handler, or zero.
fn new_handler() -> usize {
    type Get = unsafe extern "C" fn() -> usize;
    let address = in_runtime(libc::weak!("_ZSt15get_new_handlerv"), c"_ZSt15get_new_handlerv");
    // SAFETY: the C++ library's std::get_new_handler, or null.
    match unsafe { core::mem::transmute::<usize, Option<Get>>(address) } {
        // SAFETY: it takes nothing and does not throw.
        Some(get) => unsafe { get() },
        None => 0,
    }
}

/// What a throwing operator must call, having found no memory: the new handler, or what throws `bad_alloc`.
#[cold]
extern "C" fn after_failure() -> usize {
    let handler = new_handler();
    if handler != 0 {
        return handler;
    }
    let thrower = in_runtime(libc::weak!("_ZSt17__throw_bad_allocv"), c"_ZSt17__throw_bad_allocv");
    if thrower == 0 {
        diagnostics::line(format_args!(
            "no memory for operator new, and no C++ library to throw bad_alloc; the program is stopped (SIGABRT)"
        ));
        sys::abort();
    }
    thrower
}

/// A throwing operator; the arguments are kept on the stack over the calls.
macro_rules! throwing {
    ($($(#[$doc:meta])* $name:literal as $function:ident($($argument:ident),+) = $allocate:path;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C++ operator; may throw.
        #[unsafe(naked)]
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function($($argument: usize),+) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                "push rsi",
                "push rdi",
                "sub rsp, 8",
                ".cfi_def_cfa_offset 32",
                "2:",
                "call {allocate}",
                "test rax, rax",
                "jz 3f",
                "add rsp, 24",
                ".cfi_def_cfa_offset 8",
                "ret",
                ".cfi_def_cfa_offset 32",
                "3:",
                "call {after_failure}",
                "call rax",
                "mov rdi, qword ptr [rsp + 8]",
                "mov rsi, qword ptr [rsp + 16]",
                "jmp 2b",
                ".cfi_endproc",
                allocate = sym $allocate,
                after_failure = sym after_failure,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-32]!",
                ".cfi_def_cfa_offset 32",
                ".cfi_offset x29, -32",
                ".cfi_offset x30, -24",
                "stp x0, x1, [sp, #16]",
                "2:",
                "bl {allocate}",
                "cbz x0, 3f",
                ".cfi_remember_state",
                "ldp x29, x30, [sp], #32",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_restore_state",
                "3:",
                "bl {after_failure}",
                "blr x0",
                "ldp x0, x1, [sp, #16]",
                "b 2b",
                ".cfi_endproc",
                allocate = sym $allocate,
                after_failure = sym after_failure,
            );
        }
    )*};
}

throwing! {
    /// `operator new(size_t)`.
    "_Znwm" as new(size) = allocate;
    /// `operator new[](size_t)`.
    "_Znam" as new_array(size) = allocate;
    /// `operator new(size_t, align_val_t)`.
    "_ZnwmSt11align_val_t" as new_aligned(size, align) = allocate_aligned;
    /// `operator new[](size_t, align_val_t)`.
    "_ZnamSt11align_val_t" as new_array_aligned(size, align) = allocate_aligned;
}

/// An operator that does not throw. With a new handler, which may throw, the C++ library's own operator is called:
/// it catches what the throwing one (ours) lets through. Without that library there is no handler.
#[cold]
fn without_throwing(name: &CStr, size: usize, align: usize) -> *mut u8 {
    type Operator = unsafe extern "C" fn(usize, usize, usize) -> *mut u8;
    if new_handler() == 0 {
        return core::ptr::null_mut();
    }
    let address = in_runtime(0, name);
    // SAFETY: the C++ library's operator, or null.
    match unsafe { core::mem::transmute::<usize, Option<Operator>>(address) } {
        // SAFETY: (size, nothrow) or (size, align, nothrow): a superfluous last argument is not looked at, and the
        // tag's bytes never are.
        Some(operator) => unsafe { operator(size, align, align) },
        None => core::ptr::null_mut(),
    }
}

macro_rules! nothrow {
    ($(
        $(#[$doc:meta])* $name:literal, $c_name:literal
            as $function:ident($($argument:ident),+; $size:ident, $align:expr) = $allocate:path;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C++ operator.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function($($argument: usize,)+ _tag: *const c_void) -> *mut u8 {
            let object = $allocate($($argument),+);
            if object.is_null() { without_throwing($c_name, $size, $align) } else { object }
        }
    )*};
}

nothrow! {
    /// `operator new(size_t, nothrow_t const&)`.
    "_ZnwmRKSt9nothrow_t", c"_ZnwmRKSt9nothrow_t" as new_nothrow(size; size, 0) = allocate;
    /// `operator new[](size_t, nothrow_t const&)`.
    "_ZnamRKSt9nothrow_t", c"_ZnamRKSt9nothrow_t" as new_array_nothrow(size; size, 0) = allocate;
    /// `operator new(size_t, align_val_t, nothrow_t const&)`.
    "_ZnwmSt11align_val_tRKSt9nothrow_t", c"_ZnwmSt11align_val_tRKSt9nothrow_t"
        as new_aligned_nothrow(size, align; size, align) = allocate_aligned;
    /// `operator new[](size_t, align_val_t, nothrow_t const&)`.
    "_ZnamSt11align_val_tRKSt9nothrow_t", c"_ZnamSt11align_val_tRKSt9nothrow_t"
        as new_array_aligned_nothrow(size, align; size, align) = allocate_aligned;
}

/// The operators that free; size, alignment and tag are not needed.
macro_rules! delete {
    ($($name:literal as $function:ident;)*) => {$(
        /// An `operator delete`; size, alignment and tag, if any, are not looked at.
        ///
        /// # Safety
        /// As for the C++ operator.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function(object: *mut u8) {
            // SAFETY: the program gives the object up.
            unsafe { c::release(object) }
        }
    )*};
}

delete! {
    "_ZdlPv" as delete;
    "_ZdaPv" as delete_array;
    "_ZdlPvRKSt9nothrow_t" as delete_nothrow;
    "_ZdaPvRKSt9nothrow_t" as delete_array_nothrow;
    "_ZdlPvSt11align_val_t" as delete_aligned;
    "_ZdaPvSt11align_val_t" as delete_array_aligned;
    "_ZdlPvSt11align_val_tRKSt9nothrow_t" as delete_aligned_nothrow;
    "_ZdaPvSt11align_val_tRKSt9nothrow_t" as delete_array_aligned_nothrow;
}

macro_rules! delete_sized {
    ($($name:literal as $function:ident;)*) => {$(
        /// Frees an object as the C++ operator of that (mangled) name; hardened mode checks the size.
        ///
        /// # Safety
        /// As for the C++ operator.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function(object: *mut u8, size: usize) {
            // SAFETY: the program gives the object up.
            unsafe { c::release_sized(object, size) }
        }
    )*};
}

delete_sized! {
    "_ZdlPvm" as delete_sized;
    "_ZdaPvm" as delete_array_sized;
    "_ZdlPvmSt11align_val_t" as delete_sized_aligned;
    "_ZdaPvmSt11align_val_t" as delete_array_sized_aligned;
}
