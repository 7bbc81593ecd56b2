//! `userfaultfd(2)`: page faults that a program handles itself. pagemill uses its write protection as
//! the barrier that holds writers while a page is moved.
//!
//! Two ways lead to a descriptor, and both come in two strengths:
//!
//! | way | allowed for |
//! |---|---|
//! | the system call | `CAP_SYS_PTRACE`, or anyone if `vm.unprivileged_userfaultfd` is 1 |
//! | `/dev/userfaultfd` | whoever may open it (kernel 6.1) |
//! | the system call with `UFFD_USER_MODE_ONLY` | anyone (kernel 5.11) |
//!
//! A descriptor of the last kind does not hold system calls that write to the page: they fail with
//! `EFAULT`. That is why it is no barrier for a program that knows nothing of us.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::PollFlags;

use crate::memory::mapped::Mapped;
use crate::{Error, Kind, Linux, Result, poll};

// From <linux/userfaultfd.h>; the `libc` crate has none of it.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
pub(crate) const UFFD_API: u64 = 0xAA;
const NEW: libc::c_ulong = 0xAA00;
pub(crate) const API: libc::c_ulong = 0xC018_AA3F;
pub(crate) const REGISTER: libc::c_ulong = 0xC020_AA00;
const WAKE: libc::c_ulong = 0x8010_AA02;
pub(crate) const WRITE_PROTECT: libc::c_ulong = 0xC018_AA06;
const MOVE: libc::c_ulong = 0xC028_AA05;
const REGISTER_MISSING: u64 = 1;
pub(crate) const REGISTER_WRITE_PROTECT: u64 = 1 << 1;

/// How long a probe waits for what should happen at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a descriptor was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMethod {
    /// The system call; holds user and kernel writers.
    SystemCall,
    /// `/dev/userfaultfd`; holds user and kernel writers.
    Device,
    /// The system call with `UFFD_USER_MODE_ONLY`; system calls that touch the page fail.
    UserModeOnly,
}

/// What the kernel's userfaultfd can do: the bits that pagemill asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Write protection of anonymous memory (kernel 5.7).
    pub fn write_protect(self) -> bool {
        self.0 & 1 != 0
    }

    /// Write protection of pages that do not exist yet (kernel 6.4).
    pub fn write_protect_unpopulated(self) -> bool {
        self.0 & 1 << 13 != 0
    }

    /// Moving a page to another address (kernel 6.8).
    pub fn move_pages(self) -> bool {
        self.0 & 1 << 16 != 0
    }
}

/// An open userfaultfd after its handshake, with all features switched on that change nothing by
/// themselves.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    way: OpenMethod,
    features: Features,
}

impl Userfaultfd {
    /// Opens one by this way.
    ///
    /// # Errors
    /// The caller may not open one this way, or the kernel does not have it.
    pub fn open(linux: &Linux, way: OpenMethod) -> Result<Self> {
        // The handshake can be made once only, so the question goes to a descriptor of its own.
        let features = Features(handshake(&descriptor(linux, way)?, 0)?);
        let fd = descriptor(linux, way)?;
        handshake(&fd, features.0 & (1 | 1 << 12 | 1 << 13 | 1 << 16))?;
        Ok(Self { fd, way, features })
    }

    /// How it was opened.
    pub fn open_method(&self) -> OpenMethod {
        self.way
    }

