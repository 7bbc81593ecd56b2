//! Signals for a program that supervises a child: wait for them in one place, pass them on, and end
//! the way the child did.
//!
//! The signals of interest are blocked before the child is started and taken out of the queue by
//! [`Signals::wait`], so no handler runs and none can be missed. A file that grows beyond the limit (`ulimit -f`) is an
//! error meanwhile, not the end. The child starts with the mask, and that signal's action, that were there before.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use pagemill_model::Pid;

use crate::error::done;
use crate::{Error, Result};

/// What a user, a terminal or a service manager sends to a program. `SIGKILL` and `SIGSTOP` cannot be
/// waited for.
pub const SENT_TO_PROGRAMS: &[i32] = &[
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// Those of them that ask a program to end.
pub const ENDS: &[i32] = &[libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Ends a program that does not when it is asked to.
pub const KILL: i32 = libc::SIGKILL;

/// Asks a program to end.
pub const TERMINATE: i32 = libc::SIGTERM;

/// A child has ended or stopped.
pub const CHILD: i32 = libc::SIGCHLD;

/// Nobody reads any more what this thread writes.
pub const PIPE: i32 = libc::SIGPIPE;

/// The terminal has another size.
pub const RESIZED: i32 = libc::SIGWINCH;

/// Sets a stopped program going.
pub const CONTINUE: i32 = libc::SIGCONT;

/// Stop a program until it is continued: the terminal's stop key, and its use from the background.
pub const STOPS: &[i32] = &[libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// A signal that was taken out of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Which.
    pub signal: i32,
    /// Whether the kernel sent it: the terminal's keys, which reach the whole foreground group.
    pub from_kernel: bool,
}

/// Signals that this process waits for instead of being interrupted; dropping it restores the mask.
pub struct Signals {
    set: libc::sigset_t,
    before: libc::sigset_t,
    file_size: libc::sighandler_t,
}

impl Signals {
    /// Blocks `signals` for the calling thread, which should be the only one.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn block(signals: &[i32]) -> Result<Self> {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initialises the set it is given.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: initialised by the call above.
        let mut set = unsafe { set.assume_init() };
        for &signal in signals {
            // SAFETY: `set` is an initialised set; an invalid number is refused and changes nothing.
            unsafe { libc::sigaddset(&mut set, signal) };
        }
        // SAFETY: `set` is initialised; `before` is valid for writes.
        let refused = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, before.as_mut_ptr()) };
        if refused != 0 {
            return Err(Error::io("block", "signals", io::Error::from_raw_os_error(refused)));
        }
        // SAFETY: `pthread_sigmask` succeeded and so has written `before`.
        let before = unsafe { before.assume_init() };
        // SAFETY: to ignore a signal runs no code of ours.
        let file_size = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        Ok(Self { set, before, file_size })
    }

    /// Makes the child that `command` will start have the mask from before.
    pub fn restore_in(&self, command: &mut Command) {
        let (before, file_size) = (self.before, self.file_size);
        let restore = move || {
            // SAFETY: the action that this process had; async-signal-safe.
            unsafe { libc::signal(libc::SIGXFSZ, file_size) };
            // SAFETY: `before` is an initialised set that the closure owns.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) } {
                0 => Ok(()),
                refused => Err(io::Error::from_raw_os_error(refused)),
            }
        };
        // SAFETY: between fork and exec the closure makes two async-signal-safe calls and neither
        // allocates nor locks.
        unsafe { command.pre_exec(restore) };
    }

    /// As [`Signals::restore_in`], and makes the child be asked to end when the thread that starts it is gone: of a
    /// process that is killed nothing is to be left behind.
    pub fn restore_and_end_with_us(&self, command: &mut Command) {
        self.restore_in(command);
        // SAFETY: this option takes numbers only; async-signal-safe.
        let ask = || match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, TERMINATE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: between fork and exec the closure makes one async-signal-safe call and neither allocates nor locks.
        unsafe { command.pre_exec(ask) };
    }

    /// A descriptor that can be read while one of the signals is pending, for [`crate::poll`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &self.set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::last("watch", "signals"));
        }
        // SAFETY: `fd` was just created and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Waits for one of the signals, at most `timeout`.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Received>> {
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set and the timeout are initialised; `info` is valid for writes.
        let signal = unsafe { libc::sigtimedwait(&self.set, info.as_mut_ptr(), &timeout) };
        if signal < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(Error::io("wait for", "signals", error)),
            };
        }
        // SAFETY: zeroed is a valid `siginfo_t`, and the call has filled it.
        let info = unsafe { info.assume_init() };
        Ok(Some(Received { signal, from_kernel: info.si_code > 0 }))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: `before` is an initialised set, and the action the one that this process had.
        unsafe {
            libc::signal(libc::SIGXFSZ, self.file_size);
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut());
        }
    }
}

