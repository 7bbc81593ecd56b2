//! Huge page policies side by side on a simulated zone, TLB and helper.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_control::costs::Calibration;
use pagemill_launch::progress::{Progress, minutes};
use pagemill_model::page::{HUGE, PER_HUGE};
use pagemill_model::{Nanos, whole};
use pagemill_policy::huge::profile::{Comparator, Constraint, Kind, Profile, ProfileRow, Quantity};
use pagemill_policy::huge::{Costs, Figure, Policy, Section, Unit, find, names};
use pagemill_sim::huge::{self, Outcome, Setup};
use pagemill_sim::tlb;
use serde_json::{Value, json};

pub use super::huge_recorded::HugeProgram;
use pagemill_launch::meant::meant;

/// Cycles in a microsecond of the simulated processor.
const MHZ: u64 = 2600;

/// What runs are made under, as the options of `simulate --huge` name it.
#[derive(Clone, Debug)]
pub struct HugeConditions {
    /// Share of the pageblocks that begin with a page in use.
    pub fragmented: f64,
    /// Whether those pages cannot be moved.
    pub pinned: bool,
    /// What the policies know beforehand.
    pub profile: Option<Profile>,
    /// What an attempt at compaction takes besides moving and scanning pages, if not what the model says.
    pub compaction: Option<Nanos>,
    /// Costs of mechanisms and walks.
    pub prices: (Costs, tlb::Config),
    /// The same seed gives the same run.
    pub seed: u64,
}

/// The policies of these names.
///
/// # Errors
/// There is none of a name.
pub fn policies(asked: &[String]) -> Result<Vec<&'static dyn Policy>> {
    let named = |name: &String| {
        find(name).with_context(|| {
            format!(
                "there is no huge page policy {name:?}{}; valid: {}",
                meant(name, names()),
                names().collect::<Vec<_>>().join(", ")
            )
        })
    };
    asked.iter().map(named).collect()
}

impl HugeConditions {
    /// One policy's run of a program.
    pub fn setup(&self, program: &HugeProgram, policy: &'static dyn Policy) -> Setup {
        let workload = program.workload.clone();
        let (costs, tlb) = self.prices;
        Setup {
            policy,
            profile: self.profile.clone(),
            // Twice the workload, and room to spare.
            zone: u32::try_from((workload.pages * 2).max(64 * PER_HUGE)).unwrap_or(u32::MAX >> 1),
            fragmented: (self.fragmented * 1000.0).round() as u64,
            pinned: self.pinned,
            costs,
            attempt: attempt(self.compaction),
            tlb,
            mhz: MHZ,
            seed: self.seed,
            workload,
        }
    }

    /// The outcomes of these policies as a table.
    pub fn text(&self, program: &HugeProgram, asked: &[String], rows: &[Outcome]) -> String {
        let (load, seed) = (&program.workload, self.seed);
        let mut text = format!(
            "{} on {} regions of 2 MiB, fragmented {}{}, modelled (one run, seed {seed})\n{:<14} {:>9} {:>9} {:>9} \
             {:>9} {:>9} {:>9} {:>6} {:>7} {:>9} {:>7}\n",
            load.name,
            load.pages / PER_HUGE,
            self.fragmented,
            if self.pinned { " and pinned" } else { "" },
            "policy",
            "time",
            "faults",
            "walks",
            "p99",
            "p99.9",
            "longest",
            "huge",
            "bloat",
            "helper",
            "stalls"
        );
        for (name, row) in asked.iter().zip(rows) {
            let [_, p99, p999, longest] = row.percentiles.map(|ns| Nanos(ns).to_string());
            let huge = row.huge as f64 * 100.0 / row.regions.max(1) as f64;
            let bloat = row.bloat as f64 * 100.0 / row.resident.max(1) as f64;
            let [time, faults, walks, helper] =
                [row.time, row.faults, row.walks, row.helper].map(|ns| Nanos(ns).to_string());
            text += &format!(
                "{name:<14} {time:>9} {faults:>9} {walks:>9} {p99:>9} {p999:>9} {longest:>9} {huge:>4.0} % \
                 {bloat:>5.1} % {helper:>9} {:>7}\n",
                row.stalls
            );
        }
        text + "time: of the program; huge: regions on huge pages at the end; bloat: resident and never touched; \
                stalls: faults that compacted\n"
    }
}

