//! The metrics and their names.

use std::collections::BTreeMap;

use pagemill_analysis::fragmentation::unusable;
use pagemill_analysis::latency::Histogram;
use pagemill_kernel::cgroup::Group;
use pagemill_kernel::psi::{self, Resource};
use pagemill_kernel::{Linux, page_size};
use pagemill_model::sums::sum;
use pagemill_model::{Bytes, Nanos, Order};
use pagemill_record::free_memory::FreeMemory;
use pagemill_report::exposition::{Buckets, Exposition, Metric, labels};

use super::Look;

/// Upper ends of the histogram of page faults, s.
const UPTO: [f64; 14] =
    [5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 1e-1];

type Value<'a> = &'a dyn Fn(&Look) -> Option<f64>;

/// What is known of processes.
pub(super) fn of_processes(looks: &[Look]) -> Exposition {
    let mut page = Exposition::default();
    let of = |look: &Look| {
        let pid = look.pid.to_string();
        labels(&[("pid", &pid), ("comm", &look.comm), ("cgroup", &look.cgroup)])
    };
    let count = [(String::new(), looks.len() as f64)];
    page.metric("pagemill_processes", Metric::Gauge, "Processes that are looked at.", &count);
    let bytes = |value: Option<Bytes>| value.map(|bytes| bytes.0 as f64);
    let seconds = |value: Option<Nanos>| value.map(Nanos::seconds);
    let number = |value: Option<u64>| value.map(|value| value as f64);
    let memory = |look: &Look| {
        let unmapped = look.sample.unmapped.map_or(0, |bytes| bytes.0);
        Some((look.sample.pss?.0 + unmapped) as f64)
    };
    let (gauge, counter) = (Metric::Gauge, Metric::Counter);
    let rows: [(&str, Metric, &str, Value<'_>); 16] = [
        (
            "process_memory_bytes",
            gauge,
            "Physical memory: Pss, and what memfds hold besides.",
            &memory,
        ),
        ("process_resident_bytes", gauge, "Rss: pages count once a mapping.", &|l| {
            bytes(l.sample.rss)
        }),
        ("process_swap_bytes", gauge, "Proportional swapped-out size.", &|l| bytes(l.sample.swap)),
        ("process_mappings", gauge, "Mappings (VMAs).", &|l| number(l.sample.mappings)),
        ("process_cpu_seconds_total", counter, "CPU time of all threads.", &|l| {
            seconds(l.sample.cpu)
        }),
        ("heap_live_bytes", gauge, "Allocated, or in a thread's cache.", &|l| bytes(l.sample.live)),
        ("heap_footprint_bytes", gauge, "Physical memory of the heap.", &|l| {
            bytes(l.sample.footprint)
        }),
        ("heap_dirty_bytes", gauge, "Free pages that are still resident.", &|l| {
            bytes(l.sample.dirty)
        }),
        ("heap_merged_bytes", gauge, "Virtual memory that shares an image.", &|l| {
            bytes(l.sample.merged)
        }),
        ("heap_saved_bytes", gauge, "What merging saves now.", &|l| bytes(l.sample.saved)),
        ("heap_released_bytes_total", counter, "Free pages given back.", &|l| {
            bytes(l.sample.released)
        }),
        ("heap_passes_total", counter, "Compaction passes begun.", &|l| number(l.sample.passes)),
        ("heap_compaction_seconds_total", counter, "Wall time of compaction.", &|l| {
            seconds(l.sample.compact)
        }),
        ("heap_helper_cpu_seconds_total", counter, "CPU time of the helper.", &|l| {
            seconds(l.sample.helper_cpu)
        }),
        ("heap_longest_pause_seconds", gauge, "The longest pause so far.", &|l| {
            seconds(l.sample.longest_pause)
        }),
        ("heap_longest_stall_seconds", gauge, "The longest stall so far.", &|l| {
            seconds(l.sample.longest_stall)
        }),
    ];
    for (name, kind, help, value) in rows {
        let value = |look: &Look| Some((of(look), value(look)?));
        let values: Vec<_> = looks.iter().filter_map(value).collect();
        page.metric(&format!("pagemill_{name}"), kind, help, &values);
    }
    of_faults(&mut page, looks, &of);
    page
}

/// What is known of their page faults.
fn of_faults(page: &mut Exposition, looks: &[Look], of: &dyn Fn(&Look) -> String) {
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
        Metric::Counter,
        "Page faults by the kernel's account.",
        &faults,
    );
    let timed = |look: &Look| Some((of(look), buckets(look.faults.as_ref()?)));
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

/// What is known of the memory cgroups that they are in.
pub(super) fn of_groups(groups: &BTreeMap<String, Group>) -> Exposition {
    let mut page = Exposition::default();
    let charges: Vec<_> = groups
        .iter()
        .filter_map(|(name, group)| Some((labels(&[("cgroup", name)]), group.charge().ok()?)))
        .collect();
    let of = |value: &dyn Fn(&pagemill_kernel::cgroup::Charge) -> Option<u64>| {
        let row = |(labels, charge): &(String, _)| Some((labels.clone(), value(charge)? as f64));
        charges.iter().filter_map(row).collect::<Vec<_>>()
    };
    let mut gauge = |name: &str, help: &str, values: Vec<(String, f64)>| {
        page.metric(name, Metric::Gauge, help, &values);
    };
    gauge(
        "pagemill_cgroup_memory_bytes",
        "Charge of the group.",
        of(&|charge| Some(charge.current)),
    );
    gauge("pagemill_cgroup_kernel_bytes", "Kernel memory in it.", of(&|charge| charge.kernel));
    gauge("pagemill_cgroup_limit_bytes", "Its limit, if it has one.", of(&|charge| charge.limit));
    let mut waits = Vec::new();
    for (name, group) in groups {
        let read = group.pressure_file().and_then(|file| psi::read_file(&file).ok());
        waits.extend(read.into_iter().flat_map(|pressure| waiting(&[("cgroup", name)], &pressure)));
    }
    let help = "Time in which tasks of the group waited for memory.";
    page.metric("pagemill_cgroup_memory_waiting_seconds_total", Metric::Counter, help, &waits);
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
        page.metric("pagemill_free_blocks", Metric::Gauge, help, &blocks);
        let help = "Part of free memory in blocks too small for the order.";
        page.metric("pagemill_unusable_free_space_ratio", Metric::Gauge, help, &scores);
        let help = "Free memory on the lists of the processors, in no block.";
        page.metric("pagemill_free_hidden_bytes", Metric::Gauge, help, &hidden);
    }
    if let Ok(pressure) = linux.pressure(Resource::Memory) {
        let help = "Time in which tasks of the machine waited for memory.";
        let waits = waiting(&[], &pressure);
        page.metric("pagemill_memory_waiting_seconds_total", Metric::Counter, help, &waits);
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
