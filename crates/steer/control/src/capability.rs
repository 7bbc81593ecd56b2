//! What this machine and user can do: one row a capability, found out by trying it.
//!
//! `doctor` prints all rows; a test or a verb that depends on one asks for that row, so that what
//! doctor says and what they do cannot differ. No probe changes anything that outlives it.

mod finding;
mod tracing;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagemill_kernel::memory::huge_pages_of::Pages;
use pagemill_kernel::memory::ksm::{self, Run};
use pagemill_kernel::memory::page_idle::Frames;
use pagemill_kernel::memory::userfaultfd::{self, OpenMethod, Userfaultfd, Writer};
use pagemill_kernel::process::psi::{Resource, StallKind, Trigger};
use pagemill_kernel::process::yama::PtraceScope;
use pagemill_kernel::process::{Capability, Status as ProcessStatus};
use pagemill_kernel::settings::thp::{self as thp_of_process, Disabled};
use pagemill_kernel::trace::load_samples::Loads;
use pagemill_kernel::{
    Error, Kind, Linux,
    memory::memfd,
    page_size,
    process::{process_vm, scheduling},
    settings::ksm_loan,
};
use pagemill_model::{PageRange, Pid};
use serde::Serialize;

use finding::Finding;
pub use finding::Status;
use pagemill_launch::library;
use pagemill_launch::stats_page::{self, Snapshot};

/// One capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CapabilityRow {
    /// Its name; never changes.
    pub name: &'static str,
    /// How far it goes.
    pub status: Status,
    /// What the probe saw.
    pub finding: String,
    /// The kernel release that has it.
    pub since: &'static str,
    /// What pagemill uses it for.
    pub used_for: &'static str,
    /// The command that mends it, if it is not in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

type Probe = fn(&Linux) -> Finding;

/// Name, kernel release, use, probe: in the order in which doctor prints them.
const CAPABILITIES: &[(&str, &str, &str, Probe)] = &[
    ("preload-library", "2.6", "run: the compacting heap itself", preload_library),
    ("ksm", "2.6.32", "run --ksm: pages made identical are merged by the kernel", ksm),
    (
        "userfaultfd",
        "4.11",
        "run, back end remap: holding writers while a page is moved",
        userfaultfd,
    ),
    (
        "userfaultfd-write-protect",
        "5.7",
        "run, back end remap: the barrier itself, for threads and system calls",
        write_protect,
    ),
    (
        "userfaultfd-move",
        "6.8",
        "run, back end remap: moving a page that may be pinned",
        move_pages,
    ),
    ("memfd", "3.17", "run, back end remap: the image that merged pages share", memfd),
    (
        "max-map-count",
        "2.6",
        "run, back end remap: up to two mappings for each unit of 1 to 16 pages that it merges",
        max_map_count,
    ),
    (
        "cgroup",
        "2.6.25, v2 4.5",
        "memory with the kernel's own part; compaction near a limit",
        cgroup,
    ),
    ("psi", "4.20", "compaction under memory pressure", psi),
    (
        "real-time",
        "2.0",
        "run: a helper whose freezes are short because it waits for nobody",
        real_time,
    ),
    ("thp", "2.6.38", "huge pages for the dense part of a heap", thp),
    (
        "fragmentation",
        "2.6.35",
        "frag: scores of free memory, fragmenting it, mending it",
        fragmentation,
    ),
    (
        "prefault",
        "6.8",
        "run --huge: pages ahead of a program's growth, and a program apart from the system's huge pages",
        prefault,
    ),
    (
        "process-memory",
        "3.2",
        "heap, record: reading the statistics of a running program",
        process_memory,
    ),
    (
        "perf-events",
        "2.6.31",
        "record --with faults: timing page faults; advise --counters",
        tracing::perf_events,
    ),
    (
        "page-walks",
        "2.6.31",
        "advise --places: page walks by the processor's counters, in fewer runs",
        tracing::page_walks,
    ),
    ("bpf", "5.11", "record --with faults: timing in the kernel, exact and cheap", tracing::bpf),
    (
        "bpf-tracepoints",
        "5.5",
        "record --with faults: what a fault's time went into",
        tracing::details,
    ),
    ("bpf-fentry", "5.5", "record --with faults: the cheapest points to time at", tracing::fentry),
    (
        "access-tracing",
        "6.11",
        "record --with accesses: every page that a program touches",
        tracing::accesses,
    ),
    (
        "emulator",
        "any",
        "record --with accesses --backend exact, validate: every access, in QEMU's user-mode emulator",
        tracing::emulator,
    ),
    (
        "memory-tiers",
        "6.1",
        "tier: nodes to move pages between, and DAMON to see what is hot",
        tiers,
    ),
    (
        "access-trackers",
        "4.3",
        "tier --track: idle bits of frames, or loads sampled by the processor (PEBS, IBS)",
        access_trackers,
    ),
    ("seccomp", "3.5", "all of the above: a filter may refuse their system calls", seccomp),
];

