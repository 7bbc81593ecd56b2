//! Which memory was touched when: the address space by the time of the last touch.
//!
//! Terms:
//! - a *chunk* is a power of two of bytes, a page at first; when there are too many, chunks double.
//! - a *cell* is a part of the memory as it is drawn: cells hold equal amounts of memory, in the order of addresses.
//!
//! - a *window* is the time since pages were marked as not accessed: it says of each mapping how much of it was touched
//!   meanwhile, all of it and not a sample, and not where. The longer one of the window that is under way and the one
//!   before tells.
//!
//! How much memory a mapping has says the last look at it; of a recording without looks, the chunks touched in it.
//! Where in a mapping its memory lies is not looked at: a cell takes an equal part of the mapping's addresses. Where
//! there is a window, the cells of a mapping stand warmest first, for amounts are known and places are not.
//!
//! Always true: a chunk's time is that of the last touch seen in it; what was never seen touched has no time; tables
//! are of bounded size.

use std::collections::BTreeMap;
use std::ops::Range;

use pagemill_analysis::faults::label;
use pagemill_model::page::HUGE;
use pagemill_model::sums::sum;
use pagemill_model::{Bytes, Event, MappingSample, Nanos, Pid};

/// Chunks that are told apart, over all processes.
const CHUNKS: usize = 1 << 16;
/// Mappings of a process that are kept.
const MAPPINGS: usize = 1 << 16;
/// Processes that are kept apart.
const PROCESSES: usize = 64;

/// A mapping, as it was looked at last.
#[derive(Clone, Debug, Default)]
struct Mapping {
    end: u64,
    name: String,
    /// Resident memory, if that was looked at.
    rss: Option<u64>,
    huge: u64,
    anonymous: u64,
    /// Marked as accessed at the last look, and when the window before ended.
    marked: Option<u64>,
    before: Option<u64>,
    seen: Nanos,
}

impl Mapping {
    /// Bytes that were touched in the window, or, where that is the longer one, in the one before.
    fn warm(&self, window: Window) -> Option<u64> {
        let before = self.before.filter(|_| window.tells_before());
        let most = self.marked.max(before);
        most.map(|bytes| self.rss.map_or(bytes, |rss| bytes.min(rss)))
    }
}

/// The time since pages were marked as not accessed.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: Nanos,
    /// How long the one before was.
    before: Option<Nanos>,
    /// How old it was at the last look.
    looked: Nanos,
}

impl Window {
    fn tells_before(self) -> bool {
        self.before.is_some_and(|before| before > self.looked)
    }
}

/// Memory of one process.
#[derive(Clone, Debug, Default)]
struct Space {
    mappings: BTreeMap<u64, Mapping>,
    /// Chunk number, time of the last touch.
    chunks: BTreeMap<u64, Nanos>,
    /// The last look at all mappings.
    look: Nanos,
}

/// A part of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// When it was touched last, if that was seen.
    pub touched: Option<Nanos>,
    /// Whether it was touched in the window.
    pub warm: bool,
}

/// Mappings of one name together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The name.
    pub name: String,
    /// Its memory, bytes.
    pub bytes: u64,
    /// When any of it was touched last, if that was seen.
    pub touched: Option<Nanos>,
    /// Bytes of chunks by the time of their last touch, newest first; not more than its memory.
    pub chunks: Vec<(Nanos, u64)>,
    /// Bytes that were touched in the window; `None` without one.
    pub warm: Option<u64>,
}

/// Touches of all processes.
#[derive(Debug)]
pub struct Heat {
    target: Pid,
    page: u64,
    shift: u32,
    spaces: BTreeMap<Pid, Space>,
    chunks: usize,
    /// Touches so far.
    pub touches: u64,
    /// When the last of them was, and the longest time between two.
    last: Option<Nanos>,
    pause: Nanos,
    window: Option<Window>,
}

