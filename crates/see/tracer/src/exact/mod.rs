//! Every access of a program, by running it in an emulator that tells of each: QEMU's user-mode emulator
//! with a plugin of ours (`plugin.c`).
//!
//! The emulator translates the program's code and makes its system calls for it; its memory is the
//! program's memory, at the addresses that the emulator chose. The plugin counts loads, stores and blocks
//! of instructions by page and thread and sends what it has over a socket each time the clock enters
//! another *cell*; with cells of length 0, each access by itself.
//!
//! ```text
//!  block   magic 4 | process 4 | thread 4 | records 4          then that many records
//!  record  address 8 | instruction 8 | first 8 | last 8 | count 4 | kind 4
//!  names   magic 4 | process 4 | thread 4 | bytes 4            then that much of /proc/PID/maps
//! ```
//!
//! Always true: each access is in one record, and between its two stamps. What the emulator or the kernel
//! do to the program's memory for it is not an access of the program and is not told. Damaged or foreign
//! bytes end their connection; none of them makes us read beyond what was sent.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::{Error, Kind, Result, poll};
use pagemill_model::Pid;

include!(concat!(env!("OUT_DIR"), "/exact.rs"));

/// The emulator's name.
const EMULATOR: &str = "qemu-x86_64";
/// Pages that the probe writes.
pub const PROBED: usize = 64;
const INSTALL: &str = "run: sudo apt-get install qemu-user";

/// How memory was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// By a load.
    Read,
    /// By a store, or an instruction that does both at once.
    Write,
    /// By executing what is there.
    Execute,
    /// By the kernel, at any time from first to last: the word of a futex.
    Futex,
}

/// Accesses of one kind by one thread to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Process.
    pub process: Pid,
    /// Thread.
    pub thread: Pid,
    /// Kind.
    pub access: Access,
    /// The first byte that was accessed first.
    pub address: u64,
    /// The instruction that did it; of executions, the first of its block.
    pub instruction: u64,
    /// Not earlier than this, ns of CLOCK_MONOTONIC.
    pub first: u64,
    /// Not later than this.
    pub last: u64,
    /// How many.
    pub count: u32,
}

/// What the emulator tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmulatorEvent {
    /// Accesses.
    Use(Use),
    /// Memory of the program, from address to address.
    Range {
        /// Process.
        process: Pid,
        /// First address.
        start: u64,
        /// First address after it.
        end: u64,
        /// Readable 1, writable 2, executable 4.
        protection: u64,
    },
    /// The heap lies there now.
    Heap {
        /// Process.
        process: Pid,
        /// First address.
        start: u64,
        /// First address after it.
        end: u64,
    },
    /// An address on the stack of the first thread.
    Stack {
        /// Process.
        process: Pid,
        /// The address.
        address: u64,
    },
    /// What lies where by name: mappings, the emulator's own among them.
    Names {
        /// Process.
        process: Pid,
        /// They.
        mappings: Vec<Mapping>,
    },
    /// The process executes a program that is not emulated.
    NotFollowed {
        /// Process.
        process: Pid,
    },
}

/// The emulator with its plugin, tried.
#[derive(Debug)]
pub struct Emulator {
    program: PathBuf,
    plugin: PathBuf,
    room: PathBuf,
}

