//! What a mapping is, by what the kernel says of it, and what is done to mappings as they are.

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::smaps::MappingUsage;
use pagemill_kernel::memory::watched::Watched;
use pagemill_kernel::{Linux, Result, process::injected};
use pagemill_model::{PageRange, Pid};

use crate::calls::{Call, FIXED, MADVISE, MMAP, call};

/// How mappings of a memory file of ours begin.
pub(crate) const OURS: &str = "/memfd:pagemill";

/// The access of a mapping as `mmap` takes it.
pub(crate) fn protection(mapping: &Mapping) -> i64 {
    i64::from(mapping.read) | i64::from(mapping.write) << 1 | i64::from(mapping.execute) << 2
}

/// Whether a mapping is of a program's image: of a file of which a part is executed.
pub(crate) fn of_image(mapping: &Mapping, all: &[Mapping]) -> bool {
    let same = |other: &Mapping| other.inode == mapping.inode && other.name == mapping.name;
    mapping.inode != 0 && all.iter().any(|other| other.execute && same(other))
}

/// Whether the program has, or may have, pages of its own instead of a file's.
pub(crate) fn own_file(mapping: &Mapping) -> bool {
    !mapping.shared && mapping.inode != 0 && mapping.write
}

/// Why the page table entries of a mapping must stay as they are, if they must.
pub(crate) fn stays(usage: &MappingUsage) -> Option<&'static str> {
    if usage.huge_pages() {
        Some("huge pages")
    } else if usage.of_driver() {
        Some("memory of a driver")
    } else {
        None
    }
}

/// Why the accesses to a mapping that came later are not seen, if that can be told by its name; what else is not seen
/// the tracer tells.
pub fn not_traced(mapping: &Mapping) -> Option<&'static str> {
    let huge = ["/anon_hugepage", "/dev/hugepages"];
    huge.iter().any(|name| mapping.name.starts_with(name)).then_some("huge pages")
}

/// Registers all mappings of `pid` whose faults are to map one page, but those that stay as they are; `arm`: and
/// protects them.
pub(crate) fn watch_all(
    linux: &Linux,
    pid: Pid,
    (watched, arm): (&Watched, bool),
    stay: &[Mapping],
) -> Result<()> {
    for mapping in linux.maps(pid)? {
        let ours = mapping.start >= 1 << 47
            || mapping.name.starts_with("[v")
            || in_injected_code(&mapping);
        if !ours && !stay.iter().any(|other| overlap(other, &mapping)) {
            match arm {
                true => watched.register_armed(PageRange::new(mapping.start..mapping.end)),
                // Where the kernel refuses, faults map neighbours too.
                false => drop(watched.register(PageRange::new(mapping.start..mapping.end))),
            }
        }
    }
    Ok(())
}

fn overlap(one: &Mapping, other: &Mapping) -> bool {
    one.start < other.end && other.start < one.end
}

/// The call that maps a file anew where a mapping is.
pub(crate) fn map_over(mapping: &Mapping, flags: i64, file: i64, offset: u64) -> Call {
    let (start, length) = (mapping.start as i64, mapping.len() as i64);
    call(MMAP, [start, length, protection(mapping), flags | FIXED, file, offset as i64])
}

/// The calls that make guards of pages again, after they were mapped anew.
pub(crate) fn guard(ranges: &[PageRange]) -> Vec<Call> {
    const GUARD_INSTALL: i64 = 102;
    let call = |range: &PageRange| {
        call(MADVISE, [range.start as i64, range.bytes() as i64, GUARD_INSTALL])
    };
    ranges.iter().map(call).collect()
}

pub(crate) fn in_injected_code(mapping: &Mapping) -> bool {
    mapping.start < injected::ARGUMENTS_END && mapping.end > injected::CODE
}
