//! The statistics page of a running heap, read from outside (`pagemill_heap::stats`).
//!
//! A process that runs on the preload library has one page of counters, exported by the library as
//! the symbol `pagemill_stats`. [`locate`] finds that symbol among the files the process has
//! mapped; [`Page::read`] copies the page with `process_vm_readv(2)`. The process is never stopped.
//!
//! The writer may be another version of pagemill than the reader. It says how many bytes of the page
//! it knows; a [`Snapshot`] holds `Some` for exactly the fields inside them, so a field that the
//! writer does not have is absent and never zero. Fields that only a newer writer has are ignored.
//!
//! ```text
//! let page = stats_page::locate(&Linux::live(), pid)?.ok_or(…)?;   // once a process image
//! let snapshot = page.read()?.ok_or(…)?;                           // as often as wished
//! ```

use std::mem::{offset_of, size_of};
use std::path::PathBuf;

use object::read::elf::ProgramHeader;
use object::{Object, ObjectSymbol};
use pagemill_heap::config;
use pagemill_heap::stats::{MAGIC, STOPS, StatsPage, WAITS};
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::{Error, Kind, Linux, process::process_vm};
use pagemill_model::Pid;
use pagemill_model::dataset::Cell;
use serde::Serialize;

/// The name under which the library exports its page.
pub(crate) const SYMBOL: &str = "pagemill_stats";

/// Magic, version and size: what every version of the page starts with.
const HEADER: usize = 3 * size_of::<u64>();

/// Where the statistics page of a process is. It stays there until the process executes another
/// program or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// The process.
    pub pid: Pid,
    /// Address of the page in that process.
    pub address: u64,
}

macro_rules! snapshot {
    ($($(#[$doc:meta])* $name:ident $([$list:tt])?,)*) => {
        /// What a heap said about itself at one moment: the fields of
        /// [`pagemill_heap::stats::StatsPage`], in its units (bytes, nanoseconds). `None` is a field
        /// that this writer does not have.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Snapshot {
            $(
                #[doc = concat!("As the page has `", stringify!($name), "`.")]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: snapshot!(@type $($list)?),
            )*
        }

        impl Snapshot {
            /// Decodes the bytes of a page, of which the writer knows `bytes.len()`.
            fn decode(bytes: &[u8]) -> Self {
                Self { $($name: snapshot!(@field bytes, $name $($list)?),)* }
            }

            /// The value of a field by its name, as a cell of a recording.
            pub fn cell(&self, name: &str) -> Option<Cell> {
                match name {
                    $(stringify!($name) => snapshot!(@cell self.$name.clone(), $($list)?),)*
                    _ => None,
                }
            }
        }
    };
    (@type) => { Option<u64> };
    (@type $list:tt) => { Option<Vec<u64>> };
    (@cell $value:expr,) => { $value.map(Cell::Number) };
    (@cell $value:expr, $list:tt) => { $value.map(Cell::Numbers) };
    (@field $bytes:ident, $name:ident) => {
        words($bytes, offset_of!(StatsPage, $name), 1).map(|words| words[0])
    };
    (@field $bytes:ident, $name:ident $list:tt) => {
        words($bytes, offset_of!(StatsPage, $name), length_of(|page: &StatsPage| page.$name.len()))
    };
}

pagemill_heap::with_stats_fields!(snapshot);

/// `count` little-endian words at `offset`, if all of them are inside `bytes`.
fn words(bytes: &[u8], offset: usize, count: usize) -> Option<Vec<u64>> {
    let bytes = bytes.get(offset..offset + count * size_of::<u64>())?;
    let (words, _) = bytes.as_chunks();
    Some(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// The length of an array field of the page.
fn length_of(length: impl Fn(&StatsPage) -> usize) -> usize {
    static EMPTY: StatsPage = StatsPage::zeroed();
    length(&EMPTY)
}

impl Snapshot {
    /// Name of the configuration in force, if it is one this reader knows.
    pub fn config_name(&self) -> Option<&'static str> {
        config::NAMES.get(usize::try_from(self.config?).ok()?).copied()
    }

    /// Name of the back end in force.
    pub fn backend_name(&self) -> Option<&'static str> {
        ["none", "ksm", "remap"].get(usize::try_from(self.backend?).ok()?).copied()
    }

    /// Name of the barrier in force.
    pub fn barrier_name(&self) -> Option<&'static str> {
        ["none", "write-protect", "move", "single-thread"]
            .get(usize::try_from(self.barrier?).ok()?)
            .copied()
    }

    /// Name of what compaction waits for.
    pub fn waits_name(&self) -> Option<&'static str> {
        WAITS.get(usize::try_from(self.waits_for?).ok()?).copied()
    }

    /// Name of what the last pass ended with.
    pub fn stop_name(&self) -> Option<&'static str> {
        STOPS.get(usize::try_from(self.stopped_by?).ok()?).copied()
    }
}