impl Emulator {
    /// Finds the emulator in `search` (as `$PATH`), puts the plugin into the directory `room`, which is to stay
    /// as long as it runs, and tries it on a program of known accesses.
    ///
    /// # Errors
    /// There is no emulator or plugin, `room` cannot be written, or the trial does not say what it should.
    pub fn install(room: &Path, search: Option<&OsStr>) -> Result<Self> {
        let program = search
            .into_iter()
            .flat_map(std::env::split_paths)
            .map(|directory| directory.join(EMULATOR))
            .find(|file| file.is_file())
            .ok_or_else(|| missing(EMULATOR, "it is not installed").advise(INSTALL))?;
        let mut last = missing(EMULATOR, "it was not tried");
        for (name, plugin) in [("1.so", PLUGIN_1), ("2.so", PLUGIN_2)] {
            let plugin = place(room, name, plugin)?;
            let emulator = Self { program: program.clone(), plugin, room: room.to_owned() };
            match emulator.probe() {
                Ok(()) => return Ok(emulator),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The emulator's file.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Whether the pages that the probe writes are told, and no other writes to them.
    fn probe(&self) -> Result<()> {
        let probe = place(&self.room, "probe", PROBE)?;
        set_executable(&probe)?;
        let mut collector = Collector::listen(&self.room)?;
        let failed = |error| Error::io("execute", self.program.display(), error);
        let mut child = Command::new(&self.program)
            .args(
                self.words(&collector, Duration::from_millis(50), &probe, &[])?.into_iter().skip(1),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut written = std::collections::BTreeSet::new();
        let deadline = Instant::now() + crate::PATIENCE;
        let status = loop {
            let ended = child.try_wait().map_err(failed)?;
            collector.read(|told| {
                if let EmulatorEvent::Use(Use { access: Access::Write, address, .. }) = told {
                    written.insert(address / 4096);
                }
            })?;
            match ended {
                Some(status) if !collector.busy() => break status,
                _ if Instant::now() > deadline => {
                    // It may have ended a moment ago.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(missing(self.program.display(), "it does not end"));
                }
                _ => poll::sleep(&collector.descriptors(), Duration::from_millis(20))?,
            }
        };
        let mut said = String::new();
        if let Some(mut stderr) = child.stderr.take() {
            // What it says is for people only.
            let _ = stderr.read_to_string(&mut said);
        }
        if !status.success() {
            let said = said.lines().next().unwrap_or("it does not say why").to_owned();
            return Err(missing(
                self.program.display(),
                format_args!("it does not load the plugin: {said}"),
            ));
        }
        if written.len() < PROBED {
            let why = format!("the plugin told of {} of {PROBED} pages", written.len());
            return Err(missing(self.program.display(), why));
        }
        Ok(())
    }

    /// The words of a command that runs the program in the file `path` with these arguments (without its name) in the
    /// emulator, telling `collector` once a `cell`; length 0: each access. The first word is the emulator's
    /// file.
    ///
    /// # Errors
    /// A path cannot be handed to the emulator.
    pub fn words(
        &self,
        collector: &Collector,
        cell: Duration,
        path: &Path,
        arguments: &[OsString],
    ) -> Result<Vec<OsString>> {
        let mut options = self.plugin.clone().into_os_string();
        options.push(format!(",cell={},code=1,self=", cell.as_nanos()));
        options.push(&self.plugin);
        options.push(",socket=");
        options.push(&collector.path);
        let mut words = vec![self.program.clone().into(), "-plugin".into(), options];
        words.extend(interpreter(path)?);
        words.push(path.into());
        words.extend_from_slice(arguments);
        Ok(words)
    }
}

fn missing(object: impl std::fmt::Display, why: impl std::fmt::Display) -> Error {
    Error::new(Kind::Unsupported, "emulate with", object, why)
}

fn place(room: &Path, name: &str, image: std::result::Result<&[u8], &str>) -> Result<PathBuf> {
    let image = image.map_err(|why| missing(name, format_args!("this build has none: {why}")))?;
    let path = room.join(name);
    fs::write(&path, image).map_err(|error| Error::io("write", path.display(), error))?;
    Ok(path)
}

fn set_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
        .map_err(|error| Error::io("make executable", path.display(), error))
}

/// The words that stand before a script; none for a program of x86-64; an error for another file.
fn interpreter(path: &Path) -> Result<Vec<OsString>> {
    let mut head = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(256).read_to_end(&mut head))
        .map_err(|error| Error::io("read", path.display(), error))?;
    if head.starts_with(b"\x7fELF\x02\x01") && head.get(18..20) == Some(&[62, 0]) {
        return Ok(Vec::new());
    }
    let line = head.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    let Some(line) = line else {
        return Err(missing(path.display(), "it is no program of x86-64"));
    };
    let line = String::from_utf8_lossy(line).trim().to_owned();
    let (name, argument) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
    let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
    Ok([Some(name), argument].into_iter().flatten().map(Into::into).collect())
}

/// Takes in what plugins tell.
#[derive(Debug)]
pub struct Collector {
    path: PathBuf,
    listener: UnixListener,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    stream: Stream,
}

/// What a plugin sends, taken in piece by piece.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    /// Text of names, until it is whole.
    text: Vec<u8>,
}

impl Collector {
    /// Listens in the directory `room`.
    ///
    /// # Errors
    /// No socket can be made there.
    pub fn listen(room: &Path) -> Result<Self> {
        let path = room.join("socket");
        let failed = |error| Error::io("listen at", path.display(), error);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { path: path.clone(), listener, connections: Vec::new() })
    }

