//! What transactions did, in counts.

use super::store::Trace;

/// How often each of some things happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally<const N: usize>(pub(super) [u64; N]);

impl<const N: usize> Tally<N> {
    pub(super) const NONE: Self = Self([0; N]);

    pub(super) fn plus(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
        self
    }
}

/// One thread's counts, and the history of its transactions.
pub(super) type Part<const N: usize> = Result<(Tally<N>, Vec<Trace>), String>;

/// The counts of all threads; their histories are added to `traces`.
pub(super) fn sum<const N: usize>(
    parts: Vec<Part<N>>,
    traces: &mut Vec<Trace>,
) -> Result<Tally<N>, String> {
    parts.into_iter().try_fold(Tally::NONE, |sum, part| {
        let (done, history) = part?;
        traces.extend(history);
        Ok(sum.plus(done))
    })
}
