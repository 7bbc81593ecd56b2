//! Which parts of a program's memory were touched how densely: faults and mappings folded into regions of 2 MiB.
//!
//! A *region* is 2 MiB of address space, aligned; one that a mapping does not fill can never be a huge page and is left
//! out. A fault that has a row says that its page was touched; a fault that brought a huge page says nothing about the
//! other 511. The memory that a mapping had says how many pages of it were touched on average, which stands in where
//! faults have no rows.
//!
//! Where the recording says which code asked for memory (`record --with sites`), an address has that site.
//!
//! Always true: no more pages are touched than a region has; only memory that a program may write and that no file
//! backs counts.

use std::collections::BTreeMap;

use pagemill_model::fault::Flags;
use pagemill_model::page::{BASE, HUGE, PER_HUGE};
use pagemill_model::{Allocation, Event, Fault, Fold, MappingSample, Pid};

use crate::addresses::{ProcessAddress, ProcessPage};
use crate::sites::{Images, OwnedRanges};
use pagemill_model::sums::{add, sum};

/// Addresses of programs are below: 57 bits, with page tables of five levels.
const ADDRESSES: u64 = 1 << 57;

/// What a mapping holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegionKind {
    /// What `brk` grows.
    Heap,
    /// Anonymous memory.
    Mapped,
}

/// A mapping as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Area {
    /// What it holds.
    pub place: RegionKind,
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The most anonymous memory that it was seen with, bytes.
    pub anonymous: Option<u64>,
    /// The most of it on huge pages, bytes.
    pub huge: Option<u64>,
    /// The regions that lie whole in it and that faults have touched.
    pub regions: Vec<Region>,
}

/// A region.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Base pages that faults have touched.
    pub touched: u64,
    /// Faults with a row.
    pub faults: u64,
    /// Of those, ones that brought a huge page.
    pub huge_faults: u64,
}

/// What the recording says.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    /// Anonymous mappings by process and address.
    pub areas: Vec<(Pid, Area)>,
    /// The end of the highest mapping of a file: where `mmap` offsets count down from, by process.
    pub tops: BTreeMap<Pid, u64>,
    /// Faults with a row and an address.
    pub rows: u64,
    /// All faults that were counted.
    pub counted: u64,
    /// Which code made what, by process.
    pub sites: BTreeMap<Pid, Sites>,
    /// How fast anonymous memory was touched between the first and the last fault, bytes a millisecond, all processes
    /// together.
    pub growth: Option<u64>,
    /// Mean time that faults which compacted or reclaimed spent on it, ns; absent if none did.
    pub stall: Option<u64>,
}

/// Which code made the memory of a process.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    images: Images,
    /// By call stack.
    made: OwnedRanges<Vec<u64>>,
}

impl Sites {
    /// The site of the memory at an address or right behind it.
    pub fn at(&self, address: u64) -> Option<String> {
        self.images.site(self.made.at(address, 4096)?)
    }
}

#[derive(Clone, Debug, Default)]
struct Touched {
    pages: [u64; 8],
    faults: u64,
    huge_faults: u64,
}

/// The fold.
#[derive(Clone, Debug, Default)]
pub struct RegionFold {
    /// By the numbers of huge pages.
    touched: BTreeMap<ProcessPage, Touched>,
    areas: BTreeMap<ProcessAddress, Area>,
    tops: BTreeMap<Pid, u64>,
    sites: BTreeMap<Pid, Sites>,
    rows: u64,
    counted: u64,
    stalls: (u64, u64),
    /// When the first and the last fault with an address ended, ns.
    time: Option<(u64, u64)>,
}