    /// What can be read when there is something.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let connections = self.connections.iter().map(|connection| connection.socket.as_fd());
        std::iter::once(self.listener.as_fd()).chain(connections).collect()
    }

    /// Whether a process is still connected.
    pub fn busy(&self) -> bool {
        !self.connections.is_empty()
    }

    /// Hands on what has come, at most about a mebibyte of each process.
    ///
    /// # Errors
    /// The socket cannot be listened at or read, or what came is not of the form that is known.
    pub fn read(&mut self, mut each: impl FnMut(EmulatorEvent)) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    let failed = |error| Error::io("listen at", self.path.display(), error);
                    socket.set_nonblocking(true).map_err(failed)?;
                    self.connections.push(Connection { socket, stream: Stream::default() });
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nobody waits, or who did has gone.
                Err(_) => break,
            }
        }
        self.connections.retain_mut(|connection| connection.read(&mut each));
        Ok(())
    }
}

const BLOCK: u32 = 0x3165_6770;
const NAMES: u32 = 0x326d_6e70;
const HEADER: usize = 16;
const RECORD: usize = 40;
/// More records than a plugin sends at once are not a plugin's.
const MANY: usize = 1 << 16;
/// Nor is more text about one process: the kernel allows no program so many mappings.
const TEXT: usize = 64 << 20;

