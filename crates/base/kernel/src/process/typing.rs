//! Whether a process waits for what nobody will type (proc_pid_syscall(5), proc_pid_fdinfo(5)).
//!
//! `/proc/PID/task/TID/syscall` has the call that a thread is blocked in and its arguments. A thread *waits for typing*
//! while it is in `read`, `readv`, `poll`, `ppoll`, `select` or `pselect6` without a time limit, and all that it waits
//! to read from is the terminal of the caller, or a standard input that can only be written to (programs that find
//! their standard input empty take standard error in its place, for that is the terminal as a rule).

use std::os::unix::fs::MetadataExt as _;

use libc::c_long;
use pagemill_model::Pid;

use crate::process::process_vm;
use crate::{Error, Linux, Result};

/// The terminal of whoever opens it, `/dev/tty` (`TTYAUX_MAJOR`, 0).
const OWN: (u32, u32) = (5, 0);
/// The most descriptors of one call that are looked at.
const MOST: usize = 1024;

/// A call that a thread is blocked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    number: c_long,
    arguments: [u64; 5],
}

impl Call {
    /// As `/proc/PID/task/TID/syscall` has it; none where the thread runs, or is blocked outside of any.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok().filter(|number| *number >= 0)?;
        let mut arguments = [0; 5];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(Self { number, arguments })
    }

    /// The descriptors that it waits to read from, if it has no time limit and waits for nothing else.
    fn reads(self, pid: Pid) -> Option<Vec<i32>> {
        let [first, second, third, fourth, fifth] = self.arguments;
        // The cast keeps the low half, which is the argument.
        let number = |argument: u64| argument as i32;
        match self.number {
            libc::SYS_read | libc::SYS_readv => Some(vec![number(first)]),
            libc::SYS_ppoll if third == 0 => polled(pid, first, second),
            libc::SYS_pselect6 if fifth == 0 => selected(pid, first, [second, third, fourth]),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll if number(third) < 0 => polled(pid, first, second),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select if fifth == 0 => selected(pid, first, [second, third, fourth]),
            _ => None,
        }
    }
}

/// Descriptors of an array of `pollfd`, if all are to be read from.
fn polled(pid: Pid, at: u64, count: u64) -> Option<Vec<i32>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST)?;
    let mut bytes = vec![0; count * size_of::<libc::pollfd>()];
    process_vm::read(pid, at, &mut bytes).ok()?;
    let mut all = Vec::new();
    for entry in bytes.chunks_exact(size_of::<libc::pollfd>()) {
        let [a, b, c, d, e, f, ..] = *entry else { return None };
        let (fd, events) = (i32::from_ne_bytes([a, b, c, d]), i16::from_ne_bytes([e, f]));
        // Those below zero are passed over.
        if fd >= 0 {
            (events & libc::POLLIN != 0 && events & libc::POLLOUT == 0).then(|| all.push(fd))?;
        }
    }
    Some(all)
}

/// Descriptors of the first of three sets, of which the first `count` bits count, if the second, those to write to, is
/// empty. Editors have what they read from in the third, too.
fn selected(pid: Pid, count: u64, sets: [u64; 3]) -> Option<Vec<i32>> {
    let count = usize::try_from(count).ok().filter(|count| *count <= MOST)?;
    let members = |at: u64| -> Option<Vec<i32>> {
        if at == 0 {
            return Some(Vec::new());
        }
        let mut bytes = vec![0; count.div_ceil(8)];
        process_vm::read(pid, at, &mut bytes).ok()?;
        let is_set = |fd: &usize| bytes[fd / 8] >> (fd % 8) & 1 == 1;
        Some((0..count).filter(is_set).map(|fd| fd as i32).collect())
    };
    let [read, write, _] = sets.map(members);
    write?.is_empty().then_some(read?)
}

