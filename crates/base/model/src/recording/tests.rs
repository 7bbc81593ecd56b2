use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::access::Touched;
use crate::error::Kind;
use crate::event::{Event, HeapSample};
use crate::fault::MappingSample;
use crate::flow::Source;
use crate::tiers::{TierDecision, TierView};
use crate::units::{Bytes, Nanos};

fn sample(millis: u64) -> Event {
    Event::Heap(Box::new(HeapSample {
        time: Nanos(millis * 1_000_000),
        pss: Some(Bytes(millis << 20)),
        pauses: Some(vec![millis, 0, 1]),
        ..HeapSample::default()
    }))
}

fn read(path: &Path) -> crate::Result<Vec<Event>> {
    let mut reader = Reader::open(path)?;
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        events.push(event);
    }
    Ok(events)
}

fn write(path: &Path, millis: impl Iterator<Item = u64>) {
    let mut writer = Writer::create(path, Meta::default(), false, None).unwrap();
    for millis in millis {
        writer.event(&sample(millis)).unwrap();
    }
    writer.finish(Nanos(9)).unwrap();
}

fn parts(path: &Path) -> Vec<std::path::PathBuf> {
    let mut parts: Vec<_> =
        fs::read_dir(path.join("heap")).unwrap().map(|entry| entry.unwrap().path()).collect();
    parts.sort();
    parts
}

#[test]
fn a_recording_reads_back_as_it_was_written() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    write(&path, (0..100).map(|i| i * 100));
    let expected: Vec<Event> = (0..100).map(|i| sample(i * 100)).collect();
    assert_eq!(read(&path).unwrap(), expected);
    // Ten seconds: parts of 1, 2, 4 s and the rest.
    assert_eq!(parts(&path).len(), 4);
    let reader = Reader::open(&path).unwrap();
    assert_eq!((reader.meta().state, reader.truncated_at()), (State::Finished, None));
}

/// Of four minutes of a program in Python a part with the names of its mappings was refused: they were more than 64
/// times the file, in which equal ones take no room.
#[test]
fn equal_texts_and_even_lists_of_any_length_are_read_back() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let mapping = |number: u64| {
        Event::Mapping(Box::new(MappingSample {
            time: Nanos(number),
            pid: Some(7),
            start: Some(4096),
            name: Some("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0".repeat(3)),
            ..MappingSample::default()
        }))
    };
    // Every other page of a GiB, in interval after interval.
    let pages: Vec<u64> = (0..1 << 17).map(|page| page << 13).collect();
    let touched = |number: u64| {
        Event::Touched(Box::new(Touched {
            time: Nanos((1 << 20) + number),
            pages: Some(vec![1; pages.len()]),
            starts: Some(pages.clone()),
            ..Touched::default()
        }))
    };
    let mut writer = Writer::create(&path, Meta::default(), false, None).unwrap();
    let events = || (0..16_000).map(mapping).chain((0..20).map(touched));
    events().for_each(|event| writer.event(&event).unwrap());
    writer.finish(Nanos(1 << 21)).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    for event in events() {
        assert_eq!(reader.next_event().unwrap(), Some(event));
    }
    assert_eq!(reader.next_event().unwrap(), None);
}

#[test]
fn a_row_that_comes_late_is_read_in_its_place() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    write(&path, [5, 9, 7, 7, 3, 10].into_iter());
    let times: Vec<_> =
        read(&path).unwrap().iter().map(|event| event.time().0 / 1_000_000).collect();
    assert_eq!(times, [3, 5, 7, 7, 9, 10]);
}

#[test]
fn events_of_several_kinds_are_read_back_as_one_sequence() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let mut writer = Writer::create(&path, Meta::default(), false, None).unwrap();
    let mut expected = Vec::new();
    for millis in 0..40 {
        let time = Nanos(millis * 100_000_000);
        let view = TierView { time, page: Some(vec![millis, 7]), ..TierView::default() };
        let decision = TierDecision { time, why: Some("room".into()), ..TierDecision::default() };
        expected.push(Event::TierView(Box::new(view)));
        // The same stamp: the view comes first.
        expected.push(Event::TierDecision(Box::new(decision)));
        if millis % 3 == 0 {
            expected.push(sample(millis * 100 + 50));
        }
    }
    expected.iter().for_each(|event| writer.event(event).unwrap());
    writer.finish(Nanos(9)).unwrap();
    assert_eq!(read(&path).unwrap(), expected);
    let mut datasets = Reader::open(&path).unwrap().meta().datasets.clone();
    datasets.sort();
    assert_eq!(datasets, ["decisions", "heap", "tiers"]);
    // With force, all of it goes.
    Writer::create(&path, Meta::default(), true, None).unwrap();
    assert_eq!(read(&path).unwrap(), []);
}

