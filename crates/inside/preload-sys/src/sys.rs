//! The system calls that the library makes, without libc: they leave `errno` alone and need no
//! thread-local storage, so the helper thread may use them too.
//!
//! Each wrapper returns what the kernel does: a value, or a negated error number in `-4095..0`.
//! Everything above this file is free of architecture-specific code, except `tls` and `cxx`.

use core::arch::asm;
use core::ffi::CStr;

/// The numbers and flags of Linux, constants only.
pub use linux_raw_sys::general as linux;

/// One system call; arguments that are not given, six at most, are zero.
///
/// # Safety
/// The call with these arguments must not break memory that Rust code relies on.
#[inline(always)]
pub unsafe fn call<const N: usize>(number: u32, arguments: [usize; N]) -> isize {
    let a: [usize; 6] = core::array::from_fn(|at| arguments.get(at).copied().unwrap_or(0));
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
            in("x8") number as usize,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    result
}

macro_rules! flags {
    ($($name:ident)*) => { $(
        #[doc = concat!("`", stringify!($name), "`, as a word of a system call.")]
        pub const $name: usize = linux::$name as usize;
    )* };
}
flags! {
    PROT_NONE PROT_READ PROT_WRITE PROT_EXEC MAP_PRIVATE
    MAP_FIXED MAP_ANONYMOUS MAP_NORESERVE MREMAP_MAYMOVE
    MREMAP_FIXED MADV_DONTNEED MADV_MERGEABLE MADV_NOHUGEPAGE
    MADV_COLD MADV_WIPEONFORK MADV_HUGEPAGE MADV_POPULATE_WRITE MADV_COLLAPSE
    MADV_DONTFORK MADV_DONTDUMP CLOCK_THREAD_CPUTIME_ID CLOCK_MONOTONIC
    CLOCK_PROCESS_CPUTIME_ID CLOCK_MONOTONIC_COARSE O_RDONLY O_RDWR
    O_NONBLOCK O_CLOEXEC O_DIRECTORY O_DIRECT
}

/// What a userfaultfd is asked, as words of `ioctl(2)`: `UFFDIO_*` of `linux/userfaultfd.h`.
#[expect(missing_docs, reason = "the manual page ioctl_userfaultfd has them")]
mod requests {
    pub const UFFDIO_API: usize = 0xc018_aa3f;
    pub const UFFDIO_REGISTER: usize = 0xc020_aa00;
    pub const UFFDIO_UNREGISTER: usize = 0x8010_aa01;
    pub const UFFDIO_WAKE: usize = 0x8010_aa02;
    pub const UFFDIO_MOVE: usize = 0xc028_aa05;
    pub const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
    pub const USERFAULTFD_IOC_NEW: usize = 0xaa00;
}
pub use requests::*;

/// The current directory, as the directory of a relative path.
pub const AT_FDCWD: i32 = linux::AT_FDCWD;

/// Whether a result is a negated error number.
pub fn failed(result: isize) -> bool {
    (-4095..0).contains(&result)
}

/// A new anonymous private mapping of `len` bytes wherever the kernel likes; null on failure.
pub fn map_anonymous(len: usize, protection: usize, flags: usize) -> *mut u8 {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | flags;
    debug_assert_eq!(flags & MAP_FIXED, 0);
    // SAFETY: without MAP_FIXED a new mapping replaces nothing.
    let result = unsafe { call(linux::__NR_mmap, [0, len, protection, flags, usize::MAX]) };
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
    unsafe { call(linux::__NR_mmap, [at, len, PROT_READ | PROT_WRITE, flags, fd, offset]) }
}

/// Moves a whole mapping over `to..to + len` in one step.
///
/// # Safety
/// What is mapped at `to` now may go, and nothing uses `from` any more.
pub unsafe fn move_over(from: usize, to: usize, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(linux::__NR_mremap, [from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to]) }
}

/// Puts a mapping without access in the place of whole pages, whose memory is given back. After `mprotect(2)` they
/// would not become one mapping with their neighbours, and a fork would copy them one by one, with their page tables.
///
/// # Safety
/// Nothing uses the range, which is the caller's.
pub unsafe fn forbid(start: *mut u8, len: usize) -> isize {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    // SAFETY: the caller's promise.
    unsafe { call(linux::__NR_mmap, [start.addr(), len, PROT_NONE, flags, usize::MAX]) }
}

