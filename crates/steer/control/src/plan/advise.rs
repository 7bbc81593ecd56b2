//! `plan REC`: what a recording says about where huge pages or eager paging would pay, as rows of a profile.
//!
//! Regions are put together into *places* that the next run has too: ranges of the heap by their offset, mappings by
//! the code that made them where the recording tells (`record --with sites`), and otherwise their size class (a power
//! of two). The heap's regions are numbered from its first whole one. A place's view has the mean of the base pages
//! touched in its regions, the speed at which the program touched new memory, this machine's costs, a free block and no
//! load but the program (which the run to come finds as they are then); `cbmm+` decides on it as it would ahead of the
//! program. The benefit in the profile is what that view says a huge page spares: the base faults. Page walks need a
//! measurement: `advise --places`, or samples of accesses in the recording and a count of the cycles that the walks
//! took, which go to places as the samples that walked do.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pagemill_analysis::regions::{Area, RegionKind, Regions};
use pagemill_analysis::walks::Walks;
use pagemill_model::page::{HUGE, PER_HUGE};
use pagemill_model::{Bytes, Nanos};
use pagemill_policy::huge::cbmm_plus::CbmmPlus;
use pagemill_policy::huge::profile::{Comparator, Constraint, Kind, Profile, ProfileRow, Quantity};
use pagemill_policy::huge::{Action, Decision, Figure, Moment, Policy as _, Section, Unit, View};
use serde_json::{Value, json};

/// A place and what to do there.
#[derive(Debug)]
pub struct Advice {
    /// The section.
    pub section: Section,
    /// What makes a region one of this place.
    pub constraints: Vec<Constraint>,
    /// The place in words.
    pub place: String,
    /// Regions in it that were used.
    pub regions: u64,
    /// Base pages touched in each, on average.
    pub touched: Option<u64>,
    /// Where that number comes from.
    pub from: &'static str,
    /// Sampled accesses in it that walked page tables.
    pub walks: u64,
    /// Cycles of walks in each of its regions, if they were counted.
    pub cycles: Option<u64>,
    /// What `cbmm+` would do.
    pub decision: Option<Decision>,
}

impl Advice {
    /// What the action gains in all regions of the place, ns; nothing if none is worth it.
    fn gain(&self) -> u64 {
        let decided = self.decision.filter(|decision| decision.action != Action::Base);
        decided.map_or(0, |decision| decision.estimate.gain().saturating_mul(self.regions))
    }

    /// The row of a profile, if anything is worth doing.
    fn row(&self) -> Option<ProfileRow> {
        let decision = self.decision?;
        let kind = match decision.action {
            Action::Ahead2m | Action::Fault2m => Kind::Huge,
            Action::Ahead4k | Action::Ahead64k => Kind::Eager,
            _ => return None,
        };
        let regions = self.regions;
        let touched = match self.touched {
            Some(touched) => format!("{touched} of 512 pages in {regions} regions, {}", self.from),
            None => format!("{regions} regions, touched pages unknown"),
        };
        let walks = match self.walks {
            0 => String::new(),
            walks => format!("; {walks} sampled walks"),
        };
        let why = format!("{decision}; {touched}{walks}");
        Some(ProfileRow {
            kind,
            section: self.section,
            benefit: decision.estimate.benefit(),
            constraints: self.constraints.clone(),
            why: Some(why),
        })
    }
}

/// Regions of one place.
#[derive(Default)]
struct Group {
    regions: u64,
    touched: u64,
    told: u64,
    on_huge: u64,
    walks: u64,
    estimated: bool,
}

impl Group {
    fn add(&mut self, touched: Option<u64>, walks: u64, estimated: bool) {
        self.regions += 1;
        self.walks += walks;
        match touched {
            Some(pages) => {
                self.touched += pages.min(PER_HUGE);
                self.told += 1;
            }
            None => self.on_huge += 1,
        }
        self.estimated |= estimated;
    }

    /// Takes in the regions of another.
    fn join(&mut self, other: &Self) {
        self.regions += other.regions;
        self.touched += other.touched;
        self.told += other.told;
        self.on_huge += other.on_huge;
        self.walks += other.walks;
        self.estimated |= other.estimated;
    }

    /// Pages touched in a region, on average; `None` if most were on huge pages.
    fn mean(&self) -> Option<u64> {
        let mean = self.touched.checked_div(self.told);
        mean.filter(|_| self.told >= self.on_huge)
    }
}

