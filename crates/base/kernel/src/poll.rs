//! `poll(2)`: sleeping until one of several descriptors has something.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::{Error, Result};

/// Sleeps until one of `descriptors` can be read, a signal arrives, or `timeout` is over. Which it was is
/// for the caller to see.
pub fn sleep(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> Result<()> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: `polled` is an exclusively borrowed array of the length given; `limit` is only read; no
    // signal mask is given.
    let found = unsafe {
        libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &limit, std::ptr::null())
    };
    if found >= 0 {
        return Ok(());
    }
    let error = Error::last("wait for", "descriptors");
    if error.errno() == Some(libc::EINTR) { Ok(()) } else { Err(error) }
}

/// Takes the count out of an event descriptor that does not block.
pub fn clear(event: &std::os::fd::OwnedFd) {
    let mut count = 0_u64;
    // SAFETY: `count` is valid for eight bytes; an empty counter is refused and changes nothing.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
}