/// What an attempt at compaction takes besides moving and scanning pages, ns.
fn attempt(compaction: Option<Nanos>) -> u64 {
    compaction.map_or(huge::ATTEMPT_NS, |time| time.0)
}

/// How long all runs together may take.
#[derive(Debug)]
pub struct TimeLimit {
    began: Instant,
    limit: Duration,
}

impl TimeLimit {
    /// From this moment on.
    pub fn of(limit: Nanos) -> Self {
        Self { began: Instant::now(), limit: limit.into() }
    }

    /// Runs one, and says how far it is.
    ///
    /// # Errors
    /// The time is over.
    pub fn run(&self, setup: &Setup) -> Result<Outcome> {
        let (policy, began) = (setup.policy.name(), Instant::now());
        let mut line = Progress::new(policy);
        let (mut part, mut left) = (0.0, Duration::ZERO);
        let outcome = setup.run_while(&mut |done, all| {
            part = (done as f64 / all.max(1) as f64).clamp(1e-6, 1.0);
            left = began.elapsed().mul_f64((1.0 - part) / part);
            line.say(&format!("{:.0} % done, {} left", part * 100.0, minutes(left)));
            self.began.elapsed() < self.limit
        });
        drop(line);
        outcome.with_context(|| {
            format!(
                "{} cannot be simulated within --time-limit {}: {policy} was {:.0} % done then, and its rest would \
                 take \
                 {} more",
                setup.workload.name,
                minutes(self.limit),
                (part * 100.0).floor(),
                minutes(left)
            )
        })
    }
}

/// A tenth of a second: no mechanism costs as much, and sums of it stay numbers.
const DEAREST: u64 = 100_000_000;

/// What the mechanisms and walks cost: as measured on the machine of a file, or as the model has it.
///
/// # Errors
/// Compaction takes longer than it does anywhere; the file is not what `plan --costs --json` prints, or has no cost of
/// base and huge pages.
pub fn prices(file: Option<&Path>, compaction: Option<Nanos>) -> Result<(Costs, tlb::Config)> {
    ensure!(
        attempt(compaction) <= DEAREST,
        "--compaction {} is out of range; valid: 0 to {}",
        Nanos(attempt(compaction)).plain(),
        Nanos(DEAREST).plain()
    );
    let (mut costs, mut tlb) = (
        Costs { stall: Figure::Modelled(attempt(compaction) + huge::MOVING_NS), ..huge::WARM },
        tlb::Config::default(),
    );
    let Some(path) = file else { return Ok((costs, tlb)) };
    let text = whole::read(path, whole::TEXT)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let known: Calibration = serde_json::from_slice(&text).with_context(|| {
        format!("{} is not what `pagemill plan --costs --json` prints", path.display())
    })?;
    let there = known.costs();
    let all = [there.base, there.huge, there.medium, there.collapse, there.deliver, there.fetch];
    let values = all.into_iter().chain([there.walk]).filter_map(|figure| figure.value());
    ensure!(
        values.max().is_none_or(|most| most <= DEAREST),
        "{} has a cost of more than {DEAREST} ns, which nothing costs",
        path.display()
    );
    if there.base.value().is_none() || there.huge.value().is_none() {
        bail!(
            "{} has no costs of base and huge pages (pagemill plan --costs --json > FILE, where huge pages can \
             be had)",
            path.display()
        );
    }
    if let Some(walk) = there.walk.value() {
        tlb.walk_base_ps = tlb.walk_huge_ps + walk * 1000;
    }
    let or = |figure: Figure, other: Figure| if figure.value().is_some() { figure } else { other };
    costs = Costs {
        base: there.base,
        huge: there.huge,
        // What the file does not have stays as much above a base page as in the model.
        medium: or(there.medium, scaled(costs.medium, there.base, costs.base)),
        collapse: or(there.collapse, costs.collapse),
        deliver: or(there.deliver, costs.deliver),
        fetch: or(there.fetch, costs.fetch),
        walk: there.walk,
        ..costs
    };
    Ok((costs, tlb))
}

