//! Text of the kernel, read below a root of ours: the first byte says which file.

use pagemill_kernel::{Linux, memory::extfrag, process::psi};
use pagemill_model::Pid;

use crate::scratch::{in_scratch, put};

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
    ("sys/devices/system/node/node0/distance", |linux| drop(linux.memory_nodes())),
    ("sys/devices/system/node/node0/cpulist", |linux| drop(linux.memory_nodes())),
    ("sys/devices/system/node/node0/vmstat", |linux| {
        for node in linux.memory_nodes().unwrap_or_default() {
            let _ = (node.promoted(), node.demoted());
        }
    }),
    // What firmware says in its HMAT.
    ("sys/devices/system/node/node0/access1/initiators/read_latency", |linux| {
        drop(linux.memory_nodes());
    }),
    ("sys/devices/virtual/memory_tiering/memory_tier4/nodelist", |linux| {
        drop(linux.memory_nodes())
    }),
    ("sys/devices/system/memory/block_size_bytes", |linux| drop(linux.node_addresses(0))),
    ("sys/devices/system/cpu/online", |linux| drop(linux.processors())),
    ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", |linux| drop(linux.damon())),
    ("sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", |linux| drop(linux.thp_sizes())),
    ("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", |linux| drop(linux.thp_pmd_size())),
    ("sys/bus/event_source/devices/cpu/format/event", |linux| {
        for unit in linux.pmus("cpu").unwrap_or_default() {
            let _ = unit.encode("event=0xffffffffffffffff");
        }
    }),
    ("proc/self/mountinfo", |linux| group(linux)),
    ("sys/fs/cgroup/memory.stat", |linux| group(linux)),
    ("sys/fs/cgroup/memory.events", |linux| group(linux)),
    ("sys/fs/cgroup/memory.max", |linux| group(linux)),
    ("sys/fs/cgroup/cgroup.controllers", |linux| group(linux)),
];

/// Files beside those, so that the reader comes to them.
const BESIDE: &[(&str, &[u8])] = &[
    ("sys/devices/system/node/has_memory", b"0\n"),
    (
        "sys/devices/system/node/node0/meminfo",
        b"Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 512 kB\n",
    ),
    ("sys/devices/system/node/node0/memory8/online", b"1\n"),
    ("sys/bus/event_source/devices/cpu/type", b"4\n"),
    ("sys/bus/event_source/devices/cpu/format/event", b"config:0-7\n"),
    ("proc/self/mountinfo", b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
    ("proc/4242/cgroup", b"0::/\n"),
    ("sys/fs/cgroup/cgroup.controllers", b"cpu memory\n"),
    ("sys/fs/cgroup/memory.current", b"4096\n"),
    ("sys/fs/cgroup/memory.stat", b"anon 1\nkernel 2\n"),
    ("sys/fs/cgroup/memory.events", b"high 1\nmax 2\noom_kill 0\n"),
    ("sys/fs/cgroup/memory.max", b"max\n"),
];

/// All that is said of the group of a process.
fn group(linux: &Linux) {
    let Ok(group) = linux.memory_cgroup(PID) else { return };
    let _ = (group.charge(), group.stat(), group.events(), group.least_limit(), group.name());
}

/// Any of these texts.
pub fn kernel(bytes: &[u8]) {
    let Some((which, text)) = bytes.split_first() else { return };
    let (path, read) = TEXTS[usize::from(*which) % TEXTS.len()];
    in_scratch(|room| {
        let root = room.join("root");
        let beside = BESIDE.iter().filter(|(other, _)| *other != path);
        let beside = beside.map(|(other, text)| put(&root.join(other), text));
        if beside.chain([put(&root.join(path), text)]).all(|put| put.is_ok()) {
            read(&Linux::at(&root));
        }
    });
}
