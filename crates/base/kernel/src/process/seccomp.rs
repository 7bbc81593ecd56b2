//! `seccomp(2)`: a filter that hands some system calls of a traced program to its mapper, and the tracer's
//! end of the notifications; and a smaller one that points out calls for large memory ([`mapping_calls`]).
//!
//! ```text
//!  from our own code in the program ......................... allow
//!  mmap munmap mremap brk execve fork …, some madvise ....... notify
//!  mprotect that adds write permission ...................... notify
//!  close and dup of a descriptor of ours .................... EBADF
//!  anything else ............................................ allow
//! ```

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;

use pagemill_model::Pid;

use crate::{Error, Result, poll, process::injected};

const ALLOW: u32 = 0x7fff_0000;
const TRACE: u32 = 0x7ff0_0000;
const NOTIFY: u32 = 0x7fc0_0000;
const BAD_DESCRIPTOR: u32 = 0x0005_0000 | libc::EBADF as u32;

/// `SECCOMP_FILTER_FLAG_TSYNC_ESRCH | NEW_LISTENER | WAIT_KILLABLE_RECV | TSYNC`: for all threads, with a
/// listener, and only fatal signals interrupt a notified call.
pub const INSTALL_FLAGS: u64 = 1 << 5 | 1 << 4 | 1 << 3 | 1;

/// How many descriptors of ours there may be in a program.
pub const OWN_DESCRIPTORS: u32 = 8;

const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const INSTRUCTION_HIGH: u32 = 12;
const X86_64: u32 = 0xc000_003e;

/// Low word of argument `index`.
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// One instruction: code, jumps, operand.
type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Calls whose every use changes the address space or leaves it.
const ALWAYS: &[libc::c_long] = &[
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_clone3,
    libc::SYS_close_range,
    libc::SYS_userfaultfd,
    libc::SYS_ptrace,
];

/// Advice that drops pages, makes huge ones, or says what a fork shall do.
const ADVICE: &[i32] = &[
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    libc::MADV_DONTFORK,
    libc::MADV_DOFORK,
    libc::MADV_WIPEONFORK,
    libc::MADV_KEEPONFORK,
    24,  // MADV_DONTNEED_LOCKED
    25,  // MADV_COLLAPSE
    102, // MADV_GUARD_INSTALL
];

/// Our own code may do anything, and so may calls that are not of this machine's kind.
const BEGINNING: [Instruction; 7] = [
    (LOAD, 0, 0, INSTRUCTION_HIGH),
    (EQUAL, 0, 1, (injected::CODE >> 32) as u32),
    (RETURN, 0, 0, ALLOW),
    (LOAD, 0, 0, ARCHITECTURE),
    (EQUAL, 1, 0, X86_64),
    (RETURN, 0, 0, ALLOW),
    (LOAD, 0, 0, NUMBER),
];

/// The filter; descriptors of ours are the [`OWN_DESCRIPTORS`] from `own_fds` on.
fn instructions(own_fds: u32) -> Vec<Instruction> {
    // Blocks: each either returns or falls through to the next.
    let mut code = BEGINNING.to_vec();
    for &number in ALWAYS {
        code.extend([(EQUAL, 0, 1, number as u32), (RETURN, 0, 0, NOTIFY)]);
    }
    // Our code is brought into a program that has inherited the filter by a call of the program's own.
    let home = (injected::CODE >> 32) as u32;
    let away = [(LOAD, 0, 0, argument(0) + 4), (EQUAL, 1, 0, home), (RETURN, 0, 0, NOTIFY)];
    inspect(&mut code, libc::SYS_mmap, &away);
    inspect(
        &mut code,
        libc::SYS_mprotect,
        &[
            (LOAD, 0, 0, argument(2)),
            (ANY_BIT, 0, 1, libc::PROT_WRITE as u32),
            (RETURN, 0, 0, NOTIFY),
        ],
    );
    inspect(
        &mut code,
        libc::SYS_clone,
        &[
            (LOAD, 0, 0, argument(0)),
            (ANY_BIT, 1, 0, libc::CLONE_UNTRACED as u32),
            (ANY_BIT, 1, 0, libc::CLONE_VM as u32),
            (RETURN, 0, 0, NOTIFY),
        ],
    );
    let mut advice = vec![(LOAD, 0, 0, argument(2))];
    for &value in ADVICE {
        advice.extend([(EQUAL, 0, 1, value as u32), (RETURN, 0, 0, NOTIFY)]);
    }
    inspect(&mut code, libc::SYS_madvise, &advice);
    keep_open(&mut code, own_fds);
    code.push((RETURN, 0, 0, ALLOW));
    code
}

