//! Which experiments were asked for, and those of them that have tables of their own.

use anyhow::Result;
use pagemill_experiments::apart::Apart;
use pagemill_experiments::reproduce::chosen::OTHERS;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::series::Series;
use pagemill_experiments::reproduce::target::Stage;
use pagemill_experiments::{colloid, fragmentation, huge_pages, huge_slices, moca, overhead};
use pagemill_kernel::Linux;

use super::arguments::Arguments;

/// Which experiments were asked for; all, where none was named.
pub(super) struct Asked {
    /// Those with tables of their own, in the order in which they run.
    pub(super) apart: Vec<&'static str>,
    /// Those that run programs.
    pub(super) names: Vec<String>,
    pub(super) all: bool,
}

impl Asked {
    pub(super) fn of(experiments: &[String]) -> Self {
        let all = experiments.is_empty();
        // It compares with no publication.
        let asked = |name: &&str| match all {
            true => *name != overhead::NAME,
            false => experiments.iter().any(|one| one == name),
        };
        let names = experiments.iter().filter(|name| !OTHERS.contains(&name.as_str()));
        let (apart, names) = (OTHERS.into_iter().filter(asked).collect(), names.cloned().collect());
        Self { apart, names, all }
    }

    pub(super) fn simulated(&self) -> bool {
        self.apart.contains(&colloid::NAME)
    }

    /// Whether one is root's that this process may not run.
    pub(super) fn is_roots(&self) -> bool {
        let roots = [huge_pages::NAME, fragmentation::NAME];
        roots.iter().any(|name| self.apart.contains(name)) && Linux::live().may_compact().is_err()
    }

    /// Whether there are any that run programs.
    pub(super) fn programs(&self) -> bool {
        self.all || !self.names.is_empty()
    }

    /// The one with tables of its own that is all that was asked for: its tables are the answer.
    pub(super) fn alone(&self) -> Option<&'static str> {
        match self.apart[..] {
            [one] if !self.programs() && one != colloid::NAME => Some(one),
            _ => None,
        }
    }
}

impl Arguments {
    /// An experiment that has tables of its own and runs here, if it is one of those.
    pub(super) fn measured<'a>(
        &'a self,
        name: &str,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
    ) -> Result<Option<Box<dyn Apart + 'a>>> {
        let (quick, reps, seed) = (self.quick, self.reps, self.seed);
        let (programs, arms) = (self.programs(name), self.arms(name));
        Ok(Some(match name {
            overhead::NAME => {
                Box::new(overhead::Costs::new(overhead::Options::new(quick, reps, seed), stage)?)
            }
            moca::NAME => {
                let mut options = moca::Options::new(quick, reps);
                options.only(programs)?;
                Box::new(moca::Traces::new(options, stage)?)
            }
            huge_slices::NAME => {
                let mut options = huge_slices::Options::new(quick, reps, seed);
                options.only(programs)?;
                Box::new(huge_slices::Slices::new(options, stage))
            }
            huge_pages::NAME => {
                let mut options = huge_pages::Options::new(quick, reps, self.scale, seed);
                options.only(programs, arms)?;
                Box::new(huge_pages::Policies::new(options, stage, inputs))
            }
            fragmentation::NAME => {
                let mut options = fragmentation::Options::new(quick, self.full_size, reps);
                options.only(programs, arms)?;
                Box::new(fragmentation::Study::new(options, stage))
            }
            _ => return Ok(None),
        }))
    }

    /// The cells of an experiment that has tables of its own, if it is one of those.
    pub(super) fn series<'a>(
        &'a self,
        name: &str,
        stage: &'a Stage<'a>,
        inputs: &'a Inputs,
    ) -> Result<Option<Box<dyn Series + 'a>>> {
        if name == colloid::NAME {
            return Ok(Some(Box::new(colloid::Modelled::new(self.simulated()?))));
        }
        Ok(self.measured(name, stage, inputs)?.map(|one| one as Box<dyn Series>))
    }

    /// Which figures of the simulated machine are made.
    pub(super) fn simulated(&self) -> Result<colloid::Options> {
        let mut options = colloid::Options::new(self.quick, self.seed)?;
        options.only(self.programs(colloid::NAME))?;
        Ok(options)
    }
}
