//! `/proc/PID/stat`, `status`, `schedstat` and `children`: who a process is, what it may do and what
//! CPU time it took (proc_pid_stat(5), proc_pid_status(5)).

pub mod heartbeat;
pub mod injected;
pub mod keeper;
pub mod limits;
pub mod listening;
pub mod locked_directory;
pub mod orphans;
pub mod pidfd;
pub mod presence;
pub mod privilege;
pub mod process_vm;
pub mod psi;
#[cfg(target_arch = "x86_64")]
pub mod ptrace;
pub mod rest;
#[cfg(target_arch = "x86_64")]
pub mod scheduling;
pub mod seccomp;
pub mod signal;
pub mod stack;
pub mod supervised;
pub mod suspended;
pub mod thread;
pub mod typing;
pub mod yama;

use std::time::Duration;

use pagemill_model::Pid;

use crate::{Error, Kind, Linux, Result, kibibytes};

/// `PF_KTHREAD`: the process is a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Flag of a thread that ends (`PF_EXITING`).
const EXITING: u64 = 4;

/// The capabilities that pagemill's verbs ask for (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// `CAP_SYS_PTRACE`: look into processes of other users.
    SysPtrace = 19,
    /// `CAP_SYS_ADMIN`: among much else, `map_files` and KSM for other processes.
    SysAdmin = 21,
}

/// What `/proc/PID/stat` says of a process: identity and CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The process.
    pub pid: Pid,
    /// Name of the command, at most 15 bytes.
    pub comm: String,
    /// One letter: `R`unning, `S`leeping, `D` waiting for a disk, `Z`ombie, s`T`opped …
    pub state: char,
    /// Its parent.
    pub parent: Pid,
    /// Its process group.
    pub group: Pid,
    /// Whether it is a thread of the kernel.
    pub kernel_thread: bool,
    /// Whether it is past its last instruction.
    pub exiting: bool,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// CPU time in user mode, ended threads included; resolution one clock tick (10 ms).
    pub user: Duration,
    /// CPU time in kernel mode, likewise.
    pub system: Duration,
    /// Threads.
    pub threads: u64,
    /// An address in the stack of its first thread; 0 where the kernel hides it.
    pub stack: u64,
    /// When it started, in clock ticks since boot: with `pid` this names a process for good.
    pub started: u64,
}

/// Where the parts of a program stand in its memory, as `/proc/PID/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramLayout {
    code: [u64; 2],
    data: [u64; 2],
    /// Where what `brk` grows begins.
    pub heap: u64,
    stack: u64,
    /// The words that it was started with: start and end of its arguments, start and end of its environment.
    pub words: [u64; 4],
}

impl ProgramLayout {
    /// As `prctl(PR_SET_MM, PR_SET_MM_MAP)` takes it (struct prctl_mm_map), with the end of the heap; the auxiliary
    /// vector and the file that was executed stay what they are.
    pub fn to_bytes(&self, heap_end: u64) -> Vec<u8> {
        let heap = [self.heap, heap_end, self.stack];
        let words = self.code.iter().chain(&self.data).chain(&heap).chain(&self.words);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(0_u64.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(u32::MAX.to_ne_bytes());
        bytes
    }
}

/// What `/proc/PID/status` says of a process: memory high-water mark and permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Real user.
    pub uid: u32,
    /// Effective user.
    pub effective_uid: u32,
    /// Highest resident set so far, bytes; absent for threads of the kernel.
    pub peak_rss: Option<u64>,
    /// Resident set, bytes; pages that are mapped twice count twice.
    pub rss: Option<u64>,
    /// Anonymous memory, resident or in swap, bytes.
    pub anonymous: Option<u64>,
    /// Memory locked by `mlock`, bytes.
    pub locked: Option<u64>,
    /// Address space, bytes.
    pub address_space: Option<u64>,
    /// Page tables, bytes.
    pub page_tables: Option<u64>,
    /// Effective capabilities, one bit each.
    pub capabilities: u64,
    /// Whether it can never gain privileges through `execve`.
    pub no_new_privileges: Option<bool>,
    /// Seccomp mode: 0 off, 1 strict, 2 filter.
    pub seccomp: Option<u64>,
    /// How many seccomp filters it has (Linux 5.9).
    pub seccomp_filters: Option<u64>,
}