impl Page {
    /// Copies the page. `None` means that the library is loaded but its heap has not started.
    ///
    /// # Errors
    /// [`Kind::Gone`] when the process has ended, [`Kind::Permission`] when the caller may not look into it, and
    /// [`Kind::Malformed`] when something else is at this address now.
    pub fn read(&self) -> pagemill_kernel::Result<Option<Snapshot>> {
        let mut bytes = [0; size_of::<StatsPage>()];
        process_vm::read(self.pid, self.address, &mut bytes[..HEADER])?;
        let word = |index| words(&bytes, index * size_of::<u64>(), 1).map_or(0, |words| words[0]);
        let (magic, size) = (word(0), word(2));
        if magic == 0 {
            return Ok(None);
        }
        let size = usize::try_from(size).unwrap_or(usize::MAX).min(bytes.len());
        if magic != MAGIC || size < HEADER {
            return Err(self.no_page(format_args!("magic {magic:#x}, size {size}")));
        }
        process_vm::read(self.pid, self.address, &mut bytes[..size])?;
        Ok(Some(Snapshot::decode(&bytes[..size])))
    }

    /// Asks the heap for a compaction pass. The pass is done when the snapshot's `request_done` has
    /// reached the number that this returns.
    ///
    /// # Errors
    /// There is no page at the address, its heap takes no requests, or the process may not be written to.
    pub fn request_compaction(&self) -> pagemill_kernel::Result<u64> {
        let last = self.read()?.and_then(|snapshot| snapshot.request);
        let next = last.ok_or_else(|| self.no_page("the heap takes no requests"))?.wrapping_add(1);
        let field = self.address + offset_of!(StatsPage, request) as u64;
        process_vm::write(self.pid, field, &next.to_le_bytes())?;
        Ok(next)
    }

    fn no_page(&self, reason: impl std::fmt::Display) -> Error {
        let Self { pid, address } = self;
        let object = format!("the statistics page at {address:#x} of process {pid}");
        Error::new(Kind::Malformed, "understand", object, reason)
    }
}

/// Finds the statistics page of `pid`. `None` means that the process does not run on the library.
///
/// Files whose name contains `pagemill` are looked at first, then the other mapped ELF files: the
/// library may have been renamed.
///
/// # Errors
/// The mappings of the process cannot be read.
pub fn locate(linux: &Linux, pid: Pid) -> pagemill_kernel::Result<Option<Page>> {
    let maps = linux.maps(pid)?;
    let mut files: Vec<&Mapping> = Vec::new();
    for mapping in maps.iter().filter(|mapping| mapping.file().is_some()) {
        // The first mapping of a file has its lowest address; the loader maps in address order.
        if !files.iter().any(|seen| seen.inode == mapping.inode && seen.name == mapping.name) {
            files.push(mapping);
        }
    }
    files.sort_by_key(|mapping| !mapping.name.contains("pagemill"));
    let page = files.into_iter().find_map(|mapping| {
        let image = image(linux, pid, mapping)?;
        Some(Page { pid, address: address_of(&image, mapping)? })
    });
    Ok(page)
}

/// The bytes of a mapped file. `map_files` reaches deleted and replaced files too but asks for
/// privilege; the path is taken as the process sees it, and then as we do.
fn image(linux: &Linux, pid: Pid, mapping: &Mapping) -> Option<Vec<u8>> {
    let Mapping { start, end, .. } = mapping;
    let file = mapping.file()?;
    let paths: [PathBuf; 3] = [
        linux.process_file(pid, &format!("map_files/{start:x}-{end:x}")),
        linux.process_file(pid, &format!("root{file}")),
        PathBuf::from(file),
    ];
    // Fonts, archives and databases are mapped too: only a program image is read whole.
    paths.iter().find_map(|path| pagemill_model::whole::elf(path))
}

