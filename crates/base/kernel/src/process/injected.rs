//! Code of ours that lives in a traced program (`injected/injected.c`), and the page of memory through
//! which it is talked to.
//!
//! ```text
//!  0x550000000000   code       mapped from a file in memory, execute only what is ours
//!  0x550000010000   Control    the same file, shared with the tracer
//!  …                stacks     at the end of it: lists, injector, mapper
//! ```
//!
//! Always true: the layout of [`Control`] is the one of `struct control` (both sides assert it); all of
//! its fields are atomics, so reading what the other side writes is never a data race.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagemill_model::{PageRange, Pid};

use crate::memory::mapped::Mapped;
use crate::memory::pagemap::Region;
use crate::{Error, Kind, Result};

mod built {
    //! What `build.rs` compiled.
    include!(concat!(env!("OUT_DIR"), "/injected.rs"));
}

/// Where the code stands in the program: below the place of position-independent programs, so that it splits neither of
/// the two large gaps of an address space. The detectors of compilers count it as the program's, too.
pub const CODE: u64 = 0x5500_0000_0000;
/// Where [`Control`] stands in the program.
pub const CONTROL: u64 = CODE + CONTROL_OFFSET;
/// Bytes between the code and the control page, in memory and in the file.
pub const CONTROL_OFFSET: u64 = 0x1_0000;
/// First address after the stacks.
pub const END: u64 = CONTROL + CONTROL_BYTES;
/// Where a copy of the words that the program was started with may stand.
pub const ARGUMENTS: u64 = CODE + (1 << 28);
/// First address after that.
pub const ARGUMENTS_END: u64 = ARGUMENTS + (16 << 20);
/// First address after what is kept free for memory of ours: the ring of allocations stands in it.
pub const OURS_END: u64 = CODE + (1 << 32);
/// Bytes of the control page and the stacks behind it.
pub const CONTROL_BYTES: u64 = 1 << 20;

const STACK: u64 = 1 << 16;
/// Stack of [`LIST`].
pub const LIST_STACK: u64 = END - 2 * STACK - 64;
/// Stack of the injector.
pub const INJECTOR_STACK: u64 = END - STACK - 64;
/// Stack of the mapper.
pub const MAPPER_STACK: u64 = END - 64;

/// Entry: clones; the child becomes the injector (`r12` is 0) or the mapper (1), the parent goes on at `r15`.
pub const CLONE: u64 = CODE;
/// Entry: runs the commands of the list, then goes on at `r15`.
pub const LIST: u64 = CODE + 64;
/// Entry: one system call, then on at `r15`.
pub const SYSCALL: u64 = CODE + 128;
/// Entry: `inside`, a function of the C interface that threads of the program call for a plain mmap or munmap.
pub const INSIDE: u64 = CODE + 192;

/// Address ranges in one batch of [`Control::ranges`].
pub const RANGES: usize = 4096;
/// Commands in a batch.
pub const COMMANDS: usize = 128;
/// Regions that the log holds.
pub const LOG: usize = 8192;
/// Parts of programs' images that are remembered.
const SEGMENTS: usize = 1024;
const SCAN: usize = 512;
const HOLES: usize = 64;

/// In the lock: whoever had it was killed. FUTEX_OWNER_DIED.
const DIED: u32 = 0x4000_0000;

/// The machine code, or why this build has none.
///
/// # Errors
/// [`Kind::Unsupported`], with the reason.
pub fn code() -> Result<&'static [u8]> {
    built::CODE.map_err(|why| {
        Error::new(Kind::Unsupported, "use", "the code for traced programs", why)
            .advise("rebuild on x86-64 with a C compiler (run: apt-get install gcc)")
    })
}

/// A system call for the program to make: its number, six arguments, and what it returned.
#[repr(C)]
#[derive(Debug)]
pub struct Command {
    argument: [AtomicI64; 7],
    result: AtomicI64,
}

impl Command {
    fn set(&self, call: &[i64; 7]) {
        for (word, value) in self.argument.iter().zip(call) {
            word.store(*value, Ordering::Relaxed);
        }
    }
}

/// Two words: start and length.
#[repr(C)]
#[derive(Debug)]
pub struct Range(AtomicU64, AtomicU64);

impl Range {
    /// Sets start and length.
    pub fn set(&self, pages: PageRange) {
        self.0.store(pages.start, Ordering::Relaxed);
        self.1.store(pages.bytes(), Ordering::Relaxed);
    }
}

/// A part of the memory file that holds a part of a program's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where in the memory file.
    pub at: u64,
    /// Bytes.
    pub length: u64,
    /// The image's inode.
    pub inode: u64,
    /// Where in the image.
    pub from: u64,
}

