//! What our code in a program opens there: descriptors at numbers that the program does not use.
//!
//! Always true: the program's own limit of descriptors is as before when they are open.

use std::os::fd::OwnedFd;

use pagemill_kernel::process::injected::Control;
use pagemill_kernel::process::keeper::{Keeper, StandBy};
use pagemill_kernel::process::{DescriptorLimit, descriptor_limit, set_descriptor_limit};
use pagemill_kernel::{
    Error, Kind, Result,
    memory::watched,
    process::{pidfd, process_vm, seccomp},
};
use pagemill_model::Pid;

use crate::SIGN_OF_LIFE;
use crate::calls::{
    CLOSE, Call, EVENTFD2, FCNTL, MEMFD_CREATE, OPENAT, PRCTL, PRLIMIT, SECCOMP, USERFAULTFD, call,
};
use crate::inject::{Injection, checked, refused};
use crate::notification::SyscallNotification;
use crate::rescue::rescue;

/// RLIMIT_NOFILE.
const DESCRIPTORS: i64 = 7;
const CLOEXEC: i64 = 0o2_000_000;
/// What is opened in a program.
const OPENED: [&str; 5] = [
    "create a memory file in",
    "open a userfaultfd in",
    "open the pagemap of",
    "open the maps of",
    "create an eventfd in",
];

/// Descriptors in the program.
pub(crate) struct Descriptors {
    pub(crate) first: u32,
    pub(crate) memory: i64,
    pub(crate) userfault: i64,
    pub(crate) pagemap: i64,
    pub(crate) maps: i64,
    pub(crate) wake: i64,
    pub(crate) listener: i64,
}

/// How many descriptors a program may have, for a moment.
struct Limit {
    /// First of ours.
    first: u32,
    /// Its own.
    own: DescriptorLimit,
    /// What it is at the moment, if it is another.
    raised: Option<DescriptorLimit>,
    /// Whether ours are among those that the program may have, and must be kept from it.
    among: bool,
}

impl Limit {
    /// By the program itself: for others it may need a capability to lower even the soft limit.
    fn set(
        &self,
        pid: Pid,
        by: &Injection,
        control: &Control,
        limit: DescriptorLimit,
    ) -> Result<()> {
        let text = Control::ranges_address();
        let words: Vec<u8> =
            [limit.soft, limit.hard].iter().flat_map(|word| word.to_ne_bytes()).collect();
        process_vm::write(pid, text, &words)?;
        let result = by.list(control, &[call(PRLIMIT, [0, DESCRIPTORS, text as i64])])?[0];
        if result == 0 { Ok(()) } else { Err(refused("set the limits of", pid, result)) }
    }

    fn restore(&self, pid: Pid, by: &Injection, control: &Control) -> Result<()> {
        match self.raised {
            Some(_) => self.set(pid, by, control, self.own),
            None => Ok(()),
        }
    }
}

/// What all processes of a trace share: the filter that they inherit, and its listener.
#[derive(Debug)]
pub(crate) struct Session {
    /// First of the descriptors of ours in a program.
    pub(crate) own_fds: u32,
    /// Our end of the filter's notifications and its number in every program, once it is installed.
    pub(crate) listener: Option<(OwnedFd, i64)>,
    /// Whether a filter may be installed without giving up set-user-ID programs.
    pub(crate) privileged: bool,
    /// Answers at the listener when nobody else is left to.
    pub(crate) keeper: Option<Keeper>,
    /// Calls that mappers had received which ended before there was a process of theirs.
    pub(crate) received: Vec<SyscallNotification>,
}

/// Who opens descriptors in a process.
pub(crate) struct Opening<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) pid: Pid,
    /// The thread that makes the calls.
    pub(crate) thread: Pid,
    /// The first of ours that a forked child has of its parent's.
    pub(crate) parent: Option<u32>,
    pub(crate) injection: &'a Injection,
}

