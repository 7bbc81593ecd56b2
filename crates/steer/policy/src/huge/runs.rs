//! What whole runs of a program have cost, by the arm that they began with: what becomes of one that trials found best.
//!
//! ```text
//!  trials of growth ──► an arm costs less a region ──► so much as two runs begin with it ──► stands? ──► more do
//! ```
//!
//! Trials see the growth of a program, and not what its pages are worth to it later, nor all that it does at its
//! beginning. A whole run has all of that; but to try one may cost as much as a run. So an arm that trials found best
//! has a run only where the budget for trials has room for half of one, and is charged what it took beyond the usual.
//! After two it stands for as long as its last runs took less CPU time in the middle than those of what the program
//! begins with otherwise, and not much more memory. Whoever keeps a bounded number of runs has those be forgotten, and
//! so asked again, when all that are kept began with the arm.
//!
//! Always so (tested): nothing stands on runs of one arm alone; what took more time, or a tenth more memory, does not
//! stand; no run is tried without room for it.

use super::action::Action;

/// Runs of an arm that count, the last ones.
const COUNTED: usize = 5;
/// Runs that an arm has before it is judged.
const JUDGED: usize = 2;
/// Peak memory that it may take at most, in tenths.
const MEMORY: u64 = 11;

/// A run that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunCost {
    /// The arm that it began with.
    pub first: Action,
    /// CPU time that it took, ns.
    pub cpu: u64,
    /// The most that one of its processes had resident, bytes.
    pub peak: u64,
}

/// The value in the middle of an arm's last runs, the higher of two; `None` if there are too few.
fn median(runs: &[RunCost], first: Action, of: fn(&RunCost) -> u64) -> Option<u64> {
    let own = runs.iter().rev().filter(|run| run.first == first);
    let (mut values, mut len) = ([u64::MAX; COUNTED], 0);
    for (value, run) in values.iter_mut().zip(own) {
        *value = of(run);
        len += 1;
    }
    values.sort_unstable();
    (len >= JUDGED).then(|| values[len / 2])
}

/// What becomes of an arm that trials found best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not known yet, and there is no room to try it.
    Waits,
    /// The next run begins with it.
    Begins,
    /// Its runs took more.
    Falls,
}

/// Whether the next run, after these, begins with `arm` instead of `usual`. `room`: what trials may cost now, ns.
#[must_use]
pub fn judge(runs: &[RunCost], arm: Action, usual: Action, room: u64) -> Verdict {
    let of =
        |first| Some((median(runs, first, |run| run.cpu)?, median(runs, first, |run| run.peak)?));
    match (of(usual), of(arm)) {
        (Some((time, memory)), Some((its, own))) => {
            let less = its < time && own <= (memory / 10).saturating_mul(MEMORY);
            if less { Verdict::Begins } else { Verdict::Falls }
        }
        (Some((time, _)), None) if room >= time / 2 => Verdict::Begins,
        _ => Verdict::Waits,
    }
}

/// What a run cost beyond what is usual, ns: what trying its arm is charged.
#[must_use]
pub fn beyond(runs: &[RunCost], run: &RunCost, usual: Action) -> u64 {
    median(runs, usual, |run| run.cpu).map_or(0, |time| run.cpu.saturating_sub(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use Verdict::{Begins, Falls, Waits};

    const USUAL: Action = Action::Fault64k;
    const ARM: Action = Action::Fault2m;

    fn run(first: Action, cpu: u64, peak: u64) -> RunCost {
        RunCost { first, cpu, peak }
    }

    #[test]
    fn an_arm_has_two_runs_and_stands_for_as_long_as_they_take_less() {
        let usual = [run(USUAL, 100, 1000), run(USUAL, 110, 1000)];
        assert_eq!(judge(&usual[..1], ARM, USUAL, 60), Waits, "nothing to compare with");
        let mut runs = usual.to_vec();
        assert_eq!(judge(&runs, ARM, USUAL, 60), Begins, "it is tried");
        assert_eq!(judge(&runs, ARM, USUAL, 49), Waits, "there is no room for it");
        runs.push(run(ARM, 500, 1000));
        assert_eq!(judge(&runs, ARM, USUAL, 60), Begins, "one run says nothing");
        assert_eq!(beyond(&runs, &runs[2], USUAL), 390);
        runs.push(run(ARM, 90, 1000));
        assert_eq!(judge(&runs, ARM, USUAL, 60), Falls, "the higher of two counts");
        runs.extend([run(ARM, 91, 1090), run(ARM, 92, 1090)]);
        assert_eq!(judge(&runs, ARM, USUAL, 60), Begins);
        runs.extend([run(ARM, 93, 1200); 3]);
        assert_eq!(judge(&runs, ARM, USUAL, 60), Falls, "it takes a fifth more memory");
        // What has become dear is left when three of its last five are.
        runs.extend([run(ARM, 80, 1000); 5]);
        assert_eq!(judge(&runs, ARM, USUAL, 60), Begins);
        runs.extend([run(ARM, 200, 1000); 3]);
        assert_eq!(judge(&runs, ARM, USUAL, 60), Falls);
    }

    proptest! {
        #[test]
        fn what_costs_more_does_not_stand(
            cpu in 1u64..1 << 40, peak in 10u64..1 << 40, more in 0u64..1 << 40, usual in 2usize..7, own in 2usize..7,
        ) {
            let row = |first, cpu, peak, n| vec![run(first, cpu, peak); n];
            let with = |cpu, peak| [row(USUAL, 1 << 39, 1 << 39, usual), row(ARM, cpu, peak, own)].concat();
            prop_assert_eq!(judge(&with((1 << 39) + more, peak), ARM, USUAL, u64::MAX), Falls);
            prop_assert_eq!(judge(&with(cpu, (1 << 39) / 8 * 9 + more), ARM, USUAL, u64::MAX), Falls);
            let both = |cpu, peak| judge(&with(cpu, peak), ARM, USUAL, 0) == Begins;
            prop_assert!(!both(cpu, peak) || both(cpu / 2, peak / 2), "less is never worse");
        }
    }
}