/// `mprotect(2)` to what ordinary memory has.
pub fn allow(start: usize, len: usize) -> isize {
    // SAFETY: takes no access away.
    unsafe { call(linux::__NR_mprotect, [start, len, PROT_READ | PROT_WRITE]) }
}

/// `mprotect(2)` to what code has: it can be read and executed.
///
/// # Safety
/// Nothing writes to the range.
pub unsafe fn make_code(start: usize, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(linux::__NR_mprotect, [start, len, PROT_READ | PROT_EXEC]) }
}

/// Copies what can be read of `len` bytes from an address of this process, up to the first byte that cannot.
///
/// The kernel reads (`process_vm_readv(2)`): where there is no memory that ends the copy and nothing else.
///
/// # Safety
/// `to` is the caller's, `len` bytes of it.
pub unsafe fn copy_readable(from: usize, to: *mut u8, len: usize) -> isize {
    let (here, there) = ([to.addr(), len], [from, len]);
    // SAFETY: the caller's promise of what is written to; the ranges are words on the stack.
    unsafe {
        call(
            linux::__NR_process_vm_readv,
            [pid() as usize, here.as_ptr().addr(), 1, there.as_ptr().addr(), 1],
        )
    }
}

/// `munmap(2)`.
///
/// # Safety
/// Nothing uses the range any more.
pub unsafe fn unmap(start: *mut u8, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(linux::__NR_munmap, [start.addr(), len]) }
}

/// `mremap(2)` with leave to move; null on failure.
///
/// # Safety
/// Nothing uses the old range but through the returned address.
pub unsafe fn remap(start: *mut u8, old: usize, new: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    let result = unsafe { call(linux::__NR_mremap, [start.addr(), old, new, MREMAP_MAYMOVE]) };
    if failed(result) { core::ptr::null_mut() } else { result as *mut u8 }
}

/// `madvise(2)`.
///
/// # Safety
/// The advice must not discard bytes that are still needed.
pub unsafe fn advise(start: *mut u8, len: usize, advice: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(linux::__NR_madvise, [start.addr(), len, advice]) }
}

/// `process_madvise(2)` on this process for ranges of (address, length); bytes advised, or an error.
///
/// # Safety
/// As [`advise`], for each range.
pub unsafe fn advise_all(ranges: &[(usize, usize)], advice: usize) -> isize {
    /// Most ranges of one call.
    const MANY: usize = 128;
    /// `PIDFD_SELF_PROCESS` (Linux 6.14): this process, without a descriptor.
    const THIS_PROCESS: isize = linux::PIDFD_SELF_THREAD_GROUP as isize;
    // struct iovec is an address and a length.
    let mut vector = [[0usize; 2]; MANY];
    let len = ranges.len().min(MANY);
    for (entry, &(start, bytes)) in vector.iter_mut().zip(ranges) {
        *entry = [start, bytes];
    }
    let arguments = [THIS_PROCESS as usize, vector.as_ptr().addr(), len, advice];
    // SAFETY: the caller's promise; the vector lives until the call returns.
    unsafe { call(linux::__NR_process_madvise, arguments) }
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
    unsafe { call(linux::__NR_clock_gettime, [id, (&raw mut time).addr()]) };
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
    unsafe {
        call(
            linux::__NR_futex,
            [word, linux::FUTEX_WAIT_PRIVATE as usize, expected as usize, timeout],
        )
    }
}

/// Sleeps for about `ns`.
pub fn sleep(ns: u64) {
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
        sleep(50_000);
        result = call();
    }
    result
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, count: u32) {
    let word = word.as_ptr().addr();
    // SAFETY: waking touches no memory of the program.
    unsafe { call(linux::__NR_futex, [word, linux::FUTEX_WAKE_PRIVATE as usize, count as usize]) };
}

/// Fills `buffer` with what the kernel has of random bytes without waiting; returns their number.
pub fn random(buffer: &mut [u8]) -> isize {
    // SAFETY: the kernel writes at most buffer.len() bytes to it.
    unsafe {
        call(
            linux::__NR_getrandom,
            [buffer.as_mut_ptr().addr(), buffer.len(), linux::GRND_NONBLOCK as usize],
        )
    }
}