impl RegionFold {
    fn fault(&mut self, fault: &Fault) {
        let flags = Flags(fault.flags.unwrap_or(0));
        let stalled = sum([fault.compaction, fault.reclaim].map(|part| part.unwrap_or_default().0));
        if stalled > 0 {
            self.stalls = (self.stalls.0.saturating_add(stalled), self.stalls.1 + 1);
        }
        let Some(address) = fault.address else { return };
        self.rows += 1;
        let at = fault.time.0;
        self.time = Some(self.time.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
        let (region, page) = (address / HUGE, address % HUGE / BASE);
        let touched = self
            .touched
            .entry(ProcessPage::new(Pid::told(fault.pid.unwrap_or(0)), region))
            .or_default();
        touched.pages[(page / 64) as usize] |= 1 << (page % 64);
        touched.faults += 1;
        touched.huge_faults += u64::from(flags.has(Flags::HUGE));
    }

    fn mapping(&mut self, sample: &MappingSample) {
        let (Some(start), Some(end)) = (sample.start, sample.end) else { return };
        // What no processor has: the file was made up, or is damaged.
        if start >= end || end > ADDRESSES {
            return;
        }
        let pid = Pid::told(sample.pid.unwrap_or(0));
        let name = sample.name.as_deref().unwrap_or_default();
        if name.starts_with('/') {
            let top = self.tops.entry(pid).or_default();
            *top = (*top).max(end);
            self.sites.entry(pid).or_default().images.map(start..end, name);
        }
        let private = sample
            .permissions
            .as_deref()
            .is_none_or(|word| word.starts_with("rw") && word.ends_with('p'));
        let place = match name {
            "[heap]" => RegionKind::Heap,
            "" => RegionKind::Mapped,
            named if named.starts_with("[anon") => RegionKind::Mapped,
            _ => return,
        };
        if !private {
            return;
        }
        let mut area = Area { place, start, end, anonymous: None, huge: None, regions: Vec::new() };
        // None overlaps another, so the last ones before its end.
        let overlapped =
            self.areas.range(ProcessAddress::new(pid, 0)..ProcessAddress::new(pid, end));
        let overlapped = overlapped.rev().take_while(|(_, area)| area.end > start);
        let overlapped: Vec<ProcessAddress> = overlapped.map(|(key, _)| *key).collect();
        for key in overlapped {
            let Some(mut old) = self.areas.remove(&key) else { continue };
            let (holds, held) =
                (old.start <= start && end <= old.end, start <= old.start && old.end <= end);
            if !holds && !held {
                // What reaches into it is cut there.
                let before = old.start < start;
                (old.start, old.end) = if before { (old.start, start) } else { (end, old.end) };
                self.areas.insert(ProcessAddress::new(pid, old.start), old);
                continue;
            }
            // One that shrank or was split stands for what it was at its largest, and one that grew or was merged with
            // a neighbour for what that was before.
            if holds {
                (area.start, area.end) = (old.start, old.end);
            }
            area.anonymous = area.anonymous.max(old.anonymous);
            area.huge = area.huge.max(old.huge);
        }
        area.anonymous = area.anonymous.max(sample.anonymous.map(|bytes| bytes.0));
        area.huge = area.huge.max(sample.huge.map(|bytes| bytes.0));
        self.areas.insert(ProcessAddress::new(pid, area.start), area);
    }
}

impl RegionFold {
    fn allocation(&mut self, made: &Allocation) {
        let (Some(start), Some(size), Some(stack)) = (made.address, made.size, &made.stack) else {
            return;
        };
        // What is smaller than a region shares it with others.
        if size >= HUGE / 2 {
            let sites = self.sites.entry(Pid::told(made.pid.unwrap_or(0))).or_default();
            sites.made.insert(start..start.saturating_add(size), stack.clone());
        }
    }
}

impl Fold for RegionFold {
    type View = Regions;

    fn event(&mut self, event: &Event) {
        match event {
            Event::Fault(fault) => self.fault(fault),
            Event::Mapping(sample) => self.mapping(sample),
            Event::Allocation(made) => self.allocation(made),
            Event::FaultCounts(counts) => {
                add(&mut self.counted, sum(counts.counts.iter().flatten().copied()));
            }
            _ => {}
        }
    }

