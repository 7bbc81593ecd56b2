//! Text of the kernel, read below a root of ours: the first byte says which file.

use pagemill_kernel::{Linux, extfrag, psi};
use pagemill_model::Pid;

use crate::{in_room, put};

/// A file, and what reads it.
type Text = (&'static str, fn(&Linux));

/// The process whose files these are.
const PID: Pid = Pid(4242);

pub(crate) const TEXTS: &[Text] = &[
    ("proc/buddyinfo", |linux| drop(linux.buddyinfo())),
    ("proc/vmstat", |linux| drop(linux.vmstat())),
    ("proc/zoneinfo", |linux| drop((linux.zoneinfo(), linux.hidden_pages()))),
    ("proc/pagetypeinfo", |linux| drop(linux.pagetypeinfo())),
    ("proc/meminfo", |linux| drop((linux.free_swap(), linux.load()))),
    ("proc/cpuinfo", |linux| drop(linux.mhz())),
    ("proc/stat", |linux| drop((linux.idle_ticks(), linux.runnable()))),
    ("proc/loadavg", |linux| drop(linux.load())),
    ("proc/pressure/memory", |linux| drop(linux.pressure(psi::Resource::Memory))),
    ("proc/4242/maps", |linux| drop((linux.maps(PID), linux.memfd_held(PID, &[])))),
    ("proc/4242/smaps", |linux| drop(linux.smaps(PID))),
    ("proc/4242/smaps_rollup", |linux| drop(linux.smaps_rollup(PID))),
    ("proc/4242/stat", |linux| drop((linux.stat(PID), linux.layout(PID)))),
    ("proc/4242/status", |linux| drop((linux.status(PID), linux.numbers(PID)))),
    ("proc/4242/ksm_stat", |linux| drop(linux.ksm_stat(PID))),
    ("proc/4242/cgroup", |linux| drop(linux.memory_cgroup(PID))),
    ("sys/kernel/mm/transparent_hugepage/enabled", |linux| drop(linux.thp_enabled())),
    ("sys/kernel/debug/extfrag/unusable_index", |linux| {
        if let Ok(files) = extfrag::Extfrag::open(linux) {
            let _ = files.unusable();
        }
    }),
    ("sys/devices/system/node/has_memory", |linux| drop(linux.memory_nodes())),
    ("sys/devices/system/node/node0/meminfo", |linux| drop(linux.memory_nodes())),
];

/// Any of these texts.
pub fn kernel(bytes: &[u8]) {
    let Some((which, text)) = bytes.split_first() else { return };
    let (path, read) = TEXTS[usize::from(*which) % TEXTS.len()];
    in_room(|room| {
        let root = room.join("root");
        if put(&root.join(path), text).is_ok() {
            read(&Linux::at(&root));
        }
    });
}