impl Status {
    /// Whether it holds this capability.
    pub fn can(&self, capability: Capability) -> bool {
        self.capabilities >> (capability as u8) & 1 == 1
    }
}

impl Linux {
    /// Identity and CPU time of `pid`.
    ///
    /// # Errors
    /// The process has ended, or the file is not of the form that is known.
    pub fn stat(&self, pid: Pid) -> Result<Stat> {
        self.parsed_stat(pid, parse_stat)
    }

    /// The same of a process that somebody named: one that is gone is an error in words for them.
    ///
    /// # Errors
    /// [`Kind::Gone`] for a process that is not there; the file is not of the form that is known.
    pub fn living(&self, pid: Pid) -> Result<Stat> {
        self.stat(pid).map_err(|error| match error.kind() {
            Kind::NotFound | Kind::Gone => {
                let object = format_args!("process {pid}");
                Error::new(Kind::Gone, "look at", object, "there is no such process")
            }
            _ => error,
        })
    }

    /// Whether the process of which this was told still runs: one with the same number later is another.
    pub fn runs(&self, then: &Stat) -> bool {
        let same = |now: &Stat| now.started == then.started && !matches!(now.state, 'Z' | 'X');
        self.stat(then.pid).is_ok_and(|now| same(&now))
    }

    /// Where the parts of the program that `pid` executes stand in its memory. The kernel tells who may trace it.
    ///
    /// # Errors
    /// As of [`Linux::stat`].
    pub fn layout(&self, pid: Pid) -> Result<ProgramLayout> {
        self.parsed_stat(pid, parse_layout)
    }

    fn parsed_stat<T>(&self, pid: Pid, parse: fn(&str) -> Option<T>) -> Result<T> {
        let text = self.read_of(pid, "stat")?;
        parse(&text).ok_or_else(|| {
            Error::malformed(self.process_file(pid, "stat").display(), format_args!("{text:?}"))
        })
    }

    /// Whether a thread will execute no instruction of its program any more: it is being killed, ends, or has ended.
    pub fn is_ending(&self, thread: Pid) -> bool {
        let Ok(text) = self.read_of(thread, "status") else { return true };
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let pending = field("SigPnd:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
        let killed = pending.is_some_and(|bits| bits >> (libc::SIGKILL - 1) & 1 == 1);
        killed || self.stat(thread).map_or(true, |stat| stat.exiting || "ZX".contains(stat.state))
    }

    /// Memory and permissions of `pid`.
    ///
    /// # Errors
    /// The process has ended, or the file lacks a line.
    pub fn status(&self, pid: Pid) -> Result<Status> {
        let text = self.read_of(pid, "status")?;
        parse_status(&text).ok_or_else(|| {
            Error::malformed(
                self.process_file(pid, "status").display(),
                "a documented line is missing",
            )
        })
    }

    /// All processes, in no particular order.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn processes(&self) -> Result<Vec<Pid>> {
        let proc = self.path("/proc");
        let entries =
            std::fs::read_dir(&proc).map_err(|error| Error::io("list", proc.display(), error))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    /// The process that thread `thread` belongs to.
    ///
    /// # Errors
    /// The thread has ended, or the file does not say it.
    pub fn thread_group(&self, thread: Pid) -> Result<Pid> {
        let text = self.read_of(thread, "status")?;
        let number = text.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        number.ok_or_else(|| {
            Error::malformed(self.process_file(thread, "status").display(), "there is no Tgid")
        })
    }

    /// Whether this process is in the PID namespace that the machine began with, whose numbers BPF programs are told.
    pub fn in_first_pid_namespace(&self) -> bool {
        // Its inode is fixed (PROC_PID_INIT_INO).
        let link = std::fs::read_link(self.path("/proc/self/ns/pid"));
        link.map_or(true, |link| link.as_os_str() == "pid:[4026531836]")
    }

    /// The numbers of thread `thread` in the PID namespaces that it is in: first as seen from here, last as it sees
    /// itself.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn numbers(&self, thread: Pid) -> Result<Vec<Pid>> {
        let text = self.read_of(thread, "status")?;
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let numbers = numbers.map(|text| text.split_whitespace().map(str::parse).collect());
        match numbers {
            Some(Ok(numbers)) => Ok(numbers),
            // A kernel without such namespaces.
            _ => Ok(vec![thread]),
        }
    }

