//! What the experiments came to that have tables of their own.

use pagemill_experiments::reproduce::apart::Outcomes;
use pagemill_experiments::{fragmentation, huge_pages, moca};
use pagemill_launch::exit::Exit;

/// Why an experiment did not run whose turn had not come.
pub(super) const ENDED: &str = "this run was ended before";

/// Of each that ran, its outcome; of each that did not, why.
#[derive(Default)]
pub(super) struct Apart {
    pub(super) traced: Option<moca::Outcome>,
    /// Whether a run of a kernel failed.
    pub(super) untraced: bool,
    pub(super) huge: Option<huge_pages::Outcome>,
    pub(super) studied: Option<fragmentation::Outcome>,
    /// Those that did not run, and why.
    pub(super) absent: Vec<(&'static str, String)>,
    pub(super) text: String,
    pub(super) interrupted: bool,
}

impl Apart {
    pub(super) fn took_in(&mut self, outcome: impl Fn(&Self) -> Option<(String, bool)>) {
        if let Some((text, interrupted)) = outcome(self) {
            self.text.push_str(&text);
            self.interrupted = interrupted;
        }
    }

    /// Whether an experiment ran, or why it did not is known.
    pub(super) fn knows(&self, name: &str) -> bool {
        let ran = match name {
            moca::NAME => self.traced.is_some(),
            huge_pages::NAME => self.huge.is_some(),
            fragmentation::NAME => self.studied.is_some(),
            _ => false,
        };
        ran || self.absent.iter().any(|(absent, _)| *absent == name)
    }

    pub(super) fn outcomes(&self) -> Outcomes<'_> {
        Outcomes {
            traced: self.traced.as_ref(),
            huge: self.huge.as_ref(),
            studied: self.studied.as_ref(),
            absent: &self.absent,
        }
    }

    /// How a run ends, beside whose outcomes here something else `ran`, or `failed`; what is root's explains why
    /// nothing did.
    pub(super) fn exit(&self, ran: bool, failed: bool, is_roots: bool) -> Exit {
        let ran_here = self.traced.is_some() || self.huge.is_some() || self.studied.is_some();
        match () {
            () if self.interrupted => Exit::Code(130),
            () if !ran && !ran_here && is_roots => Exit::Permission,
            () if !ran && !ran_here => Exit::Unsupported,
            () if failed || self.failed() => Exit::Finding,
            () => Exit::Ok,
        }
    }

    fn failed(&self) -> bool {
        self.untraced
            || self.huge.as_ref().is_some_and(huge_pages::Outcome::has_failures)
            || self.studied.as_ref().is_some_and(fragmentation::Outcome::has_failures)
    }
}