/// The names of the rows.
pub fn names() -> impl Iterator<Item = &'static str> {
    CAPABILITIES.iter().map(|(name, ..)| *name)
}

/// All rows.
pub fn all(linux: &Linux) -> Vec<CapabilityRow> {
    CAPABILITIES
        .iter()
        .map(|&(name, since, used_for, probe)| {
            let Finding { status, finding, fix } = probe(linux);
            CapabilityRow { name, status, finding, since, used_for, fix }
        })
        .collect()
}

fn me(linux: &Linux) -> Option<ProcessStatus> {
    linux.status(Pid::own()).or_else(|_| Linux::live().status(Pid::own())).ok()
}

fn preload_library(_: &Linux) -> Finding {
    const BUILD: &str = "cargo build --profile preload -p pagemill-preload-heap && \
                         export PAGEMILL_HEAP_LIB=$PWD/target/preload/libpagemill_heap.so";
    let path = match library::find_heap() {
        Ok(path) => path,
        Err(error) => return Finding::missing(format!("{error:#}"), BUILD),
    };
    let place = path.display();
    match heap_of_a_child(&path) {
        Ok(Some(snapshot)) => {
            let config = snapshot.config_name().unwrap_or("unknown");
            Finding::ok(format!("{place}; a program ran on it, configuration {config}"))
        }
        Ok(None) => Finding::missing(
            format!("{place}: a program that preloads it does not run on its heap"),
            BUILD,
        ),
        Err(error) => Finding::degraded(
            format!("{place}; whether it works cannot be seen: {error}"),
            "run doctor as root",
        ),
    }
}

/// Starts a program on the library and reads its statistics; `None` if its heap does not start.
fn heap_of_a_child(library: &Path) -> Result<Option<Snapshot>, Error> {
    let failed = |error| Error::io("start", "a program on the library", error);
    let mut child = Command::new("cat")
        .env("LD_PRELOAD", library)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let deadline = Instant::now() + Duration::from_secs(1);
    let snapshot = loop {
        let page = stats_page::locate(&Linux::live(), Pid(child.id()));
        match page.and_then(|page| page.map_or(Ok(None), |page| page.read())) {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            outcome => break outcome,
        }
    };
    drop(child.stdin.take());
    child.wait().map_err(failed)?;
    snapshot
}

fn ksm(linux: &Linux) -> Finding {
    const SIDE_CHANNEL: &str = "side channel: whoever can offer a page can tell by the time of a write \
                                whether another program holds the same content";
    const FIX: &str = "boot a kernel with CONFIG_KSM=y; without it the back end remap is used";
    let settings = match linux.ksm_settings().and_then(|found| ksm::try_to_offer().map(|()| found))
    {
        Ok(settings) => settings,
        Err(error) => return Finding::missing(error.to_string(), FIX),
    };
    let directory = pagemill_kernel::settings::loan::directory(linux);
    if let Ok(Some(_)) = ksm_loan::left_over(&directory) {
        return Finding::degraded(
            "a pagemill run --ksm was killed and left the settings of ksmd changed",
            "sudo pagemill run -- true",
        );
    }
    if let Some(holder) = ksm_loan::borrowers(&directory).unwrap_or_default().first() {
        return Finding::ok(format!(
            "governed by pagemill run --ksm (process {holder}); {SIDE_CHANNEL}"
        ));
    }
    match (settings.run, linux.may_set_ksm()) {
        (Run::Merge, _) => Finding::ok(format!(
            "ksmd runs, started by the administrator or a service (ksmtuned, systemd); {SIDE_CHANNEL}"
        )),
        (_, Ok(())) => Finding::ok(format!("ksmd rests; run --ksm may start it; {SIDE_CHANNEL}")),
        (_, Err(_)) => Finding::degraded(
            format!("ksmd rests and this user may not start it; {SIDE_CHANNEL}"),
            "sudo pagemill run --ksm -- COMMAND",
        ),
    }
}

