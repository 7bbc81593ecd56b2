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
//!     none does                          ──► it answers: the call goes on as it is, if need be after a rescue
//!     a call stays unanswered all the    ──► it answers those that were received by one that died before it did:
//!     same                                   a mapper's are found in its program, ours by their numbers, which the
//!                                            kernel gives in a row
//!  nobody has the filter any more        ──► it ends
//! ```
//!
//! Always true: it never answers while we trace, for then a call may not go on as it is.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagemill_model::Pid;

use crate::injected::Control;
use crate::seccomp::{self, Answer, Notified};
use crate::{Error, Linux, Result, heartbeat, pidfd, signal};

/// Mappers that the keeper knows of.
const MAPPERS: usize = 1 << 15;
/// Between two looks of who stands by.
const MOMENT: Duration = Duration::from_millis(20);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);
/// Injectors without a mapper look once a second whether we live, and let their program go; by then they have.
const INJECTORS: Duration = Duration::from_millis(2500);

/// By then the memory of a program is its own, or its injector was killed.
const PARTED: Duration = Duration::from_secs(6);

/// What we tell it, in memory that both have.
struct Told {
    /// Counts our signs of life ([`heartbeat`]).
    beats: AtomicU64,
    /// All was let go.
    released: AtomicU32,
    count: AtomicU32,
    /// Number of a call that was received not long ago; 0: of none.
    latest: AtomicU64,
    /// Each with its process: a word of two numbers.
    mappers: [AtomicU64; MAPPERS],
}

/// Makes the memory of the process its own that a thread is of, which waits in a call; has it come back from that by
/// the function that it is given.
pub type Rescue = fn(Pid, &dyn Fn()) -> Result<()>;

/// Our end of it.
pub struct Keeper(&'static Told);

impl std::fmt::Debug for Keeper {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Keeper")
    }
}

impl Keeper {
    /// Starts the keeper of `listener`. It ends us after `patience` without a [`heartbeat::beat`], and helps programs
    /// by
    /// `rescue` in which nothing of ours is left.
    pub fn start(listener: &OwnedFd, patience: Duration, rescue: Rescue) -> Result<Self> {
        let told = told()?;
        let tracer = Pid::own();
        let pidfd = pidfd::open(tracer)?;
        apart(|| {
            let ours = (listener.as_raw_fd(), pidfd.as_raw_fd());
            keep(told, ours, tracer, patience, rescue);
        })?;
        heartbeat::count_in(&told.beats);
        Ok(Self(told))
    }

    /// The mappers that live now, each with its process.
    pub fn tell(&self, mappers: impl Iterator<Item = (Pid, Pid)>) {
        let mut count = 0;
        for (slot, (mapper, process)) in self.0.mappers.iter().zip(mappers) {
            slot.store(u64::from(mapper) << 32 | u64::from(process), Ordering::Relaxed);
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

/// Fresh memory for what is told.
fn told() -> Result<&'static Told> {
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
        return Err(Error::last("start", "the keeper of traced programs"));
    }
    let memory = memory.cast::<Told>();
    // SAFETY: mapped for its size, page aligned, never unmapped; zero bytes are a valid `Told`, all of atomics.
    Ok(unsafe { &*memory })
}

/// Does this in a process that is no child of ours.
fn apart(what: impl FnOnce() -> std::convert::Infallible) -> Result<()> {
    // SAFETY: the child forks again and ends; the grandchild does what it is for, which never returns. Both are
    // copies of the calling thread alone; the C library makes its allocator usable in them.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(Error::last("start", "the keeper of traced programs"));
    }
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::setsid();
            if libc::fork() == 0 {
                what();
            }
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes; the child ends at once.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
    Ok(())
}

