//! The traits between the rooms.

use crate::error::Result;
use crate::event::Event;
use crate::tiers::{TierDecision, TierOutcome, TierView};

/// Where events come from: a running system, or a recording that is read again.
pub trait Source {
    /// The next event; `None` when there are no more. Stamps do not decrease.
    ///
    /// # Errors
    /// What the events come from cannot be read.
    fn next_event(&mut self) -> Result<Option<Event>>;
}

/// A pure summary of events. It has no clock and no other input, so folding a recording gives
/// what folding the live system gave.
pub trait Fold {
    /// What the events add up to.
    type View;

    /// Takes in one event.
    fn event(&mut self, event: &Event);

    /// The summary of the events so far.
    fn view(&self) -> Self::View;

    /// Folds all that is left in a source.
    ///
    /// # Errors
    /// As of [`Source::next_event`].
    fn drain(&mut self, source: &mut dyn Source) -> Result<()> {
        while let Some(event) = source.next_event()? {
            self.event(&event);
        }
        Ok(())
    }
}

/// Two folds over the same events.
impl<A: Fold, B: Fold> Fold for (A, B) {
    type View = (A::View, B::View);

    fn event(&mut self, event: &Event) {
        self.0.event(event);
        self.1.event(event);
    }

    fn view(&self) -> Self::View {
        (self.0.view(), self.1.view())
    }
}

/// A pure decision: no clock, no I/O, no kernel. Its state is made of the views it was given, so it
/// decides the same over a recording as it did live.
pub trait Policy {
    /// Decides on what it sees now.
    fn decide(&mut self, view: &TierView) -> TierDecision;
}

/// What carries decisions out. Actuators are wrapped into each other: a rate limit, a guard and a log
/// are actuators around another one.
pub trait Actuator {
    /// Does it, as far as it can; what could not be done is part of the outcome.
    fn apply(&mut self, decision: &TierDecision) -> TierOutcome;
}
