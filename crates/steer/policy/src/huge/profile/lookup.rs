//! What a profile says about a mapping: ranges with a benefit.
//!
//! Each row claims, of what no row before it has claimed, the pages for which its constraints hold. Since `addr` and
//! `section_off` are bounds, those pages are one interval a row, and a mapping falls into few ranges.

use super::{Comparator, Constraint, Kind, Profile, ProfileRow, Quantity};
use pagemill_model::PageRange;
use pagemill_model::page::{BASE, HUGE};

use crate::huge::view::{Figure, Section};

/// A mapping, as the quantities of a profile see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address; whole pages.
    pub start: u64,
    /// First address after it; whole pages.
    pub end: u64,
    /// The section.
    pub section: Section,
    /// Where the section's offsets count from: its first address, or for `mmap` the top of the area.
    pub base: u64,
    /// Protection bits.
    pub prot: u64,
    /// Flags.
    pub flags: u64,
    /// File descriptor; all ones for anonymous memory.
    pub fd: u64,
    /// Offset in the file.
    pub off: u64,
    /// The place in the program that made it, if known.
    pub site: Option<String>,
}

/// Pages with one benefit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The benefit, in the profile's unit.
    pub benefit: u64,
    /// Index of the row that says so.
    pub row: usize,
}

/// The pages from the first at or after `value` on start here.
fn page_at_or_after(value: u64) -> u64 {
    value.div_ceil(BASE).saturating_mul(BASE)
}

impl ProfileRow {
    /// The addresses of the mapping's pages for which the row holds, if there are any.
    #[must_use]
    pub fn claims(&self, mapping: &Mapping) -> Option<PageRange> {
        if self.section != mapping.section {
            return None;
        }
        let (mut start, mut end) = (mapping.start, mapping.end);
        for constraint in &self.constraints {
            let (quantity, comparator, value) = match constraint {
                Constraint::Site(site) if mapping.site.as_ref() == Some(site) => continue,
                Constraint::Site(_) => return None,
                Constraint::Number(quantity, comparator, value) => (*quantity, *comparator, *value),
            };
            let (comparator, value) = match quantity {
                Quantity::Addr => (comparator, value),
                Quantity::SectionOff if mapping.section == Section::Mmap => (
                    match comparator {
                        Comparator::Less => Comparator::Greater,
                        Comparator::Greater => Comparator::Less,
                        Comparator::Equal => Comparator::Equal,
                    },
                    mapping.base.saturating_sub(value),
                ),
                Quantity::SectionOff => (comparator, mapping.base.saturating_add(value)),
                of_the_whole => {
                    let there = match of_the_whole {
                        Quantity::Len => mapping.end - mapping.start,
                        Quantity::Prot => mapping.prot,
                        Quantity::Flags => mapping.flags,
                        Quantity::Fd => mapping.fd,
                        _ => mapping.off,
                    };
                    let holds = match comparator {
                        Comparator::Equal => there == value,
                        Comparator::Greater => there > value,
                        Comparator::Less => there < value,
                    };
                    if holds {
                        continue;
                    }
                    return None;
                }
            };
            match comparator {
                Comparator::Greater => start = start.max(page_at_or_after(value)),
                Comparator::Less => end = end.min(page_at_or_after(value)),
                Comparator::Equal => {
                    let page = value / BASE * BASE;
                    start = start.max(page);
                    end = end.min(page.saturating_add(BASE));
                }
            }
        }
        (start < end).then_some(PageRange { start, end })
    }
}

impl Profile {
    /// The ranges of `mapping` that a row of this kind claims, by address.
    #[must_use]
    pub fn ranges(&self, kind: Kind, mapping: &Mapping) -> Vec<Range> {
        let mut free = vec![PageRange::new(mapping.start..mapping.end)];
        let mut ranges = Vec::new();
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.kind == kind) {
            let Some(claimed) = row.claims(mapping) else { continue };
            let mut left = Vec::with_capacity(free.len() + 1);
            for part in free {
                let PageRange { start, end } = part.within(claimed);
                if start < end {
                    let benefit = row.benefit;
                    ranges.push(Range { start, end, benefit, row: index });
                    let rest = [PageRange::new(part.start..start), PageRange::new(end..part.end)];
                    left.extend(rest);
                } else {
                    left.push(part);
                }
            }
            free = left;
            free.retain(|part| !part.is_empty());
            if free.is_empty() {
                break;
            }
        }
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    /// The benefit of this kind for the region of 2 MiB that starts at `address`: for huge pages what the row of its
    /// first claimed page says, for eager paging the greatest in it. Absent where no row holds.
    #[must_use]
    pub fn benefit(&self, kind: Kind, mapping: &Mapping, address: u64) -> Figure {
        let part = Mapping {
            start: mapping.start.max(address),
            end: mapping.end.min(address.saturating_add(HUGE)),
            ..Mapping::default()
        };
        if part.start >= part.end {
            return Figure::Absent;
        }
        let ranges = self.ranges(kind, mapping);
        let mut inside =
            ranges.iter().filter(|range| range.start < part.end && range.end > part.start);
        let benefit = match kind {
            Kind::Huge => inside.next().map(|range| range.benefit),
            Kind::Eager => inside.map(|range| range.benefit).max(),
        };
        benefit.map_or(Figure::Absent, Figure::Modelled)
    }
}
