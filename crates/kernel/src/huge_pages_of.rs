//! Huge pages of another process: which of its pages are there (`PAGEMAP_SCAN`, Linux 6.7), and making one huge page of those in a
//! chunk (`process_madvise(MADV_COLLAPSE)`, Linux 6.1). The program needs to know nothing of it.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Error, Linux, Result};

const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_HUGE: u64 = 1 << 6;
const ADVICE: &str = "run as root or as the user who owns the process; see pagemill doctor";

/// A run of present pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// Whether they are huge.
    pub huge: bool,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// The pages of a process.
#[derive(Debug)]
pub struct Pages {
    pid: u32,
    pagemap: File,
    process: OwnedFd,
}

impl Pages {
    /// Of process `pid`.
    pub fn of(linux: &Linux, pid: u32) -> Result<Self> {
        let path = linux.process_file(pid, "pagemap");
        let pagemap = File::open(&path)
            .map_err(|error| Error::io("open", path.display(), error).advise(ADVICE))?;
        // SAFETY: the call takes numbers and makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd < 0 {
            return Err(Error::last("open", format_args!("process {pid}")));
        }
        // SAFETY: `fd` was just created, is open, and nothing else owns it.
        let process = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        Ok(Self { pid, pagemap, process })
    }

    /// The runs of present pages in a range, in order.
    pub fn runs(&self, start: u64, end: u64) -> Result<Vec<Run>> {
        const ROOM: usize = 512;
        let mut runs = Vec::new();
        let mut at = start;
        while at < end {
            // struct page_region: start, end, categories.
            let mut found = [[0_u64; 3]; ROOM];
            let mut argument = Scan {
                size: size_of::<Scan>() as u64,
                flags: 0,
                start: at,
                end,
                walk_end: 0,
                vec: found.as_mut_ptr() as u64,
                vec_len: ROOM as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: PAGE_IS_PRESENT,
                category_anyof_mask: 0,
                return_mask: PAGE_IS_PRESENT | PAGE_IS_HUGE,
            };
            let fd = self.pagemap.as_raw_fd();
            // SAFETY: `struct pm_scan_arg`, whose vector is alive and as long as it says.
            let count = unsafe { libc::ioctl(fd, PAGEMAP_SCAN, &raw mut argument) };
            if count < 0 {
                return Err(Error::last("scan", format_args!("the pages of process {}", self.pid))
                    .advise("boot kernel 6.7 or newer"));
            }
            let count = usize::try_from(count).unwrap_or(0).min(ROOM);
            runs.extend(found[..count].iter().map(|&[start, end, categories]| Run {
                start,
                end,
                huge: categories & PAGE_IS_HUGE != 0,
            }));
            if argument.walk_end <= at {
                break;
            }
            at = argument.walk_end;
        }
        Ok(runs)
    }

    /// Makes one huge page of what is in the chunk at `start`. Needs at least one page there.
    pub fn collapse(&self, start: u64, length: u64) -> Result<()> {
        const MADV_COLLAPSE: libc::c_int = 25;
        let range = libc::iovec { iov_base: start as usize as *mut _, iov_len: length as usize };
        let (fd, ranges) = (self.process.as_raw_fd(), &raw const range);
        // SAFETY: the kernel reads one iovec, which is alive; the address is one of the other process, which the
        // kernel checks, and the advice changes no byte there.
        let done = unsafe {
            libc::syscall(libc::SYS_process_madvise, fd, ranges, 1_usize, MADV_COLLAPSE, 0)
        };
        if done >= 0 {
            return Ok(());
        }
        let object = format!("the pages at {start:#x} of process {}", self.pid);
        Err(Error::last("collapse", object).advise(ADVICE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_this_process_are_found_where_they_are() {
        let memory = vec![1_u8; 1 << 20];
        let start = (memory.as_ptr() as u64).next_multiple_of(4096);
        let end = start + (1 << 20) - 8192;
        let pages = Pages::of(&Linux::live(), std::process::id()).unwrap();
        let runs = match pages.runs(start, end) {
            Ok(runs) => runs,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
        assert_eq!(bytes, end - start, "{runs:?}");
        assert!(memory.iter().all(|byte| *byte == 1));
    }
}
