//! Where the events come from.

mod attached;
mod followed;
mod redacted;

use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_model::recording::{Meta, NotMeasured};

use crate::state::State;

pub use attached::{Attached, Attaching};
pub use followed::Followed;
pub use redacted::Redacted;

/// How what is looked at stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// In a word or two.
    pub words: String,
    /// Whether nothing more will come.
    pub over: bool,
}

/// What is looked at.
pub trait Feed {
    /// When it wants to be called next.
    fn due(&self) -> Instant;

    /// Takes in what is new.
    ///
    /// # Errors
    /// What cannot be read, and will not be the next time.
    fn refresh(&mut self, state: &mut State) -> Result<()>;

    /// Takes in what is known by now and would come with a later look: somebody is about to see it.
    ///
    /// # Errors
    /// As of [`Feed::refresh`].
    fn flush(&mut self, _state: &mut State) -> Result<()> {
        Ok(())
    }

    /// The header as it is by now.
    fn meta(&self) -> &Meta;

    /// What is not measured, and why.
    fn lacks(&self) -> Vec<NotMeasured>;

    /// How it stands.
    fn condition(&self) -> Condition;

    /// Look so often from now on.
    fn set_interval(&mut self, interval: Duration);

    /// Hands a signal that is not for the view on to who it is for, if there is somebody.
    fn pass_on(&mut self, _signal: i32) {}
}
