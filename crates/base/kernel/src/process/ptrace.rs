//! `ptrace(2)`: another process's threads stopped, looked at, and made to do something. x86-64 only: the
//! registers are named.
//!
//! Every call must come from the thread that launched or seized the tracee; the kernel answers others
//! with "no such process".

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Once;
use std::time::{Duration, Instant};

use pagemill_model::Pid;

use crate::{Error, Kind, Result};

/// What a traced thread has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The process ended with this status.
    Exited(i32),
    /// The process was killed by this signal.
    Killed(i32),
    /// About to receive this signal.
    Signal(i32),
    /// Stopped as its whole process is (SIGSTOP and its like).
    Group(i32),
    /// About to fork, clone or have done so: the new thread's number is the message.
    Fork,
    /// As [`Stop::Fork`], for a child that borrows the memory until it executes.
    Vfork,
    /// As [`Stop::Fork`], for a thread or process that shares what it was told to.
    Clone,
    /// Has executed another program.
    Exec,
    /// Is about to end; its memory is still there.
    Exit,
    /// Entered or left a system call.
    SystemCall,
    /// About to make a system call that a filter points out ([`crate::process::seccomp::mapping_calls`]).
    Filtered,
    /// Stopped because it was asked to.
    Interrupted,
    /// Another event of this number.
    Other(i32),
}

impl Stop {
    /// Whether the thread has ended.
    pub fn is_end(self) -> bool {
        matches!(self, Self::Exited(_) | Self::Killed(_))
    }
}

/// Follow threads, children and programs; end them if the tracer dies is not among these.
pub const FOLLOW: i32 = libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACESYSGOOD;

/// As [`FOLLOW`], told of filtered calls; without the tracer such a call fails, so the program ends with it.
pub const FOLLOW_CALLS: i32 = FOLLOW | libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL;

/// The general registers of a stopped thread.
pub type Registers = libc::user_regs_struct;

fn request(what: libc::c_uint, thread: Pid, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests made through here take numbers, or pointers to live values of the caller in
    // this module with the size that the request writes.
    let done = unsafe { libc::ptrace(what, thread.0 as libc::pid_t, address, data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn of(action: &'static str, thread: Pid) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::io(action, format_args!("thread {thread}"), error)
}

/// A child that waits to execute a program.
#[derive(Debug)]
pub struct Launched {
    /// The process.
    pub pid: Pid,
    gone: Cell<bool>,
    go: OwnedFd,
    failure: OwnedFd,
}

impl Drop for Launched {
    /// One that was not let go does not execute the program, as it would if we were killed.
    fn drop(&mut self) {
        if !self.gone.get() {
            let _ = crate::process::signal::send(self.pid, libc::SIGKILL);
        }
    }
}

impl Launched {
    /// Lets it execute the program.
    ///
    /// # Errors
    /// The child has ended.
    pub fn go(&self) -> Result<()> {
        self.gone.set(true);
        // SAFETY: the byte is valid for reads; the descriptor is open.
        let written = unsafe { libc::write(self.go.as_raw_fd(), [1_u8].as_ptr().cast(), 1) };
        if written == 1 {
            Ok(())
        } else {
            Err(Error::last("start", format_args!("process {}", self.pid)))
        }
    }

    /// Why the program could not be executed; `None` if it was. Blocks until that is known.
    pub fn failure(&self) -> Option<io::Error> {
        let mut code = [0_u8; 4];
        // SAFETY: `code` is valid for writes of its length; the descriptor is open.
        let read =
            unsafe { libc::read(self.failure.as_raw_fd(), code.as_mut_ptr().cast(), code.len()) };
        (read == 4).then(|| io::Error::from_raw_os_error(i32::from_ne_bytes(code)))
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is valid for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Error::last("create", "a pipe"));
    }
    // SAFETY: both were just created and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// How a program is started.
#[derive(Debug, Default)]
pub struct Setup {
    /// What it reads from and writes to instead of our own standard input and output.
    pub streams: Option<OwnedFd>,
    /// Whether its memory is laid out the same way each time, and each call that changes it is a stop.
    pub mappings: bool,
}

impl Setup {
    /// What the child does to itself before it executes the program; whether it could. Async-signal-safe.
    fn apply(&self, filter: &[libc::sock_filter]) -> bool {
        if let Some(streams) = &self.streams {
            // SAFETY: duplicates an open descriptor onto the two standard ones.
            let both = unsafe { [0, 1].map(|to| libc::dup2(streams.as_raw_fd(), to)) };
            if both != [0, 1] {
                return false;
            }
        }
        if !self.mappings {
            return true;
        }
        let program =
            libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: these calls take numbers; the filter is only read, and lives.
        unsafe {
            let before = libc::personality(0xffff_ffff) as libc::c_ulong;
            libc::personality(before | libc::ADDR_NO_RANDOMIZE as libc::c_ulong) >= 0
                && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program) == 0
        }
    }
}

/// Forks a child that waits for [`Launched::go`], or for our end, and then executes `path`, with no signal blocked.
///
/// # Errors
/// No more processes may be started, or the child cannot be set up.
pub fn launch(
    path: &CStr,
    arguments: &[CString],
    environment: &[CString],
    setup: &Setup,
) -> Result<Launched> {
    let filter = if setup.mappings { crate::process::seccomp::mapping_calls() } else { Vec::new() };
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    let (may_go, go) = pipe()?;
    let (failure, failed) = pipe()?;
    // SAFETY: the child calls only async-signal-safe functions until it executes or exits.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(Error::last("fork", "the program"));
    }
    if pid == 0 {
        // SAFETY: async-signal-safe calls only; all pointers were made before the fork and are live.
        unsafe {
            let mut byte = 0_u8;
            libc::close(go.as_raw_fd());
            let told = libc::read(may_go.as_raw_fd(), (&raw mut byte).cast(), 1) == 1;
            // Whose tracer was killed is executed untraced, unless calls of it are to be stops.
            if !told && setup.mappings {
                libc::_exit(127);
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
            for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
                libc::signal(signal, libc::SIG_DFL);
            }
            if setup.apply(&filter) {
                libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr());
            }
            let code =
                io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOEXEC).to_ne_bytes();
            libc::write(failed.as_raw_fd(), code.as_ptr().cast(), code.len());
            libc::_exit(127);
        }
    }
    Ok(Launched { pid: Pid(pid as u32), gone: Cell::new(false), go, failure })
}

