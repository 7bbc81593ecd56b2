//! Huge page decisions as rows of a recording, and back: what makes the replay law checkable.
//!
//! Always true: for every decision that was recorded, [`replay`] finds the same action, cost, benefit and why; numbers
//! beyond 2^63 are cut off there, as Parquet's integers are, before they are decided on.

use pagemill_model::{HugeDecision, Nanos, Pid};
use pagemill_policy::huge::trials::Trials;
use pagemill_policy::huge::{Costs, Decision, Figure, Moment, Policy, Section, Unit, View, find};

/// The figures of a view: column, field of the row, its type there, field of the view.
macro_rules! figures {
    ($apply:ident) => {
        $apply! {
            "present_pages" present number present,
            "expected_pages" expected number expected,
            "accessed_pages" accessed number accessed,
            "zero_pages" zeros number zeros,
            "profile_huge" profile_huge number profile_huge,
            "profile_eager" profile_eager number profile_eager,
            "free_huge_blocks" free_huge number free_huge,
            "stock_regions" pool number pool,
            "stock_used_regions" pool_used number pool_used,
            "load_hundredths" load number load,
            "unusable_permille" unusable number unusable,
            "used_permille" used number used,
            "bloat_permille" bloat number bloat,
            "cold_permille" cold number cold,
            "growth_bytes_per_ms" growth number growth,
            "cost_base_ns" cost_base nanos costs.base,
            "cost_base_cold_ns" cost_base_cold nanos costs.base_cold,
            "cost_medium_ns" cost_medium nanos costs.medium,
            "cost_huge_ns" cost_huge nanos costs.huge,
            "cost_huge_cold_ns" cost_huge_cold nanos costs.huge_cold,
            "cost_collapse_ns" cost_collapse nanos costs.collapse,
            "cost_deliver_ns" cost_deliver nanos costs.deliver,
            "cost_stall_ns" cost_stall nanos costs.stall,
            "cost_fetch_ns" cost_fetch nanos costs.fetch,
            "cost_walk_ns" cost_walk nanos costs.walk,
        }
    };
}

/// Numbers that a recording can hold.
const LARGEST: u64 = i64::MAX as u64;

fn storable(figure: Figure) -> Figure {
    match figure {
        Figure::Absent => Figure::Absent,
        Figure::Measured(value) => Figure::Measured(value.min(LARGEST)),
        Figure::Modelled(value) => Figure::Modelled(value.min(LARGEST)),
    }
}

fn number(value: u64) -> u64 {
    value
}

fn nanos(value: u64) -> Nanos {
    Nanos(value)
}

/// A decision of `policy` at `time`, and its row. What was decided on is what the row can hold.
pub fn decide(
    policy: &dyn Policy,
    view: &View,
    time: Nanos,
    pid: Option<Pid>,
) -> (Decision, HugeDecision) {
    let mut view = *view;
    macro_rules! cut {
        ($($column:literal $field:ident $kind:ident $($path:ident).+,)*) => {
            $(view.$($path).+ = storable(view.$($path).+);)*
        };
    }
    figures!(cut);
    let decision = policy.decide(&view);
    let mut row = HugeDecision {
        time,
        pid: pid.map(u64::from),
        policy: Some(policy.name().to_owned()),
        address: Some(view.address.min(LARGEST)),
        section: Some(view.section.name().to_owned()),
        moment: Some(view.moment.name().to_owned()),
        huge: Some(view.huge.into()),
        advised: Some(view.advised.into()),
        cpus: Some(view.cpus.min(LARGEST)),
        mhz: Some(view.mhz.min(LARGEST)),
        batch: Some(view.batch.min(LARGEST)),
        profile_unit: Some(view.unit.name().to_owned()),
        action: Some(decision.action.name().to_owned()),
        weighed: (decision.weighed != decision.action).then(|| decision.weighed.name().to_owned()),
        cost: Some(decision.estimate.cost().min(LARGEST)),
        benefit: Some(decision.estimate.benefit().min(LARGEST)),
        unit: Some(decision.estimate.unit.name().to_owned()),
        why: Some(decision.to_string()),
        trials: (view.trials != Trials::default()).then(|| view.trials.to_string()),
        ..HugeDecision::default()
    };
    let mut modelled = Vec::new();
    macro_rules! store {
        ($($column:literal $field:ident $kind:ident $($path:ident).+,)*) => {
            $(
                row.$field = view.$($path).+.value().map($kind);
                if matches!(view.$($path).+, Figure::Modelled(_)) {
                    modelled.push($column);
                }
            )*
        };
    }
    figures!(store);
    row.modelled = Some(modelled.join(" "));
    (decision, row)
}

