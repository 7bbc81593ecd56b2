//! Where a region grows, and what to provide ahead of it.
//!
//! A *region* is a range of private anonymous memory. A program that grows touches it from low to high addresses;
//! the *frontier* is the end of what it has touched. Pages are provided from the frontier on, so that the program finds
//! them there instead of taking a fault for each.
//!
//! ```text
//!  start            touched                marker        marker  provided                 end
//!    │█████████████████│▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ ▒▒▒▒▒▒▒▒▒▒▒▒▒ ▒▒▒▒▒▒▒▒│                       │
//!     touched           provided, perhaps touched                    nothing
//! ```
//!
//! Of a page that was provided nobody can tell whether the program has touched it. So some are left out: *markers*,
//! single base pages whose presence says that the frontier has come by. The last marker stands as far before the end of
//! what is provided as the program may grow until somebody looks again. The end of a region has none behind that if its
//! speed is known: the program's next mapping tells as much. A chunk with a marker is made of smaller pages; it can be
//! collapsed later.
//!
//! A program that is faster than what is being made for it would be met at each page. So what it will have passed
//! by then is left to it: the rest of a chunk, or a whole chunk (which its own fault brings). Where whole chunks are
//! made, parts of chunks at a region's ends are left to it as well: they would cost a helper what they cost the
//! program.
//!
//! Where the program's own faults are to bring pages of 64 KiB, all that is provided of a chunk is its *head*, the
//! first 64 KiB: no huge page fits there any more. The page behind the head is the chunk's marker.
//!
//! Properties (tested):
//! - Nothing is provided beyond the frontier plus the allowance, except before the first touch, and then no more
//!   than the loan. Of heads, no more than eight lie ahead.
//! - Windows are provided in order, none twice, none outside the region, and no marker is ever provided.
//! - A huge window is one whole, aligned chunk.
//! - The frontier never moves back.

use crate::board::Order;
use crate::{HUGE, PAGE};

/// How far from the frontier a touch may be and still be growth.
const SLACK: u64 = HUGE;

/// Markers of a region.
const MARKERS: usize = 8;

/// Bytes of a head, and of the pages that the program's faults bring behind it.
pub const HEAD_BYTES: u64 = 16 * PAGE;

/// The smallest window of base pages that is worth its system calls.
const LEAST: u64 = 16 * PAGE;

/// The largest window of base pages.
const MOST: u64 = 64 * PAGE;

/// Time within which the library's thread looks again while something grows, as a lead in ns.
const REACTION_NS: u64 = 3_000_000;

/// How long making the base pages of a chunk takes, about, and how long a huge page.
const CHUNK_NS: u64 = 500_000;
const HUGE_NS: u64 = 300_000;

/// Bytes that a program of this rate (bytes a millisecond) grows in a time.
fn in_time(rate: u64, ns: u64) -> u64 {
    rate.saturating_mul(ns) / 1_000_000
}

/// What is known of a range's pages.
pub trait Pages {
    /// Whether the page at this address is there (or swapped out).
    fn is_present(&mut self, page: u64) -> bool;

    /// The first run of pages in `from..to` that are there.
    fn first_run(&mut self, from: u64, to: u64) -> Option<(u64, u64)>;
}

/// What a window is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Base pages.
    Base,
    /// A whole chunk of pages of 64 KiB, where the system gives them to advised memory; elsewhere of base pages.
    Medium,
    /// One huge page.
    Huge,
    /// The first 64 KiB of a whole chunk, in base pages; the rest is the program's to fault in.
    Head,
}

/// What to provide next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// What it is made of.
    pub grain: Grain,
    /// Whether the first page stays out; of a head, the page behind it.
    pub marker: bool,
}

/// What came of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is there.
    Provided,
    /// The program was there first.
    Late,
    /// There is no huge page to be had.
    Refused,
}

/// A region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frontier {
    start: u64,
    end: u64,
    touched: u64,
    /// A page below `touched` that was there; 0: none was seen.
    known: u64,
    provided: u64,
    markers: [u64; MARKERS],
    marked: usize,
    last_marker: u64,
    /// The end of a chunk that has to be made of base pages.
    plain_until: u64,
    rate: u64,
    /// Up to where the rate has been worked out.
    rated: u64,
    moved_ns: u64,
    jumps: u64,
}

impl Frontier {
    /// A region of which nothing is known yet.
    pub const fn new(start: u64, end: u64, now_ns: u64) -> Self {
        Self {
            start,
            end,
            touched: start,
            known: 0,
            provided: start,
            markers: [0; MARKERS],
            marked: 0,
            last_marker: start,
            plain_until: 0,
            rate: 0,
            rated: start,
            moved_ns: now_ns,
            jumps: 0,
        }
    }