#[test]
fn a_killed_run_keeps_every_finished_part_and_says_where_it_ends() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let mut writer = Writer::create(&path, Meta::default(), false, None).unwrap();
    for millis in 0..25 {
        writer.event(&sample(millis * 100)).unwrap();
    }
    // Killed: no finish, and half a file under its temporary name.
    drop(writer);
    fs::write(path.join("heap/.part-00001-0123456789abcdef.parquet.tmp"), b"PAR1 half").unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let mut count = 0;
    while reader.next_event().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 11);
    assert_eq!(reader.truncated_at(), Some(Nanos(1_000_000_000)));
}

#[test]
fn what_is_no_recording_is_refused_in_one_line() {
    let room = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        let error = Reader::open(path).unwrap_err();
        assert!(!error.to_string().contains('\n'));
        (error.kind(), error.to_string())
    };
    let (kind, message) = refused(&room.path().join("nowhere"));
    assert_eq!(kind, Kind::NoRecording);
    assert!(message.ends_with("nowhere is no recording: it does not exist"), "{message}");
    assert!(refused(room.path()).1.ends_with("it has no meta.json"));

    fs::write(room.path().join(META), r#"{"name": "other"}"#).unwrap();
    assert!(refused(room.path()).1.ends_with("its meta.json is not pagemill's"));

    fs::write(room.path().join(META), r#"{"pagemill_recording": 99, "state": 7}"#).unwrap();
    let (kind, message) = refused(room.path());
    assert_eq!(kind, Kind::Newer);
    assert!(message.contains("format 99, this pagemill reads up to 1"), "{message}");

    fs::write(room.path().join(META), r#"{"pagemill_recording": 1, "state": "#).unwrap();
    assert_eq!(refused(room.path()).0, Kind::Damaged);
}

#[test]
fn nothing_is_overwritten_without_force_and_only_recordings_with_it() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let create = |force| Writer::create(&path, Meta::default(), force, None);
    create(false).unwrap();
    let error = create(false).unwrap_err();
    assert_eq!(error.kind(), Kind::Exists);
    assert!(
        error.to_string().ends_with("rec exists (use -f to overwrite it, or choose another name)")
    );
    create(true).unwrap();
    assert_eq!(read(&path).unwrap(), []);

    let other = room.path().join("home");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("thesis.tex"), "years of work").unwrap();
    let error = Writer::create(&other, Meta::default(), true, None).unwrap_err();
    assert_eq!(error.kind(), Kind::Exists);
    assert!(other.join("thesis.tex").exists());
}

/// Once, a bounded recording of page faults dropped where the program's memory was with its first part, and all slow
/// faults were in "unknown".
#[test]
fn a_bounded_recording_keeps_what_explains_the_rows_that_are_left() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let limit = Bytes(16 << 10);
    let mut writer = Writer::create(&path, Meta::default(), false, Some(limit)).unwrap();
    let mapping = Event::Mapping(Box::new(MappingSample { pid: Some(1), ..Default::default() }));
    writer.event(&mapping).unwrap();
    for millis in 1..40_000 {
        writer.event(&sample(millis * 10)).unwrap();
    }
    writer.finish(Nanos(9)).unwrap();
    let events = read(&path).unwrap();
    assert!(Reader::open(&path).unwrap().meta().losses.removed_samples > 0);
    assert_eq!(events.first(), Some(&mapping));
    assert_eq!(events.last(), Some(&sample(399_990)));
}

#[test]
fn a_bounded_recording_drops_its_oldest_parts_and_counts_them() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let mut writer = Writer::create(&path, Meta::default(), false, Some(Bytes(1))).unwrap();
    for millis in 0..40 {
        writer.event(&sample(millis * 100)).unwrap();
    }
    writer.finish(Nanos(9)).unwrap();
    let events = read(&path).unwrap();
    let lost = Reader::open(&path).unwrap().meta().losses.removed_samples;
    assert_eq!(parts(&path).len(), 1);
    assert_eq!(Reader::open(&path).unwrap().missing(), None, "removed on purpose");
    assert_eq!(events.len() as u64 + lost, 40);
    assert_eq!(events.last(), Some(&sample(3_900)));
}

