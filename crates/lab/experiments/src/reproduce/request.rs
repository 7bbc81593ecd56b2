//! What `reproduce` is asked, and what comes of it: experiments that run programs, and those with tables of their own.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use pagemill_kernel::{Linux, process::signal};

use super::arm::Machine;
use super::experiment::{self, Experiment};
use super::input::Inputs;
use super::machine;
use super::plan::{Options, Plan, Skipped};
use super::series::{self, PlannedCell, Series};
use super::target::Stage;
use crate::fleet::matrix::Matrix;
use crate::tabled::{Asked, Tabled};
use crate::{colloid, registry};

/// Which experiments, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// Their names, or groups'; all there are without one.
    pub experiments: Vec<String>,
    /// Programs, kernels or figures of one that has a choice and runs alone.
    pub programs: Option<Vec<String>>,
    /// How programs are run.
    pub options: Options,
}

/// What is to run.
pub struct Planned {
    /// The cells, before any has run.
    pub cells: Vec<PlannedCell>,
    /// What does not, and why.
    skipped: Vec<Skipped>,
    /// Experiments that cannot run on this machine.
    pub missing: Vec<&'static str>,
}

impl From<&Matrix> for Request {
    fn from(matrix: &Matrix) -> Self {
        Self {
            experiments: matrix.experiments.clone(),
            programs: matrix.programs.clone(),
            options: matrix.options.clone(),
        }
    }
}

