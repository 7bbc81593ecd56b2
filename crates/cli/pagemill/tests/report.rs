//! `pagemill report` over recordings that the test writes, so that every figure is known.

#[expect(dead_code, reason = "each test file uses its part of the stand-in")]
#[expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]
mod stand_in;

use std::fs;
use std::path::Path;

use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::{Bytes, Event, HeapSample, Nanos};
use stand_in::{pagemill, run};

/// Ten seconds of a heap that shrinks from 100 to 40 MiB half way, with 30 MiB live.
fn record(path: &Path, finish: bool) {
    let meta = Meta {
        command: vec!["redis-server".into(), "<script>alert(1)</script>".into()],
        pid: 4711,
        comm: "redis-server".into(),
        not_measured: vec![NotMeasured {
            what: "child processes".into(),
            why: "not followed".into(),
        }],
        ..Meta::default()
    };
    let mut writer = Writer::create(path, meta, false, None).expect("the folder is new");
    for second in 0..=10 {
        let footprint = if second < 5 { 100 << 20 } else { 40 << 20 };
        let mut pauses = vec![0; 40];
        pauses[12] = second * 10;
        let sample = HeapSample {
            time: Nanos(second * 1_000_000_000),
            pss: Some(Bytes(footprint + (4 << 20))),
            rss: Some(Bytes(110 << 20)),
            live: Some(Bytes(30 << 20)),
            footprint: Some(Bytes(footprint)),
            cpu: Some(Nanos(second * 10_000_000)),
            started: Some(Nanos(0)),
            passes: Some(second),
            compact: Some(Nanos(second * 1_500_000)),
            pauses: Some(pauses),
            longest_pause: Some(Nanos(6_000)),
            stalls: Some(vec![0, second / 5]),
            longest_stall: Some(Nanos(3)),
            ..HeapSample::default()
        };
        writer.event(&Event::Heap(Box::new(sample))).expect("the disk has room");
    }
    if finish {
        writer.finish(Nanos(10_000_000_000)).expect("the disk has room");
    }
}

#[test]
fn text_has_the_table_the_chart_the_costs_and_what_is_missing() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    record(&rec, true);
    let (code, out, err) = run(pagemill().arg("report").arg(&rec));
    assert_eq!(code, Some(0), "{err}");
    for line in [
        "process   redis-server (4711)",
        "length    10.0 s, 11 samples\n",
        // 5 s at 100 and 5 s at 40.
        "heap footprint       70.0 MiB  100.0 MiB  40.0 MiB",
        "fragmentation score      0.47       0.70      0.25",
        "passes                        10",
        "time of compaction, total  15.0 ms",
        "50 %            4.1 us to    8.2 us",
        "longest, exact  6.0 us",
        "child processes: not followed",
        "* Rss   o memory   + heap footprint   x heap live",
    ] {
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(squeezed(&out).contains(&squeezed(line)), "{line} in\n{out}");
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    record(&rec, true);
    let mut child = pagemill()
        .args(["report", "--json"])
        .arg(&rec)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn json_is_named_as_the_columns_are() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    record(&rec, true);
    let (code, out, _) = run(pagemill().args(["report", "--json"]).arg(&rec));
    assert_eq!(code, Some(0));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["view"]["footprint_bytes"]["mean"], 70.0 * 1048576.0);
    assert_eq!(json["view"]["pss_bytes"]["peak"], 104.0 * 1048576.0);
    assert_eq!(json["view"]["passes"], 10);
    assert_eq!(json["view"]["pauses"]["count"], 100);
    assert_eq!(json["view"]["stalls"]["count"], 2);
    assert_eq!(json["view"]["stalls"]["longest_ns"], 3);
    assert_eq!(json["truncated_at_ns"], serde_json::Value::Null);
    assert_eq!(json["view"].get("cgroup_bytes"), None);
}

#[test]
fn html_is_one_file_that_fetches_nothing_and_runs_nothing() {
    let room = tempfile::tempdir().unwrap();
    let (rec, html) = (room.path().join("rec"), room.path().join("report.html"));
    record(&rec, true);
    let write = |flags: &[&str]| {
        run(pagemill().arg("report").arg(&rec).arg("--html").arg(&html).args(flags))
    };
    let (code, out, _) = write(&[]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
    let text = fs::read_to_string(&html).unwrap();
    assert!(text.contains("<svg") && text.contains("Memory over time"));
    // Browsers mend HTML in silence, and draw nothing where they cannot.
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(&text, options).unwrap();
    assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    for fetch in ["<script", "http:", "https:", "src=", "@import", "url("] {
        assert!(!text.contains(fetch), "{fetch}");
    }
    let (code, _, err) = write(&[]);
    assert_eq!(code, Some(2));
    assert!(err.contains("report.html exists (use -f to overwrite it)"), "{err}");
    assert_eq!(write(&["-f"]).0, Some(0));
}

#[test]
fn a_recording_that_was_cut_off_says_where() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    record(&rec, false);
    let (code, out, _) = run(pagemill().arg("report").arg(&rec));
    assert_eq!(code, Some(0));
    // Parts end at 1, 4 and 9 s; the row of 10 s was never written.
    assert!(out.contains("length    9.0 s, 10 samples, truncated at 9.0 s"), "{out}");
}

