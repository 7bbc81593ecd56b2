//! How much of a process's anonymous memory is on huge pages, by mapping and over time.
//!
//! The **efficiency** is that of the published evaluation of CBMM (its `smaps-efficiency`): mappings of all
//! looks that overlap or touch are merged into ranges; each range counts with its largest anonymous
//! memory and its largest huge part of all looks; the efficiency is the sum of the latter over the
//! sum of the former. It asks whether the memory ever got huge pages, where the share asks how much
//! of it is on huge pages at one moment.
//!
//! Always true: shares are in [0, 1]; ranges are disjoint and in order.

use std::collections::BTreeMap;

use pagemill_model::{Bytes, Event, Fold, MappingSample, Nanos};

use crate::faults::label;
use pagemill_model::sums::add;

/// Bytes of anonymous memory, and the part of it on huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Resident anonymous memory.
    pub anonymous: Bytes,
    /// The part on huge pages.
    pub huge: Bytes,
}

impl Use {
    /// The share on huge pages; `None` without anonymous memory.
    pub fn share(&self) -> Option<f64> {
        (self.anonymous.0 > 0).then(|| (self.huge.0 as f64 / self.anonymous.0 as f64).min(1.0))
    }

    /// Adds what another mapping has.
    pub fn add(&mut self, other: Self) {
        add(&mut self.anonymous.0, other.anonymous.0);
        add(&mut self.huge.0, other.huge.0);
    }
}

/// A range of merged mappings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// What lay there when it held most.
    pub name: String,
    /// The largest of each over all looks.
    pub most: Use,
}

/// What the looks add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HugePageView {
    /// Looks at the mappings.
    pub looks: u64,
    /// The last look, by what the mapping is called; the most anonymous memory first.
    pub last: Vec<(String, Use)>,
    /// The last look, all mappings.
    pub total: Use,
    /// Each look: seconds since the first, all mappings.
    pub points: Vec<(f64, Use)>,
    /// Merged ranges with anonymous memory.
    pub ranges: Vec<Range>,
}

impl HugePageView {
    /// Sum of the ranges' largest huge parts over the sum of their largest anonymous memory.
    pub fn efficiency(&self) -> Option<f64> {
        let mut sum = Use::default();
        self.ranges.iter().for_each(|range| sum.add(range.most));
        sum.share()
    }
}

/// Folds looks at mappings into a [`HugePageView`].
#[derive(Clone, Debug, Default)]
pub struct HugePageFold {
    looks: BTreeMap<Nanos, Vec<(u64, u64, String, Use)>>,
}

impl Fold for HugePageFold {
    type View = HugePageView;

    fn event(&mut self, event: &Event) {
        let Event::Mapping(row) = event else { return };
        // Rows without sizes are only layout.
        let MappingSample {
            start: Some(start), end: Some(end), anonymous: Some(anonymous), ..
        } = row.as_ref()
        else {
            return;
        };
        let used = Use { anonymous: *anonymous, huge: row.huge.unwrap_or_default() };
        self.looks.entry(row.time).or_default().push((*start, *end, label(row), used));
    }

    fn view(&self) -> HugePageView {
        let first = self.looks.keys().next().copied().unwrap_or_default();
        let total = |look: &Vec<(u64, u64, String, Use)>| {
            let mut sum = Use::default();
            look.iter().for_each(|(.., used)| sum.add(*used));
            sum
        };
        let points: Vec<_> = self
            .looks
            .iter()
            .map(|(time, look)| (time.since(first).seconds(), total(look)))
            .collect();
        let mut last: BTreeMap<String, Use> = BTreeMap::new();
        for (.., name, used) in self.looks.values().next_back().into_iter().flatten() {
            last.entry(name.clone()).or_default().add(*used);
        }
        let mut last: Vec<_> = last.into_iter().filter(|(_, used)| used.anonymous.0 > 0).collect();
        last.sort_by_key(|(_, used)| std::cmp::Reverse(used.anonymous));
        HugePageView {
            looks: self.looks.len() as u64,
            last,
            total: self.looks.values().next_back().map(total).unwrap_or_default(),
            points,
            ranges: self.ranges(),
        }
    }
}

impl HugePageFold {
    fn ranges(&self) -> Vec<Range> {
        let all = || self.looks.values().flatten().filter(|(.., used)| used.anonymous.0 > 0);
        let mut spans: Vec<(u64, u64)> = all().map(|(start, end, ..)| (*start, *end)).collect();
        spans.sort_unstable();
        let mut ranges: Vec<Range> = Vec::new();
        for (start, end) in spans {
            match ranges.last_mut() {
                Some(range) if start <= range.end => range.end = range.end.max(end),
                _ => ranges.push(Range { start, end, name: String::new(), most: Use::default() }),
            }
        }
        for look in self.looks.values() {
            let mut sums: BTreeMap<usize, (Use, &str, u64)> = BTreeMap::new();
            for (start, _, name, used) in look.iter().filter(|(.., used)| used.anonymous.0 > 0) {
                let at = ranges.partition_point(|range| range.end <= *start);
                let (sum, largest, most) = sums.entry(at).or_default();
                sum.add(*used);
                if used.anonymous.0 > *most {
                    (*largest, *most) = (name, used.anonymous.0);
                }
            }
            for (at, (sum, name, _)) in sums {
                let Some(range) = ranges.get_mut(at) else { continue };
                if sum.anonymous >= range.most.anonymous {
                    range.name = name.to_owned();
                }
                range.most.anonymous = range.most.anonymous.max(sum.anonymous);
                range.most.huge = range.most.huge.max(sum.huge);
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping_sample(time: u64, start: u64, end: u64, anonymous: u64, huge: u64) -> Event {
        Event::Mapping(Box::new(MappingSample {
            time: Nanos(time),
            start: Some(start),
            end: Some(end),
            anonymous: Some(Bytes(anonymous)),
            huge: Some(Bytes(huge)),
            name: Some("[heap]".into()),
            ..MappingSample::default()
        }))
    }

    fn fold(events: &[Event]) -> HugePageView {
        let mut fold = HugePageFold::default();
        events.iter().for_each(|event| fold.event(event));
        fold.view()
    }

    #[test]
    fn ranges_grow_together_and_keep_the_most_of_each() {
        // A heap that grows, was half huge, and is given back in part.
        let view = fold(&[
            mapping_sample(1, 0x1000, 0x5000, 100, 50),
            mapping_sample(2, 0x1000, 0x9000, 400, 20),
            mapping_sample(2, 0x9000, 0xa000, 100, 0),
            mapping_sample(2, 0x20000, 0x30000, 500, 500),
            mapping_sample(3, 0x1000, 0x9000, 10, 0),
        ]);
        let ranges: Vec<_> = view
            .ranges
            .iter()
            .map(|r| (r.start, r.end, r.most.anonymous.0, r.most.huge.0))
            .collect();
        assert_eq!(ranges, [(0x1000, 0xa000, 500, 50), (0x20000, 0x30000, 500, 500)]);
        assert_eq!(view.efficiency(), Some(0.55));
        assert_eq!(view.total.share(), Some(0.0));
        assert_eq!((view.looks, view.points.len(), view.last.len()), (3, 3, 1));
    }

    #[test]
    fn layouts_without_sizes_are_no_looks() {
        let row = MappingSample { start: Some(1), end: Some(2), ..MappingSample::default() };
        let view = fold(&[Event::Mapping(Box::new(row))]);
        assert_eq!((view.looks, view.efficiency()), (0, None));
    }
}