/// Stands by until there is a keeper: from before a program filters its calls until its listener is in our hands, and
/// takes our place if we are killed meanwhile.
#[derive(Debug)]
pub struct StandBy(&'static AtomicU32);

impl StandBy {
    /// For process `program`, otherwise as [`Keeper::start`].
    pub fn start(program: Pid, patience: Duration, rescue: Rescue) -> Result<Self> {
        let told = told()?;
        let tracer = Pid::own();
        let (fd, of_program) = (pidfd::open(tracer)?, pidfd::open(program)?);
        apart(|| {
            while told.released.load(Ordering::Acquire) == 0 && !readable(fd.as_raw_fd(), MOMENT) {}
            // The call may be under way.
            for _ in 0..100 {
                if told.released.load(Ordering::Acquire) != 0 {
                    break;
                }
                if let Some(listener) = listener_of(program, &of_program) {
                    let ours = (listener.as_raw_fd(), fd.as_raw_fd());
                    keep(told, ours, tracer, patience, rescue);
                }
                std::thread::sleep(MOMENT);
            }
            // SAFETY: ends this process, which has nothing to put in order.
            unsafe { libc::_exit(0) }
        })?;
        Ok(Self(&told.released))
    }
}

impl Drop for StandBy {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Release);
    }
}

/// The listener of a process's filter, which it has open itself.
fn listener_of(program: Pid, pidfd: &OwnedFd) -> Option<OwnedFd> {
    let opened = std::fs::read_dir(format!("/proc/{program}/fd")).ok()?;
    opened.flatten().find_map(|entry| {
        let file = std::fs::read_link(entry.path()).ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        let is = file.as_os_str() == "anon_inode:seccomp notify";
        is.then(|| pidfd::descriptor(pidfd, number).ok())?
    })
}

/// What the keeper does.
fn keep(told: &Told, ours: (RawFd, RawFd), pid: Pid, patience: Duration, rescue: Rescue) -> ! {
    let (listener, tracer) = alone(ours.0, ours.1);
    let parent = Linux::live().stat(pid).map_or(Pid(0), |stat| stat.parent);
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
    let mappers = told.mappers.iter().take(count).map(|word| word.load(Ordering::Relaxed));
    let opened = |word: u64| {
        Some(Mapper {
            id: Pid((word >> 32) as u32),
            process: Pid(word as u32),
            end: pidfd::open(Pid((word >> 32) as u32)).ok(),
        })
    };
    let mut mappers: Vec<Mapper> = mappers.filter_map(opened).collect();
    let helper = Helper { listener: &listener, rescue, since: Instant::now() };
    if died {
        std::thread::sleep(INJECTORS);
        helper.take_from_dead(&mut mappers);
        end_waits(&listener, told.latest.load(Ordering::Acquire));
    }
    loop {
        let long = Duration::from_secs(if mappers.is_empty() { 3600 } else { 1 });
        let called = readable(listener.as_raw_fd(), long);
        helper.take_from_dead(&mut mappers);
        if !called {
            continue;
        }
        end_if_unused(&listener);
        if let Some(mapper) = mappers.first() {
            // It may have been stopped with its group.
            let stopped = Linux::live().stat(mapper.id).is_ok_and(|stat| stat.state == 'T');
            if stopped {
                let _ = signal::send(mapper.id, signal::CONTINUE);
            }
            std::thread::sleep(Duration::from_millis(20));
        } else if let (true, _) = seccomp::waits(&listener)
            && let Some(notified) = seccomp::receive(&listener)
        {
            helper.answer(&notified);
        }
    }
}

/// A mapper, and the process that it is for.
struct Mapper {
    id: Pid,
    process: Pid,
    /// `None`: it has ended.
    end: Option<OwnedFd>,
}

/// Answers in place of mappers that have ended.
struct Helper<'a> {
    listener: &'a OwnedFd,
    rescue: Rescue,
    /// Since when there is no tracer.
    since: Instant,
}

