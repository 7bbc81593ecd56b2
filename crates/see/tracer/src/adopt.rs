//! Children: parted from their parents at the fork, and given memory of their own once they have lived for a while; at
//! once where the kernel holds pages of the parent's ([`pins`]), whose memory can then not become private.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pagemill_kernel::{
    Error, Kind, Result,
    process::{ptrace, signal},
};
use pagemill_model::Pid;

use crate::child::Child;
use crate::convert::Origin;
use crate::interval::now;
use crate::pins::pins;
use crate::process::Process;
use crate::stopped::calm;
use crate::trace::{Sink, Untraced};
use crate::tracer::Tracer;
use crate::{PATIENCE, SOON};

/// How long until a process whose threads did not stop is asked again, at first and at last.
const LATE: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(2);

/// Bytes of data up to which a child's memory is copied, with all its threads stopped.
const LARGEST: u64 = 256 << 20;

impl Tracer {
    /// A child was forked by a thread of `parent`; both are stopped. Memory that it cannot have for its own it does not
    /// get to see: it would write its parent's.
    pub(crate) fn forked(&mut self, parent: Pid, (forker, child): (Pid, Pid)) -> Result<()> {
        let Err(error) = self.part(parent, (forker, child)) else { return Ok(()) };
        let _ = signal::send(child, 9);
        let why = format!("a forked child, which was killed before it began: {error}");
        self.untraced.push(Untraced::of(child, why));
        Ok(())
    }

    /// Parts the memory of a child from its parent's.
    fn part(&mut self, parent: Pid, (forker, child): (Pid, Pid)) -> Result<()> {
        // A child of a child that is not adopted yet reads the same file.
        let owner = self.reads.get(&parent).copied().unwrap_or(parent);
        let mut stays_shared = false;
        let (from, watched) = if let Some(elder) = self.children.get(&parent) {
            (elder.inherited()?, None)
        } else if let Some(process) = self.processes.get_mut(&owner) {
            // Until it has ended the memory is not shared again, whatever fails.
            process.sharers.push(child);
            self.reads.insert(child, owner);
            let granule = self.options.granule;
            stays_shared = process.stays_shared()?;
            let ids = (forker, child);
            let (watched, frozen) = process.part(&self.linux, ids, granule, stays_shared)?;
            if let Err(error) = frozen {
                if process.awake() {
                    return Err(error);
                }
                // Its injector was killed. Another does it, started by the thread that forks, at the end of its call;
                // what becomes of the recording is for the next look to say.
                ptrace::resume_to_system_call(forker, 0)?;
                ptrace::wait_for(forker, PATIENCE)?;
                self.unanswered.extend(process.dismiss(&self.linux, self.session.keeper.as_ref()));
                process.revive(forker, self.session.keeper.as_ref())?;
                process.freeze(&self.linux)?;
            }
            (process.inherited()?, watched)
        } else {
            return Ok(());
        };
        if let Some(process) = self.processes.get_mut(&owner) {
            if !process.sharers.contains(&child) {
                process.sharers.push(child);
            }
            self.reads.insert(child, owner);
        }
        self.events.follow(child)?;
        let age = 2 * self.options.interval;
        let fresh = Child::new(&self.linux, child, from, watched, age)?;
        self.children.insert(child, fresh);
        self.parents.push((parent, child));
        if !stays_shared {
            return Ok(());
        }
        let done = self.own_memory(child, child);
        if let Some(process) = self.processes.get_mut(&owner) {
            process.control.frozen.store(0, Relaxed);
        }
        done
    }

    /// Gives children that have lived for two intervals memory of their own.
    pub(crate) fn adopt(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let now = Instant::now();
        let old = |child: &&Child| !child.stays && now >= child.due;
        let ready: Vec<(Pid, Duration)> =
            self.children.values().filter(old).map(|child| (child.pid, child.patience)).collect();
        for (pid, patience) in ready {
            let threads = self.siblings(pid, Pid(0));
            let stopped = self.hold(&threads, patience)
                && !self.deferred.iter().any(|(thread, _)| threads.contains(thread));
            // One that asks something just now, or does not get a processor, is adopted later.
            if !stopped && let Some(child) = self.children.get_mut(&pid) {
                child.patience = (2 * patience).min(Duration::from_secs(1));
                child.due = Instant::now() + child.patience;
            }
            if stopped && let Err(error) = self.adopt_stopped(pid, &threads, sink) {
                if let Some(child) = self.children.get_mut(&pid) {
                    child.stays = true;
                }
                let why = format!("a forked child, all of whose life is one interval: {error}");
                self.untraced.push(Untraced::of(pid, why));
            }
            self.release(pid);
        }
        Ok(())
    }

