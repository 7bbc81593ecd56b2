//! A placement policy for a machine of which views are recorded: the drivers of [`super::drive`] behind
//! [`pagemill_model::Policy`], fed with nothing but [`TierView`]s.
//!
//! | policy | who is hot | how much goes where | decides |
//! |---|---|---|---|
//! | `none` | nobody | nothing | nothing |
//! | `hemem`, `memtis` | counted accesses | hottest first | pages |
//! | … `+colloid` | the same | proportional step to equal latencies | pages |
//! | … `+watermark` | the same | binary search for equal latencies | pages |
//! | … `+ucb` | the same | to the share at which the rate of reads is highest | pages |
//! | `tpp` | the kernel, by hint faults | the kernel | that the kernel promotes |
//! | `tpp+colloid` | the same | the kernel, while the default tier is not overloaded | whether it does |
//! | `damon` | the kernel, by regions | the kernel, by how full the default tier is | that the kernel moves |
//!
//! Where a view has no rates of reads, the accesses that were seen stand for them: each tier's part of
//! the reads is its part of all heat, and at least a twentieth. Where it has no latencies, nothing that balances them
//! moves.
//!
//! Always so: a decision names tracked pages only, each once and on its other tier, and no more of them
//! than the view's limit; the same views give the same decisions.
//!
//! Deviations: those of [`super::place::colloid`] and of [`Terms::LIVE`]. A count is a time that a page was seen
//! accessed, not a sampled load. HeMem's rule for a hot page (8 counts, halved at 18) is kept.

use pagemill_model::{Policy, TierDecision, TierView};

use super::compose::{self, Engine};
use super::drive::{Choice, Limits, Sampled};
use super::kind::Terms;
use super::place::Ranking;
use super::track::Counter;
use super::{Load, Loads, Page, Tier};

/// A policy with what it has seen so far.
#[derive(Debug)]
pub struct Live {
    name: String,
    balances: bool,
    engine: Engine,
    /// The tier of each page by its number; none for a number that is free.
    tiers: Vec<Option<Tier>>,
}