    /// The children of `pid` now. Where the kernel has no `children` files
    /// (`CONFIG_PROC_CHILDREN`), all processes are asked for their parent.
    ///
    /// # Errors
    /// [`Kind::Gone`] for a process that is not there; where all are asked, `/proc` cannot be listed.
    pub fn children(&self, pid: Pid) -> Result<Vec<Pid>> {
        let tasks = self.process_file(pid, "task");
        let entries = std::fs::read_dir(&tasks)
            .map_err(|_| Error::new(Kind::Gone, "list", tasks.display(), "no such process"))?;
        let mut children = Vec::new();
        for task in entries.flatten() {
            match std::fs::read_to_string(task.path().join("children")) {
                Ok(text) => children
                    .extend(text.split_whitespace().filter_map(|pid| pid.parse::<Pid>().ok())),
                Err(_) if !task.path().exists() => {} // The thread has ended meanwhile.
                Err(_) => return self.children_by_parent(pid),
            }
        }
        Ok(children)
    }

    /// These processes, what they have started, and theirs, as they are now: parents before their children.
    pub fn descendants(&self, roots: &[Pid]) -> Vec<Pid> {
        let mut all: Vec<Pid> = roots.to_vec();
        let mut at = 0;
        while let Some(&pid) = all.get(at) {
            // One that has ended meanwhile has none.
            let children = self.children(pid).unwrap_or_default();
            let fresh: Vec<Pid> =
                children.into_iter().filter(|child| !all.contains(child)).collect();
            all.extend(fresh);
            at += 1;
        }
        all
    }

    fn children_by_parent(&self, parent: Pid) -> Result<Vec<Pid>> {
        let is_child = |pid: &Pid| self.stat(*pid).is_ok_and(|stat| stat.parent == parent);
        Ok(self.processes()?.into_iter().filter(is_child).collect())
    }

    /// The thread of the kernel with this name, if it is visible from this PID namespace.
    ///
    /// # Errors
    /// `/proc` cannot be listed.
    pub fn kernel_thread(&self, comm: &str) -> Result<Option<Pid>> {
        let is_it =
            |pid: &Pid| self.stat(*pid).is_ok_and(|stat| stat.kernel_thread && stat.comm == comm);
        Ok(self.processes()?.into_iter().find(is_it))
    }

    /// CPU time of a process with one thread, such as one of the kernel's: exact where the kernel
    /// keeps scheduler statistics, in clock ticks elsewhere.
    ///
    /// # Errors
    /// The process has ended.
    pub fn thread_cpu(&self, pid: Pid) -> Result<Duration> {
        let exact = self.read_of(pid, "schedstat").ok();
        let exact = exact.and_then(|text| text.split(' ').next()?.parse().ok());
        match exact {
            Some(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
            None => self.stat(pid).map(|stat| stat.user + stat.system),
        }
    }

    /// How long the threads of a process were ready and waited for a CPU, all but thread `other`; `None` where the
    /// kernel keeps no scheduler statistics, or for more than `most` threads, each of which takes microseconds to ask.
    pub fn waited(&self, pid: Pid, other: Pid, most: usize) -> Option<Duration> {
        let tasks = std::fs::read_dir(self.process_file(pid, "task")).ok()?;
        let mut waited = 0_u64;
        for (number, task) in tasks.flatten().enumerate() {
            if number >= most {
                return None;
            }
            if task.file_name().to_str().and_then(|name| name.parse().ok()) == Some(other) {
                continue;
            }
            // A thread that has ended meanwhile takes what it waited with it.
            let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            waited = waited.saturating_add(text.split(' ').nth(1)?.parse().ok()?);
        }
        Some(Duration::from_nanos(waited))
    }
}

/// Whose resources are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageScope {
    /// The calling thread's.
    ThisThread,
    /// Those of children of this process that have ended and been waited for, and theirs.
    EndedChildren,
}

/// The kernel's account of what was used (getrusage(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU time in user mode.
    pub user: Duration,
    /// CPU time in kernel mode.
    pub system: Duration,
    /// Page faults, minor and major together.
    pub faults: u64,
    /// The most that was resident of one process at a time, bytes.
    pub resident: u64,
}

