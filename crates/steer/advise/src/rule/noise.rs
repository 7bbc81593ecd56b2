//! Whether runs of the same differ so much that few of them tell nothing.

use std::f64::consts::PI;

use super::{Aim, Criteria, LOUD, Quantity, Runs, Z};

/// So many runs of the same tell by how much these differ.
pub(super) const KNOWN: usize = 8;

impl Runs<'_> {
    /// The noise of what is to fall by this goal that is so great that few runs cannot tell what a lever does, and of
    /// what that is; of several the greatest.
    pub fn loudest(&self, criteria: &Criteria) -> Option<(f64, Quantity)> {
        self.louder_than(LOUD, criteria)
    }

    /// Whether few runs as it is may be alike by chance where they are not: they differ by more than what is worth it,
    /// and of fewer than [`KNOWN`] nobody knows by how much.
    pub fn may_be_loud(&self, criteria: &Criteria) -> bool {
        self.base.len() < KNOWN && self.louder_than(criteria.worth, criteria).is_some()
    }

    /// The greatest noise of what is to fall that is above so much.
    fn louder_than(&self, loud: f64, criteria: &Criteria) -> Option<(f64, Quantity)> {
        let little = self.median(None, Quantity::Mean).is_none_or(|mean| mean < criteria.small);
        let noise = |aim: &Aim| match aim {
            // Of the command as it is: a lever's own runs may differ where those do not.
            Aim::Memory if little => None,
            Aim::Memory => {
                let base = Runs { base: self.base, ..Runs::default() };
                Some((base.noise(Quantity::Mean)?, Quantity::Mean))
            }
            Aim::Time { .. } => Some((self.judged_noise()?, self.time())),
        };
        // Where memory tells, and is wanted, noise in time leaves nothing open: that is said beside.
        let wanted = criteria.goal.aims();
        let told = |aim: &Aim| *aim == Aim::Memory && noise(aim).is_some_and(|(it, _)| it <= loud);
        if wanted.iter().any(told) {
            return None;
        }
        let all = wanted.iter().filter_map(noise);
        all.filter(|(noise, _)| *noise > loud).max_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// Runs of each arm for an interval of `worth` to each side of their ratio, where runs of the same differ by `noise`
/// (of a logarithm).
pub(crate) fn runs_to_tell(worth: f64, noise: f64) -> f64 {
    let error = worth.abs().ln_1p() / Z;
    (PI * (noise / error).powi(2)).ceil()
}
