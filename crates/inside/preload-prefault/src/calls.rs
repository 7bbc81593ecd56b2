//! The C library's functions that are watched. Each does what the C library's does and nothing else that the program
//! could see.
//!
//! | function | why |
//! |---|---|
//! | `mmap`, `mmap64` | a new mapping is looked at when it is made, not when the helper next looks around |
//! | `madvise`, `prctl` | where the program does not want huge pages |
//! | `mremap` | refused for a range of two mappings: what we advised in part is advised as a whole then |
//! | `mlockall` | locked memory is not added to: the helper ends |
//! | `syscall`, `prctl` | where the program filters its system calls |
//!
//! A mapping with no room for a huge page is advised at once, so that its faults bring 64 KiB. From a filter of system
//! calls on the program's threads make none of ours, and a filter for all threads finds the helper gone.
//!
//! The C library's own calls do not come by here. What `malloc` maps for one block [`crate::blocks`] tells; the rest
//! (`brk`, arenas of threads) the helper finds by itself.

use core::ffi::{c_int, c_long, c_ulong, c_void};
use pagemill_prefault::HUGE;
use pagemill_preload_sys::interposed::comes_before_filter;
use pagemill_preload_sys::libc::{self, answer};
use pagemill_preload_sys::next::{known, next_definitions};
use pagemill_preload_sys::sys::{self, linux};

use crate::{helper, kernel, notes};

next_definitions! {
    MMAP = c"mmap",
    MMAP64 = c"mmap64",
    MREMAP = c"mremap",
    MADVISE = c"madvise",
    PRCTL = c"prctl",
    MLOCKALL = c"mlockall",
    SYSCALL = c"syscall",
}

/// "Bad address".
const EFAULT: c_int = 14;

/// The calling thread's `errno`.
fn errno() -> Option<c_int> {
    // SAFETY: the address of the thread's own errno.
    libc::errno_place().map(|place| unsafe { *place })
}

type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, c_long) -> *mut c_void;

/// The smallest mapping that is looked at when it is made.
pub(crate) const LEAST: usize = 1 << 20;

/// The smallest mapping that is worth larger pages.
pub(crate) const LEAST_ADVISED: usize = 64 << 10;

/// The smallest mapping whose first pages are waited for, a millisecond at most: they take the place of its first
/// faults, which would take as long.
const WAITED_FOR: usize = 64 << 20;

/// Notes a mapping that was made by `mmap`, if it is one of memory that the program may write.
fn note(mapped: *mut c_void, len: usize, protection: c_int, flags: c_int) {
    const MAP_GROWSDOWN: c_int = 0x100;
    const MAP_HUGETLB: c_int = 0x4_0000;
    const MAP_STACK: c_int = 0x2_0000;
    let wanted = sys::MAP_PRIVATE as c_int | sys::MAP_ANONYMOUS as c_int;
    let other = 1 | MAP_GROWSDOWN | MAP_HUGETLB | MAP_STACK;
    let grows = flags & (wanted | other) == wanted && protection & sys::PROT_WRITE as c_int != 0;
    if grows && len >= LEAST_ADVISED && mapped.addr() != usize::MAX {
        note_range(mapped.addr(), len);
    }
}

/// Notes a mapping of memory that the program may write, of [`LEAST_ADVISED`] bytes at least.
pub(crate) fn note_range(at: usize, len: usize) {
    let (start, end) = (at as u64, (at + len) as u64);
    if notes::is_quiet() {
        if len >= LEAST {
            notes::mapped(at, len);
        }
    } else if len < HUGE as usize && notes::advises_small() && !notes::is_refused(start, end) {
        kernel::want_huge(start, len as u64);
        notes::mapped_small(len);
    } else if len >= LEAST {
        let note = notes::mapped(at, len);
        helper::wanted();
        if len >= WAITED_FOR {
            helper::wait_for(note);
        }
    }
}

