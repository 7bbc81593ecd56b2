//! What the kernel and the processor tell while a program runs: BPF, tracepoints, events and samples.

pub mod access_faults;
pub mod access_samples;
pub mod bpf;
pub mod load_samples;
pub mod page_walks;
pub mod perf_event;
pub mod pmu;
pub mod tracefs;
