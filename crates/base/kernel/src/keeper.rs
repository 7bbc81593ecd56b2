//! A process of ours that outlives us, so that nobody waits for us for ever: the *keeper* of a filter's listener.
//!
//! A filter cannot be taken off a process, and a call that it notifies waits until somebody answers; where the listener
//! is closed it fails. While we trace, we answer, or what runs for us in the programs does (their *mappers*). The
//! keeper sleeps, and looks now and then:
//!
//! ```text
//!  we give no sign of life for long      ──► it says so and ends us: the kernel lets the programs go
//!     stopped with our parent, by a key  ──► it waits
//!  we have ended, or let all go, and
//!     a mapper lives                     ──► it leaves the answers to that, which knows the memory
//!     none does                          ──► it answers: the call goes on as it is
//!     a call stays unanswered all the    ──► so do calls that were received by one that died before it answered: they
//!     same                                   are found by their numbers, which the kernel gives in a row
//!  nobody has the filter any more        ──► it ends
//! ```
//!
//! Always true: it never answers while we trace, for then a call may not go on as it is.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::seccomp::{self, Answer, Notified};
use crate::{Error, Linux, Result, heartbeat, pidfd, signal};

/// Mappers that the keeper knows of.
const MAPPERS: usize = 1 << 15;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Injectors without a mapper look once a second whether we live, and let their program go; by then they have.
const INJECTORS: Duration = Duration::from_millis(2500);

/// What we tell it, in memory that both have.
struct Told {
    /// Counts our signs of life ([`heartbeat`]).
    beats: AtomicU64,
    /// All was let go.
    released: AtomicU32,
    count: AtomicU32,
    /// Number of a call that was received not long ago; 0: of none.
    latest: AtomicU64,
    mappers: [AtomicU32; MAPPERS],
}

/// Our end of it.
pub struct Keeper(&'static Told);

impl std::fmt::Debug for Keeper {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Keeper")
    }
}

impl Keeper {
    /// Starts the keeper of `listener`. It ends us after `patience` without a [`heartbeat::beat`].
    pub fn start(listener: &OwnedFd, patience: Duration) -> Result<Self> {
        let failed = || Error::last("start", "the keeper of traced programs");
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Told>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(failed());
        }
        let memory = memory.cast::<Told>();
        // SAFETY: mapped for its size, page aligned, never unmapped; zero bytes are a valid `Told`, all of atomics.
        let told: &'static Told = unsafe { &*memory };
        let tracer = std::process::id();
        let pidfd = pidfd::open(tracer)?;
        // SAFETY: the child forks again and ends; the grandchild runs `keep`, which never returns. Both are copies of
        // the calling thread alone; the C library makes its allocator usable in them.
        let child = unsafe { libc::fork() };
        if child < 0 {
            return Err(failed());
        }
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::setsid();
                if libc::fork() == 0 {
                    keep(told, listener.as_raw_fd(), pidfd.as_raw_fd(), tracer, patience);
                }
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writes; the child ends at once.
        while unsafe { libc::waitpid(child, &mut status, 0) } < 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
        {}
        heartbeat::count_in(&told.beats);
        Ok(Self(told))
    }

    /// The mappers that live now.
    pub fn tell(&self, mappers: impl Iterator<Item = u32>) {
        let mut count = 0;
        for (slot, mapper) in self.0.mappers.iter().zip(mappers) {
            slot.store(mapper, Ordering::Relaxed);
            count += 1;
        }
        self.0.count.store(count, Ordering::Release);
    }

    /// The number of a call that was received a moment ago.
    pub fn note(&self, call: u64) {
        if call != 0 {
            self.0.latest.store(call, Ordering::Relaxed);
        }
    }

    /// All was let go.
    pub fn release(&self) {
        self.0.released.store(1, Ordering::Release);
    }
}

