//! Fragments free memory on purpose, to a chosen degree.
//!
//! Terms. The **score** is the unusable free space index of the chosen order over the large zones. A
//! **unit** is one huge page of which one page a block is kept and the rest given back in pieces.
//!
//! ```text
//!          ┌────────── too low: take units, at most BATCH ──────────┐
//!  drain ──► look ── within TOLERANCE of the target ──► done         │
//!          └────────── too high: give units back, newest first ─────┘
//! ```
//!
//! Taking a unit needs a free huge page and never compacts for one, so free memory is what is broken
//! up, wherever it lies; 2 MiB is the most that a unit holds while it is taken, and one page in each block
//! (and one page table) afterwards. If no huge page is free any more, the loop stops and says how far it got.
//!
//! Always true: all is given back when [`Fragmenter`] is dropped or the process ends in any way; the
//! settings that it changes are on loan.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagemill_analysis::fragmentation::{free_pages, pages_from};
use pagemill_kernel::memory::compaction::{
    COMPACTION_LOAN, HIGH_FRACTION, LISTS_LOAN, NOTHING_KEPT, PROACTIVENESS,
};
use pagemill_kernel::memory::huge_area::{HugeArea, Pins, raise_open_files};
use pagemill_kernel::process::signal::Signals;
use pagemill_kernel::settings::loan::{Files, Loan};
use pagemill_kernel::{Linux, page_size, settings::thp};
use pagemill_model::{Bytes, Order, Pid};
use pagemill_record::free_memory::FreeMemory;
use serde::Serialize;
use serde_json::{Value, json};

use super::{gives_huge_pages, journals, score};

/// How far from the target the result may be.
pub const TOLERANCE: f64 = 0.01;

/// How close the loop tries to come: the rest of the machine moves the score afterwards.
const AIM: f64 = 0.002;

/// Units taken between two looks. With huge pages of 2 MiB, 128 MiB.
const BATCH: usize = 64;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Order of the score.
    pub order: Order,
    /// The score, 0 to 1.
    pub target: f64,
    /// Whether the pages kept are pinned, so that compaction cannot move them.
    pub pinned: bool,
    /// When to give up.
    pub patience: Duration,
}

/// Why the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The score is within [`TOLERANCE`] of the target.
    Reached,
    /// No huge page is free any more.
    NoHugePage,
    /// The score was above the target before anything was taken.
    Above,
    /// The time is over.
    Late,
    /// A signal came.
    Interrupted(i32),
}

/// What taking units came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Why it ended.
    pub end: End,
    /// The score, at the end.
    pub score: f64,
    /// Units taken and not given back.
    pub units: usize,
    /// Pages kept in them.
    pub pages: usize,
    /// Memory that is held: the pages kept and what their page tables take.
    pub held: u64,
    /// How long it took.
    pub took: Duration,
}

impl Goal {
    /// Order and score to which memory is compacted first, if it must be: what is more fragmented than wanted; and for
    /// a small order, free memory in blocks that are large enough for it and too small to be a huge page, for only huge
    /// pages are broken up.
    ///
    /// # Errors
    /// The kernel has no huge pages.
    pub fn mended_first(&self, linux: &Linux, memory: &FreeMemory) -> Result<Option<(Order, f64)>> {
        let Self { order, target, .. } = *self;
        let huge = usize::try_from(linux.thp_pmd_size()?)? / page_size();
        let huge = order.max(Order(huge.trailing_zeros() as u8));
        Ok(match () {
            () if memory.unusable(order).value() > target => Some((order, target)),
            () if out_of_reach(&memory.blocks(), order, huge) > 1.0 - target => {
                Some((huge, 1.0 - target))
            }
            () => None,
        })
    }

    /// What it would take. Changes nothing.
    ///
    /// # Errors
    /// The kernel has no huge pages, or the target cannot be reached with the memory that there is.
    pub fn estimate(self, linux: &Linux, memory: &FreeMemory) -> Result<Estimate> {
        let huge = linux.thp_pmd_size().context("huge pages are needed")?;
        let huge = usize::try_from(huge)? / page_size();
        ensure!(huge > 1, "huge pages are as small as pages here");
        let blocks = memory.blocks();
        let (free, large) = (free_pages(&blocks) as f64, pages_from(&blocks, self.order) as f64);
        let surplus = large - (1.0 - self.target) * free;
        let block = self.order.pages() as usize;
        let units = (surplus / huge.max(block) as f64).max(0.0).ceil() as usize;
        let kept = units * huge.div_ceil(block) + if self.pinned { 0 } else { units };
        let have = pages_from(&blocks, Order(huge.trailing_zeros() as u8)) as usize / huge;
        Ok(Estimate {
            order: self.order,
            score: score(&blocks, self.order),
            target: self.target,
            pinned: self.pinned,
            huge_pages_to_break: units,
            huge_pages_free: have,
            held_bytes: Bytes((kept * page_size()) as u64),
            compacted_first: surplus < 0.0,
            enough: units <= have,
        })
    }
}

