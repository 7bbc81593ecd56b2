//! Text of the kernel, read below a root of ours: the first byte says which file.

use std::os::fd::AsRawFd as _;

use pagemill_kernel::trace::tracefs;
use pagemill_kernel::{Linux, memory::extfrag, process::psi};
use pagemill_launch::{cpython, program};
use pagemill_model::Pid;
use pagemill_preload_sys::confine;

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
    ("proc/cpuinfo", |linux| {
        drop((linux.mhz(), linux.processor()));
        let _ = linux.is_virtual();
    }),
    ("proc/stat", |linux| drop((linux.idle_ticks(), linux.runnable()))),
    ("proc/loadavg", |linux| drop((linux.load(), linux.load_averages()))),
    ("proc/pressure/memory", |linux| drop(linux.pressure(psi::Resource::Memory))),
    ("proc/4242/maps", |linux| drop((linux.maps(PID), linux.memfd_held(PID, &[])))),
    ("proc/4242/smaps", |linux| drop(linux.smaps(PID))),
    ("proc/4242/smaps_rollup", |linux| {
        drop((linux.smaps_rollup(PID), linux.memory(PID), linux.memory_together(&[PID, PID])));
    }),
    ("proc/4242/stat", |linux| {
        drop((linux.stat(PID), linux.layout(PID), linux.kernel_thread("python3")));
        drop((linux.processes(), linux.threads(PID)));
        let _ = (linux.is_ending(PID), linux.living(PID).map(|then| linux.runs(&then)));
    }),
    ("proc/4242/status", |linux| {
        drop((linux.status(PID), linux.numbers(PID), linux.thread_group(PID)));
        let _ = linux.is_ending(PID);
    }),
    ("proc/thread-self/status", |linux| {
        // As the libraries read it within other programs.
        if let Ok(file) = std::fs::File::open(linux.path("/proc/thread-self/status")) {
            let _ = confine::filters_in(file.as_raw_fd());
        }
    }),
    ("proc/4242/oom_score_adj", |linux| drop(linux.oom_score_adj(PID))),
    ("proc/sys/kernel/osrelease", |linux| drop(linux.release())),
    ("proc/sys/kernel/hostname", |linux| drop(linux.hostname())),
    ("proc/sys/kernel/random/boot_id", |linux| drop(linux.boot())),
    ("proc/sys/kernel/perf_event_paranoid", |linux| drop(linux.perf_event_paranoid())),
    ("proc/sys/kernel/yama/ptrace_scope", |linux| drop(linux.ptrace_scope())),
    ("proc/sys/vm/max_map_count", |linux| drop(linux.max_map_count())),
    ("proc/sys/vm/nr_hugepages", |linux| drop(linux.reserved_huge_pages())),
    ("proc/kpageflags", |linux| drop(linux.frames(|_| {}))),
    ("proc/sys/kernel/numa_balancing", |linux| drop(linux.numa_balancing())),
    ("proc/sys/kernel/numa_balancing_promote_rate_limit_MBps", |linux| {
        drop(linux.numa_balancing());
    }),
    ("sys/kernel/mm/numa/demotion_enabled", |linux| drop(linux.numa_balancing())),
    ("sys/kernel/mm/ksm/run", |linux| drop(linux.ksm_settings())),
    ("sys/kernel/mm/ksm/advisor_mode", |linux| drop(linux.ksm_settings())),
    ("sys/kernel/mm/ksm/pages_to_scan", |linux| drop(linux.ksm_settings())),
    ("sys/kernel/mm/ksm/general_profit", |linux| drop(linux.ksm_counters())),
    ("sys/kernel/mm/ksm/pages_sharing", |linux| drop(linux.ksm_counters())),
    ("proc/4242/ksm_stat", |linux| drop(linux.ksm_stat(PID))),
    ("proc/4242/cgroup", |linux| drop(linux.memory_cgroup(PID))),
    ("proc/4242/task/4242/syscall", |linux| drop(linux.waits_for_typing(PID))),
    ("proc/4242/fdinfo/0", |linux| drop(linux.waits_for_typing(PID))),
    ("proc/4242/net/tcp", |linux| drop(linux.listens(PID))),
    ("proc/4242/net/unix", |linux| drop(linux.listens(PID))),
    ("proc/4242/schedstat", |linux| drop(linux.thread_cpu(PID))),
    ("proc/4242/task/4242/schedstat", |linux| _ = linux.waited(PID, Pid(1), 64)),
    ("proc/4242/task/4242/children", |linux| drop(linux.children(PID))),
    ("proc/4242/numa_maps", |linux| drop(linux.memory_binding(PID))),
    ("proc/4242/environ", |linux| _ = cpython::has_pymalloc(linux, PID)),
    ("proc/4242/cmdline", |linux| {
        if let Ok(words) = std::fs::read(linux.process_file(PID, "cmdline")) {
            let _ = program::arguments(&words);
        }
    }),
    ("sys/kernel/tracing/events/compaction/mm_compaction_end/id", |linux| {
        drop(tracefs::number(linux, "compaction/mm_compaction_end"));
    }),
    ("sys/kernel/mm/transparent_hugepage/enabled", |linux| drop(linux.thp_enabled())),
    ("sys/kernel/mm/transparent_hugepage/defrag", |linux| drop(linux.thp_defrag())),
    ("sys/kernel/mm/transparent_hugepage/shmem_enabled", |linux| drop(linux.thp_shmem_enabled())),
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
    ("sys/devices/system/cpu/cpu0/cache/index0/size", |linux| _ = linux.cache_bytes(2)),
    ("sys/devices/system/cpu/cpu0/cache/index0/level", |linux| _ = linux.cache_bytes(2)),
    ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", |linux| drop(linux.damon())),
    ("sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled", |linux| {
        drop((linux.thp_sizes(), linux.thp_medium()));
    }),
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
    ("sys/fs/cgroup/memory.pressure", |linux| group(linux)),
];