/// The strongest userfaultfd that this user gets, or why there is none.
fn best_userfaultfd(linux: &Linux) -> Result<Userfaultfd, Error> {
    let open = |way| Userfaultfd::open(linux, way);
    open(OpenMethod::SystemCall)
        .or_else(|_| open(OpenMethod::Device))
        .or_else(|_| open(OpenMethod::UserModeOnly))
}

const FULL_USERFAULTFD: &str =
    "sudo setfacl -m u:$USER:rw /dev/userfaultfd   (or: sudo sysctl vm.unprivileged_userfaultfd=1)";
const NO_USERFAULTFD: &str =
    "boot a kernel with CONFIG_USERFAULTFD=y, or allow userfaultfd(2) in the seccomp profile";

fn userfaultfd(linux: &Linux) -> Finding {
    let open_to_all = match userfaultfd::unprivileged(linux) {
        Ok(true) => "; vm.unprivileged_userfaultfd is 1",
        _ => "",
    };
    match best_userfaultfd(linux) {
        Ok(fd) => match fd.open_method() {
            OpenMethod::SystemCall => {
                Finding::ok(format!("by system call, kernel faults too{open_to_all}"))
            }
            OpenMethod::Device => Finding::ok("by /dev/userfaultfd, kernel faults too"),
            OpenMethod::UserModeOnly => Finding::degraded(
                "user-mode faults only: system calls cannot be held, so nothing is merged by remap",
                FULL_USERFAULTFD,
            ),
        },
        Err(error) => Finding::missing(error.to_string(), NO_USERFAULTFD),
    }
}

fn write_protect(linux: &Linux) -> Finding {
    let fd = match best_userfaultfd(linux) {
        Ok(fd) => fd,
        Err(error) => return Finding::missing(error.to_string(), NO_USERFAULTFD),
    };
    if !fd.features().write_protect() {
        return Finding::missing(
            "this kernel's userfaultfd has no write protection",
            "boot kernel 5.7 or newer (x86_64) or 6.10 (aarch64)",
        );
    }
    if !fd.features().write_protect_unpopulated() {
        return Finding::degraded(
            "pages that do not exist yet cannot be protected, so nothing is merged by remap",
            "boot kernel 6.4 or newer (aarch64: 6.10)",
        );
    }
    match (fd.holds(Writer::Program), fd.holds(Writer::Kernel)) {
        (Ok(true), Ok(true)) => {
            Finding::ok("a thread and a read(2) were held; pages that do not exist yet included")
        }
        (Ok(true), Ok(false)) => Finding::degraded(
            "a thread was held, a read(2) was not: nothing is merged by remap",
            FULL_USERFAULTFD,
        ),
        (Err(error), _) | (_, Err(error)) => Finding::missing(error.to_string(), NO_USERFAULTFD),
        (Ok(false), _) => Finding::missing(
            "a write got through the protection",
            "report this kernel: the barrier does not hold",
        ),
    }
}

fn move_pages(linux: &Linux) -> Finding {
    match best_userfaultfd(linux).map(|fd| (fd.features().move_pages(), fd.moves())) {
        Ok((true, Ok(true))) => Finding::ok("a page was moved"),
        Ok((true, Ok(false))) => {
            Finding::missing("a moved page lost its content", "report this kernel")
        }
        Ok((true, Err(error))) => Finding::missing(error.to_string(), NO_USERFAULTFD),
        Ok((false, _)) => Finding::missing(
            "this kernel's userfaultfd does not move pages; programs that use io_uring, AIO or O_DIRECT are not \
             compacted by remap",
            "boot kernel 6.8 or newer",
        ),
        Err(error) => Finding::missing(error.to_string(), NO_USERFAULTFD),
    }
}

fn memfd(_: &Linux) -> Finding {
    let page = page_size();
    let tried = memfd::create(c"pagemill-doctor").and_then(|file| {
        let failed = |error| Error::io("write to", "a memfd", error);
        file.write_all_at(&vec![1; 2 * page], 0).map_err(failed)?;
        memfd::punch_hole(&file, 0, page as u64)
    });
    match tried {
        Ok(()) => Finding::ok("created, written, and a page given back"),
        Err(error) => Finding::missing(
            error.to_string(),
            "allow memfd_create(2) and fallocate(2) in the container's seccomp profile",
        ),
    }
}