/// The used regions of an area: offset from its start, pages touched (`None`: on a huge page, nobody knows), whether
/// the number is an average over the mapping.
///
/// `left`: regions that are still listed; what a file says of their number is bounded.
fn used(area: &Area, complete: bool, left: &mut u64) -> Vec<(u64, Option<u64>, bool)> {
    let base = area.start;
    if complete && !area.regions.is_empty() {
        let told = |region: &pagemill_analysis::regions::Region| {
            let touched = (region.huge_faults == 0).then_some(region.touched);
            ((region.start - base) / HUGE * HUGE, touched, false)
        };
        return area.regions.iter().map(told).collect();
    }
    let length = area.end - area.start;
    let Some(anonymous) = area.anonymous.filter(|bytes| *bytes > 0 && length > 0) else {
        return Vec::new();
    };
    // Less than a page a region says of none which it is.
    let number = length / HUGE;
    if number > (*left).min(anonymous / 4096) {
        return Vec::new();
    }
    *left -= number;
    // A mapping with a good part on huge pages says how much it got, not how much it touched.
    let known = area.huge.unwrap_or(0) * 4 < anonymous;
    let mean = u128::from(anonymous) * u128::from(PER_HUGE) / u128::from(length);
    let mean = u64::try_from(mean).unwrap_or(PER_HUGE).max(1);
    (0..number).map(|at| (at * HUGE, known.then_some(mean), true)).collect()
}

/// Faults whose address is known must be this share of all for their pages to be taken as all pages.
const COMPLETE_PERCENT: u64 = 95;

/// Whether nearly all faults have a row.
pub fn complete(regions: &Regions) -> bool {
    let share = |rows: u64, percent: u64| u128::from(rows) * u128::from(percent);
    regions.rows > 0 && share(regions.rows, 100) >= share(regions.counted, COMPLETE_PERCENT)
}

/// What to do where, by this machine's view.
///
/// `walks`: samples that walked, and the cycles that the walks took if they were counted.
pub fn advise(
    regions: &Regions,
    (walks, cycles): (&Walks, Option<u64>),
    machine: &View,
) -> Vec<Advice> {
    let weights = Weights { regions, walks, cycles, machine };
    let Groups { heap, mapped, sites } = Groups::of(regions, walks);
    let mut all = weights.heap(heap);
    // Before the size classes: of several rows that hold the first one counts.
    let by_site = sites.into_iter().map(|(site, group)| {
        (format!("mappings made by {site}"), vec![Constraint::Site(site)], group)
    });
    let by_size = mapped.into_iter().map(|(class, group)| {
        let (least, next) = (1_u64 << class, 1_u64 << (class + 1));
        let constraint = |comparator, value| Constraint::Number(Quantity::Len, comparator, value);
        let constraints =
            vec![constraint(Comparator::Greater, least - 1), constraint(Comparator::Less, next)];
        (format!("mappings of {} to {}", short(least), short(next)), constraints, group)
    });
    for (place, constraints, group) in by_site.chain(by_size) {
        all.push(weights.advice(Section::Mmap, place, constraints, &group));
    }
    all
}

/// The regions that were used, by place.
#[derive(Default)]
struct Groups {
    /// By the number of the huge page from the start of the heap.
    heap: BTreeMap<u64, Group>,
    /// By the class of the mapping's size: the logarithm of its bytes.
    mapped: BTreeMap<u32, Group>,
    /// By the call site that made the mapping.
    sites: BTreeMap<String, Group>,
}

impl Groups {
    fn of(regions: &Regions, walks: &Walks) -> Self {
        /// 8 TiB.
        const MOST: u64 = 1 << 22;
        let (complete, mut left) = (complete(regions), MOST);
        let mut groups = Self::default();
        for (pid, area) in &regions.areas {
            let length = area.end - area.start;
            if length < HUGE && area.place == RegionKind::Mapped {
                continue;
            }
            let start = |offset: u64| area.start.next_multiple_of(HUGE) + offset;
            let walked = |offset: u64| {
                let start = start(offset);
                walks.of(*pid, start..(start + HUGE).min(area.end)).len() as u64
            };
            let mut known = used(area, complete, &mut left);
            if known.is_empty() {
                // Of samples alone: what they hit was used, how densely nobody knows.
                let hit = walks.of(*pid, start(0)..area.end).iter();
                known =
                    hit.map(|at| ((at.address - start(0)) / HUGE * HUGE, None, false)).collect();
                known.dedup();
                known.retain(|(offset, ..)| offset + HUGE <= length);
            }
            for (offset, touched, estimated) in known {
                let group = match area.place {
                    RegionKind::Heap => groups.heap.entry(offset / HUGE).or_default(),
                    RegionKind::Mapped => {
                        let made = regions.sites.get(pid);
                        match made.and_then(|made| made.at(start(offset))) {
                            Some(site) => groups.sites.entry(site).or_default(),
                            None => groups.mapped.entry(length.ilog2()).or_default(),
                        }
                    }
                };
                group.add(touched, walked(offset), estimated);
            }
        }
        groups
    }
}

