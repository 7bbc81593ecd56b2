//! Tracing: each probe makes page faults of its own and looks whether all of them were seen.

use pagemill_kernel::trace::bpf::faults::{FaultEvent, Faults, Points};
use pagemill_kernel::trace::page_walks::PageWalks;
use pagemill_kernel::trace::perf_event::{Attributes, Counter, Event, Record, Ring, Target};
use pagemill_kernel::{Error, Kind, Linux, memory::touch, trace::bpf};
use pagemill_model::{Nanos, Order, Pid};

use super::finding::Finding;

/// Faults that a probe makes.
const TOUCHED: usize = 64;

pub(super) fn perf_events(linux: &Linux) -> Finding {
    const FIX: &str = "sudo sysctl kernel.perf_event_paranoid=2   (or run as root, or allow perf_event_open(2) in \
                       the seccomp profile)";
    let paranoid = linux.perf_event_paranoid();
    match (paranoid, sampled()) {
        (Err(error), _) => {
            Finding::missing(error.to_string(), "boot a kernel with CONFIG_PERF_EVENTS=y")
        }
        (_, Err(error)) => Finding::missing(error.to_string(), FIX),
        (_, Ok(seen)) if seen != TOUCHED => Finding::missing(
            format!("{seen} of {TOUCHED} faults were sampled"),
            "report this kernel",
        ),
        (Ok(paranoid), Ok(_)) => {
            let kernel =
                Event::open(&Attributes::counting(Counter::MinorFaults), Target::Thread(Pid(0)));
            let counted = match Event::open(
                &Attributes::counting(Counter::Cycles).user_only(),
                Target::Thread(Pid(0)),
            ) {
                Ok(_) => "the processor's counters work",
                Err(_) => "the processor's counters are not available",
            };
            let all = format!("{TOUCHED} of {TOUCHED} faults were sampled; {counted}");
            match kernel {
                Ok(_) => Finding::ok(all),
                Err(_) => Finding::degraded(
                    format!(
                        "{all}; faults inside system calls are not seen (perf_event_paranoid is {paranoid})"
                    ),
                    "sudo sysctl kernel.perf_event_paranoid=1   (or run as root)",
                ),
            }
        }
    }
}

pub(super) fn page_walks(linux: &Linux) -> Finding {
    match PageWalks::find(linux) {
        Ok(walks) => Finding::ok(format!("{} count", walks.name)),
        Err(error) => Finding::degraded(
            format!("{error}; benefits are measured by runs"),
            "use a processor whose counters are available (a virtual machine needs a virtual PMU)",
        ),
    }
}

/// How many of the faults of a known piece of memory end up in a ring.
fn sampled() -> Result<usize, Error> {
    let attributes = Attributes::sampling(Counter::MinorFaults, 1).user_only();
    let mut ring = Ring::map(Event::open(&attributes, Target::Thread(Pid(0)))?, 64 << 10)?;
    ring.event().enable()?;
    let start = touch::pages(TOUCHED)?;
    ring.event().disable()?;
    let mut seen = 0;
    ring.read(|record| {
        if let Record::Sample(sample) = record {
            seen += usize::from(is_touched(start, sample.address));
        }
    });
    Ok(seen)
}

fn is_touched(start: u64, address: u64) -> bool {
    (start..start + (TOUCHED * pagemill_kernel::page_size()) as u64).contains(&address)
}

const BPF: &str = "run as root, or with CAP_BPF and CAP_PERFMON, a kernel with CONFIG_BPF_SYSCALL=y and \
                   CONFIG_DEBUG_INFO_BTF=y, and a build where clang was installed";

pub(super) fn bpf(_: &Linux) -> Finding {
    if let Err(why) = bpf::built() {
        return Finding::degraded(
            format!("this build has no BPF programs: {why}"),
            "sudo apt-get install clang, then build again",
        );
    }
    match traced(Points::Events) {
        Ok((seen, _)) if seen == TOUCHED => {
            Finding::ok(format!("{TOUCHED} of {TOUCHED} faults were timed in the kernel"))
        }
        Ok((seen, _)) => Finding::degraded(
            format!("{seen} of {TOUCHED} faults were timed, so perf events are used"),
            "report this kernel",
        ),
        Err(error) => Finding::degraded(format!("{error}; perf events are used"), BPF),
    }
}

