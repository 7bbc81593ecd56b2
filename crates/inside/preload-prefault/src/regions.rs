//! The regions of this process: found, watched, provided for, and told to the launcher.
//!
//! A round looks at each region, provides what [`Frontier::plan`] says, and writes what it saw on the board. Who is new
//! comes from the program's own calls at once, and from a look at all mappings when the program has grown; such a look
//! costs a microsecond or so a mapping and is spaced so that all of them together take a hundredth of one CPU.
//!
//! Most programs are short or small, and nothing is gained by looking at those. So all of this begins when a program
//! has or maps [much](notes::is_much) anonymous memory; until then its size is looked at now and then.

use pagemill_prefault::board::{
    Board, Head, Kind, Order, Process, ProcessWord, REGIONS, RegionWord, degraded,
};
use pagemill_prefault::frontier::{Frontier, Grain, HEAD_BYTES, Outcome, Pages};
use pagemill_prefault::{HUGE, PAGE};
use pagemill_preload_sys::sys;

use crate::kernel::{self, Linux, Mapping};
use crate::pool::{Delivery, Pool};
use crate::{board, notes};

/// The smallest range that is worth a region.
const LEAST: u64 = 256 << 10;

/// The smallest mapping of which a part is provided before its first touch.
const LENT_FROM: u64 = 64 << 20;

/// A mapping that is made so soon after growth was seen is part of it.
const SOON_NS: u64 = 20_000_000;

/// A launcher that has given no sign of life for so long is gone.
const SILENCE_NS: u64 = 5_000_000_000;

/// Longest time that one region is provided for at a stretch.
const TURN_NS: u64 = 5_000_000;

/// After the last growth the pool keeps its store for so long.
const KEEP_NS: u64 = 200_000_000;

/// Time between two looks at how large a small program is: an eighth of its age within these bounds. A look takes up to
/// 80 us where a CPU has to be woken.
const NAP_NS: (u64, u64) = (10_000_000, 50_000_000);

/// So far ahead of a region's growth the kernel is told which pages to use.
const ADVISED_AHEAD: u64 = 32 << 20;

/// Whether pages are provided before the program touches them.
fn is_ahead(order: Order) -> bool {
    matches!(order, Order::Base | Order::Huge | Order::Pool | Order::Medium)
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    live: bool,
    frontier: Frontier,
    kind: Kind,
    seen: bool,
    /// Address up to which the program's own faults were asked to bring larger pages; 0: none.
    advised: u64,
    /// Whether they bring whole huge pages there.
    wide: bool,
    /// Address up to which they were asked to bring base pages; 0: none.
    plain: u64,
    /// Whether the program has mapped it a moment ago: it mostly touches that at once.
    young: bool,
    /// Whether anything was provided.
    begun: bool,
    /// The mapping's whole extent, as far as it is known.
    told: (u64, u64, u64),
}

#[derive(Debug)]
pub(crate) struct Regions {
    linux: Linux,
    pool: Pool,
    process: Process<'static>,
    board: Board<'static>,
    notes: notes::Reader,
    slots: [Slot; REGIONS],
    able: bool,
    queries: bool,
    awake: bool,
    /// When it began.
    began: u64,
    resident: u64,
    /// Bytes by which regions have been found to grow.
    grown: u64,
    /// Resident bytes at the last look at all mappings, and when the next may be.
    looked_at: u64,
    next_look: u64,
    grown_ns: u64,
    /// When the program last mapped much memory.
    mapped_ns: u64,
}

/// Has the kernel use huge pages in a range; whether it does. The program may have refused them since this was decided:
/// what it says stands.
fn advise(from: u64, to: u64) -> bool {
    let done = kernel::want_huge(from, to - from);
    if notes::is_refused(from, to) {
        kernel::want_base(from, to - from);
        return false;
    }
    done
}