    /// The same, of a region that is expected to grow by `rate` bytes a millisecond.
    pub const fn at_rate(mut self, rate: u64) -> Self {
        self.rate = rate;
        self
    }

    /// The rate, for another region in which the program goes on; this one has none any more.
    pub fn hand_over_rate(&mut self, now_ns: u64) -> u64 {
        let rate = self.rate(now_ns);
        self.rate = 0;
        rate
    }

    /// First address.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Address behind the last.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Address up to which it is known to be touched.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// A page of what was touched that was there when it was looked at.
    pub fn known(&self) -> Option<u64> {
        (self.known > 0).then_some(self.known)
    }

    /// Address up to which it is provided.
    pub fn provided(&self) -> u64 {
        self.provided
    }

    /// The end of what takes no huge page at the program's own faults: that of the region, or the next whole chunk that
    /// is untouched and without a head.
    pub fn plain(&self) -> u64 {
        let next = self.provided.next_multiple_of(HUGE);
        if next + HUGE <= self.end { next } else { self.end }
    }

    /// Whether it is touched here and there more than in order.
    pub fn is_scattered(&self) -> bool {
        const IN_ORDER: u64 = 16 * HUGE;
        self.jumps > 4 + (self.touched - self.start) / IN_ORDER
    }

    /// Touches found far from where it grew.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }

    /// Whether any touch was seen.
    pub fn grows(&self) -> bool {
        self.touched > self.start
    }

    /// Whether there is nothing left to provide or to watch.
    pub fn is_complete(&self) -> bool {
        self.provided >= self.end && self.marked == 0
    }

    /// Bytes provided and, as far as is known, untouched.
    pub fn untouched(&self) -> u64 {
        if self.is_complete() { 0 } else { self.provided - self.touched }
    }

    /// Bytes a millisecond by which it grows: as last seen, and less when nothing has been seen for longer than that.
    pub fn rate(&self, now_ns: u64) -> u64 {
        let still = now_ns.saturating_sub(self.moved_ns).max(1);
        let unseen = self.untouched().max(SLACK);
        self.rate.min(unseen.saturating_mul(1_000_000) / still)
    }

