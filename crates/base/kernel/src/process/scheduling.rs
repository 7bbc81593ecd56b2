//! Scheduling (sched(7)): whether a thread of this process may be a real-time thread, a thread that yields to
//! all others, and threads that are kept on one processor while they hand over to each other.
//!
//! It may be a real-time thread with `CAP_SYS_NICE` or an `RLIMIT_RTPRIO`, where its control group has a share of real
//! time (`CONFIG_RT_GROUP_SCHED`). A limit on the real time used without a sleep (`RLIMIT_RTTIME`) ends the process
//! that exceeds it, so under one nobody should try.

use std::io;
use std::thread;

use pagemill_model::Pid;

use crate::{Error, Result};

/// Makes a thread of its own a real-time thread of the lowest priority, for as long as that takes to find out.
///
/// # Errors
/// The kernel refuses, or time spent as a real-time thread is limited.
pub fn real_time_is_allowed() -> Result<()> {
    let failed = |error| Error::io("make a real-time thread", "of this process", error);
    let tried = thread::Builder::new().spawn(be_real_time).map_err(failed)?;
    tried.join().unwrap_or_else(|_| Err(io::Error::other("the thread failed"))).map_err(failed)
}

/// Makes the calling thread a real-time thread of the lowest priority, which runs when it wants to however busy the
/// machine is. It should sleep nearly always.
///
/// # Errors
/// The kernel refuses, or time spent as a real-time thread is limited.
pub fn be_real_time() -> io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Rttime);
    if limit.current.is_some() || limit.maximum.is_some() {
        return Err(io::Error::other("RLIMIT_RTTIME limits real-time threads"));
    }
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: `lowest` is valid for reads of its type; thread 0 is the calling one.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets the calling thread run when others of the same priority have what they want: for work that can wait. Where the
/// kernel refuses, it goes on as before.
pub fn yield_to_others() {
    /// The least that a processor gives.
    const NICEST: i32 = 19;
    let _ = rustix::process::setpriority_process(None, NICEST);
}

/// Processors that a thread may run on, a bit each, as the kernel has them.
type Processors = [u8; 1024];

fn processors_of(thread: Pid) -> Option<Processors> {
    let mut processors = [0; 1024];
    // SAFETY: `processors` is valid for writes of the length given.
    let found = unsafe {
        libc::syscall(
            libc::SYS_sched_getaffinity,
            thread.0 as libc::pid_t,
            processors.len(),
            processors.as_mut_ptr(),
        )
    };
    (found > 0).then_some(processors)
}

fn set_processors(thread: Pid, processors: &Processors) -> bool {
    // SAFETY: `processors` is valid for reads of the length given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread.0 as libc::pid_t,
            processors.len(),
            processors.as_ptr(),
        )
    };
    done == 0
}

/// The processor that the caller is on at the moment.
pub fn this_processor() -> Option<usize> {
    // SAFETY: no memory.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

fn only(processor: usize) -> Processors {
    let mut processors = [0; 1024];
    if let Some(byte) = processors.get_mut(processor / 8) {
        *byte = 1 << (processor % 8);
    }
    processors
}

/// Has a thread or process of ours run on this processor alone from now on: waking it costs little there, where it
/// takes over from who wakes it. Where the kernel refuses it runs where it did.
pub fn keep_on(thread: Pid, processor: usize) {
    set_processors(thread, &only(processor));
}

/// The calling thread on some processors until this is dropped, then where it was allowed before.
#[derive(Debug)]
pub struct AffinityGuard {
    before: Processors,
    thread: std::marker::PhantomData<*const ()>,
}

impl AffinityGuard {
    /// Keeps to those of `processors` that the thread may use; `None` where that is none, or the kernel refuses.
    pub fn to(processors: &[u32]) -> Option<Self> {
        let before = processors_of(Pid(0))?;
        let mut wanted = [0; 1024];
        for &processor in processors {
            let at = processor as usize / 8;
            if let (Some(byte), Some(may)) = (wanted.get_mut(at), before.get(at)) {
                *byte |= may & 1 << (processor % 8);
            }
        }
        let some = wanted.iter().any(|byte| *byte != 0) && set_processors(Pid(0), &wanted);
        some.then_some(Self { before, thread: std::marker::PhantomData })
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        set_processors(Pid(0), &self.before);
    }
}

/// The calling thread and another that hand over to each other, on one processor until this is dropped. To wake a
/// processor that sleeps takes many times as long as to change threads on one that does not, above all in a virtual
/// machine.
///
/// Always true: at the end each of them, and each thread that came of the other meanwhile and was named to
/// [`PairAffinityGuard::also`], may run where it might before.
#[derive(Debug)]
pub struct PairAffinityGuard {
    own: Processors,
    others: Processors,
    threads: Vec<Pid>,
}

impl PairAffinityGuard {
    /// Keeps the caller and `thread`, which is stopped, on the caller's processor; `None` if `thread` may not run there
    /// or the kernel refuses.
    pub fn with(thread: Pid) -> Option<Self> {
        let (own, others, here) =
            (processors_of(Pid(0))?, processors_of(thread)?, this_processor()?);
        let one = only(here);
        if others.iter().zip(&one).all(|(may, here)| may & here == 0)
            || !set_processors(Pid(0), &one)
        {
            return None;
        }
        let mut together = Self { own, others, threads: Vec::new() };
        if !set_processors(thread, &one) {
            return None;
        }
        together.also(thread);
        Some(together)
    }

    /// A thread that `thread` has cloned since.
    pub fn also(&mut self, thread: Pid) {
        self.threads.push(thread);
    }
}

impl Drop for PairAffinityGuard {
    fn drop(&mut self) {
        for &thread in &self.threads {
            set_processors(thread, &self.others);
        }
        set_processors(Pid(0), &self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_kept_together_run_where_they_did_before_afterwards() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = thread::spawn(move || {
            // SAFETY: no memory.
            tell.send(Pid(unsafe { libc::gettid() } as u32)).ok();
            ended.recv().ok();
        });
        let Ok(thread) = told.recv() else { panic!("the other thread has ended") };
        let before = (processors_of(Pid(0)), processors_of(thread));
        let together = PairAffinityGuard::with(thread);
        let count = |of: Option<Processors>| -> u32 {
            of.iter().flatten().map(|byte| byte.count_ones()).sum()
        };
        assert!(together.is_some());
        assert_eq!((count(processors_of(Pid(0))), count(processors_of(thread))), (1, 1));
        assert_eq!(processors_of(Pid(0)), processors_of(thread));
        drop(together);
        assert_eq!((processors_of(Pid(0)), processors_of(thread)), before);
        drop(end);
        assert!(other.join().is_ok());
    }

    #[test]
    fn a_thread_that_is_gone_keeps_nobody() {
        let before = processors_of(Pid(0));
        // SAFETY: no memory.
        let ended = thread::spawn(|| Pid(unsafe { libc::gettid() } as u32)).join();
        let Ok(thread) = ended else { panic!("the other thread failed") };
        drop(PairAffinityGuard::with(thread));
        assert_eq!(processors_of(Pid(0)), before);
    }

    #[test]
    fn a_thread_that_yields_is_the_only_one_that_does() {
        // SAFETY: no memory.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = priority();
        let yielding = thread::spawn(move || {
            yield_to_others();
            priority()
        });
        assert_eq!(yielding.join().ok(), Some(19));
        assert_eq!(priority(), before);
    }

    #[test]
    fn asking_changes_no_other_thread() {
        let answer = real_time_is_allowed();
        // SAFETY: thread 0 is the calling one; no memory.
        assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER, "{answer:?}");
    }
}