/// `write(2)`; short writes are the caller's matter. A file that may not grow (`RLIMIT_FSIZE`) and a pipe that nobody
/// reads give `EFBIG` and `EPIPE` only: the signals that go with them would end a program that wrote nothing itself.
pub fn write(fd: i32, bytes: &[u8]) -> isize {
    const SIGNALS: u64 = 1 << (linux::SIGPIPE - 1) | 1 << (linux::SIGXFSZ - 1);
    let mask = change_signal_mask(linux::SIG_BLOCK, SIGNALS);
    let before = pending_signals();
    // SAFETY: the kernel reads bytes.len() bytes of it.
    let written =
        unsafe { call(linux::__NR_write, [fd as usize, bytes.as_ptr().addr(), bytes.len()]) };
    if failed(written) {
        take_signal(SIGNALS & !before);
    }
    set_signal_mask(mask);
    written
}

/// The signals that wait for the calling thread or its process.
fn pending_signals() -> u64 {
    let mut set = 0_u64;
    // SAFETY: the kernel writes one 8-byte set.
    unsafe { call(linux::__NR_rt_sigpending, [(&raw mut set).addr(), 8]) };
    set
}

/// Takes one of these blocked signals away if one waits.
fn take_signal(set: u64) {
    let at_once = [0_u64; 2];
    // SAFETY: the kernel reads an 8-byte set and a timespec of zeros, and writes no information.
    unsafe {
        call(linux::__NR_rt_sigtimedwait, [(&raw const set).addr(), 0, at_once.as_ptr().addr(), 8])
    };
}

/// `read(2)`.
pub fn read(fd: i32, buffer: &mut [u8]) -> isize {
    // SAFETY: the kernel writes at most buffer.len() bytes to it.
    unsafe { call(linux::__NR_read, [fd as usize, buffer.as_mut_ptr().addr(), buffer.len()]) }
}