#[test]
fn a_recording_with_deleted_parts_shows_what_is_left_and_says_what_is_gone() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    record(&rec, true);
    let delete = |number: &str| {
        let parts = fs::read_dir(rec.join("heap")).unwrap().map(|part| part.unwrap().path());
        let begins = |part: &Path| part.file_name().unwrap().to_str().unwrap().contains(number);
        parts.filter(|part| begins(part)).for_each(|part| fs::remove_file(part).unwrap());
    };
    // Parts end at 1, 4, 9 and 10 s.
    delete("part-00001");
    let (code, out, err) = run(pagemill().arg("report").arg(&rec));
    assert_eq!(code, Some(2));
    assert!(out.contains("10.0 s, 8 samples\n") && out.contains("fragmentation score"), "{out}");
    for text in [&out, &err] {
        assert!(
            text.contains("3 rows are gone: the recording was written with part 1 of heap "),
            "{text}"
        );
    }
    ["part-00000", "part-00002", "part-00003"].into_iter().for_each(delete);
    let (code, out, _) = run(pagemill().args(["report", "--json"]).arg(&rec));
    assert_eq!(code, Some(2));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["missing"]["samples"], 11);
    assert_eq!(json["missing"]["heap_parts"], serde_json::json!([[0, 3]]));
}

#[test]
fn a_pause_before_the_recording_is_not_shown_as_the_recordings_longest() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let mut writer = Writer::create(&rec, Meta::default(), false, None).unwrap();
    // A heap that began at 1 s with a pause of 2 ms; the recording is from 10 to 12 s.
    for second in 10..=12 {
        let mut pauses = vec![0; 40];
        (pauses[12], pauses[20]) = (second, 1);
        let sample = HeapSample {
            time: Nanos(second * 1_000_000_000),
            started: Some(Nanos(1_000_000_000)),
            pauses: Some(pauses),
            longest_pause: Some(Nanos(2_000_000)),
            ..HeapSample::default()
        };
        writer.event(&Event::Heap(Box::new(sample))).unwrap();
    }
    writer.finish(Nanos(12_000_000_000)).unwrap();
    let (code, out, err) = run(pagemill().arg("report").arg(&rec));
    assert_eq!(code, Some(0), "{err}");
    let squeezed = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(!squeezed.contains("longest, exact"), "{out}");
    assert!(squeezed.contains("longest, its bucket 4.1 us to 8.2 us"), "{out}");
    assert!(squeezed.contains("longest of the heap's life, before this recording 2.0 ms"), "{out}");
}

#[test]
fn what_is_no_recording_gets_one_clear_line() {
    let room = tempfile::tempdir().unwrap();
    let report = |path: &Path| run(pagemill().arg("report").arg(path));
    let (code, _, err) = report(room.path());
    assert_eq!(code, Some(2));
    assert!(err.ends_with("is no recording: it has no meta.json\n"), "{err}");
    let (_, _, err) = report(Path::new("/nowhere/rec"));
    assert_eq!(err, "pagemill: /nowhere/rec is no recording: it does not exist\n");
    fs::write(room.path().join("meta.json"), r#"{"pagemill_recording": 2}"#).unwrap();
    let (_, _, err) = report(room.path());
    assert!(
        err.contains("has format 2, this pagemill reads up to 1 (use a newer pagemill)"),
        "{err}"
    );
}

#[test]
fn a_damaged_part_is_named_in_one_line() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    record(&rec, true);
    let part = fs::read_dir(rec.join("heap")).unwrap().next().unwrap().unwrap().path();
    fs::write(&part, b"PAR1 no more PAR1").unwrap();
    let (code, _, err) = run(pagemill().arg("report").arg(&rec));
    assert_eq!((code, err.lines().count()), (Some(2), 1));
    assert!(err.contains(part.file_name().unwrap().to_str().unwrap()), "{err}");
    assert!(err.contains("is damaged: its content does not match its checksum"), "{err}");
}

#[test]
fn sizes_are_plain_numbers_where_bytes_are_asked_for() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    record(&rec, true);
    let (code, human, err) = run(pagemill().arg("report").arg(&rec));
    assert_eq!(code, Some(0), "{err}");
    assert!(human.contains("110.0 MiB") && !human.contains("115343360"), "{human}");
    for arguments in [["--bytes", "report"], ["report", "--bytes"]] {
        let (code, plain, err) = run(pagemill().args(arguments).arg(&rec));
        assert_eq!(code, Some(0), "{err}");
        assert!(plain.contains("115343360") && !plain.contains("110.0 MiB"), "{plain}");
    }
}
