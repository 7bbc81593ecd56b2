//! `move_pages(2)`: where the pages of a process are, and moving them to another node.
//!
//! A page that only this process maps moves; one that others map too stays, and the kernel says so
//! (`EACCES`). Needs the right to trace the process (same user and dumpable, or `CAP_SYS_NICE`).

use std::ptr;

use pagemill_model::Pid;

use crate::{Error, Kind, Result};

/// What is known of one page, or came of moving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLocation {
    /// It is on this node.
    Node(u32),
    /// There is no page.
    Absent,
    /// Another process maps it too.
    Shared,
    /// Somebody works on it.
    Busy,
    /// The node has no room.
    NoRoom,
    /// Another reason, by its error number.
    Refused(i32),
}

impl PageLocation {
    fn of(status: i32) -> Self {
        match (u32::try_from(status), -status) {
            (Ok(node), _) => Self::Node(node),
            (_, libc::ENOENT | libc::EFAULT) => Self::Absent,
            (_, libc::EACCES) => Self::Shared,
            (_, libc::EBUSY) => Self::Busy,
            (_, libc::ENOMEM) => Self::NoRoom,
            (_, errno) => Self::Refused(errno),
        }
    }
}

/// Where each of these pages of `pid` is.
///
/// # Errors
/// The process has ended or may not be looked into, or the kernel has no NUMA.
pub fn locate(pid: Pid, addresses: &[u64]) -> Result<Vec<PageLocation>> {
    call(pid, addresses, None)
}

/// Moves each of these pages of `pid` to `node`; says where each is afterwards, or why it stayed.
///
/// # Errors
/// As of [`locate`]; there is no such node.
pub fn migrate(pid: Pid, addresses: &[u64], node: u32) -> Result<Vec<PageLocation>> {
    let number = i32::try_from(node)
        .map_err(|_| Error::new(Kind::Other, "move pages to", node, "no such node"))?;
    let mut places = call(pid, addresses, Some(&vec![number; addresses.len()]))?;
    // The second page of a huge one is said to be busy, as part of the first one's move, and is moved with it.
    let (asked, busy): (Vec<u64>, Vec<&mut PageLocation>) = addresses
        .iter()
        .zip(&mut places)
        .filter(|(_, place)| **place == PageLocation::Busy)
        .unzip();
    let now = if asked.is_empty() { Vec::new() } else { locate(pid, &asked).unwrap_or_default() };
    for (place, now) in busy.into_iter().zip(now) {
        if now == PageLocation::Node(node) {
            *place = now;
        }
    }
    Ok(places)
}

fn call(pid: Pid, addresses: &[u64], nodes: Option<&[i32]>) -> Result<Vec<PageLocation>> {
    /// Below the range of error numbers and of nodes: the kernel left the entry alone.
    const UNTOUCHED: i32 = i32::MIN;
    /// `MPOL_MF_MOVE`: pages that only this process maps.
    const MOVE: libc::c_int = 2;
    debug_assert!(nodes.is_none_or(|nodes| nodes.len() == addresses.len()));
    let mut statuses = vec![UNTOUCHED; addresses.len()];
    // SAFETY: `addresses`, `nodes` (null, or as long, see above) and `statuses` are arrays of `count`
    // elements that live across the call; the kernel reads the first two and writes the third. The
    // addresses are another process's and are only compared with its mappings.
    let refused = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid.0 as libc::pid_t,
            addresses.len(),
            addresses.as_ptr(),
            nodes.map_or(ptr::null(), <[i32]>::as_ptr),
            statuses.as_mut_ptr(),
            MOVE,
        )
    };
    if refused < 0 {
        let what = if nodes.is_some() { "move" } else { "locate" };
        let error = Error::last(what, format_args!("pages of process {pid}"));
        return Err(match error.kind() {
            Kind::Permission => error.advise(crate::error::not_permitted()),
            _ => error,
        });
    }
    // A positive result counts pages that could not be moved; those after a failed batch stay
    // untouched, as if somebody had worked on them.
    let place = |status: i32| {
        if status == UNTOUCHED { PageLocation::Busy } else { PageLocation::of(status) }
    };
    Ok(statuses.into_iter().map(place).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_this_process_is_on_a_node_and_an_address_without_one_is_absent() {
        let data = vec![1_u8; 1 << 20];
        let page = (data.as_ptr() as u64 + 4096) & !4095;
        let places = match locate(Pid::own(), &[page, 4096]) {
            Ok(places) => places,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let PageLocation::Node(node) = places[0] else { panic!("{places:?}") };
        assert_eq!(places[1], PageLocation::Absent);
        // Moving it to where it is changes nothing and works everywhere.
        assert_eq!(migrate(Pid::own(), &[page], node).unwrap(), [PageLocation::Node(node)]);
    }

    #[test]
    fn a_node_that_does_not_exist_is_refused() {
        let data = vec![1_u8; 8192];
        let page = (data.as_ptr() as u64 + 4096) & !4095;
        match migrate(Pid::own(), &[page], 1023) {
            Ok(places) => assert!(!matches!(places[0], PageLocation::Node(1023)), "{places:?}"),
            Err(error) => assert!(
                matches!(error.kind(), Kind::Unsupported | Kind::Permission | Kind::Other),
                "{error}"
            ),
        }
    }

    #[test]
    fn a_process_that_does_not_exist_is_gone() {
        match locate(Pid(u32::MAX >> 1), &[4096]) {
            Err(error) if error.kind() == Kind::Unsupported => eprintln!("skipped: {error}"),
            outcome => assert_eq!(outcome.unwrap_err().kind(), Kind::Gone),
        }
    }
}