/// What the keeper does.
fn keep(told: &Told, listener: RawFd, tracer: RawFd, pid: u32, patience: Duration) -> ! {
    let (listener, tracer) = alone(listener, tracer);
    let parent = Linux::live().stat(pid).map_or(0, |stat| stat.parent);
    let mut seen = (told.beats.load(Ordering::Relaxed), Instant::now());
    let mut died = false;
    while told.released.load(Ordering::Acquire) == 0 && !died {
        died = readable(tracer.as_raw_fd(), LOOK);
        end_if_unused(&listener);
        let beats = told.beats.load(Ordering::Relaxed);
        // Whom the terminal stops, and so our parent and our program, is to go on; and whom a debugger holds.
        let state = |pid| Linux::live().stat(pid).map_or('X', |stat| stat.state);
        let stopped = state(pid) == 't' || state(pid) == 'T' && state(parent) == 'T';
        if beats != seen.0 || stopped || beats == 0 {
            seen = (beats, Instant::now());
        } else if seen.1.elapsed() >= patience {
            let seconds = patience.as_secs();
            // Whoever held the lock of standard error is not in this process.
            let said = format!(
                "pagemill: the recorder gave no sign of life for {seconds} s and was ended: the program runs on, unrecorded\n"
            );
            // SAFETY: the bytes are valid for reads of their length.
            unsafe { libc::write(2, said.as_ptr().cast(), said.len()) };
            let _ = signal::send(pid, libc::SIGKILL);
            seen.1 = Instant::now();
        }
    }
    // SAFETY: nothing is written to it any more, and who reads what we wrote is not to wait for us.
    unsafe { libc::close(2) };
    let count = told.count.load(Ordering::Acquire) as usize;
    let mappers = told.mappers.iter().take(count).map(|mapper| mapper.load(Ordering::Relaxed));
    let mappers: Vec<(u32, OwnedFd)> =
        mappers.filter_map(|mapper| Some((mapper, pidfd::open(mapper).ok()?))).collect();
    if died {
        std::thread::sleep(INJECTORS);
        end_waits(&listener, told.latest.load(Ordering::Acquire));
    }
    loop {
        if !readable(listener.as_raw_fd(), Duration::from_secs(3600)) {
            continue;
        }
        end_if_unused(&listener);
        let mut living = mappers.iter().filter(|(_, fd)| !readable(fd.as_raw_fd(), Duration::ZERO));
        if let Some((mapper, _)) = living.next() {
            // It may have been stopped with its group.
            let stopped = Linux::live().stat(*mapper).is_ok_and(|stat| stat.state == 'T');
            if stopped {
                let _ = signal::send(*mapper, signal::CONTINUE);
            }
            std::thread::sleep(Duration::from_millis(20));
        } else if let (true, _) = seccomp::waits(&listener)
            && let Some(notified) = seccomp::receive(&listener)
        {
            let _ = seccomp::answer(&listener, notified.id, answer(&notified));
        }
    }
}

/// Lets the calls go on that somebody received and died without answering: those that are under way for longer than
/// anybody who lives takes.
fn end_waits(listener: &OwnedFd, latest: u64) {
    /// Numbers before and after the latest that is known.
    const BEFORE: u64 = 1 << 12;
    const AFTER: u64 = 1 << 18;
    if latest == 0 {
        return;
    }
    let window = (0..BEFORE + AFTER).map(|more| latest.wrapping_sub(BEFORE).wrapping_add(more));
    let waiting: Vec<u64> = window.filter(|&id| seccomp::is_under_way(listener, id)).collect();
    std::thread::sleep(INJECTORS);
    for id in waiting {
        let _ = seccomp::answer(listener, id, Answer::GoOn);
    }
}

/// Away from our terminal, group and files, but for standard error.
fn alone(listener: RawFd, tracer: RawFd) -> (OwnedFd, OwnedFd) {
    use std::os::fd::FromRawFd;
    // SAFETY: numbers and a constant text; the two descriptors are open, and their copies above all others are owned by
    // nobody else; what is closed is not used any more in this process.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"pagemill-keeper".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, ptr::null_mut());
        libc::chdir(c"/".as_ptr());
        let copies = [listener, tracer].map(|fd| libc::fcntl(fd, libc::F_DUPFD, 3));
        let (low, high) = (copies[0].min(copies[1]), copies[0].max(copies[1]));
        if low < 0 {
            libc::_exit(1);
        }
        let close = |first: RawFd, last: RawFd| {
            if first <= last {
                libc::syscall(libc::SYS_close_range, first, last, 0);
            }
        };
        close(0, 1);
        close(3, low - 1);
        close(low + 1, high - 1);
        close(high + 1, RawFd::MAX);
        (OwnedFd::from_raw_fd(copies[0]), OwnedFd::from_raw_fd(copies[1]))
    }
}

fn readable(fd: RawFd, limit: Duration) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is one exclusively borrowed entry.
    let found = unsafe { libc::poll(&mut polled, 1, limit.as_millis() as libc::c_int) };
    found > 0 && polled.revents != 0
}

fn end_if_unused(listener: &OwnedFd) {
    if seccomp::waits(listener).1 {
        // SAFETY: ends this process, which has nothing to put in order.
        unsafe { libc::_exit(0) };
    }
}

/// A call goes on as it is, but one: memory over the file that our programs have would read as the file's bytes after
/// `MADV_DONTNEED`, not as zeros. That is advice, and it is not taken.
fn answer(notified: &Notified) -> Answer {
    const DONT_NEED_LOCKED: u64 = 24;
    let [start, length, advice, ..] = notified.argument;
    let drops = i64::from(notified.number) == libc::SYS_madvise
        && [libc::MADV_DONTNEED as u64, DONT_NEED_LOCKED].contains(&advice);
    let maps = || Linux::live().maps(notified.thread).unwrap_or_default();
    let ours = drops
        && maps().iter().any(|mapping| {
            mapping.name.starts_with("/memfd:pagemill")
                && mapping.start < start.saturating_add(length)
                && start < mapping.end
        });
    if ours { Answer::Return(-i64::from(libc::EINVAL)) } else { Answer::GoOn }
}