fn max_map_count(linux: &Linux) -> Finding {
    /// What recent distributions set.
    const AMPLE: u64 = 1_048_576;
    let fix = format!("sudo sysctl vm.max_map_count={AMPLE}");
    match linux.max_map_count() {
        Ok(count) => {
            // Half is left to the program itself, and a unit may split a mapping in two.
            let finding = format!("{count}: remap can merge at most {} units a process", count / 4);
            if count < AMPLE / 4 { Finding::degraded(finding, fix) } else { Finding::ok(finding) }
        }
        Err(error) => Finding::missing(error.to_string(), fix),
    }
}

fn cgroup(linux: &Linux) -> Finding {
    const MOUNT: &str = "sudo mount -t cgroup2 none /sys/fs/cgroup";
    const DELEGATE: &str =
        "systemd-run --user --scope -p Delegate=yes -- pagemill …   (or run as root)";
    let group = match linux.memory_cgroup(Pid::own()) {
        Ok(group) => group,
        Err(error) => return Finding::missing(error.to_string(), MOUNT),
    };
    let place = format!("version {}, {}", group.version() as u8 + 1, group.directory().display());
    let readable = group.charge();
    match (&readable, group.create(&format!("doctor-{}", std::process::id()))) {
        (Err(error), Err(_)) => Finding::missing(format!("{place}: {error}"), DELEGATE),
        (_, Ok(child)) => match child.charge() {
            Ok(charge) => {
                let kernel = if charge.kernel.is_some() { "with" } else { "without" };
                Finding::ok(format!(
                    "{place}; groups can be created and read, {kernel} kernel memory"
                ))
            }
            Err(error) => Finding::degraded(format!("{place}: {error}"), DELEGATE),
        },
        (Ok(_), Err(error)) => {
            Finding::degraded(format!("{place}; readable, but: {error}"), DELEGATE)
        }
    }
}

fn psi(linux: &Linux) -> Finding {
    const FIX: &str = "boot with psi=1 on the kernel's command line (CONFIG_PSI=y)";
    let pressure = match linux.pressure(Resource::Memory) {
        Ok(pressure) => pressure,
        Err(error) => return Finding::missing(error.to_string(), FIX),
    };
    let now = format!("some task waits for memory {} % of the time", pressure.some.avg10);
    let (stall, window) = (Duration::from_millis(200), Duration::from_secs(2));
    match Trigger::open(&linux.pressure_file(Resource::Memory), StallKind::Some, stall, window) {
        Ok(_) => Finding::ok(format!("{now}; triggers can be set")),
        Err(error) => {
            Finding::degraded(format!("{now}; {error}"), "use kernel 6.5 or newer, or run as root")
        }
    }
}

fn real_time(_: &Linux) -> Finding {
    match scheduling::real_time_is_allowed() {
        Ok(()) => Finding::ok("the helper is a real-time thread of the lowest priority"),
        Err(error) => Finding::degraded(
            format!(
                "{error}: the helper has niceness -15 or the program's own; readers of smaps_rollup and top can make \
                 it, and who waits for it, wait"
            ),
            "run as root, or give the user a limit: echo \"$USER - rtprio 1\" | sudo tee \
             /etc/security/limits.d/pagemill.conf",
        ),
    }
}

fn thp(linux: &Linux) -> Finding {
    const FIX: &str = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled";
    let (enabled, largest) = match (linux.thp_enabled(), linux.thp_pmd_size()) {
        (Ok(enabled), Ok(size)) => (enabled.active, size),
        (Err(error), _) | (_, Err(error)) => {
            let fix = "boot a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y";
            return Finding::missing(error.to_string(), fix);
        }
    };
    let shared = linux.thp_shmem_enabled().map_or("unknown".into(), |choice| choice.active);
    let sizes = linux.thp_sizes().unwrap_or_default();
    let multi = match sizes.as_slice() {
        [] => "one size only".to_owned(),
        sizes => {
            let on = sizes.iter().filter(|size| {
                size.bytes != largest
                    && size.enabled.as_ref().is_some_and(|choice| choice.active != "never")
            });
            let on: Vec<String> = on.map(|size| format!("{}K", size.bytes >> 10)).collect();
            let on = if on.is_empty() { "none".to_owned() } else { on.join(" ") };
            format!("smaller sizes on offer: {}, in use: {on}", sizes.len().saturating_sub(1))
        }
    };
    let finding =
        format!("{} MiB pages: {enabled}; shared memory: {shared}; {multi}", largest >> 20);
    if enabled == "never" { Finding::degraded(finding, FIX) } else { Finding::ok(finding) }
}

