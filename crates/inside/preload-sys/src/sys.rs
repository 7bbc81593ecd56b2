//! The system calls that the library makes, without libc: they leave `errno` alone and need no
//! thread-local storage, so the helper thread may use them too.
//!
//! Each wrapper returns what the kernel does: a value, or a negated error number in `-4095..0`.
//! Everything above this file is free of architecture-specific code, except `tls` and `cxx`.

use core::arch::asm;
use core::ffi::CStr;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const MMAP: usize = 9;
    pub(super) const MPROTECT: usize = 10;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const IOCTL: usize = 16;
    pub(super) const PREAD: usize = 17;
    pub(super) const PWRITE: usize = 18;
    pub(super) const MREMAP: usize = 25;
    pub(super) const MADVISE: usize = 28;
    pub(super) const GETPID: usize = 39;
    pub(super) const CLONE: usize = 56;
    pub(super) const EXIT: usize = 60;
    pub(super) const FTRUNCATE: usize = 77;
    pub(super) const CHDIR: usize = 80;
    pub(super) const SETGROUPS: usize = 116;
    pub(super) const SETRESUID: usize = 117;
    pub(super) const GETRESUID: usize = 118;
    pub(super) const SETRESGID: usize = 119;
    pub(super) const CAPGET: usize = 125;
    pub(super) const CAPSET: usize = 126;
    pub(super) const SETPRIORITY: usize = 141;
    pub(super) const SCHED_SETSCHEDULER: usize = 144;
    pub(super) const PRCTL: usize = 157;
    pub(super) const GETTID: usize = 186;
    pub(super) const FUTEX: usize = 202;
    pub(super) const GETDENTS: usize = 217;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const TGKILL: usize = 234;
    pub(super) const OPENAT: usize = 257;
    pub(super) const READLINKAT: usize = 267;
    pub(super) const UNSHARE: usize = 272;
    pub(super) const PRLIMIT: usize = 302;
    pub(super) const SETNS: usize = 308;
    pub(super) const GETRANDOM: usize = 318;
    pub(super) const MEMFD_CREATE: usize = 319;
    pub(super) const USERFAULTFD: usize = 323;
    pub(super) const PIDFD_OPEN: usize = 434;
    pub(super) const CLOSE_RANGE: usize = 436;
    pub(super) const PROCESS_MADVISE: usize = 440;
    pub(super) const PIDFD_GETFD: usize = 438;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const IOCTL: usize = 29;
    pub(super) const FTRUNCATE: usize = 46;
    pub(super) const CHDIR: usize = 49;
    pub(super) const OPENAT: usize = 56;
    pub(super) const CLOSE: usize = 57;
    pub(super) const GETDENTS: usize = 61;
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const PREAD: usize = 67;
    pub(super) const PWRITE: usize = 68;
    pub(super) const READLINKAT: usize = 78;
    pub(super) const CAPGET: usize = 90;
    pub(super) const CAPSET: usize = 91;
    pub(super) const EXIT: usize = 93;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const UNSHARE: usize = 97;
    pub(super) const FUTEX: usize = 98;
    pub(super) const CLOCK_GETTIME: usize = 113;
    pub(super) const TGKILL: usize = 131;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const SCHED_SETSCHEDULER: usize = 119;
    pub(super) const SETPRIORITY: usize = 140;
    pub(super) const SETRESUID: usize = 147;
    pub(super) const GETRESUID: usize = 148;
    pub(super) const SETRESGID: usize = 149;
    pub(super) const SETGROUPS: usize = 159;
    pub(super) const PRCTL: usize = 167;
    pub(super) const GETPID: usize = 172;
    pub(super) const GETTID: usize = 178;
    pub(super) const MUNMAP: usize = 215;
    pub(super) const MREMAP: usize = 216;
    pub(super) const CLONE: usize = 220;
    pub(super) const MMAP: usize = 222;
    pub(super) const MPROTECT: usize = 226;
    pub(super) const MADVISE: usize = 233;
    pub(super) const PRLIMIT: usize = 261;
    pub(super) const SETNS: usize = 268;
    pub(super) const GETRANDOM: usize = 278;
    pub(super) const MEMFD_CREATE: usize = 279;
    pub(super) const USERFAULTFD: usize = 282;
    pub(super) const PIDFD_OPEN: usize = 434;
    pub(super) const CLOSE_RANGE: usize = 436;
    pub(super) const PROCESS_MADVISE: usize = 440;
    pub(super) const PIDFD_GETFD: usize = 438;
}

