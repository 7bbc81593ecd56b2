//! Threads stopped together, so that nobody writes while memory changes its kind.
//!
//! A thread that is to stop may report something else first: a signal (it gets it, and is asked again), or
//! an event such as a fork. Then it is stopped as well; the event is put off (`deferred`) until the loop is
//! back.

use std::time::{Duration, Instant};

use pagemill_kernel::process::ptrace::{self, Stop};
use pagemill_model::Pid;

use crate::SOON;
use crate::stopped::{comes_out, restart_call};
use crate::tracer::{Thread, Tracer};

/// A fork that has not happened by then has failed, or its thread was killed.
const FORK: Duration = Duration::from_millis(300);

impl Tracer {
    /// The threads of a process, and of those that share its memory, but one.
    pub(crate) fn siblings(&self, pid: Pid, but: Pid) -> Vec<Pid> {
        let of = |(thread, state): (&Pid, &Thread)| {
            (state.process == pid && *thread != but).then_some(*thread)
        };
        self.threads.iter().filter_map(of).collect()
    }

    /// Stops every other thread of a process for the time of a fork.
    pub(crate) fn hold_others(&mut self, pid: Pid, forker: Pid) {
        let others = self.siblings(pid, forker);
        self.forking.insert(forker, (pid, Instant::now()));
        self.hold(&others, SOON);
    }

    /// Stops threads; whether all are. One that waits for its mapper cannot stop, and cannot write either.
    pub(crate) fn hold(&mut self, threads: &[Pid], patience: Duration) -> bool {
        let runs = |thread: &Pid| self.threads.get(thread).is_some_and(|state| !state.held);
        let mut waiting: Vec<Pid> = threads.iter().copied().filter(runs).collect();
        for &thread in &waiting {
            // One that has ended says so.
            let _ = ptrace::interrupt(thread);
        }
        let limit = Instant::now() + patience;
        loop {
            waiting.retain(|&thread| match ptrace::poll_one(thread) {
                Ok(Some(stop)) => !self.held(thread, stop),
                Ok(None) => true,
                Err(_) => false,
            });
            if waiting.is_empty() || Instant::now() >= limit {
                return waiting.is_empty();
            }
            std::thread::yield_now();
        }
    }

    /// A thread that was to be held says this. Whether it is stopped now.
    fn held(&mut self, thread: Pid, stop: Stop) -> bool {
        if let Stop::Signal(number) = stop {
            // Any stop takes the place of the one that was asked for.
            let _ = ptrace::resume(thread, number);
            let _ = ptrace::interrupt(thread);
            return false;
        }
        if stop == Stop::Interrupted && comes_out(thread) {
            return false;
        }
        if stop == Stop::Interrupted && self.again.remove(&thread) {
            restart_call(thread);
        }
        if let Some(state) = self.threads.get_mut(&thread) {
            state.held = true;
        }
        if stop != Stop::Interrupted {
            self.deferred.push((thread, stop));
        }
        true
    }

    /// Lets held threads of a process go on, but those whose event is still to be looked at.
    pub(crate) fn release(&mut self, pid: Pid) {
        for (thread, state) in &mut self.threads {
            if state.process == pid
                && std::mem::take(&mut state.held)
                && !self.deferred.iter().any(|(deferred, _)| deferred == thread)
            {
                // It may have been killed meanwhile.
                let _ = ptrace::resume(*thread, 0);
            }
        }
    }

    /// The fork that threads were held for has happened, or will not.
    pub(crate) fn fork_is_over(&mut self, forker: Pid) {
        if let Some((pid, _)) = self.forking.remove(&forker) {
            self.release(pid);
        }
    }

    /// Asks threads whose fork should long have happened to stop; what they say then ends the wait.
    pub(crate) fn hurry_forks(&mut self) {
        for (&forker, (_, since)) in &mut self.forking {
            if since.elapsed() >= FORK {
                *since = Instant::now();
                let _ = ptrace::interrupt(forker);
            }
        }
    }
}
