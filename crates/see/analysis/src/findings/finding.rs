//! What every finding is, and what it is made of.

use pagemill_model::recording::{Meta, NotMeasured};
use pagemill_model::{AccessSetup, Bytes, EventKind, FaultSetup, Nanos, shell};

use crate::accesses::AccessView;
use crate::faults::FaultView;
use crate::fragmentation::timeline::FragView;
use crate::heap::HeapView;
use crate::heat::HeatView;
use crate::hugepages::HugePageView;

/// Who uses a smaller part of a CPU for a while rests, for `run --trim`.
pub(super) const REST: f64 = 0.05;

/// What could be gained at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stake {
    /// Memory.
    Memory(Bytes),
    /// Time.
    Time(Nanos),
}

/// One conclusion.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What it is about, in a word: `cold`, `cold-file`, `write-once`, `sparse`, `heap-free`, `malloc-free`,
    /// `pymalloc`, `lazy-free`, `children`, `growth`, `faults`, `tail`, `stalls`, `bloat`, `huge`, `fragmentation`.
    pub subject: &'static str,
    /// What is, with numbers, and what could be done.
    pub text: String,
    /// What it was concluded from.
    pub evidence: String,
    /// The command to type next.
    pub next: String,
    /// What could be gained at most.
    pub stake: Stake,
    /// The stake's part of all there is of its kind, 0 to 1.
    pub share: f64,
}

/// The views of a recording, as far as it has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordedViews<'a> {
    /// Where the recording is, as a shell reads it in commands.
    pub recording: &'a str,
    /// Its header.
    pub meta: Option<&'a Meta>,
    /// The process that was recorded is still there.
    pub lives: bool,
    /// The process and its heap.
    pub heap: Option<&'a HeapView>,
    /// Page faults.
    pub faults: Option<(&'a FaultSetup, &'a FaultView)>,
    /// Mappings and the huge pages in them.
    pub hugepages: Option<&'a HugePageView>,
    /// Zeros on huge pages, where a policy looked for them.
    pub bloat: Option<Bytes>,
    /// Free memory of the machine.
    pub frag: Option<&'a FragView>,
    /// Accesses: how they were seen, by page, by object.
    pub accesses: Option<(&'a AccessSetup, &'a AccessView, &'a HeatView)>,
}

/// What was recorded and yet tells too little to conclude from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inconclusive {
    /// The question, in a few words.
    pub what: &'static str,
    /// Why it could not be told.
    pub why: String,
    /// The command whose recording tells.
    pub next: String,
}

impl RecordedViews<'_> {
    /// The program as the end of a command: `-- CMD`, or `-p PID` of one that was attached to and is still there.
    pub(super) fn program(&self) -> String {
        match self.meta {
            Some(meta) if meta.command.is_empty() && self.lives => format!("-p {}", meta.pid),
            _ => self.restart_command(),
        }
    }

    /// Whether it was seen to end: what it held in its last moments it was giving back as it ended.
    pub(super) fn has_ended(&self) -> bool {
        self.meta.is_some_and(|meta| meta.exit_status.is_some() || meta.exit_signal.is_some())
    }

    /// How a program is started again, for what cannot be done to one that runs.
    pub(super) fn restart_command(&self) -> String {
        let Some(meta) = self.meta else { return "-- CMD".into() };
        let words = [&meta.command, &meta.attached_command];
        let Some(words) = words.into_iter().find(|words| !words.is_empty()) else {
            return match meta.comm.as_str() {
                "" => "-- CMD".into(),
                comm => format!("-- {comm} …"),
            };
        };
        format!("-- {}", words.iter().map(shell::quoted).collect::<Vec<_>>().join(" "))
    }

    /// Whether it was noted who asks for memory, call by call.
    pub(super) fn has_allocations(&self) -> bool {
        let rows = |meta: &Meta| meta.parts.get(EventKind::Allocation.dataset()).map(|of| of.rows);
        self.meta.is_some_and(|meta| meta.losses.notes > 0 || rows(meta).unwrap_or(0) > 0)
    }

    /// Why some allocations, or all, were not seen; `None` if all were.
    pub(super) fn lacks_allocations(&self) -> Option<&str> {
        let missing = self.meta?.not_measured.iter();
        let missing = missing.filter(|missing| missing.what == NotMeasured::ALLOCATIONS);
        missing.map(|missing| missing.why.as_str()).next()
    }

    /// The part of the notes of allocations that was lost, if some were and the others tell what is live well enough.
    pub(super) fn lost_notes(&self) -> Option<f64> {
        /// What is live is then known to a few percent.
        const FEW: f64 = 0.02;
        let part = self.meta?.losses.part_of_notes();
        (part > 0.0 && part <= FEW).then_some(part)
    }

    /// So many pages in bytes.
    pub(super) fn bytes(&self, pages: u64) -> u64 {
        pages.saturating_mul(self.meta.map_or(4096, |meta| meta.page_size.0.max(1)))
    }
}

/// A size as a sentence has it.
pub(super) fn size(bytes: u64) -> String {
    Bytes(bytes).plain()
}

/// A time as a sentence has it.
pub(super) fn time(nanos: u64) -> String {
    Nanos(nanos).plain()
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        share if share < 10.0 => format!("{share:.1} %"),
        share => format!("{share:.0} %"),
    }
}

/// A function and its line, the function as code.
pub(super) fn code(name: &str) -> String {
    match name.split_once(" (") {
        Some((function, line)) => format!("`{function}` ({line}"),
        None => format!("`{name}`"),
    }
}