#[test]
fn parts_that_were_deleted_are_missed_by_number_and_row() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    write(&path, (0..100).map(|i| i * 100));
    let missing = || {
        let mut reader = Reader::open(&path).unwrap();
        let mut rows = 0;
        while reader.next_event().unwrap().is_some() {
            rows += 1;
        }
        let missing = reader.missing().map(|missing| {
            (missing.parts.into_iter().flat_map(|part| part.1).collect::<Vec<_>>(), missing.rows)
        });
        (rows, missing)
    };
    assert_eq!(missing(), (100, None));
    // Parts of 1 s, 2 s, 4 s and the rest, a row each 100 ms; the row that closes a part is in it.
    fs::remove_file(&parts(&path)[1]).unwrap();
    assert_eq!(missing(), (79, Some((vec![1], 21))));
    fs::remove_file(&parts(&path)[2]).unwrap();
    assert_eq!(missing(), (52, Some((vec![1, 3], 48))));
    fs::remove_dir_all(path.join("heap")).unwrap();
    assert_eq!(missing(), (0, Some((vec![0, 1, 2, 3], 100))));
}

#[test]
fn a_recording_whose_header_counts_no_parts_misses_none() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    write(&path, 0..5);
    let header = fs::read_to_string(path.join(META)).unwrap();
    let mut header: serde_json::Value = serde_json::from_str(&header).unwrap();
    for member in ["parts", "checked", "checksum"] {
        header.as_object_mut().unwrap().remove(member).unwrap();
    }
    fs::write(path.join(META), header.to_string()).unwrap();
    assert_eq!(read(&path).unwrap().len(), 5);
    assert_eq!(Reader::open(&path).unwrap().missing(), None);
}

#[test]
fn a_summary_that_is_gone_is_missed_and_one_of_an_earlier_recording_is_not() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    write(&path, 0..5);
    keep_summary(&path, b"{}").unwrap();
    fs::remove_file(path.join(SUMMARY)).unwrap();
    let error = Reader::open(&path).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(error.to_string().contains("summary.json"), "{error}");
    let header = fs::read_to_string(path.join(META)).unwrap();
    let mut header: serde_json::Value = serde_json::from_str(&header).unwrap();
    for member in ["summary", "checked", "checksum"] {
        header.as_object_mut().unwrap().remove(member).unwrap();
    }
    fs::write(path.join(META), header.to_string()).unwrap();
    assert_eq!(read(&path).unwrap().len(), 5);
    // Its summary is kept, but the header stays what its writer made of it.
    keep_summary(&path, b"{}").unwrap();
    fs::write(path.join(SUMMARY), "half").unwrap();
    assert_eq!(Reader::open(&path).unwrap().take_summary(), None);
}

#[test]
fn a_recording_in_the_making_is_followed_part_by_part_to_its_end() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let mut writer = Writer::create(&path, Meta::default(), false, Some(Bytes(40_000))).unwrap();
    writer.flush_after(Nanos(500_000_000));
    let mut follower = Follower::open(&path).unwrap();
    let mut seen = Vec::new();
    let mut poll = |follower: &mut Follower| {
        let before = seen.len();
        let new = follower.poll(&mut |event| seen.push(event.clone())).unwrap();
        assert_eq!(new, seen.len() > before);
        seen.len()
    };
    assert_eq!(poll(&mut follower), 0);
    let mut rows = 0;
    for millis in (0..3_000).step_by(100) {
        writer.event(&sample(millis)).unwrap();
        rows += 1;
        // A part goes when its first row is half a second old.
        assert_eq!(poll(&mut follower), rows / 6 * 6, "{millis}");
    }
    assert!(!follower.is_finished());
    writer.event(&sample(3_000)).unwrap();
    writer.finish(Nanos(9)).unwrap();
    assert_eq!(poll(&mut follower), 31);
    assert!(follower.is_finished());
    assert_eq!(poll(&mut follower), 31);
    assert_eq!(seen, (0..31).map(|i| sample(i * 100)).collect::<Vec<_>>());
    assert!((2..6).contains(&parts(&path).len()), "the oldest have gone: {:?}", parts(&path));
    // A part that is damaged is an error once.
    let mut late = Follower::open(&path).unwrap();
    fs::write(parts(&path).remove(0), "damage").unwrap();
    assert_eq!(late.poll(&mut |_| {}).unwrap_err().kind(), Kind::Damaged);
    assert!(late.poll(&mut |_| {}).unwrap());
}