/// What a group of regions is weighed by.
struct Weights<'a> {
    regions: &'a Regions,
    walks: &'a Walks,
    cycles: Option<u64>,
    machine: &'a View,
}

impl Weights<'_> {
    /// Cycles of walks in each region of a group, if they were counted.
    fn cycles_each(&self, group: &Group) -> Option<u64> {
        let share = u128::from(self.cycles.filter(|_| group.walks > 0)?) * u128::from(group.walks);
        let share = share / self.walks.at.len().max(1) as u128 / u128::from(group.regions.max(1));
        Some(u64::try_from(share).unwrap_or(u64::MAX))
    }

    /// What `cbmm+` would do with a group's regions; `None` where neither touched pages nor walks are known.
    fn weigh(&self, group: &Group, section: Section) -> Option<Decision> {
        let each = self.cycles_each(group);
        let mean = group.mean();
        if mean.is_none() && each.is_none() {
            return None;
        }
        let growth = self.regions.growth.filter(|_| complete(self.regions));
        let mut view = View {
            moment: Moment::Ahead,
            section,
            present: Figure::Measured(0),
            expected: mean.map_or(Figure::Absent, Figure::Modelled),
            // Counted cycles are walks alone, as a published profile has them; where none were counted, none are
            // assumed.
            profile_huge: each.map_or(Figure::Modelled(0), Figure::Measured),
            unit: Unit::Cycles,
            growth: growth.map_or(Figure::Absent, Figure::Measured),
            // The run to come decides again by what is so then; a profile does not depend on what else this machine
            // does just now.
            free_huge: Figure::Modelled(1),
            load: Figure::Modelled(100),
            ..*self.machine
        };
        if let Some(stall) = self.regions.stall {
            view.costs.stall = Figure::Measured(stall);
        }
        Some(CbmmPlus::USUAL.decide(&view))
    }

    fn advice(
        &self,
        section: Section,
        place: String,
        constraints: Vec<Constraint>,
        group: &Group,
    ) -> Advice {
        Advice {
            section,
            constraints,
            place,
            decision: self.weigh(group, section),
            regions: group.regions,
            touched: group.mean(),
            walks: group.walks,
            cycles: self.cycles_each(group),
            from: origin(group),
        }
    }

    /// The heap: neighbours for which the same is best are one range.
    fn heap(&self, heap: BTreeMap<u64, Group>) -> Vec<Advice> {
        let mut ranges: Vec<(u64, u64, Group, Option<Action>)> = Vec::new();
        for (at, group) in heap {
            let action = self.weigh(&group, Section::Heap).map(|decision| decision.action);
            match ranges.last_mut() {
                Some((_, end, whole, same)) if *end == at && *same == action => {
                    *end = at + 1;
                    whole.join(&group);
                }
                _ => ranges.push((at, at + 1, group, action)),
            }
        }
        let constraint =
            |comparator, value| Constraint::Number(Quantity::SectionOff, comparator, value);
        let advice = |(from, to, group, _): (u64, u64, Group, Option<Action>)| {
            let (from, to) = (from * HUGE, to * HUGE);
            let constraints =
                vec![constraint(Comparator::Greater, from), constraint(Comparator::Less, to)];
            let place = format!("heap from {} to {}", short(from), short(to));
            self.advice(Section::Heap, place, constraints, &group)
        };
        ranges.into_iter().map(advice).collect()
    }
}

fn origin(group: &Group) -> &'static str {
    match (group.mean(), group.estimated) {
        (None, _) if group.on_huge > 0 && group.walks > 0 => {
            "nothing: they were sampled only, or on huge pages"
        }
        (None, _) => "nothing: they were on huge pages already",
        (_, true) => "averages over mappings",
        (_, false) => "faults",
    }
}

