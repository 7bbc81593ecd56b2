//! System calls that a program makes for us, or asks about: their numbers on x86-64, and what they are given.

/// A system call: its number and six arguments.
pub(crate) type Call = [i64; 7];

/// A call with its first arguments; the others are zero.
pub(crate) fn call<const N: usize>(number: i32, arguments: [i64; N]) -> Call {
    let mut call = [0; 7];
    call[0] = i64::from(number);
    call[1..=N].copy_from_slice(&arguments);
    call
}

/// Whether a call returned the number of an error.
pub(crate) fn failed(result: i64) -> bool {
    (-4095..0).contains(&result)
}

pub(crate) const CLOSE: i32 = 3;
pub(crate) const MMAP: i32 = 9;
pub(crate) const MPROTECT: i32 = 10;
pub(crate) const MUNMAP: i32 = 11;
pub(crate) const BRK: i32 = 12;
pub(crate) const MREMAP: i32 = 25;
pub(crate) const MADVISE: i32 = 28;
pub(crate) const CLONE: i32 = 56;
pub(crate) const FORK: i32 = 57;
pub(crate) const EXECVE: i32 = 59;
pub(crate) const FCNTL: i32 = 72;
pub(crate) const PTRACE: i32 = 101;
pub(crate) const PRCTL: i32 = 157;
pub(crate) const OPENAT: i32 = 257;
pub(crate) const EVENTFD2: i32 = 290;
pub(crate) const PRLIMIT: i32 = 302;
pub(crate) const SECCOMP: i32 = 317;
pub(crate) const MEMFD_CREATE: i32 = 319;
pub(crate) const EXECVEAT: i32 = 322;
pub(crate) const USERFAULTFD: i32 = 323;
pub(crate) const CLONE3: i32 = 435;
pub(crate) const CLOSE_RANGE: i32 = 436;
pub(crate) const PROCESS_MADVISE: i32 = 440;

/// Of `mmap`.
pub(crate) const SHARED: i64 = 1;
pub(crate) const PRIVATE: i64 = 2;
pub(crate) const FIXED: i64 = 0x10;
pub(crate) const ANONYMOUS: i64 = 0x20;
pub(crate) const NORESERVE: i64 = 0x4000;
pub(crate) const FIXED_NOREPLACE: i64 = 0x10_0000;
/// Of `mremap`: to the address that is given, over whatever is there.
pub(crate) const MOVE_TO: i64 = 3;

/// Advice that a fork follows.
pub(crate) const DONT_FORK: u64 = 10;
pub(crate) const WIPE_ON_FORK: u64 = 18;
pub(crate) const DONT_NEED_LOCKED: i64 = 24;

/// -EINVAL.
pub(crate) const INVALID: i64 = -22;
/// -ENOSYS.
pub(crate) const NO_SUCH_CALL: i64 = -38;
