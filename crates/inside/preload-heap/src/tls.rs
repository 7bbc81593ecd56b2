//! The library's thread-local storage: five words a thread, in the initial-exec model.
//!
//! `thread_local!` would go through `__tls_get_addr`, which may call malloc, and its destructors through
//! `__cxa_thread_atexit_impl`, which calls calloc. So the block is made by the assembler and addressed at an offset
//! from the thread pointer that the loader fixed. Only a library that is there from the start (as a preloaded one is)
//! may do so; the loader is told by `DF_STATIC_TLS`.
//!
//! ```text
//!  pagemill_tls + 0   the thread's cache, null if it has none (yet, or any more)
//!               + 8   state, see `thread`
//!               + 16  of a fork under way: its state, see `fork`
//!               + 24  the signal mask from before it
//!               + 32  whether the thread is within the heap, see `interim`
//! ```

use core::arch::{asm, global_asm};
use pagemill_heap::Cache;

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".p2align 4",
    ".globl pagemill_tls",
    ".hidden pagemill_tls",
    ".type pagemill_tls, @object",
    ".size pagemill_tls, 40",
    "pagemill_tls:",
    ".zero 40",
    ".text",
);

/// Reads one word of the block.
#[inline(always)]
fn load<const OFFSET: usize>() -> usize {
    let value: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fs points to the thread's block and the linker's offset leads to the two words.
    unsafe {
        asm!(
            "mov {value}, qword ptr [rip + pagemill_tls@GOTTPOFF]",
            "mov {value}, qword ptr fs:[{value} + {offset}]",
            value = out(reg) value,
            offset = const OFFSET,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: tpidr_el0 points to the thread's block and the linker's offset leads to the two words.
    unsafe {
        asm!(
            "adrp {value}, :gottprel:pagemill_tls",
            "ldr {value}, [{value}, :gottprel_lo12:pagemill_tls]",
            "mrs {base}, tpidr_el0",
            "add {value}, {value}, {base}",
            "ldr {value}, [{value}, #{offset}]",
            value = out(reg) value,
            base = out(reg) _,
            offset = const OFFSET,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    value
}

/// Writes one word of the block.
#[inline(always)]
fn store<const OFFSET: usize>(value: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `load`; the words belong to this thread alone.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + pagemill_tls@GOTTPOFF]",
            "mov qword ptr fs:[{place} + {offset}], {value}",
            place = out(reg) _,
            value = in(reg) value,
            offset = const OFFSET,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `load`; the words belong to this thread alone.
    unsafe {
        asm!(
            "adrp {place}, :gottprel:pagemill_tls",
            "ldr {place}, [{place}, :gottprel_lo12:pagemill_tls]",
            "mrs {base}, tpidr_el0",
            "add {place}, {place}, {base}",
            "str {value}, [{place}, #{offset}]",
            place = out(reg) _,
            base = out(reg) _,
            value = in(reg) value,
            offset = const OFFSET,
            options(nostack, preserves_flags),
        );
    }
}

/// The calling thread's cache, or null.
#[inline(always)]
pub(crate) fn cache() -> *mut Cache {
    load::<0>() as *mut Cache
}

/// Sets the calling thread's cache.
pub(crate) fn set_cache(cache: *mut Cache) {
    store::<0>(cache as usize);
}

/// The calling thread's state.
pub(crate) fn state() -> usize {
    load::<8>()
}

/// Sets the calling thread's state.
pub(crate) fn set_state(state: usize) {
    store::<8>(state);
}

/// State of a fork that this thread does not make.
pub(crate) const NO_FORK: usize = 0;

/// Of a fork that this thread makes: its state, [`NO_FORK`] if it makes none.
pub(crate) fn fork() -> usize {
    load::<16>()
}

/// Sets it.
pub(crate) fn set_fork(state: usize) {
    store::<16>(state);
}

/// The signal mask from before that fork.
pub(crate) fn fork_mask() -> u64 {
    load::<24>() as u64
}

/// Sets it.
pub(crate) fn set_fork_mask(mask: u64) {
    store::<24>(mask as usize);
}

/// Whether this thread is within the heap; in a signal handler, whether it interrupted it there.
#[inline(always)]
pub(crate) fn is_within() -> bool {
    load::<32>() != 0
}

/// Sets it.
#[inline(always)]
pub(crate) fn set_within(within: bool) {
    store::<32>(usize::from(within));
}

/// The thread pointer: another one for each thread that lives, and the same in the child of a fork. It is aligned.
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let value: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the word at fs:0 is the thread pointer itself, by the ABI of thread-local storage; the helper thread has
    // a block of its own that keeps to it (`sys::spawn`).
    unsafe {
        asm!(
            "mov {value}, qword ptr fs:[0]",
            value = out(reg) value,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        asm!("mrs {value}, tpidr_el0", value = out(reg) value, options(pure, nomem, nostack, preserves_flags));
    }
    value
}
