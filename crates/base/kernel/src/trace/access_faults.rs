//! Page faults as accesses by `perf_event_open(2)`, of some threads and of all that they start: for machines or
//! users without BPF.
//!
//! | source | is | a fault has |
//! |---|---|---|
//! | `perf-tracepoint` | tracepoints `exceptions:page_fault_user`, `page_fault_kernel` | byte, instruction, kind |
//! | `perf-software` | the software event `page-faults` | byte, instruction |
//!
//! The kind is whether it read or wrote. The tracepoints are root's and tell of faults inside system calls, too; the
//! software event tells users of those outside of them only.
//!
//! ```text
//!  tracepoint  identifier 8 | process 4, thread 4 | time 8 | cpu 4, 0 4 | size 4 | common 8, address 8, ip 8, error …
//!  software    identifier 8 | ip 8 | process 4, thread 4 | time 8 | address 8 | cpu 4, 0 4
//! ```
//!
//! Always true: a fault of a followed process is handed on once, in the order of time of its read, or counted as lost.

use std::collections::HashSet;

use pagemill_model::Pid;
use pagemill_model::perf_data::bit::{ADDR, CPU, IDENTIFIER, IP, RAW, TID, TIME};

use crate::bytes::{long, word};
use crate::trace::access_samples::opened;
use crate::trace::bpf::accesses::Access;
use crate::trace::perf_event::{Attributes, Counter, Event, Ring};
use crate::{Error, Kind, Linux, Result, trace::tracefs};

/// What tells of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Tracepoints.
    Tracepoint,
    /// A software event.
    Software,
}

/// Bytes of a ring, best first: what a user may lock differs.
const SIZES: [usize; 5] = [8 << 20, 2 << 20, 512 << 10, 128 << 10, 32 << 10];

const SAMPLED: u32 = 9;
const LOST: u32 = 2;

/// Rings of faults.
#[derive(Debug)]
pub struct Faults {
    linux: Linux,
    source: Source,
    attributes: Vec<Attributes>,
    rings: Vec<Ring>,
    _others: Vec<Event>,
    followed: HashSet<Pid>,
    lost: u64,
}

impl Faults {
    /// Finds out whether faults can be told of by `source`; no process is followed yet.
    ///
    /// # Errors
    /// The kernel lacks the source, or the caller may not use it.
    pub fn prepare(linux: &Linux, source: Source) -> Result<Self> {
        let attributes = match source {
            Source::Tracepoint => ["page_fault_user", "page_fault_kernel"]
                .iter()
                .map(|name| {
                    let number = tracefs::number(linux, &format!("exceptions/{name}"))?;
                    let event = Attributes::sampling(Counter::Tracepoint(number), 1);
                    Ok(event.holding(IDENTIFIER | TID | TIME | CPU | RAW, 0).inherited())
                })
                .collect::<Result<_>>()?,
            Source::Software => {
                let event = Attributes::sampling(Counter::PageFaults, 1);
                vec![event.holding(IDENTIFIER | IP | TID | TIME | ADDR | CPU, 0).inherited()]
            }
        };
        let mut faults = Self {
            linux: linux.clone(),
            source,
            attributes,
            rings: Vec::new(),
            _others: Vec::new(),
            followed: HashSet::new(),
            lost: 0,
        };
        // Whether it works at all is known before a program is started.
        let me = Pid::own();
        faults.follow(me)?;
        faults.leave(me);
        (faults.rings, faults._others) = (Vec::new(), Vec::new());
        Ok(faults)
    }

    /// Hands on the faults of `process` from now on. The first one's threads are followed, and what they start
    /// is; any other is one of these.
    ///
    /// # Errors
    /// The process has ended, or its events cannot be opened.
    pub fn follow(&mut self, process: Pid) -> Result<()> {
        self.followed.insert(process);
        if !self.rings.is_empty() {
            return Ok(());
        }
        let threads = self.linux.threads(process)?;
        let all = opened(&self.linux, &threads, &self.attributes, false, &SIZES);
        let user_only: Vec<Attributes> =
            self.attributes.iter().map(|event| event.user_only()).collect();
        (self.rings, self._others) = match all {
            Err(error) if error.kind() == Kind::Permission && self.source == Source::Software => {
                opened(&self.linux, &threads, &user_only, false, &SIZES)?
            }
            all => all?,
        };
        Ok(())
    }

