//! The memory that is tracked: the private anonymous memory of some processes, in pages of 2 MiB.
//!
//! - A *census* reads each process's mappings. Locked and shared memory, files and stacks are not
//!   tracked, so nothing of them is ever moved.
//! - *Locating* asks the kernel for the node of a few 4 KiB pages of each, a part of all pages at a
//!   time; a page none of whose parts exist is tracked no more until one does.
//! - *Heat* comes from a source of accesses ([`super::access_sources`]): regions, spread over the pages that they
//!   cover, or single accesses. Which part of a process's accesses went to the default tier, of those of the last few
//!   quanta, is its share.
//!
//! Always so: a number names one page at a time; a page of a process that has ended, or whose mapping
//! has gone, is reported gone before its number is given again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::nodes::move_pages::{self, PageLocation};
use pagemill_kernel::settings::damon::Region;
use pagemill_kernel::{Kind, Linux};
use pagemill_model::page::HUGE;
use pagemill_model::{PageRange, Pid, TierView};

use super::Tiers;

/// The tracked pages, which the daemon, the sources of accesses and the actuators share.
pub type Shared = Rc<RefCell<Pages>>;

/// Mappings below this are left alone.
const LEAST: u64 = 64 << 10;
/// Parts of a page that are asked for.
const PROBES: u64 = 4;
/// Refusals after which a page is not tried again.
const REFUSALS: u32 = 3;
/// What went one way and back within so many quanta is ping-pong.
const PING_PONG: u64 = 10;

/// A process whose memory is tracked.
#[derive(Clone, Debug)]
struct Process {
    /// With its number this names it for good.
    started: u64,
    comm: String,
    areas: Vec<PageRange>,
    totals: Totals,
}

/// A tracked page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its process.
    pub pid: Pid,
    /// The part of it that is mapped.
    pub start: u64,
    /// The first address after that.
    pub end: u64,
    /// Its tier, once it was found.
    pub tier: Option<usize>,
    heat: f64,
    changed: bool,
    /// When it last moved, and to which tier.
    moved: Option<(u64, usize)>,
    /// Others map it too, so it cannot move.
    stuck: bool,
    /// How often the kernel has refused to move it.
    refused: u32,
}

/// Bytes that moved, of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// To the default tier.
    pub promoted: u64,
    /// Away from it.
    pub demoted: u64,
    /// Back to each tier from which they had come a short while before.
    pub ping_pong: [u64; 2],
    /// Accesses seen on each tier, those of each quantum before counted half.
    accesses: [f64; 2],
}

impl Totals {
    /// The part of the accesses that the default tier served; unknown without any.
    pub fn share(&self) -> Option<f64> {
        let all = self.accesses[0] + self.accesses[1];
        (all > 0.0).then(|| self.accesses[0] / all)
    }
}

/// A process as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessPlacement {
    /// Its name.
    pub comm: String,
    /// Bytes mapped on each tier.
    pub bytes: [u64; 2],
    /// What moved.
    pub totals: Totals,
}

/// All tracked pages.
#[derive(Debug)]
pub struct Pages {
    tiers: Tiers,
    processes: BTreeMap<Pid, Process>,
    slots: Vec<Option<Page>>,
    free: Vec<u32>,
    numbers: BTreeMap<(Pid, u64), u32>,
    gone: Vec<u64>,
    cursor: usize,
    /// Bytes that went back to each tier, also of processes that have ended.
    ping_pong: [u64; 2],
    /// Processes that may not use both tiers, by number and start, and why.
    bound: BTreeMap<(Pid, u64), String>,
    new_notices: Vec<String>,
}

impl Pages {
    /// Nothing yet.
    pub fn new(tiers: Tiers) -> Self {
        Self {
            tiers,
            processes: BTreeMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            numbers: BTreeMap::new(),
            gone: Vec::new(),
            cursor: 0,
            ping_pong: [0; 2],
            bound: BTreeMap::new(),
            new_notices: Vec::new(),
        }
    }