impl Regions {
    /// Opens what it needs; `None` without a board or address space.
    pub(crate) fn new(process: Process<'static>) -> Option<Self> {
        let board = board::whole_board()?;
        let (linux, missing) = Linux::open();
        process.set(ProcessWord::Degraded, process.get(ProcessWord::Degraded) | missing);
        Some(Self {
            linux,
            pool: Pool::new()?,
            process,
            board,
            notes: notes::Reader::new(),
            slots: [Slot::default(); REGIONS],
            able: missing & (degraded::NO_MOVE | degraded::NO_SCAN | degraded::NO_QUERY) == 0,
            queries: missing & degraded::NO_QUERY == 0,
            awake: false,
            began: sys::clock(sys::CLOCK_MONOTONIC),
            resident: 0,
            grown: 0,
            looked_at: 0,
            next_look: 0,
            grown_ns: 0,
            mapped_ns: 0,
        })
    }

    /// One round; returns how long to sleep after it.
    pub(crate) fn round(&mut self, now: u64) -> u64 {
        self.process.add(ProcessWord::Rounds, 1);
        if !self.able {
            notes::acted(u64::MAX >> 33);
            self.collapse_one();
            return 100_000_000;
        }
        let silent = now.saturating_sub(self.board.get(Head::Heartbeat)) > SILENCE_NS;
        let first = if silent { Order::Nothing } else { self.first() };
        // No huge page fits into a small mapping, and pages of 64 KiB are there only if some policy has them.
        let unasked = self.board.get(Head::MediumUnasked) != 0;
        notes::advise_small(first != Order::Nothing && !unasked);
        if !self.awake && !self.wake(first) {
            notes::acted(self.notes.read());
            let nap = (now.saturating_sub(self.began) / 8).clamp(NAP_NS.0, NAP_NS.1);
            return nap.max(self.rests());
        }
        let began = sys::clock(sys::CLOCK_THREAD_CPUTIME_ID);
        // Before what is new, which takes over the rate of what is complete.
        self.advance_frontiers(|_| true, now);
        while let Some((start, len)) = self.notes.next() {
            self.mapped(start, start + len, now);
        }
        (self.resident, _) = self.linux.resident();
        self.process.set(ProcessWord::Resident, self.resident);
        if self.queries {
            self.look_around(now);
        }
        self.advance_frontiers(|slot| !slot.begun, now);
        let live = self.slots.iter().filter(|slot| slot.live);
        let rate = live.map(|slot| slot.frontier.rate(now)).sum();
        let allowance = self.allowance(rate);
        let (mut pool, mut ahead) = (false, false);
        // The first window of each new region at once, for the program waits for that of a large one.
        for number in 0..REGIONS {
            let order = self.order(number, first, silent);
            if self.slots[number].live && order != Order::Nothing && !self.slots[number].begun {
                self.slots[number].begun = true;
                self.provide(number, order, allowance, now, 1);
            }
        }
        notes::acted(self.notes.read());
        for number in 0..REGIONS {
            let order = self.order(number, first, silent);
            pool |= order == Order::Pool;
            ahead |= is_ahead(order);
            match (self.slots[number].live, order) {
                (false, _) => {}
                (true, Order::Nothing) if self.board.get(Head::HugeUnasked) == 0 => {
                    self.retract(number);
                }
                (true, Order::Nothing) => {}
                (true, order) => self.provide(number, order, allowance, now, usize::MAX),
            }
            self.tell(number);
        }
        self.keep_store(pool, allowance, now);
        self.collapse_one();
        self.process.set(ProcessWord::Untouched, self.untouched());
        self.count_time();
        let pause = self.pause(now, rate, ahead);
        let busy = ahead || self.process.get(ProcessWord::Brisk) != 0;
        let share = if busy { 0 } else { self.board.get(Head::Share) };
        pause.max((sys::clock(sys::CLOCK_THREAD_CPUTIME_ID) - began).saturating_mul(share))
    }