impl Request {
    /// Those with tables of their own, in the order in which they run.
    pub fn apart(&self) -> Vec<&'static str> {
        let asked = |name: &&str| match self.experiments.is_empty() {
            true => !registry::is_by_name(name),
            false => self.experiments.iter().any(|one| one == name),
        };
        registry::names().into_iter().filter(asked).collect()
    }

    /// Whether the simulated machine is among them.
    pub fn simulated(&self) -> bool {
        self.apart().contains(&colloid::NAME)
    }

    /// Whether one is root's that this process may not run.
    pub fn is_roots(&self) -> bool {
        let (roots, apart) = (registry::of_root(), self.apart());
        roots.iter().any(|name| apart.contains(name)) && Linux::live().may_compact().is_err()
    }

    /// Those that run programs.
    ///
    /// # Errors
    /// A name is none.
    pub fn selected(&self) -> Result<Vec<Experiment>> {
        let names = self.named();
        match self.experiments.is_empty() || !names.is_empty() {
            true => {
                let groups = registry::groups();
                let groups = groups.iter().map(|(name, _)| name.as_str());
                let others: Vec<&str> = registry::names().into_iter().chain(groups).collect();
                experiment::select(&names, &others)
            }
            false => Ok(Vec::new()),
        }
    }

    fn named(&self) -> Vec<String> {
        let names =
            self.experiments.iter().filter(|name| !registry::names().contains(&name.as_str()));
        names.cloned().collect()
    }

    /// The one with tables of its own that is all that was asked for: its tables are the answer.
    pub fn alone(&self) -> Option<&'static str> {
        match self.apart()[..] {
            [one] if self.named().is_empty() && one != colloid::NAME => Some(one),
            _ => None,
        }
    }

    /// The arms that were chosen; with other experiments they are theirs.
    pub fn arms(&self, name: &str) -> Option<&[String]> {
        self.options.arms.as_deref().filter(|_| self.experiments == [name])
    }

    /// The programs that were chosen, if that is of this experiment: of one that runs alone.
    fn programs_of(&self, name: &str) -> Option<&[String]> {
        self.programs.as_deref().filter(|_| self.experiments == [name])
    }

    /// An experiment that has tables of its own and runs here, if it is one of those.
    ///
    /// # Errors
    /// Programs or arms were chosen that it does not have.
    pub fn measured<'a>(
        &'a self,
        name: &str,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
    ) -> Result<Option<Box<dyn Tabled + 'a>>> {
        let asked = Asked {
            options: &self.options,
            programs: self.programs_of(name),
            arms: self.arms(name),
            stage,
            inputs,
        };
        registry::measured(name).map(|one| (one.cells)(&asked)).transpose()
    }

    /// The cells of an experiment that has tables of its own, if it is one of those.
    ///
    /// # Errors
    /// Programs or arms were chosen that it does not have.
    pub fn series<'a>(
        &'a self,
        name: &str,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
    ) -> Result<Option<Box<dyn Series + 'a>>> {
        if name == colloid::NAME {
            return Ok(Some(Box::new(colloid::Modelled::new(self.figures()?))));
        }
        Ok(self.measured(name, stage, inputs)?.map(|one| one as Box<dyn Series>))
    }

    /// Which figures of the simulated machine are made.
    ///
    /// # Errors
    /// There is no figure of a name.
    pub fn figures(&self) -> Result<colloid::Options> {
        let mut options = colloid::Options::new(self.options.quick, self.options.seed)?;
        options.only(self.programs_of(colloid::NAME))?;
        Ok(options)
    }

    /// The cells of a plan and of what was asked for that has tables of its own, which may refuse what was chosen.
    ///
    /// # Errors
    /// As of [`Request::measured`].
    pub fn planned(&self, plan: &Plan, stage: &Stage<'_>, inputs: &Inputs) -> Result<Planned> {
        let mut planned = Planned {
            cells: plan.runs(stage, inputs, &self.options).planned_cells(),
            skipped: plan.skipped.clone(),
            missing: Vec::new(),
        };
        for name in self.apart() {
            let missing = self.measured(name, stage, inputs)?.and_then(|one| one.missing());
            planned.missing.extend(missing.map(|_| name));
            let Some(mut series) = self.series(name, stage, inputs)? else { continue };
            planned.skipped.extend(series.leave_out(None).into_iter().map(|reason| Skipped {
                experiment: name.to_owned(),
                arm: None,
                reason,
            }));
            planned.cells.extend(series.planned_cells());
        }
        Ok(planned)
    }

    /// These cells as a matrix.
    pub fn matrix_of(&self, planned: &Planned) -> Matrix {
        Matrix {
            schema: 1,
            experiments: self.experiments.clone(),
            programs: self.programs.clone(),
            options: self.options.clone(),
            cells: planned.cells.iter().map(|planned| planned.cell.name()).collect(),
            skipped: planned.skipped.clone(),
            machine: machine::facts(),
            seconds: planned.cells.iter().map(|planned| Some(planned.seconds)).collect(),
        }
    }

    /// The matrix of its cells, as this machine plans them.
    ///
    /// # Errors
    /// What was chosen is of no experiment, or inputs cannot be made.
    pub fn matrix(&self) -> Result<Matrix> {
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let inputs = Inputs::new(executable.clone(), self.options.seed)?;
        let mut machine = Machine::detect();
        let plan = Plan::new(self.selected()?, &self.options, &mut machine, &inputs)?;
        let signals = signal::Signals::block(&[])?;
        let planned =
            self.planned(&plan, &Stage::on_this_machine(&signals, executable), &inputs)?;
        Ok(self.matrix_of(&planned))
    }

    /// Cells of an experiment with tables of its own, where everything is installed, and roughly how long they take.
    pub(super) fn amount(&self, name: &str, quick: bool) -> Result<(usize, Duration)> {
        let mut asked = self.clone();
        asked.options.quick = quick;
        let signals = signal::Signals::block(&[])?;
        let inputs = Inputs::new(PathBuf::new(), self.options.seed)?;
        let stage = Stage::on_this_machine(&signals, PathBuf::new());
        let series = asked.series(name, &stage, &inputs)?;
        Ok(series.map_or_else(Default::default, |series| {
            let amount = series::amount(series.as_ref(), None);
            (amount.cells, amount.time)
        }))
    }
}
