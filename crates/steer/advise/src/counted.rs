//! What huge pages do to a command, as the kernel and the processor count it: the levers that have none of them and
//! more of them, beside the command as it is.

use pagemill_control::run_cost::processor;
use pagemill_kernel::memory::huge_costs::HugeCosts;
use pagemill_kernel::{Linux, memory::huge_costs};
use pagemill_report::draw::chart::number;
use pagemill_report::draw::text;
use serde_json::{Map, Value, json};

use crate::answer::changed;
use crate::arm::Arm;
use crate::count::Count;
use crate::lever::Lever as _;
use crate::levers::{REGISTRY, malloc_huge::MallocHuge, never::Never};
use crate::rule::{Change, Figures, Quantity, Runs};
use crate::session::Advice;

/// The levers that are tried.
pub fn levers() -> Vec<String> {
    vec![Never.name().into(), MallocHuge.name().into()]
}

/// What is shown: wall time, and all that is counted.
fn quantities() -> impl Iterator<Item = (&'static str, Quantity)> {
    let counted = Count::ALL.map(|what| (what.name(), Quantity::Counted(what)));
    [("seconds", Quantity::Wall)].into_iter().chain(counted)
}

/// What an answer says of huge pages.
pub struct Counted<'a> {
    advice: &'a Advice,
    notes: Vec<String>,
    thp: Option<String>,
    pmu: bool,
    /// What page walks cost, where the processor does not count them.
    walks: Option<HugeCosts>,
}

impl<'a> Counted<'a> {
    /// Of an answer. Where the processor does not count, what a page walk costs is measured by dependent random reads.
    ///
    /// # Errors
    /// That cannot be measured.
    pub fn of(linux: &Linux, advice: &'a Advice) -> anyhow::Result<Self> {
        let thp = linux.thp_enabled().ok().map(|choice| choice.active);
        let mut notes = advice.notes.clone();
        if let Some(active) = &thp {
            notes.push(format!("the system's setting of huge pages is {active}"));
        }
        let (pmu, mut walks) = (processor(), None);
        if let Err(error) = &pmu {
            notes.push(format!(
                "the processor's counters are not available: {}; so no TLB and cache misses",
                error.reason()
            ));
            let costs = huge_costs::measure(linux)?;
            match (costs.read_base_ps, costs.read_huge_ps) {
                (Some(base), Some(huge)) => notes.push(format!(
                    "page walks by calibration: a dependent random read in 256 MiB takes {:.1} ns on base pages and \
                     {:.1} ns on huge ones",
                    base as f64 / 1e3,
                    huge as f64 / 1e3
                )),
                _ => notes.extend(costs.not_measured.iter().map(|(what, why)| format!("{what}: {why}"))),
            }
            walks = Some(costs);
        }
        Ok(Self { advice, notes, thp, pmu: pmu.is_ok(), walks })
    }

    /// How many runs failed.
    pub fn failed(&self) -> usize {
        self.advice.failed.len()
            + self.advice.arms.iter().map(|arm| arm.failed.len()).sum::<usize>()
    }

    /// As text.
    pub fn text(&self) -> String {
        let levers = self.advice.levers();
        let runs = Runs { base: &self.advice.base, levers: &levers, ..Runs::default() };
        let tried: Vec<usize> = (0..levers.len()).filter(|arm| !levers[*arm].is_empty()).collect();
        let mut header = vec!["median of a run", "as it is"];
        header.extend(tried.iter().map(|arm| self.advice.arms[*arm].lever.name()));
        let cell = |arm: usize, quantity| match runs.change(arm, quantity) {
            Some(change) => changed(&change),
            None => runs.median(Some(arm), quantity).map_or_else(|| "-".into(), number),
        };
        let rows = quantities().filter_map(|(name, quantity)| {
            let mut row = vec![name.replace('_', " "), number(runs.median(None, quantity)?)];
            row.extend(tried.iter().map(|arm| cell(*arm, quantity)));
            Some(row)
        });
        let mut text = text::table(&header, &rows.collect::<Vec<_>>());
        for arm in &self.advice.arms {
            if let Some((what, why)) = arm.state.failure() {
                text.push_str(&format!("{} {what}: {why}\n", arm.lever.name()));
            }
        }
        self.notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
        format!("{text}{}.\n", self.advice.conclusion())
    }

    /// As JSON. `ratio` is that of the arm with most huge pages by that without.
    pub fn json(&self) -> Value {
        let Self { advice, .. } = self;
        let levers = advice.levers();
        let of = |name: &str| {
            let at = REGISTRY.iter().position(|lever| lever.name() == name);
            at.map_or(&[][..], |at| &levers[at])
        };
        let (off, on) = (of(Never.name()), of(MallocHuge.name()));
        let on = if on.is_empty() { &advice.base } else { on };
        let by_off = [advice.base.clone(), on.to_vec()];
        let metrics = quantities().filter_map(|(name, quantity)| {
            let median =
                |runs: &[Figures]| Runs { base: runs, ..Runs::default() }.median(None, quantity);
            let change =
                |base, at| Runs { base, levers: &by_off, ..Runs::default() }.change(at, quantity);
            let ratio = |change: Option<Change>| change.map(|change| change.ratio);
            let ends = |change: Option<Change>| {
                change.and_then(|change| change.interval().map(<[f64; 2]>::from))
            };
            let (as_is, most, more) = (change(off, 0), change(off, 1), change(&advice.base, 1));
            let value = json!({
                "thp_off": median(off), "as_is": median(&advice.base), "thp_on": median(on),
                "ratio": ratio(most), "interval": ends(most),
                "as_is_ratio": ratio(as_is), "as_is_interval": ends(as_is),
                "more_ratio": ratio(more), "more_interval": ends(more),
            });
            median(&advice.base).map(|_| (name.to_owned(), value))
        });
        let mut failed = Map::from_iter([("as is".to_owned(), counts(&advice.failed))]);
        let broken = |arm: &Arm| {
            (!arm.failed.is_empty()).then(|| (arm.lever.name().to_owned(), counts(&arm.failed)))
        };
        let broken = Map::from_iter(advice.arms.iter().filter_map(broken));
        // Under the names that the metrics have, too.
        for (name, lever) in [("thp-off", Never.name()), ("thp-on", MallocHuge.name())] {
            failed.insert(name.to_owned(), broken.get(lever).cloned().unwrap_or_else(|| json!({})));
        }
        failed.extend(broken);
        json!({
            "command": advice.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "runs": advice.base.len(),
            "thp": self.thp,
            "pmu": self.pmu,
            "read_base_ps": self.walks.as_ref().and_then(|walks| walks.read_base_ps),
            "read_huge_ps": self.walks.as_ref().and_then(|walks| walks.read_huge_ps),
            "failed_runs": self.failed(),
            "failed": failed,
            "metrics": metrics.collect::<Map<_, _>>(),
            "verdict": advice.conclusion(),
            "notes": self.notes,
        })
    }
}

/// How often each of them is there.
fn counts(all: &[String]) -> Value {
    let count = |how: &String| (how.clone(), json!(all.iter().filter(|one| *one == how).count()));
    Value::Object(all.iter().map(count).collect())
}
