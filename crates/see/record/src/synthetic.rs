//! Recordings of accesses that nobody made: of any size, to try readers on.
//!
//! They look like what `record --with accesses` writes of a program that does a million accesses a second: four threads
//! go over one of eight arrays of 64 MiB after the other, a part each, in intervals of 50 ms; each page is read, then
//! written, at a byte and at a moment that are drawn at random from a fixed seed.
//!
//! Always true: the same number of accesses is the same recording.

use std::path::Path;

use anyhow::Result;
use pagemill_model::access::{Access, AccessSetup, Touched};
use pagemill_model::fault::Flags;
use pagemill_model::page::BASE as PAGE;
use pagemill_model::random::Random;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Allocation, Bytes, Event, MappingSample, Nanos, Pid};

use crate::summary::Live;

const PID: u64 = 4711;
const THREADS: u64 = 4;
const ARRAYS: u64 = 8;
/// Pages of an array.
const PAGES: u64 = 16_384;
/// Where the arrays lie.
const BASE: u64 = 0x7f00_0000_0000;
/// Where the program lies.
const CODE: u64 = 0x5500_0000_0000;
/// Accesses of an interval: a read and a write of every page that it goes over.
const INTERVAL: u64 = 50_000;
const LENGTH: Nanos = Nanos(50_000_000);

fn array(number: u64) -> u64 {
    BASE + number * (PAGES + 16) * PAGE
}

/// Writes a recording of `events` accesses to a new directory, with its summary, as `record` leaves it.
///
/// # Errors
/// The directory is there, or cannot be written.
pub fn write(path: &Path, events: u64) -> Result<()> {
    let meta = Meta {
        tool: pagemill_model::TOOL.into(),
        command: vec!["synthetic".into()],
        pid: PID,
        comm: "synthetic".into(),
        machine: std::env::consts::ARCH.into(),
        page_size: Bytes(PAGE),
        clock: "none: made up".into(),
        accesses: Some(AccessSetup {
            back_end: "synthetic".into(),
            interval: LENGTH,
            granule: Bytes(PAGE),
            ..AccessSetup::default()
        }),
        ..Meta::default()
    };
    let live = Live::begin(meta.started, PAGE, events > 0);
    let mut to = Sink { writer: Writer::create(path, meta, false, None)?, live };
    let mapping = |start: u64, end: u64, name: &str, permissions: &str| {
        Event::Mapping(Box::new(MappingSample {
            pid: Some(PID),
            start: Some(start),
            end: Some(end),
            permissions: Some(permissions.into()),
            name: Some(name.into()),
            ..MappingSample::default()
        }))
    };
    to.event(&mapping(CODE, CODE + 64 * PAGE, "/synthetic", "r-xp"))?;
    to.event(&mapping(BASE, array(ARRAYS), "", "rw-p"))?;
    for number in 0..ARRAYS {
        to.event(&Event::Allocation(Box::new(Allocation {
            pid: Some(PID),
            address: Some(array(number)),
            size: Some(PAGES * PAGE),
            stack: Some(vec![CODE + 0x100 * number]),
            ..Allocation::default()
        })))?;
    }
    let mut random = Random::new(1);
    for number in 0..events.div_ceil(INTERVAL) {
        interval(&mut to, &mut random, number, (events - number * INTERVAL).min(INTERVAL))?;
    }
    let ended = Nanos(events.div_ceil(INTERVAL) * LENGTH.0);
    let path = to.writer.finish(ended)?;
    to.live.finish(&path)?;
    eprintln!("next: pagemill report {}", pagemill_model::shell::quoted(path));
    Ok(())
}

/// The recording, and what it adds up to.
struct Sink {
    writer: Writer,
    live: Live,
}

impl Sink {
    fn event(&mut self, event: &Event) -> Result<()> {
        self.live.event(event);
        Ok(self.writer.event(event)?)
    }
}

/// One interval: `events` accesses, and the pages.
fn interval(to: &mut Sink, random: &mut Random, number: u64, events: u64) -> Result<()> {
    // One array for twenty intervals, going on where the one before ended.
    let (which, from) = (number / 20 % ARRAYS, number * (INTERVAL / 2));
    let began = number * LENGTH.0;
    let gap = LENGTH.0 / INTERVAL;
    for at in 0..events {
        let page = (from + at / 2) % PAGES;
        let drawn = random.bits();
        let write = at % 2 == 1;
        let thread = page * THREADS / PAGES;
        to.event(&Event::Access(Box::new(Access {
            time: Nanos(began + at * gap + drawn % gap),
            pid: Some(PID),
            tid: Some(PID + thread),
            cpu: Some((thread + number / 7) % THREADS),
            address: Some(array(which) + page * PAGE + (drawn >> 20) % PAGE / 8 * 8),
            instruction: Some(
                CODE + 0x1000 + which * 0x40 + u64::from(write) * 4 + (drawn >> 40) % 4 * 8,
            ),
            flags: Some(if write { Flags::WRITE } else { 0 }),
            ..Access::default()
        })))?;
    }
    let pages = events.div_ceil(2).min(PAGES);
    let first = from % PAGES;
    let rest = (first + pages).saturating_sub(PAGES);
    let runs = [(0, rest), (first, pages - rest)];
    let runs = runs.iter().filter(|run| run.1 > 0);
    let starts: Vec<u64> = runs.clone().map(|run| array(which) + run.0 * PAGE).collect();
    let lengths: Vec<u64> = runs.map(|run| run.1).collect();
    to.event(&Event::Touched(Box::new(Touched {
        time: Nanos(began + LENGTH.0),
        pid: Some(PID),
        number: Some(number),
        began: Some(Nanos(began)),
        scanned: Some(Nanos(began + LENGTH.0)),
        starts: Some(starts.clone()),
        pages: Some(lengths.clone()),
        written_starts: Some(starts),
        written_pages: Some(lengths),
        kept: Some(0),
    })))?;
    to.live.watermark(Pid::told(PID), true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_up_recording_has_as_many_accesses_as_were_asked_for() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("made-up");
        write(&path, 120_001).unwrap();
        let summary = crate::summary::of(&path).unwrap();
        assert_eq!(summary.accesses.total.accesses, 120_001);
        assert_eq!(summary.accesses.intervals, 3);
        // Every page of the first array, read and written by the thread whose part it is in.
        assert_eq!((summary.accesses.total.pages, summary.accesses.total.written), (PAGES, PAGES));
        assert_eq!(summary.heat.accesses, 120_001);
        assert_eq!(summary.heat.in_objects, 120_001);
        assert_eq!(summary.heat.threads.len() as u64, THREADS);
        assert!(summary.accesses.mappings.iter().all(|(name, _)| name.starts_with("anonymous")));
    }
}
