//! A file of which only the parts are read that somebody asks for: a program of 33 MB takes as long to read as 8,000
//! page faults and tells all that there is to know in its first and last pages.
//!
//! Parts stay once they were read, so that references to them are good for as long as the file is.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use object::ReadRef;

/// Strings are read from here on: those of a table lie together.
const STRINGS: u64 = 1 << 20;

/// A file.
#[derive(Debug)]
pub struct Parts {
    file: File,
    len: u64,
    first: Link,
}

type Link = OnceCell<Box<Part>>;

#[derive(Debug)]
struct Part {
    start: u64,
    bytes: Vec<u8>,
    next: Link,
}

impl Parts {
    /// Opens it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file, len, first: Link::new() })
    }

    /// The bytes of a range, and those that were read behind it.
    fn from(&self, Range { start, end }: Range<u64>, read_from: u64) -> io::Result<&[u8]> {
        let mut link = &self.first;
        while let Some(part) = link.get() {
            let within = start.checked_sub(part.start).map(|within| within as usize);
            if let Some(found) = within.and_then(|within| part.bytes.get(within..))
                && found.len() as u64 >= end - start
            {
                return Ok(found);
            }
            link = &part.next;
        }
        let mut bytes = vec![0; usize::try_from(end - read_from).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, read_from)?;
        let part =
            link.get_or_init(|| Box::new(Part { start: read_from, bytes, next: Link::new() }));
        Ok(&part.bytes[(start - read_from) as usize..])
    }
}

impl<'a> ReadRef<'a> for &'a Parts {
    fn len(self) -> Result<u64, ()> {
        Ok(self.len)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let end = offset.checked_add(size).filter(|end| *end <= self.len).ok_or(())?;
        let found = self.from(offset..end, offset).map_err(drop)?;
        found.get(..size as usize).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let end = range.end.min(self.len);
        if range.start >= end {
            return Err(());
        }
        let first = range.start / STRINGS * STRINGS;
        // Most strings end in the same part of the table.
        for end in [end.min(first + STRINGS), end] {
            let found = self.from(range.start..end, first).map_err(drop)?;
            let found = found.get(..(end - range.start) as usize).ok_or(())?;
            if let Some(len) = found.iter().position(|byte| *byte == delimiter) {
                return Ok(&found[..len]);
            }
        }
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::random::Random;

    use super::*;

    #[test]
    fn every_part_is_what_the_whole_has_there() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("file");
        let whole: Vec<u8> = (0..4096_u32).map(|n| (n * n % 251) as u8).collect();
        std::fs::write(&path, &whole).unwrap();
        let whole = whole.as_slice();
        let mut random = Random::new(1);
        for _ in 0..50 {
            let parts = Parts::open(&path).unwrap();
            assert_eq!(ReadRef::len(&parts), Ok(4096));
            for _ in 0..20 {
                let (start, len) = (random.below(5000), random.below(3000));
                assert_eq!(
                    parts.read_bytes_at(start, len),
                    whole.read_bytes_at(start, len),
                    "{len} bytes at {start}"
                );
                let range = start..(start + len).min(4096);
                assert_eq!(
                    parts.read_bytes_at_until(range.clone(), 0),
                    whole.read_bytes_at_until(range.clone(), 0),
                    "a string in {range:?}"
                );
            }
        }
    }
}