/// Sends `signal` to process `pid`.
///
/// # Errors
/// There is no such process, or it may not be sent signals.
pub fn send(pid: Pid, signal: i32) -> Result<()> {
    // SAFETY: `kill` takes numbers only.
    let sent = unsafe { libc::kill(pid.0 as libc::pid_t, signal) };
    done(sent, "send", format_args!("signal {signal} to process {pid}"))
}

/// Sends `signal` to all processes of the group that `leader` leads.
///
/// # Errors
/// As of [`send`].
pub fn send_to_group(leader: Pid, signal: i32) -> Result<()> {
    // SAFETY: `kill` takes numbers only.
    let sent = unsafe { libc::kill(-(leader.0 as libc::pid_t), signal) };
    done(sent, "send", format_args!("signal {signal} to group {leader}"))
}

/// Stops this process until somebody continues it.
///
/// # Errors
/// As of [`send`].
pub fn stop_myself() -> Result<()> {
    send(Pid::own(), libc::SIGSTOP)
}

/// Makes a write past `RLIMIT_FSIZE` an error (`EFBIG`) and no longer the end of this process. Programs that it
/// executes find the signal as it was: a handler is not passed on, and who ignored it before goes on ignoring it.
pub fn survive_file_size_limit() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: zeroed is a valid `sigaction`; both are valid for the calls, and the handler does nothing.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGXFSZ, ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_DFL
        {
            now.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            now.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGXFSZ, &now, ptr::null_mut());
        }
    }
}

/// Ends this process by `signal`, so that whoever waits for it sees what the child's parent saw. No
/// core is dumped: the child has dumped its own. If the signal does not kill, exits with 128 + signal.
pub fn die_by(signal: i32) -> ! {
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `no_core` is a valid limit; the other calls take numbers and constants only, and
    // `set` is initialised by `sigemptyset` before it is used.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
        // A core handler behind a pipe ignores the limit but not this.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_blocked_signal_is_waited_for_and_its_sender_told_apart() {
        // The test harness runs each test in a thread of its own, so the signal goes to this thread.
        let signals = Signals::block(&[libc::SIGUSR1]).unwrap();
        assert_eq!(signals.wait(Duration::ZERO).unwrap(), None);
        // SAFETY: raising a signal that this thread blocks only queues it.
        unsafe { libc::raise(libc::SIGUSR1) };
        let received = signals.wait(Duration::from_secs(5)).unwrap();
        assert_eq!(received, Some(Received { signal: libc::SIGUSR1, from_kernel: false }));
    }

    #[test]
    fn a_child_starts_with_the_mask_from_before() {
        let signals = Signals::block(&[libc::SIGTERM]).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "kill -TERM $$; exit 3"]);
        signals.restore_in(&mut command);
        let status = command.status().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_child_that_is_to_end_with_us_is_asked_to_when_its_thread_is_gone() {
        let start = || {
            let signals = Signals::block(&[libc::SIGTERM]).unwrap();
            let mut command = Command::new("sleep");
            signals.restore_and_end_with_us(command.arg("1000"));
            command.spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