impl Linux {
    /// Whether a thread of `pid` waits for what nobody will type: see above.
    ///
    /// # Errors
    /// The process has ended.
    pub fn waits_for_typing(&self, pid: Pid) -> Result<bool> {
        let tasks = self.process_file(pid, "task");
        let entries =
            std::fs::read_dir(&tasks).map_err(|error| Error::io("list", tasks.display(), error))?;
        let waits = |task: std::fs::DirEntry| -> Option<bool> {
            // What the caller may not look at waits for something else, for all that is known.
            let call = Call::parse(&std::fs::read_to_string(task.path().join("syscall")).ok()?)?;
            let descriptors = call.reads(pid)?;
            let typed = |fd: &i32| self.is_typed(pid, *fd);
            Some(!descriptors.is_empty() && descriptors.iter().all(typed))
        };
        Ok(entries.flatten().any(|task| waits(task).unwrap_or(false)))
    }

    /// Whether what is read from a descriptor of `pid` would have to be typed here, or can never come.
    fn is_typed(&self, pid: Pid, fd: i32) -> bool {
        let file = std::fs::metadata(self.process_file(pid, &format!("fd/{fd}")));
        let device = file.ok().map(|file| {
            let device = file.rdev();
            (libc::major(device), libc::minor(device))
        });
        let ours = self.terminal(Pid::own());
        if ours.is_some() && (device == ours || device == Some(OWN) && self.terminal(pid) == ours) {
            return true;
        }
        let flags = |text: String| {
            let flags =
                text.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
            i32::from_str_radix(&flags, 8).ok()
        };
        let info = self.read_of(pid, &format!("fdinfo/{fd}")).ok().and_then(flags);
        fd == 0 && info.is_some_and(|flags| flags & libc::O_ACCMODE == libc::O_WRONLY)
    }

    /// The device, major and minor, of the terminal that `pid` belongs to, if there is one.
    fn terminal(&self, pid: Pid) -> Option<(u32, u32)> {
        let text = self.read_of(pid, "stat").ok()?;
        let number: i32 = text.rsplit_once(") ")?.1.split_whitespace().nth(4)?.parse().ok()?;
        // The minor number is in bits 31 to 20 and 7 to 0, the major one in bits 15 to 8 (proc_pid_stat(5)).
        let number = number as u32;
        (number != 0).then_some((number >> 8 & 0xff, number & 0xff | number >> 12 & 0xf_ff00))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_call_reads_and_what_runs_is_in_none() {
        let text = "270 0x1 0x10 0x20 0x30 0x0 0x0 0x7fff 0x7f7a\n";
        let call = Call { number: 270, arguments: [1, 16, 32, 48, 0] };
        assert_eq!(Call::parse(text), Some(call));
        assert_eq!(Call::parse("running\n"), None);
        assert_eq!(Call::parse("-1 0x7fff 0x7f7a\n"), None);
    }

    #[test]
    fn who_reads_from_a_pipe_does_not_wait_for_typing() {
        let linux = Linux::live();
        let mut shell =
            Command::new("sh").args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let (pid, begun) = (Pid(shell.id()), Instant::now());
        let reads = || {
            let text = linux.read_of(pid, "syscall").unwrap();
            Call::parse(&text).is_some_and(|call| call.number == libc::SYS_read)
        };
        while !reads() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(!linux.waits_for_typing(pid).unwrap());
        shell.kill().unwrap();
        shell.wait().unwrap();
    }

    #[test]
    fn sets_and_arrays_of_descriptors_read_as_the_kernel_takes_them() {
        let me = Pid::own();
        let (some, none) = ([0b1001_u8, 1], [0_u8, 0]);
        let [some, none] = [&some, &none].map(|set| set.as_ptr() as u64);
        assert_eq!(selected(me, 9, [some, 0, none]), Some(vec![0, 3, 8]));
        assert_eq!(selected(me, 1, [some, none, some]), Some(vec![0]));
        assert_eq!(selected(me, 9, [some, some, 0]), None, "it waits for something else, too");
        let polls = |events: i16| {
            let entry = |fd| libc::pollfd { fd, events, revents: 0 };
            let entries = [entry(3), entry(-1), entry(0)];
            polled(me, entries.as_ptr() as u64, 3)
        };
        assert_eq!(polls(libc::POLLIN), Some(vec![3, 0]));
        assert_eq!(polls(libc::POLLOUT), None);
    }
}