    /// The region is longer now.
    pub fn extend(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Takes in the complete region behind this one, which is complete too.
    pub fn join(&mut self, next: &Self) {
        if self.is_complete() && next.is_complete() && next.start == self.end {
            (self.end, self.touched, self.provided) = (next.end, next.end, next.end);
        }
    }

    /// Finds out how far it has grown; whether it has.
    pub fn advance(&mut self, pages: &mut impl Pages, now_ns: u64) -> bool {
        while self.marked > 0 && pages.is_present(self.markers[0]) {
            self.known = self.markers[0];
            self.touched = self.touched.max(self.known + PAGE);
            self.markers.copy_within(1.., 0);
            self.marked -= 1;
        }
        if self.marked == 0 {
            self.look_behind(pages);
        }
        let grown = self.touched - self.rated;
        if grown > 0 {
            self.rated = self.touched;
            let took = now_ns.saturating_sub(self.moved_ns).max(1);
            let seen = grown.saturating_mul(1_000_000) / took;
            self.rate = if self.rate == 0 { seen } else { (self.rate + seen) / 2 };
            self.moved_ns = now_ns;
        }
        if self.is_complete() {
            // No marker tells of the rest.
            (self.touched, self.rated) = (self.end, self.end);
        }
        grown > 0
    }

    /// Looks for touches behind what is provided: no marker tells of those.
    fn look_behind(&mut self, pages: &mut impl Pages) {
        const RUNS: usize = 16;
        for _ in 0..RUNS {
            if self.provided >= self.end {
                return;
            }
            let Some((start, end)) = pages.first_run(self.provided, self.end) else { return };
            let (start, end) = (start.max(self.provided), end.min(self.end));
            if end <= start {
                return;
            }
            if start - self.provided > SLACK && self.grows() {
                self.jumps += 1;
            }
            self.known = end - PAGE;
            self.touched = end;
            self.provided = end;
            self.last_marker = end;
        }
    }

    /// The next window to provide, with `allowance` bytes that may lie untouched, or `loan` before the first touch.
    pub fn plan(&self, order: Order, allowance: u64, loan: u64, now_ns: u64) -> Option<Window> {
        // Of what whole chunks are made, with a marker and without.
        let (marked, whole) = match order {
            Order::Huge => (Grain::Medium, Grain::Huge),
            Order::Pool => (Grain::Base, Grain::Huge),
            Order::Medium => (Grain::Medium, Grain::Medium),
            Order::Base => (Grain::Base, Grain::Base),
            Order::FaultMedium => return self.head(loan),
            Order::Nothing | Order::Fault | Order::FaultBase => return None,
        };
        let chunks = whole != Grain::Base;
        let allowance = if self.grows() { allowance } else { loan };
        if allowance < LEAST || self.touched - self.start < LEAST && self.grows() {
            return None;
        }
        let target = self.end.min(self.touched.saturating_add(allowance));
        let rate = self.rate(now_ns);
        let at = if chunks { self.ahead_of_the_program(rate) } else { self.provided };
        if at >= target {
            return None;
        }
        let at = if chunks && at >= self.plain_until { at.next_multiple_of(HUGE) } else { at };
        let boundary = (at / HUGE + 1) * HUGE;
        // Of a region whose speed is not known yet, half.
        let lead = if rate == 0 { allowance / 2 } else { in_time(rate, REACTION_NS) };
        // A marker where the last one was left far enough behind, or at the latest where the lead begins; in the last
        // chunk of a region whose speed is not known.
        let due = |least: u64, end: u64| {
            let lead = lead.next_multiple_of(least).max(least);
            let spacing = allowance.saturating_sub(lead) / least * least;
            let far = at - self.last_marker >= spacing.max(least);
            let tail = if target < self.end || rate > 0 { lead } else { least };
            let last = self.marked == 0 && end + tail > target;
            let needed = rate == 0 || self.end - self.last_marker > lead + least;
            self.marked < MARKERS && needed && (far || last)
        };
        if chunks && at >= self.plain_until {
            if boundary > target {
                return None;
            }
            let marker = due(HUGE, boundary);
            let grain = if marker { marked } else { whole };
            return Some(Window { start: at, end: boundary, grain, marker });
        }
        let end = target.min(boundary).min(at + MOST);
        let marker = due(LEAST, end);
        let enough = end - at >= LEAST || end == self.end || end == boundary;
        let grain = Grain::Base;
        (enough && end - at > PAGE).then_some(Window { start: at, end, grain, marker })
    }

    /// The next chunk that gets a head; before the first touch, as long as the loan pays for it.
    fn head(&self, loan: u64) -> Option<Window> {
        let start = self.provided.next_multiple_of(HUGE);
        let room = if self.grows() { MARKERS as u64 } else { loan / HEAD_BYTES };
        let due = (self.marked as u64) < room.min(MARKERS as u64) && start + HUGE <= self.end;
        due.then_some(Window { start, end: start + HUGE, grain: Grain::Head, marker: true })
    }

    /// Where the next window may begin so that it is there before the program is.
    fn ahead_of_the_program(&self, rate: u64) -> u64 {
        let at = self.provided;
        let next = at.next_multiple_of(HUGE);
        if next + HUGE > self.end {
            return at;
        }
        if next - at > 0 && next - at < in_time(rate, CHUNK_NS) {
            return next;
        }
        let met = at == next && self.grows() && at - self.touched < in_time(rate, HUGE_NS);
        if met && next + 2 * HUGE <= self.end { at + HUGE } else { at }
    }

    /// A window was tried.
    pub fn tried(&mut self, window: Window, outcome: Outcome) {
        match outcome {
            Outcome::Refused => self.plain_until = self.plain_until.max(window.end),
            Outcome::Provided | Outcome::Late => {
                self.provided = self.provided.max(window.end);
                if outcome == Outcome::Late {
                    self.touched = self.touched.max(window.start);
                }
                if window.marker && outcome == Outcome::Provided && self.marked < MARKERS {
                    let head = if window.grain == Grain::Head { HEAD_BYTES } else { 0 };
                    self.markers[self.marked] = window.start + head;
                    self.marked += 1;
                    self.last_marker = window.start + head;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// Pages that are there.
    #[derive(Default)]
    struct Memory(BTreeSet<u64>);

    impl Memory {
        fn fill(&mut self, start: u64, end: u64) {
            self.0.extend((start..end).step_by(PAGE as usize));
        }
    }

    impl Pages for Memory {
        fn is_present(&mut self, page: u64) -> bool {
            self.0.contains(&page)
        }
        fn first_run(&mut self, from: u64, to: u64) -> Option<(u64, u64)> {
            let start = *self.0.range(from..to).next()?;
            let mut end = start;
            while end < to && self.0.contains(&end) {
                end += PAGE;
            }
            Some((start, end))
        }
    }

    const START: u64 = 1 << 30;

    /// A program that touches `step` pages a millisecond of a region of `chunks` chunks, beside a library; the faults
    /// that it took, and the huge pages that it got.
    fn grow(order: Order, chunks: u64, step: u64, allowance: u64, loan: u64) -> (u64, u64) {
        let end = START + chunks * HUGE;
        let mut memory = Memory::default();
        let mut frontier = Frontier::new(START, end, 0);
        let (mut faults, mut huge, mut at, mut now) = (0, 0, START, 0);
        let mut windows: Vec<Window> = Vec::new();
        while at < end {
            let before = frontier.touched();
            frontier.advance(&mut memory, now);
            assert!(frontier.touched() >= before && frontier.touched() <= end);
            let told = frontier.touched() <= at.max(before) || frontier.is_complete();
            assert!(told, "what was not touched is called touched");
            while let Some(window) = frontier.plan(order, allowance, loan, now) {
                let room = if frontier.grows() { allowance } else { loan };
                let head = window.grain == Grain::Head;
                let room = if head { (1 + MARKERS as u64) * HUGE } else { room };
                assert!(window.end <= frontier.touched() + room && window.end <= end);
                assert!(
                    window.grain == Grain::Base
                        || window.start.is_multiple_of(HUGE) && window.end - window.start == HUGE
                );
                assert!(windows.last().is_none_or(|last| last.end <= window.start));
                let first = window.start + if window.marker && !head { PAGE } else { 0 };
                let last = if head { window.start + HEAD_BYTES } else { window.end };
                let late = (first..last).step_by(PAGE as usize).any(|p| memory.is_present(p));
                memory.fill(first, last);
                huge += u64::from(window.grain == Grain::Huge && !late);
                frontier.tried(window, if late { Outcome::Late } else { Outcome::Provided });
                windows.push(window);
            }
            for _ in 0..step {
                if at < end {
                    faults += u64::from(memory.0.insert(at));
                    at += PAGE;
                }
            }
            now += 1_000_000;
        }
        (faults, huge)
    }

    #[test]
    fn a_steady_program_takes_one_fault_a_wire_and_gets_mostly_huge_pages() {
        let (faults, huge) = grow(Order::Huge, 64, 256, 32 << 20, 0);
        assert!(faults < 64 * 512 / 50, "{faults} faults");
        assert!(huge > 48, "{huge} huge pages of 64");
    }

    #[test]
    fn base_pages_ahead_spare_the_faults_too() {
        let (faults, huge) = grow(Order::Base, 32, 64, 2 << 20, 0);
        assert!(faults < 32 * 512 / 20, "{faults} faults");
        assert_eq!(huge, 0);
    }

    #[test]
    fn a_seed_is_sown_in_each_chunk_that_a_steady_program_comes_to() {
        let (faults, huge) = grow(Order::FaultMedium, 32, 256, 0, 0);
        // The first two chunks are passed before anybody looks.
        assert!(faults <= 32 * 512 - 29 * HEAD_BYTES / PAGE, "{faults} faults");
        assert_eq!(huge, 0);
        let frontier = Frontier::new(START, START + 64 * HUGE, 0);
        assert_eq!(frontier.plan(Order::FaultMedium, 64 << 20, 0, 1), None, "not touched yet");
        let window = frontier.plan(Order::FaultMedium, 0, HEAD_BYTES, 1).unwrap();
        assert_eq!((window.start, window.end, window.grain), (START, START + HUGE, Grain::Head));
    }

    #[test]
    fn without_an_order_nothing_is_provided() {
        assert_eq!(grow(Order::Nothing, 4, 100, 64 << 20, 0), (4 * 512, 0));
    }

    #[test]
    fn a_loan_comes_before_the_first_touch() {
        let frontier = Frontier::new(START, START + 64 * HUGE, 0);
        assert_eq!(frontier.plan(Order::Huge, 64 << 20, 0, 1), None);
        let window = frontier.plan(Order::Huge, 64 << 20, 4 << 20, 1).unwrap();
        assert_eq!((window.start, window.grain), (START, Grain::Huge));
    }

    #[test]
    fn a_refused_chunk_is_made_of_base_pages() {
        let mut frontier = Frontier::new(START, START + 64 * HUGE, 0);
        let window = frontier.plan(Order::Huge, 0, 8 << 20, 1).unwrap();
        assert_eq!(window.grain, Grain::Huge);
        frontier.tried(window, Outcome::Refused);
        let window = frontier.plan(Order::Huge, 0, 8 << 20, 1).unwrap();
        assert_eq!((window.start, window.grain), (START, Grain::Base));
    }

    #[test]
    fn the_rest_of_a_chunk_is_left_to_the_program() {
        for took in [100_000, 1_000_000_000] {
            let mut memory = Memory::default();
            memory.fill(START, START + HUGE / 2);
            let mut frontier = Frontier::new(START, START + 64 * HUGE, 0);
            assert!(frontier.advance(&mut memory, took));
            let window = frontier.plan(Order::Huge, 64 << 20, 0, took).unwrap();
            assert_eq!(window.start, START + HUGE, "touched in {took} ns");
        }
    }

    #[test]
    fn no_huge_page_fits_before_the_next_untouched_whole_chunk() {
        let region = |start, end| Frontier::new(start, end, 0).plain();
        assert_eq!(region(START + PAGE, START + 3 * HUGE), START + HUGE);
        assert_eq!(region(START + PAGE, START + HUGE + PAGE), START + HUGE + PAGE);
        let mut frontier = Frontier::new(START, START + 3 * HUGE, 0);
        assert_eq!(frontier.plain(), START);
        let window = frontier.plan(Order::FaultMedium, 0, HEAD_BYTES, 1).unwrap();
        frontier.tried(window, Outcome::Provided);
        assert_eq!(frontier.plain(), START + HUGE);
    }

    #[test]
    fn touches_here_and_there_are_told_from_growth() {
        for (step, scattered) in [(HUGE / 2, false), (3 * HUGE, true)] {
            let mut memory = Memory::default();
            let mut frontier = Frontier::new(START, START + 64 * HUGE, 0);
            for round in 0..20 {
                memory.fill(START + round * step, START + round * step + PAGE);
                frontier.advance(&mut memory, round * 1_000_000);
            }
            assert_eq!(frontier.is_scattered(), scattered, "a page each {step} bytes");
        }
    }

    #[test]
    fn a_region_of_unknown_speed_that_is_provided_to_its_end_has_a_wire_in_its_last_chunk() {
        let mut frontier = Frontier::new(START, START + 4 * HUGE, 0);
        let mut windows = Vec::new();
        while let Some(window) = frontier.plan(Order::Huge, 0, 64 << 20, 1) {
            frontier.tried(window, Outcome::Provided);
            windows.push((window.start, window.marker));
        }
        let markers: Vec<bool> = windows.iter().map(|(_, marker)| *marker).collect();
        assert_eq!(markers, [false, false, false, true], "{windows:?}");
        assert!(!frontier.is_complete());
    }

    #[test]
    fn a_region_in_which_a_program_goes_on_has_no_wire_near_its_end() {
        // 4 MiB a millisecond: 12 MiB are touched before somebody looks again.
        let rate = 4 << 20;
        for (chunks, markers) in [(4, 0), (32, 1)] {
            let mut before = Frontier::new(START - HUGE, START, 0).at_rate(rate);
            let rate = before.hand_over_rate(1);
            let mut frontier = Frontier::new(START, START + chunks * HUGE, 1).at_rate(rate);
            assert_eq!(before.rate(1), 0);
            let mut last = START;
            let mut found = 0;
            while let Some(window) = frontier.plan(Order::Huge, 0, 64 << 20, 1) {
                frontier.tried(window, Outcome::Provided);
                if window.marker {
                    (found, last) = (found + 1, window.start);
                }
            }
            assert_eq!((found, frontier.is_complete()), (markers, markers == 0));
            assert!(
                frontier.end() - last <= 16 << 20,
                "the program has {last:#x} behind it unseen"
            );
        }
    }

    #[test]
    fn a_program_that_rests_grows_slower_and_slower() {
        let mut memory = Memory::default();
        let mut frontier = Frontier::new(START, START + 64 * HUGE, 0);
        memory.fill(START, START + HUGE);
        assert!(frontier.advance(&mut memory, 1_000_000));
        let rate = frontier.rate(1_000_000);
        assert_eq!(rate, HUGE);
        assert!(frontier.rate(1_000_000_000) <= rate / 400);
    }

    proptest! {
        #[test]
        fn whatever_the_speed_the_properties_hold(
            order in prop_oneof![
                Just(Order::Base),
                Just(Order::Medium),
                Just(Order::Huge),
                Just(Order::FaultMedium),
            ],
            chunks in 1_u64..24,
            step in 1_u64..3000,
            allowance in 0_u64..(48 << 20),
            loan in 0_u64..(8 << 20),
        ) {
            // `grow` holds them in each step.
            let allowance = allowance / PAGE * PAGE;
            let (faults, huge) = grow(order, chunks, step, allowance, loan / PAGE * PAGE);
            prop_assert!(faults <= chunks * 512);
            prop_assert!(huge <= chunks);
        }
    }
}