fn short(bytes: u64) -> String {
    Bytes(bytes).to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The profile that follows.
pub fn profile(all: &[Advice]) -> Profile {
    Profile { unit: Unit::Nanos, rows: all.iter().filter_map(Advice::row).collect() }
}

/// As a table, what gains most in all first; with the why of each place if asked for. Benefit and cost are of one
/// region.
pub fn text(all: &[Advice], explain: bool) -> String {
    let width = all.iter().map(|advice| advice.place.chars().count()).max().unwrap_or(0).max(24);
    let mut text = format!(
        "{:<width$} {:>7} {:>14} {:<10} {:>11} {:>11} {:>11}\n",
        "place", "regions", "touched of 512", "action", "benefit", "cost", "all gain"
    );
    let mut ranked: Vec<&Advice> = all.iter().collect();
    ranked.sort_by_key(|advice| std::cmp::Reverse(advice.gain()));
    for advice in ranked {
        let Advice { place, regions, .. } = advice;
        let touched = advice.touched.map_or("unknown".to_owned(), |pages| pages.to_string());
        let time = |of: fn(&Decision) -> u64| {
            advice
                .decision
                .as_ref()
                .map_or("-".to_owned(), |decision| Nanos(of(decision)).to_string())
        };
        let action = advice.decision.map_or("-", |decision| decision.action.name());
        let (benefit, cost) = (time(|d| d.estimate.benefit()), time(|d| d.estimate.cost()));
        let gain = advice.decision.map_or("-".to_owned(), |_| Nanos(advice.gain()).to_string());
        let _ = writeln!(
            text,
            "{place:<width$} {regions:>7} {touched:>14} {action:<10} {benefit:>11} {cost:>11} {gain:>11}"
        );
        if explain {
            let why = advice.decision.map_or_else(
                || "no decision without touched pages: record it with huge pages off".to_owned(),
                |decision| decision.to_string(),
            );
            let _ = writeln!(text, "    {why}; touched pages from {}", advice.from);
        }
    }
    text
}

/// As JSON.
pub fn json(all: &[Advice], regions: &Regions, walks: &Walks) -> Value {
    let rows = all.iter().map(|advice| {
        let decision = advice.decision;
        json!({
            "section": advice.section.name(),
            "place": advice.place,
            "regions": advice.regions,
            "touched_pages": advice.touched,
            "touched_from": advice.from,
            "gain_ns_all": decision.map(|_| advice.gain()),
            "walks_sampled": advice.walks,
            "walk_cycles_each": advice.cycles,
            "action": decision.map(|d| d.action.name()),
            "weighed": decision.map(|d| d.weighed.name()),
            "benefit_ns": decision.map(|d| d.estimate.benefit()),
            "cost_ns": decision.map(|d| d.estimate.cost()),
            "why": decision.map(|d| d.to_string()),
        })
    });
    json!({
        "places": rows.collect::<Vec<_>>(),
        "profile": profile(all).to_string(),
        "faults_with_address": regions.rows,
        "faults_counted": regions.counted,
        "samples_with_tlb": walks.told,
        "samples_that_walked": walks.at.len(),
        "stall_ns": regions.stall,
    })
}

#[cfg(test)]
mod tests {
    use pagemill_analysis::addresses::ProcessAddress;
    use pagemill_model::Pid;

    use super::*;
    use pagemill_analysis::regions::Region;
    use pagemill_policy::huge::Costs;

    fn machine() -> View {
        let figure = Figure::Measured;
        View {
            cpus: 2,
            mhz: 2600,
            load: figure(10),
            used: figure(800),
            free_huge: figure(50),
            cold: figure(0),
            costs: Costs {
                base: figure(1_100),
                huge: figure(90_000),
                fetch: figure(0),
                ..Costs::default()
            },
            ..View::default()
        }
    }

    fn area(place: RegionKind, start: u64, touched: &[u64]) -> (Pid, Area) {
        let region = |(at, touched): (u64, &u64)| Region {
            start: start + at * HUGE,
            touched: *touched,
            faults: *touched,
            huge_faults: 0,
        };
        let regions = (0..).zip(touched).map(region).collect();
        let end = start + touched.len() as u64 * HUGE;
        (Pid(7), Area { place, start, end, anonymous: None, huge: None, regions })
    }

    fn regions(areas: Vec<(Pid, Area)>) -> Regions {
        Regions { areas, rows: 100, counted: 100, ..Regions::default() }
    }

    #[test]
    fn dense_places_become_rows_and_sparse_ones_are_paged_ahead() {
        let regions = regions(vec![
            area(RegionKind::Heap, 64 * HUGE, &[512, 500, 20, 10]),
            area(RegionKind::Mapped, 900 * HUGE, &[512; 8]),
        ]);
        let all = advise(&regions, (&Walks::default(), None), &machine());
        let actions: Vec<_> = all.iter().map(|a| a.decision.unwrap().action).collect();
        assert_eq!(actions, [Action::Ahead2m, Action::Ahead4k, Action::Ahead2m]);
        let profile = profile(&all).to_string();
        let mut lines = profile.lines();
        assert_eq!(lines.next(), Some("# unit: ns"));
        let heap = lines.next().unwrap();
        assert!(
            heap.starts_with(
                "huge,heap,556600,section_off,>,0x0,section_off,<,0x400000  # ahead-2m: walks 0 + \
                 faults 556600"
            ),
            "{heap}"
        );
        assert!(heap.ends_with("506 of 512 pages in 2 regions, faults"), "{heap}");
        assert!(lines.next().unwrap().starts_with("eager,heap,16500,section_off,>,0x400000"));
        assert!(
            lines.next().unwrap().starts_with("huge,mmap,563200,len,>,0xffffff,len,<,0x2000000")
        );
        assert_eq!(Profile::parse(&profile).unwrap().to_string(), profile);
        let table = text(&all, true);
        assert!(table.contains("mappings of 16.0 MiB to 32.0 MiB"), "{table}");
    }

    #[test]
    fn counted_walks_go_where_samples_walked() {
        let heap = area(RegionKind::Heap, 64 * HUGE, &[512, 512, 512]);
        let (_, mapped) = area(RegionKind::Mapped, 900 * HUGE, &[]);
        let unseen = (Pid(7), Area { end: mapped.start + 4 * HUGE, ..mapped });
        let at = |region: u64| ProcessAddress::new(Pid(7), region * HUGE + 4096);
        let walks = Walks { told: 100, at: vec![at(64), at(64), at(64), at(901)] };
        let all = advise(&regions(vec![heap, unseen]), (&walks, Some(26_000_000)), &machine());
        let walked: Vec<_> = all.iter().map(|a| (a.walks, a.regions, a.touched)).collect();
        assert_eq!(walked, [(3, 3, Some(512)), (1, 1, None)]);
        // Three quarters of 26 million cycles in three regions are 2.5 ms each at 2600 MHz, and 512 faults of 1.1 us
        // beside them.
        assert_eq!(all[0].decision.unwrap().estimate.benefit(), 2_500_000 + 512 * 1_100);
        assert_eq!(all[1].decision.unwrap().estimate.benefit(), 2_500_000);
        let profile = profile(&all).to_string();
        assert!(
            profile.contains("huge,heap,3063200,section_off,>,0x0,section_off,<,0x600000"),
            "{profile}"
        );
        assert!(profile.contains("1 regions, touched pages unknown; 1 sampled walks"), "{profile}");
        let without = advise(
            &regions(vec![area(RegionKind::Heap, 64 * HUGE, &[512])]),
            (&walks, None),
            &machine(),
        );
        assert_eq!(without[0].decision.unwrap().estimate.benefit(), 512 * 1_100);
    }

    #[test]
    fn what_was_on_huge_pages_already_is_unknown_not_dense() {
        let (pid, mut on_huge) = area(RegionKind::Mapped, 900 * HUGE, &[1; 4]);
        on_huge.regions.iter_mut().for_each(|region| region.huge_faults = 1);
        let all = advise(&regions(vec![(pid, on_huge)]), (&Walks::default(), None), &machine());
        assert!(all[0].decision.is_none() && all[0].touched.is_none());
        assert_eq!(profile(&all).rows, []);
        assert!(text(&all, true).contains("record it with huge pages off"));
    }

    #[test]
    fn without_addresses_a_mapping_is_as_dense_as_its_memory() {
        let (pid, mut filled) = area(RegionKind::Mapped, 900 * HUGE, &[1, 1]);
        filled.anonymous = Some(HUGE);
        let some = Regions { counted: 5000, ..regions(vec![(pid, filled)]) };
        assert!(!complete(&some));
        let all = advise(&some, (&Walks::default(), None), &machine());
        assert_eq!((all[0].touched, all[0].from), (Some(256), "averages over mappings"));
    }
}
