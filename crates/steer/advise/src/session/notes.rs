//! What is to be known of a session beside its figures.

use super::{NOT_ASKED, SMALL, Session, criteria};
use pagemill_kernel::Linux;
use pagemill_model::Bytes;

use crate::arm::{Arm, State, given_up, of_levers};
use crate::count::Count;
use crate::crowd::BUSY;
use crate::estimates::pressure;
use crate::observation::percent;
use crate::rule::{Quantity, Runs};
use crate::warm::Warmth;

/// CPUs that are online.
fn cpus(linux: &Linux) -> u64 {
    linux.processors().map_or(1, |all| all.len() as u64)
}

/// That a command, of more threads than CPUs or not, waited for a CPU in so many percent of the time that it was ready,
/// and for whom: others had this share of all CPUs meanwhile, in percent.
fn waits(waiting: f64, more_threads: bool, others: f64) -> String {
    let had = format!("others had {others:.0} % of the CPUs");
    let whom = match (others < BUSY * 100.0, more_threads) {
        (true, true) => format!("for its own threads, which are more than there are CPUs ({had})"),
        (true, false) => had,
        (false, _) => format!("the machine is busy, {had}"),
    };
    format!("as it is, it waited for a CPU in {waiting:.0} % of the time that it was ready: {whom}")
}

impl Session<'_> {
    /// Whether some run had huge pages.
    fn has_seen_huge_pages(&self) -> bool {
        let share = Quantity::Counted(Count::HugeShare);
        let mut runs = self.arms.iter().flat_map(|arm| &arm.runs).chain(&self.base);
        runs.any(|run| share.of(run).is_some_and(|share| share > 0.0))
    }

    /// Levers whose fall of mean memory is none of the whole run's.
    fn at_other_peaks(&self, runs: &Runs<'_>) -> Vec<String> {
        let criteria = criteria(self.options);
        let elsewhere = |(number, arm): (usize, &Arm)| {
            let change = |quantity| Some(percent(runs.change(number, quantity)?.ratio));
            let (mean, whole) = (change(Quantity::Mean)?, change(Quantity::Whole)?);
            runs.at_another_peak(number, &criteria).then(|| {
                format!(
                    "{}: {mean} of mean memory is that another of its peaks is the highest; of the whole run it is \
                     {whole}",
                    arm.lever.name()
                )
            })
        };
        self.arms.iter().enumerate().filter_map(elsewhere).collect()
    }

    /// That changes of little memory are no shares of it, where a lever's change is one that would count.
    fn judged_little(&self, runs: &Runs<'_>) -> Option<String> {
        let mean = runs.median(None, Quantity::Mean)?;
        let counts = |number| {
            let change = runs.change(number, Quantity::Mean);
            change.is_some_and(|change| change.ratio < 1.0 - self.options.worth)
        };
        (0..self.arms.len()).any(counts).then(|| {
            let [mean, small] = [mean, SMALL].map(|bytes| Bytes(bytes as u64).plain());
            format!(
                "its mean memory, {mean}, is little: changes of it are judged in shares of {small}"
            )
        })
    }

    /// Where levers were named: that another gets at what pymalloc keeps free, if it may.
    fn python_not_asked(&self) -> Option<String> {
        let arm = self.arms.iter().find(|arm| arm.lever.compacts_python())?;
        let name = arm.lever.name();
        let left_out = arm.state == State::NotTried(NOT_ASKED.into());
        (left_out && arm.estimate.memory > self.options.worth).then(|| {
            format!(
                "holes in pymalloc's arenas are holes in glibc's heap, too: --levers '{name}' tries the heap that \
                 lays pages with holes over each other"
            )
        })
    }

    /// What is to be known beside the figures.
    pub(super) fn notes(&self) -> Vec<String> {
        let (levers, out) = (of_levers(&self.arms), given_up(&self.arms));
        let runs = Runs { base: &self.base, levers: &levers, out: &out, ..Runs::default() };
        let mut notes = Vec::new();
        let noise = |quantity| runs.noise(quantity).map(|noise| noise * 100.0);
        if let (Some(wall), Some(cpu)) = (noise(Quantity::Wall), noise(Quantity::Cpu))
            && runs.time() == Quantity::Cpu
        {
            notes.push(format!(
                "wall time differs by {wall:.1} % between runs of the same, CPU time by {cpu:.1} %: time is CPU time \
                 here"
            ));
        }
        if runs.time() == Quantity::Cpu && runs.idle() > 0.0 {
            notes.push(
                "it sleeps most of its time: CPU time is judged in shares of a quarter of its wall time".into(),
            );
        }
        let waiting = runs.waiting(None) * 100.0;
        if waiting > self.options.worth * 100.0 {
            let more = self.seen.peak.threads > cpus(&self.stage.target.linux);
            notes.push(waits(waiting, more, self.crowd.share() * 100.0));
        }
        let worth = self.options.worth;
        notes.extend(self.at_other_peaks(&runs));
        if let Some(time) = runs.judged_noise().filter(|noise| *noise > worth) {
            let percent = time * 100.0;
            notes.push(format!(
                "runs of the same differ by {percent:.1} % in time: a quieter machine, or more time (--within), \
                 tells more"
            ));
        }
        // What is little is judged in shares of more. A lever's own runs may differ where those as it is do not.
        let little = runs.median(None, Quantity::Mean).is_none_or(|mean| mean < SMALL);
        if little {
            notes.extend(self.judged_little(&runs));
        }
        let as_it_is = Runs { base: &self.base, ..Runs::default() }.noise(Quantity::Mean);
        if let Some(memory) = as_it_is.filter(|noise| *noise > worth && !little) {
            let memory = memory * 100.0;
            notes.push(format!(
                "runs of the same differ by {memory:.0} % in memory: it does not do the same each time (a fixed seed \
                 and input help; more runs, --within, tell more)"
            ));
        }
        if self.batch > 1 {
            notes.push(format!(
                "a run is {} of the command, which ends at once: its memory is seen in few moments",
                self.batch
            ));
        }
        if self.digests.len() > 1 {
            notes.push(
                "what it prints is not the same each time: whether a lever changes it is not told"
                    .into(),
            );
        }
        if let Some(bloat) = self.seen.bloat.filter(|bloat| self.seen.share(*bloat) > worth) {
            notes.push(format!("{} of its huge pages hold only zeros", Bytes(bloat).plain()));
        }
        notes.extend(self.python_not_asked());
        notes.extend(pressure(&self.stage.target.linux));
        let free = self.free.as_ref().filter(|_| self.has_seen_huge_pages());
        notes.extend(
            free.and_then(|free| free.note(&self.stage.target.linux, self.seen.peak.anonymous)),
        );
        notes.extend(self.warmth.map(Warmth::note));
        notes.extend(self.stage.target.lent());
        if !self.failed.is_empty() {
            notes.push(format!("{} runs as it is failed and were repeated", self.failed.len()));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a command of 24 threads it was said that the machine is busy, whatever others did.
    #[test]
    fn who_waits_for_own_threads_is_not_told_that_the_machine_is_busy() {
        let own = waits(82.0, true, 2.0);
        assert!(
            own.ends_with("for its own threads, which are more than there are CPUs (others had 2 % of the CPUs)"),
            "{own}"
        );
        let busy = waits(82.0, true, 97.0);
        assert!(busy.ends_with(": the machine is busy, others had 97 % of the CPUs"), "{busy}");
        let alone = waits(8.0, false, 2.0);
        assert!(alone.ends_with("was ready: others had 2 % of the CPUs"), "{alone}");
    }
}