/// One system call.
///
/// # Safety
/// The call with these arguments must not break memory that Rust code relies on.
#[inline(always)]
pub unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's x86_64 calling convention: number and result in rax, arguments in rdi,
    // rsi, rdx, r10, r8, r9; rcx and r11 are overwritten. What the call does to memory is the
    // caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's aarch64 calling convention: number in x8, arguments in x0 to x5, result
    // in x0; nothing else is overwritten. What the call does to memory is the caller's promise.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    result
}

#[expect(
    missing_docs,
    reason = "the manual pages of mmap, mremap, madvise, clock_gettime and open have them"
)]
mod flags {
    pub const PROT_NONE: usize = 0;
    pub const PROT_READ: usize = 1;
    pub const PROT_WRITE: usize = 2;
    pub const MAP_PRIVATE: usize = 2;
    pub const MAP_FIXED: usize = 0x10;
    pub const MAP_ANONYMOUS: usize = 0x20;
    pub const MAP_NORESERVE: usize = 0x4000;
    pub const MREMAP_MAYMOVE: usize = 1;
    pub const MREMAP_FIXED: usize = 2;
    pub const MADV_DONTNEED: usize = 4;
    pub const MADV_MERGEABLE: usize = 12;
    pub const MADV_NOHUGEPAGE: usize = 15;
    pub const MADV_COLD: usize = 20;
    pub const MADV_WIPEONFORK: usize = 18;
    pub const CLOCK_THREAD_CPUTIME_ID: usize = 3;
    pub const CLOCK_MONOTONIC: usize = 1;
    pub const CLOCK_PROCESS_CPUTIME_ID: usize = 2;
    pub const CLOCK_MONOTONIC_COARSE: usize = 6;
    pub const O_RDONLY: usize = 0;
    pub const O_RDWR: usize = 2;
    pub const O_NONBLOCK: usize = 0o4_000;
    pub const O_CLOEXEC: usize = 0o2_000_000;
    #[cfg(target_arch = "x86_64")]
    pub const O_DIRECTORY: usize = 0o200_000;
    #[cfg(target_arch = "aarch64")]
    pub const O_DIRECTORY: usize = 0o40_000;
}
pub use flags::*;

/// The bit by which `/proc/<pid>/fdinfo` tells that a descriptor reads and writes around the page cache.
#[cfg(target_arch = "x86_64")]
pub const O_DIRECT: usize = 0o40_000;
/// The bit by which `/proc/<pid>/fdinfo` tells that a descriptor reads and writes around the page cache.
#[cfg(target_arch = "aarch64")]
pub const O_DIRECT: usize = 0o200_000;
/// The current directory, as the directory of a relative path.
pub const AT_FDCWD: i32 = -100;
const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;

/// Whether a result is a negated error number.
pub fn failed(result: isize) -> bool {
    (-4095..0).contains(&result)
}

/// A new anonymous private mapping of `len` bytes wherever the kernel likes; null on failure.
pub fn map_anonymous(len: usize, protection: usize, flags: usize) -> *mut u8 {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | flags;
    debug_assert_eq!(flags & MAP_FIXED, 0);
    // SAFETY: without MAP_FIXED a new mapping replaces nothing.
    let result = unsafe { call(number::MMAP, [0, len, protection, flags, usize::MAX, 0]) };
    if failed(result) { core::ptr::null_mut() } else { result as *mut u8 }
}

/// Maps over `at..at + len` in one step: a file from `offset`, or anonymous memory without one.
///
/// # Safety
/// What is mapped there now may go.
pub unsafe fn map_over(at: usize, len: usize, flags: usize, file: Option<(i32, usize)>) -> isize {
    let (fd, offset) = file.map_or((usize::MAX, 0), |(fd, offset)| (fd as usize, offset));
    let kind = if file.is_some() { 0 } else { MAP_ANONYMOUS };
    let flags = MAP_PRIVATE | MAP_FIXED | kind | flags;
    // SAFETY: the caller's promise.
    unsafe { call(number::MMAP, [at, len, PROT_READ | PROT_WRITE, flags, fd, offset]) }
}

