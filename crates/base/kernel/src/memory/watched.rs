//! A userfaultfd of another process, for asynchronous write protection.
//!
//! A mapping that is registered for it has two properties that an access tracer needs, even if nothing is
//! ever protected: a fault maps one page and not its neighbours, and reading a page maps it read-only, so
//! that the first write faults again.
//!
//! Where nobody tells whether a fault was a write, pages are *armed* too: protected, whether they are there
//! or not. The kernel lifts the protection at the first write by itself, and the page tables show it
//! ([`crate::memory::pagemap::WRITTEN`]). An entry that is dropped while it is protected leaves a marker.

use std::os::fd::OwnedFd;

use pagemill_model::PageRange;

use crate::memory::userfaultfd::{
    API, REGISTER, REGISTER_WRITE_PROTECT, UFFD_API, WRITE_PROTECT, ask,
};
use crate::{Error, Result};

/// Mappings up to this size are armed when they are registered; twin of `ARMED` in injected.c. Protecting what is
/// not there takes page tables: a five-hundredth of the size.
pub const ARMED: u64 = 256 << 20;

/// Write protection of shared memory, of absent pages, and resolved by the kernel itself.
const FEATURES: u64 = 1 << 12 | 1 << 13 | 1 << 15;
/// `UFFD_USER_MODE_ONLY | O_CLOEXEC`: flags of `userfaultfd(2)`; nothing is ever waited for.
pub const OPEN_FLAGS: i64 = 1 | libc::O_CLOEXEC as i64;

/// The descriptor, copied from the process whose memory it watches.
#[derive(Debug)]
pub struct Watched(OwnedFd);

impl Watched {
    /// Makes the handshake.
    ///
    /// # Errors
    /// The kernel is older than 6.7.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        ask(&fd, API, &mut [UFFD_API, FEATURES, 0]).map_err(|error| {
            Error::io("use", "userfaultfd for access tracing", error)
                .advise("needs Linux 6.7; see pagemill doctor")
        })?;
        Ok(Self(fd))
    }

    /// Registers a range of whole mappings. `false` if the kernel refuses: faults there map neighbours too.
    pub fn register(&self, range: PageRange) -> bool {
        ask(&self.0, REGISTER, &mut [range.start, range.bytes(), REGISTER_WRITE_PROTECT, 0]).is_ok()
    }

    /// Registers a range, and arms it unless it is larger than [`ARMED`].
    pub fn register_armed(&self, range: PageRange) {
        if self.register(range) && range.bytes() <= ARMED {
            // A mapping that went away meanwhile has nothing to tell.
            self.arm(range);
        }
    }

    /// Protects pages of a registered range, those that are not there too. `false` if the kernel refuses.
    pub fn arm(&self, range: PageRange) -> bool {
        ask(&self.0, WRITE_PROTECT, &mut [range.start, range.bytes(), 1]).is_ok()
    }
}