pub(super) fn details(_: &Linux) -> Finding {
    match traced(Points::Events) {
        Ok((_, lacks)) if lacks.is_empty() => {
            Finding::ok("allocation, compaction, reclaim and kind of memory are seen")
        }
        Ok((_, lacks)) => Finding::degraded(
            format!("not seen: {}", lacks.join(", ")),
            "boot a kernel with CONFIG_COMPACTION=y and the tracepoints of kmem, compaction and vmscan",
        ),
        Err(error) => Finding::degraded(error.to_string(), BPF),
    }
}

pub(super) fn fentry(_: &Linux) -> Finding {
    match traced(Points::Function) {
        Ok((seen, _)) if seen == TOUCHED => {
            Finding::ok(format!("{TOUCHED} of {TOUCHED} faults were timed at handle_mm_fault"))
        }
        Ok((seen, _)) => Finding::degraded(
            format!("{seen} of {TOUCHED} faults were timed; tracepoints are used"),
            "report this kernel",
        ),
        Err(error) => Finding::degraded(
            format!("{error}; tracepoints are used, as exact"),
            "boot a kernel with CONFIG_FUNCTION_TRACER=y and without lockdown; nothing is lost without it",
        ),
    }
}

/// How many of the faults of a known piece of memory the programs tell, and which details they lack.
fn traced(points: Points) -> Result<(usize, Vec<&'static str>), Error> {
    let me = Pid::own();
    let mut faults = Faults::load(points, Nanos(0), None, Order(9))?;
    faults.follow(me)?;
    let start = touch::pages(TOUCHED)?;
    let mut seen = 0;
    faults.drain(|told| {
        let FaultEvent::One(detail) = told else { return };
        seen += usize::from(detail.process == me && is_touched(start, detail.address));
    });
    if faults.tally()?.ring_full > 0 {
        return Err(Error::new(Kind::Busy, "read", "the ring of faults", "it was full"));
    }
    Ok((seen, faults.lacks().to_vec()))
}

/// Traces a program that ends at once.
#[cfg(target_arch = "x86_64")]
pub(super) fn accesses(linux: &Linux) -> Finding {
    use pagemill_tracer::FaultSource;
    match pagemill_record::recorders::accesses::try_out(linux.clone()) {
        Ok((FaultSource::Bpf, _)) => {
            Finding::ok("a program was traced, each first access told by BPF")
        }
        Ok((source, better)) => {
            let told = match source {
                FaultSource::Scan => {
                    "touched and written pages of each interval, but not who was first"
                }
                FaultSource::PerfSoftware => {
                    "a program was traced, first accesses outside system calls told by perf events"
                }
                _ => "a program was traced, each first access told by perf events",
            };
            Finding::degraded(
                format!("{}: {told}; not used: {}", source.name(), better.join("; ")),
                "run as root, or with CAP_BPF and CAP_PERFMON, of a build where clang was installed",
            )
        }
        Err(error) => Finding::missing(
            error.to_string(),
            "use kernel 6.11 or newer, and let ptrace(2), seccomp(2) and userfaultfd(2) through",
        ),
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn accesses(_: &Linux) -> Finding {
    Finding::missing("accesses are traced on x86-64 only", "use a machine of that kind")
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn emulator(_: &Linux) -> Finding {
    Finding::missing("programs of x86-64 only", "use an x86-64 machine")
}

#[cfg(target_arch = "x86_64")]
pub(super) fn emulator(_: &Linux) -> Finding {
    use pagemill_tracer::exact::{Emulator, PROBED};
    const FIX: &str = "sudo apt-get install qemu-user   (an emulator with plugins)";
    let room = match tempfile::tempdir() {
        Ok(room) => room,
        Err(error) => return Finding::degraded(format!("cannot be tried: {error}"), FIX),
    };
    match Emulator::install(room.path(), std::env::var_os("PATH").as_deref()) {
        Ok(emulator) => Finding::ok(format!(
            "{}; {PROBED} of {PROBED} written pages were told",
            emulator.program().display()
        )),
        Err(error) => Finding::degraded(format!("{error}; accesses are seen by page faults"), FIX),
    }
}