/// What was used so far.
pub fn resources(whose: UsageScope) -> Resources {
    let who = match whose {
        UsageScope::ThisThread => libc::RUSAGE_THREAD,
        UsageScope::EndedChildren => libc::RUSAGE_CHILDREN,
    };
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writes of its type; zeroed is a valid `rusage` should the call fail.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec.max(0) as u64, time.tv_usec.clamp(0, 999_999) as u32 * 1000)
    };
    Resources {
        user: time(usage.ru_utime),
        system: time(usage.ru_stime),
        faults: (usage.ru_minflt + usage.ru_majflt).max(0) as u64,
        // KiB.
        resident: (usage.ru_maxrss.max(0) as u64).saturating_mul(1024),
    }
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name is in parentheses and may hold anything, parentheses included.
    let (pid, rest) = text.split_once(" (")?;
    let (comm, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Numbered as in proc_pid_stat(5), where the state is field 3.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let pid_of = |field| u32::try_from(number(field)?).ok().map(Pid);
    Some(Stat {
        pid: pid.parse().ok()?,
        comm: comm.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: pid_of(4)?,
        group: pid_of(5)?,
        kernel_thread: number(9)? & KERNEL_THREAD != 0,
        exiting: number(9)? & EXITING != 0,
        minor_faults: number(10)?,
        major_faults: number(12)?,
        user: ticks(number(14)?),
        system: ticks(number(15)?),
        threads: number(20)?,
        stack: number(28).unwrap_or(0),
        started: number(22)?,
    })
}

fn parse_layout(text: &str) -> Option<ProgramLayout> {
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(ProgramLayout {
        code: [number(26)?, number(27)?],
        data: [number(45)?, number(46)?],
        heap: number(47)?,
        stack: number(28)?,
        words: [number(48)?, number(49)?, number(50)?, number(51)?],
    })
}

/// Clock ticks as time.
fn ticks(count: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_nanos(count.saturating_mul(1_000_000_000 / per_second))
}

fn parse_status(text: &str) -> Option<Status> {
    let value = |key: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim()))
    };
    let bytes = |key| kibibytes(value(key)?);
    let mut uids = value("Uid")?.split_whitespace();
    Some(Status {
        uid: uids.next()?.parse().ok()?,
        effective_uid: uids.next()?.parse().ok()?,
        peak_rss: bytes("VmHWM"),
        rss: bytes("VmRSS"),
        anonymous: bytes("RssAnon").map(|rss| rss.saturating_add(bytes("VmSwap").unwrap_or(0))),
        locked: bytes("VmLck"),
        address_space: bytes("VmSize"),
        page_tables: bytes("VmPTE"),
        capabilities: u64::from_str_radix(value("CapEff")?, 16).ok()?,
        no_new_privileges: value("NoNewPrivs").map(|bit| bit == "1"),
        seccomp: value("Seccomp").and_then(|mode| mode.parse().ok()),
        seccomp_filters: value("Seccomp_filters").and_then(|count| count.parse().ok()),
    })
}

/// Whether two threads have one memory, not two (kcmp(2)). `None` where the kernel does not tell.
pub fn same_memory(one: Pid, other: Pid) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: the call takes numbers only.
    let answer = unsafe { libc::syscall(libc::SYS_kcmp, one.0, other.0, KCMP_VM, 0, 0) };
    (answer >= 0).then_some(answer == 0)
}

/// How many descriptors a process may have (`RLIMIT_NOFILE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// The limit in force.
    pub soft: u64,
    /// How far the process may raise it.
    pub hard: u64,
}

/// How many descriptors process `pid` may have.
///
/// # Errors
/// The process has ended, or may not be asked.
pub fn descriptor_limit(pid: Pid) -> Result<DescriptorLimit> {
    limit(pid, libc::RLIMIT_NOFILE, None)
        .map(|limit| DescriptorLimit { soft: limit.rlim_cur, hard: limit.rlim_max })
        .map_err(|error| Error::io("read", format_args!("the limits of process {pid}"), error))
}

/// Sets how many descriptors process `pid` may have.
///
/// # Errors
/// The process has ended or may not be changed, or the limit is higher than the caller may set.
pub fn set_descriptor_limit(pid: Pid, limit: DescriptorLimit) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    self::limit(pid, libc::RLIMIT_NOFILE, Some(&limit))
        .map(drop)
        .map_err(|error| Error::io("set", format_args!("the limits of process {pid}"), error))
}

