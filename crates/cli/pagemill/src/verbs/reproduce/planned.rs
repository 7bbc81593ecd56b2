//! The cells of a run, before any has run.

use anyhow::Result;
use pagemill_experiments::fleet::matrix::Matrix;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::machine;
use pagemill_experiments::reproduce::plan::{Plan, Skipped};
use pagemill_experiments::reproduce::series::{Series as _, Turn};
use pagemill_experiments::reproduce::target::Stage;

use super::arguments::Arguments;

/// What is to run.
pub(super) struct Planned {
    pub(super) turns: Vec<Turn>,
    /// What does not, and why.
    skipped: Vec<Skipped>,
    /// Experiments that cannot run on this machine.
    pub(super) missing: Vec<&'static str>,
}

impl Arguments {
    /// The cells of a plan and of what was asked for that has tables of its own, which may refuse what was chosen.
    pub(super) fn planned(
        &self,
        apart: &[&'static str],
        plan: &Plan,
        stage: &Stage<'_>,
        inputs: &Inputs,
    ) -> Result<Planned> {
        let mut planned = Planned {
            turns: plan.runs(stage, inputs, &self.options()).turns(),
            skipped: plan.skipped.clone(),
            missing: Vec::new(),
        };
        for &name in apart {
            let missing = self.measured(name, stage, inputs)?.and_then(|one| one.missing());
            planned.missing.extend(missing.map(|_| name));
            let Some(mut series) = self.series(name, stage, inputs)? else { continue };
            planned.skipped.extend(series.leave_out(None).into_iter().map(|reason| Skipped {
                experiment: name.to_owned(),
                arm: None,
                reason,
            }));
            planned.turns.extend(series.turns());
        }
        Ok(planned)
    }

    /// These cells as a matrix.
    pub(super) fn matrix_of(&self, planned: &Planned) -> Matrix {
        Matrix {
            schema: 1,
            experiments: self.experiments.clone(),
            programs: self.programs.clone(),
            options: self.options(),
            cells: planned.turns.iter().map(|turn| turn.cell.name()).collect(),
            skipped: planned.skipped.clone(),
            machine: machine::facts(),
            seconds: planned.turns.iter().map(|turn| Some(turn.seconds)).collect(),
        }
    }
}