/// `figure` times `there` over `here`.
fn scaled(figure: Figure, there: Figure, here: Figure) -> Figure {
    let (Some(value), Some(there), Some(here)) = (figure.value(), there.value(), here.value())
    else {
        return Figure::Absent;
    };
    Figure::Modelled(value * there / here.max(1))
}

/// The time in walks that huge pages spared each region, in cycles as the published profiles count them.
pub fn perfect(never: &Outcome, always: &Outcome) -> Profile {
    let row = |(at, (base, huge)): (u64, (&u64, &u64))| {
        let bound = |comparator, value| Constraint::Number(Quantity::SectionOff, comparator, value);
        ProfileRow {
            kind: Kind::Huge,
            section: Section::Heap,
            benefit: base.saturating_sub(*huge).saturating_mul(MHZ) / 1_000_000,
            constraints: vec![
                bound(Comparator::Greater, at * HUGE),
                bound(Comparator::Less, (at + 1) * HUGE),
            ],
            why: None,
        }
    };
    let rows = (0..).zip(never.walk_ps.iter().zip(&always.walk_ps)).map(row);
    Profile { unit: Unit::Cycles, rows: rows.collect() }
}

/// What came of a policy, as JSON.
pub fn json(name: &str, row: &Outcome) -> Value {
    json!({
        "policy": name,
        "time_ns": row.time,
        "faults_ns": row.faults,
        "walks_ns": row.walks,
        "fault_count": row.fault_count,
        "fault_p50_ns": row.percentiles[0],
        "fault_p99_ns": row.percentiles[1],
        "fault_p999_ns": row.percentiles[2],
        "fault_longest_ns": row.percentiles[3],
        "helper_ns": row.helper,
        "huge_regions": row.huge,
        "regions": row.regions,
        "bloat_pages": row.bloat,
        "resident_pages": row.resident,
        "stalls": row.stalls,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pagemill_kernel::memory::huge_costs::HugeCosts;

    use super::*;

    #[test]
    fn costs_of_a_machine_take_the_place_of_the_models() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("costs.json");
        let prices = || prices(Some(&path), Some(Nanos(2_000_000)));
        let measured = HugeCosts {
            base_ns: Some(2_200),
            huge_ns: Some(400_000),
            read_base_ps: Some(300_000),
            read_huge_ps: Some(180_000),
            ..HugeCosts::default()
        };
        let known = Calibration { measured, ..Calibration::default() };
        fs::write(&path, serde_json::to_vec(&known).unwrap()).unwrap();
        let (costs, tlb) = prices().unwrap();
        assert_eq!((costs.base, costs.huge), (Figure::Measured(2_200), Figure::Measured(400_000)));
        assert_eq!(costs.medium, Figure::Modelled(9_000), "twice the model's, as a base page is");
        assert_eq!(costs.stall, Figure::Modelled(2_140_000));
        assert_eq!(tlb.walk_base_ps, tlb.walk_huge_ps + 120_000);
        fs::write(&path, "{}").unwrap();
        let error = prices().unwrap_err().to_string();
        assert!(error.contains("has no costs of base and huge pages"), "{error}");
        fs::write(&path, "huge,heap,1\n").unwrap();
        let error = prices().unwrap_err().to_string();
        assert!(error.contains("is not what `pagemill plan --costs --json` prints"), "{error}");
    }
}