/// Opens a file, relative to a directory, close-on-exec; a descriptor or a negated error number.
pub fn open_at(directory: i32, path: &CStr, flags: usize) -> isize {
    // SAFETY: the kernel reads a path that ends in a zero byte.
    unsafe {
        call(linux::__NR_openat, [directory as usize, path.as_ptr().addr(), flags | O_CLOEXEC])
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
    unsafe { call(linux::__NR_pread64, [fd as usize, buffer.addr(), len, offset]) }
}

/// The text that a file begins with, by `pread(2)`; empty where there is none.
pub fn text_of(fd: i32, buffer: &mut [u8]) -> &str {
    // SAFETY: the kernel writes at most the whole buffer.
    let len = unsafe { read_at(fd, buffer.as_mut_ptr(), buffer.len(), 0) };
    let text = usize::try_from(len).ok().and_then(|len| buffer.get(..len));
    core::str::from_utf8(text.unwrap_or_default()).unwrap_or_default()
}

/// Maps the first `len` bytes of a file, shared: at this place, if it is not 0 and nothing is there. Null on failure.
pub fn map_file(path: &CStr, len: usize, at: usize) -> *mut u8 {
    let fd = open(path, O_RDWR);
    if failed(fd) {
        return core::ptr::null_mut();
    }
    // The file must be long enough, or touching its end would be a bus error.
    let mut last = [0_u8; 8];
    // SAFETY: the kernel writes at most eight bytes.
    let whole = unsafe { read_at(fd as i32, last.as_mut_ptr(), 8, len - 8) } == 8;
    let place = if at == 0 { 0 } else { linux::MAP_FIXED_NOREPLACE };
    let flags = (linux::MAP_SHARED | place) as usize;
    let arguments = [at, len, PROT_READ | PROT_WRITE, flags, fd as usize];
    let mut mapped = -1;
    if whole {
        // SAFETY: a new mapping that replaces nothing.
        mapped = unsafe { call(linux::__NR_mmap, arguments) };
    }
    close(fd as i32);
    let there = !failed(mapped) && (at == 0 || mapped as usize == at);
    if there {
        core::ptr::with_exposed_provenance_mut(mapped as usize)
    } else {
        core::ptr::null_mut()
    }
}

/// Writes at an offset.
pub fn write_at(fd: i32, bytes: &[u8], offset: usize) -> isize {
    // SAFETY: the kernel reads bytes.len() bytes of it.
    unsafe { call(linux::__NR_pwrite64, [fd as usize, bytes.as_ptr().addr(), bytes.len(), offset]) }
}

/// The entries of a directory, as `linux_dirent64` records; the bytes written, 0 at the end.
pub fn directory_entries(fd: i32, buffer: &mut [u8]) -> isize {
    // SAFETY: the kernel writes at most buffer.len() bytes to it.
    unsafe { call(linux::__NR_getdents64, [fd as usize, buffer.as_mut_ptr().addr(), buffer.len()]) }
}

/// Where a symbolic link points, without a zero byte; the length.
pub fn link_target(directory: i32, path: &CStr, buffer: &mut [u8]) -> isize {
    // SAFETY: the kernel reads a path that ends in a zero byte and writes at most buffer.len() bytes.
    unsafe {
        call(
            linux::__NR_readlinkat,
            [directory as usize, path.as_ptr().addr(), buffer.as_mut_ptr().addr(), buffer.len()],
        )
    }
}

/// A new nameless file in memory, close-on-exec; a descriptor or a negated error number.
pub fn memory_file(name: &CStr) -> isize {
    // SAFETY: the kernel reads a name that ends in a zero byte.
    unsafe { call(linux::__NR_memfd_create, [name.as_ptr().addr(), linux::MFD_CLOEXEC as usize]) }
}

/// `ftruncate(2)`.
pub fn set_length(fd: i32, len: usize) -> isize {
    // SAFETY: acts on a file of this library that nobody maps yet.
    unsafe { call(linux::__NR_ftruncate, [fd as usize, len]) }
}

/// The error number that a negated one in a result stands for.
pub fn error(result: isize) -> i32 {
    -result as i32
}

/// `userfaultfd(2)`, close-on-exec and without waiting; a descriptor or a negated error number.
pub fn userfaultfd(flags: usize) -> isize {
    // SAFETY: makes a descriptor, touches no memory.
    unsafe { call(linux::__NR_userfaultfd, [flags | O_CLOEXEC | O_NONBLOCK]) }
}

/// Agrees with the kernel on the features of a userfaultfd: all that it offers. The descriptor is closed if it refuses.
pub fn userfaultfd_features(fd: i32, features: u64) -> Option<u64> {
    let mut api = [linux::UFFD_API.into(), features, 0];
    // SAFETY: struct uffdio_api is three words; the kernel writes it.
    if failed(unsafe { ioctl(fd, UFFDIO_API, (&raw mut api).addr()) }) {
        close(fd);
        return None;
    }
    Some(api[1])
}

/// `ioctl(2)`.
///
/// # Safety
/// The request and its argument must fit each other, and what it does to memory must be wanted.
pub unsafe fn ioctl(fd: i32, request: usize, argument: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(linux::__NR_ioctl, [fd as usize, request, argument]) }
}

/// `close(2)` of a descriptor that this library opened.
pub fn close(fd: i32) {
    // SAFETY: closing a descriptor touches no memory.
    unsafe { call(linux::__NR_close, [fd as usize]) };
}

/// Gives the calling thread a descriptor table of its own, an empty one.
pub fn leave_descriptors() -> isize {
    /// `CLOSE_RANGE_UNSHARE`.
    const UNSHARE: usize = 2;
    // SAFETY: touches no memory; the other threads keep the old table.
    unsafe { call(linux::__NR_close_range, [0, u32::MAX as usize, UNSHARE]) }
}

/// The process.
pub fn pid() -> u32 {
    // SAFETY: no arguments, no memory.
    unsafe { call(linux::__NR_getpid, []) as u32 }
}

/// The calling thread.
pub fn tid() -> u32 {
    // SAFETY: no arguments, no memory.
    unsafe { call(linux::__NR_gettid, []) as u32 }
}