    /// How much CPU time the process has to take until it is looked at, ns.
    fn rests(&self) -> u64 {
        let least = self.board.get(Head::LeastNs);
        least.saturating_sub(self.process.get(ProcessWord::ProgramNs))
    }

    /// Tells how much CPU time the program and the helper have taken, and how far the program has grown by then.
    fn count_time(&self) {
        let helper = sys::clock(sys::CLOCK_THREAD_CPUTIME_ID);
        let all = sys::clock(sys::CLOCK_PROCESS_CPUTIME_ID);
        self.process.set(ProcessWord::HelperNs, helper);
        self.process.set(ProcessWord::ProgramNs, all.saturating_sub(helper));
        self.process.set(ProcessWord::Grown, self.grown);
    }

    /// What is to be done about regions that the launcher has not looked at.
    fn first(&self) -> Order {
        self.process.first().unwrap_or(Order::from_word(self.board.get(Head::First)))
    }

    /// Whether there is reason to look at the program's memory, from now on.
    fn wake(&mut self, first: Order) -> bool {
        let (resident, anonymous) = self.linux.resident();
        self.process.set(ProcessWord::Resident, resident);
        self.count_time();
        let asked = is_ahead(first) || self.process.get(ProcessWord::CollapseAt) != 0;
        let much = notes::is_much(anonymous) || notes::is_much(notes::noted());
        let rests = self.rests() > 0;
        self.awake = asked || much && !rests;
        notes::let_wait(!self.awake);
        notes::doze(!self.awake && rests);
        self.awake
    }

