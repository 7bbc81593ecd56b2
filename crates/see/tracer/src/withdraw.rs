//! One process let go by itself, because it starts another that is to trace it: a leak checker (LeakSanitizer, at the
//! end of a program) or a crash reporter.
//!
//! Such a child is asked for with `CLONE_UNTRACED`, and a thread has one tracer at most. So before the call is made:
//!
//! ```text
//!  the call comes back unmade, its thread stopped (put_aside)
//!  all threads stop ──► last scan ──► memory anonymous again ──► detach: the call is made again, by itself
//! ```
//!
//! Everything else stays traced. What the process starts from then on is not; its filtered calls go on as they are.

use std::time::{Duration, Instant};

use pagemill_kernel::process::same_memory;
use pagemill_kernel::{Error, Kind, Result, process::ptrace};
use pagemill_model::Pid;

use crate::PATIENCE;
use crate::notification::SyscallNotification;
use crate::trace::{Sink, Untraced};
use crate::tracer::Tracer;

/// `CLONE_UNTRACED`.
const UNTRACED: u64 = 0x0080_0000;

/// How long threads are waited for at a time.
const MOMENT: Duration = Duration::from_millis(50);

impl Tracer {
    /// Whose memory a thread has that nobody told of: it was started untraced.
    pub(crate) fn who_shares_with(&self, thread: Pid) -> Option<Pid> {
        let shares = |pid: &Pid| same_memory(thread, *pid) == Some(true);
        self.processes.keys().copied().find(shares)
    }

    /// Whether process `pid` asks for a child that may not be traced.
    pub(crate) fn asks_for_untraced(&self, pid: Pid, notification: &SyscallNotification) -> bool {
        let followed = self.processes.contains_key(&pid) || self.children.contains_key(&pid);
        let asks = notification
            .clones(notification.thread)
            .is_some_and(|asked| asked.flags & UNTRACED != 0);
        asks && followed && !self.plain_clone.contains(&pid)
    }

    /// Stops the thread that asks for such a child; the rest is done when all notifications are answered.
    pub(crate) fn put_aside(&mut self, pid: Pid, notification: &SyscallNotification) -> Result<()> {
        let thread = notification.thread;
        // It may have been killed, which it says by itself.
        let _ = ptrace::interrupt(thread);
        self.again.insert(thread);
        if let Some((listener, _)) = &self.session.listener {
            let _ = notification.put_back(listener);
        }
        self.hold(&[thread], PATIENCE);
        self.withdrawing.insert(pid);
        Ok(())
    }

    /// Lets go whom [`Self::put_aside`] was about.
    pub(crate) fn withdraw_all(&mut self, sink: &mut dyn Sink) -> Result<()> {
        while let Some(pid) = self.withdrawing.pop_first() {
            self.withdraw(pid, sink)?;
        }
        Ok(())
    }

    fn withdraw(&mut self, pid: Pid, sink: &mut dyn Sink) -> Result<()> {
        self.stop_threads_of(pid, sink)?;
        self.drain(sink);
        let threads = self.siblings(pid, Pid(0));
        if self.children.contains_key(&pid)
            && let Err(error) = self.adopt_stopped(pid, &threads, sink)
        {
            // It reads its parent's memory, and so has to be followed.
            let why = format!("starts a process that is to trace it, which cannot: {error}");
            self.untraced.push(Untraced::of(pid, why));
            self.plain_clone.insert(pid);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            let interval = process.tick(true)?;
            process.give_back(&self.linux)?;
            let _ = sink.interval(interval);
            let why =
                "it is let go to start a process that traces it: a leak checker or crash reporter";
            self.untraced.push(Untraced::of(pid, why));
            for thread in threads {
                // It may have been killed.
                let _ = ptrace::detach(thread, 0);
                self.threads.remove(&thread);
            }
            self.forget(pid)?;
        }
        self.release(pid);
        Ok(())
    }

    /// Stops all threads of one process.
    fn stop_threads_of(&mut self, pid: Pid, sink: &mut dyn Sink) -> Result<()> {
        let limit = Instant::now() + PATIENCE;
        loop {
            // Who waits for an answer cannot stop.
            self.receive();
            self.notifications(sink)?;
            let threads = self.siblings(pid, Pid(0));
            let stopped = self.hold(&threads, MOMENT);
            let (theirs, others) = std::mem::take(&mut self.deferred)
                .into_iter()
                .partition::<Vec<_>, _>(|(thread, _)| threads.contains(thread));
            self.deferred = others;
            if stopped && theirs.is_empty() {
                return Ok(());
            }
            for (thread, stop) in theirs {
                if let Some(state) = self.threads.get_mut(&thread) {
                    state.held = false;
                }
                self.stopped(thread, stop, sink)?;
            }
            if Instant::now() >= limit {
                let object = format!("process {pid}");
                return Err(Error::new(Kind::Busy, "let go", object, "a thread does not stop"));
            }
        }
    }
}
