//! The metrics and their names.

use std::collections::BTreeMap;

use crate::exposition::Metric::{Counter, Gauge};
use crate::exposition::{Buckets, Exposition, MetricRow, labels};
use pagemill_analysis::fragmentation::unusable;
use pagemill_analysis::latency::Histogram;
use pagemill_kernel::process::psi::{self, Resource};
use pagemill_kernel::settings::cgroup::{Charge, Group};
use pagemill_kernel::{Linux, page_size};
use pagemill_model::sums::sum;
use pagemill_model::{Bytes, HeapSample, Nanos, Order};
use pagemill_record::free_memory::FreeMemory;

use super::snapshot::ProcessSnapshot;

/// Upper ends of the histogram of page faults, s.
const UPTO: [f64; 14] =
    [5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 1e-1];

fn bytes(value: Option<Bytes>) -> Option<f64> {
    value.map(|bytes| bytes.0 as f64)
}

fn number(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn seconds(value: Option<Nanos>) -> Option<f64> {
    value.map(Nanos::seconds)
}

/// Physical memory.
fn memory(sample: &HeapSample) -> Option<f64> {
    let unmapped = sample.unmapped.map_or(0, |bytes| bytes.0);
    Some((sample.pss?.0 + unmapped) as f64)
}

const OF_PROCESSES: [MetricRow<HeapSample>; 5] = [
    ("memory_bytes", Gauge, "Physical memory: Pss, and what memfds hold besides.", memory),
    ("resident_bytes", Gauge, "Rss: pages count once a mapping.", |s| bytes(s.rss)),
    ("swap_bytes", Gauge, "Proportional swapped-out size.", |s| bytes(s.swap)),
    ("mappings", Gauge, "Mappings (VMAs).", |s| number(s.mappings)),
    ("cpu_seconds_total", Counter, "CPU time of all threads.", |s| seconds(s.cpu)),
];

const OF_HEAPS: [MetricRow<HeapSample>; 11] = [
    ("live_bytes", Gauge, "Allocated, or in a thread's cache.", |s| bytes(s.live)),
    ("footprint_bytes", Gauge, "Physical memory of the heap.", |s| bytes(s.footprint)),
    ("dirty_bytes", Gauge, "Free pages that are still resident.", |s| bytes(s.dirty)),
    ("merged_bytes", Gauge, "Virtual memory that shares an image.", |s| bytes(s.merged)),
    ("saved_bytes", Gauge, "What merging saves now.", |s| bytes(s.saved)),
    ("released_bytes_total", Counter, "Free pages given back.", |s| bytes(s.released)),
    ("passes_total", Counter, "Compaction passes begun.", |s| number(s.passes)),
    ("compaction_seconds_total", Counter, "Wall time of compaction.", |s| seconds(s.compact)),
    ("helper_cpu_seconds_total", Counter, "CPU time of the helper.", |s| seconds(s.helper_cpu)),
    ("longest_pause_seconds", Gauge, "The longest pause so far.", |s| seconds(s.longest_pause)),
    ("longest_stall_seconds", Gauge, "The longest stall so far.", |s| seconds(s.longest_stall)),
];

const OF_MALLOCS: [MetricRow<HeapSample>; 4] = [
    ("heap_bytes", Gauge, "What the process's own malloc holds.", |s| bytes(s.malloc_heap)),
    ("free_bytes", Gauge, "Free in it, as last read.", |s| bytes(s.malloc_free)),
    ("returnable_bytes", Gauge, "Of that, in whole resident pages.", |s| {
        bytes(s.malloc_returnable)
    }),
    ("pieces_bytes", Gauge, "Of that, in pieces of pages that hold data.", |s| {
        bytes(s.malloc_pieces)
    }),
];

/// What is known of processes.
pub(super) fn of_processes(looks: &[ProcessSnapshot]) -> Exposition {
    let mut page = Exposition::default();
    let of = |look: &ProcessSnapshot| {
        let pid = look.pid.to_string();
        labels(&[("pid", &pid), ("comm", &look.comm), ("cgroup", &look.cgroup)])
    };
    let count = [(String::new(), looks.len() as f64)];
    page.metric("pagemill_processes", Gauge, "Processes that are looked at.", &count);
    let samples: Vec<_> = looks.iter().map(|look| (of(look), &look.sample)).collect();
    page.metrics("pagemill_process_", &samples, &OF_PROCESSES);
    page.metrics("pagemill_heap_", &samples, &OF_HEAPS);
    page.metrics("pagemill_malloc_", &samples, &OF_MALLOCS);
    of_faults(&mut page, looks, &of);
    page
}

/// What is known of their page faults.
fn of_faults(
    page: &mut Exposition,
    looks: &[ProcessSnapshot],
    of: &dyn Fn(&ProcessSnapshot) -> String,
) {
    let faults: Vec<_> = looks
        .iter()
        .flat_map(|look| {
            let of = of(look);
            let row = |kind: &str, count: u64| {
                (format!("{of},{}", labels(&[("kind", kind)])), count as f64)
            };
            [row("minor", look.stat.minor_faults), row("major", look.stat.major_faults)]
        })
        .collect();
    page.metric(
        "pagemill_process_page_faults_total",
        Counter,
        "Page faults by the kernel's account.",
        &faults,
    );
    let timed = |look: &ProcessSnapshot| Some((of(look), buckets(look.faults.as_ref()?)));
    let timed: Vec<_> = looks.iter().filter_map(timed).collect();
    let help = "Page faults of it and what it starts, since the exporter began.";
    page.histogram("pagemill_process_page_fault_seconds", help, &timed);
}

/// The histogram with fewer buckets: each of its own counts where its lower end is.
fn buckets(times: &Histogram) -> Buckets {
    let upto = UPTO.map(|end| {
        let below = times.buckets().take_while(|(low, _)| low.seconds() < end);
        (end, sum(below.map(|(_, count)| count)))
    });
    Buckets { upto: upto.to_vec(), sum: times.sum().seconds(), count: times.total() }
}

const OF_GROUPS: [MetricRow<Charge>; 3] = [
    ("memory_bytes", Gauge, "Charge of the group.", |charge| number(Some(charge.current))),
    ("kernel_bytes", Gauge, "Kernel memory in it.", |charge| number(charge.kernel)),
    ("limit_bytes", Gauge, "Its limit, if it has one.", |charge| number(charge.limit)),
];

/// What is known of the memory cgroups that they are in.
pub(super) fn of_groups(groups: &BTreeMap<String, Group>) -> Exposition {
    let mut page = Exposition::default();
    let charges: Vec<_> = groups
        .iter()
        .filter_map(|(name, group)| Some((labels(&[("cgroup", name)]), group.charge().ok()?)))
        .collect();
    let charges: Vec<_> = charges.iter().map(|(labels, charge)| (labels.clone(), charge)).collect();
    page.metrics("pagemill_cgroup_", &charges, &OF_GROUPS);
    let mut waits = Vec::new();
    for (name, group) in groups {
        let read = group.pressure_file().and_then(|file| psi::read_file(&file).ok());
        waits.extend(read.into_iter().flat_map(|pressure| waiting(&[("cgroup", name)], &pressure)));
    }
    let help = "Time in which tasks of the group waited for memory.";
    page.metric("pagemill_cgroup_memory_waiting_seconds_total", Counter, help, &waits);
    page
}

/// Some and all tasks waited, s.
fn waiting(of: &[(&str, &str)], pressure: &psi::Pressure) -> Vec<(String, f64)> {
    let row = |kind: &str, stall: psi::Stall| {
        let mut pairs = of.to_vec();
        pairs.push(("tasks", kind));
        (labels(&pairs), stall.total.as_secs_f64())
    };
    let all = pressure.full.map(|full| row("all", full));
    [Some(row("some", pressure.some)), all].into_iter().flatten().collect()
}

/// What is known of the machine's free memory.
pub(super) fn of_machine(linux: &Linux, free: Option<&FreeMemory>) -> Exposition {
    let mut page = Exposition::default();
    if let Some(free) = free {
        let (mut blocks, mut scores, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for zone in &free.zones {
            let node = zone.node.to_string();
            let zoned = labels(&[("node", &node), ("zone", &zone.zone)]);
            for (order, count) in Order::first(zone.blocks.len()).zip(&zone.blocks) {
                let ordered = format!("{zoned},order=\"{order}\"");
                blocks.push((ordered.clone(), *count as f64));
                scores.push((ordered, unusable(&zone.blocks, order).value()));
            }
            hidden.extend(zone.hidden.map(|pages| (zoned, pages as f64 * page_size() as f64)));
        }
        let help = "Free blocks of 2^order pages.";
        page.metric("pagemill_free_blocks", Gauge, help, &blocks);
        let help = "Part of free memory in blocks too small for the order.";
        page.metric("pagemill_unusable_free_space_ratio", Gauge, help, &scores);
        let help = "Free memory on the lists of the processors, in no block.";
        page.metric("pagemill_free_hidden_bytes", Gauge, help, &hidden);
    }
    if let Ok(pressure) = linux.pressure(Resource::Memory) {
        let help = "Time in which tasks of the machine waited for memory.";
        let waits = waiting(&[], &pressure);
        page.metric("pagemill_memory_waiting_seconds_total", Counter, help, &waits);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_model::latency;

    #[test]
    fn buckets_are_cumulative_and_lose_no_fault() {
        let mut times = Histogram::default();
        for (nanos, count) in [(400, 5), (700, 3), (3_000_000, 2), (5_000_000_000, 1)] {
            times.add(latency::bucket(Nanos(nanos)), count);
        }
        let buckets = buckets(&times);
        let at = |end: f64| buckets.upto.iter().find(|(upto, _)| *upto == end).map(|(_, n)| *n);
        assert_eq!(
            [at(5e-7), at(1e-6), at(1e-3), at(5e-3), at(1e-1)].map(Option::unwrap),
            [5, 8, 8, 10, 10]
        );
        assert_eq!(buckets.count, 11);
        assert!((buckets.sum - 5.006).abs() < 0.1, "{}", buckets.sum);
    }
}