    /// What this kernel can do.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Tries whether a writer is held by write protection: a thread writes to a protected page, by an
    /// instruction or by `read(2)`, and must not get through before the protection is lifted.
    ///
    /// # Errors
    /// No page can be had, or the kernel refuses to watch or protect it.
    pub fn holds(&self, writer: Writer) -> Result<bool> {
        let page = Page::new()?;
        page.fill(1);
        self.register(&page, REGISTER_WRITE_PROTECT)?;
        self.protect(&page, true)?;
        let address = page.address();
        let (done, finished) = mpsc::channel();
        crate::process::thread::start(move || {
            let written = match writer {
                Writer::Program => {
                    // SAFETY: `address` is the first byte of `page`, which is not unmapped before
                    // this thread has reported, and which nobody else accesses until then.
                    unsafe { ptr::write_volatile(address as *mut u8, 2) };
                    true
                }
                Writer::Kernel => kernel_write(address),
            };
            // The receiver may have given up waiting; then there is nobody to tell.
            let _ = done.send(written);
        })?;
        let (mut held, mut early) = (Ok(false), None);
        for _ in 0..PATIENCE.as_millis() {
            held = self.faulted(Duration::from_millis(1));
            early = finished.try_recv().ok();
            if early.is_some() || !matches!(held, Ok(false)) {
                break;
            }
        }
        let lifted = self.protect(&page, false).and_then(|()| self.wake(&page));
        let written = early.or_else(|| finished.recv_timeout(PATIENCE).ok());
        if written.is_none() {
            // The writer is still held: its page must stay.
            std::mem::forget(page);
            return lifted.map(|()| false);
        }
        lifted?;
        Ok(held? && early.is_none() && written == Some(true) && page.first() == 2)
    }

    /// Tries `UFFDIO_MOVE`: moves a page and looks whether its content came along.
    ///
    /// # Errors
    /// No page can be had, or the kernel cannot move one.
    pub fn moves(&self) -> Result<bool> {
        let (from, to) = (Page::new()?, Page::new()?);
        from.fill(7);
        self.register(&to, REGISTER_MISSING)?;
        let length = to.0.len() as u64;
        let mut words = [to.address(), from.address(), length, 0, 0];
        self.ask("move a page with", MOVE, &mut words)?;
        Ok(words[4] == length && to.first() == 7)
    }

    fn register(&self, page: &Page, mode: u64) -> Result<()> {
        let [start, length] = page.range();
        self.ask("register memory with", REGISTER, &mut [start, length, mode, 0])
    }

    fn protect(&self, page: &Page, on: bool) -> Result<()> {
        let [start, length] = page.range();
        self.ask("protect memory with", WRITE_PROTECT, &mut [start, length, u64::from(on)])
    }

    fn wake(&self, page: &Page) -> Result<()> {
        self.ask("wake writers with", WAKE, &mut page.range())
    }

    fn ask<const N: usize>(
        &self,
        action: &'static str,
        request: libc::c_ulong,
        words: &mut [u64; N],
    ) -> Result<()> {
        ask(&self.fd, request, words).map_err(|error| Error::io(action, "userfaultfd", error))
    }

    /// Whether a fault arrives within `patience`.
    fn faulted(&self, patience: Duration) -> Result<bool> {
        let found = poll::ready(&self.fd, patience)
            .map_err(|error| Error::io("wait for", "userfaultfd", error.into()))?;
        // `struct uffd_msg` has 32 bytes.
        Ok(found.contains(PollFlags::IN) && rustix::io::read(&self.fd, &mut [0; 32]) == Ok(32))
    }
}

/// Who writes to a protected page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// An instruction of the program.
    Program,
    /// The kernel, in a system call of the program.
    Kernel,
}

/// Writes a 2 to `address` by `read(2)`; `false` if the system call failed.
fn kernel_write(address: u64) -> bool {
    let Ok((mut reader, writer)) = std::io::pipe() else { return false };
    let Ok(()) = std::io::Write::write_all(&mut &writer, &[2]) else { return false };
    // SAFETY: `address` is the first byte of the caller's page, valid for writes and accessed by
    // nobody else for the length of the call.
    let byte = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, 1) };
    reader.read_exact(byte).is_ok()
}