    /// No more of `process`.
    pub fn leave(&mut self, process: Pid) {
        self.followed.remove(&process);
    }

    /// Hands each fault since the last call to `each`.
    pub fn read(&mut self, mut each: impl FnMut(Access)) {
        let Self { source, rings, followed, lost, .. } = self;
        let mut all = Vec::new();
        for ring in rings {
            ring.read_raw(|kind, misc, body| match kind {
                SAMPLED => {
                    let access = parse(*source, misc, body);
                    all.extend(access.filter(|access| followed.contains(&access.process)));
                }
                LOST => *lost += long(body, 8).unwrap_or(0),
                _ => {}
            });
        }
        // Each processor has a ring of its own.
        all.sort_unstable_by_key(|access| access.time);
        all.into_iter().for_each(&mut each);
    }

    /// Faults that a ring had no room for, since the beginning.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// A sample as an access; `None` if it is cut short, or on one of the kernel's own addresses.
fn parse(source: Source, misc: u16, body: &[u8]) -> Option<Access> {
    const MODE: u16 = 7;
    const KERNEL: u16 = 1;
    let of = |at: usize, cpu: usize, address: u64, instruction: u64| -> Option<Access> {
        let (process, thread, time) = (word(body, at)?, word(body, at + 4)?, long(body, at + 8)?);
        let who = (Pid(process), Pid(thread));
        Some(Access::new(time, address, instruction, who, word(body, cpu)?))
    };
    let access = match source {
        Source::Tracepoint => {
            // Behind the size of the raw part and what all tracepoints begin with.
            let field = |number: usize| long(body, 32 + 4 + 8 + 8 * number);
            let (address, instruction, error) = (field(0)?, field(1)?, field(2)?);
            let access = of(8, 24, address, instruction)?;
            // Where the kernel was is told by where its instruction is.
            access.by(error, (instruction as i64) < 0)
        }
        Source::Software => {
            let access = of(16, 40, long(body, 32)?, long(body, 8)?)?;
            access.of_unknown_kind(misc & MODE == KERNEL)
        }
    };
    ((access.address as i64) >= 0).then_some(access)
}

/// Faults of this process that `source` tells of when it touches memory, or why none.
///
/// # Errors
/// As of [`Faults::prepare`] and [`Faults::follow`]; the source tells of no fault.
pub fn try_out(linux: &Linux, source: Source) -> Result<()> {
    const PAGES: usize = 64;
    let me = Pid::own();
    let mut faults = Faults::prepare(linux, source)?;
    faults.follow(me)?;
    let start = crate::memory::touch::pages(PAGES)?;
    let (mut seen, mut known) = (0, 0);
    let end = start + (PAGES * crate::page_size()) as u64;
    faults.read(|access| {
        let mine = (start..end).contains(&access.address);
        seen += usize::from(mine);
        known += usize::from(mine && access.write());
    });
    let expected = if source == Source::Tracepoint { PAGES } else { 0 };
    if seen == PAGES && known == expected {
        return Ok(());
    }
    let why = format!("{seen} of {PAGES} faults were told, {known} of them as writes");
    Err(Error::new(Kind::Unsupported, "use", format_args!("{source:?} events for accesses"), why))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each source tells of the faults of a piece of memory, all of them, where this machine has it.
    #[test]
    fn faults_of_known_memory_are_told_by_each_source() {
        for source in [Source::Tracepoint, Source::Software] {
            match try_out(&Linux::live(), source) {
                Ok(()) => {}
                Err(error) if error.to_string().contains("faults were told") => panic!("{error}"),
                Err(error) => println!("skipped: {source:?}: {error}"),
            }
        }
    }

    #[test]
    fn samples_that_are_cut_short_are_none() {
        let body: Vec<u8> = (1..10_u64).flat_map(u64::to_ne_bytes).collect();
        for source in [Source::Tracepoint, Source::Software] {
            for length in 0..36 {
                assert_eq!(parse(source, 0, &body[..length]), None);
            }
        }
        let access = parse(Source::Software, 1, &body).unwrap();
        assert_eq!((access.instruction, access.time, access.address), (2, 4, 5));
        assert!(access.in_kernel() && !access.kind_is_known());
    }
}
