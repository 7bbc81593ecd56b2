//! A userfaultfd of another process, for asynchronous write protection.
//!
//! A mapping that is registered for it has two properties that an access tracer needs, even if nothing is
//! ever protected: a fault maps one page and not its neighbours, and reading a page maps it read-only, so
//! that the first write faults again.
//!
//! Where nobody tells whether a fault was a write, pages are *armed* too: protected, whether they are there
//! or not. The kernel lifts the protection at the first write by itself, and the page tables show it
//! ([`crate::pagemap::WRITTEN`]). An entry that is dropped while it is protected leaves a marker.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::{Error, Result};

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Protect {
    start: u64,
    length: u64,
    mode: u64,
}

// _IOWR(0xaa, 0x3f, struct uffdio_api), _IOWR(0xaa, 0, struct uffdio_register), _IOWR(0xaa, 6, struct
// uffdio_writeprotect)
const API: libc::Ioctl =
    (3 << 30 | (size_of::<Api>() as u64) << 16 | 0xaa << 8 | 0x3f) as libc::Ioctl;
const REGISTER: libc::Ioctl =
    (3 << 30 | (size_of::<Register>() as u64) << 16 | 0xaa << 8) as libc::Ioctl;

const PROTECT: libc::Ioctl =
    (3 << 30 | (size_of::<Protect>() as u64) << 16 | 0xaa << 8 | 6) as libc::Ioctl;

/// Mappings up to this size are armed when they are registered; twin of `ARMED` in injected.c. Protecting what is
/// not there takes page tables: a five-hundredth of the size.
pub const ARMED: u64 = 256 << 20;

/// Write protection of shared memory, of absent pages, and resolved by the kernel itself.
const FEATURES: u64 = 1 << 12 | 1 << 13 | 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`.
const WRITE_PROTECT: u64 = 2;
/// `UFFD_USER_MODE_ONLY | O_CLOEXEC`: flags of `userfaultfd(2)`; nothing is ever waited for.
pub const OPEN_FLAGS: i64 = 1 | libc::O_CLOEXEC as i64;

/// The descriptor, copied from the process whose memory it watches.
#[derive(Debug)]
pub struct Watched(OwnedFd);

impl Watched {
    /// Makes the handshake.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let mut api = Api { api: 0xaa, features: FEATURES, ioctls: 0 };
        // SAFETY: `api` has the layout of `struct uffdio_api` and lives through the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), API, &raw mut api) } != 0 {
            return Err(Error::last("use", "userfaultfd for access tracing")
                .advise("needs Linux 6.7; see pagemill doctor"));
        }
        Ok(Self(fd))
    }

    /// Registers a range of whole mappings. `false` if the kernel refuses: faults there map neighbours too.
    pub fn register(&self, start: u64, end: u64) -> bool {
        let mut register = Register { start, length: end - start, mode: WRITE_PROTECT, ioctls: 0 };
        // SAFETY: `register` has the layout of `struct uffdio_register` and lives through the call; it only
        // changes how faults in the other process are resolved.
        unsafe { libc::ioctl(self.0.as_raw_fd(), REGISTER, &raw mut register) == 0 }
    }

    /// Registers a range, and arms it unless it is larger than [`ARMED`].
    pub fn register_armed(&self, start: u64, end: u64) {
        if self.register(start, end) && end - start <= ARMED {
            // A mapping that went away meanwhile has nothing to tell.
            self.arm(start, end);
        }
    }

    /// Protects pages of a registered range, those that are not there too. `false` if the kernel refuses.
    pub fn arm(&self, start: u64, end: u64) -> bool {
        let mut protect = Protect { start, length: end - start, mode: 1 };
        // SAFETY: `protect` has the layout of `struct uffdio_writeprotect` and lives through the call; faults on
        // the pages are resolved by the kernel itself.
        unsafe { libc::ioctl(self.0.as_raw_fd(), PROTECT, &raw mut protect) == 0 }
    }
}