/// What it would take; the members of its JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Estimate {
    order: Order,
    score: f64,
    target: f64,
    pinned: bool,
    huge_pages_to_break: usize,
    huge_pages_free: usize,
    held_bytes: Bytes,
    compacted_first: bool,
    /// Whether as many huge pages are free as are needed.
    pub enough: bool,
}

impl Estimate {
    /// In words.
    pub fn text(&self) -> String {
        let Self { order, score, target, huge_pages_to_break: units, .. } = self;
        let first = match self.compacted_first {
            true => "it is above that already: memory would be compacted first\n",
            false => "",
        };
        format!(
            "the score of order {order} is {score:.3}; {target:.3} would take about {units} of {} free huge pages, \
             broken up at most {BATCH} at a time; {} would be held\n{first}",
            self.huge_pages_free,
            self.held_bytes.plain()
        )
    }
}

/// The share of free memory that lies in blocks of an order up to below that of a huge page.
fn out_of_reach(blocks: &[u64], order: Order, huge: Order) -> f64 {
    let between = pages_from(blocks, order) - pages_from(blocks, huge);
    between as f64 / free_pages(blocks).max(1) as f64
}

impl Outcome {
    /// Whether the score is within [`TOLERANCE`] of the goal.
    pub fn reached(&self, goal: &Goal) -> bool {
        (self.score - goal.target).abs() <= TOLERANCE
    }

    /// As JSON.
    pub fn json(&self, goal: &Goal) -> Value {
        json!({
            "order": goal.order,
            "target": goal.target,
            "pinned": goal.pinned,
            "reached": self.reached(goal),
            "end": format!("{:?}", self.end),
            "score": self.score,
            "huge_pages": self.units,
            "pages": self.pages,
            "held_bytes": self.held,
            "seconds": self.took.as_secs_f64(),
        })
    }

    /// In words.
    pub fn text(&self, goal: &Goal) -> String {
        let Goal { order, target, pinned, .. } = goal;
        let kind = if *pinned { "pinned" } else { "movable" };
        let base = format!(
            "score {:.3} of order {order} (target {target}) after {:.1} s: {} huge pages broken up, {} {kind} pages \
             and {} held",
            self.score,
            self.took.as_secs_f64(),
            self.units,
            self.pages,
            Bytes(self.held).plain(),
        );
        let reason = match self.end {
            End::Reached | End::Interrupted(_) => return base,
            End::NoHugePage => {
                "no more huge pages are free: what is left lies in reserves of the kernel, or in smaller blocks"
            }
            End::Above => {
                "memory is more fragmented than that by others, and compaction did not help (frag compact says why)"
            }
            End::Late => {
                "the time is over (--patience), or other programs move the score faster than this"
            }
        };
        format!("{base}; not reached: {reason}")
    }
}

/// Holds the pages that fragment memory, and the settings that would let the kernel mend it.
pub struct Fragmenter {
    linux: Linux,
    goal: Goal,
    huge_size: usize,
    /// The memory of movable units, oldest first.
    batches: Vec<Batch>,
    /// The pages of pinned units; their memory is gone.
    pins: Pins,
    pages_of_a_unit: usize,
    /// Proactive compaction rests for as long as this lives.
    _compaction: Loan<Files>,
}

/// One area, and which of its huge pages are taken.
struct Batch {
    area: HugeArea,
    taken: Vec<usize>,
}

impl Fragmenter {
    /// Prepares: borrows settings and makes this process the first that the kernel ends when memory runs
    /// out. Needs root.
    ///
    /// # Errors
    /// The caller is not root, the kernel has no huge pages, or a setting cannot be borrowed.
    pub fn new(linux: &Linux, goal: Goal) -> Result<Self> {
        let huge_size = linux.thp_pmd_size().context("huge pages are needed")?;
        let huge_size = usize::try_from(huge_size)?;
        let compaction = Loan::files(linux, &journals(linux), COMPACTION_LOAN, &[PROACTIVENESS])?;
        if compaction.found().value(PROACTIVENESS).is_some() {
            compaction.set(PROACTIVENESS, "0")?;
        }
        Linux::live().set_oom_score_adj(Pid::own(), 1000)?;
        if goal.pinned {
            raise_open_files()?;
        }
        let block = block_bytes(goal.order, huge_size);
        Ok(Self {
            linux: linux.clone(),
            goal,
            huge_size,
            batches: Vec::new(),
            pins: Pins::default(),
            pages_of_a_unit: huge_size / block,
            _compaction: compaction,
        })
    }

