//! Events with any values, through all that folds them: what a recording says is worked through step by step, and adds
//! up to something whatever it is.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use pagemill_analysis::decisions::DecisionFold;
use pagemill_analysis::faults::FaultFold;
use pagemill_analysis::fragmentation::timeline::FragFold;
use pagemill_analysis::heap::HeapFold;
use pagemill_analysis::heat::Bounds;
use pagemill_analysis::hugepages::HugePageFold;
use pagemill_analysis::page_heat::PageHeatFold;
use pagemill_analysis::regions::RegionFold;
use pagemill_analysis::validate::Validation;
use pagemill_model::access::AccessSetup;
use pagemill_model::dataset::{Cell, Shape};
use pagemill_model::fault::FaultSetup;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Bytes, Event, Fold, Nanos, event, page};
use pagemill_policy::{huge, tier::compose};
use pagemill_record::summary;

use crate::scratch::in_scratch;

/// Values at the edges of what a machine, and a number, can have.
const EDGES: [u64; 8] =
    [0, 1, u32::MAX as u64, 1 << 32, 1 << 47, (1 << 47) - 4096, u64::MAX, u64::MAX - 4095];
/// Events of one recording.
const MOST: usize = 200;

/// Texts that some column understands; policies of both kinds after these.
const WORDS: [&str; 17] = [
    "",
    "[heap]",
    "[stack]",
    "/bin/true",
    "rw-p",
    "r-xp",
    "1y",
    "none",
    "ahead",
    "fault",
    "scan",
    "idle",
    "mmap",
    "heap",
    "ns",
    "cycles",
    "spent 18446744073709551615 charged 9 size 18446744073709551615 first base whole; base 9 8; fault-2m 7",
];

/// All texts, by the byte that stands for one.
pub(crate) static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let plain = WORDS.into_iter().chain(huge::names()).map(str::to_owned);
    plain.chain(compose::names()).collect()
});

/// Bytes, used up from the front; zeros behind their end.
struct Unstructured<'a>(&'a [u8]);

impl Unstructured<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Small numbers, pages, edges and anything.
    fn number(&mut self) -> u64 {
        let kind = self.byte();
        match kind {
            0..96 => kind.into(),
            96..160 => u64::from(self.byte()) << 12,
            160..208 => u64::from(self.byte()) << (kind % 40),
            208..232 => EDGES[usize::from(kind) % EDGES.len()],
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn cell(&mut self, shape: Shape, must: bool) -> Cell {
        match shape {
            _ if !must && self.byte().is_multiple_of(4) => Cell::Absent,
            Shape::Number => Cell::Number(self.number()),
            Shape::Numbers => Cell::Numbers((0..self.byte() % 40).map(|_| self.number()).collect()),
            Shape::Real => Cell::Real(self.number() as f64),
            Shape::Text => {
                let kind = self.byte();
                match TEXTS.get(usize::from(kind)) {
                    Some(word) => Cell::Text(word.clone()),
                    None => Cell::Text(format!("word {}", kind % 16)),
                }
            }
        }
    }

    fn event(&mut self) -> Event {
        let kind = usize::from(self.byte()) % event::SCHEMA.len();
        (event::SCHEMA[kind].make)(&mut |column| self.cell(column.shape, column.name == "time_ns"))
    }
}

fn folded<F: Fold>(mut fold: F, events: &[Event]) {
    for event in events {
        fold.event(event);
    }
    drop(fold.view());
}

/// What a recording may hold.
pub(crate) struct Recorded {
    started: Nanos,
    threshold: Nanos,
    odd: u8,
    /// At most [`MOST`].
    pub events: Vec<Event>,
}

impl Recorded {
    pub fn of(bytes: &[u8]) -> Self {
        let mut rest = Unstructured(bytes);
        let (started, threshold, odd) = (Nanos(rest.number()), Nanos(rest.number()), rest.byte());
        let mut events = Vec::new();
        while !rest.0.is_empty() && events.len() < MOST {
            events.push(rest.event());
        }
        Self { started, threshold, odd, events }
    }

    /// The page heat of it. Beyond so many pages it takes longer than a fuzzer waits; far beyond that the verbs say no.
    pub fn heat(&self) -> (PageHeatFold, bool) {
        let mut heat = PageHeatFold::new(self.started, page::BASE);
        self.events.iter().for_each(|event| heat.event(event));
        let few = heat.pages() < 1 << 18;
        (heat, few)
    }

    /// Writes it as a recording; whether it is one.
    pub fn write(&self, recording: &Path) -> bool {
        let _ = fs::remove_dir_all(recording);
        let odd = self.odd;
        let meta = Meta {
            started: self.started,
            command: vec!["true".to_owned()],
            page_size: Bytes(if odd.is_multiple_of(2) { page::BASE } else { odd.into() }),
            accesses: Some(AccessSetup { granule: Bytes(4096), ..AccessSetup::default() }),
            faults: (odd % 4 < 2).then(|| self.setup()),
            ..Meta::default()
        };
        let Ok(mut writer) = Writer::create(recording, meta, true, None) else { return false };
        let written = self.events.iter().all(|event| writer.event(event).is_ok());
        written && writer.finish(self.started).is_ok()
    }

    fn setup(&self) -> FaultSetup {
        FaultSetup { threshold: self.threshold, ..FaultSetup::default() }
    }
}

/// Events, through a recording and all folds.
pub fn events(bytes: &[u8]) {
    let recorded = Recorded::of(bytes);
    let Recorded { started, ref events, .. } = recorded;
    let setup = recorded.setup();
    folded(HeapFold::default(), events);
    folded(HugePageFold::default(), events);
    folded(FragFold::default(), events);
    folded(DecisionFold::default(), events);
    folded(RegionFold::default(), events);
    folded(FaultFold::new(&setup, started), events);
    let (heat, few) = recorded.heat();
    if few {
        drop(heat.view());
    }
    let mut validation = Validation::new(page::BASE);
    for event in events {
        validation.exact(event);
        validation.faults(event);
    }
    if validation.pages() < 1 << 18 {
        drop(validation.view());
    }
    in_scratch(|room| {
        let recording = room.join("events");
        if recorded.write(&recording) && few {
            // What fuzzed ranges add up to is looked at up to a bound; a small one does as well.
            let bounds = Bounds { looks: 1 << 22, pages: 1 << 17 };
            let _ = summary::of_within(&recording, bounds);
        }
    });
}
