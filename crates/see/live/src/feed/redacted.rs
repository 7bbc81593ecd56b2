//! What is looked at, without what says whose it is.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::Result;
use pagemill_model::recording::{Meta, NotMeasured, Redactor};

use super::{Condition, Feed};
use crate::state::State;

/// Another feed, told without names and paths.
pub struct Redacted<'a> {
    feed: &'a mut dyn Feed,
    meta: Meta,
    redactor: RefCell<Redactor>,
}

impl<'a> Redacted<'a> {
    /// Of this feed.
    pub fn new(feed: &'a mut dyn Feed) -> Self {
        let mut redacted = Self { meta: feed.meta().clone(), feed, redactor: RefCell::default() };
        redacted.take_meta();
        redacted
    }

    fn take_meta(&mut self) {
        self.meta = self.feed.meta().clone();
        self.redactor.get_mut().meta(&mut self.meta);
    }
}

impl Feed for Redacted<'_> {
    fn due(&self) -> Instant {
        self.feed.due()
    }

    fn refresh(&mut self, state: &mut State) -> Result<()> {
        state.redact();
        self.feed.refresh(state)?;
        self.take_meta();
        Ok(())
    }

    fn flush(&mut self, state: &mut State) -> Result<()> {
        state.redact();
        self.feed.flush(state)?;
        self.take_meta();
        Ok(())
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn lacks(&self) -> Vec<NotMeasured> {
        let mut redactor = self.redactor.borrow_mut();
        let mut text = |text: &str| redactor.text(text);
        let lacks = self.feed.lacks().into_iter();
        lacks.map(|lack| NotMeasured { what: text(&lack.what), why: text(&lack.why) }).collect()
    }

    fn condition(&self) -> Condition {
        self.feed.condition()
    }

    fn set_interval(&mut self, interval: Duration) {
        self.feed.set_interval(interval);
    }

    fn pass_on(&mut self, signal: i32) {
        self.feed.pass_on(signal);
    }
}