/// Moves a whole mapping over `to..to + len` in one step.
///
/// # Safety
/// What is mapped at `to` now may go, and nothing uses `from` any more.
pub unsafe fn move_over(from: usize, to: usize, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number::MREMAP, [from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to, 0]) }
}

/// `mprotect(2)` to no access at all.
///
/// # Safety
/// Nothing uses the range.
pub unsafe fn forbid(start: *mut u8, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number::MPROTECT, [start.addr(), len, PROT_NONE, 0, 0, 0]) }
}

/// `mprotect(2)` to what ordinary memory has.
pub fn allow(start: usize, len: usize) -> isize {
    // SAFETY: takes no access away.
    unsafe { call(number::MPROTECT, [start, len, PROT_READ | PROT_WRITE, 0, 0, 0]) }
}

/// `munmap(2)`.
///
/// # Safety
/// Nothing uses the range any more.
pub unsafe fn unmap(start: *mut u8, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number::MUNMAP, [start.addr(), len, 0, 0, 0, 0]) }
}

/// `mremap(2)` with leave to move; null on failure.
///
/// # Safety
/// Nothing uses the old range but through the returned address.
pub unsafe fn remap(start: *mut u8, old: usize, new: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    let result = unsafe { call(number::MREMAP, [start.addr(), old, new, MREMAP_MAYMOVE, 0, 0]) };
    if failed(result) { core::ptr::null_mut() } else { result as *mut u8 }
}

/// `madvise(2)`.
///
/// # Safety
/// The advice must not discard bytes that are still needed.
pub unsafe fn advise(start: *mut u8, len: usize, advice: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number::MADVISE, [start.addr(), len, advice, 0, 0, 0]) }
}

/// `process_madvise(2)` on this process for ranges of (address, length); bytes advised, or an error.
///
/// # Safety
/// As [`advise`], for each range.
pub unsafe fn advise_all(ranges: &[(usize, usize)], advice: usize) -> isize {
    /// Most ranges of one call.
    const MANY: usize = 128;
    /// `PIDFD_SELF_PROCESS` (Linux 6.14): this process, without a descriptor.
    const THIS_PROCESS: isize = -10_001;
    // struct iovec is an address and a length.
    let mut vector = [[0usize; 2]; MANY];
    let len = ranges.len().min(MANY);
    for (entry, &(start, bytes)) in vector.iter_mut().zip(ranges) {
        *entry = [start, bytes];
    }
    let arguments = [THIS_PROCESS as usize, vector.as_ptr().addr(), len, advice, 0, 0];
    // SAFETY: the caller's promise; the vector lives until the call returns.
    unsafe { call(number::PROCESS_MADVISE, arguments) }
}

/// Seconds and nanoseconds, as the kernel lays them out on 64-bit machines.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Timespec {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds of the second.
    pub nsec: i64,
}

impl Timespec {
    /// A span of this many nanoseconds.
    pub fn from_ns(ns: u64) -> Self {
        Self { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as i64 }
    }

    fn ns(self) -> u64 {
        self.sec as u64 * 1_000_000_000 + self.nsec as u64
    }
}

/// A clock in nanoseconds; zero if the kernel does not know it.
pub fn clock(id: usize) -> u64 {
    let mut time = Timespec::default();
    // SAFETY: the kernel writes one Timespec, to one.
    unsafe { call(number::CLOCK_GETTIME, [id, (&raw mut time).addr(), 0, 0, 0, 0]) };
    time.ns()
}

/// Sleeps while `word` holds `expected`, at most `timeout` (for ever if none); may wake for no reason.
pub fn futex_wait(
    word: &core::sync::atomic::AtomicU32,
    expected: u32,
    timeout: Option<Timespec>,
) -> isize {
    let timeout = timeout.as_ref().map_or(0, |time| core::ptr::from_ref(time).addr());
    let word = word.as_ptr().addr();
    // SAFETY: the kernel reads the word and the timeout, both alive, and writes nothing.
    unsafe { call(number::FUTEX, [word, FUTEX_WAIT_PRIVATE, expected as usize, timeout, 0, 0]) }
}

