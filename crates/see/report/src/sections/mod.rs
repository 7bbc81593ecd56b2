//! What a report shows: a section for each kind of thing that was recorded, all from one table ([`SECTIONS`]).
//!
//! ```text
//!  event ──► Gather::event, of every section ──► Gather::finish ──► Section: text, JSON, HTML, figures to compare
//! ```
//!
//! A new section is its file here and its line in [`SECTIONS`]. A kind of event that none of them shows, or whose
//! section a recording does not have, has one that is made from its row type ([`rows`]): whatever is recorded is shown,
//! and no section need be written for it.
//!
//! Always true: every kind of event is shown by a section of the table or by one of its own; the members of the JSON
//! are there whether there is something in them or `null`.

pub mod accesses;
pub mod decisions;
pub mod faults;
pub mod frag;
pub mod heap;
pub mod hugepages;
pub mod rows;
mod section;

pub use section::{Figure, Gather, Object, ReportOptions, Section, SectionInput, SectionKind};

use std::path::Path;

use pagemill_analysis::findings::{Conclusions, RecordedViews, conclude};
use pagemill_launch::context::machine;
use pagemill_model::recording::{Meta, Reader};
use pagemill_model::{EventKind, Pid, Source as _, shell};
use pagemill_record::summary::{self, Reading};
use serde_json::{Map, Value};

/// The sections, in the order of the report.
pub const SECTIONS: &[SectionKind] =
    &[heap::KIND, faults::KIND, hugepages::KIND, frag::KIND, decisions::KIND, accesses::KIND];

/// The member of the JSON with the sections of kinds that none of the table shows, by their datasets.
const OTHERS: &str = "other";

/// All sections of a recording.
pub struct Sections {
    /// Those of the table, by the members of the JSON; absent ones among them.
    table: Vec<(&'static str, Option<Box<dyn Section>>)>,
    /// The other kinds', by their datasets.
    others: Vec<(&'static str, Box<dyn Section>)>,
}

impl Sections {
    /// Reads all of a recording.
    ///
    /// # Errors
    /// A part of it cannot be read.
    pub fn read(
        path: &Path,
        reader: &mut Reader,
        options: ReportOptions,
    ) -> pagemill_model::Result<Self> {
        let known = summary::read(reader);
        let mut input = SectionInput { reader, known, options };
        let table = SECTIONS.iter().map(|kind| (kind.member, (kind.begin)(&mut input)));
        let mut table: Vec<_> = table.collect();
        let begun: Vec<bool> = table.iter().map(|(_, gather)| gather.is_some()).collect();
        let shown = |kind: &EventKind| {
            SECTIONS
                .iter()
                .zip(&begun)
                .any(|(section, begun)| *begun && section.shows.contains(kind))
        };
        let others = EventKind::ALL.iter().filter(|kind| !shown(kind));
        let mut others: Vec<_> = others.map(|kind| (kind.dataset(), rows::begin(*kind))).collect();
        let mut reading = Reading::new(reader);
        while let Some(event) = reader.next_event()? {
            reading.event();
            let gathering = table.iter_mut().filter_map(|(_, gather)| gather.as_mut());
            gathering.chain(others.iter_mut().map(|(_, gather)| gather)).for_each(|gather| {
                gather.event(&event);
            });
        }
        drop(reading);
        let table = table.into_iter().map(|(member, gather)| {
            (member, gather.and_then(|gather| gather.finish(path, reader)))
        });
        let others = others
            .into_iter()
            .filter_map(|(name, gather)| Some((name, gather.finish(path, reader)?)));
        Ok(Self { table: table.collect(), others: others.collect() })
    }

    /// Those that there are, in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Section> {
        let table = self.table.iter().filter_map(|(_, section)| section.as_deref());
        table.chain(self.others.iter().map(|(_, section)| section.as_ref()))
    }

    /// Those in which there is something to see.
    pub fn shown(&self) -> impl Iterator<Item = &dyn Section> {
        self.iter().filter(|section| section.is_shown())
    }

    /// What the recording at `path` comes to.
    pub fn conclusions(&self, path: &Path, reader: &Reader) -> Conclusions {
        // Who passes a report on does not say where it lay.
        let recording = match reader.is_redacted() {
            true => "REC".to_owned(),
            false => shell::quoted(path),
        };
        let meta = reader.meta();
        let lives = lives(meta);
        let mut seen = RecordedViews {
            recording: &recording,
            meta: Some(meta),
            lives,
            ..RecordedViews::default()
        };
        self.iter().for_each(|section| section.see(&mut seen));
        conclude(&seen)
    }

    /// The members of the JSON.
    pub fn json(&self) -> Map<String, Value> {
        let mut answer = Map::new();
        for (member, section) in &self.table {
            let value = section.as_ref().map_or(Value::Null, |section| section.json());
            answer.insert((*member).to_owned(), value);
        }
        for (member, value) in self.iter().flat_map(Section::members) {
            answer.insert(member.to_owned(), value);
        }
        if !self.others.is_empty() {
            let others = self.others.iter();
            let others = others.map(|(name, section)| ((*name).to_owned(), section.json()));
            answer.insert(OTHERS.into(), Value::Object(others.collect()));
        }
        answer
    }
}

/// Whether the process of a recording is still there, on this machine: one of that number and name, and it was not seen
/// to end.
fn lives(meta: &Meta) -> bool {
    let ended = meta.exit_status.is_some() || meta.exit_signal.is_some();
    let stat = u32::try_from(meta.pid).ok().map(|pid| machine().stat(Pid(pid)));
    !ended && stat.is_some_and(|stat| stat.is_ok_and(|stat| stat.comm == meta.comm))
}

#[cfg(test)]
mod tests {
    use pagemill_model::dataset::{Cell, Shape};
    use pagemill_model::recording::Writer;
    use pagemill_model::{Bytes, Event, HeapSample, Nanos};