/// Limits of a process on its memory, raised as far as the caller may until this is dropped: for mappings that are not
/// the program's doing.
#[derive(Debug)]
pub struct LimitGuard {
    pid: Pid,
    were: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
}

impl LimitGuard {
    /// Those of `pid`.
    pub fn of(pid: Pid) -> Self {
        let mut were = Vec::new();
        for resource in [libc::RLIMIT_AS, libc::RLIMIT_DATA] {
            let Ok(was) = limit(pid, resource, None) else { continue };
            let to = |most| libc::rlimit { rlim_cur: most, rlim_max: most };
            let raised = || {
                let mut most = [u64::MAX, was.rlim_max].into_iter();
                most.any(|most| limit(pid, resource, Some(&to(most))).is_ok())
            };
            if was.rlim_cur != u64::MAX && raised() {
                were.push((resource, was));
            }
        }
        Self { pid, were }
    }
}

impl Drop for LimitGuard {
    fn drop(&mut self) {
        for (resource, was) in &self.were {
            // It may have ended.
            let _ = limit(self.pid, *resource, Some(was));
        }
    }
}

/// A limit of a process, as it was before it was set to a new one, if there is one.
fn limit(
    pid: Pid,
    resource: libc::__rlimit_resource_t,
    new: Option<&libc::rlimit>,
) -> std::io::Result<libc::rlimit> {
    let mut was = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the new limit, if any, is only read; `was` is valid for writes.
    match unsafe { libc::prlimit(pid.0 as libc::pid_t, resource, new, &mut was) } {
        0 => Ok(was),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_confuse_the_fields() {
        let text = "7 (a) R (b) S 2 3 4 0 -1 2097216 10 0 11 0 250 50 0 0 25 5 6 0 23 0 0 1";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.pid, stat.comm.as_str(), stat.state), (Pid(7), "a) R (b", 'S'));
        assert_eq!((stat.parent, stat.group, stat.started), (Pid(2), Pid(3), 23));
        assert_eq!(
            (stat.user, stat.system),
            (Duration::from_millis(2500), Duration::from_millis(500))
        );
        assert_eq!((stat.minor_faults, stat.major_faults, stat.threads), (10, 11, 6));
        assert!(stat.kernel_thread);
    }

    #[test]
    fn the_merging_thread_is_found_by_name_and_by_being_the_kernels() {
        let linux = fixtures::debian();
        assert_eq!(linux.kernel_thread("ksmd").unwrap(), Some(fixtures::KSMD));
        assert_eq!(linux.kernel_thread("sleep").unwrap(), None, "a program is no kernel thread");
    }

    #[test]
    fn the_status_of_a_real_process_reads() {
        let status = fixtures::debian().status(fixtures::PROCESS).unwrap();
        assert_eq!((status.uid, status.effective_uid), (0, 0));
        assert_eq!((status.seccomp, status.seccomp_filters), (Some(0), Some(0)));
        assert!(status.can(Capability::SysAdmin) && status.can(Capability::SysPtrace));
        assert!(status.peak_rss >= status.rss);
        assert!(status.anonymous > Some(4096) && status.rss >= Some(4096));
    }

    #[test]
    fn cpu_time_of_this_process_grows_with_work() {
        let linux = Linux::live();
        let me = Pid::own();
        let before = linux.stat(me).unwrap();
        let mut sum = 0_u64;
        while linux.stat(me).unwrap().user + linux.stat(me).unwrap().system
            < before.user + before.system + Duration::from_millis(30)
        {
            (0..100_000_u64).for_each(|i| sum = std::hint::black_box(sum ^ i));
        }
        assert_eq!(linux.stat(me).unwrap().started, before.started);
    }

    #[test]
    fn a_child_is_among_the_children_of_this_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let linux = Linux::live();
        let me = Pid::own();
        assert!(linux.children(me).unwrap().contains(&Pid(child.id())));
        assert!(linux.children_by_parent(me).unwrap().contains(&Pid(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(linux.stat(Pid(child.id())).unwrap_err().kind(), Kind::Gone);
    }
}