/// Sleeps for about `ns`.
pub fn nap(ns: u64) {
    let never = core::sync::atomic::AtomicU32::new(0);
    futex_wait(&never, 0, Some(Timespec::from_ns(ns)));
}

/// Makes `call` until it succeeds, a few times: one that is refused to a process of several threads, right after all
/// others but one have ended. The kernel takes a thread off the list of a process's threads an instant after it stops
/// finding it by number.
pub fn retry(call: impl Fn() -> core::ffi::c_int) -> core::ffi::c_int {
    const TRIES: u32 = 20;
    let mut result = call();
    for _ in 1..TRIES {
        if result == 0 {
            break;
        }
        nap(50_000);
        result = call();
    }
    result
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, count: u32) {
    let word = word.as_ptr().addr();
    // SAFETY: waking touches no memory of the program.
    unsafe { call(number::FUTEX, [word, FUTEX_WAKE_PRIVATE, count as usize, 0, 0, 0]) };
}

/// Fills `buffer` with what the kernel has of random bytes without waiting; returns their number.
pub fn random(buffer: &mut [u8]) -> isize {
    const GRND_NONBLOCK: usize = 1;
    // SAFETY: the kernel writes at most buffer.len() bytes to it.
    unsafe {
        call(number::GETRANDOM, [buffer.as_mut_ptr().addr(), buffer.len(), GRND_NONBLOCK, 0, 0, 0])
    }
}

/// `write(2)`; short writes are the caller's matter.
pub fn write(fd: i32, bytes: &[u8]) -> isize {
    // SAFETY: the kernel reads bytes.len() bytes of it.
    unsafe { call(number::WRITE, [fd as usize, bytes.as_ptr().addr(), bytes.len(), 0, 0, 0]) }
}

/// `read(2)`.
pub fn read(fd: i32, buffer: &mut [u8]) -> isize {
    // SAFETY: the kernel writes at most buffer.len() bytes to it.
    unsafe { call(number::READ, [fd as usize, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0]) }
}

/// Opens a file, relative to a directory, close-on-exec; a descriptor or a negated error number.
pub fn open_at(directory: i32, path: &CStr, flags: usize) -> isize {
    // SAFETY: the kernel reads a path that ends in a zero byte.
    unsafe {
        call(number::OPENAT, [directory as usize, path.as_ptr().addr(), flags | O_CLOEXEC, 0, 0, 0])
    }
}

/// Opens a file, close-on-exec; a descriptor or a negated error number.
pub fn open(path: &CStr, flags: usize) -> isize {
    open_at(AT_FDCWD, path, flags)
}

/// Reads at an offset.
///
/// # Safety
/// `buffer..buffer + len` may be overwritten.
pub unsafe fn read_at(fd: i32, buffer: *mut u8, len: usize, offset: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number::PREAD, [fd as usize, buffer.addr(), len, offset, 0, 0]) }
}

/// Writes at an offset.
pub fn write_at(fd: i32, bytes: &[u8], offset: usize) -> isize {
    // SAFETY: the kernel reads bytes.len() bytes of it.
    unsafe { call(number::PWRITE, [fd as usize, bytes.as_ptr().addr(), bytes.len(), offset, 0, 0]) }
}

/// The entries of a directory, as `linux_dirent64` records; the bytes written, 0 at the end.
pub fn directory_entries(fd: i32, buffer: &mut [u8]) -> isize {
    // SAFETY: the kernel writes at most buffer.len() bytes to it.
    unsafe {
        call(number::GETDENTS, [fd as usize, buffer.as_mut_ptr().addr(), buffer.len(), 0, 0, 0])
    }
}

/// Where a symbolic link points, without a zero byte; the length.
pub fn link_target(directory: i32, path: &CStr, buffer: &mut [u8]) -> isize {
    // SAFETY: the kernel reads a path that ends in a zero byte and writes at most buffer.len() bytes.
    unsafe {
        call(
            number::READLINKAT,
            [
                directory as usize,
                path.as_ptr().addr(),
                buffer.as_mut_ptr().addr(),
                buffer.len(),
                0,
                0,
            ],
        )
    }
}

