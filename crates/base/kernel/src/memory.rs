//! Memory: of a process by page and by mapping, of the machine by node, zone and order, and our own.

pub mod anonymous;
pub mod buddyinfo;
pub mod compaction;
pub mod exhausted;
pub mod extfrag;
pub mod huge_area;
pub mod huge_costs;
pub mod huge_pages_of;
pub mod ksm;
pub(crate) mod mapped;
pub mod maps;
pub mod memfd;
pub mod oom;
pub mod page_flags;
pub mod page_idle;
pub mod page_out;
pub mod pagemap;
pub mod pagetypeinfo;
pub mod shared_words;
pub mod smaps;
pub mod touch;
pub mod userfaultfd;
pub mod vmstat;
pub mod watched;
pub mod zoneinfo;