/// Makes the calling thread alone a real-time one of the lowest priority; `false` without the right to it, or where
/// the process's real-time threads are limited in time (`RLIMIT_RTTIME`), which ends the process.
pub fn set_real_time() -> bool {
    let mut limit = [0_u64; 2];
    // SAFETY: the kernel writes both words of a struct rlimit.
    let known = unsafe {
        call(
            linux::__NR_prlimit64,
            [0, linux::RLIMIT_RTTIME as usize, 0, limit.as_mut_ptr().addr()],
        )
    };
    if failed(known) || limit != [u64::MAX; 2] {
        return false;
    }
    let priority = 1_i32;
    // SAFETY: the kernel reads a struct sched_param, which is one int.
    let done = unsafe {
        call(
            linux::__NR_sched_setscheduler,
            [0, linux::SCHED_RR as usize, (&raw const priority).addr()],
        )
    };
    !failed(done)
}

/// Sets the niceness of the calling thread alone.
pub fn set_niceness(niceness: isize) -> isize {
    const PROCESS: usize = 0;
    // SAFETY: no memory.
    unsafe { call(linux::__NR_setpriority, [PROCESS, 0, niceness as usize]) }
}

/// `prctl(2)` for options that take numbers or strings.
///
/// # Safety
/// Pointers among the arguments must be what the option expects.
pub unsafe fn prctl(option: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { call(linux::__NR_prctl, [option, a, b, c, d]) }
}

/// Names the calling thread (15 bytes at most) for `/proc`.
pub fn name_thread(name: &CStr) {
    const PR_SET_NAME: usize = 15;
    // SAFETY: the kernel reads up to 16 bytes of a string that ends in a zero byte.
    unsafe { prctl(PR_SET_NAME, name.as_ptr().addr(), 0, 0, 0) };
}

/// Sets the calling thread's signal mask and returns the old one.
pub fn set_signal_mask(mask: u64) -> u64 {
    change_signal_mask(linux::SIG_SETMASK, mask)
}

/// `rt_sigprocmask(2)`; the old mask.
fn change_signal_mask(how: u32, mask: u64) -> u64 {
    let mut old = 0_u64;
    // SAFETY: the kernel reads one 8-byte mask and writes one.
    unsafe {
        call(
            linux::__NR_rt_sigprocmask,
            [how as usize, (&raw const mask).addr(), (&raw mut old).addr(), 8],
        );
    }
    old
}

/// Ends the program by SIGABRT, whatever it does with that signal.
pub fn abort() -> ! {
    let (process, thread) = (pid() as usize, tid() as usize);
    set_signal_mask(!(1 << (linux::SIGABRT as usize - 1)));
    for signal in [linux::SIGABRT as usize, linux::SIGKILL as usize] {
        // A handler that returns leads on to the next, stronger way.
        // SAFETY: signals the calling thread; that it may not come back is the point.
        unsafe { call(linux::__NR_tgkill, [process, thread, signal]) };
    }
    loop {
        // SAFETY: ends the process.
        unsafe { call(linux::__NR_exit_group, [127]) };
    }
}

/// Gives up every capability of the calling thread.
pub fn drop_capabilities() -> isize {
    let header: [u32; 2] = [linux::_LINUX_CAPABILITY_VERSION_3, 0];
    let none = [0_u32; 6];
    // SAFETY: the kernel reads a header and two sets of three words, both alive.
    unsafe { call(linux::__NR_capset, [(&raw const header).addr(), (&raw const none).addr()]) }
}

/// Makes every capability that the calling thread may use one that it does use.
pub fn wake_capabilities() -> isize {
    let header: [u32; 2] = [linux::_LINUX_CAPABILITY_VERSION_3, 0];
    // Effective, permitted, inheritable: the low halves, then the high ones.
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: the kernel reads a header and writes two sets of three words, both alive.
    unsafe { call(linux::__NR_capget, [(&raw const header).addr(), (&raw mut sets).addr()]) };
    for half in &mut sets {
        half[0] = half[1];
    }
    // SAFETY: the kernel reads both.
    unsafe { call(linux::__NR_capset, [(&raw const header).addr(), (&raw const sets).addr()]) }
}

/// The calling thread's real, effective and saved user.
pub fn user_ids() -> [u32; 3] {
    let mut ids = [0_u32; 3];
    let at = |id: &mut u32| core::ptr::from_mut(id).addr();
    let [real, effective, saved] = &mut ids;
    // SAFETY: the kernel writes three words, all alive.
    unsafe { call(linux::__NR_getresuid, [at(real), at(effective), at(saved)]) };
    ids
}