impl Live {
    /// The policy of this name, which is one of [`compose::names`]; it has seen nothing.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::under(name, &Terms::LIVE)
    }

    /// The same under other terms.
    #[must_use]
    pub fn under(name: &str, terms: &Terms) -> Option<Self> {
        let composed = compose::compose(name, terms)?;
        let (balances, engine) = (composed.balances, composed.engine);
        Some(Self { name: name.to_owned(), balances, engine, tiers: Vec::new() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it decides page by page, rather than whether the kernel promotes.
    #[must_use]
    pub fn moves_pages(&self) -> bool {
        matches!(self.engine, Engine::Samples(_))
    }

    /// Whether the kernel moves pages by its own DAMON schemes, of which nothing is left to decide.
    #[must_use]
    pub fn leaves_it_to_damon(&self) -> bool {
        matches!(self.engine, Engine::Regions(_))
    }

    /// Whether it needs to know what the tiers' latencies are.
    #[must_use]
    pub fn needs_latency(&self) -> bool {
        self.balances
    }

    /// Takes the pages of a view in.
    fn learn(&mut self, view: &TierView) {
        let list = |list: &Option<Vec<u64>>| list.clone().unwrap_or_default();
        let mut driver = match &mut self.engine {
            Engine::Samples(driver) => Some(driver),
            _ => None,
        };
        for number in list(&view.gone) {
            if let Some(tier) = self.tiers.get_mut(number as usize) {
                *tier = None;
            }
            if let Some(driver) = &mut driver {
                driver.counter().forget(Page(number as u32));
            }
        }
        let (pages, tiers, samples) =
            (list(&view.page), list(&view.page_tier), list(&view.page_samples));
        for (at, &number) in pages.iter().enumerate() {
            // More pages than a page number can name do not fit any machine.
            let Ok(page) = u32::try_from(number) else { continue };
            let known = self.tiers.len().max(page as usize + 1);
            self.tiers.resize(known, None);
            let tier = if tiers.get(at) == Some(&0) { Tier::Default } else { Tier::Alternate };
            self.tiers[page as usize] = Some(tier);
            if let Some(driver) = &mut driver {
                driver.counter().grow(known);
                (0..samples.get(at).copied().unwrap_or(0)).for_each(|_| driver.sample(Page(page)));
            }
        }
    }

    fn pages(&self) -> impl Iterator<Item = (Page, Tier)> + '_ {
        let page = |(at, tier): (usize, &Option<Tier>)| Some((Page(at as u32), (*tier)?));
        self.tiers.iter().enumerate().filter_map(page)
    }
}

/// The least part of the reads that a tier counts for where reads are not counted.
const LEAST_READ: f64 = 0.05;

/// Reads of a program that always has as many in flight: Little's law, in any unit.
fn by_latencies(loads: Loads) -> u64 {
    let share = loads.share();
    let mean = share * loads.default.latency_ns + (1.0 - share) * loads.alternate.latency_ns;
    if mean > 0.0 { (1e12 / mean) as u64 } else { 0 }
}

fn pair(list: Option<&Vec<u64>>) -> Option<(f64, f64)> {
    match list?.as_slice() {
        &[default, alternate] => Some((default as f64, alternate as f64)),
        _ => None,
    }
}

fn describe(loads: Loads) -> String {
    let (default, alternate) = (loads.default.latency_ns, loads.alternate.latency_ns);
    let relation = if default > alternate { '>' } else { '<' };
    format!("default {default:.0} ns {relation} alternate {alternate:.0} ns")
}

impl Policy for Live {
    fn decide(&mut self, view: &TierView) -> TierDecision {
        self.learn(view);
        let mut decision = TierDecision {
            time: view.time,
            quantum: view.quantum,
            policy: Some(self.name.clone()),
            ..TierDecision::default()
        };
        let latencies = pair(view.latency.as_ref());
        let rates = pair(view.reads.as_ref());
        let mut engine = std::mem::replace(&mut self.engine, Engine::Still);
        let loads = self.loads(&mut engine, latencies, rates);
        let why = match &mut engine {
            Engine::Still => "this policy moves nothing".to_owned(),
            Engine::Regions(_) => {
                decision.kernel_promotes = Some(1);
                "the kernel promotes and demotes by DAMON's regions".to_owned()
            }
            Engine::Faults(driver) => {
                if latencies.is_some() {
                    driver.observe(loads);
                }
                let promote = !self.balances || (latencies.is_some() && !driver.overloaded());
                decision.kernel_promotes = Some(promote.into());
                match (self.balances, latencies) {
                    (false, _) => "the kernel promotes by hint faults".to_owned(),
                    (true, None) => "the latencies are not known: the kernel holds".to_owned(),
                    (true, Some(_)) if promote => format!("{}: it promotes", describe(loads)),
                    (true, Some(_)) => format!("{}: it holds", describe(loads)),
                }
            }
            Engine::Samples(_) if self.balances && latencies.is_none() => {
                "the latencies are not known, so there is nothing to balance".to_owned()
            }
            Engine::Samples(driver) => {
                driver.progressed(match rates {
                    Some((default, alternate)) => (default + alternate) as u64,
                    // What was seen accessed says how much memory is hot, not how fast the program is.
                    None => by_latencies(loads),
                });
                let choice = self.choose(driver, view, loads, rates.is_some());
                let why = explain(&choice);
                write_down(choice, &mut decision);
                why
            }
        };
        decision.why = Some(why);
        self.engine = engine;
        decision
    }
}

impl Live {
    /// What the tiers' latencies (picoseconds) and reads (a second) are; reads in proportion to the pages' heat where
    /// they are not counted, which will do for a share.
    fn loads(
        &self,
        engine: &mut Engine,
        latencies: Option<(f64, f64)>,
        rates: Option<(f64, f64)>,
    ) -> Loads {
        let heat = match engine {
            Engine::Samples(driver) if rates.is_none() => {
                let counter = driver.counter();
                let mut sums = (0.0, 0.0);
                for (page, tier) in self.pages() {
                    let heat = f64::from(counter.heat(page));
                    match tier {
                        Tier::Default => sums.0 += heat,
                        Tier::Alternate => sums.1 += heat,
                    }
                }
                // A tier that nothing reads still has a latency: with no weight at all, what it was
                // when it was last read would stand for it forever.
                let least = LEAST_READ * (sums.0 + sums.1);
                (f64::max(sums.0, least), f64::max(sums.1, least))
            }
            _ => (1.0, 1.0),
        };
        let (default, alternate) = latencies.unwrap_or((0.0, 0.0));
        let (default_reads, alternate_reads) = rates.unwrap_or(heat);
        let load = |picoseconds: f64, per_second: f64| Load {
            latency_ns: picoseconds / 1e3,
            reads_per_ns: per_second / 1e9,
        };
        Loads { default: load(default, default_reads), alternate: load(alternate, alternate_reads) }
    }

    /// Which pages change places, by a policy that decides page by page; `counted`: reads are.
    fn choose(&self, driver: &mut Sampled, view: &TierView, loads: Loads, counted: bool) -> Choice {
        let room = view.room.clone().unwrap_or_default();
        let free = |tier: usize| room.get(tier).map_or(0, |&free| free as usize);
        let used = self.pages().filter(|(_, tier)| *tier == Tier::Default).count();
        let limits = Limits {
            pages: view.limit.map_or(0, |limit| limit as usize),
            page_bytes: view.page_size.map_or(4096.0, |bytes| bytes.0 as f64),
            quantum_ns: match counted {
                true => view.length.map_or(0.0, |length| length.0 as f64),
                false => f64::INFINITY,
            },
        };
        let rank = |counter: &dyn Counter| {
            let mut ranking = Ranking::of_pages(self.pages(), |page| counter.heat(page));
            (ranking.default_free, ranking.alternate_free) = (free(0), free(1));
            ranking
        };
        driver.decide_among(loads, used + free(0), limits, rank)
    }
}

/// What was chosen, as a row.
fn write_down(choice: Choice, decision: &mut TierDecision) {
    decision.share = Some((choice.loads.share() * 1e6).round() as u64);
    decision.aim = choice.shift.map(|shift| {
        let part = match shift.from {
            Tier::Default => -shift.size,
            Tier::Alternate => shift.size,
        };
        ((choice.loads.share() + part).clamp(0.0, 1.0) * 1e6).round() as u64
    });
    let (mut pages, mut to) = (Vec::new(), Vec::new());
    for swap in choice.swaps {
        let there = u64::from(swap.from == Tier::Default);
        // What comes back makes the room, so it goes first.
        for (page, tier) in
            swap.back.map(|page| (page, 1 - there)).into_iter().chain([(swap.moved, there)])
        {
            pages.push(u64::from(page.0));
            to.push(tier);
        }
    }
    (decision.page, decision.to) = (Some(pages), Some(to));
}

fn explain(choice: &Choice) -> String {
    match choice.shift {
        None if choice.swaps.is_empty() => "no hot page is on the alternate tier".to_owned(),
        None => "hot pages on the alternate tier".to_owned(),
        Some(shift) if shift.size <= 0.0 => format!("{}: balanced", describe(choice.loads)),
        Some(shift) => {
            let to = match shift.from {
                Tier::Default => "alternate",
                Tier::Alternate => "default",
            };
            let percent = shift.size * 100.0;
            format!("{}: {percent:.1} % of the reads should go {to}", describe(choice.loads))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_model::{Bytes, Nanos};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Pages 0 to 7 on the default tier, 8 to 15 on the other, and what was seen of them.
    fn view(samples: &[u64], latency: Option<[u64; 2]>, room: [u64; 2], limit: u64) -> TierView {
        let pages = 0..samples.len() as u64;
        TierView {
            time: Nanos(1),
            length: Some(Nanos(1_000_000_000)),
            latency: latency.map(|pair| pair.to_vec()),
            page_size: Some(Bytes(pagemill_model::page::HUGE)),
            room: Some(room.to_vec()),
            limit: Some(limit),
            page: Some(pages.clone().collect()),
            page_tier: Some(pages.map(|page| u64::from(page >= 8)).collect()),
            page_samples: Some(samples.to_vec()),
            ..TierView::default()
        }
    }

    #[test]
    fn hot_pages_of_the_alternate_tier_come_to_the_default_one() {
        let mut policy = Live::named("hemem").unwrap();
        let mut samples = [0; 16];
        samples[12] = 9;
        let decision = policy.decide(&view(&samples, None, [1, 9], 10));
        assert_eq!(
            (decision.page.unwrap(), decision.to.unwrap()),
            (vec![12], vec![0]),
            "{:?}",
            decision.why
        );
        // Without room, a cold one makes place first.
        let mut policy = Live::named("hemem").unwrap();
        let decision = policy.decide(&view(&samples, None, [0, 9], 10));
        assert_eq!(decision.to.unwrap(), vec![1, 0]);
        assert_eq!(decision.page.unwrap()[1], 12);
    }

    #[test]
    fn under_colloid_pages_leave_a_default_tier_that_is_slower_and_come_to_one_that_is_faster() {
        let samples: Vec<u64> = (0..16).map(|page| if page % 8 < 4 { 9 } else { 0 }).collect();
        for (latency, to) in [([300_000, 140_000], 1), ([70_000, 140_000], 0)] {
            let mut policy = Live::named("hemem+colloid").unwrap();
            let decision = policy.decide(&view(&samples, Some(latency), [9, 9], 10));
            let moved = decision.to.unwrap();
            let coming = moved.iter().filter(|tier| **tier == to).count();
            assert!(coming * 2 >= moved.len() && coming > 0, "{moved:?} {:?}", decision.why);
        }
    }

    #[test]
    fn a_default_tier_that_was_emptied_is_filled_again_when_it_answers_faster() {
        let mut policy = Live::named("hemem+watermark").unwrap();
        // Eight hot pages on the default tier, eight cold ones on the other.
        let samples: Vec<u64> = (0..16).map(|page| if page < 8 { 9 } else { 0 }).collect();
        let mut tiers: Vec<u64> = (0..16).map(|page| u64::from(page >= 8)).collect();
        let mut run = |latency: [u64; 2], quanta: usize| {
            for _ in 0..quanta {
                let mut view = view(&samples, Some(latency), [99, 99], 16);
                view.page_tier = Some(tiers.clone());
                let decision = policy.decide(&view);
                for (page, to) in decision
                    .page
                    .unwrap_or_default()
                    .into_iter()
                    .zip(decision.to.unwrap_or_default())
                {
                    tiers[page as usize] = to;
                }
            }
            tiers.iter().filter(|tier| **tier == 0).count()
        };
        let emptied = run([300_000, 140_000], 30);
        assert!(emptied <= 1, "{emptied} pages stayed");
        let filled = run([70_000, 140_000], 30);
        assert!(filled >= 7, "{filled} pages came back");
    }

    #[test]
    fn without_latencies_colloid_moves_nothing_and_says_so() {
        let mut policy = Live::named("memtis+watermark").unwrap();
        let decision = policy.decide(&view(&[9; 16], None, [9, 9], 10));
        assert_eq!(decision.page, None);
        assert!(decision.why.unwrap().contains("not known"));
    }

    #[test]
    fn the_kernel_promotes_unless_the_default_tier_is_overloaded() {
        for (name, latency, promotes) in [
            ("tpp", Some([300_000, 140_000]), 1),
            ("tpp", None, 1),
            ("tpp+colloid", Some([300_000, 140_000]), 0),
            ("tpp+colloid", Some([70_000, 140_000]), 1),
            ("tpp+colloid", None, 0),
        ] {
            let mut policy = Live::named(name).unwrap();
            let decision = policy.decide(&view(&[0; 16], latency, [0, 0], 1));
            assert_eq!(decision.kernel_promotes, Some(promotes), "{name} {latency:?}");
            assert_eq!(decision.page, None);
        }
    }

    #[test]
    fn a_page_that_is_gone_is_never_named_again_until_its_number_is_given_again() {
        let mut policy = Live::named("hemem").unwrap();
        let mut samples = [0; 16];
        samples[12] = 17;
        policy.decide(&view(&samples, None, [0, 0], 0));
        let mut gone = view(&[], None, [9, 9], 10);
        gone.gone = Some(vec![12]);
        assert_eq!(policy.decide(&gone).page, Some(vec![]));
        // The new bearer of the number starts without heat.
        assert_eq!(policy.decide(&view(&[0; 16], None, [9, 9], 10)).page, Some(vec![]));
    }

    #[test]
    fn every_policy_has_its_name_and_no_other_is_known() {
        for name in compose::names() {
            assert_eq!(Live::named(&name).unwrap().name(), name);
        }
        assert!(Live::named("lru").is_none() && Live::named("none+colloid").is_none());
    }

    proptest! {
        #[test]
        fn decisions_are_bounded_name_known_pages_once_and_repeat_over_the_same_views(
            quanta in prop::collection::vec(
                (prop::collection::vec(0_u64..20, 16), 50_000_u64..400_000, 50_000_u64..400_000,
                 0_u64..4, 0_u64..12, prop::option::of((0_u64..1 << 30, 0_u64..1 << 30))),
                1..12),
            which in 0..compose::names().len(),
        ) {
            let name = &compose::names()[which];
            let (mut policy, mut again) = (Live::named(name).unwrap(), Live::named(name).unwrap());
            let mut tiers: BTreeMap<u64, u64> = (0..16).map(|p| (p, u64::from(p >= 8))).collect();
            for (samples, default, alternate, room, limit, reads) in quanta {
                let mut view = view(&samples, Some([default, alternate]), [room, 9], limit);
                view.page_tier = Some(tiers.values().copied().collect());
                view.reads = reads.map(|(default, alternate)| vec![default, alternate]);
                let decision = policy.decide(&view);
                prop_assert_eq!(&decision, &again.decide(&view));
                let (pages, to) = (decision.page.unwrap_or_default(), decision.to.unwrap_or_default());
                prop_assert_eq!(pages.len(), to.len());
                prop_assert!(pages.len() as u64 <= limit);
                for (page, to) in pages.into_iter().zip(to) {
                    prop_assert_ne!(tiers.insert(page, to), Some(to));
                }
                prop_assert_eq!(tiers.len(), 16);
            }
        }
    }
}