fn fragmentation(linux: &Linux) -> Finding {
    const ROOT: &str = "sudo pagemill frag …";
    let zones = match linux.buddyinfo() {
        Ok(zones) => zones.len(),
        Err(error) => return Finding::missing(error.to_string(), "mount /proc"),
    };
    let seen = format!("free memory of {zones} zones by order");
    let left = pagemill_kernel::settings::loan::left_over_files(
        &pagemill_kernel::settings::loan::directory(linux),
    );
    if let Some((name, _)) = left.unwrap_or_default().first() {
        return Finding::degraded(
            format!("{seen}; a killed pagemill left settings changed ({name})"),
            "sudo pagemill frag show",
        );
    }
    match (linux.may_compact(), linux.pagetypeinfo()) {
        (Ok(()), Ok(_)) => Finding::ok(format!("{seen} and mobility; it may be compacted")),
        (Ok(()), Err(error)) => Finding::degraded(format!("{seen}; {error}"), ROOT),
        (Err(error), _) if error.kind() == Kind::NotFound => Finding::degraded(
            format!("{seen}; this kernel cannot compact"),
            "boot a kernel with CONFIG_COMPACTION=y",
        ),
        (Err(_), _) => Finding::degraded(
            format!("{seen}, but not by mobility; fragmenting and mending it is root's"),
            ROOT,
        ),
    }
}