/// The twin of `struct segment`.
#[repr(C)]
#[derive(Debug)]
struct Segment([AtomicU64; 4]);

/// A [`Region`] of touched pages: first address, end, categories of `PAGEMAP_SCAN`.
#[repr(C)]
#[derive(Debug)]
struct Logged([AtomicU64; 3]);

impl Logged {
    fn get(&self) -> Region {
        let [start, end, categories] = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        Region { start, end, categories }
    }
}

/// A notification that the mapper passes on (`struct seccomp_notif`).
#[repr(C)]
#[derive(Debug)]
pub struct Notification {
    /// Names the notification in the answer.
    pub id: AtomicU64,
    /// Thread that makes the call.
    pub pid: AtomicU32,
    flags: AtomicU32,
    /// Number of the system call; -1: the log is full.
    pub number: AtomicI32,
    architecture: AtomicU32,
    instruction: AtomicU64,
    /// Arguments of the call.
    pub argument: [AtomicU64; 6],
}

impl Notification {
    /// Sets what the code decides by.
    fn set(&self, id: u64, thread: Pid, number: i32, argument: [u64; 6]) {
        self.id.store(id, Ordering::Relaxed);
        self.pid.store(thread.0, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        for (word, value) in self.argument.iter().zip(argument) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

/// What became of a notification that the injector decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It was answered.
    Answered,
    /// It is the tracer's to answer.
    Left,
    /// The mapper is deciding another: ask again.
    Busy,
}

/// The twin of `struct control`.
#[repr(C)]
#[derive(Debug)]
#[expect(missing_docs, reason = "injected.c says what each is for")]
pub struct Control {
    request: AtomicU32,
    done: AtomicU32,
    count: AtomicU32,
    pub injector_ready: AtomicU32,
    pub mapper_ready: AtomicU32,
    forward: AtomicU32,
    pub process: AtomicI32,
    pub memory_fd: AtomicI32,
    pub userfault_fd: AtomicI32,
    pub pagemap_fd: AtomicI32,
    pub maps_fd: AtomicI32,
    pub listener_fd: AtomicI32,
    pub wake_fd: AtomicI32,
    pub own_fds: AtomicI32,
    pub device_major: AtomicU32,
    pub device_minor: AtomicU32,
    pub inode: AtomicU64,
    pub next_offset: AtomicU64,
    pub break_start: AtomicU64,
    pub break_end: AtomicU64,
    pub break_offset: AtomicU64,
    segment_count: AtomicU32,
    log_tail: AtomicU32,
    log_head: AtomicU32,
    pub frozen: AtomicU32,
    orphan: AtomicU32,
    pub tracer: AtomicU32,
    leave: AtomicU32,
    pub apart: AtomicU32,
    pub untraced: AtomicU64,
    pub handled: AtomicU64,
    pub notification: Notification,
    response: [AtomicU64; 3],
    segments: [Segment; SEGMENTS],
    log: [Logged; LOG],
    scan: [Logged; SCAN],
    commands: [Command; COMMANDS],
    list: [Command; COMMANDS],
    pub ranges: [Range; RANGES],
    foreign: Notification,
    lock: AtomicU32,
    pub arm: AtomicU32,
    put_off_bytes: AtomicU64,
    split: AtomicU64,
    put_off_count: AtomicU64,
    put_off: [Range; HOLES],
    pub stack: AtomicU64,
}

impl Control {
    /// Where [`Control::ranges`] stands in the program.
    pub const fn ranges_address() -> u64 {
        CONTROL + std::mem::offset_of!(Control, ranges) as u64
    }

    /// Where the call stands in the program that its mapper received last.
    pub(crate) const fn notification_address() -> u64 {
        CONTROL + std::mem::offset_of!(Control, notification) as u64
    }

    /// Where the word stands in the program that says how far it has been let go without a tracer.
    pub(crate) const fn orphan_address() -> u64 {
        CONTROL + std::mem::offset_of!(Control, orphan) as u64
    }

    /// Puts calls into the list that [`LIST`] runs. At most [`COMMANDS`].
    pub fn set_list(&self, calls: &[[i64; 7]]) {
        for (command, call) in self.list.iter().zip(calls) {
            command.set(call);
        }
        self.count.store(calls.len().min(COMMANDS) as u32, Ordering::Release);
    }

    /// What the first `count` calls of the list returned.
    pub fn list_results(&self, count: usize) -> Vec<i64> {
        self.list.iter().take(count).map(|command| command.result.load(Ordering::Acquire)).collect()
    }

    /// Has the injector make these calls (at most [`COMMANDS`]) and returns what they returned. An error
    /// if it does not answer within `limit`, or is not `alive`, which is asked while it is waited for.
    ///
    /// # Errors
    /// It does not answer within `limit`, or is not `alive`.
    pub fn serve(
        &self,
        calls: &[[i64; 7]],
        limit: Duration,
        alive: &dyn Fn() -> bool,
    ) -> Result<Vec<i64>> {
        crate::process::heartbeat::beat();
        for (command, call) in self.commands.iter().zip(calls) {
            command.set(call);
        }
        let count = calls.len().min(COMMANDS);
        self.count.store(count as u32, Ordering::Relaxed);
        let request = self.request.load(Ordering::Relaxed).wrapping_add(1);
        self.request.store(request, Ordering::Release);
        futex_wake(&self.request);
        let end = Instant::now() + limit;
        futex_wait_for(&self.done, request, Duration::from_millis(20));
        loop {
            let done = self.done.load(Ordering::Acquire);
            if done == request {
                break;
            }
            let why = match alive() {
                false => "it has ended",
                true if Instant::now() >= end => "it does not answer",
                true => {
                    futex_wait(&self.done, done, Duration::from_millis(20));
                    continue;
                }
            };
            return Err(Error::new(Kind::Gone, "ask", "the injector of the program", why));
        }
        Ok(self
            .commands
            .iter()
            .take(count)
            .map(|command| command.result.load(Ordering::Acquire))
            .collect())
    }

    /// Has the injector decide a notification of its process that another one's mapper received; `now`: or one that is
    /// the tracer's to answer, who waits meanwhile.
    ///
    /// # Errors
    /// As of `serve`.
    pub fn decide(
        &self,
        id: u64,
        thread: Pid,
        number: i32,
        argument: [u64; 6],
        now: bool,
        serve: impl FnOnce(&[[i64; 7]]) -> Result<Vec<i64>>,
    ) -> Result<Decided> {
        let command = if now { -3 } else { -2 };
        self.foreign.set(id, thread, number, argument);
        Ok(match serve(&[[command, 0, 0, 0, 0, 0, 0]])?[0] {
            1 => Decided::Left,
            3 => Decided::Busy,
            _ => Decided::Answered,
        })
    }

    /// The parts of the memory file that hold parts of programs' images.
    pub fn images(&self) -> Vec<Image> {
        let count = self.segment_count.load(Ordering::Acquire) as usize;
        let words = |segment: &Segment| {
            let [at, length, inode, from] = &segment.0;
            let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
            Image { at: word(at), length: word(length), inode: word(inode), from: word(from) }
        };
        self.segments.iter().take(count).map(words).collect()
    }

    /// Waits until `word` is not 0.
    ///
    /// # Errors
    /// [`Kind::Gone`] if that takes longer than `limit`.
    pub fn wait_ready(&self, word: &AtomicU32, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while word.load(Ordering::Acquire) == 0 {
            if Instant::now() >= end {
                return Err(Error::new(
                    Kind::Gone,
                    "start",
                    "the injector of the program",
                    "it does not come up",
                ));
            }
            futex_wait(word, 0, Duration::from_millis(5));
        }
        Ok(())
    }

    /// Whether the mapper waits for an answer of the tracer.
    pub fn asks(&self) -> bool {
        self.forward.load(Ordering::Acquire) == 1
    }

    /// The number of the call that the mapper or the injector answered last; 0: none.
    pub fn answered_last(&self) -> u64 {
        self.response[0].load(Ordering::Relaxed)
    }

    /// Lets the mapper go on.
    pub fn answered(&self) {
        self.forward.store(2, Ordering::Release);
        futex_wake(&self.forward);
    }

    /// The mapper is to end, not in the middle of a call: it is to be sent SIGALRM.
    pub fn dismiss_mapper(&self) {
        self.leave.store(1, Ordering::Release);
    }

    /// The memory is the program's own again: all of its calls go on as they are.
    pub fn leave_alone(&self) {
        self.orphan.store(2, Ordering::Release);
    }

    /// The tracer has given up: whoever waits for its answer is let go, memory private and over the file.
    pub fn abandon(&self) {
        self.tracer.store(0, Ordering::Release);
        futex_wake(&self.forward);
    }

    /// Before another injector and mapper are started in place of those that have ended.
    pub fn begin_again(&self) {
        self.notification.set(0, Pid(0), 0, [0; 6]);
        let words =
            [&self.injector_ready, &self.mapper_ready, &self.forward, &self.lock, &self.leave];
        for word in words {
            word.store(0, Ordering::Release);
        }
    }

    /// Takes the touched pages out of the log.
    pub fn take_log(&self) -> Vec<Region> {
        let tail = self.log_tail.load(Ordering::Acquire);
        let head = self.log_head.load(Ordering::Relaxed);
        let count = tail.wrapping_sub(head);
        let entry = |index: u32| self.log[head.wrapping_add(index) as usize % LOG].get();
        let regions = (0..count.min(LOG as u32)).map(entry).collect();
        self.log_head.store(tail, Ordering::Release);
        regions
    }

    /// Waits until whoever was writing to the log has done so; not for long, for it may wait for us.
    pub fn wait_for_writers(&self) {
        for _ in 0..100 {
            if self.lock.load(Ordering::Acquire) & !DIED == 0 {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Keeps mapper and threads from mapping and unmapping, for as long as this lives. `None` where whoever does so now
    /// does not end soon: it was killed, or waits for us.
    pub fn alone(&self) -> Option<MappingGuard<'_>> {
        // Who finds this and us dead may take it.
        const TRACER: u32 = 0x3fff_fffe;
        let take = || {
            let held = self.lock.load(Ordering::Relaxed) & DIED;
            self.lock.compare_exchange(held, TRACER, Ordering::Acquire, Ordering::Relaxed)
        };
        (0..400).find_map(|_| match take() {
            Ok(_) => Some(MappingGuard(&self.lock)),
            Err(_) => {
                std::thread::sleep(Duration::from_micros(50));
                None
            }
        })
    }

    /// Remembers a part of a program's image, whose bytes come back when they are dropped. `false` if there is no room.
    pub fn remember_image(&self, image: Image) -> bool {
        let at = self.segment_count.load(Ordering::Acquire);
        let Some(Segment(words)) = self.segments.get(at as usize) else { return false };
        for (word, value) in words.iter().zip([image.at, image.length, image.inode, image.from]) {
            word.store(value, Ordering::Relaxed);
        }
        self.segment_count.store(at + 1, Ordering::Release);
        true
    }
}

/// Nobody else maps or unmaps ([`Control::alone`]).
#[derive(Debug)]
pub struct MappingGuard<'a>(&'a AtomicU32);

impl Drop for MappingGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Waits until `word` is `value`, or for about `limit`.
fn futex_wait_for(word: &AtomicU32, value: u32, limit: Duration) {
    let now = word.load(Ordering::Acquire);
    if now != value {
        futex_wait(word, now, limit);
    }
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: `word` is a live, aligned futex word; waking changes no memory.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

fn futex_wait(word: &AtomicU32, value: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as _,
        tv_nsec: i64::from(limit.subsec_nanos()) as _,
    };
    // SAFETY: `word` is a live, aligned futex word and `limit` outlives the call; both are only read.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &limit) };
}

/// The tracer's mapping of a [`Control`].
#[derive(Debug)]
pub struct Shared {
    memory: Mapped,
}

// SAFETY: every field of the `Control` in it is atomic.
unsafe impl Sync for Shared {}

impl Shared {
    /// Writes the code into `file`, a file in memory, and maps its control page. The file must not be
    /// truncated afterwards.
    ///
    /// # Errors
    /// As of [`code`]; the file cannot be written or mapped.
    pub fn create(file: &File) -> Result<Self> {
        use std::os::unix::fs::FileExt;
        let object = "the file for traced programs";
        file.set_len(CONTROL_OFFSET + CONTROL_BYTES)
            .map_err(|error| Error::io("size", object, error))?;
        file.write_all_at(code()?, 0).map_err(|error| Error::io("write", object, error))?;
        let memory = Mapped::file(file.as_fd(), CONTROL_OFFSET, CONTROL_BYTES as usize)
            .map_err(|error| Error::io("map", object, error))?;
        Ok(Self { memory })
    }
}

impl std::ops::Deref for Shared {
    type Target = Control;
    fn deref(&self) -> &Control {
        // SAFETY: it is page aligned, mapped for `CONTROL_BYTES` (larger than a `Control`, asserted
        // below) until drop, zero bytes are a valid `Control`, and all fields are atomics.
        unsafe { &*self.memory.start().cast() }
    }
}

const _: () = assert!(size_of::<Control>() as u64 + 3 * STACK <= CONTROL_BYTES);
const _: () = assert!(size_of::<Notification>() == 80);
// injected.c says so too.
const _: () = assert!(std::mem::offset_of!(Control, notification) == 152);
const _: () = assert!(std::mem::offset_of!(Control, log) == 33_024);
const _: () = assert!(std::mem::offset_of!(Control, commands) == 241_920);
const _: () = assert!(size_of::<Control>() == 324_984);

#[cfg(test)]
mod tests {
    use super::*;

    /// Without it every test of the tracer would be skipped.
    #[test]
    fn the_code_is_built_where_there_is_a_compiler() {
        if let (true, Err(error)) = (cfg!(target_arch = "x86_64"), code()) {
            assert!(error.to_string().contains("cannot be executed"), "{error}");
        }
    }
}
