//! Which pages a program touches: all of them, interval by interval, without changing the program.
//!
//! At exec every private writable mapping is made a shared mapping of one sparse file in memory. From
//! then on a page table entry can be dropped at any time without losing data, and the next access to the
//! page is an ordinary minor fault that the kernel resolves by itself. Each *tick* ends an *interval*:
//!
//! ```text
//!  scan   entries that are present = pages touched since the last tick, exactly
//!  zap    those entries; the data stays in the page cache
//!  drain  the faults that BPF or perf events wrote down: who, when, which byte, reading or writing
//! ```
//!
//! Each uses those above it:
//!
//! | module | is |
//! |---|---|
//! | `interval` | what a process touched |
//! | `notification` | a system call that the kernel tells of, to be answered |
//! | `calls` | the numbers of system calls, and what they are given |
//! | `layout` | what a mapping is |
//! | `pins` | what ties a process to its pages |
//! | `trampoline` | how a stopped thread goes on if the tracer dies while it makes a call for it |
//! | `inject` | system calls made by a stopped thread |
//! | `stopped` | what a thread may be in the middle of that was asked to stop |
//! | `arguments` | the words that a program was started with, kept readable for others |
//! | `copy` | the bytes of memory, copied while nobody writes them |
//! | `events` | faults one by one, by the best way that works |
//! | `trace` | what a trace is to be like, who takes what it finds |
//! | `process` | a traced process: its injector, its scans |
//! | `deferred_calls` | system calls that the mapper leaves to the tracer |
//! | `fork` | copy on write for children, by freezing both sides |
//! | `child` | a forked child, until its memory is its own |
//! | `convert` | the change of a program's memory at exec |
//! | `descriptors` | what our code in a program opens there |
//! | `page_out` | a running program that cannot be taken over, watched from outside |
//! | `tracer` | what is known of all of them, and the pace of intervals |
//! | `hold` | threads stopped together |
//! | `adopt` | children parted from their parents, and given memory of their own |
//! | `stops`, `answers` | what threads say, and what mappers are answered |
//! | `page_out_loop` | the loop for what is watched from outside |
//! | `attach` | a running program taken over, and let go |
//! | `rescue` | the memory of a program made its own after all that ran for us there was killed |
//! | `withdraw` | one process let go by itself, for a tracer of its own |
//! | `follow` | the loop: stops, notifications, ticks |
//! | `advise` | apart from these: a command run with chosen parts of its memory on huge pages |
//! | `exact` | another way: every access, by an emulator |
//!
//! Always true: a page that was touched is in the set of its interval, because only entries that a scan
//! has seen are dropped; a page leaves the address space only after it was scanned; data is never in the
//! tracer's hands but when a mapping changes its kind, while nobody runs. If the tracer dies, the program
//! goes on by itself.
//!
//! After Moca (Beniamine et al., Euro-Par 2016), which dropped the entries in a kernel module.
#![forbid(unsafe_code)]
#![cfg(target_arch = "x86_64")]

mod adopt;
pub mod advise;
mod answers;
mod arguments;
mod attach;
mod calls;
mod child;
mod convert;
mod copy;
mod deferred_calls;
mod descriptors;
mod events;
pub mod exact;
mod follow;
mod fork;
mod hold;
mod inject;
mod interval;
mod layout;
mod notification;
mod page_out;
mod page_out_loop;
mod pins;
mod process;
mod rescue;
mod stopped;
mod stops;
mod trace;
mod tracer;
mod trampoline;
mod withdraw;

pub use events::FaultSource;
pub use interval::Interval;
pub use layout::not_traced;
pub use pagemill_kernel::trace::bpf::accesses::Access;
pub use trace::{Ended, Options, Sink, SinkResult, Stopped, Untraced};
pub use tracer::Tracer;

use std::time::Duration;

/// What one fault brings into view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granule {
    /// The page, and whether it was written.
    #[default]
    Page,
    /// Up to 64 KiB around it that are in memory: fewer faults, a superset of the pages, and writes
    /// after reads are not seen.
    Around,
}

/// After how long without a sign of life the tracer itself is ended, so that the program goes on. No wait of the tracer
/// is longer than a third of that.
const SIGN_OF_LIFE: Duration = Duration::from_secs(90);

/// How long the tracer waits for code of its own in a program before it takes it for dead.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long threads are waited for that ought to stop at once.
const SOON: Duration = Duration::from_millis(20);

/// What a test asks of a build for tests: seconds without a sign of life, and after how many seconds to hang.
fn for_test(variable: &str) -> Option<Duration> {
    let asked = cfg!(debug_assertions).then(|| std::env::var(variable).ok()).flatten();
    asked.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs_f64)
}