/// A new nameless file in memory, close-on-exec; a descriptor or a negated error number.
pub fn memory_file(name: &CStr) -> isize {
    const MFD_CLOEXEC: usize = 1;
    // SAFETY: the kernel reads a name that ends in a zero byte.
    unsafe { call(number::MEMFD_CREATE, [name.as_ptr().addr(), MFD_CLOEXEC, 0, 0, 0, 0]) }
}

/// `ftruncate(2)`.
pub fn set_length(fd: i32, len: usize) -> isize {
    // SAFETY: acts on a file of this library that nobody maps yet.
    unsafe { call(number::FTRUNCATE, [fd as usize, len, 0, 0, 0, 0]) }
}

/// `userfaultfd(2)`.
pub fn userfaultfd(flags: usize) -> isize {
    // SAFETY: makes a descriptor, touches no memory.
    unsafe { call(number::USERFAULTFD, [flags, 0, 0, 0, 0, 0]) }
}

/// `ioctl(2)`.
///
/// # Safety
/// The request and its argument must fit each other, and what it does to memory must be wanted.
pub unsafe fn ioctl(fd: i32, request: usize, argument: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number::IOCTL, [fd as usize, request, argument, 0, 0, 0]) }
}

/// `close(2)` of a descriptor that this library opened.
pub fn close(fd: i32) {
    // SAFETY: closing a descriptor touches no memory.
    unsafe { call(number::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Gives the calling thread a descriptor table of its own, an empty one.
pub fn leave_descriptors() -> isize {
    const CLOSE_RANGE_UNSHARE: usize = 2;
    // SAFETY: touches no memory; the other threads keep the old table.
    unsafe { call(number::CLOSE_RANGE, [0, u32::MAX as usize, CLOSE_RANGE_UNSHARE, 0, 0, 0]) }
}

/// The process.
pub fn pid() -> u32 {
    // SAFETY: no arguments, no memory.
    unsafe { call(number::GETPID, [0; 6]) as u32 }
}

/// The calling thread.
pub fn tid() -> u32 {
    // SAFETY: no arguments, no memory.
    unsafe { call(number::GETTID, [0; 6]) as u32 }
}

/// Makes the calling thread alone a real-time one of the lowest priority; `false` without the right to it, or where
/// the process's real-time threads are limited in time (`RLIMIT_RTTIME`), which ends the process.
pub fn set_real_time() -> bool {
    const RLIMIT_RTTIME: usize = 15;
    const SCHED_RR: usize = 2;
    let mut limit = [0_u64; 2];
    // SAFETY: the kernel writes both words of a struct rlimit.
    let known =
        unsafe { call(number::PRLIMIT, [0, RLIMIT_RTTIME, 0, limit.as_mut_ptr().addr(), 0, 0]) };
    if failed(known) || limit != [u64::MAX; 2] {
        return false;
    }
    let priority = 1_i32;
    // SAFETY: the kernel reads a struct sched_param, which is one int.
    let done = unsafe {
        call(number::SCHED_SETSCHEDULER, [0, SCHED_RR, (&raw const priority).addr(), 0, 0, 0])
    };
    !failed(done)
}

/// Sets the niceness of the calling thread alone.
pub fn set_niceness(niceness: isize) -> isize {
    const PROCESS: usize = 0;
    // SAFETY: no memory.
    unsafe { call(number::SETPRIORITY, [PROCESS, 0, niceness as usize, 0, 0, 0]) }
}

/// `prctl(2)` for options that take numbers or strings.
///
/// # Safety
/// Pointers among the arguments must be what the option expects.
pub unsafe fn prctl(option: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(number::PRCTL, [option, a, b, c, d, 0]) }
}

/// Names the calling thread (15 bytes at most) for `/proc`.
pub fn name_thread(name: &CStr) {
    const PR_SET_NAME: usize = 15;
    // SAFETY: the kernel reads up to 16 bytes of a string that ends in a zero byte.
    unsafe { prctl(PR_SET_NAME, name.as_ptr().addr(), 0, 0, 0) };
}

/// Sets the calling thread's signal mask and returns the old one.
pub fn set_signal_mask(mask: u64) -> u64 {
    const SIG_SETMASK: usize = 2;
    let mut old = 0_u64;
    // SAFETY: the kernel reads one 8-byte mask and writes one.
    unsafe {
        call(
            number::RT_SIGPROCMASK,
            [SIG_SETMASK, (&raw const mask).addr(), (&raw mut old).addr(), 8, 0, 0],
        );
    }
    old
}

/// Ends the program by SIGABRT, whatever it does with that signal.
pub fn abort() -> ! {
    const SIGABRT: usize = 6;
    const SIGKILL: usize = 9;
    let (process, thread) = (pid() as usize, tid() as usize);
    set_signal_mask(!(1 << (SIGABRT - 1)));
    for signal in [SIGABRT, SIGKILL] {
        // A handler that returns leads on to the next, stronger way.
        // SAFETY: signals the calling thread; that it may not come back is the point.
        unsafe { call(number::TGKILL, [process, thread, signal, 0, 0, 0]) };
    }
    loop {
        // SAFETY: ends the process.
        unsafe { call(number::EXIT_GROUP, [127, 0, 0, 0, 0, 0]) };
    }
}

/// The layout of capability sets that all kernels since 2.6.26 know.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Gives up every capability of the calling thread.
pub fn drop_capabilities() -> isize {
    let header: [u32; 2] = [CAPABILITY_VERSION_3, 0];
    let none = [0_u32; 6];
    // SAFETY: the kernel reads a header and two sets of three words, both alive.
    unsafe {
        call(number::CAPSET, [(&raw const header).addr(), (&raw const none).addr(), 0, 0, 0, 0])
    }
}

/// Makes every capability that the calling thread may use one that it does use.
pub fn wake_capabilities() -> isize {
    let header: [u32; 2] = [CAPABILITY_VERSION_3, 0];
    // Effective, permitted, inheritable: the low halves, then the high ones.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the kernel reads a header and writes two sets of three words, both alive.
    unsafe {
        let arguments = [(&raw const header).addr(), (&raw mut sets).addr(), 0, 0, 0, 0];
        call(number::CAPGET, arguments);
    }
    for half in &mut sets {
        half[0] = half[1];
    }
    // SAFETY: the kernel reads both.
    unsafe {
        let arguments = [(&raw const header).addr(), (&raw const sets).addr(), 0, 0, 0, 0];
        call(number::CAPSET, arguments)
    }
}

/// The calling thread's real, effective and saved user.
pub fn user_ids() -> [u32; 3] {
    let mut ids = [0_u32; 3];
    let at = |id: &mut u32| core::ptr::from_mut(id).addr();
    let [real, effective, saved] = &mut ids;
    let arguments = [at(real), at(effective), at(saved), 0, 0, 0];
    // SAFETY: the kernel writes three words, all alive.
    unsafe { call(number::GETRESUID, arguments) };
    ids
}

/// Sets the calling thread's users, and no other thread's: real and saved, effective.
pub fn set_user_ids(rest: u32, effective: u32) -> isize {
    let [rest, effective] = [rest as usize, effective as usize];
    // SAFETY: no memory.
    unsafe { call(number::SETRESUID, [rest, effective, rest, 0, 0, 0]) }
}

/// Sets the calling thread's groups, and no other thread's: real and saved, effective.
pub fn set_group_ids(rest: u32, effective: u32) -> isize {
    let [rest, effective] = [rest as usize, effective as usize];
    // SAFETY: no memory.
    unsafe { call(number::SETRESGID, [rest, effective, rest, 0, 0, 0]) }
}

/// Takes the calling thread, and no other, out of its supplementary groups.
pub fn leave_groups() -> isize {
    // SAFETY: an empty list is not read.
    unsafe { call(number::SETGROUPS, [0; 6]) }
}

/// Makes `/` the calling thread's directory.
pub fn leave_directory() -> isize {
    // SAFETY: the kernel reads a path that ends in a zero byte.
    unsafe { call(number::CHDIR, [c"/".as_ptr().addr(), 0, 0, 0, 0, 0]) }
}

/// A descriptor, in the calling thread's table, of what `fd` is in the table of the process's first thread. Linux 5.6.
pub fn descriptor_of_process(fd: i32) -> isize {
    // SAFETY: makes descriptors, touches no memory.
    unsafe {
        let process = call(number::PIDFD_OPEN, [pid() as usize, 0, 0, 0, 0, 0]);
        if failed(process) {
            return process;
        }
        let found = call(number::PIDFD_GETFD, [process as usize, fd as usize, 0, 0, 0, 0]);
        close(process as i32);
        found
    }
}

/// Whether the process still has this thread.
pub fn thread_exists(thread: u32) -> bool {
    const NO_SUCH_THREAD: isize = -3;
    // SAFETY: signal 0 is none; the call only looks.
    let found = unsafe { call(number::TGKILL, [pid() as usize, thread as usize, 0, 0, 0, 0]) };
    found != NO_SUCH_THREAD
}

/// `unshare(2)`.
pub fn unshare(flags: i32) -> isize {
    // SAFETY: changes what the thread shares with others; the address space is shared with nobody else that could lose
    // it, for the kernel refuses to unshare that of several threads.
    unsafe { call(number::UNSHARE, [flags as usize, 0, 0, 0, 0, 0]) }
}

/// `setns(2)`.
pub fn set_namespace(fd: i32, kind: i32) -> isize {
    // SAFETY: no memory.
    unsafe { call(number::SETNS, [fd as usize, kind as usize, 0, 0, 0, 0]) }
}

/// The `CLONE_NEW*` flag of a descriptor of a namespace; 0 if it is none.
pub fn namespace_kind(fd: i32) -> i32 {
    const NS_GET_NSTYPE: usize = 0xb703;
    // SAFETY: the request takes no argument.
    let kind = unsafe { ioctl(fd, NS_GET_NSTYPE, 0) };
    if failed(kind) { 0 } else { kind as i32 }
}

/// What a thread without thread-local storage has in its place: the thread pointer leads to a word that holds itself
/// (the ABI's first word), with some words around that are nobody's. Of the caller's block it could not tell itself
/// from the caller, and that block may vanish.
struct NoStorage(core::cell::UnsafeCell<[usize; 256]>);
// SAFETY: written in `pointer` only, always with the same value; the one thread that has it uses no thread-local
// storage.
unsafe impl Sync for NoStorage {}
static NO_STORAGE: NoStorage = NoStorage(core::cell::UnsafeCell::new([0; 256]));

impl NoStorage {
    fn pointer(&self) -> usize {
        // SAFETY: the middle of the array; see `Sync`.
        unsafe {
            let middle = self.0.get().cast::<usize>().add(128);
            middle.write_volatile(middle.addr());
            middle.addr()
        }
    }
}

/// Starts a thread that runs `entry` on its own stack and never returns from it. It shares everything but signals'
/// masks, thread-local storage and the current directory with the caller; see [`leave_descriptors`]. (Who shares its
/// directory with another thread may not enter a mount namespace.) Returns the thread's number or a negated error
/// number.
///
/// # Safety
/// `top` is the upper end, 16-byte aligned, of a stack that nothing else uses; `entry` uses no thread-local
/// storage (the thread has a block without any) and does not return.
pub unsafe fn spawn(top: *mut u8, entry: extern "C" fn() -> !) -> isize {
    const CLONE_VM: usize = 0x100;
    const CLONE_FILES: usize = 0x400;
    const CLONE_SIGHAND: usize = 0x800;
    const CLONE_THREAD: usize = 0x1_0000;
    const CLONE_SYSVSEM: usize = 0x4_0000;
    const CLONE_SETTLS: usize = 0x8_0000;
    let flags =
        CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    let block = NO_STORAGE.pointer();
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: in the caller this is an ordinary system call. The new thread wakes behind the same
    // instruction with rax = 0 on the empty stack, where it calls `entry` and never comes back; the frame
    // pointer is cleared so that a backtrace ends there.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r9",
            "ud2",
            "2:",
            inlateout("rax") number::CLONE as isize => result,
            in("rdi") flags, in("rsi") top.addr(), in("rdx") 0_usize, in("r10") 0_usize,
            in("r8") block, in("r9") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above, with x0 = 0 in the new thread.
    unsafe {
        asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "blr {entry}",
            "brk #1",
            "2:",
            entry = in(reg) entry,
            in("x8") number::CLONE,
            inlateout("x0") flags as isize => result,
            in("x1") top.addr(), in("x2") 0_usize, in("x3") block, in("x4") 0_usize,
        );
    }
    result
}

/// Ends the calling thread only.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: ends the thread; its stack is not used afterwards.
        unsafe { call(number::EXIT, [0; 6]) };
    }
}
