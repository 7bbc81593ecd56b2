//! What a policy is, and what it says of how it is carried out. Policies by name stand in [`super::POLICIES`].

use std::fmt;

use pagemill_model::named;

use super::account::{Decision, Estimate};
use super::action::{Action, Moment};
use super::view::View;

/// Where the kernel gives huge pages under a policy (Documentation/admin-guide/mm/transhuge.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpMode {
    /// At every first touch.
    Always,
    /// Where the system's own setting says.
    Inherit,
    /// Where `MADV_HUGEPAGE` was said.
    Madvise,
    /// The same, and elsewhere pages of 64 KiB at every first touch.
    Medium,
    /// Nowhere.
    Never,
}

/// Whether a policy looks into a profile of where huge pages pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileUse {
    /// It does not.
    Unused,
    /// Where there is one.
    Optional,
    /// It makes no huge page without one.
    Required,
}

/// When a policy looks at which pages are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scans {
    /// Never.
    Never,
    /// Now and then.
    Always,
    /// Where a profile says what a huge page brings.
    WithProfile,
}

/// How a policy is carried out.
#[derive(Clone, Copy, Debug)]
pub struct Mechanism {
    /// Where the kernel gives huge pages by itself.
    pub thp: ThpMode,
    /// Whether that is all of it.
    pub by_kernel: bool,
    /// The moments at which it is asked about a region that grows, in turn.
    pub growth: &'static [Moment],
    /// When it looks at which pages are there.
    pub scans: Scans,
    /// Whether it looks into a profile.
    pub profile: ProfileUse,
    /// Whether it weighs measured times, and may choose pages of 64 KiB.
    pub weighs_time: bool,
}

impl Mechanism {
    /// Of a policy that runs beside the kernel's `madvise` and does nothing of its own.
    pub const BESIDE: Self = Self {
        thp: ThpMode::Madvise,
        by_kernel: false,
        growth: &[],
        scans: Scans::Never,
        profile: ProfileUse::Unused,
        weighs_time: false,
    };

    /// Whether somebody stays beside the program: to work, or to put settings of the system back.
    #[must_use]
    pub fn needs_supervisor(&self) -> bool {
        !self.by_kernel || matches!(self.thp, ThpMode::Always | ThpMode::Medium)
    }

    /// Whether it looks at which pages are there, with a profile or without one.
    #[must_use]
    pub fn scans_with(&self, profile: bool) -> bool {
        match self.scans {
            Scans::Never => false,
            Scans::Always => true,
            Scans::WithProfile => profile,
        }
    }
}

named! {
    /// What is to be gained.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Goal {
        /// The program's work is done with the least CPU time.
        #[default]
        Throughput = "throughput",
        /// Its requests wait least.
        Tail = "tail",
        /// It takes no more memory than it touches.
        Memory = "memory",
    }
}

/// What a policy that tries actions on a program's growth says besides; [`super::trials`] has the words.
pub trait TrialPolicy {
    /// The arm that a program begins with, of which nothing is known but what the mechanisms cost.
    fn first(&self, view: &View) -> Action;

    /// The arm that is best by what is known.
    fn best(&self, view: &View) -> Action;

    /// What a trial of this arm may cost beyond the best before it ends early, ns.
    fn stake(&self, action: Action, view: &View) -> u64;

    /// What trials may cost now, ns.
    fn room(&self, view: &View) -> u64;

    /// Whether who carries it out may wait until a program has grown and worked for some time.
    fn waits(&self) -> bool;

    /// What a helper's time counts beside the program's, in thousandths.
    fn helper_price(&self, view: &View) -> u64;

    /// The same policy with another goal.
    fn with_goal(&self, goal: Goal) -> &'static dyn Policy;
}

/// A huge page policy.
pub trait Policy: fmt::Debug + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;

    /// How it is carried out.
    fn mechanism(&self) -> Mechanism;

    /// What `action` would cost and bring; `None` if the policy never takes it, or cannot tell.
    fn estimate(&self, action: Action, view: &View) -> Option<Estimate>;

    /// How it tries actions, if it does.
    fn tries(&self) -> Option<&dyn TrialPolicy> {
        None
    }

    /// Whether an action with this estimate should be taken.
    fn worth(&self, estimate: &Estimate) -> bool {
        estimate.benefit() > estimate.cost()
    }

    /// The action at this moment that is worth it and gains most; [`Action::Base`] if none is.
    fn decide(&self, view: &View) -> Decision {
        let mut best = Decision::default();
        for action in view.moment.actions() {
            let Some(estimate) = self.estimate(*action, view) else { continue };
            let worth = self.worth(&estimate);
            let taken = best.action != Action::Base;
            let better = match (worth, taken) {
                (true, false) => true,
                (true, true) => estimate.gain() > best.estimate.gain(),
                (false, true) => false,
                (false, false) => best.weighed == Action::Base,
            };
            if better {
                let decided = if worth { *action } else { Action::Base };
                best = Decision { action: decided, weighed: *action, estimate };
            }
        }
        best
    }
}