fn prefault(linux: &Linux) -> Finding {
    const MOVE: &str = "boot kernel 6.8 or newer, or allow userfaultfd(2) in the seccomp profile";
    let moves = Userfaultfd::open(linux, OpenMethod::UserModeOnly)
        .and_then(|fd| if fd.features().move_pages() { fd.moves() } else { Ok(false) });
    match moves {
        Ok(true) => {}
        Ok(false) => {
            return Finding::missing("this kernel's userfaultfd does not move pages", MOVE);
        }
        Err(error) => return Finding::missing(error.to_string(), MOVE),
    }
    let here = &raw const moves as u64 / 4096 * 4096;
    let pages = Pages::of(&Linux::live(), Pid::own());
    if let Err(error) = pages.and_then(|pages| pages.runs(PageRange::new(here..here + 4096))) {
        return Finding::missing(error.to_string(), "boot kernel 6.7 or newer (PAGEMAP_SCAN)");
    }
    // Tried on this process, and taken back.
    let apart = thp_of_process::disable_here(Disabled::ExceptAdvised);
    let back = thp_of_process::disable_here(Disabled::No);
    match apart.and(back) {
        Ok(()) => Finding::ok(
            "pages move by a userfaultfd that every user may have; a program can be kept from the system's huge pages",
        ),
        Err(error) => Finding::degraded(
            format!(
                "pages move; the system's own huge pages stay in force beside a policy: {error}"
            ),
            "boot kernel 6.18 or newer, or: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
    }
}

fn process_memory(linux: &Linux) -> Finding {
    const FIX: &str = "sudo sysctl kernel.yama.ptrace_scope=0   (or run as root)";
    if let Err(error) = read_a_child() {
        return match error.kind() {
            Kind::Permission | Kind::Unsupported => Finding::missing(
                error.to_string(),
                "allow process_vm_readv(2) in the container's seccomp profile",
            ),
            _ => Finding::degraded(error.to_string(), FIX),
        };
    }
    let traces_all = me(linux).is_some_and(|me| me.can(Capability::SysPtrace));
    match linux.ptrace_scope() {
        _ if traces_all => {
            Finding::ok("a child's memory was read; so can be that of every process")
        }
        Ok(PtraceScope::SameUser) => {
            Finding::ok("a child's memory was read; so can be that of your processes")
        }
        Ok(PtraceScope::Ancestors) => Finding::degraded(
            "a child's memory was read; Yama allows no more than that (ptrace_scope 1), so attaching to a running \
             program fails",
            FIX,
        ),
        Ok(_) => Finding::degraded("Yama allows tracing to root only", "run as root"),
        Err(error) => Finding::degraded(error.to_string(), FIX),
    }
}

/// Reads the first bytes of the program that a child of ours runs.
fn read_a_child() -> Result<(), Error> {
    let failed = |error| Error::io("start", "a child to look into", error);
    let mut child =
        Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(failed)?;
    let read = Linux::live().maps(Pid(child.id())).and_then(|maps| {
        let first = maps.first().map_or(0, |mapping| mapping.start);
        process_vm::read(Pid(child.id()), first, &mut [0; 4])
    });
    drop(child.stdin.take());
    child.wait().map_err(failed)?;
    read
}

/// Whether there is somewhere to move pages to; `tier doctor` has the whole page.
fn tiers(linux: &Linux) -> Finding {
    let nodes = match linux.memory_nodes() {
        Ok(nodes) => nodes.len(),
        Err(error) => return Finding::missing(error.to_string(), "pagemill tier doctor"),
    };
    if nodes < 2 {
        return Finding::degraded(
            "one memory node: tier has nowhere to move pages to; the simulator needs none",
            "pagemill simulate gups --policy tpp,tpp+colloid",
        );
    }
    match linux.damon() {
        Ok(_) => {
            Finding::ok(format!("{nodes} memory nodes, and DAMON; details: pagemill tier doctor"))
        }
        Err(error) => {
            Finding::degraded(format!("{nodes} memory nodes, but: {error}"), "pagemill tier doctor")
        }
    }
}

/// What `tier` can track with where DAMON is missing or somebody else's.
fn access_trackers(linux: &Linux) -> Finding {
    let idle = Frames::open(linux).map(|_| "idle bits".to_owned());
    let loads = Loads::open(linux).map(|loads| loads.name().to_owned());
    match (&idle, &loads) {
        (Err(idle), Err(loads)) => Finding::degraded(
            format!("{}; {}", idle.reason(), loads.reason()),
            "not needed where DAMON is; else boot a kernel with CONFIG_IDLE_PAGE_TRACKING=y, as root",
        ),
        _ => Finding::ok([idle, loads].into_iter().flatten().collect::<Vec<_>>().join(", ")),
    }
}

fn seccomp(linux: &Linux) -> Finding {
    let refused = |tried: Result<(), Error>| {
        tried.err().filter(|error| matches!(error.errno(), Some(1 | 38))) // EPERM, ENOSYS
    };
    match me(linux).and_then(|me| me.seccomp) {
        Some(0) => Finding::ok("no filter is in force"),
        None => Finding::ok("this kernel has no filters"),
        Some(_) => {
            let calls = [
                ("memfd_create", refused(memfd::create(c"pagemill-doctor").map(drop))),
                (
                    "userfaultfd",
                    refused(Userfaultfd::open(linux, OpenMethod::UserModeOnly).map(drop)),
                ),
                ("process_vm_readv", refused(read_a_child())),
                ("madvise", refused(ksm::try_to_offer())),
            ];
            let refused: Vec<&str> = calls
                .iter()
                .filter(|(_, refusal)| refusal.is_some())
                .map(|(name, _)| *name)
                .collect();
            if refused.is_empty() {
                Finding::ok("a filter is in force and lets pagemill's system calls pass")
            } else {
                Finding::degraded(
                    format!("a filter is in force and refuses: {}", refused.join(", ")),
                    "allow these in the profile (docker: --security-opt seccomp=PROFILE.json)",
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without any of the interfaces.
    fn bare() -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        (root, linux)
    }

    #[test]
    fn a_machine_without_an_interface_misses_it_and_says_what_to_do() {
        let (_root, linux) = bare();
        for probe in [ksm, max_map_count, cgroup, psi, thp, fragmentation] {
            let found = probe(&linux);
            assert_eq!(found.status, Status::Missing, "{}", found.finding);
            assert!(found.fix.is_some_and(|fix| !fix.is_empty()), "{}", found.finding);
        }
    }

    #[test]
    fn a_small_map_count_is_a_limit_and_a_large_one_is_not() {
        let (_root, linux) = bare();
        let file = linux.path("/proc/sys/vm/max_map_count");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "65530\n").unwrap();
        let found = max_map_count(&linux);
        assert_eq!((found.status, found.fix.is_some()), (Status::Degraded, true));
        std::fs::write(&file, "1048576\n").unwrap();
        assert_eq!(max_map_count(&linux).status, Status::Ok);
    }

    #[test]
    fn names_are_unique_and_only_what_is_in_order_has_no_fix() {
        let rows = all(&Linux::live());
        for (index, row) in rows.iter().enumerate() {
            assert!(rows[..index].iter().all(|other| other.name != row.name), "{}", row.name);
            assert_eq!(row.fix.is_none(), row.status == Status::Ok, "{row:?}");
        }
    }
}