/// Adds a look at the arguments of a call: a block that returns, or else the call is allowed.
fn inspect(code: &mut Vec<Instruction>, number: libc::c_long, block: &[Instruction]) {
    // The block is skipped where it is another call, and whoever comes out of it is allowed.
    code.push((EQUAL, 0, (block.len() + 1) as u8, number as u32));
    code.extend(block);
    code.push((RETURN, 0, 0, ALLOW));
}

/// Descriptors of ours cannot be closed or replaced one by one.
fn keep_open(code: &mut Vec<Instruction>, own_fds: u32) {
    let own = |index: u32| {
        [
            (LOAD, 0, 0, argument(index)),
            (AT_LEAST, 0, 2, own_fds),
            (AT_LEAST, 1, 0, own_fds + OWN_DESCRIPTORS),
            (RETURN, 0, 0, BAD_DESCRIPTOR),
        ]
    };
    for (number, index) in [(libc::SYS_close, 0), (libc::SYS_dup2, 1), (libc::SYS_dup3, 1)] {
        inspect(code, number, &own(index));
    }
}

/// A filter for a program that has inherited the other one, and whose descriptors of ours stand elsewhere: from
/// `own_fds` on.
fn keeping_instructions(own_fds: u32) -> Vec<Instruction> {
    let mut code = BEGINNING.to_vec();
    keep_open(&mut code, own_fds);
    code.push((RETURN, 0, 0, ALLOW));
    code
}

/// That filter as `seccomp(2)` wants it, like [`program`].
pub fn keeping(address: u64, own_fds: u32) -> Vec<u8> {
    bytes_of(address, keeping_instructions(own_fds))
}

/// The filter as `seccomp(2)` wants it, for memory at `address` of the program: a `struct sock_fprog` and
/// the instructions behind it.
pub fn program(address: u64, own_fds: u32) -> Vec<u8> {
    bytes_of(address, instructions(own_fds))
}

fn bytes_of(address: u64, code: Vec<Instruction>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((code.len() as u64).to_ne_bytes());
    bytes.extend((address + 16).to_ne_bytes());
    for (operation, yes, no, operand) in code {
        bytes.extend(operation.to_ne_bytes());
        bytes.extend([yes, no]);
        bytes.extend(operand.to_ne_bytes());
    }
    bytes
}

/// Mappings from this size on are pointed out.
const LARGE: u32 = 1 << 20;

/// A filter for a program traced with [`crate::process::ptrace::FOLLOW_CALLS`]: `brk`, `mremap`, and `mmap` and
/// `munmap` of 1 MiB or more are stops; all else is allowed.
pub fn mapping_calls() -> Vec<libc::sock_filter> {
    let mut code: Vec<Instruction> = vec![
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, X86_64),
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, NUMBER),
    ];
    for number in [libc::SYS_brk, libc::SYS_mremap] {
        code.extend([(EQUAL, 0, 1, number as u32), (RETURN, 0, 0, TRACE)]);
    }
    code.extend([
        (EQUAL, 2, 0, libc::SYS_mmap as u32),
        (EQUAL, 1, 0, libc::SYS_munmap as u32),
        (RETURN, 0, 0, ALLOW),
        (LOAD, 0, 0, argument(1) + 4),
        (EQUAL, 1, 0, 0),
        (RETURN, 0, 0, TRACE),
        (LOAD, 0, 0, argument(1)),
        (AT_LEAST, 0, 1, LARGE),
        (RETURN, 0, 0, TRACE),
        (RETURN, 0, 0, ALLOW),
    ]);
    code.into_iter().map(|(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect()
}

const _: () = assert!(size_of::<Notified>() == 80);

#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

// _IOW('!', 2, __u64)
const ID_VALID: libc::Ioctl = 0x4008_2102;
// _IOWR('!', 1, struct seccomp_notif_resp)
const SEND: libc::Ioctl =
    (3 << 30 | (size_of::<Response>() as u64) << 16 | 0x21 << 8 | 1) as libc::Ioctl;

/// What becomes of a notified call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallReply {
    /// The kernel makes it as it was asked for.
    Continue,
    /// It returns this; a negative number is an error.
    Return(i64),
}