/// Sets the calling thread's users, and no other thread's: real and saved, effective.
pub fn set_user_ids(rest: u32, effective: u32) -> isize {
    let [rest, effective] = [rest as usize, effective as usize];
    // SAFETY: no memory.
    unsafe { call(linux::__NR_setresuid, [rest, effective, rest]) }
}

/// Sets the calling thread's groups, and no other thread's: real and saved, effective.
pub fn set_group_ids(rest: u32, effective: u32) -> isize {
    let [rest, effective] = [rest as usize, effective as usize];
    // SAFETY: no memory.
    unsafe { call(linux::__NR_setresgid, [rest, effective, rest]) }
}

/// Takes the calling thread, and no other, out of its supplementary groups.
pub fn leave_groups() -> isize {
    // SAFETY: an empty list is not read.
    unsafe { call(linux::__NR_setgroups, []) }
}

/// Makes `/` the calling thread's directory.
pub fn leave_directory() -> isize {
    // SAFETY: the kernel reads a path that ends in a zero byte.
    unsafe { call(linux::__NR_chdir, [c"/".as_ptr().addr()]) }
}

/// A descriptor, in the calling thread's table, of what `fd` is in the table of the process's first thread. Linux 5.6.
pub fn descriptor_of_process(fd: i32) -> isize {
    // SAFETY: makes descriptors, touches no memory.
    unsafe {
        let process = call(linux::__NR_pidfd_open, [pid() as usize]);
        if failed(process) {
            return process;
        }
        let found = call(linux::__NR_pidfd_getfd, [process as usize, fd as usize]);
        close(process as i32);
        found
    }
}

/// Whether the process still has this thread.
pub fn thread_exists(thread: u32) -> bool {
    const NO_SUCH_THREAD: isize = -3;
    // SAFETY: signal 0 is none; the call only looks.
    let found = unsafe { call(linux::__NR_tgkill, [pid() as usize, thread as usize, 0]) };
    found != NO_SUCH_THREAD
}

/// The current directory, the root and the file mode mask, for [`unshare`].
pub const CLONE_FS: i32 = linux::CLONE_FS as i32;

/// `unshare(2)`.
pub fn unshare(flags: i32) -> isize {
    // SAFETY: changes what the thread shares with others; the address space is shared with nobody else that could lose
    // it, for the kernel refuses to unshare that of several threads.
    unsafe { call(linux::__NR_unshare, [flags as usize]) }
}

/// A new user namespace.
const CLONE_NEWUSER: i32 = 0x1000_0000;

/// Whether the kernel refuses `unshare(2)` with these flags to a process of several threads.
pub fn unshare_needs_one_thread(flags: i32) -> bool {
    const CLONE_VM: i32 = 0x100;
    const CLONE_SIGHAND: i32 = 0x800;
    const CLONE_THREAD: i32 = 0x1_0000;
    flags & (CLONE_NEWUSER | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM) != 0
}

/// The same of `setns(2)`.
pub fn set_namespace_needs_one_thread(fd: i32, kind: i32) -> bool {
    const CLONE_NEWTIME: i32 = 0x80;
    // Kind 0 takes whatever the descriptor is.
    let entered = if kind == 0 { namespace_kind(fd) } else { kind };
    entered & (CLONE_NEWUSER | CLONE_NEWTIME) != 0
}

/// `setns(2)`.
pub fn set_namespace(fd: i32, kind: i32) -> isize {
    // SAFETY: no memory.
    unsafe { call(linux::__NR_setns, [fd as usize, kind as usize]) }
}

/// The `CLONE_NEW*` flag of a descriptor of a namespace; 0 if it is none.
fn namespace_kind(fd: i32) -> i32 {
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
    let flags = linux::CLONE_VM
        | linux::CLONE_FILES
        | linux::CLONE_SIGHAND
        | linux::CLONE_THREAD
        | linux::CLONE_SYSVSEM
        | linux::CLONE_SETTLS;
    let flags = flags as usize;
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
            inlateout("rax") linux::__NR_clone as isize => result,
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
            in("x8") linux::__NR_clone as usize,
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
        unsafe { call(linux::__NR_exit, []) };
    }
}