    /// What is to be said of processes that are left alone, each once.
    pub fn new_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.new_notices)
    }

    /// Leaves the memory of a process alone that may not use both tiers.
    fn respect(&mut self, linux: &Linux, pid: Pid, found: &mut Process) {
        match linux.memory_binding(pid) {
            Some(binding) if !self.tiers.0.iter().all(|node| binding.nodes.contains(node)) => {
                found.areas.clear();
                let why = format!(
                    "process {pid} ({}) is left alone: {} allows it memory of node {} only",
                    found.comm, binding.by, binding.list
                );
                if self.bound.insert((pid, found.started), why.clone()).as_ref() != Some(&why) {
                    self.new_notices.push(why);
                }
            }
            _ => {
                self.bound.remove(&(pid, found.started));
            }
        }
    }

    /// Looks at the mappings of `pids`; drops what has gone and adds what is new.
    ///
    /// # Errors
    /// A process may not be looked into.
    pub fn census(&mut self, linux: &Linux, pids: &[Pid]) -> pagemill_kernel::Result<()> {
        let mut refused = None;
        let ended: Vec<Pid> =
            self.processes.keys().copied().filter(|pid| !pids.contains(pid)).collect();
        ended.into_iter().for_each(|pid| self.forget(pid));
        for &pid in pids {
            match process_of(linux, pid) {
                Ok(mut found) => {
                    self.respect(linux, pid, &mut found);
                    self.replace(pid, found);
                }
                Err(error) => {
                    self.forget(pid);
                    if error.kind() != Kind::Gone {
                        refused = Some(error);
                    }
                }
            }
        }
        match refused {
            Some(error) if self.processes.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn replace(&mut self, pid: Pid, mut found: Process) {
        match self.processes.get(&pid) {
            Some(known) if known.started == found.started && known.areas == found.areas => return,
            Some(known) if known.started == found.started => found.totals = known.totals,
            _ => self.forget(pid),
        }
        let wanted: BTreeMap<u64, PageRange> =
            found.areas.iter().flat_map(|&area| chunks(area)).collect();
        let known: Vec<(u64, u32)> = self
            .numbers
            .range((pid, 0)..=(pid, u64::MAX))
            .map(|((_, base), number)| (*base, *number))
            .collect();
        for (base, number) in known {
            match (wanted.get(&base), &mut self.slots[number as usize]) {
                (Some(area), Some(page)) => (page.start, page.end) = (area.start, area.end),
                _ => self.drop_page(pid, base, number),
            }
        }
        for (base, PageRange { start, end }) in wanted {
            if self.numbers.contains_key(&(pid, base)) {
                continue;
            }
            let page = Page {
                pid,
                start,
                end,
                tier: None,
                heat: 0.0,
                changed: false,
                moved: None,
                stuck: false,
                refused: 0,
            };
            let number = match self.free.pop() {
                Some(number) => {
                    self.slots[number as usize] = Some(page);
                    number
                }
                None => {
                    self.slots.push(Some(page));
                    self.slots.len() as u32 - 1
                }
            };
            self.numbers.insert((pid, base), number);
        }
        self.processes.insert(pid, found);
    }

    fn forget(&mut self, pid: Pid) {
        if self.processes.remove(&pid).is_some() {
            let pages: Vec<(u64, u32)> = self
                .numbers
                .range((pid, 0)..=(pid, u64::MAX))
                .map(|((_, base), number)| (*base, *number))
                .collect();
            pages.into_iter().for_each(|(base, number)| self.drop_page(pid, base, number));
        }
    }

    fn drop_page(&mut self, pid: Pid, base: u64, number: u32) {
        self.numbers.remove(&(pid, base));
        if self.slots[number as usize].take().is_some_and(|page| page.tier.is_some()) {
            self.gone.push(number.into());
        }
        self.free.push(number);
    }

    /// Asks for the place of at most `most` pages, going round; those that were never found first.
    pub fn locate(&mut self, most: usize) {
        let all = self.slots.len();
        let unknown = |page: &Option<Page>| {
            page.as_ref().is_some_and(|page| page.tier.is_none() && !page.stuck)
        };
        let mut chosen: Vec<usize> =
            (0..all).filter(|&at| unknown(&self.slots[at])).take(most).collect();
        for _ in 0..all.min(most.saturating_sub(chosen.len())) {
            self.cursor = (self.cursor + 1) % all.max(1);
            if self.slots[self.cursor].as_ref().is_some_and(|page| page.tier.is_some()) {
                chosen.push(self.cursor);
            }
        }
        chosen.sort_by_key(|&at| self.slots[at].as_ref().map(|page| page.pid));
        let groups: Vec<Vec<usize>> = chosen
            .chunk_by(|&a, &b| self.pid_of(a) == self.pid_of(b))
            .map(<[usize]>::to_vec)
            .collect();
        groups.iter().for_each(|group| self.locate_group(group));
    }

    fn pid_of(&self, at: usize) -> Option<Pid> {
        self.slots[at].as_ref().map(|page| page.pid)
    }

    fn locate_group(&mut self, group: &[usize]) {
        let Some(pid) = group.first().and_then(|&at| self.pid_of(at)) else { return };
        let mut addresses = Vec::with_capacity(group.len() * PROBES as usize);
        for &at in group {
            let Some(page) = &self.slots[at] else { continue };
            let step = (page.end - page.start) / PROBES;
            addresses.extend((0..PROBES).map(|probe| (page.start + probe * step) & !4095));
        }
        let Ok(places) = move_pages::locate(pid, &addresses) else { return };
        for (&at, places) in group.iter().zip(places.chunks(PROBES as usize)) {
            let on = |tier: usize| {
                places
                    .iter()
                    .filter(|place| **place == PageLocation::Node(self.tiers.0[tier]))
                    .count()
            };
            let tier = match (on(0), on(1)) {
                (0, 0) => None,
                (default, alternate) => Some(usize::from(alternate > default)),
            };
            self.set_tier(at, tier);
        }
    }

    fn set_tier(&mut self, at: usize, tier: Option<usize>) {
        let Some(page) = self.slots[at].as_mut() else { return };
        if page.tier != tier {
            page.changed = tier.is_some();
            if tier.is_none() {
                self.gone.push(at as u64);
            }
            page.tier = tier;
        }
    }

    /// Takes in what was seen of a process.
    pub fn heat(&mut self, pid: Pid, regions: &[Region]) {
        for region in regions.iter().filter(|region| region.accesses > 0) {
            let first = region.start - region.start % HUGE;
            let numbers: Vec<u32> =
                self.numbers.range((pid, first)..(pid, region.end)).map(|(_, n)| *n).collect();
            for number in numbers {
                let Some(page) = self.slots[number as usize].as_mut() else { continue };
                let (start, end) = (page.start.max(region.start), page.end.min(region.end));
                let part = end.saturating_sub(start) as f64 / (page.end - page.start) as f64;
                page.heat += region.accesses as f64 * part;
            }
        }
    }

    /// At most `most` pages that have been found on a tier, with their process; `cursor` says where the last
    /// call stopped.
    pub fn round(&self, cursor: &mut usize, most: usize) -> Vec<(Pid, PageRange)> {
        let all = self.slots.len();
        let first = *cursor % all.max(1);
        let mut chosen = Vec::new();
        for step in 0..all {
            let at = (first + step) % all;
            *cursor = at + 1;
            if let Some(page) = self.slots[at].as_ref().filter(|page| page.tier.is_some()) {
                chosen.push((page.pid, PageRange::new(page.start..page.end)));
                if chosen.len() == most {
                    break;
                }
            }
        }
        chosen
    }

    /// Takes in a sampled access of a process.
    pub fn sampled(&mut self, pid: Pid, address: u64) {
        let number = self.numbers.get(&(pid, address - address % HUGE));
        if let Some(Some(page)) = number.map(|&number| &mut self.slots[number as usize]) {
            page.heat += 1.0;
        }
    }

    /// Takes in that a part of a page that [`Pages::round`] named was touched.
    pub fn touched(&mut self, pid: Pid, page: PageRange) {
        self.sampled(pid, page.start);
    }

    /// Writes what has changed into `view`; the next one says what changes after this.
    pub fn report(&mut self, view: &mut TierView) {
        let mut lists: [Vec<u64>; 5] = Default::default();
        for process in self.processes.values_mut() {
            process.totals.accesses = process.totals.accesses.map(|accesses| accesses / 2.0);
        }
        for (at, page) in self.slots.iter_mut().enumerate() {
            let Some(page) = page else { continue };
            let Some(tier) = page.tier else { continue };
            let samples = page.heat.round() as u64;
            if samples == 0 && !page.changed {
                continue;
            }
            // What does not make up a whole sample yet is not lost.
            page.heat -= samples as f64;
            page.changed = false;
            if let Some(process) = self.processes.get_mut(&page.pid) {
                process.totals.accesses[tier] += samples as f64;
            }
            let row = [at as u64, page.pid.into(), page.start, tier as u64, samples];
            lists.iter_mut().zip(row).for_each(|(list, value)| list.push(value));
        }
        let [page, pid, address, tier, samples] = lists;
        view.page = Some(page);
        view.page_pid = Some(pid);
        view.page_address = Some(address);
        view.page_tier = Some(tier);
        view.page_samples = Some(samples);
        view.gone = Some(std::mem::take(&mut self.gone));
    }

    /// The page of this number.
    pub fn get(&self, number: u64) -> Option<&Page> {
        self.slots.get(usize::try_from(number).ok()?)?.as_ref()
    }

    /// Whether the process that the page belongs to is still the one that was looked at.
    pub fn lives(&self, linux: &Linux, pid: Pid) -> bool {
        let known = self.processes.get(&pid).map(|process| process.started);
        linux.stat(pid).is_ok_and(|stat| Some(stat.started) == known && stat.state != 'Z')
    }

    /// Notes that `bytes` of a page have moved; `true` if they went back to where they had come from
    /// a short while ago.
    pub fn moved(&mut self, number: u64, quantum: u64, to: usize, bytes: u64) -> bool {
        let Some(Some(page)) = self.slots.get_mut(number as usize) else { return false };
        let back = page
            .moved
            .is_some_and(|(when, there)| there != to && quantum.saturating_sub(when) <= PING_PONG);
        page.moved = Some((quantum, to));
        page.tier = Some(to);
        page.changed = true;
        self.count(number, to, bytes, back);
        back
    }

    /// Tracks a page no more for as long as its mapping stays: one that cannot move would be chosen again
    /// and again, and each time another would make room for it in vain.
    pub fn give_up(&mut self, number: u64) {
        if let Some(Some(page)) = self.slots.get_mut(number as usize) {
            page.stuck = true;
            self.set_tier(number as usize, None);
        }
    }

    /// Notes that the kernel refused to move a page; after [`REFUSALS`] times it is given up.
    pub fn refused(&mut self, number: u64) {
        let Some(Some(page)) = self.slots.get_mut(number as usize) else { return };
        page.refused += 1;
        if page.refused >= REFUSALS {
            self.give_up(number);
        }
    }

    /// Adds to what moved of a page's process, or would in a dry run.
    pub fn count(&mut self, number: u64, to: usize, bytes: u64, back: bool) {
        if let Some(pid) = self.get(number).map(|page| page.pid) {
            self.add(pid, to, bytes, back);
        }
    }

    /// As [`Pages::count`], by the process.
    pub fn add(&mut self, pid: Pid, to: usize, bytes: u64, back: bool) {
        self.ping_pong[to] += if back { bytes } else { 0 };
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let totals = &mut process.totals;
        *(if to == 0 { &mut totals.promoted } else { &mut totals.demoted }) += bytes;
        totals.ping_pong[to] += if back { bytes } else { 0 };
    }

    /// Bytes that went back to each tier from which they had come a short while before.
    pub fn ping_pong(&self) -> [u64; 2] {
        self.ping_pong
    }

    /// Each process as it stands.
    pub fn processes(&self) -> BTreeMap<Pid, ProcessPlacement> {
        let standing = |process: &Process| ProcessPlacement {
            comm: process.comm.clone(),
            bytes: [0; 2],
            totals: process.totals,
        };
        let mut all: BTreeMap<Pid, ProcessPlacement> =
            self.processes.iter().map(|(pid, process)| (*pid, standing(process))).collect();
        for page in self.slots.iter().flatten() {
            if let (Some(tier), Some(standing)) = (page.tier, all.get_mut(&page.pid)) {
                standing.bytes[tier] += page.end - page.start;
            }
        }
        all
    }

    /// The processes that are tracked.
    pub fn pids(&self) -> Vec<Pid> {
        self.processes.keys().copied().collect()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many pages have been found on a tier.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().filter(|page| page.tier.is_some()).count()
    }
}

/// Name, start and movable areas of a process.
fn process_of(linux: &Linux, pid: Pid) -> pagemill_kernel::Result<Process> {
    let stat = linux.stat(pid)?;
    // Reading the flags of mappings walks all page tables, so it is done only where something is locked.
    let areas = if linux.status(pid)?.locked == Some(0) {
        linux.maps(pid)?.iter().filter(|mapping| movable(mapping)).map(Mapping::range).collect()
    } else {
        let locked = |flags: &[String]| {
            flags.iter().any(|flag| matches!(flag.as_str(), "lo" | "io" | "pf" | "ht"))
        };
        let mappings = linux.smaps(pid)?;
        let kept = mappings.iter().filter(|m| movable(&m.mapping) && !locked(&m.flags));
        kept.map(|m| m.mapping.range()).collect()
    };
    Ok(Process { started: stat.started, comm: stat.comm, areas, totals: Totals::default() })
}

fn movable(mapping: &Mapping) -> bool {
    let named = mapping.name.starts_with("[stack")
        || mapping.name.starts_with("[v")
        || mapping.name.starts_with('/');
    !mapping.shared && mapping.write && mapping.inode == 0 && !named && mapping.len() >= LEAST
}

/// An area cut at multiples of [`HUGE`]: the multiple, and the part of the area there.
fn chunks(area: PageRange) -> impl Iterator<Item = (u64, PageRange)> {
    (area.start / HUGE..area.end.div_ceil(HUGE)).map(move |at| {
        let base = at * HUGE;
        (base, area.within(PageRange::new(base..base + HUGE)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(started: u64, areas: &[(u64, u64)]) -> Process {
        let areas = areas.iter().map(|&(start, end)| PageRange { start, end }).collect();
        Process { started, comm: "x".into(), areas, totals: Totals::default() }
    }

    fn pages() -> Pages {
        let mut pages = Pages::new(Tiers([0, 1]));
        pages.replace(Pid(7), process(1, &[(HUGE - 4096, 3 * HUGE), (8 * HUGE, 9 * HUGE)]));
        for at in 0..pages.slots.len() {
            pages.set_tier(at, Some(at % 2));
        }
        pages
    }

    fn report(pages: &mut Pages) -> TierView {
        let mut view = TierView::default();
        pages.report(&mut view);
        view
    }

    #[test]
    fn an_area_is_cut_where_huge_pages_may_lie() {
        let mut pages = pages();
        let view = report(&mut pages);
        assert_eq!(view.page_address.unwrap(), [HUGE - 4096, HUGE, 2 * HUGE, 8 * HUGE]);
        assert_eq!(view.page_tier.unwrap(), [0, 1, 0, 1]);
        // Nothing has changed since.
        assert_eq!(report(&mut pages).page, Some(vec![]));
    }

    #[test]
    fn a_mapping_that_goes_and_one_that_comes_are_told_apart() {
        let mut pages = pages();
        report(&mut pages);
        pages.replace(Pid(7), process(1, &[(HUGE - 4096, 3 * HUGE), (20 * HUGE, 21 * HUGE)]));
        let number = pages.numbers[&(Pid(7), 20 * HUGE)];
        pages.set_tier(number as usize, Some(0));
        let view = report(&mut pages);
        assert_eq!(view.gone.unwrap(), [3]);
        assert_eq!(view.page_address.unwrap(), [20 * HUGE]);
    }

    #[test]
    fn another_process_with_the_same_number_is_another_one() {
        let mut pages = pages();
        report(&mut pages);
        pages.replace(Pid(7), process(2, &[(HUGE, 2 * HUGE)]));
        let view = report(&mut pages);
        assert_eq!(view.gone.unwrap().len(), 4);
        assert_eq!(view.page, Some(vec![]), "where its pages are is not known yet");
    }

    #[test]
    fn heat_is_spread_by_the_part_that_a_region_covers_and_none_is_lost() {
        let mut pages = pages();
        report(&mut pages);
        let region = Region { start: HUGE, end: 2 * HUGE + HUGE / 4, accesses: 10 };
        pages.heat(Pid(7), &[region]);
        let view = report(&mut pages);
        assert_eq!(view.page_address.unwrap(), [HUGE, 2 * HUGE]);
        // 2.5 is 3 now, and the half that was too much is taken off the next time.
        assert_eq!(view.page_samples.unwrap(), [10, 3]);
        pages.heat(Pid(7), &[region]);
        assert_eq!(report(&mut pages).page_samples.unwrap(), [10, 2]);
    }

    #[test]
    fn a_page_that_the_kernel_refuses_to_move_is_given_up() {
        let mut pages = pages();
        (1..REFUSALS).for_each(|_| pages.refused(1));
        assert_eq!(pages.get(1).unwrap().tier, Some(1));
        pages.refused(1);
        assert_eq!(pages.get(1).unwrap().tier, None);
        assert_eq!(report(&mut pages).gone.unwrap(), [1]);
    }

    #[test]
    fn what_goes_back_soon_is_ping_pong() {
        let mut pages = pages();
        assert!(!pages.moved(0, 5, 1, 10));
        assert!(pages.moved(0, 9, 0, 8));
        assert!(!pages.moved(0, 30, 1, 1));
        let totals = Totals { promoted: 8, demoted: 11, ping_pong: [8, 0], ..Totals::default() };
        assert_eq!(pages.processes()[&Pid(7)].totals, totals);
        assert_eq!(pages.get(0).unwrap().tier, Some(1));
    }

    #[test]
    fn a_round_names_each_page_once_and_goes_on_where_it_stopped() {
        let pages = pages();
        let mut cursor = 0;
        let starts = |named: Vec<(Pid, PageRange)>| -> Vec<u64> {
            named.into_iter().map(|(_, page)| page.start).collect()
        };
        assert_eq!(starts(pages.round(&mut cursor, 3)), [HUGE - 4096, HUGE, 2 * HUGE]);
        assert_eq!(starts(pages.round(&mut cursor, 2)), [8 * HUGE, HUGE - 4096]);
        assert_eq!(pages.round(&mut cursor, 100).len(), 4);
        assert_eq!(Pages::new(Tiers([0, 1])).round(&mut cursor, 9), []);
    }

    #[test]
    fn a_share_is_of_the_accesses_seen_lately() {
        let mut pages = pages();
        assert_eq!(pages.processes()[&Pid(7)].totals.share(), None);
        // Pages 0 and 2 are on the default tier.
        for address in [HUGE - 1, HUGE, HUGE + 5, 2 * HUGE, 100 * HUGE] {
            pages.sampled(Pid(7), address);
        }
        let view = report(&mut pages);
        assert_eq!(view.page_samples.unwrap(), [1, 2, 1, 0]);
        assert_eq!(pages.processes()[&Pid(7)].totals.share(), Some(0.5));
        (0..6).for_each(|_| pages.touched(Pid(7), PageRange::new(2 * HUGE..3 * HUGE)));
        report(&mut pages);
        assert_eq!(pages.processes()[&Pid(7)].totals.share(), Some(7.0 / 8.0));
    }

    #[test]
    fn only_private_anonymous_memory_is_tracked() {
        for (line, tracked) in [
            ("7f0000000000-7f0000200000 rw-p 00000000 00:00 0 ", true),
            ("55550000-55570000 rw-p 00000000 00:00 0                  [heap]", true),
            ("7f0000000000-7f0000200000 rw-s 00000000 00:01 9  /dev/zero (deleted)", false),
            ("7f0000000000-7f0000200000 r--p 00000000 00:00 0 ", false),
            ("7ffc00000000-7ffc00200000 rw-p 00000000 00:00 0     [stack]", false),
            ("7f0000000000-7f0000200000 rw-p 00000000 fe:00 77    /usr/lib/x.so", false),
            ("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 ", false),
        ] {
            assert_eq!(movable(&Mapping::parse(line).unwrap()), tracked, "{line}");
        }
    }

    #[test]
    fn the_memory_of_this_process_is_found_on_its_node() {
        let data = vec![1_u8; 8 << 20];
        let linux = Linux::live();
        let mut pages = Pages::new(Tiers([0, 1]));
        if let Err(error) = pages.census(&linux, &[Pid::own()]) {
            return eprintln!("skipped: {error}");
        }
        pages.locate(usize::MAX);
        let inside = std::hint::black_box(data.as_ptr()) as u64 + (4 << 20);
        let number = pages.numbers[&(Pid::own(), inside - inside % HUGE)];
        assert_eq!(pages.get(number.into()).unwrap().tier, Some(0));
        assert!(pages.lives(&linux, Pid::own()));
    }
}