/// Texts of those that neither a snapshot nor every process has.
pub(crate) const OWN: &[(&str, &[u8])] = &[
    // ppoll without a limit of time, and read; the rest of a line are addresses.
    ("proc/4242/task/4242/syscall", b"271 0x0 0x0 0x0 0x0 0x8 0x0 0x7ffd00000000 0x7f0000000000\n"),
    ("proc/4242/task/4242/syscall", b"0 0x0 0x7f00 0x400 0x0 0x0 0x0 0x7ffd0000 0x7f0000000000\n"),
    ("proc/4242/fdinfo/0", b"pos:\t0\nflags:\t0100001\nmnt_id:\t15\nino:\t7\n"),
    (
        "proc/4242/net/tcp",
        b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
        0: 0100007F:18EB 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77 1 0 100\n",
    ),
    (
        "proc/4242/net/unix",
        b"Num RefCount Protocol Flags Type St Inode Path\n0: 00000002 00000000 00010000 0001 01 77 /run/x\n",
    ),
    ("proc/4242/schedstat", b"123456789 987654321 55\n"),
    ("proc/4242/task/4242/schedstat", b"123456789 987654321 55\n"),
    ("proc/4242/task/4242/children", b"77 78 79 "),
    ("proc/4242/numa_maps", b"00400000 bind:0-1,3 file=/bin/cat mapped=2 N0=2 kernelpagesize_kB=4\n"),
    ("proc/4242/environ", b"HOME=/root\0PYTHONMALLOC=malloc_debug\0PATH=/bin\0"),
    ("proc/4242/cmdline", b"python3\0-c\0pass\0"),
    ("sys/kernel/tracing/events/compaction/mm_compaction_end/id", b"517\n"),
    ("proc/4242/oom_score_adj", b"-1000\n"),
    // A free block and its tail, a page table, one of a program; and half a word.
    (
        "proc/kpageflags",
        b"\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\x20\x18\0\0\0\0\0\0\x20\x18\0",
    ),
    ("sys/devices/system/cpu/cpu0/cache/index0/size", b"2048K\n"),
    ("sys/devices/system/cpu/cpu0/cache/index0/level", b"2\n"),
    ("proc/sys/kernel/perf_event_paranoid", b"-1\n"),
    ("proc/sys/kernel/yama/ptrace_scope", b"1\n"),
    ("sys/kernel/mm/ksm/run", b"2\n"),
    ("sys/kernel/mm/ksm/advisor_mode", b"none [scan-time]\n"),
    ("sys/kernel/mm/ksm/general_profit", b"-12345\n"),
    (
        "sys/fs/cgroup/memory.pressure",
        b"some avg10=0.00 avg60=1.50 avg300=100.00 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    ),
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
    (
        "proc/4242/maps",
        b"7f0000000000-7f0000001000 r-xp 00000000 fe:00 7 /lib/libpython3.11.so.1.0\n",
    ),
    ("proc/4242/stat", STAT),
    ("sys/devices/system/cpu/cpu0/cache/index0/type", b"Unified\n"),
    ("sys/devices/system/cpu/cpu0/cache/index0/size", b"512K\n"),
    ("sys/devices/system/cpu/cpu0/cache/index0/level", b"2\n"),
    ("proc/4242/status", STATUS),
    // A standard input that is only written to.
    ("proc/4242/fd/0", b""),
    ("proc/4242/fdinfo/0", b"flags:\t0100001\n"),
    ("proc/4242/task/4242/syscall", b"0 0x0 0x7f00 0x400 0x0 0x0 0x0 0x7ffd0000 0x7f0000000000\n"),
    ("proc/4242/task/4243/schedstat", b"1 18446744073709551615 1\n"),
    ("sys/kernel/tracing/instances/none", b""),
    ("sys/fs/cgroup/cgroup.controllers", b"cpu memory\n"),
    ("sys/fs/cgroup/memory.current", b"4096\n"),
    ("sys/fs/cgroup/memory.stat", b"anon 1\nkernel 2\n"),
    ("sys/fs/cgroup/memory.events", b"high 1\nmax 2\noom_kill 0\n"),
    ("sys/fs/cgroup/memory.max", b"max\n"),
    ("proc/sys/kernel/numa_balancing", b"2\n"),
    ("sys/kernel/mm/numa/demotion_enabled", b"true\n"),
    ("sys/kernel/mm/ksm/run", b"1\n"),
    ("sys/kernel/mm/ksm/advisor_mode", b"[none] scan-time\n"),
    ("sys/kernel/mm/ksm/pages_to_scan", b"100\n"),
    ("sys/kernel/mm/ksm/sleep_millisecs", b"20\n"),
    ("sys/kernel/mm/ksm/smart_scan", b"1\n"),
    ("sys/kernel/mm/ksm/pages_shared", b"7\n"),
    ("sys/kernel/mm/ksm/pages_sharing", b"8\n"),
    ("sys/kernel/mm/ksm/pages_unshared", b"9\n"),
    ("sys/kernel/mm/ksm/pages_volatile", b"1\n"),
    ("sys/kernel/mm/ksm/full_scans", b"2\n"),
    ("sys/kernel/mm/ksm/general_profit", b"-4096\n"),
];

/// Of the process what ends with its state.
const STATUS: &[u8] =
    b"Name:\tpython3\nState:\tS (sleeping)\nTgid:\t4242\nPid:\t4242\nSigPnd:\t0000000000000000\n";

/// The process, with all that the kernel tells of where its parts are (proc_pid_stat(5)).
const STAT: &[u8] = b"4242 (python3) S 1 4242 4242 0 -1 4194304 100 0 0 0 3 4 0 0 20 0 1 0 7000 8192000 2000 \
    18446744073709551615 4194304 4198400 140737488347136 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 4200000 4204000 5000000 \
    140737488351000 140737488351100 140737488351100 140737488355000 0\n";

/// All that is said of the group of a process.
fn group(linux: &Linux) {
    let Ok(group) = linux.memory_cgroup(PID) else { return };
    let _ = (group.charge(), group.stat(), group.events(), group.least_limit(), group.name());
    let _ = group.pressure_file().map(|file| psi::read_file(&file));
}

/// Any of these texts.
pub fn kernel(bytes: &[u8]) {
    let Some((which, text)) = bytes.split_first() else { return };
    let (path, read) = TEXTS[usize::from(*which) % TEXTS.len()];
    in_scratch(|room| {
        let root = room.join("root");
        let made =
            root.exists() || BESIDE.iter().all(|(of, text)| put(&root.join(of), text).is_ok());
        if !made || put(&root.join(path), text).is_err() {
            return;
        }
        read(&Linux::at(&root));
        // The next one finds what this one did.
        let _ = match BESIDE.iter().find(|(other, _)| *other == path) {
            Some((_, text)) => put(&root.join(path), text),
            None => std::fs::remove_file(root.join(path)),
        };
    });
}
