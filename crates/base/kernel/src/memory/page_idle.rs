//! `/sys/kernel/mm/page_idle/bitmap`: which frames of physical memory have not been touched since they were
//! marked (Documentation/admin-guide/mm/idle_page_tracking.rst; `CONFIG_IDLE_PAGE_TRACKING`).
//!
//! ```text
//!  byte   0 … 7          8 … 15
//!  frame  0 … 63         64 … 127        the lowest bit of a native 64-bit word is the lowest frame
//! ```
//!
//! Writing a 1 marks a frame idle, a 0 changes nothing; reading a 0 means touched since, or not trackable:
//! a frame that is no page of a program, or a huge page's frame other than its first. [`Frames::mark`] tells
//! the two apart by reading back at once.
//!
//! Frame numbers come from `/proc/PID/pagemap`, which shows them to `CAP_SYS_ADMIN` only.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pagemill_model::page::PER_HUGE;

use crate::{Error, Kind, Linux, Result};

const BITMAP: &str = "/sys/kernel/mm/page_idle/bitmap";
/// Frames of a word of the bitmap.
const WORD: u64 = 64;

/// The bitmap.
#[derive(Debug)]
pub struct Frames {
    file: File,
}

impl Frames {
    /// Opens the bitmap. [`Kind::Unsupported`] on a kernel without it.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] on a kernel without it; the caller is not root.
    pub fn open(linux: &Linux) -> Result<Self> {
        let path = linux.path(BITMAP);
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => Ok(Self { file }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::new(
                Kind::Unsupported,
                "open",
                path.display(),
                "this kernel does not track idle pages",
            )
            .advise("boot a kernel with CONFIG_IDLE_PAGE_TRACKING=y")),
            Err(error) => Err(Error::io("open", path.display(), error).advise("run as root")),
        }
    }

    /// Marks `frame` idle; the frame that stands for it (the first of its huge page, if it is in one), or
    /// `None` if it cannot be tracked.
    ///
    /// # Errors
    /// The bitmap cannot be written or read.
    pub fn mark(&self, frame: u64) -> Result<Option<u64>> {
        for frame in [frame, frame - frame % PER_HUGE] {
            self.set(frame)?;
            if self.idle(frame)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Whether `frame` has not been touched since it was marked.
    ///
    /// # Errors
    /// The bitmap cannot be read.
    pub fn idle(&self, frame: u64) -> Result<bool> {
        let mut word = [0; 8];
        self.file
            .read_exact_at(&mut word, frame / WORD * 8)
            .map_err(|error| Error::io("read", BITMAP, error))?;
        Ok(u64::from_ne_bytes(word) >> (frame % WORD) & 1 == 1)
    }

    fn set(&self, frame: u64) -> Result<()> {
        let word = 1_u64 << (frame % WORD);
        self.file
            .write_all_at(&word.to_ne_bytes(), frame / WORD * 8)
            .map_err(|error| Error::io("write", BITMAP, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A bitmap of 1024 frames, none of them marked; a plain file keeps a written 0, so words here hold one
    /// marked frame at most.
    fn machine() -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        let path = linux.path(BITMAP);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, [0; 128]).unwrap();
        (root, linux)
    }

    #[test]
    fn a_frame_has_its_bit_in_a_native_word() {
        let (_root, linux) = machine();
        let frames = Frames::open(&linux).unwrap();
        assert_eq!(frames.mark(130).unwrap(), Some(130));
        assert!(frames.idle(130).unwrap() && !frames.idle(131).unwrap());
        let bytes = fs::read(linux.path(BITMAP)).unwrap();
        assert_eq!(bytes[16..24], 4_u64.to_ne_bytes());
        assert_eq!(frames.idle(5000).unwrap_err().kind(), Kind::Other);
    }

    #[test]
    fn a_kernel_without_the_bitmap_is_unsupported_and_says_what_to_boot() {
        let root = tempfile::tempdir().unwrap();
        let error = Frames::open(&Linux::at(root.path())).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("CONFIG_IDLE_PAGE_TRACKING"), "{error}");
    }
}