impl Opening<'_> {
    /// An injected call that must succeed.
    fn check(&self, action: &'static str, result: i64) -> Result<i64> {
        checked(action, self.thread, result)
    }

    /// Opens what our code in the program needs, at numbers that the program does not use.
    pub(crate) fn descriptors(
        &mut self,
        process: &OwnedFd,
        control: &Control,
    ) -> Result<Descriptors> {
        self.close_parents(control)?;
        let patience = crate::for_test("PAGEMILL_TEST_PATIENCE").unwrap_or(SIGN_OF_LIFE);
        // From the call that filters on somebody must answer if we are killed.
        let stands_by = match &self.session.listener {
            None => Some(StandBy::start(self.pid, patience, rescue)?),
            Some(_) => None,
        };
        // A program under a low limit can open none of them, or the last ones that it may have.
        let limit = self.raise_limit(control)?;
        let opened = self.open(control)?;
        let filtered = self
            .all_opened(&opened)
            .and_then(|()| self.keep_open(control, &limit))
            .and_then(|()| self.filter(control));
        let fresh_listener = match filtered {
            Ok(None) => None,
            Ok(Some(fd)) => {
                let listener = pidfd::descriptor(process, fd as i32)?;
                self.session.keeper = Some(Keeper::start(&listener, patience, rescue)?);
                Some((fd, listener))
            }
            Err(error) => {
                self.close(control, &opened)?;
                limit.restore(self.pid, self.injection, control)?;
                return Err(error);
            }
        };
        drop(stands_by);
        let listener = fresh_listener.as_ref().map(|(fd, _)| *fd);
        let first = limit.first;
        let moved = self.move_up(control, limit, &opened, listener)?;
        if let Some((_, listener)) = fresh_listener {
            self.session.listener = Some((listener, moved[moved.len() - 1]));
        }
        let listener = self.session.listener.as_ref().map_or(-1, |(_, number)| *number);
        let [memory, userfault, pagemap, maps, wake] = moved[..OPENED.len()] else {
            let (object, why) = ("descriptors in the program", "some are missing");
            return Err(Error::new(Kind::Other, "open", object, why));
        };
        Ok(Descriptors { first, memory, userfault, pagemap, maps, wake, listener })
    }

    /// Whether all of it was opened.
    fn all_opened(&self, opened: &[i64]) -> Result<()> {
        OPENED.iter().zip(opened).try_for_each(|(what, &fd)| self.check(what, fd).map(|_| ()))
    }

    /// Closes what was opened.
    fn close(&self, control: &Control, opened: &[i64]) -> Result<()> {
        let open = opened.iter().filter(|fd| **fd >= 0);
        let calls: Vec<Call> = open.map(|&fd| call(CLOSE, [fd])).collect();
        self.injection.list(control, &calls)?;
        Ok(())
    }

    /// A child has its parent's.
    fn close_parents(&self, control: &Control) -> Result<()> {
        if let (Some(parent), Some((_, listener))) = (self.parent, &self.session.listener) {
            let own = i64::from(parent);
            let closes: Vec<Call> = (own..own + i64::from(seccomp::OWN_DESCRIPTORS))
                .filter(|fd| fd != listener)
                .map(|fd| call(CLOSE, [fd]))
                .collect();
            self.injection.list(control, &closes)?;
        }
        Ok(())
    }

    /// Opens them, as [`OPENED`] says: what each call returned.
    fn open(&self, control: &Control) -> Result<Vec<i64>> {
        // Texts for system calls stand where ranges will.
        let text = |slot: u64, text: &str| -> Result<i64> {
            let address = Control::ranges_address() + 64 * slot;
            process_vm::write(self.pid, address, format!("{text}\0").as_bytes())?;
            Ok(address as i64)
        };
        let name = text(0, "pagemill")?;
        let pagemap = text(1, "/proc/self/pagemap")?;
        let maps = text(2, "/proc/self/maps")?;
        const READ_ONLY: i64 = CLOEXEC;
        const AT_FDCWD: i64 = -100;
        let calls = [
            call(MEMFD_CREATE, [name, 1]),
            call(USERFAULTFD, [watched::OPEN_FLAGS]),
            call(OPENAT, [AT_FDCWD, pagemap, READ_ONLY]),
            call(OPENAT, [AT_FDCWD, maps, READ_ONLY]),
            call(EVENTFD2, [0, CLOEXEC | 0o4000]),
        ];
        self.injection.list(control, &calls)
    }

    /// A filter; without privileges it needs a promise before.
    fn install(&self, control: &Control, flags: i64, program: u64) -> Result<i64> {
        let mut calls = Vec::new();
        if self.session.listener.is_none() && !self.session.privileged {
            const NO_NEW_PRIVILEGES: i64 = 38;
            calls.push(call(PRCTL, [NO_NEW_PRIVILEGES, 1]));
        }
        calls.push(call(SECCOMP, [1, flags, program as i64]));
        let results = self.injection.list(control, &calls)?;
        Ok(results[results.len() - 1])
    }

    /// Keeps the program from closing descriptors of ours where it may have their numbers.
    fn keep_open(&self, control: &Control, limit: &Limit) -> Result<()> {
        if !limit.among {
            return Ok(());
        }
        let program = Control::ranges_address() + 1024;
        process_vm::write(self.pid, program, &seccomp::keeping(program, limit.first))?;
        let kept = self.install(control, 0, program)?;
        self.check("keep descriptors of ours open in", kept).map(|_| ())
    }

    /// Filters the calls of a program that has no filter yet; the filter's listener.
    fn filter(&self, control: &Control) -> Result<Option<i64>> {
        if self.session.listener.is_some() {
            return Ok(None);
        }
        let program = Control::ranges_address() + 1024;
        process_vm::write(self.pid, program, &seccomp::program(program, self.session.own_fds))?;
        let result = self.install(control, seccomp::INSTALL_FLAGS as i64, program)?;
        self.filtered(result).map(Some)
    }

    /// The listener of the filter that was asked for.
    fn filtered(&self, result: i64) -> Result<i64> {
        const BUSY: i64 = -16;
        if result == BUSY {
            let object = format!("process {}", self.pid);
            let why = "its system calls are answered by another process already: what started it was recorded with \
                       -p, or it is in a sandbox";
            return Err(Error::new(Kind::Unsupported, "trace", object, why)
                .advise("start it from another shell, or use --backend sample"));
        }
        self.check("filter the system calls of", result)
    }

    /// Moves them to numbers that the program does not use, and lets it have as many as before.
    fn move_up(
        &self,
        control: &Control,
        limit: Limit,
        opened: &[i64],
        listener: Option<i64>,
    ) -> Result<Vec<i64>> {
        let own = i64::from(limit.first);
        const DUPLICATE: i64 = 0;
        const DUPLICATE_CLOEXEC: i64 = 1030;
        let mut calls: Vec<Call> =
            opened.iter().map(|&fd| call(FCNTL, [fd, DUPLICATE_CLOEXEC, own])).collect();
        // The listener stays open over exec: the next program inherits the filter.
        calls.extend(listener.map(|fd| call(FCNTL, [fd, DUPLICATE, own])));
        let duplicates = self.injection.list(control, &calls)?;
        let low: Vec<i64> = opened.iter().copied().chain(listener).collect();
        self.close(control, &low)?;
        limit.restore(self.pid, self.injection, control)?;
        duplicates
            .iter()
            .map(|&fd| {
                let fd = self.check("open descriptors in", fd)?;
                if fd < own + i64::from(seccomp::OWN_DESCRIPTORS) {
                    return Ok(fd);
                }
                let why = format!("it uses descriptor {own} and following itself");
                Err(Error::new(Kind::Busy, "trace", format_args!("process {}", self.pid), why))
            })
            .collect()
    }

    /// Lets the program have descriptors as high as ours. Where its hard limit is lower and may not be raised (without
    /// CAP_SYS_RESOURCE), ours are the last that it allows, and a filter keeps the program from closing them.
    fn raise_limit(&self, control: &Control) -> Result<Limit> {
        let needed = u64::from(self.session.own_fds + seccomp::OWN_DESCRIPTORS);
        let text = Control::ranges_address() as i64;
        let get = call(PRLIMIT, [0, DESCRIPTORS, 0, text]);
        let got = self.injection.list(control, &[get])?[0];
        self.check("read the limits of", got)?;
        let mut words = [0; 16];
        process_vm::read(self.pid, text as u64, &mut words)?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| words[at + byte]));
        let (soft, hard) = (word(0), word(8));
        let own = DescriptorLimit { soft, hard };
        if soft >= needed {
            return Ok(Limit { first: self.session.own_fds, own, raised: None, among: false });
        }
        let all = DescriptorLimit { soft: needed, hard: needed };
        if hard >= needed || set_descriptor_limit(self.pid, all).is_ok() {
            let raised = DescriptorLimit { soft: needed, hard: hard.max(needed) };
            let first = self.session.own_fds;
            let limit = Limit { first, own, raised: Some(raised), among: false };
            if hard >= needed {
                limit.set(self.pid, self.injection, control, raised)?;
            }
            return Ok(limit);
        }
        let ours = u64::from(seccomp::OWN_DESCRIPTORS);
        // As many for the program, at least, and while they are opened as many more.
        if hard < 3 * ours {
            let object = format_args!("process {}", self.pid);
            let why = format!("it may have {hard} descriptors only, and it may not have more");
            return Err(Error::new(Kind::Unsupported, "trace", object, why)
                .advise("raise the limit (ulimit -Hn), or run as root with CAP_SYS_RESOURCE"));
        }
        let first = (hard - ours) as u32;
        let raised = DescriptorLimit { soft: hard, hard };
        let limit = Limit { first, own, raised: Some(raised), among: true };
        limit.set(self.pid, self.injection, control, raised)?;
        Ok(limit)
    }
}

/// A number for our descriptors that programs do not reach, within what the kernel allows a process.
pub(crate) fn own_descriptors() -> Result<u32> {
    let hard = descriptor_limit(Pid::own())?.hard;
    Ok((hard.min(1 << 14) as u32).saturating_sub(seccomp::OWN_DESCRIPTORS).max(64))
}
