//! Calls that do not come to the same everywhere: what becomes of them depends on where the memory of their process is.
//!
//! ```text
//!  a fork          the child must not write its parent's memory, so none may be shared with a file of ours
//!  dropped pages   are to read as zeros, not as what a file of ours holds
//! ```

use pagemill_model::Pid;

use crate::Linux;
use crate::process::seccomp::{Notified, SyscallReply};

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

/// Whether an injector or a mapper lives beside a process: it shares its memory.
pub(super) fn helped(process: Pid) -> bool {
    let linux = Linux::live();
    let lives = |pid: Pid| linux.stat(pid).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'));
    let shares = |child: &Pid| crate::process::same_memory(*child, process) == Some(true);
    let children = linux.children(process).unwrap_or_default();
    children.iter().any(|child| lives(*child) && shares(child))
}

/// Whether a process has memory that is shared with a file of ours.
pub(super) fn is_shared(notified: &Notified) -> bool {
    let maps = Linux::live().maps(notified.thread).unwrap_or_default();
    maps.iter().any(|mapping| mapping.shared && mapping.name.as_bytes().starts_with(OURS))
}

/// Advice that drops pages.
pub(super) fn drops(notified: &Notified) -> bool {
    const DONT_NEED_LOCKED: u64 = 24;
    i64::from(notified.number) == libc::SYS_madvise
        && [libc::MADV_DONTNEED as u64, DONT_NEED_LOCKED].contains(&notified.argument[2])
}

/// Whether what becomes of a call depends on where the memory of its process is.
pub(super) fn depends(notified: &Notified) -> bool {
    (drops(notified) || forks(notified)) && holds(notified.thread)
}

/// A call goes on as it is, but two, where all that ran for us in a process was killed and nothing else could be done.
/// Memory over the file that our programs have would read as the file's bytes after `MADV_DONTNEED`, not as zeros: that
/// is advice, and it is not taken. And a forked child would share the memory that was shared with the file: there is
/// none.
pub(super) fn answer(notified: &Notified) -> SyscallReply {
    if !depends(notified) {
        return SyscallReply::Continue;
    }
    let mut maps = Linux::live().maps(notified.thread).unwrap_or_default();
    maps.retain(|mapping| mapping.name.as_bytes().starts_with(OURS));
    let [start, length, ..] = notified.argument;
    let end = start.saturating_add(length);
    if drops(notified) && maps.iter().any(|mapping| mapping.start < end && start < mapping.end) {
        SyscallReply::Return(-i64::from(libc::EINVAL))
    } else if forks(notified) && is_shared(notified) {
        SyscallReply::Return(-i64::from(libc::EAGAIN))
    } else {
        SyscallReply::Continue
    }
}

/// Whether a call makes a process with a copy of the memory.
pub(super) fn forks(notified: &Notified) -> bool {
    let flags = match i64::from(notified.number) {
        libc::SYS_fork => Some(0),
        libc::SYS_clone => Some(notified.argument[0]),
        libc::SYS_clone3 => {
            let mut flags = [0; 8];
            let read =
                crate::process::process_vm::read(notified.thread, notified.argument[0], &mut flags);
            read.ok().map(|()| u64::from_ne_bytes(flags))
        }
        _ => None,
    };
    flags.is_some_and(|flags| flags & libc::CLONE_VM as u64 == 0)
}

/// Whether a thread waits in such a call.
pub(super) fn anybody_waits() -> bool {
    let numbers = |directory: &str| -> Vec<Pid> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid)).collect()
    };
    numbers("/proc").into_iter().any(|process| {
        holds(process)
            && numbers(&format!("/proc/{process}/task"))
                .into_iter()
                .any(|thread| called(thread).is_some_and(|call| drops(&call) || forks(&call)))
    })
}

/// The call that a thread waits in.
fn called(thread: Pid) -> Option<Notified> {
    let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let mut arguments = words.map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
    let argument = std::array::from_fn(|_| arguments.next().and_then(Result::ok).unwrap_or(0));
    Some(Notified::new(0, thread, number, argument))
}
