//! Recordings with any rows, to their end: every section of the report in each of its forms, a comparison, the formats
//! of other tools, and decisions made again.

use std::path::Path;

use pagemill_control::decisions;
use pagemill_control::tier::replay;
use pagemill_model::dataset::{Cell, Shape};
use pagemill_model::recording::{self, Reader};
use pagemill_model::{Event, Nanos, event};
use pagemill_policy::{huge, tier::compose};
use pagemill_record::summary;
use pagemill_report::comparison::Comparison;
use pagemill_report::export::{self, FORMATS};
use pagemill_report::frame::{self, Report};
use pagemill_report::sections::{ReportOptions, Sections};

use crate::events::{Recorded, TEXTS};
use crate::scratch::in_scratch;

/// A recording, to what the verbs say of it. The first byte says whether names are left out, and which format it
/// becomes.
pub fn reports(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let recorded = Recorded::of(bytes);
    let decided = recorded.events.iter().filter_map(|event| match event {
        Event::Huge(row) => Some(decisions::replay(row)),
        _ => None,
    });
    drop(decided.collect::<Vec<_>>());
    if !recorded.heat().1 {
        return;
    }
    in_scratch(|room| {
        let recording = room.join("reports");
        if !recorded.write(&recording) {
            return;
        }
        let redact = how & 1 != 0;
        report(&recording, redact);
        let _ = Comparison::read(&recording, &recording, redact)
            .map(|both| (both.text(), both.json(&both.grown(1.0))));
        let format = &FORMATS[usize::from(how >> 1) % FORMATS.len()];
        if let Ok(mut reader) = Reader::open(&recording) {
            let file = (room.join("exported"), true);
            let _ = export::write(&mut reader, &recording, format, (&file.0, file.1), 1000);
        }
        let _ = replay::replay(&recording, None).map(|replayed| replayed.text());
    });
}

/// The summary that is kept in a recording, with a checksum that fits: anybody can make one.
pub fn summary(bytes: &[u8]) {
    in_scratch(|room| {
        let recording = room.join("summary");
        let made = recording.exists() || Recorded::of(&each_kind()).write(&recording);
        if !made || recording::keep_summary(&recording, bytes).is_err() {
            return;
        }
        report(&recording, false);
        if let Ok(mut reader) = Reader::open(&recording) {
            let _ = summary::read(&mut reader);
        }
        let format = &FORMATS[bytes.len() % FORMATS.len()];
        if let Ok(mut reader) = Reader::open(&recording) {
            let file = room.join("exported");
            let _ = export::write(&mut reader, &recording, format, (&file, true), 1000);
        }
    });
}

pub fn summary_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    in_scratch(|room| {
        let recording = room.join("summary");
        if Recorded::of(&each_kind()).write(&recording) && summary::of(&recording).is_ok() {
            let reader = Reader::open(&recording).ok();
            seeds.extend(reader.and_then(|mut reader| reader.take_summary()));
        }
    });
    seeds
}

/// Two rows of each kind, of small numbers.
fn each_kind() -> Vec<u8> {
    let all = event::SCHEMA.iter().map(|kind| rows(kind.name, 2, &[], &[7]));
    [vec![9, 9, 2], all.collect::<Vec<_>>().concat()].concat()
}

fn report(recording: &Path, redact: bool) {
    let Ok(mut reader) = Reader::open(recording) else { return };
    if redact {
        reader.redact();
    }
    let options = ReportOptions { allow_loss: true, spike: Some(Nanos(1_000_000)) };
    let Ok(sections) = Sections::read(recording, &mut reader, options) else { return };
    let conclusions = sections.conclusions(recording, &reader);
    let report = Report { reader, sections, conclusions };
    let _ = (frame::text(&report), frame::json(&report), frame::html(&report));
}

/// The byte that stands for a text.
fn word(text: &str) -> u8 {
    (0_u8..).zip(TEXTS.iter()).find(|(_, word)| *word == text).map_or(0, |(at, _)| at)
}

/// Rows of one dataset, as `Unstructured` reads them: texts by column, and a number for all others.
pub(crate) fn rows(dataset: &str, times: u8, texts: &[(&str, &str)], number: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let kinds = (0_u8..).zip(event::SCHEMA).filter(|(_, kind)| kind.name == dataset);
    for (kind, schema) in kinds {
        for _ in 0..times {
            bytes.push(kind);
            drop((schema.make)(&mut |column| {
                if column.name != "time_ns" {
                    bytes.push(1);
                }
                match column.shape {
                    Shape::Number | Shape::Real => bytes.extend(number),
                    Shape::Numbers => bytes.extend([&[2], number, number].concat()),
                    Shape::Text => {
                        let text = texts.iter().find(|(name, _)| *name == column.name);
                        bytes.push(word(text.map_or("none", |(_, text)| text)));
                    }
                }
                Cell::Absent
            }));
        }
    }
    bytes
}

pub fn seeds() -> Vec<Vec<u8>> {
    let most = [&[u8::MAX], &u64::MAX.to_le_bytes()[..]].concat();
    let begin = |how: u8| [how, 9, 9, 2];
    let mut seeds: Vec<Vec<u8>> = crate::seeds::events()
        .into_iter()
        .zip(0..)
        .map(|(seed, how)| [vec![how], seed].concat())
        .collect();
    // One of each kind, in every format.
    for how in 0..FORMATS.len() as u8 {
        seeds.push([vec![how * 2], each_kind()].concat());
    }
    let trials = TEXTS.iter().find(|text| text.starts_with("spent")).map_or("", String::as_str);
    for policy in huge::names() {
        for (moment, number) in
            [("ahead", &[7][..]), ("fault", &most), ("scan", &most), ("idle", &[7])]
        {
            let texts = [
                ("policy", policy),
                ("moment", moment),
                ("section", "mmap"),
                ("profile_unit", "ns"),
                ("trials", trials),
            ];
            seeds.push([begin(1).to_vec(), rows("huge", 2, &texts, number)].concat());
        }
    }
    for policy in compose::names() {
        for number in [&[7][..], &most] {
            let texts = [("policy", policy.as_str())];
            let views = rows("tiers", 3, &texts, number);
            seeds.push([begin(0).to_vec(), views, rows("decisions", 2, &texts, number)].concat());
        }
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_as_it_was_kept() {
        let seeds = summary_seeds();
        assert_eq!(seeds.len(), 1);
        summary(&seeds[0]);
        in_scratch(|room| {
            let mut reader = Reader::open(&room.join("summary")).unwrap();
            assert!(summary::read(&mut reader).is_some());
        });
    }

    #[test]
    fn the_seeds_are_decided_again() {
        let (mut huge, mut tiers) = (0, 0);
        for seed in seeds() {
            for event in Recorded::of(&seed[1..]).events {
                match event {
                    Event::Huge(row) => huge += u32::from(decisions::replay(&row).is_ok()),
                    Event::TierDecision(row) => {
                        let policy = row.policy.unwrap_or_default();
                        tiers += u32::from(replay::policy(&policy).is_ok());
                    }
                    _ => {}
                }
            }
        }
        assert!(huge >= 40 && tiers >= 6, "{huge} {tiers}");
    }
}