/// Has a caller that was asked to stop come back as from a call that it makes again (-ENOSYS).
pub const UNMADE: SyscallReply = SyscallReply::Return(-38);

/// A notified call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Notified {
    /// Names the notification in the answer.
    pub id: u64,
    /// Thread that makes the call; 0 if it is not to be seen from here.
    pub thread: Pid,
    flags: u32,
    /// Number of the system call.
    pub number: i32,
    architecture: u32,
    instruction: u64,
    /// Arguments of the call.
    pub argument: [u64; 6],
}

// _IOWR('!', 0, struct seccomp_notif)
const RECEIVE: libc::Ioctl =
    (3 << 30 | (size_of::<Notified>() as u64) << 16 | 0x21 << 8) as libc::Ioctl;

impl Notified {
    /// A call that was received.
    pub fn new(id: u64, thread: Pid, number: i32, argument: [u64; 6]) -> Self {
        Self { id, thread, number, argument, ..Self::default() }
    }

    /// As the kernel wrote it.
    pub(crate) fn of(bytes: &[u8; 80]) -> Self {
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        Self {
            id: long(0),
            thread: Pid(word(8)),
            flags: word(12),
            number: word(16) as i32,
            architecture: word(20),
            instruction: long(24),
            argument: std::array::from_fn(|index| long(32 + 8 * index)),
        }
    }
}

/// What waits at a listener: `(a call, nobody has the filter any more)`.
pub fn waits(listener: &OwnedFd) -> (bool, bool) {
    let found = poll::ready(listener, Duration::ZERO).unwrap_or(PollFlags::empty());
    (found.contains(PollFlags::IN), found.contains(PollFlags::HUP))
}

/// Receives a call that waits; `None` if its caller is gone. Waits for the next if none does, so nobody else may
/// receive from this listener now.
pub fn receive(listener: &OwnedFd) -> Option<Notified> {
    let mut notified = Notified::default();
    // SAFETY: `notified` has the layout of `struct seccomp_notif`, is zero as the call demands, and lives through it.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut notified) };
    (done == 0).then_some(notified)
}

/// Answers notification `id`. A caller that is gone is no error.
///
/// # Errors
/// The kernel refuses the answer.
pub fn answer(listener: &OwnedFd, id: u64, answer: SyscallReply) -> Result<()> {
    let mut response = match answer {
        SyscallReply::Continue => Response { id, value: 0, error: 0, flags: 1 },
        SyscallReply::Return(value) if (-4095..0).contains(&value) => {
            Response { id, value: 0, error: value as i32, flags: 0 }
        }
        SyscallReply::Return(value) => Response { id, value, error: 0, flags: 0 },
    };
    // SAFETY: `response` has the layout of `struct seccomp_notif_resp` and lives through the call.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut response) };
    if done == 0 {
        return Ok(());
    }
    let error = Error::last("answer", "a system call of the program");
    if error.errno() == Some(libc::ENOENT) { Ok(()) } else { Err(error) }
}