impl Helper<'_> {
    /// Answers what mappers had received that have ended, and forgets them.
    fn take_from_dead(&self, mappers: &mut Vec<Mapper>) {
        let living = |mapper: &Mapper| {
            mapper.end.as_ref().is_some_and(|end| !readable(end.as_raw_fd(), Duration::ZERO))
        };
        let (live, dead): (Vec<_>, Vec<_>) = std::mem::take(mappers).into_iter().partition(living);
        *mappers = live;
        for mapper in dead {
            if let Some(notified) = received_by_mapper(mapper.process)
                && seccomp::is_under_way(self.listener, notified.id)
            {
                self.answer(&notified);
            }
        }
    }

    fn answer(&self, notified: &Notified) {
        // An injector makes the memory the program's own, if one is left.
        while depends(notified) && self.since.elapsed() < PARTED {
            std::thread::sleep(Duration::from_millis(20));
        }
        let put_back = || {
            let _ = seccomp::answer(self.listener, notified.id, seccomp::UNMADE);
        };
        if depends(notified) && (self.rescue)(notified.thread, &put_back).is_ok() {
            return;
        }
        // Where it came back unmade this is nobody's.
        let _ = seccomp::answer(self.listener, notified.id, answer(notified));
    }
}

/// The call that the mapper of this process received last, unless it is done with.
fn received_by_mapper(process: Pid) -> Option<Notified> {
    let mut bytes = [0; size_of::<Notified>()];
    crate::process_vm::read(process, Control::notification_address(), &mut bytes).ok()?;
    let notified = Notified::of(&bytes);
    (notified.id != 0).then_some(notified)
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

/// Whether a process has a memory file of ours open: its memory may still be over that.
fn holds(thread: Pid) -> bool {
    let opened = std::fs::read_dir(format!("/proc/{thread}/fd"));
    opened.is_ok_and(|opened| {
        let target = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.and_then(|entry| std::fs::read_link(entry.path())).ok()
        };
        opened.filter_map(target).any(|file| file.as_os_str().as_encoded_bytes().starts_with(OURS))
    })
}

/// How mappings of a memory file of ours begin.
const OURS: &[u8] = b"/memfd:pagemill";

/// Advice that drops pages.
fn drops(notified: &Notified) -> bool {
    const DONT_NEED_LOCKED: u64 = 24;
    i64::from(notified.number) == libc::SYS_madvise
        && [libc::MADV_DONTNEED as u64, DONT_NEED_LOCKED].contains(&notified.argument[2])
}

/// Whether what becomes of a call depends on where the memory of its process is.
fn depends(notified: &Notified) -> bool {
    (drops(notified) || forks(notified)) && holds(notified.thread)
}

/// A call goes on as it is, but two, where all that ran for us in a process was killed and nothing else could be done.
/// Memory over the file that our programs have would read as the file's bytes after `MADV_DONTNEED`, not as zeros: that
/// is advice, and it is not taken. And a forked child would share the memory that was shared with the file: there is
/// none.
fn answer(notified: &Notified) -> Answer {
    if !depends(notified) {
        return Answer::GoOn;
    }
    let mut maps = Linux::live().maps(notified.thread).unwrap_or_default();
    maps.retain(|mapping| mapping.name.as_bytes().starts_with(OURS));
    let [start, length, ..] = notified.argument;
    let end = start.saturating_add(length);
    if drops(notified) && maps.iter().any(|mapping| mapping.start < end && start < mapping.end) {
        Answer::Return(-i64::from(libc::EINVAL))
    } else if forks(notified) && maps.iter().any(|mapping| mapping.shared) {
        Answer::Return(-i64::from(libc::EAGAIN))
    } else {
        Answer::GoOn
    }
}

/// Whether a call makes a process with a copy of the memory.
fn forks(notified: &Notified) -> bool {
    let flags = match i64::from(notified.number) {
        libc::SYS_fork => Some(0),
        libc::SYS_clone => Some(notified.argument[0]),
        libc::SYS_clone3 => {
            let mut flags = [0; 8];
            let read = crate::process_vm::read(notified.thread, notified.argument[0], &mut flags);
            read.ok().map(|()| u64::from_ne_bytes(flags))
        }
        _ => None,
    };
    flags.is_some_and(|flags| flags & libc::CLONE_VM as u64 == 0)
}