    fn view(&self) -> Regions {
        let mut areas: Vec<(Pid, Area)> =
            self.areas.iter().map(|(at, area)| (at.pid, area.clone())).collect();
        for (pid, area) in &mut areas {
            let (first, last) = (area.start.div_ceil(HUGE), area.end / HUGE);
            if first >= last {
                continue;
            }
            let regions = ProcessPage::new(*pid, first)..ProcessPage::new(*pid, last);
            for (at, touched) in self.touched.range(regions) {
                area.regions.push(Region {
                    start: at.vpn.address(HUGE),
                    touched: touched.pages.iter().map(|word| u64::from(word.count_ones())).sum(),
                    faults: touched.faults,
                    huge_faults: touched.huge_faults,
                });
            }
        }
        let touched = |area: &Area| area.regions.iter().map(|region| region.touched).sum::<u64>();
        let bytes = areas.iter().map(|(_, area)| touched(area)).sum::<u64>() * (HUGE / PER_HUGE);
        let growth = self.time.and_then(|(first, last)| {
            (u128::from(bytes) * 1_000_000).checked_div(u128::from(last - first))
        });
        Regions {
            growth: growth
                .and_then(|growth| u64::try_from(growth).ok())
                .filter(|growth| *growth > 0),
            areas,
            tops: self.tops.clone(),
            sites: self.sites.clone(),
            rows: self.rows,
            counted: self.counted,
            stall: (self.stalls.1 > 0).then(|| self.stalls.0 / self.stalls.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_model::{Bytes, Nanos};

    fn fault(address: u64, flags: u64) -> Event {
        Event::Fault(Box::new(Fault {
            pid: Some(7),
            address: Some(address),
            flags: Some(flags),
            ..Fault::default()
        }))
    }

    fn mapping(start: u64, end: u64, name: &str, anonymous: u64) -> Event {
        Event::Mapping(Box::new(MappingSample {
            pid: Some(7),
            start: Some(start),
            end: Some(end),
            permissions: Some("rw-p".into()),
            name: Some(name.into()),
            anonymous: Some(Bytes(anonymous)),
            ..MappingSample::default()
        }))
    }

    fn fold(events: &[Event]) -> Regions {
        let mut fold = RegionFold::default();
        events.iter().for_each(|event| fold.event(event));
        fold.view()
    }

    /// A length that wrapped asked for 281 TB.
    #[test]
    fn mappings_that_no_processor_has_are_left_out() {
        let made_up = [(2 * HUGE, HUGE), (HUGE, HUGE), (HUGE, u64::MAX), (0, 1 << 60)];
        let events = made_up.map(|(start, end)| mapping(start, end, "[heap]", 1 << 40));
        assert!(fold(&events).areas.is_empty());
    }

    #[test]
    fn a_page_counts_once_and_a_region_has_512() {
        let base = 64 * HUGE;
        let mut events = vec![mapping(base, base + 2 * HUGE, "[heap]", 0)];
        events
            .extend((0..PER_HUGE).chain(0..PER_HUGE).map(|page| fault(base + page * 4096 + 8, 0)));
        events.push(fault(base + HUGE, Flags::HUGE));
        let regions = fold(&events);
        let [(Pid(7), area)] = regions.areas.as_slice() else { panic!("{regions:?}") };
        assert_eq!(area.place, RegionKind::Heap);
        let touched: Vec<_> =
            area.regions.iter().map(|r| (r.touched, r.faults, r.huge_faults)).collect();
        assert_eq!(touched, [(512, 1024, 0), (1, 1, 1)]);
        assert_eq!(regions.rows, 1025);
    }

    #[test]
    fn a_mapping_that_grows_is_one_and_files_are_none_of_it() {
        let base = 64 * HUGE;
        let regions = fold(&[
            mapping(base, base + HUGE, "", 4096),
            mapping(base - HUGE, base + HUGE, "", 8192),
            mapping(base + 8 * HUGE, base + 9 * HUGE, "/lib/x.so", 4096),
            mapping(base + 4 * HUGE, base + 5 * HUGE, "[stack]", 4096),
        ]);
        assert_eq!(regions.areas.len(), 1);
        let (_, area) = &regions.areas[0];
        assert_eq!((area.start, area.end, area.anonymous), (base - HUGE, base + HUGE, Some(8192)));
        assert_eq!(regions.tops[&Pid(7)], base + 9 * HUGE);
    }

    /// Each of several that overlapped had all faults.
    #[test]
    fn mappings_that_overlap_are_cut_where_the_later_one_begins_and_parts_of_one_are_it() {
        let at = |region: u64| (64 + region) * HUGE;
        let regions = fold(&[
            mapping(at(0), at(4), "", 4096),
            mapping(at(2), at(6), "", 8192),
            mapping(at(3), at(5), "", 9000),
            mapping(at(2), at(3), "", 100),
            fault(at(3), 0),
        ]);
        let areas = regions.areas.iter().map(|(_, area)| {
            let region = |address: u64| address / HUGE - 64;
            (region(area.start), region(area.end), area.anonymous, area.regions.len())
        });
        let expected = [(0, 2, Some(4096), 0), (2, 6, Some(9000), 1)];
        assert_eq!(areas.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn large_memory_has_the_site_of_who_asked_for_it() {
        let base = 64 * HUGE;
        let made = |address, size| {
            let stack = Some(vec![0x5010]);
            let (address, size) = (Some(address), Some(size));
            Event::Allocation(Box::new(Allocation {
                pid: Some(7),
                address,
                size,
                stack,
                ..Allocation::default()
            }))
        };
        let regions = fold(&[
            mapping(base, base + 4 * HUGE, "", 4096),
            made(base + 16, 2 * HUGE),
            made(base + 3 * HUGE, 4096),
            mapping(0x5000, 0x6000, "/bin/x", 0),
        ]);
        let at = |address| regions.sites[&Pid(7)].at(address);
        assert_eq!(at(base), Some("x+0x10".into()));
        assert_eq!(at(base + 3 * HUGE), None, "too small to be a region's");
    }

    #[test]
    fn growth_is_what_was_touched_between_the_first_and_the_last_fault() {
        let base = 64 * HUGE;
        let at = |page: u64, time: u64| {
            Event::Fault(Box::new(Fault {
                time: Nanos(time),
                pid: Some(7),
                address: Some(base + page * 4096),
                ..Fault::default()
            }))
        };
        let mut events = vec![mapping(base, base + HUGE, "", 0)];
        events.extend((0..500).map(|page| at(page, 1_000_000 + page * 20_000)));
        // 500 pages in 499 times 20 us.
        assert_eq!(fold(&events).growth, Some(500 * 4096 * 1_000_000 / (499 * 20_000)));
        assert_eq!(fold(&events[..2]).growth, None, "one fault has no speed");
    }

    #[test]
    fn stalls_are_of_the_faults_that_had_one() {
        let slow = |compaction| {
            Event::Fault(Box::new(Fault {
                compaction: Some(Nanos(compaction)),
                ..Fault::default()
            }))
        };
        assert_eq!(fold(&[slow(100), slow(300), slow(0)]).stall, Some(200));
        assert_eq!(fold(&[slow(0)]).stall, None);
    }
}