impl Default for Heat {
    fn default() -> Self {
        Self::of(Pid(0), 4096)
    }
}

impl Heat {
    /// Nothing yet, of the process `target`.
    pub fn of(target: Pid, page: u64) -> Self {
        let page = page.clamp(1, 1 << 30);
        Self {
            target,
            page,
            shift: page.ilog2(),
            spaces: BTreeMap::new(),
            chunks: 0,
            touches: 0,
            last: None,
            pause: Nanos(0),
            window: None,
        }
    }

    /// Takes in an event.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Mapping(row) => self.mapping(row),
            Event::Access(row) => {
                if let Some(address) = row.address {
                    self.touch(
                        Pid::told(row.pid.unwrap_or(0)),
                        address..address.saturating_add(1),
                        row.time,
                    );
                }
            }
            Event::Touched(row) => {
                let starts = row.starts.as_deref().unwrap_or_default();
                let pages = row.pages.as_deref().unwrap_or_default();
                for (start, pages) in starts.iter().zip(pages) {
                    let end = start.saturating_add(pages.saturating_mul(self.page));
                    self.touch(Pid::told(row.pid.unwrap_or(0)), *start..end, row.time);
                }
            }
            _ => {}
        }
    }

    /// The marks of accessed pages of the process were cleared: a window begins.
    pub fn begin_window(&mut self, now: Nanos) {
        let before = self.window.map(|window| now.since(window.began));
        self.window = Some(Window { began: now, before, looked: Nanos(0) });
        for mapping in self.spaces.values_mut().flat_map(|space| space.mappings.values_mut()) {
            mapping.before = before.and(mapping.marked);
            mapping.marked = None;
        }
    }

    /// How long the window is for which amounts are known: the one before, or the one that is under way.
    pub fn window(&self) -> Option<Nanos> {
        let window = self.window?;
        Some(window.before.filter(|_| window.tells_before()).unwrap_or(window.looked))
    }

    /// Since when what is warm was touched: the beginning of that window.
    pub fn warm_since(&self) -> Option<Nanos> {
        let window = self.window?;
        let before = window.before.filter(|_| window.tells_before()).unwrap_or_default();
        Some(Nanos(window.began.0.saturating_sub(before.0)))
    }

    /// The longest time between two touches.
    pub fn longest_pause(&self) -> Nanos {
        self.pause
    }

    /// Pages of the processes, a huge one as one.
    pub fn pages(&self) -> u32 {
        let mappings = self.spaces.values().flat_map(|space| space.mappings.values());
        let pages = mappings.map(|mapping| {
            let small = mapping.rss.unwrap_or(0).saturating_sub(mapping.huge) / self.page;
            small.saturating_add(mapping.huge / HUGE)
        });
        u32::try_from(sum(pages)).unwrap_or(u32::MAX)
    }

    fn space(&mut self, pid: Pid) -> Option<&mut Space> {
        if self.spaces.len() >= PROCESSES && !self.spaces.contains_key(&pid) && pid != self.target {
            return None;
        }
        Some(self.spaces.entry(pid).or_default())
    }

    fn mapping(&mut self, row: &MappingSample) {
        let (Some(pid), Some(start), Some(end)) = (row.pid, row.start, row.end) else { return };
        if end <= start {
            return;
        }
        let marked = self.window.and(row.referenced).map(|bytes| bytes.0);
        if let (Some(window), Some(_)) = (&mut self.window, marked) {
            window.looked = window.looked.max(row.time.since(window.began));
        }
        let Some(space) = self.space(Pid::told(pid)) else { return };
        let whole = row.rss.is_some();
        if whole && row.time > space.look {
            // What the look before did not have is gone.
            let before = space.look;
            space.mappings.retain(|_, mapping| mapping.seen >= before);
            space.look = row.time;
        }
        let over = space.mappings.range(..end).rev().take_while(|(_, other)| other.end > start);
        let stale: Vec<u64> = over.map(|(start, _)| *start).collect();
        // What a mapping was before it grew.
        let known =
            stale.iter().rev().filter_map(|start| space.mappings.remove(start)).collect::<Vec<_>>();
        let before = known.iter().filter_map(|mapping| mapping.before).reduce(u64::saturating_add);
        if space.mappings.len() < MAPPINGS {
            // Who only says where a mapping is says nothing of what it holds: that is as it was at the last look.
            let held = |new: Option<u64>, old: &dyn Fn(&Mapping) -> Option<u64>| match whole {
                true => new,
                false => known.iter().filter_map(old).reduce(u64::saturating_add),
            };
            let bytes = |value: Option<Bytes>| value.map_or(0, |bytes| bytes.0);
            let huge = bytes(row.huge).saturating_add(bytes(row.huge_other));
            let anonymous = bytes(row.anonymous);
            let mapping = Mapping {
                end,
                name: label(row),
                rss: held(row.rss.map(|bytes| bytes.0), &|old| old.rss),
                huge: held(Some(huge), &|old| Some(old.huge)).unwrap_or(0),
                anonymous: held(Some(anonymous), &|old| Some(old.anonymous)).unwrap_or(0),
                marked: held(marked, &|old| old.marked),
                before,
                seen: row.time.max(space.look),
            };
            space.mappings.insert(start, mapping);
        }
    }

    fn touch(&mut self, pid: Pid, bytes: Range<u64>, time: Nanos) {
        self.touches = self.touches.saturating_add(1);
        self.pause = self.pause.max(time.since(self.last.unwrap_or(time)));
        self.last = self.last.max(Some(time));
        if self.space(pid).is_none() || bytes.is_empty() {
            return;
        }
        // Of a run that is longer than all chunks, as many as there may be.
        while (bytes.end - bytes.start) >> self.shift >= CHUNKS as u64 {
            self.widen();
        }
        let last = (bytes.end - 1) >> self.shift;
        for number in bytes.start >> self.shift..=last {
            let Some(space) = self.space(pid) else { return };
            match space.chunks.entry(number) {
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    let known = entry.get_mut();
                    *known = time.max(*known);
                }
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(time);
                    self.chunks += 1;
                }
            }
        }
        while self.chunks > CHUNKS {
            self.widen();
        }
    }

    /// Two chunks become one.
    fn widen(&mut self) {
        self.shift += 1;
        self.chunks = 0;
        for space in self.spaces.values_mut() {
            let mut wide = BTreeMap::new();
            for (number, time) in std::mem::take(&mut space.chunks) {
                let known = wide.entry(number >> 1).or_insert(time);
                *known = time.max(*known);
            }
            self.chunks += wide.len();
            space.chunks = wide;
        }
    }

    /// The process that is shown: the one that is looked at, or, of a recording of many, the one with the most memory
    /// touched.
    fn shown(&self) -> Option<&Space> {
        let of_target = self.spaces.get(&self.target);
        let busiest = || self.spaces.values().max_by_key(|space| space.chunks.len());
        of_target
            .filter(|space| {
                !space.chunks.is_empty() || space.mappings.values().any(|m| m.rss.is_some())
            })
            .or_else(busiest)
    }

    /// The chunks of a stretch of addresses, as far as they were touched.
    fn within<'a>(
        &self,
        space: &'a Space,
        Range { start, end }: Range<u64>,
    ) -> impl Iterator<Item = Nanos> + use<'a> {
        let last = end.saturating_sub(1).max(start) >> self.shift;
        space.chunks.range(start >> self.shift..=last).map(|(_, time)| *time)
    }

    fn weight(&self, space: &Space, start: u64, mapping: &Mapping) -> u64 {
        let touched = || (self.within(space, start..mapping.end).count() as u64) << self.shift;
        mapping.rss.unwrap_or_else(|| touched().min(mapping.end.saturating_sub(start)))
    }

    /// Mappings with memory: first address, mapping, bytes.
    fn weighed(&self) -> Vec<(u64, &Mapping, u64)> {
        let Some(space) = self.shown() else { return Vec::new() };
        let weigh =
            |(start, mapping): (&u64, _)| (*start, mapping, self.weight(space, *start, mapping));
        space.mappings.iter().map(weigh).filter(|(.., bytes)| *bytes > 0).collect()
    }

    /// The memory in `columns` cells of equal amounts; none where there is no memory.
    pub fn cells(&self, columns: usize) -> Vec<Cell> {
        let weighed = self.weighed();
        let all = weighed.iter().fold(0_u128, |sum, (.., bytes)| sum + u128::from(*bytes));
        let Some(space) = self.shown().filter(|_| all > 0) else { return Vec::new() };
        let mut cells = vec![Cell::default(); columns];
        let mut before = 0_u128;
        for (start, mapping, bytes) in weighed {
            let (from, to) = (before, before + u128::from(bytes));
            before = to;
            let mut own = Vec::new();
            let size = u128::from(mapping.end - start);
            let first = (from * columns as u128 / all) as usize;
            let last = ((to - 1) * columns as u128 / all) as usize;
            for (number, cell) in cells.iter_mut().enumerate().take(last + 1).skip(first) {
                // The part of the mapping's memory that is this cell's, and then of its addresses.
                let low = (number as u128 * all / columns as u128).max(from) - from;
                let high = ((number as u128 + 1) * all / columns as u128).clamp(from, to) - from;
                let address = |part: u128| start + (part * size / u128::from(bytes)) as u64;
                let latest = self.within(space, address(low)..address(high.max(low))).max();
                cell.touched = cell.touched.max(latest);
                // Its middle says whose it is.
                let middle = (2 * number as u128 + 1) * all / (2 * columns as u128);
                own.extend((from..to).contains(&middle).then_some(number));
            }
            if let (Some(warm), [first, .., last] | [first @ last]) =
                (self.window.and_then(|window| mapping.warm(window)), own.as_slice())
            {
                let own = &mut cells[*first..=*last];
                own.sort_by_key(|cell| std::cmp::Reverse(cell.touched));
                let share = warm as f64 / bytes.max(1) as f64;
                let warm = (share * own.len() as f64).round() as usize;
                own.iter_mut().take(warm).for_each(|cell| cell.warm = true);
            }
        }
        cells
    }

    /// The memory by name, the most first.
    pub fn regions(&self) -> Vec<Region> {
        let Some(space) = self.shown() else { return Vec::new() };
        let mut regions: BTreeMap<&str, Region> = BTreeMap::new();
        for (start, mapping, bytes) in self.weighed() {
            let region = regions.entry(&mapping.name).or_default();
            region.bytes = region.bytes.saturating_add(bytes);
            let warm = self.window.and_then(|window| mapping.warm(window));
            let warm = warm.map(|warm| warm.saturating_add(region.warm.unwrap_or(0)));
            region.warm = warm.or(region.warm);
            let mut times: Vec<Nanos> = self.within(space, start..mapping.end).collect();
            times.sort_unstable_by(|a, b| b.cmp(a));
            region.touched = region.touched.max(times.first().copied());
            let mut left = bytes;
            for time in times {
                let chunk = (1_u64 << self.shift).min(left);
                left -= chunk;
                region.chunks.push((time, chunk));
            }
        }
        let named =
            regions.into_iter().map(|(name, region)| Region { name: name.into(), ..region });
        let mut all: Vec<Region> = named.collect();
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
        all
    }

    /// Anonymous memory by the last look; `None` if there was none.
    pub fn anonymous(&self) -> Option<Anonymous> {
        let space = self.shown()?;
        let looked = space.mappings.values().filter(|mapping| mapping.rss.is_some());
        let sum = |of: &dyn Fn(&Mapping) -> u64| sum(looked.clone().map(of));
        (space.look > Nanos(0)).then(|| Anonymous {
            bytes: sum(&|mapping| mapping.anonymous),
            huge: sum(&|mapping| mapping.huge),
        })
    }
}

