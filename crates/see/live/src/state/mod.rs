//! What the events so far come to: the folds behind the panes, each of bounded size.

pub mod faults;
pub mod heat;
pub mod history;
pub mod machine;
pub mod memory;
pub mod pressure;

use pagemill_model::recording::{Meta, Redactor};
use pagemill_model::{Event, Nanos, Pid};

use faults::Faults;
use heat::Heat;
use machine::Machine;
use memory::Memory;

/// All of it.
#[derive(Debug, Default)]
pub struct State {
    /// The time of the last event.
    pub now: Nanos,
    /// When the first was.
    pub began: Option<Nanos>,
    /// Which memory was touched when.
    pub heat: Heat,
    /// How much memory there is.
    pub memory: Memory,
    /// Page faults.
    pub faults: Faults,
    /// The machine's free memory.
    pub machine: Machine,
    redactor: Option<Redactor>,
}

impl State {
    /// Nothing yet, of this process.
    pub fn of(meta: &Meta) -> Self {
        Self { heat: Heat::of(Pid::told(meta.pid), meta.page_size.0.max(1)), ..Self::default() }
    }

    /// Events are taken in without what says whose they are from now on.
    pub fn redact(&mut self) {
        self.redactor.get_or_insert_default();
    }

    /// Takes in an event. `meta`: the header as it is by now.
    pub fn event(&mut self, event: &Event, meta: &Meta) {
        let redacted = self.redactor.as_mut().map(|redactor| {
            let mut event = event.clone();
            redactor.event(&mut event);
            event
        });
        let event = redacted.as_ref().unwrap_or(event);
        self.now = self.now.max(event.time());
        self.began = Some(self.began.map_or(event.time(), |began| began.min(event.time())));
        self.heat.event(event);
        self.memory.event(event);
        self.faults.event(event, meta);
        self.machine.event(event);
    }

    /// Time has gone by without an event.
    pub fn at(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// How long it has been looked at.
    pub fn length(&self) -> Nanos {
        self.began.map_or(Nanos(0), |began| self.now.since(began))
    }
}
