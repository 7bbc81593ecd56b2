//! Paging memory of another process out: `process_madvise(MADV_PAGEOUT)` (Linux 5.10), by root, to swap.
//!
//! Nothing in the process changes but where its pages are: the next access to one is a major fault. The kernel leaves
//! pages alone that are pinned, locked or mapped elsewhere too, and says nothing of it.

use std::os::fd::{AsRawFd as _, OwnedFd};

use pagemill_model::PageRange;

use crate::{Error, Kind, Linux, Result, kibibytes};

const PAGEOUT: libc::c_int = 21;
/// The kernel takes at most so many ranges in a call.
const RANGES: usize = 1024;

/// Pages ranges of a process out, as far as the kernel does.
///
/// # Errors
/// The process has ended or may not be advised, or the kernel is older than 5.10.
pub fn page_out(process: &OwnedFd, ranges: &[PageRange]) -> Result<()> {
    let vectors: Vec<libc::iovec> = ranges
        .iter()
        .map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: range.bytes() as usize,
        })
        .collect();
    let mut left = vectors.as_slice();
    while !left.is_empty() {
        let count = left.len().min(RANGES);
        // SAFETY: `left` points to `count` vectors at least, whose addresses are the other process's and are not
        // followed here; the advice changes no contents.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                process.as_raw_fd(),
                left.as_ptr(),
                count,
                PAGEOUT,
                0,
            )
        };
        if done < 0 {
            let error = Error::last("page out", "memory of the process");
            match error.errno() {
                // A mapping that went away meanwhile, or that may not be paged out: on behind it.
                Some(libc::EINVAL | libc::ENOMEM) => left = &left[1..],
                Some(libc::EINTR | libc::EAGAIN) => {}
                _ => return Err(error.advise("run as root")),
            }
            continue;
        }
        let mut done = done as usize;
        while let Some(first) = left.first()
            && done >= first.iov_len
        {
            done -= first.iov_len;
            left = &left[1..];
            if done == 0 {
                break;
            }
        }
        // Stopped inside a range: the rest of it is left alone.
        if done > 0 {
            left = left.get(1..).unwrap_or_default();
        }
    }
    Ok(())
}

impl Linux {
    /// Bytes of swap that are free.
    ///
    /// # Errors
    /// The file cannot be read, or does not say it.
    pub fn free_swap(&self) -> Result<u64> {
        let path = "/proc/meminfo";
        let text = self.read(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix("SwapFree:"));
        line.and_then(kibibytes).ok_or_else(|| {
            Error::new(Kind::Malformed, "read", path, "it does not say how much swap is free")
        })
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::Pid;

    use super::*;

    #[test]
    fn free_swap_is_read() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let of = |text: &str| {
            std::fs::write(root.path().join("proc/meminfo"), text).unwrap();
            Linux::at(root.path()).free_swap()
        };
        assert_eq!(of("MemFree: 5 kB\nSwapFree:        2048 kB\n").unwrap(), 2 << 20);
        assert!(of("MemFree: 5 kB\n").is_err());
    }

    /// Paging out changes no contents, ranges that are none are passed over.
    #[test]
    fn what_is_paged_out_reads_as_before() {
        let page = crate::page_size() as u64;
        let memory: Vec<u8> = (0..16 * page).map(|byte| byte as u8).collect();
        let start = (memory.as_ptr() as u64).next_multiple_of(page);
        let me = crate::process::pidfd::open(Pid::own()).unwrap();
        let ranges =
            [(page, 2 * page), (start, start + 2 * page), (start + 4 * page, start + 8 * page)]
                .map(|(start, end)| PageRange { start, end });
        match page_out(&me, &ranges) {
            Ok(()) => {}
            Err(error) => return println!("skipped: {error}"),
        }
        assert!(memory.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}