/// Attaches to a thread without stopping it, with these options.
///
/// # Errors
/// The thread has ended, may not be traced, or has a tracer.
pub fn seize(thread: Pid, options: i32) -> Result<()> {
    request(libc::PTRACE_SEIZE, thread, 0, options as usize).map_err(|error| {
        of("trace", thread)(error).advise(
            "run as root or as the user who owns the process, and only one tracer at a \
             time; see pagemill doctor",
        )
    })
}

/// Asks a seized thread to stop; it reports [`Stop::Interrupted`].
///
/// # Errors
/// The thread has ended, or is not traced by us.
pub fn interrupt(thread: Pid) -> Result<()> {
    request(libc::PTRACE_INTERRUPT, thread, 0, 0).map_err(of("stop", thread))
}

/// Sets a stopped thread going, with this signal (0: none).
///
/// # Errors
/// The thread has ended, or is not stopped.
pub fn resume(thread: Pid, signal: i32) -> Result<()> {
    request(libc::PTRACE_CONT, thread, 0, signal as usize).map_err(of("resume", thread))
}

/// Lets a stopped thread go on untraced, with this signal (0: none).
///
/// # Errors
/// As of [`resume`].
pub fn detach(thread: Pid, signal: i32) -> Result<()> {
    request(libc::PTRACE_DETACH, thread, 0, signal as usize).map_err(of("let go", thread))
}

/// As [`resume`], until the next entry to or exit from a system call.
///
/// # Errors
/// As of [`resume`].
pub fn resume_to_system_call(thread: Pid, signal: i32) -> Result<()> {
    request(libc::PTRACE_SYSCALL, thread, 0, signal as usize).map_err(of("resume", thread))
}

/// Sets a stopped thread going for one instruction.
///
/// # Errors
/// As of [`resume`].
pub fn step(thread: Pid) -> Result<()> {
    request(libc::PTRACE_SINGLESTEP, thread, 0, 0).map_err(of("step", thread))
}

/// As [`resume`], but leaves a thread of a stopped process stopped and still tells what happens to it.
///
/// # Errors
/// As of [`resume`].
pub fn listen(thread: Pid) -> Result<()> {
    request(libc::PTRACE_LISTEN, thread, 0, 0).map_err(of("resume", thread))
}

/// The registers of a stopped thread.
///
/// # Errors
/// As of [`resume`].
pub fn registers(thread: Pid) -> Result<Registers> {
    // SAFETY: zero bytes are valid registers.
    get(libc::PTRACE_GETREGS, thread, 0, unsafe { std::mem::zeroed() })
}