    use super::*;
    use crate::draw::html::Page;

    /// A recording of so many rows of a kind, every column of them filled.
    fn recorded(kind: EventKind, rows: u64, directory: &Path) -> Sections {
        let path = directory.join(format!("{}-{rows}", kind.dataset()));
        let accesses = matches!(kind, EventKind::Access | EventKind::Touched);
        let meta = Meta {
            faults: Some(Default::default()),
            accesses: accesses.then(Default::default),
            ..Meta::default()
        };
        let mut writer = Writer::create(&path, meta, false, None).unwrap();
        for number in 1..=rows {
            let cells = kind.columns().iter().map(|column| match column.shape {
                Shape::Number => Cell::Number(1000 * number),
                Shape::Numbers => Cell::Numbers(vec![number]),
                Shape::Real => Cell::Real(number as f64),
                Shape::Text => Cell::Text(format!("text {number}")),
            });
            writer.event(&kind.event(cells).unwrap()).unwrap();
        }
        writer.finish(pagemill_model::Nanos(9000)).unwrap();
        Sections::read(&path, &mut Reader::open(&path).unwrap(), ReportOptions::default()).unwrap()
    }

    #[test]
    fn every_kind_of_event_is_shown_in_every_form() {
        let directory = tempfile::tempdir().unwrap();
        for kind in EventKind::ALL.iter().copied() {
            let forms = |rows| {
                let sections = recorded(kind, rows, directory.path());
                let text: String = sections.shown().map(Section::text).collect();
                let mut page = Page::new("");
                sections.shown().for_each(|section| section.html(&mut page));
                (text, Value::Object(sections.json()), page.finish())
            };
            let (some, none) = (forms(3), forms(0));
            assert_ne!(some.0, none.0, "{kind:?} as text");
            assert_ne!(some.1, none.1, "{kind:?} as JSON");
            assert_ne!(some.2, none.2, "{kind:?} as a page");
        }
    }

    #[test]
    fn a_kind_without_a_section_is_shown_by_its_columns() {
        let directory = tempfile::tempdir().unwrap();
        let sections = recorded(EventKind::TierOutcome, 3, directory.path());
        let text: String = sections.shown().map(Section::text).collect();
        assert!(text.contains("outcomes: 3 rows (What came of that)"), "{text}");
        let json = Value::Object(sections.json());
        let promoted = &json["other"]["outcomes"]["columns"]["promoted_bytes"];
        assert_eq!(promoted["mean"], 2000.0);
        assert_eq!((&promoted["first"], &promoted["last"]), (&1000.into(), &3000.into()));
        let actuator = &json["other"]["outcomes"]["columns"]["actuator"];
        assert_eq!((&actuator["different"], &actuator["last"]), (&3.into(), &"text 3".into()));
        let figures: Vec<Figure> = sections.iter().flat_map(Section::figures).collect();
        let took = figures.iter().find(|figure| figure.name == "outcomes took_ns, mean").unwrap();
        assert_eq!((took.unit, took.value), ("ns", 2000.0));
    }

    /// Once, the next command named processes that had ended.
    #[test]
    fn the_next_command_names_a_process_that_is_there_and_none_that_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let me = machine().stat(Pid(std::process::id())).unwrap();
        let next = |pid: u64, exit_status: Option<u64>| {
            let path = directory.path().join("rec");
            let comm = me.comm.clone();
            let command = vec!["./holes".to_owned()];
            let meta = Meta { pid, comm, command, exit_status, ..Meta::default() };
            let mut writer = Writer::create(&path, meta, true, None).unwrap();
            let sample = HeapSample {
                time: Nanos(1000),
                live: Some(Bytes(10 << 20)),
                footprint: Some(Bytes(90 << 20)),
                backend: Some("remap".into()),
                ..HeapSample::default()
            };
            writer.event(&Event::Heap(Box::new(sample))).unwrap();
            writer.finish(Nanos(9000)).unwrap();
            let mut reader = Reader::open(&path).unwrap();
            let sections = Sections::read(&path, &mut reader, ReportOptions::default()).unwrap();
            sections.conclusions(&path, &reader).findings[0].next.clone()
        };
        let pid = u64::from(std::process::id());
        assert_eq!(next(pid, None), format!("pagemill heap {pid} --compact"));
        assert_eq!(next(pid, Some(0)), "pagemill advise -- ./holes");
        assert_eq!(next(1 << 30, None), "pagemill advise -- ./holes");
        assert_eq!(next(1 << 40, None), "pagemill advise -- ./holes", "no number of a process");
    }

    #[test]
    fn members_of_the_table_are_told_apart_and_are_there_with_nothing_in_them() {
        let directory = tempfile::tempdir().unwrap();
        let json = recorded(EventKind::Heap, 0, directory.path()).json();
        for kind in SECTIONS {
            assert!(json.contains_key(kind.member), "{}", kind.member);
        }
        assert_eq!(json["frag"], Value::Null);
        let shown: Vec<_> = SECTIONS.iter().flat_map(|section| section.shows).collect();
        for (at, kind) in shown.iter().enumerate() {
            assert!(!shown[..at].contains(kind), "{kind:?} is shown by two");
        }
    }
}