impl Connection {
    /// Whether it goes on.
    fn read(&mut self, each: &mut impl FnMut(EmulatorEvent)) -> bool {
        let mut piece = [0_u8; 1 << 16];
        for _ in 0..16 {
            match self.socket.read(&mut piece) {
                Ok(0) => return false,
                Ok(length) if self.stream.take(&piece[..length], each) => {}
                Ok(_) => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

impl Stream {
    /// Takes in what came next and hands on what is whole; `false` if it is no plugin's.
    pub fn take(&mut self, piece: &[u8], each: &mut impl FnMut(EmulatorEvent)) -> bool {
        self.bytes.extend_from_slice(piece);
        let used = parse(&self.bytes, &mut self.text, each);
        self.bytes.drain(..used.unwrap_or(0));
        used.is_some()
    }
}

/// Hands on what is whole in `bytes`, and says how much of them that was; `None` if they are no plugin's.
fn parse(bytes: &[u8], text: &mut Vec<u8>, each: &mut impl FnMut(EmulatorEvent)) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..)?;
        let Some(header) = rest.get(..HEADER) else { return Some(at) };
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let (process, thread, count) = (Pid(word(4)), Pid(word(8)), word(12) as usize);
        if count > MANY {
            return None;
        }
        let length = match word(0) {
            BLOCK => count * RECORD,
            NAMES => count,
            _ => return None,
        };
        let Some(body) = rest.get(HEADER..HEADER + length) else { return Some(at) };
        at += HEADER + length;
        if word(0) == BLOCK {
            for record in body.chunks_exact(RECORD) {
                each(event_of(process, thread, record)?);
            }
        } else if count > 0 {
            (text.len() + body.len() <= TEXT).then_some(())?;
            text.extend_from_slice(body);
        } else {
            let whole = String::from_utf8_lossy(text).into_owned();
            text.clear();
            let mappings = whole.lines().filter_map(Mapping::parse).collect();
            each(EmulatorEvent::Names { process, mappings });
        }
    }
}

fn event_of(process: Pid, thread: Pid, record: &[u8]) -> Option<EmulatorEvent> {
    let long = |at: usize| Some(u64::from_ne_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_ne_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let (address, second, third) = (long(0)?, long(8)?, long(16)?);
    let access = match word(36)? {
        0 => Access::Read,
        1 => Access::Write,
        2 => Access::Execute,
        20 => Access::Futex,
        16 => {
            return Some(EmulatorEvent::Range {
                process,
                start: address,
                end: second,
                protection: third,
            });
        }
        17 => return Some(EmulatorEvent::Heap { process, start: address, end: second }),
        18 => return Some(EmulatorEvent::Stack { process, address }),
        19 => return Some(EmulatorEvent::NotFollowed { process }),
        _ => return None,
    };
    Some(EmulatorEvent::Use(Use {
        process,
        thread,
        access,
        address,
        instruction: second,
        first: third,
        last: long(24)?,
        count: word(32)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(magic: u32, count: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [magic, 7, 8, count].iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend_from_slice(body);
        bytes
    }

    fn record(kind: u32) -> Vec<u8> {
        let longs = [0x1234_u64, 0x5678, 10, 20].iter().flat_map(|long| long.to_ne_bytes());
        longs.chain([3_u32, kind].iter().flat_map(|word| word.to_ne_bytes())).collect()
    }

    fn all(bytes: &[u8]) -> (Option<usize>, Vec<EmulatorEvent>) {
        let (mut text, mut told) = (Vec::new(), Vec::new());
        let used = parse(bytes, &mut text, &mut |one| told.push(one));
        (used, told)
    }

    #[test]
    fn blocks_are_read_when_they_are_whole_and_not_before() {
        let mut bytes = block(BLOCK, 2, &[record(1), record(18)].concat());
        let whole = bytes.len();
        bytes.extend_from_slice(&block(NAMES, 5, b"1000-")[..18]);
        for cut in 0..whole {
            assert_eq!(all(&bytes[..cut]), (Some(0), Vec::new()));
        }
        let (used, told) = all(&bytes);
        assert_eq!(used, Some(whole));
        let expected = Use {
            process: Pid(7),
            thread: Pid(8),
            access: Access::Write,
            address: 0x1234,
            instruction: 0x5678,
            first: 10,
            last: 20,
            count: 3,
        };
        assert_eq!(
            told,
            [
                EmulatorEvent::Use(expected),
                EmulatorEvent::Stack { process: Pid(7), address: 0x1234 }
            ]
        );
    }

    #[test]
    fn names_are_told_when_their_text_has_ended() {
        let line = b"1000-3000 rw-p 00000000 00:00 0 [heap]\n";
        let bytes =
            [block(NAMES, 9, &line[..9]), block(NAMES, line.len() as u32 - 9, &line[9..])].concat();
        let (used, told) = all(&bytes);
        assert_eq!((used, told.len()), (Some(bytes.len()), 0));
        let (_, told) = all(&[bytes, block(NAMES, 0, b"")].concat());
        let EmulatorEvent::Names { process: Pid(7), mappings } = &told[0] else {
            panic!("{told:?}")
        };
        assert_eq!(
            (mappings[0].start, mappings[0].end, mappings[0].name.as_str()),
            (0x1000, 0x3000, "[heap]")
        );
    }

    #[test]
    fn what_no_plugin_sends_ends_the_connection() {
        assert_eq!(all(&block(1, 0, b"")).0, None);
        assert_eq!(all(&block(BLOCK, 1 << 20, b"")).0, None);
        assert_eq!(all(&block(BLOCK, 1, &record(99))).0, None);
    }

    #[test]
    fn a_script_is_run_by_its_interpreter() {
        let room = tempfile::tempdir().unwrap();
        let script = room.path().join("script");
        fs::write(&script, "#! /bin/sh -e\ntrue\n").unwrap();
        assert_eq!(interpreter(&script).unwrap(), ["/bin/sh", "-e"]);
        fs::write(&script, "true\n").unwrap();
        assert!(interpreter(&script).unwrap_err().to_string().contains("no program of x86-64"));
    }
}