/// What the kernel answers to a request that writes a value of this type to where `data` points.
fn get<T>(what: libc::c_uint, thread: Pid, address: usize, mut value: T) -> Result<T> {
    request(what, thread, address, (&raw mut value) as usize).map_err(of("look at", thread))?;
    Ok(value)
}

/// Sets the registers of a stopped thread.
///
/// # Errors
/// As of [`resume`].
pub fn set_registers(thread: Pid, registers: &Registers) -> Result<()> {
    request(libc::PTRACE_SETREGS, thread, 0, (&raw const *registers) as usize)
        .map_err(of("set registers of", thread))
}

/// Writes into the memory of a stopped thread at `address`, also where the program itself may not write: what it maps
/// privately there becomes its own.
///
/// # Errors
/// As of [`resume`]; nothing is mapped there.
pub fn poke(thread: Pid, address: u64, bytes: &[u8]) -> Result<()> {
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let word = usize::from_ne_bytes(std::array::from_fn(|at| word[at]));
        request(libc::PTRACE_POKEDATA, thread, address as usize + 8 * index, word)
            .map_err(of("change the code of", thread))?;
    }
    Ok(())
}

/// The blocked signals of a stopped thread, a bit each.
///
/// # Errors
/// As of [`resume`].
pub fn signal_mask(thread: Pid) -> Result<u64> {
    get(libc::PTRACE_GETSIGMASK, thread, 8, 0)
}

/// Sets the blocked signals of a stopped thread.
///
/// # Errors
/// As of [`resume`].
pub fn set_signal_mask(thread: Pid, mask: u64) -> Result<()> {
    request(libc::PTRACE_SETSIGMASK, thread, 8, (&raw const mask) as usize)
        .map_err(of("set signals of", thread))
}

/// The number that came with the last event of a stopped thread.
///
/// # Errors
/// As of [`resume`].
pub fn message(thread: Pid) -> Result<u64> {
    get(libc::PTRACE_GETEVENTMSG, thread, 0, 0)
}

/// The next thread with something to say; `None` if none has at the moment, or none is left.
///
/// # Errors
/// The kernel refuses to wait, other than for want of threads.
pub fn poll() -> Result<Option<(Pid, Stop)>> {
    wait(-1, libc::WNOHANG)
}

/// What `thread` has to say; `None` if nothing at the moment.
///
/// # Errors
/// As of [`poll`].
pub fn poll_one(thread: Pid) -> Result<Option<Stop>> {
    Ok(wait(thread.0 as libc::pid_t, libc::WNOHANG)?.map(|(_, stop)| stop))
}

/// Waits until `thread` has something to say; [`Kind::Busy`] if that takes longer than `limit`. Its end is left for
/// [`poll`] to tell: whoever waits here for something else may drop it.
///
/// # Errors
/// [`Kind::Busy`] if that takes longer than `limit`; the thread is not traced by us.
pub fn wait_for(thread: Pid, limit: Duration) -> Result<Stop> {
    crate::process::heartbeat::beat();
    let end = Instant::now() + limit;
    loop {
        // Nearly always it comes at once; what interrupts the call otherwise costs two calls.
        let told = match next_stop(thread, libc::WEXITED | libc::WNOWAIT | libc::WNOHANG)? {
            None => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let (why, object) = (
                        format!("it does not stop within {} s", limit.as_secs()),
                        format!("thread {thread}"),
                    );
                    return Err(Error::new(Kind::Busy, "wait for", object, why));
                }
                let _alarm = Alarm::set(left)?;
                next_stop(thread, libc::WEXITED | libc::WNOWAIT)?
            }
            told => told,
        };
        match told {
            Some(stop) if stop.is_end() => return Ok(stop),
            // One that was killed just now has no stop to tell any more.
            Some(_) => match next_stop(thread, libc::WNOHANG) {
                Ok(Some(stop)) => return Ok(stop),
                Ok(None) => {}
                Err(error) if error.kind() == Kind::Gone => {}
                Err(error) => return Err(error),
            },
            None => {}
        }
    }
}

/// A stop of `thread`'s, or what else `flags` ask for; `None`: nothing, or the call was interrupted.
fn next_stop(thread: Pid, flags: i32) -> Result<Option<Stop>> {
    let flags = flags | libc::WSTOPPED | libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: all zeros is a value of the structure.
    let mut told: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `told` is valid for writes.
    if unsafe { libc::waitid(libc::P_PID, thread.0, &raw mut told, flags) } != 0 {
        let error = io::Error::last_os_error();
        let error = match error.raw_os_error() {
            Some(libc::EINTR) => return Ok(None),
            Some(libc::ECHILD) => io::Error::from_raw_os_error(libc::ESRCH),
            _ => error,
        };
        return Err(Error::io("wait for", format_args!("thread {thread}"), error));
    }
    // SAFETY: waitid has filled in these for a child, or left the zeros.
    let (who, status) = unsafe { (told.si_pid(), told.si_status()) };
    Ok((who != 0).then_some(match told.si_code {
        libc::CLD_EXITED => Stop::Exited(status),
        libc::CLD_KILLED | libc::CLD_DUMPED => Stop::Killed(status),
        // What waitpid(2) tells of a stop.
        _ => decode(status << 8 | 0x7f),
    }))
}