fn descriptor(linux: &Linux, way: OpenMethod) -> Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let fd = match way {
        OpenMethod::Device => {
            let path = linux.path("/dev/userfaultfd");
            let device =
                OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
                    Error::io("open", path.display(), error)
                        .advise(format!("run: sudo setfacl -m u:$USER:rw {}", path.display()))
                })?;
            // SAFETY: `device` is open; the request takes the flags by value.
            unsafe { libc::ioctl(device.as_raw_fd(), NEW as _, flags) }
        }
        OpenMethod::SystemCall | OpenMethod::UserModeOnly => {
            let only = if way == OpenMethod::UserModeOnly { UFFD_USER_MODE_ONLY } else { 0 };
            // SAFETY: the system call takes the flags by value and returns a descriptor or -1.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | only) };
            // A descriptor fits `int`; -1 stays -1.
            fd as libc::c_int
        }
    };
    if fd < 0 {
        let error = Error::last("create", "userfaultfd");
        return Err(match error.kind() {
            Kind::Permission => error.advise("run: sudo sysctl vm.unprivileged_userfaultfd=1"),
            _ => error,
        });
    }
    // SAFETY: `fd` was just created, is open, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Agrees on the interface and on `features`; returns the features that the kernel has.
fn handshake(fd: &OwnedFd, features: u64) -> Result<u64> {
    let mut words = [UFFD_API, features, 0];
    ask(fd, API, &mut words)
        .map_err(|error| Error::io("agree on the interface of", "userfaultfd", error))?;
    Ok(words[1])
}

/// Asks a userfaultfd for something, with the words of the request's structure, which the kernel may write.
pub(crate) fn ask<const N: usize>(
    fd: &OwnedFd,
    request: libc::c_ulong,
    words: &mut [u64; N],
) -> io::Result<()> {
    assert_eq!(request as usize >> 16 & 0x3fff, size_of_val(words), "the size that it names");
    // SAFETY: the structure has as many bytes as the request's number says, and is borrowed exclusively. Addresses in
    // it are of the process that the descriptor is of; the kernel checks them, and no request unmaps any.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request as _, words.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One anonymous page of our own.
struct Page(Mapped);

impl Page {
    fn new() -> Result<Self> {
        let page = Mapped::anonymous(crate::page_size(), 0);
        page.map(Self).map_err(|error| Error::io("map", "a page", error))
    }

    fn address(&self) -> u64 {
        self.0.address()
    }

    fn range(&self) -> [u64; 2] {
        [self.address(), self.0.len() as u64]
    }

    fn fill(&self, value: u8) {
        // SAFETY: the page is ours, mapped, writable and as long.
        unsafe { ptr::write_bytes(self.0.start(), value, self.0.len()) }
    }

    fn first(&self) -> u8 {
        // SAFETY: the page is ours, mapped and readable; volatile because the kernel may have
        // changed it.
        unsafe { ptr::read_volatile(self.0.start()) }
    }
}

/// Whether the system call is open to everyone: `vm.unprivileged_userfaultfd`.
///
/// # Errors
/// The file cannot be read, or holds no number.
pub fn unprivileged(linux: &Linux) -> Result<bool> {
    linux.read_number("/proc/sys/vm/unprivileged_userfaultfd").map(|value| value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(way: OpenMethod) -> Option<Userfaultfd> {
        match Userfaultfd::open(&Linux::live(), way) {
            Ok(fd) => Some(fd),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn write_protection_holds_the_program_and_the_kernel() {
        for way in [OpenMethod::SystemCall, OpenMethod::Device] {
            let Some(fd) = open(way).filter(|fd| fd.features().write_protect()) else { continue };
            assert!(fd.holds(Writer::Program).unwrap(), "{way:?}");
            assert!(fd.holds(Writer::Kernel).unwrap(), "{way:?}");
        }
    }

    #[test]
    fn in_user_mode_only_the_kernel_is_not_held() {
        let Some(fd) = open(OpenMethod::UserModeOnly).filter(|fd| fd.features().write_protect())
        else {
            return;
        };
        assert!(fd.holds(Writer::Program).unwrap());
        assert!(!fd.holds(Writer::Kernel).unwrap());
    }

    #[test]
    fn a_page_can_be_moved_where_the_kernel_says_so() {
        let Some(fd) = open(OpenMethod::UserModeOnly).filter(|fd| fd.features().move_pages())
        else {
            return;
        };
        assert!(fd.moves().unwrap());
    }

    #[test]
    fn a_missing_device_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = Userfaultfd::open(&Linux::at(root.path()), OpenMethod::Device).unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.to_string().contains("/dev/userfaultfd"), "{error}");
    }
}
