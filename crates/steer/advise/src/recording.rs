//! What a recording says: of levers by its samples of memory, of slower memory and of who holds it by its accesses.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use pagemill_kernel::Linux;
use pagemill_launch::context;
use pagemill_model::recording::Meta;
use pagemill_model::{Event, Source as _};
use pagemill_record::summary;
use pagemill_report::draw::html::Page;
use serde_json::{Value, json};

use crate::estimates::{self, Estimates};
use crate::holders::Holders;
use crate::slower_memory::{SlowerMemory, Tier, Touches};

/// A program that is to be simulated on two tiers, made of its recording while that is read.
pub trait Simulator {
    /// The next event.
    fn event(&mut self, event: &Event);
    /// The program on two tiers; why that is not known it says by itself.
    fn tier(self: Box<Self>) -> Option<Box<dyn Tier>>;
}

/// Makes a simulator for the recording that has this header.
pub type MakeSimulator<'a> = &'a dyn Fn(&Meta) -> Result<Box<dyn Simulator>>;

/// What a recording says.
pub struct RecordingAdvice {
    /// Where it is.
    path: String,
    /// What levers may bring, by its samples of memory; none where it has accesses alone.
    pub seen: Option<Estimates>,
    /// What slower memory would cost, where it has accesses.
    slower: Option<SlowerMemory>,
    holders: Holders,
}

impl RecordingAdvice {
    /// Reads the recording at `path`. `redact`: it is not to say whose it is.
    ///
    /// # Errors
    /// It is no recording, or damaged; or it has neither samples of memory nor enough accesses.
    pub fn read(linux: &Linux, path: &Path, redact: bool, make: MakeSimulator<'_>) -> Result<Self> {
        let named = || path.display().to_string();
        let mut reader = context::recording(path, redact)?;
        let meta = reader.meta().clone();
        let rows = |dataset: &str| meta.parts.get(dataset).map_or(0, |parts| parts.rows);
        let intervals = rows("touched") > 1;
        let mut seen = (rows("heap") > 0 || !intervals).then(|| estimates::Recorded::begin(&meta));
        let mut touches = intervals.then(|| Touches::begin(&meta));
        let mut simulator = intervals.then(|| make(&meta)).transpose()?;
        if meta.threads.is_some() {
            // What is read one by one is not needed: only which pages an interval touched. But that it is whole.
            ensure!(
                reader.is_intact("accesses"),
                "{0} is damaged: a part of its accesses is not what was written (pagemill report {0} says which)",
                path.display()
            );
            reader.pass_over("accesses");
        }
        while let Some(event) = reader.next_event()? {
            seen.iter_mut().for_each(|seen| seen.event(&event));
            touches.iter_mut().for_each(|touches| touches.event(&event));
            simulator.iter_mut().for_each(|simulator| simulator.event(&event));
        }
        let seen = seen.map(|seen| seen.glance(linux)).transpose().with_context(named)?;
        let tier = simulator.and_then(Simulator::tier);
        let slower = touches.map(|touches| touches.slower(tier.as_deref()));
        let slower = slower.transpose().with_context(named)?;
        let holders = match intervals {
            true => holders(path, redact).with_context(named)?,
            false => Holders::default(),
        };
        Ok(Self { path: named(), seen, slower, holders })
    }

    /// What it comes to, in a sentence.
    fn conclusion(&self) -> String {
        let slower = self.slower.as_ref().map(SlowerMemory::conclusion);
        let parts: Vec<String> = match &self.seen {
            Some(seen) => vec![seen.conclusion()],
            None => self.holders.conclusion().into_iter().chain(slower).collect(),
        };
        parts.join("; ")
    }

    /// What was modelled, and who holds what.
    fn modelled(&self) -> String {
        let slower = self.slower.as_ref().map_or_else(String::new, SlowerMemory::text);
        format!("{}{slower}", self.holders.text())
    }

    /// As text.
    pub fn text(&self) -> String {
        let modelled = self.modelled();
        match &self.seen {
            Some(seen) => format!("{}{modelled}", seen.text()),
            None => format!(
                "{}{modelled}\n{}\n",
                format_args!("{}: {}\n", self.path, self.conclusion()),
                self.without_samples()
            ),
        }
    }

    fn without_samples(&self) -> String {
        format!(
            "{} has no samples of memory: what levers may bring is not estimated (another recording, --with \
             heap,hugepages, tells)",
            self.path
        )
    }

    /// As a page.
    pub fn html(&self) -> String {
        let modelled = self.modelled();
        match &self.seen {
            Some(seen) => seen.html(Some(modelled.as_str()).filter(|text| !text.is_empty())),
            None => {
                let mut page = Page::new(&format!("What may help {}", self.path));
                page.paragraph(&format!("{}.", self.conclusion()));
                page.preformatted(modelled.trim()).paragraph(&self.without_samples());
                page.finish()
            }
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let nothing = || {
            json!({
                "whose": null, "command": null, "seen": null, "levers": null, "notes": [], "next": null,
                "not_again": null, "interrupted": false, "growth": null,
            })
        };
        let mut answer = self.seen.as_ref().map_or_else(nothing, Estimates::json);
        answer["conclusion"] = self.conclusion().into();
        answer["slower_memory"] = self.slower.as_ref().map_or(Value::Null, SlowerMemory::json);
        answer["holders"] = self.holders.json();
        answer
    }
}

/// Who holds the memory of a recorded program, by the recording's summary.
fn holders(path: &Path, redact: bool) -> Result<Holders> {
    let mut reader = context::recording(path, redact)?;
    let page = reader.meta().page_size.0;
    Ok(Holders::of(&summary::opened(path, &mut reader)?.heat, page))
}
