//! `moca` among the other experiments.

use super::kept::KeptRun;
use super::{NAME, Options, Outcome, SOURCE, TEXT, Traces};
use crate::tabled::{Choices, KeptTables, MeasuredExperiment, TabledExperiment};

/// This experiment, among the others.
pub(crate) const EXPERIMENT: TabledExperiment = TabledExperiment {
    name: NAME,
    file: TEXT,
    source: Some(&SOURCE),
    choices: Choices { arms: false, programs: true, scale: false },
    is_roots: false,
    measured: Some(MeasuredExperiment {
        cells: |asked| {
            let mut options = Options::new(asked.options.quick, asked.options.repetitions);
            options.only(asked.programs)?;
            Ok(Box::new(Traces::new(options, asked.stage)?))
        },
        nothing: Some(|| Box::new(Outcome::nothing())),
        collected: |cells, of, interrupted| {
            Ok(Box::new(Outcome::collected(cells, of, interrupted)?))
        },
    }),
    kept: Some(|bytes| {
        let KeptRun { outcome, machine } = match bytes {
            Some(bytes) => KeptRun::read(bytes)?,
            None => KeptRun::built_in()?,
        };
        let interrupted = outcome.interrupted;
        Ok(KeptTables { tables: Box::new(outcome), machine, interrupted })
    }),
};
