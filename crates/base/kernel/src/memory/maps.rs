//! `/proc/PID/maps`: the mappings of a process (proc_pid_maps(5)).
//!
//! ```text
//! 7f2c4a000000-7f2c4a021000 r-xp 00001000 fe:00 131085   /usr/lib/libc.so.6
//! start        end          perm offset   dev   inode    name
//! ```

use pagemill_model::{PageRange, Pid};

use crate::{Error, Linux, Result};

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub execute: bool,
    /// Shared with other processes rather than private copy-on-write.
    pub shared: bool,
    /// Where in the file the mapping starts, bytes.
    pub offset: u64,
    /// Inode of the file, 0 if there is none.
    pub inode: u64,
    /// Path, `[heap]`, `[anon:…]`, or empty. The kernel appends ` (deleted)` to files that are gone.
    pub name: String,
}

impl Mapping {
    /// Where it is.
    pub fn range(&self) -> PageRange {
        PageRange::new(self.start..self.end)
    }

    /// Bytes of address space.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it covers nothing; the kernel never reports such a mapping.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }

    /// The path of the mapped file, if a file is mapped.
    pub fn file(&self) -> Option<&str> {
        (self.inode != 0 && self.name.starts_with('/'))
            .then(|| self.name.strip_suffix(" (deleted)").unwrap_or(&self.name))
    }

    /// Parses one line, without its newline.
    pub fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            rest = rest.trim_start_matches(' ');
            let (word, tail) = rest.split_once(' ').unwrap_or((rest, ""));
            rest = tail;
            word
        };
        let (start, end) = word().split_once('-')?;
        let permissions = word().as_bytes();
        let offset = word();
        let _device = word();
        let inode = word();
        let &[read, write, execute, shared] = permissions else { return None };
        let (start, end) =
            (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        (start <= end).then_some(())?;
        Some(Self {
            start,
            end,
            read: read == b'r',
            write: write == b'w',
            execute: execute == b'x',
            shared: shared == b's',
            offset: u64::from_str_radix(offset, 16).ok()?,
            inode: inode.parse().ok()?,
            name: rest.trim_start_matches(' ').to_owned(),
        })
    }
}

/// The end of the area that the kernel maps into from above: of the highest mapping below the stack. 0 if there is
/// none.
pub fn top_of_mappings(maps: &[Mapping]) -> u64 {
    let stack = maps.iter().position(|map| map.name == "[stack]");
    let below = stack.and_then(|stack| stack.checked_sub(1)).and_then(|below| maps.get(below));
    below.map_or(0, |map| map.end)
}

impl Linux {
    /// The mappings of `pid`, in address order. Those of a process whose first thread has ended are the others'.
    ///
    /// # Errors
    /// The process has ended or may not be looked into, or a line is not of the form that is known.
    pub fn maps(&self, pid: Pid) -> Result<Vec<Mapping>> {
        let mut text = self.read_of(pid, "maps")?;
        if text.is_empty() {
            let of = |thread: &Pid| self.read(format!("/proc/{pid}/task/{thread}/maps")).ok();
            let others = self.threads(pid).unwrap_or_default();
            text = others.iter().filter_map(of).find(|text| !text.is_empty()).unwrap_or_default();
        }
        text.lines()
            .map(|line| {
                Mapping::parse(line).ok_or_else(|| {
                    Error::malformed(
                        self.process_file(pid, "maps").display(),
                        format_args!("{line:?}"),
                    )
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_mapping_with_spaces_in_its_name_parses() {
        let line = "7f2c4a000000-7f2c4a021000 r-xp 00001000 fe:00 131085                     /opt/a b/libx.so \
                    (deleted)";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!(mapping.start, 0x7f2c_4a00_0000);
        assert_eq!(mapping.len(), 0x21000);
        assert_eq!(
            (mapping.read, mapping.write, mapping.execute, mapping.shared),
            (true, false, true, false)
        );
        assert_eq!((mapping.offset, mapping.inode), (0x1000, 131_085));
        assert_eq!(mapping.file(), Some("/opt/a b/libx.so"));
    }

    #[test]
    fn an_anonymous_mapping_has_neither_name_nor_file() {
        let mapping = Mapping::parse("7ffd0000-7ffe0000 rw-s 00000000 00:00 0 ").unwrap();
        assert_eq!((mapping.name.as_str(), mapping.file(), mapping.shared), ("", None, true));
    }

    #[test]
    fn what_is_no_mapping_is_refused() {
        // What ends before it begins, too.
        for line in
            ["", "7ffd0000 rw-p 0 0 0", "2-1 rw-p 0 0:0 0", "x-y rw-p 0 0:0 0", "1-2 rw 0 0:0 0"]
        {
            assert_eq!(Mapping::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn the_mappings_of_this_process_cover_its_own_code_and_stack() {
        let maps = Linux::live().maps(Pid::own()).unwrap();
        let here = maps.as_ptr() as u64;
        assert!(maps.iter().any(|m| m.write && (m.start..m.end).contains(&here)));
        assert!(maps.iter().any(|m| m.execute && m.file().is_some()));
        assert!(maps.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
}