/// Whether notification `id` was received and is not answered yet.
pub fn is_under_way(listener: &OwnedFd, id: u64) -> bool {
    // SAFETY: the kernel reads one number, which lives through the call.
    unsafe { libc::ioctl(listener.as_raw_fd(), ID_VALID, &raw const id) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter on a call.
    fn decide(instruction_pointer: u64, number: libc::c_long, arguments: &[u64]) -> u32 {
        interpret(&instructions(1000), instruction_pointer, number, arguments)
    }

    fn interpret(
        code: &[Instruction],
        instruction_pointer: u64,
        number: libc::c_long,
        arguments: &[u64],
    ) -> u32 {
        let word = |offset: u32| -> u32 {
            match offset {
                NUMBER => number as u32,
                ARCHITECTURE => X86_64,
                INSTRUCTION_HIGH => (instruction_pointer >> 32) as u32,
                offset => {
                    let value = arguments.get((offset as usize - 16) / 8).copied().unwrap_or(0);
                    (value >> (offset as usize % 8 * 8)) as u32
                }
            }
        };
        let (mut at, mut value) = (0, 0);
        loop {
            let (operation, yes, no, operand) = code[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { yes } else { no });
            match operation {
                LOAD => value = word(operand),
                EQUAL => at += jump(value == operand),
                AT_LEAST => at += jump(value >= operand),
                ANY_BIT => at += jump(value & operand != 0),
                _ => return operand,
            }
        }
    }

    #[test]
    fn calls_that_change_the_address_space_are_notified_and_others_are_not() {
        let of = |number, arguments: &[u64]| decide(0x7f00_0000_0000, number, arguments);
        for &number in ALWAYS {
            assert_eq!(of(number, &[]), NOTIFY, "{number}");
        }
        assert_eq!(of(libc::SYS_mmap, &[0, 4096]), NOTIFY);
        assert_eq!(of(libc::SYS_mmap, &[injected::CODE, 4096]), ALLOW);
        assert_eq!(of(libc::SYS_read, &[3]), ALLOW);
        assert_eq!(of(libc::SYS_mprotect, &[0, 4096, 1]), ALLOW);
        assert_eq!(of(libc::SYS_mprotect, &[0, 4096, 3]), NOTIFY);
        assert_eq!(of(libc::SYS_clone, &[libc::CLONE_VM as u64 | 17]), ALLOW);
        assert_eq!(of(libc::SYS_clone, &[17]), NOTIFY);
        let untraced = (libc::CLONE_VM | libc::CLONE_UNTRACED) as u64;
        assert_eq!(of(libc::SYS_clone, &[untraced]), NOTIFY);
        assert_eq!(of(libc::SYS_madvise, &[0, 4096, 4]), NOTIFY);
        assert_eq!(of(libc::SYS_madvise, &[0, 4096, 14]), ALLOW);
    }

    #[test]
    fn descriptors_of_ours_cannot_be_closed() {
        let of = |number, arguments: &[u64]| decide(0x7f00_0000_0000, number, arguments);
        assert_eq!(of(libc::SYS_close, &[999]), ALLOW);
        assert_eq!(of(libc::SYS_close, &[1000]), BAD_DESCRIPTOR);
        assert_eq!(of(libc::SYS_close, &[1007]), BAD_DESCRIPTOR);
        assert_eq!(of(libc::SYS_close, &[1008]), ALLOW);
        assert_eq!(of(libc::SYS_close, &[u64::from(u32::MAX)]), ALLOW);
        assert_eq!(of(libc::SYS_dup2, &[1000, 4]), ALLOW);
        assert_eq!(of(libc::SYS_dup3, &[4, 1001]), BAD_DESCRIPTOR);
    }

    #[test]
    fn calls_for_large_memory_are_stops() {
        let code = mapping_calls().into_iter().map(|one| (one.code, one.jt, one.jf, one.k));
        let code: Vec<Instruction> = code.collect();
        let of = |number, arguments: &[u64]| interpret(&code, 0x7f00_0000_0000, number, arguments);
        assert_eq!(of(libc::SYS_brk, &[0]), TRACE);
        assert_eq!(of(libc::SYS_mremap, &[0, 4096]), TRACE);
        assert_eq!(of(libc::SYS_mmap, &[0, 1 << 20]), TRACE);
        assert_eq!(of(libc::SYS_mmap, &[0, (1 << 20) - 1]), ALLOW);
        assert_eq!(of(libc::SYS_mmap, &[0, 1 << 32]), TRACE);
        assert_eq!(of(libc::SYS_munmap, &[0, 2 << 20]), TRACE);
        assert_eq!(of(libc::SYS_munmap, &[0, 4096]), ALLOW);
        assert_eq!(of(libc::SYS_read, &[3, 2 << 20]), ALLOW);
    }

    #[test]
    fn our_own_code_may_do_anything() {
        assert_eq!(decide(injected::CODE + 130, libc::SYS_mmap, &[]), ALLOW);
    }
}