/// The functions that map: by the next definition or, before that was looked up, by the system call. The mapping is
/// noted.
macro_rules! mapping {
    ($($name:ident by $next:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`.")]
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            at: *mut c_void,
            len: usize,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: c_long,
        ) -> *mut c_void {
            let mapped = match known!($next, Map) {
                // SAFETY: the caller's promise.
                Some(real) => unsafe { real(at, len, protection, flags, fd, offset) },
                None => {
                    let [access, flags, fd] = [protection, flags, fd].map(|word| word as usize);
                    let arguments = [at.addr(), len, access, flags, fd, offset as usize];
                    // SAFETY: the caller's promise.
                    answer(unsafe { sys::call(linux::__NR_mmap, arguments) }) as *mut c_void
                }
            };
            note(mapped, len, protection, flags);
            mapped
        }
    )*};
}
mapping! {
    mmap by MMAP;
    // The same on 64-bit machines.
    mmap64 by MMAP64;
}

/// `mremap(2)`; the C declaration takes the new address only with `MREMAP_FIXED`, and passes it as here.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    type Remap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
    let call = || match known!(MREMAP, Remap) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(old, old_len, new_len, flags, new) },
        None => {
            let arguments = [old.addr(), old_len, new_len, flags as usize, new.addr()];
            // SAFETY: the caller's promise.
            answer(unsafe { sys::call(linux::__NR_mremap, arguments) }) as *mut c_void
        }
    };
    let before = errno();
    let moved = call();
    let (start, len) = (old.addr() as u64, old_len as u64);
    let split = moved.addr() == usize::MAX && errno() == Some(EFAULT);
    if !split
        || !kernel::has_advised()
        || notes::is_quiet()
        || notes::is_refused(start, start + len)
    {
        return moved;
    }
    kernel::want_huge(start, len);
    let moved = call();
    if let Some(before) = before.filter(|_| moved.addr() != usize::MAX) {
        libc::set_errno(before);
    }
    moved
}

/// `madvise(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    type Advise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
    if advice == sys::MADV_NOHUGEPAGE as c_int {
        notes::refused(start.addr(), len);
    }
    match known!(MADVISE, Advise) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(start, len, advice) },
        // SAFETY: the caller's promise.
        None => answer(unsafe { sys::advise(start.cast(), len, advice as usize) }) as c_int,
    }
}

pagemill_preload_sys::interposed::prctl_after!(before_prctl);

fn before_prctl(option: c_int, a: c_ulong, b: c_ulong) {
    const PR_SET_THP_DISABLE: c_int = 41;
    if comes_before_filter(option) {
        notes::keep_quiet();
    }
    if option == PR_SET_THP_DISABLE && a != 0 && b == 0 {
        notes::refused_all();
    }
}

/// `mlockall(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    type Lock = unsafe extern "C" fn(c_int) -> c_int;
    helper::retire();
    match known!(MLOCKALL, Lock) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(flags) },
        None => answer(-(libc::ENOSYS as isize)) as c_int,
    }
}

/// `syscall(2)`, by which a program filters its system calls, for the C library has no function for that. Any other
/// call is a jump to the next definition, with stack and registers as they are: it may be one that returns twice.
///
/// # Safety
/// As for the C library's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, 317",
        "je 3f",
        "2:",
        "mov rax, qword ptr [rip + {next}]",
        "test rax, rax",
        "jz 4f",
        "jmp rax",
        // seccomp(operation, flags, …)
        "3:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 64",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "call {before}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        ".cfi_def_cfa_offset 8",
        "jmp 2b",
        // Before the next definition was looked up.
        "4:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "mov rdi, rax",
        "jmp {answer}",
        ".cfi_endproc",
        next = sym SYSCALL,
        before = sym before_filter,
        answer = sym answer,
    );
}

/// As for x86-64.
///
/// # Safety
/// As for the C library's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp x0, #277",
        "b.eq 3f",
        "2:",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "cbz x16, 4f",
        "br x16",
        "3:",
        "stp x29, x30, [sp, #-80]!",
        ".cfi_def_cfa_offset 80",
        ".cfi_offset x29, -80",
        ".cfi_offset x30, -72",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "mov x0, x1",
        "mov x1, x2",
        "bl {before}",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "b 2b",
        "4:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc 0",
        "b {answer}",
        ".cfi_endproc",
        next = sym SYSCALL,
        before = sym before_filter,
        answer = sym answer,
    );
}

/// The program asks for `seccomp(operation, flags, …)`.
extern "C" fn before_filter(operation: c_ulong, flags: c_ulong) {
    /// To read and write only, or a filter.
    const SETS: c_ulong = 1;
    const FOR_ALL_THREADS: c_ulong = 1;
    if operation <= SETS {
        notes::keep_quiet();
        if operation == SETS && flags & FOR_ALL_THREADS != 0 {
            helper::leave();
        }
    }
}
