//! Which code made a piece of memory, told in a way that is the same in every run: `libfoo.so.1+0x2f10`.
//!
//! A *site* is the file and the offset in it of the instruction after the call, of the innermost caller that is not
//! part of the C and C++ libraries or of an allocator: those are called by everybody. The offset counts from where the
//! file's lowest mapping begins, so address space randomisation does not change it; another build of the file does.
//!
//! Always true: an address has one site, that of the memory which was made there last; a site is one word of a profile
//! (no comma, `#` or blank).

use std::collections::BTreeMap;
use std::ops::Range;

/// Beginnings of the names of files that call for others.
const RUNTIMES: [&str; 10] = [
    "libc.so",
    "libc-",
    "libstdc++",
    "libc++",
    "libgcc_s",
    "ld-linux",
    "libpagemill",
    "libjemalloc",
    "libtcmalloc",
    "libmimalloc",
];

/// The files in an address space.
#[derive(Clone, Debug, Default)]
pub struct Images {
    /// First address after each mapping, and its file; by first address.
    mappings: BTreeMap<u64, (u64, String)>,
    /// Where each file begins.
    starts: BTreeMap<String, u64>,
}

impl Images {
    /// Adds a mapping, of a file or of something else.
    pub fn map(&mut self, Range { start, end }: Range<u64>, name: &str) {
        if !name.starts_with('/') {
            return;
        }
        let first = self.starts.entry(name.to_owned()).or_insert(start);
        *first = (*first).min(start);
        self.mappings.insert(start, (end, name.to_owned()));
    }

    fn file(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.mappings.range(..=address).next_back()?;
        (address < *end).then_some(name.as_str())
    }

    /// Whether a file is known to be there.
    pub fn knows(&self, address: u64) -> bool {
        self.file(address).is_some()
    }

    /// The site of memory that was asked for by these callers, innermost first; `None` if none of them lies in a file.
    pub fn site(&self, callers: &[u64]) -> Option<String> {
        let files = || callers.iter().filter_map(|at| Some((*at, self.file(*at)?)));
        let short = |file: &str| file.rsplit('/').next().unwrap_or(file).to_owned();
        let own = |file: &str| !RUNTIMES.iter().any(|known| short(file).starts_with(known));
        let (address, file) = files().find(|(_, file)| own(file)).or_else(|| files().next())?;
        let word = |c: char| if c == ',' || c == '#' || c.is_whitespace() { '_' } else { c };
        let name: String = short(file).chars().map(word).collect();
        Some(format!("{name}+{:#x}", address - self.starts.get(file)?))
    }
}

/// Memory by who made it.
#[derive(Clone, Debug)]
pub struct OwnedRanges<T> {
    /// First address after it and its maker; by first address.
    ranges: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for OwnedRanges<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<T> OwnedRanges<T> {
    /// Memory was made here; what lay there before is gone.
    pub fn insert(&mut self, Range { start, end }: Range<u64>, by: T) {
        if start >= end {
            return;
        }
        // None overlaps another, so the last ones before its end.
        let before = self.ranges.range(..end).rev();
        let overlapped = before.take_while(|(_, (to, _))| *to > start);
        let gone: Vec<u64> = overlapped.map(|(from, _)| *from).collect();
        gone.iter().for_each(|from| {
            self.ranges.remove(from);
        });
        self.ranges.insert(start, (end, by));
    }

    /// Who made what lies at an address, or begins in the `near` bytes after it: an allocator's header comes before
    /// what it hands out.
    pub fn at(&self, address: u64, near: u64) -> Option<&T> {
        let (_, (end, by)) = self.ranges.range(..=address.saturating_add(near)).next_back()?;
        (address < *end).then_some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_the_first_caller_outside_of_the_runtime_by_its_place_in_the_file() {
        let mut images = Images::default();
        images.map(0x5000..0x6000, "/opt/my app,2");
        images.map(0x6000..0x8000, "/opt/my app,2");
        images.map(0x9000..0xa000, "/usr/lib/libstdc++.so.6");
        images.map(0xb000..0xc000, "[heap]");
        assert_eq!(images.site(&[0x9010, 0x6020, 0x5010]).unwrap(), "my_app_2+0x1020");
        assert_eq!(images.site(&[0x9010, 0xb010]).unwrap(), "libstdc++.so.6+0x10");
        assert_eq!(images.site(&[0xb010, 0x8000]), None);
        assert!(images.knows(0x7fff) && !images.knows(0x8000));
    }

    #[test]
    fn what_was_made_last_at_an_address_is_what_lies_there() {
        let mut made = OwnedRanges::default();
        made.insert(0x1010..0x5000, 'a');
        made.insert(0x9010..0xb000, 'b');
        assert_eq!((made.at(0x1000, 0), made.at(0x1000, 0x1000)), (None, Some(&'a')));
        assert_eq!((made.at(0x4fff, 0), made.at(0x5000, 0)), (Some(&'a'), None));
        made.insert(0x4000..0xa000, 'c');
        assert_eq!(
            [0x2000, 0x4000, 0xa800].map(|at| made.at(at, 0).copied()),
            [None, Some('c'), None]
        );
    }
}