    /// Goes to the target. `progress` hears of each look: the score and the units taken.
    ///
    /// # Errors
    /// Memory cannot be had or given back, a setting not be borrowed, or a file of the kernel not be read.
    pub fn run(
        &mut self,
        signals: Option<&Signals>,
        mut progress: impl FnMut(f64, usize),
    ) -> Result<Outcome> {
        let began = Instant::now();
        let directory = journals(&self.linux);
        let lists = Loan::files(&self.linux, &directory, LISTS_LOAN, &[HIGH_FRACTION])?;
        if lists.found().value(HIGH_FRACTION).is_some() {
            lists.set(HIGH_FRACTION, NOTHING_KEPT)?;
        }
        let huge = [thp::ENABLED, thp::DEFRAG];
        let huge = Loan::files(&self.linux, &directory, thp::LOAN, &huge)?;
        if !gives_huge_pages(&self.linux.thp_enabled()?) {
            huge.set(thp::ENABLED, "madvise")?;
        }
        // A fault that compacts for its huge page would mend what has been broken up.
        huge.set(thp::DEFRAG, "never")?;
        let (end, score) = self.approach(signals, began, &mut progress)?;
        huge.give_back()?;
        lists.give_back()?;
        let units = self.units();
        let pages = units * self.pages_of_a_unit;
        // A page table for each unit, unless its memory is gone and only the pins are left.
        let tables = if self.goal.pinned { 0 } else { units };
        let held = ((pages + tables) * page_size()) as u64;
        Ok(Outcome { end, score, units, pages, held, took: began.elapsed() })
    }

    fn approach(
        &mut self,
        signals: Option<&Signals>,
        began: Instant,
        progress: &mut impl FnMut(f64, usize),
    ) -> Result<(End, f64)> {
        loop {
            self.linux.refresh_lists()?;
            let blocks = FreeMemory::quick(&self.linux)?.blocks();
            let (free, large) =
                (free_pages(&blocks) as f64, pages_from(&blocks, self.goal.order) as f64);
            let score = score(&blocks, self.goal.order);
            progress(score, self.units());
            let distance = (score - self.goal.target).abs();
            // At the upper end every last block counts, so it goes on as long as there is one.
            if distance <= AIM && (self.goal.target < 1.0 || large == 0.0) {
                return Ok((End::Reached, score));
            }
            let end = |otherwise| if distance <= TOLERANCE { End::Reached } else { otherwise };
            if let Some(received) = signals.map_or(Ok(None), |s| s.wait(Duration::ZERO))? {
                return Ok((End::Interrupted(received.signal), score));
            }
            if began.elapsed() >= self.goal.patience {
                return Ok((end(End::Late), score));
            }
            // Pages that are to leave, or join, the large blocks.
            let surplus = large - (1.0 - self.goal.target) * free;
            let of_a_unit = self.goal.order.max(self.huge_order()).pages() as f64;
            let units = (surplus / of_a_unit).abs().ceil() as usize;
            if surplus > 0.0 {
                let taken = self.take(units.clamp(1, BATCH))?;
                if taken == 0 {
                    return Ok((end(End::NoHugePage), score));
                }
            } else if self.units() == 0 {
                return Ok((end(End::Above), score));
            } else {
                self.give_back(units.max(1))?;
            }
        }
    }

    /// Units that are taken.
    fn units(&self) -> usize {
        let movable: usize = self.batches.iter().map(|batch| batch.taken.len()).sum();
        movable + self.pins.pages() / self.pages_of_a_unit
    }

    fn huge_order(&self) -> Order {
        Order((self.huge_size / page_size()).trailing_zeros() as u8)
    }

    /// Takes up to `count` units and returns how many it got.
    fn take(&mut self, count: usize) -> Result<usize> {
        let mut area = HugeArea::map(count, self.huge_size)?;
        let mut whole = Vec::new();
        for index in 0..count {
            if area.touch(index)? {
                whole.push(index);
            } else {
                // A small page instead: no huge page was free.
                area.release(index)?;
                break;
            }
        }
        let block = block_bytes(self.goal.order, self.huge_size);
        for &index in &whole {
            for offset in area.keep(index, block)? {
                if self.goal.pinned {
                    area.pin(offset, &mut self.pins)?;
                }
            }
        }
        let count = whole.len();
        if count > 0 && !self.goal.pinned {
            self.batches.push(Batch { area, taken: whole });
        }
        Ok(count)
    }

    /// Gives `count` units back: of movable ones the newest, of pinned ones the oldest.
    fn give_back(&mut self, count: usize) -> Result<()> {
        if self.goal.pinned {
            return Ok(self.pins.release(count * self.pages_of_a_unit)?);
        }
        for _ in 0..count {
            let Some(batch) = self.batches.last_mut() else { break };
            if let Some(index) = batch.taken.pop() {
                batch.area.release(index)?;
            }
            if batch.taken.is_empty() {
                self.batches.pop();
            }
        }
        Ok(())
    }
}

/// Bytes of the block of which a unit keeps one page: the largest that is still too small for the
/// order, but no more than a huge page.
fn block_bytes(order: Order, huge_size: usize) -> usize {
    (page_size() << order.0).min(huge_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_between_the_order_and_a_huge_page_cannot_be_broken_up() {
        // 16 pages in each of orders 0, 2, 3 and 4.
        let blocks = [16, 0, 4, 2, 1];
        assert_eq!(out_of_reach(&blocks, Order(2), Order(4)), 0.5);
        assert_eq!(out_of_reach(&blocks, Order(4), Order(4)), 0.0);
        assert_eq!(out_of_reach(&[0, 0], Order(0), Order(1)), 0.0);
    }
}
