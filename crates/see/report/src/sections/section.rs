//! What every section is, what it begins with, and what makes one of a fold.

use std::path::Path;

use pagemill_analysis::findings::RecordedViews;
use pagemill_model::recording::Reader;
use pagemill_model::{Event, EventKind, Fold, Nanos};
use pagemill_record::summary::Summary;
use serde_json::Value;

use crate::draw::html::Page;

/// A figure of a recording, to be compared with another's.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is of.
    pub name: String,
    /// `B`, `s`, `ns`, or nothing for a number.
    pub unit: &'static str,
    /// In the unit.
    pub value: f64,
}

/// A data structure, to be compared with another recording's.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// What it is called.
    pub name: String,
    /// `global`, `allocation`, `stack` or `mapping`.
    pub kind: String,
    /// Pages touched.
    pub pages: u64,
    /// Accesses.
    pub accesses: u64,
    /// Share of writes, 0 to 1.
    pub writes: f64,
}

/// What a recording says of one kind of thing.
pub trait Section {
    /// Whether there is anything to see in it.
    fn is_shown(&self) -> bool {
        true
    }
    /// How long was recorded, in words, as far as it can tell.
    fn length(&self) -> Option<String> {
        None
    }
    /// Lines for the head of the report: label and text.
    fn header(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
    /// As text, with an empty line in front.
    fn text(&self) -> String;
    /// As JSON.
    fn json(&self) -> Value;
    /// What else it puts into the answer.
    fn members(&self) -> Vec<(&'static str, Value)> {
        Vec::new()
    }
    /// As a part of a page.
    fn html(&self, page: &mut Page);
    /// What may be compared.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
    /// Data structures that may be compared.
    fn objects(&self) -> Vec<Object> {
        Vec::new()
    }
    /// What was recorded worse than asked for.
    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }
    /// Adds its view to those that findings are made of.
    fn see<'a>(&'a self, _seen: &mut RecordedViews<'a>) {}
    /// What `record` ends with, if something is worth saying at once.
    fn closing(&self) -> Option<String> {
        None
    }
    /// Why something is not shown that might be, if it is to end the report with an error.
    fn refusal(&self) -> Option<String> {
        None
    }
}

/// A section in the making.
pub trait Gather {
    /// Takes in one event.
    fn event(&mut self, event: &Event);
    /// All events of the recording at the path are in; no section if there is nothing of its kind.
    fn finish(self: Box<Self>, path: &Path, reader: &Reader) -> Option<Box<dyn Section>>;
}

/// What is asked of a report.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportOptions {
    /// Show percentiles although page faults were lost.
    pub allow_loss: bool,
    /// Say whether page faults explain stalls of this length.
    pub spike: Option<Nanos>,
}

/// What sections begin with.
pub struct SectionInput<'a> {
    /// The recording.
    pub reader: &'a Reader,
    /// What its accesses add up to, if that is known already: then they are not read.
    pub known: Option<Summary>,
    /// What is asked of the report.
    pub options: ReportOptions,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub struct SectionKind {
    /// The member of the JSON.
    pub member: &'static str,
    /// The kinds of events that it shows.
    pub shows: &'static [EventKind],
    /// Begins one; nothing if the recording's header says that it has none of its kind.
    pub begin: fn(&mut SectionInput<'_>) -> Option<Box<dyn Gather>>,
}

/// A fold, and the section of its view.
struct Folding<F, S>(F, S);

/// A section that is made from the view of a fold.
pub(super) fn folding<F: Fold + 'static>(
    fold: F,
    show: impl FnOnce(F::View) -> Option<Box<dyn Section>> + 'static,
) -> Option<Box<dyn Gather>> {
    Some(Box::new(Folding(fold, show)))
}

impl<F: Fold, S: FnOnce(F::View) -> Option<Box<dyn Section>>> Gather for Folding<F, S> {
    fn event(&mut self, event: &Event) {
        self.0.event(event);
    }

    fn finish(self: Box<Self>, _: &Path, _: &Reader) -> Option<Box<dyn Section>> {
        (self.1)(self.0.view())
    }
}
