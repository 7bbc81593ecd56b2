//! What the heap says about itself when the program asks: mallinfo, malloc_stats, malloc_info, mesh_mallctl.

use core::ffi::{c_int, c_void};
use core::fmt::{self, Write};
use core::sync::atomic::Ordering;

use pagemill_preload_sys::{libc, sys};

use crate::heap::HEAP;
use crate::helper::{self, state};
use crate::line::Line;
use crate::stats::pagemill_stats;
use crate::{diagnostics, fork, interim, settings, start, thread, tls};

/// `struct mallinfo` (of `int`) and `struct mallinfo2` (of `size_t`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Info<N> {
    /// Bytes taken from the kernel for chunks (own mappings not counted).
    pub arena: N,
    /// Number of free blocks; here, of free pages' worth of slots: not counted, zero.
    pub ordblks: N,
    /// Number of fast bins' blocks; there are none.
    pub smblks: N,
    /// Number of objects in mappings of their own.
    pub hblks: N,
    /// Bytes in them.
    pub hblkhd: N,
    /// Unused, zero.
    pub usmblks: N,
    /// Bytes in threads' caches.
    pub fsmblks: N,
    /// Bytes allocated.
    pub uordblks: N,
    /// Bytes free.
    pub fordblks: N,
    /// Bytes that `malloc_trim` could give back at most.
    pub keepcost: N,
}

/// The numbers of `mallinfo`, each put through `convert`.
pub(crate) fn info<N: Default>(convert: impl Fn(usize) -> N) -> Info<N> {
    start::ensure();
    let totals = HEAP.totals();
    let arena = totals.mapped.saturating_sub(totals.own_mappings);
    let used = totals.live.saturating_sub(totals.cached);
    let in_chunks = used.saturating_sub(totals.own_mappings);
    Info {
        arena: convert(arena),
        hblks: convert(totals.own_mapping_count),
        hblkhd: convert(totals.own_mappings),
        fsmblks: convert(totals.cached),
        uordblks: convert(in_chunks),
        fordblks: convert(arena.saturating_sub(in_chunks)),
        keepcost: convert(totals.dirty),
        ..Info::default()
    }
}

/// Writes the statistics to standard error.
pub(crate) fn print() {
    start::ensure();
    let totals = HEAP.totals();
    let put = |name: &str, value: u64| {
        let mut line = Line::new();
        // A Line cuts off what does not fit and cannot fail.
        let _ = writeln!(line, "{name:<24} {value:>16}");
        sys::write(2, line.bytes());
    };
    let stat = |word: &core::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
    let mut line = Line::new();
    let name = pagemill_heap::config::NAMES[HEAP.config().index()];
    let _ = writeln!(line, "pagemill heap of process {}, configuration {name}", sys::pid());
    sys::write(2, line.bytes());
    put("mapped bytes", totals.mapped as u64);
    put("metadata bytes", totals.metadata as u64);
    put("live bytes", totals.live as u64);
    put("cached bytes", totals.cached as u64);
    put("large bytes", totals.large as u64);
    put("free slot bytes", totals.free_slots as u64);
    put("dirty bytes", totals.dirty as u64);
    put("threads", totals.threads as u64);
    put("compaction passes", stat(&pagemill_stats.passes));
    put("merged bytes", stat(&pagemill_stats.merged_bytes));
    put("saved bytes", stat(&pagemill_stats.saved_bytes));
    put("released bytes", stat(&pagemill_stats.released_bytes));
    put("unmerged pages", stat(&pagemill_stats.unmerged_pages));
    put("compaction ns", stat(&pagemill_stats.compact_ns));
    put("longest pause ns", stat(&pagemill_stats.longest_pause_ns));
    put("longest stall ns", stat(&pagemill_stats.longest_stall_ns));
}

/// Writes the statistics as XML in the shape of glibc's `malloc_info`: one heap, sizes, totals.
pub(crate) fn xml(out: &mut dyn Write) -> fmt::Result {
    start::ensure();
    let totals = HEAP.totals();
    out.write_str("<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n")?;
    let mut result = Ok(());
    HEAP.each_class(&mut |class| {
        if class.spans > 0 && result.is_ok() {
            let free = (class.slots - class.live) * class.slot_size;
            result = writeln!(
                out,
                "  <size from=\"{0}\" to=\"{0}\" total=\"{1}\" count=\"{2}\" spans=\"{3}\" live=\"{4}\"/>",
                class.slot_size,
                free,
                class.slots - class.live,
                class.spans,
                class.live
            );
        }
    });
    result?;
    write!(
        out,
        "</sizes>\n<total type=\"rest\" count=\"0\" size=\"{}\"/>\n\
         <system type=\"current\" size=\"{}\"/>\n</heap>\n\
         <total type=\"mmap\" count=\"{}\" size=\"{}\"/>\n\
         <system type=\"current\" size=\"{}\"/>\n\
         <aspace type=\"total\" size=\"{}\"/>\n</malloc>\n",
        totals.free_slots + totals.dirty,
        totals.mapped.saturating_sub(totals.own_mappings),
        totals.own_mapping_count,
        totals.own_mappings,
        totals.mapped,
        totals.mapped + totals.metadata,
    )
}

/// `mesh_mallctl`: the value of this name before the call, or `None` if there is no such name.
///
/// `mesh.check_period` (milliseconds; a new value is set), `mesh.compact` (asks for a pass and waits up to a second for
/// it; the bytes that merging saves), `mesh.scavenge` (gives free memory back; the bytes), `stats.allocated`,
/// `stats.active`, `stats.resident`, `stats.mapped` (bytes).
pub(crate) fn control(name: &[u8], new: Option<usize>) -> Option<usize> {
    start::ensure();
    let totals = HEAP.totals();
    Some(match name {
        b"mesh.check_period" => {
            let old = state::period_ms();
            if let Some(period) = new {
                state::set_period_ms(period as u64);
            }
            old as usize
        }
        b"mesh.compact" => {
            helper::request_pass();
            pagemill_stats.saved_bytes.load(Ordering::Relaxed) as usize
        }
        // SAFETY: the cache is this thread's own.
        b"mesh.scavenge" => interim::within(|| unsafe { HEAP.trim(thread::cache()) }).unwrap_or(0),
        b"stats.allocated" => totals.live.saturating_sub(totals.cached),
        b"stats.active" => totals.live + totals.free_slots,
        b"stats.resident" => (totals.live + totals.free_slots + totals.dirty + totals.metadata)
            .saturating_sub(pagemill_stats.saved_bytes.load(Ordering::Relaxed) as usize),
        b"stats.mapped" => totals.mapped + totals.metadata,
        _ => return None,
    })
}

extern "C" fn at_exit() {
    diagnostics::pending();
    if HEAP.config().hardened {
        // What the check finds ends the program, whose output is still in its streams.
        type Flush = unsafe extern "C" fn(*mut c_void) -> c_int;
        if let Some(flush) = libc::function!("fflush", Flush) {
            // SAFETY: null stands for all streams.
            unsafe { flush(core::ptr::null_mut()) };
        }
    }
    // A handler that allocated meanwhile would wait for a lock that its own thread holds.
    let mask = sys::set_signal_mask(fork::SIGNALS);
    if HEAP.config().hardened {
        interim::within(|| HEAP.check_held());
    }
    if settings::get().stats_at_exit && !tls::is_within() {
        print();
    }
    sys::set_signal_mask(mask);
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

// Ten numbers each, as C lays them out.
const _: () = assert!(size_of::<Info<c_int>>() == 40 && size_of::<Info<usize>>() == 80);