/// Interrupts the calling thread's system calls from a moment on, again and again until it is dropped.
struct Alarm(libc::timer_t);

impl Alarm {
    /// Between two interruptions: the first may come before the call that it is to end.
    const AGAIN: Duration = Duration::from_millis(100);

    fn set(after: Duration) -> Result<Self> {
        extern "C" fn nothing(_: libc::c_int) {}
        static HANDLER: Once = Once::new();
        let number = libc::SIGRTMAX() - 2;
        HANDLER.call_once(|| {
            // SAFETY: zero is a valid `sigaction`; the handler does nothing, and calls are not restarted after it.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
                libc::sigaction(number, &action, ptr::null_mut());
            }
        });
        let failed = || Error::last("set", "a timer");
        let mut timer: libc::timer_t = ptr::null_mut();
        let time = |time: Duration| libc::timespec {
            tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let when = libc::itimerspec { it_interval: time(Self::AGAIN), it_value: time(after) };
        // SAFETY: zero is a valid `sigevent`; the pointers are to live values of the types that the calls take; a
        // signal that was blocked may arrive, whose handler stands.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = number;
            event.sigev_notify_thread_id = libc::gettid();
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, number);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
            if libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0 {
                return Err(failed());
            }
            let alarm = Self(timer);
            if libc::timer_settime(timer, 0, &when, ptr::null_mut()) != 0 {
                return Err(failed());
            }
            Ok(alarm)
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: the timer was created by `set` and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Of this thread's tracees only: another thread may trace programs of its own.
fn wait(pid: libc::pid_t, flags: i32) -> Result<Option<(Pid, Stop)>> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writes.
        let found =
            unsafe { libc::waitpid(pid, &mut status, flags | libc::__WALL | libc::__WNOTHREAD) };
        if found > 0 {
            return Ok(Some((Pid(found as u32), decode(status))));
        }
        if found == 0 {
            return Ok(None);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECHILD) => return Ok(None),
            _ => return Err(Error::io("wait for", "the program", error)),
        }
    }
}

fn decode(status: i32) -> Stop {
    if libc::WIFEXITED(status) {
        return Stop::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Stop::Killed(libc::WTERMSIG(status));
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
        0 => Stop::Signal(signal),
        libc::PTRACE_EVENT_FORK => Stop::Fork,
        libc::PTRACE_EVENT_VFORK => Stop::Vfork,
        libc::PTRACE_EVENT_CLONE => Stop::Clone,
        libc::PTRACE_EVENT_EXEC => Stop::Exec,
        libc::PTRACE_EVENT_EXIT => Stop::Exit,
        libc::PTRACE_EVENT_SECCOMP => Stop::Filtered,
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Interrupted,
        libc::PTRACE_EVENT_STOP => Stop::Group(signal),
        other => Stop::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits for the end of a call that a thread was made to do is not who keeps account of threads.
    #[test]
    fn an_end_that_was_waited_for_is_told_once_more() {
        let sleep = c"/bin/sleep".to_owned();
        let words = [sleep.clone(), c"60".to_owned()];
        let launched = launch(&sleep, &words, &[], &Setup::default()).unwrap();
        let child = launched.pid;
        if let Err(error) = seize(child, FOLLOW) {
            crate::process::signal::send(child, 9).unwrap();
            return println!("skipped: {error}");
        }
        launched.go().unwrap();
        let limit = Duration::from_secs(60);
        assert_eq!(wait_for(child, limit).unwrap(), Stop::Exec);
        crate::process::signal::send(child, 9).unwrap();
        while wait_for(child, limit).unwrap() == Stop::Exit {
            resume(child, 0).unwrap();
        }
        for _ in 0..2 {
            assert_eq!(wait_for(child, limit).unwrap(), Stop::Killed(9));
        }
        assert_eq!(poll_one(child).unwrap(), Some(Stop::Killed(9)));
        assert_eq!(wait_for(child, limit).unwrap_err().kind(), Kind::Gone);
    }
}
