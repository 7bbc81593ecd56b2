//! `poll(2)`: sleeping until one of several descriptors has something.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{Error, Result};

/// Of a file that is opened: a read without data is an error and no wait (`O_NONBLOCK`).
pub const NO_WAIT: i32 = libc::O_NONBLOCK;

/// Sleeps until one of `descriptors` can be read, a signal arrives, or `timeout` is over. Which it was is
/// for the caller to see.
///
/// # Errors
/// The kernel refuses to wait for one of them.
pub fn sleep(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> Result<()> {
    let mut polled: Vec<_> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    // More than fits is for ever.
    let limit = Timespec::try_from(timeout).ok();
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(Error::io("wait for", "descriptors", error.into())),
    }
}

/// What a descriptor has by the end of `limit`: something to read, and whatever else is told unasked; nothing then.
pub(crate) fn ready(descriptor: impl AsFd, limit: Duration) -> rustix::io::Result<PollFlags> {
    let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
    poll(&mut polled, Timespec::try_from(limit).ok().as_ref())?;
    Ok(polled[0].revents())
}

/// Takes the count out of an event descriptor that does not block.
pub fn clear(event: &std::os::fd::OwnedFd) {
    // An empty counter is refused and changes nothing.
    let _ = rustix::io::read(event, &mut [0; 8]);
}