/// The view in a row; the error names the column that is missing or has a word that no one knows.
///
/// # Errors
/// The column that is missing, or has a word that no one knows.
pub fn view(row: &HugeDecision) -> Result<View, String> {
    fn word<T: Copy>(
        column: &str,
        text: Option<&String>,
        all: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Result<T, String> {
        let text = text.ok_or_else(|| format!("{column} is absent"))?;
        all.iter()
            .copied()
            .find(|known| name(*known) == text)
            .ok_or_else(|| format!("{column} is {text:?}, which this pagemill does not know"))
    }
    let mut view = View {
        moment: word("moment", row.moment.as_ref(), &Moment::ALL, Moment::name)?,
        address: row.address.ok_or("address is absent")?,
        section: word("section", row.section.as_ref(), &Section::ALL, Section::name)?,
        huge: row.huge.ok_or("huge is absent")? != 0,
        advised: row.advised.ok_or("advised is absent")? != 0,
        cpus: row.cpus.ok_or("cpus is absent")?,
        mhz: row.mhz.ok_or("mhz is absent")?,
        batch: row.batch.ok_or("batch_regions is absent")?,
        unit: word(
            "profile_unit",
            row.profile_unit.as_ref(),
            &[Unit::Cycles, Unit::Nanos, Unit::Rule],
            Unit::name,
        )?,
        costs: Costs::default(),
        trials: match &row.trials {
            Some(text) => text.parse().map_err(|why| format!("trials is {text:?}: {why}"))?,
            None => Trials::default(),
        },
        ..View::default()
    };
    let modelled: Vec<&str> =
        row.modelled.as_deref().unwrap_or_default().split_whitespace().collect();
    macro_rules! load {
        ($($column:literal $field:ident $kind:ident $($path:ident).+,)*) => {
            $(view.$($path).+ = match row.$field {
                None => Figure::Absent,
                Some(value) if modelled.contains(&$column) => Figure::Modelled(value.into()),
                Some(value) => Figure::Measured(value.into()),
            };)*
        };
    }
    figures!(load);
    Ok(view)
}

/// Decides a recorded decision again and says how the outcome differs; `None` if it does not.
///
/// # Errors
/// As of [`view`]; the policy is not known.
pub fn replay(row: &HugeDecision) -> Result<Option<String>, String> {
    let name = row.policy.as_deref().ok_or("policy is absent")?;
    let policy = find(name)
        .ok_or_else(|| format!("policy is {name:?}, which this pagemill does not know"))?;
    let (again, same) = decide(policy, &view(row)?, row.time, None);
    let told = |row: &HugeDecision| {
        (row.action.clone(), row.weighed.clone(), row.cost, row.benefit, row.unit.clone())
    };
    Ok((told(&same) != told(row)).then(|| {
        let was = row.why.as_deref().unwrap_or("no why");
        format!("{name} decided {was}; now {again}")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_model::event::Recorded as _;
    use pagemill_model::recording::{Meta, Reader, Writer};
    use pagemill_model::{Event, Source as _};
    use pagemill_policy::huge::Action;
    use pagemill_policy::huge::POLICIES;

    /// Figures of all three kinds in all places, a different mixture for each seed.
    fn scrambled(seed: u64) -> View {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut view = View {
            moment: Moment::ALL[(next() % 4) as usize],
            address: next() << 21,
            section: Section::ALL[(next() % 4) as usize],
            huge: next() % 3 == 0,
            advised: next() % 2 == 0,
            cpus: 1 + next() % 8,
            mhz: next() % 4000,
            batch: next() % 9,
            unit: if next() % 2 == 0 { Unit::Cycles } else { Unit::Nanos },
            ..View::default()
        };
        if next() % 2 == 0 {
            let mask = next();
            view.trials = Trials::of(|action| mask >> (action as u64) & 1 == 1);
            (view.trials.spent, view.trials.charged) = (next(), next() % 1_000_000);
            let offered: Vec<Action> = view.trials.offered().collect();
            for action in offered {
                let costs = 1 + next() % 900_000;
                let tally = view.trials.tally_mut(action).unwrap();
                (0..next() % 12).for_each(|_| tally.add(costs + next() % (costs / 4 + 1)));
            }
        }
        macro_rules! fill {
            ($($column:literal $field:ident $kind:ident $($path:ident).+,)*) => {
                $(view.$($path).+ = match next() % 4 {
                    0 => Figure::Absent,
                    1 => Figure::Measured(next() % 600),
                    2 => Figure::Modelled(next() % 2_000_000),
                    _ => Figure::Measured(u64::MAX - next()),
                };)*
            };
        }
        figures!(fill);
        view
    }

    #[test]
    fn a_recorded_decision_replays_to_itself_through_the_file() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("rec");
        let mut writer = Writer::create(&path, Meta::default(), false, None).unwrap();
        let mut count = [0; Action::ALL.len()];
        for seed in 0..2000 {
            let policy = POLICIES[seed as usize % POLICIES.len()];
            let (decision, row) = decide(policy, &scrambled(seed), Nanos(seed), Some(Pid(1)));
            count[Action::ALL.iter().position(|a| *a == decision.action).unwrap()] += 1;
            writer.event(&row.into_event()).unwrap();
        }
        writer.finish(Nanos(9999)).unwrap();
        assert!(count.iter().filter(|n| **n > 0).count() >= 8, "{count:?}");
        let mut reader = Reader::open(&path).unwrap();
        let mut read = 0;
        while let Some(event) = reader.next_event().unwrap() {
            let Event::Huge(row) = event else { panic!("another kind of event") };
            assert_eq!(replay(&row), Ok(None));
            read += 1;
        }
        assert_eq!(read, 2000);
    }

    #[test]
    fn a_row_that_says_otherwise_is_found() {
        let policy = find("linux-always").unwrap();
        let (decision, row) = decide(policy, &View::default(), Nanos(0), None);
        assert_eq!((decision.action, row.action.as_deref()), (Action::Huge, Some("huge")));
        let forged = HugeDecision { action: Some("base".into()), ..row.clone() };
        assert!(replay(&forged).unwrap().unwrap().contains("now huge"));
        let foreign = HugeDecision { policy: Some("lru".into()), ..row.clone() };
        assert!(replay(&foreign).unwrap_err().contains("lru"));
        let strange = HugeDecision { trials: Some("spent 1 charged 2".into()), ..row.clone() };
        assert!(replay(&strange).unwrap_err().starts_with("trials is "));
        let torn = HugeDecision { cpus: None, ..row };
        assert_eq!(replay(&torn).unwrap_err(), "cpus is absent");
    }
}