    /// Finds out how far some of the regions have grown.
    fn advance_frontiers(&mut self, which: impl Fn(&Slot) -> bool, now: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot.live && which(slot)) {
            let before = slot.frontier.touched();
            if slot.frontier.advance(&mut self.linux, now) {
                self.grown_ns = now;
            }
            self.grown += slot.frontier.touched() - before;
        }
    }

    /// Has the program's own faults bring huge pages from `start` to some way ahead of `end`, so that one
    /// that comes before its page is ready makes it as large. One mapping becomes two by this, a few times in its life.
    fn advise(&mut self, number: usize, start: u64, end: u64) {
        let slot = &mut self.slots[number];
        if end > slot.advised {
            let from = slot.advised.max(start);
            let to = slot.frontier.end().min(end + ADVISED_AHEAD);
            if advise(from, to) {
                (slot.advised, slot.wide) = (to, true);
            }
        }
    }

    /// Takes back what was advised ahead for huge pages: they have become dear.
    fn retract(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        if !core::mem::take(&mut slot.wide) {
            return;
        }
        let from = slot.frontier.provided().next_multiple_of(HUGE);
        if slot.advised > from {
            kernel::want_base(from, slot.advised - from);
            slot.advised = from;
        }
    }

    /// What is to be done about a region.
    fn order(&mut self, number: usize, first: Order, silent: bool) -> Order {
        let slot = &self.slots[number];
        if !slot.live || silent {
            return Order::Nothing;
        }
        let order = self.process.region(number).order(first);
        let (start, end) = (slot.frontier.start(), slot.frontier.end());
        if !matches!(order, Order::Nothing | Order::Base) {
            if notes::is_refused_everywhere() {
                let before = self.process.get(ProcessWord::Degraded);
                self.process.set(ProcessWord::Degraded, before | degraded::REFUSED_BY_PROGRAM);
            }
            if notes::is_refused(start, end) {
                return Order::Base;
            }
        }
        order
    }

    /// Bytes that may lie provided and untouched in all regions together.
    fn allowance(&self, rate: u64) -> u64 {
        let get = |word| self.board.get(word);
        let share = self.resident / 1000 * get(Head::LeadPerMille);
        let growth = rate.saturating_mul(get(Head::HorizonNs)) / 1_000_000;
        share.max(growth).min(get(Head::LeadMost)).min(get(Head::Headroom)) / PAGE * PAGE
    }

    fn untouched(&self) -> u64 {
        let live = self.slots.iter().filter(|slot| slot.live);
        live.map(|slot| slot.frontier.untouched()).sum()
    }

    /// Provides for one region until it has what it should, or its turn ends, `windows` at most.
    fn provide(&mut self, number: usize, order: Order, allowance: u64, now: u64, windows: usize) {
        if matches!(order, Order::Fault | Order::FaultBase) {
            return self.advise_faults(number, order == Order::Fault);
        }
        if matches!(order, Order::Base | Order::Medium | Order::FaultMedium) {
            self.retract(number);
        }
        let others = self.untouched() - self.slots[number].frontier.untouched();
        let allowance = allowance.saturating_sub(others);
        let frontier = &self.slots[number].frontier;
        let len = frontier.end() - frontier.start();
        let lent = self.board.get(Head::Lend).min(10_000);
        // A program that grows touches what it maps.
        let grows = self.grown_ns != 0 && now < self.grown_ns + SOON_NS;
        let loan = match len {
            _ if grows => allowance,
            0..LENT_FROM => 0,
            _ => len / 10_000 * lent,
        };
        let loan = loan.min(self.board.get(Head::Headroom)).saturating_sub(others) / PAGE * PAGE;
        let young = core::mem::take(&mut self.slots[number].young);
        if order == Order::FaultMedium {
            // Nothing need be asked for where the system gives them.
            if self.board.get(Head::MediumUnasked) == 0 {
                self.sow(number, loan, young, now);
            }
            return;
        }
        // What was just mapped and gets nothing yet the program mostly touches before its growth is seen.
        if young && self.slots[number].frontier.plan(order, allowance, loan, now).is_none() {
            match order {
                Order::Huge => {
                    let start = self.slots[number].frontier.start();
                    self.advise(number, start, start);
                }
                Order::Medium => self.sow(number, loan, young, now),
                _ => {}
            }
        }
        for _ in 0..windows {
            let frontier = &self.slots[number].frontier;
            let Some(window) = frontier.plan(order, allowance, loan, now) else { return };
            if order == Order::Huge && window.grain == Grain::Huge {
                self.advise(number, window.start, window.end);
            }
            let delivery = match order {
                Order::Pool => self.pool.deliver(window, &self.linux, self.process),
                _ => {
                    let advised = window.end <= self.slots[number].advised;
                    Pool::make_in_place(window, advised, &mut self.linux, self.process)
                }
            };
            let frontier = &mut self.slots[number].frontier;
            match delivery {
                Delivery::Gone => {
                    self.slots[number].live = false;
                    return;
                }
                Delivery::Tried(outcome) => {
                    frontier.tried(window, outcome);
                    if outcome == Outcome::Late {
                        frontier.advance(&mut self.linux, sys::clock(sys::CLOCK_MONOTONIC));
                    }
                }
            }
            if sys::clock(sys::CLOCK_MONOTONIC) > now + TURN_NS {
                return;
            }
        }
    }

    /// Has the program's own faults bring huge pages, or base pages, as far as the order reaches.
    fn advise_faults(&mut self, number: usize, huge: bool) {
        if !huge {
            self.retract(number);
        }
        let most = self.process.get(ProcessWord::FirstMost);
        let slot = &mut self.slots[number];
        let until = self.process.region(number).until(slot.frontier.touched(), most);
        let (start, end) = (slot.frontier.start(), slot.frontier.end().min(until));
        if !huge {
            // No further than it has to be: what is advised cannot be made as if it had never been.
            let end = end.min(slot.frontier.touched().saturating_add(ADVISED_AHEAD));
            let from = slot.plain.max(slot.frontier.touched()).next_multiple_of(PAGE);
            if from < end {
                slot.plain = end;
                kernel::want_base(from, end - from);
            }
            return;
        }
        // Of what is touched here and there a huge page is mostly waste.
        if slot.advised < end && !slot.frontier.is_scattered() {
            (slot.advised, slot.wide) = (end, true);
            advise(start, end);
        }
    }

    /// Makes heads of chunks ahead of a region's growth, and has the kernel use larger pages than base pages from where
    /// the program is up to the last of them.
    fn sow(&mut self, number: usize, loan: u64, young: bool, now: u64) {
        let slot = &mut self.slots[number];
        let frontier = &slot.frontier;
        let from = frontier.touched().max(slot.advised).next_multiple_of(PAGE);
        let mut to = from;
        // A head for each sixteenth chunk of what was just mapped.
        let chunks = (frontier.end() - frontier.start()) / HUGE;
        let loan = if young { loan.max((chunks / 16 + 1) * HEAD_BYTES) } else { loan };
        while let Some(window) = slot.frontier.plan(Order::FaultMedium, 0, loan, now) {
            match Pool::sow(window, &self.linux, self.process) {
                Delivery::Gone => {
                    slot.live = false;
                    return;
                }
                Delivery::Tried(outcome) => slot.frontier.tried(window, outcome),
            }
            to = window.end;
        }
        if young || slot.frontier.grows() {
            to = to.max(slot.frontier.plain());
        }
        if to >= from + HEAD_BYTES && advise(from, to) {
            slot.advised = to;
        }
    }

    /// Makes zeroed huge pages for the next windows while something grows, and gives them back when nothing does.
    fn keep_store(&mut self, huge: bool, allowance: u64, now: u64) {
        const MOST: u64 = 4;
        let grows = self.grown_ns != 0 && now < self.grown_ns + KEEP_NS;
        if !huge || !grows {
            self.pool.drain();
        } else {
            let wanted = (allowance / HUGE / 4).min(MOST);
            while self.pool.store() < wanted && self.pool.make(&self.linux, self.process) {}
        }
        self.process.set(ProcessWord::Pool, self.pool.store());
    }

    /// Does what the launcher has asked for.
    fn collapse_one(&mut self) {
        let chunk = self.process.get(ProcessWord::CollapseAt);
        if chunk == 0 || !chunk.is_multiple_of(HUGE) {
            return;
        }
        let began = sys::clock(sys::CLOCK_MONOTONIC);
        let done = !notes::is_refused(chunk, chunk + HUGE) && kernel::collapse(chunk);
        let took = sys::clock(sys::CLOCK_MONOTONIC) - began;
        self.process.smooth(ProcessWord::CollapseNs, took);
        self.process.add(if done { ProcessWord::Collapsed } else { ProcessWord::NotCollapsed }, 1);
        self.process.set(ProcessWord::CollapseAt, 0);
    }

    /// How long until something may be due.
    fn pause(&self, now: u64, rate: u64, is_ahead: bool) -> u64 {
        const LEAST_NS: u64 = 500_000;
        const MOST_NS: u64 = 2_000_000;
        /// Where the program's own faults bring what it needs there is little to do.
        const IDLE_NS: u64 = 20_000_000;
        /// What a program has just mapped it mostly touches at once.
        const YOUNG_NS: u64 = 50_000_000;
        if self.process.get(ProcessWord::CollapseAt) != 0 {
            return MOST_NS;
        }
        if rate > 0 && now < self.grown_ns + KEEP_NS {
            // A quarter of the time that what is provided lasts where it lasts least. Regions without growth wait for
            // nothing.
            let ahead = self
                .slots
                .iter()
                .filter(|slot| slot.live)
                .map(|slot| (slot.frontier.untouched(), slot.frontier.rate(now)));
            let least = ahead
                .filter(|(untouched, rate)| *untouched > 0 && *rate > 0)
                .map(|(untouched, rate)| untouched.max(LEAST).saturating_mul(1_000_000) / rate)
                .min();
            let brisk = self.process.get(ProcessWord::Brisk) != 0;
            let (least_ns, most_ns) = match (is_ahead, brisk) {
                (true, _) => (LEAST_NS, MOST_NS),
                (false, true) => (MOST_NS, MOST_NS),
                (false, false) => (MOST_NS, IDLE_NS),
            };
            let idle_ns = if brisk { MOST_NS } else { IDLE_NS };
            return least.map_or(idle_ns, |left| (left / 4).clamp(least_ns, most_ns));
        }
        if is_ahead && self.mapped_ns != 0 && now < self.mapped_ns + YOUNG_NS {
            return MOST_NS / 8;
        }
        match now.saturating_sub(self.grown_ns) {
            0..1_000_000_000 if is_ahead => 5_000_000,
            0..10_000_000_000 => IDLE_NS,
            _ => 50_000_000,
        }
    }

    /// The program has mapped this: whatever lay there before is gone.
    fn mapped(&mut self, start: u64, end: u64, now: u64) {
        for slot in &mut self.slots {
            if slot.live && slot.frontier.start() < end && start < slot.frontier.end() {
                slot.live = false;
            }
        }
        if let Some(number) = self.adopt(start, end, Kind::Mapping, now) {
            self.slots[number].young = true;
        }
        self.mapped_ns = now;
    }

    /// Looks at all mappings, if the program has grown and it is time.
    fn look_around(&mut self, now: u64) {
        const GROWN: u64 = 512 << 10;
        const SHARE: u64 = 100;
        const RARE_NS: u64 = 1_000_000_000;
        let grown = self.resident.abs_diff(self.looked_at) >= GROWN;
        if now < self.next_look || !grown && now < self.next_look + RARE_NS {
            return;
        }
        self.looked_at = self.resident;
        let began = sys::clock(sys::CLOCK_THREAD_CPUTIME_ID);
        for slot in &mut self.slots {
            slot.seen = false;
        }
        // Neighbours count as one: advice about a part of a mapping makes two of it.
        let mut range = Mapping { start: 0, end: 0, heap: false };
        let mut from = 0;
        while let Some(mapping) = self.linux.mapping_from(from) {
            from = mapping.end;
            if self.pool.owns(mapping.start, mapping.end) {
                continue;
            }
            if mapping.start == range.end && mapping.heap == range.heap {
                range.end = mapping.end;
            } else {
                self.found(range, now);
                range = mapping;
            }
        }
        self.found(range, now);
        for slot in &mut self.slots {
            slot.live &= slot.seen;
        }
        self.merge();
        let took = sys::clock(sys::CLOCK_THREAD_CPUTIME_ID) - began;
        self.next_look = now + (took * SHARE).max(1_000_000);
    }

    /// A range is mapped: the regions in it live on, and what no region covers becomes one.
    fn found(&mut self, Mapping { start, end, heap }: Mapping, now: u64) {
        if end - start < LEAST {
            return;
        }
        let kind = if heap { Kind::Heap } else { Kind::Mapping };
        let mut at = start;
        while at < end {
            // The region that covers `at`, or the next one above it.
            let next = (0..REGIONS)
                .filter(|&n| self.slots[n].live && self.slots[n].frontier.end() > at)
                .filter(|&n| self.slots[n].frontier.start() < end)
                .min_by_key(|&n| self.slots[n].frontier.start());
            let Some(number) = next else {
                self.grow_or_adopt(at, end, kind, now);
                return;
            };
            let frontier = self.slots[number].frontier;
            if frontier.end() > end {
                // The mapping is shorter than the region was.
                self.slots[number].live = false;
                continue;
            }
            if frontier.start() > at {
                self.grow_or_adopt(at, frontier.start(), kind, now);
            }
            // Unmapped and mapped anew without our seeing it: what was touched is not there.
            let known = frontier.known().filter(|_| !frontier.is_complete());
            if known.is_some_and(|page| !self.linux.is_present(page)) {
                self.slots[number].live = false;
                self.adopt(frontier.start(), frontier.end(), kind, now);
            }
            self.slots[number].seen = true;
            at = frontier.end();
        }
    }

    /// A range that no region covers: more of the region that ends there, if that one grows, or a new one.
    fn grow_or_adopt(&mut self, start: u64, end: u64, kind: Kind, now: u64) {
        let below = self.slots.iter_mut().find(|slot| slot.live && slot.frontier.end() == start);
        match below {
            Some(slot) if kind == Kind::Heap || !slot.frontier.is_complete() => {
                slot.frontier.extend(end);
                slot.seen = true;
            }
            _ => {
                self.adopt(start, end, kind, now);
            }
        }
    }

    fn adopt(&mut self, start: u64, end: u64, kind: Kind, now: u64) -> Option<usize> {
        let (start, end) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
        if end < start + LEAST {
            return None;
        }
        let free = self.slots.iter().position(|slot| !slot.live);
        let complete = || self.slots.iter().position(|slot| slot.frontier.is_complete());
        let slowest = || {
            (0..REGIONS).min_by_key(|&n| {
                let frontier = &self.slots[n].frontier;
                (frontier.rate(now), frontier.end() - frontier.provided())
            })
        };
        let number = free.or_else(complete).or_else(slowest)?;
        // A program that has filled a region goes on in the next one.
        let growing = self.grown_ns != 0 && now < self.grown_ns + SOON_NS;
        let filled = self.slots.iter_mut().map(|slot| &mut slot.frontier);
        let fastest = filled
            .filter(|frontier| growing && frontier.is_complete())
            .max_by_key(|frontier| frontier.rate(now));
        let rate = fastest.map_or(0, |frontier| frontier.hand_over_rate(now));
        let frontier = Frontier::new(start, end, now).at_rate(rate);
        self.slots[number] = Slot { live: true, frontier, kind, seen: true, ..Slot::default() };
        let place = self.process.region(number);
        let generation = place.get(RegionWord::Generation);
        place.set(RegionWord::Generation, generation | 1);
        for (word, value) in [
            (RegionWord::Start, start),
            (RegionWord::End, end),
            (RegionWord::Kind, kind as u64),
            (RegionWord::Touched, start),
            (RegionWord::Provided, start),
            (RegionWord::Rate, 0),
            (RegionWord::Jumps, 0),
            (RegionWord::Since, now),
        ] {
            place.set(word, value);
        }
        place.set(RegionWord::Generation, (generation | 1) + 1);
        Some(number)
    }

    /// Makes one region of two that are complete and lie side by side, so that they take one place.
    fn merge(&mut self) {
        for number in 0..REGIONS {
            let slot = self.slots[number];
            if !slot.live || !slot.frontier.is_complete() {
                continue;
            }
            let other = (0..REGIONS).find(|&n| {
                let other = &self.slots[n];
                other.live
                    && other.frontier.is_complete()
                    && other.frontier.start() == slot.frontier.end()
            });
            if let Some(other) = other {
                let next = self.slots[other].frontier;
                self.slots[number].frontier.join(&next);
                self.slots[other].live = false;
            }
        }
    }

    /// Writes a region on the board.
    fn tell(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let place = self.process.region(number);
        if !slot.live {
            if place.get(RegionWord::End) != 0 {
                place.set(RegionWord::End, 0);
            }
            return;
        }
        let now = (slot.frontier.end(), slot.frontier.touched(), slot.frontier.provided());
        if slot.told != now {
            slot.told = now;
            place.set(RegionWord::Start, slot.frontier.start());
            place.set(RegionWord::End, now.0);
            place.set(RegionWord::Kind, slot.kind as u64);
            place.set(RegionWord::Touched, now.1);
            place.set(RegionWord::Provided, now.2);
            place.set(RegionWord::Jumps, slot.frontier.jumps());
        }
        place.set(RegionWord::Rate, slot.frontier.rate(sys::clock(sys::CLOCK_MONOTONIC_COARSE)));
    }
}