/// Address of the page in a process that has mapped `image` with `first` as its lowest mapping.
fn address_of(image: &[u8], first: &Mapping) -> Option<u64> {
    let elf = object::read::elf::ElfFile64::<object::Endianness>::parse(image).ok()?;
    let symbol = elf.dynamic_symbols().find(|symbol| {
        symbol.is_definition() && symbol.name_bytes().is_ok_and(|name| name == SYMBOL.as_bytes())
    })?;
    let endian = elf.endian();
    // The loader puts the segment that holds file offset `first.offset` at `first.start`.
    let segment = elf.elf_program_headers().iter().find(|segment| {
        let start = segment.p_offset(endian);
        segment.p_type(endian) == object::elf::PT_LOAD
            && first
                .offset
                .checked_sub(start)
                .is_some_and(|within| within < segment.p_filesz(endian).max(1))
    })?;
    let linked = segment.p_vaddr(endian).wrapping_add(first.offset - segment.p_offset(endian));
    Some(first.start.wrapping_sub(linked).wrapping_add(symbol.address()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    /// A page as another process would see it.
    fn page_here(page: &StatsPage) -> Page {
        Page { pid: Pid::own(), address: std::ptr::from_ref(page) as u64 }
    }

    fn started(size: u64) -> Box<StatsPage> {
        let page = Box::new(StatsPage::zeroed());
        page.magic.store(MAGIC, Relaxed);
        page.version.store(1, Relaxed);
        page.size.store(size, Relaxed);
        page
    }

    #[test]
    fn a_page_reads_back_as_it_was_written() {
        let page = started(size_of::<StatsPage>() as u64);
        page.config.store(4, Relaxed);
        page.backend.store(2, Relaxed);
        page.live_bytes.store(12_345, Relaxed);
        page.occupancy[10].store(7, Relaxed);
        page.pauses[39].store(9, Relaxed);
        page.request_done.store(3, Relaxed);
        let snapshot = page_here(&page).read().unwrap().unwrap();
        assert_eq!(snapshot.config_name(), Some("1y"));
        assert_eq!(snapshot.backend_name(), Some("remap"));
        assert_eq!(snapshot.live_bytes, Some(12_345));
        assert_eq!(snapshot.occupancy.unwrap()[10], 7);
        assert_eq!(snapshot.pauses.unwrap()[39], 9);
        assert_eq!(snapshot.request_done, Some(3));
    }

    #[test]
    fn what_an_older_writer_lacks_is_absent_and_not_zero() {
        let page = started(offset_of!(StatsPage, pauses) as u64 + 8);
        let snapshot = page_here(&page).read().unwrap().unwrap();
        assert_eq!(snapshot.helper_cpu_ns, Some(0));
        assert_eq!(snapshot.pauses, None);
        assert_eq!(snapshot.ksm_pending, None);
        let json = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(json["helper_cpu_ns"], 0);
        assert!(json.get("ksm_pending").is_none());
    }

    #[test]
    fn a_newer_and_larger_page_is_read_as_far_as_it_is_known() {
        let page = started(1 << 20);
        let snapshot = page_here(&page).read().unwrap().unwrap();
        assert_eq!(snapshot.request_done, Some(0));
    }

    #[test]
    fn a_heap_that_has_not_started_has_no_snapshot() {
        assert_eq!(page_here(&StatsPage::zeroed()).read().unwrap(), None);
    }

    #[test]
    fn other_memory_is_not_taken_for_a_page() {
        let page = started(4096);
        page.magic.store(77, Relaxed);
        assert_eq!(page_here(&page).read().unwrap_err().kind(), Kind::Malformed);
    }

    #[test]
    fn a_request_is_one_more_than_the_last() {
        let page = started(4096);
        page.request.store(41, Relaxed);
        assert_eq!(page_here(&page).request_compaction().unwrap(), 42);
        assert_eq!(page.request.load(Relaxed), 42);
    }

    #[test]
    fn a_process_without_the_library_has_no_page() {
        assert_eq!(locate(&Linux::live(), Pid::own()).unwrap(), None);
    }
}