    pub(crate) fn adopt_stopped(
        &mut self,
        pid: Pid,
        threads: &[Pid],
        sink: &mut dyn Sink,
    ) -> Result<()> {
        // One that only shares the memory may have other descriptors.
        let own = |thread: &Pid| self.threads.get(thread).is_some_and(|state| state.group == pid);
        let own: Vec<Pid> = threads.iter().copied().filter(own).collect();
        let Some(thread) = calm(&own) else { return Ok(()) };
        let Some(child) = self.children.get_mut(&pid) else { return Ok(()) };
        let data = child.data(&self.linux)?;
        if data > LARGEST {
            let why = format!("{} MiB are too much to copy", data >> 20);
            return Err(Error::new(Kind::Unsupported, "adopt", format_args!("process {pid}"), why));
        }
        if let Some(why) = pins(&self.linux, pid, Some(child.own_fds))? {
            let object = format!("process {pid}");
            return Err(Error::new(Kind::Unsupported, "adopt", object, why));
        }
        let interval = child.interval(true)?;
        // Its faults are told before it.
        self.drain(sink);
        let _ = sink.interval(interval);
        self.own_memory(pid, thread)
    }

    /// Copies the memory of a child, all of whose threads are stopped, into a file of its own.
    fn own_memory(&mut self, pid: Pid, thread: Pid) -> Result<()> {
        let Some(child) = self.children.get_mut(&pid) else { return Ok(()) };
        let number = child.number;
        // Its mappings are to be registered with its own.
        child.watched = None;
        let origin = Origin::Forked(child.inherited()?);
        let mut process = self.convert(pid, thread, &origin)?;
        process.original.clear();
        // What could not be dropped is told once more.
        let _ = process.restart_intervals();
        (process.intervals, process.began) = (number, now());
        self.processes.insert(pid, process);
        self.tell_keeper();
        self.children.remove(&pid);
        self.no_longer_reads(pid)
    }

    /// A child does not read its parent's file any more: the parent may write it again.
    pub(crate) fn no_longer_reads(&mut self, child: Pid) -> Result<()> {
        let Some(parent) = self.reads.remove(&child) else { return Ok(()) };
        let Some(process) = self.processes.get_mut(&parent) else { return Ok(()) };
        process.sharers.retain(|sharer| *sharer != child);
        self.thaw_unread(parent)
    }

    /// Shares the memory of a process again that no child reads.
    pub(crate) fn thaw_unread(&mut self, parent: Pid) -> Result<()> {
        let Some(process) = self.processes.get_mut(&parent) else { return Ok(()) };
        if !process.sharers.is_empty() || !process.frozen() {
            return Ok(());
        }
        // Somebody forks just now: then its child reads the file next.
        if self.forking.values().any(|(process, _)| *process == parent) {
            return Ok(());
        }
        // Nor are pages replaced that the kernel holds: the memory stays frozen.
        if !matches!(pins(&self.linux, parent, Some(process.own_fds)), Ok(None)) {
            process.late = None;
            return Ok(());
        }
        let threads = self.siblings(parent, Pid(0));
        let stopped = self.hold(&threads, SOON);
        if let Some(process) = self.processes.get_mut(&parent) {
            let wait = process.late.map_or(LATE, |(_, wait)| (2 * wait).min(LATEST));
            process.late = (!stopped).then(|| (Instant::now() + wait, wait));
            if stopped {
                process.thaw(&self.linux)?;
            }
        }
        self.release(parent);
        Ok(())
    }

    /// Tries again to share the memory of processes whose threads did not stop for it.
    pub(crate) fn thaw_late(&mut self) -> Result<()> {
        let now = Instant::now();
        let due = |process: &&Process| process.late.is_some_and(|(due, _)| now >= due);
        let due: Vec<Pid> =
            self.processes.values().filter(due).map(|process| process.pid).collect();
        due.into_iter().try_for_each(|pid| self.thaw_unread(pid))
    }
}