#[test]
fn what_only_passes_is_handed_on_and_leaves_no_file() {
    let mut writer = Writer::passing(Meta { comm: "sh".into(), ..Meta::default() });
    (0..3).for_each(|i| writer.event(&sample(i * 5_000)).unwrap());
    assert_eq!(writer.take(), [0, 5_000, 10_000].map(sample));
    assert_eq!((writer.take(), writer.size()), (vec![], Bytes(0)));
    assert_eq!(writer.meta().comm, "sh");
    writer.event(&sample(1)).unwrap();
    writer.finish(Nanos(9)).unwrap();
    assert!(!Path::new(META).exists());
}

#[test]
fn a_damaged_part_is_named() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    write(&path, 0..5);
    let part = parts(&path).remove(0);
    let mut bytes = fs::read(&part).unwrap();
    bytes[20] ^= 0x40;
    fs::write(&part, bytes).unwrap();
    let error = read(&path).unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(error.to_string().contains("part-00000-"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_meta_json_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let room = tempfile::tempdir().unwrap();
        fs::write(room.path().join(META), &text).unwrap();
        let _ = read(room.path());
        // And with the mark of the format, so that the fields are looked at.
        let marked = [br#"{"pagemill_recording":1,"#.as_slice(), &text, b"}"].concat();
        fs::write(room.path().join(META), &marked).unwrap();
        let _ = read(room.path());
    }

    /// Header and summary had no checksum that was looked at: six flipped bits of 160 made other reports.
    #[test]
    fn a_header_or_summary_with_a_change_anywhere_is_refused_by_name_or_says_the_same(
        at in any::<prop::sample::Index>(), change in 0..10u32, header: bool
    ) {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("rec");
        write(&path, 0..8);
        keep_summary(&path, br#"{"pages": 7}"#).unwrap();
        let (meta, summary) = {
            let mut reader = Reader::open(&path).unwrap();
            (reader.meta().clone(), reader.take_summary().unwrap())
        };
        prop_assert!(meta.summary);
        let file = path.join(if header { META } else { SUMMARY });
        let mut bytes = fs::read(&file).unwrap();
        let at = at.index(bytes.len());
        match change {
            0..8 => bytes[at] ^= 1 << change,
            8 => bytes.truncate(at),
            _ => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = byte.rotate_left(3) ^ 0x11),
        }
        fs::write(&file, &bytes).unwrap();
        match Reader::open(&path) {
            // The digit of the version may become a higher one, and then nothing else is looked at.
            Err(error) if header && error.kind() == Kind::Newer => {}
            Err(error) => {
                let named = if header { "meta.json" } else { SUMMARY };
                prop_assert!(error.to_string().contains(named), "{error}")
            }
            Ok(mut reader) => {
                prop_assert_eq!(reader.meta(), &meta);
                prop_assert_eq!(reader.take_summary(), Some(summary));
            }
        }
    }

    #[test]
    fn a_part_with_a_flipped_or_missing_byte_is_refused(at in any::<prop::sample::Index>(), bit in 0..8u32, cut: bool) {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("rec");
        write(&path, 0..8);
        let part = parts(&path).remove(0);
        let mut bytes = fs::read(&part).unwrap();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
        fs::write(&part, &bytes).unwrap();
        prop_assert_eq!(read(&path).unwrap_err().kind(), Kind::Damaged);
    }
}

#[test]
fn parts_with_the_checksum_of_earlier_recordings_are_read_and_other_contents_are_not() {
    // What FNV-1a says of these bytes (its authors' test vectors).
    assert!(is_of(b"foobar", 0x8594_4171_f739_67e8));
    assert!(is_of(b"foobar", checksum(b"foobar")));
    assert!(!is_of(b"foobas", 0x8594_4171_f739_67e8));
    assert!(!is_of(b"foobas", checksum(b"foobar")));
}

/// A recording of which nothing came left the directories above it.
#[test]
fn what_was_made_for_nothing_goes_and_what_was_there_stays() {
    let room = tempfile::tempdir().unwrap();
    let place = room.path().join("there/a/b/c");
    fs::create_dir(room.path().join("there")).unwrap();
    let writer = || Writer::create(&place, Meta::default(), false, None).unwrap();
    writer().abandon();
    assert!(fs::read_dir(room.path().join("there")).unwrap().next().is_none());
    let begun = writer();
    fs::write(room.path().join("there/a/other"), "").unwrap();
    begun.abandon();
    let left: Vec<_> = fs::read_dir(room.path().join("there/a")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