/// Anonymous memory of a process, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anonymous {
    /// All of it.
    pub bytes: u64,
    /// Of it what is on huge pages.
    pub huge: u64,
}

impl Region {
    /// Bytes that were seen touched in the last `length`.
    pub fn touched_within(&self, length: Nanos, now: Nanos) -> u64 {
        let warm = self.chunks.iter().filter(|(time, _)| now.since(*time) <= length);
        sum(warm.map(|(_, bytes)| *bytes)).min(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::{Access, Touched};
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn mapping(time: u64, start: u64, pages: u64, rss: Option<u64>, name: &str) -> Event {
        Event::Mapping(Box::new(MappingSample {
            time: Nanos(time),
            pid: Some(7),
            start: Some(start),
            end: Some(start + pages * 4096),
            name: Some(name.into()),
            rss: rss.map(|pages| Bytes(pages * 4096)),
            ..MappingSample::default()
        }))
    }

    fn access(time: u64, address: u64) -> Event {
        Event::Access(Box::new(Access {
            time: Nanos(time),
            pid: Some(7),
            address: Some(address),
            ..Access::default()
        }))
    }

    #[test]
    fn cells_hold_equal_amounts_of_memory_and_say_when_it_was_touched_last() {
        let mut heat = Heat::of(Pid(7), 4096);
        for event in [
            mapping(1, 0x10_0000, 100, Some(100), "[heap]"),
            mapping(1, 0x80_0000, 400, Some(100), "file"),
            access(2, 0x10_0000),
            access(5, 0x10_0000),
            access(3, 0x80_0000 + 399 * 4096),
        ] {
            heat.event(&event);
        }
        let times: Vec<_> = heat.cells(8).iter().map(|cell| cell.touched.map(|at| at.0)).collect();
        assert_eq!(times, [Some(5), None, None, None, None, None, None, Some(3)]);
        let regions = heat.regions();
        assert_eq!((regions[0].bytes, regions.len()), (100 * 4096, 2));
        assert_eq!(regions[0].touched_within(Nanos(SECOND), Nanos(SECOND)), 4096);
    }

    #[test]
    fn a_window_says_how_much_was_touched_and_the_one_before_counts_until_it_is_shorter() {
        let mut heat = Heat::of(Pid(7), 4096);
        let look = |time: u64, marked: u64| {
            Event::Mapping(Box::new(MappingSample {
                time: Nanos(time),
                pid: Some(7),
                start: Some(0x10_0000),
                end: Some(0x10_0000 + 100 * 4096),
                rss: Some(Bytes(100 * 4096)),
                referenced: Some(Bytes(marked * 4096)),
                ..MappingSample::default()
            }))
        };
        heat.event(&look(1, 100));
        // Marks that nobody cleared say nothing.
        assert_eq!((heat.regions()[0].warm, heat.window()), (None, None));
        heat.begin_window(Nanos(10));
        heat.event(&look(20, 30));
        assert_eq!(heat.regions()[0].warm, Some(30 * 4096));
        assert_eq!(heat.window(), Some(Nanos(10)));
        heat.event(&access(25, 0x10_0000 + 95 * 4096));
        let cells = heat.cells(10);
        assert_eq!(cells.iter().filter(|cell| cell.warm).count(), 3);
        // Warmest first: nobody knows where the others are.
        assert!(cells[0].touched.is_some() && cells[2].warm && !cells[3].warm);
        heat.begin_window(Nanos(70));
        heat.event(&look(80, 2));
        assert_eq!(heat.regions()[0].warm, Some(30 * 4096));
        assert_eq!((heat.window(), heat.warm_since()), (Some(Nanos(60)), Some(Nanos(10))));
        // From here on it is the longer one.
        heat.event(&look(130, 2));
        assert_eq!(heat.regions()[0].warm, Some(2 * 4096));
        assert_eq!((heat.window(), heat.warm_since()), (Some(Nanos(60)), Some(Nanos(70))));
        heat.begin_window(Nanos(140));
        heat.event(&look(150, 1));
        assert_eq!(heat.regions()[0].warm, Some(2 * 4096));
    }

    #[test]
    fn a_mapping_that_a_look_does_not_have_is_gone_after_it() {
        let mut heat = Heat::of(Pid(7), 4096);
        heat.event(&mapping(1, 0x10_0000, 10, Some(10), "a"));
        heat.event(&mapping(1, 0x20_0000, 10, Some(10), "b"));
        for time in [2, 3] {
            heat.event(&mapping(time, 0x20_0000, 10, Some(10), "b"));
        }
        let names: Vec<_> = heat.regions().into_iter().map(|region| region.name).collect();
        assert_eq!(names, ["b"]);
    }

    /// The heap of a Python that grew all the time was not among what holds memory.
    #[test]
    fn a_mapping_that_grew_between_two_looks_holds_what_it_held() {
        let mut heat = Heat::of(Pid(7), 4096);
        heat.event(&mapping(1, 0x10_0000, 100, Some(90), "[heap]"));
        heat.event(&mapping(2, 0x10_0000, 120, None, "[heap]"));
        let held =
            |heat: &Heat| heat.regions().iter().map(|one| one.bytes / 4096).collect::<Vec<_>>();
        assert_eq!(held(&heat), [90]);
        heat.event(&mapping(3, 0x10_0000, 120, Some(115), "[heap]"));
        assert_eq!(held(&heat), [115]);
    }

    #[test]
    fn a_recording_without_looks_is_weighed_by_what_was_touched() {
        let mut heat = Heat::of(Pid(7), 4096);
        heat.event(&mapping(1, 0x10_0000, 1000, None, "table"));
        let touched = Touched {
            time: Nanos(4),
            pid: Some(7),
            starts: Some(vec![0x10_0000, 0x10_0000 + 500 * 4096]),
            pages: Some(vec![3, 2]),
            ..Touched::default()
        };
        heat.event(&Event::Touched(Box::new(touched)));
        assert_eq!(heat.regions()[0].bytes, 5 * 4096);
        assert_eq!(heat.cells(2).len(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever a recording says: rooms stay bounded, nothing overflows, and the latest touch is seen.
        #[test]
        fn any_rows_are_folded_in_bounded_room(
            rows in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()), 1..12),
            columns in 1..100_usize,
        ) {
            let mut heat = Heat::of(Pid(7), 4096);
            let mut latest = None;
            for (time, start, pages, touch) in rows {
                if touch {
                    heat.event(&Event::Touched(Box::new(Touched {
                        time: Nanos(time), pid: Some(7), starts: Some(vec![start]),
                        pages: Some(vec![pages % (1 << 50)]),
                        ..Touched::default()
                    })));
                    if pages % (1 << 50) > 0 && start < u64::MAX {
                        latest = latest.max(Some(Nanos(time)));
                    }
                } else {
                    heat.event(&Event::Mapping(Box::new(MappingSample {
                        time: Nanos(time), pid: Some(7), start: Some(start), end: Some(pages),
                        rss: Some(Bytes(time)), ..MappingSample::default()
                    })));
                }
            }
            prop_assert!(heat.chunks <= CHUNKS + 1);
            // A row that maps nothing makes no room.
            let seen = heat.spaces.get(&Pid(7)).and_then(|space| space.chunks.values().max().copied());
            prop_assert_eq!(seen, latest);
            prop_assert!(heat.cells(columns).iter().all(|cell| cell.touched <= latest));
            heat.regions();
            heat.anonymous();
        }
    }
}
