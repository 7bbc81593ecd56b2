//! The end of the time: what is left of it is for the lever that looks best, if that is not certain yet.

use anyhow::Result;

use super::Session;
use super::time::{CLOSING, GRACE};

impl Session<'_> {
    /// Whether the time ends, and a lever is to have what is left of it.
    pub(super) fn is_closing(&self) -> bool {
        self.left() < self.time().as_secs_f64() * CLOSING && self.perhaps().is_some()
    }

    /// Where nothing is chosen, the lever that looks best, if it looks worth it.
    fn perhaps(&self) -> Option<usize> {
        let judgement = self.judged();
        let best = judgement.perhaps.filter(|_| judgement.choice.is_none());
        best.map(|(lever, _)| lever).filter(|lever| self.arms[*lever].plays())
    }

    /// At the end of the time, and a tenth more where none is given: runs of that lever, and as it is, until it is told
    /// apart. A run among few that is long by chance leaves what is plain undecided.
    pub(super) fn tell_of_best(&mut self) -> Result<()> {
        if self.options.rounds.is_some() {
            return Ok(());
        }
        let more = if self.options.within.is_none() { GRACE } else { 0.0 };
        while let Some(lever) = self.perhaps() {
            let pair =
                self.pace.next_run(self.arms[lever].took) + self.pace.next_run(self.pace.base);
            let left = self.time().mul_f64(1.0 + more).saturating_sub(self.begun.elapsed());
            if pair > left.as_secs_f64() {
                break;
            }
            self.round += 1;
            let before = self.random.index(2) == 0;
            if before {
                self.as_it_is()?;
            }
            self.try_lever(lever)?;
            if !before {
                self.as_it_is()?;
            }
        }
        Ok(())
    }
}
