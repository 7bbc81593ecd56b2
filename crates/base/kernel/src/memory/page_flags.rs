//! `/proc/kpageflags`: what each frame of physical memory is used for (Documentation/admin-guide/mm/pagemap.rst), 64
//! bits a frame in the machine's byte order. Only root may read it; it takes `CONFIG_PROC_PAGE_MONITOR`.

use std::fs::File;
use std::io::{ErrorKind, Read};

use crate::{Error, Kind, Linux, Result};

const PATH: &str = "/proc/kpageflags";
/// Frames read at once.
const AT_ONCE: usize = 1 << 16;

/// What a frame is, as its flags say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first of a block of free frames.
    Free,
    /// No flag: a further one of a free block, or memory of the kernel.
    Plain,
    /// A further one of several that belong together.
    Tail,
    /// On the lists of what programs and files have in memory: it can be moved.
    Movable,
    /// Objects of the kernel.
    Slab,
    /// A page table.
    PageTable,
    /// No memory, or set aside at boot, taken by a device or broken.
    Absent,
    /// Otherwise in use by the kernel.
    Other,
}

impl Frame {
    fn of(flags: u64) -> Self {
        let has = |bits: &[u32]| bits.iter().any(|bit| flags >> bit & 1 == 1);
        match () {
            () if flags == 0 => Self::Plain,
            // HWPOISON, NOPAGE, OFFLINE, RESERVED
            () if has(&[19, 20, 23, 32]) => Self::Absent,
            // BUDDY
            () if has(&[10]) => Self::Free,
            // COMPOUND_TAIL
            () if has(&[16]) => Self::Tail,
            // SLAB; a bit of a slab's own can look like another flag
            () if has(&[7]) => Self::Slab,
            // PGTABLE
            () if has(&[26]) => Self::PageTable,
            // LRU, MMAP, ANON: those of a program that are not yet on a list get there
            () if has(&[5, 11, 12]) => Self::Movable,
            () => Self::Other,
        }
    }
}

impl Linux {
    /// Tells every frame of physical memory, in order.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] on a kernel without the file; the caller is not root, or it cannot be read.
    pub fn frames(&self, mut each: impl FnMut(Frame)) -> Result<()> {
        let path = self.path(PATH);
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => Error::new(
                Kind::Unsupported,
                "open",
                path.display(),
                "this kernel does not tell what frames are used for",
            )
            .advise("boot a kernel with CONFIG_PROC_PAGE_MONITOR=y"),
            _ => Error::io("read", path.display(), error).advise("run as root"),
        };
        let mut file = File::open(&path).map_err(failed)?;
        let mut buffer = vec![0; 8 * AT_ONCE];
        loop {
            // The kernel gives whole words only.
            let read = file.read(&mut buffer).map_err(failed)?;
            if read == 0 {
                return Ok(());
            }
            let (words, _) = buffer[..read].as_chunks::<8>();
            words.iter().for_each(|word| each(Frame::of(u64::from_ne_bytes(*word))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_in_order_by_their_flags() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("proc");
        std::fs::create_dir(&path).unwrap();
        // Flags as a kernel 6.18 showed them.
        let flags: [u64; 9] = [
            1 << 32,
            0,
            1 << 10,
            1 << 5 | 1 << 11 | 1 << 12,
            1 << 7 | 1 << 12 | 1 << 15,
            1 << 7 | 1 << 16,
            1 << 26,
            1 << 20,
            1 << 15,
        ];
        let bytes: Vec<u8> = flags.iter().flat_map(|word| word.to_ne_bytes()).collect();
        std::fs::write(path.join("kpageflags"), bytes).unwrap();
        let mut frames = Vec::new();
        Linux::at(root.path()).frames(|frame| frames.push(frame)).unwrap();
        let expected = [
            Frame::Absent,
            Frame::Plain,
            Frame::Free,
            Frame::Movable,
            Frame::Slab,
            Frame::Tail,
            Frame::PageTable,
            Frame::Absent,
            Frame::Other,
        ];
        assert_eq!(frames, expected);
        let error = Linux::at("/no/such/root").frames(|_| {}).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
    }
}
