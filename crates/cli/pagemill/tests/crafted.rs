//! Recordings that were made up to cost whoever reads them, or that are not whole: refused by name, or answered in
//! bounded time and memory, by every verb that reads recordings.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

#[cfg(test)]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use pagemill_model::page::{BASE, HUGE};
use pagemill_model::recording::{Meta, NotMeasured, Writer};
use pagemill_model::{
    Access, AccessSetup, Allocation, Bytes, Event, Fault, FaultCounts, FaultSetup, HeapSample,
    MappingSample, Nanos, Touched,
};
use support::{Ran, pagemill, pagemill_with, ran};

const SECOND: u64 = 1_000_000_000;

/// A recording of these events, and two of them as `validate -o` keeps them.
fn made(room: &Path, setup: FaultSetup, events: impl IntoIterator<Item = Event>) {
    let meta = Meta {
        page_size: Bytes(BASE),
        started: Nanos(SECOND),
        faults: Some(setup),
        accesses: Some(AccessSetup { back_end: "clock".into(), ..AccessSetup::default() }),
        ..Meta::default()
    };
    made_with(room, meta, events);
}

fn made_with(room: &Path, meta: Meta, events: impl IntoIterator<Item = Event>) {
    let rec = room.join("rec");
    let mut writer = Writer::create(&rec, meta, false, None).unwrap();
    events.into_iter().for_each(|event| writer.event(&event).unwrap());
    writer.finish(Nanos(2 * SECOND)).unwrap();
    fs::create_dir(room.join("both")).unwrap();
    for name in ["both/exact", "both/faults"] {
        copied(&rec, &room.join(name));
    }
}

fn copied(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

/// Calls of every verb that reads recordings: `rec` is one, and `both` has two.
fn reading() -> Vec<String> {
    let help = pagemill_with(&["export", "--help"]).out;
    let listed = help.split("Possible values:").nth(1).unwrap().lines();
    let formats =
        listed.filter_map(|line| Some(line.trim().strip_prefix("- ")?.split_once(':')?.0));
    let exports = formats.map(|format| format!("export rec --format {format} -o out -f"));
    let calls = [
        "report rec",
        "report rec --json",
        "report rec --html out -f",
        "compare rec rec",
        "compare rec rec --json",
        "plan rec",
        "plan rec --explain",
        "hugepages rec",
        "advise rec",
        "advise rec --json",
        "live rec --once",
        "live rec --once --json",
        "validate both",
        "validate both --json",
        "tier replay rec",
        "simulate rec --huge linux-always,auto --time-limit 10",
        "simulate rec --huge ingens --fragmented 1 --pinned --time-limit 10s",
        "simulate rec --tiers fast=16M,slow=64M --policy none --seconds 1 --threads 2",
    ];
    calls.into_iter().map(str::to_owned).chain(exports).collect()
}

#[test]
fn no_verb_that_reads_recordings_is_forgotten_here() {
    let room = tempfile::tempdir().unwrap();
    let made = pagemill_with(&["generate", "man", "-o", room.path().to_str().unwrap()]);
    assert_eq!(made.code(), Some(0), "{made:?}");
    let calls = reading();
    let mut verbs = 0;
    for page in fs::read_dir(room.path()).unwrap().flatten() {
        let name = page.file_name().into_string().unwrap();
        let Some(verb) = name.strip_suffix(".1").unwrap().strip_prefix("pagemill-") else {
            continue;
        };
        let verb = verb.replace('-', " ");
        let usage = pagemill_with(&verb.split(' ').chain(["--help"]).collect::<Vec<_>>()).out;
        let usage = usage.lines().find(|line| line.contains("Usage:")).unwrap().to_owned();
        if ["REC>", "REC]", "DIR]"].iter().any(|word| usage.contains(word)) {
            verbs += 1;
            let called = calls.iter().any(|call| call.starts_with(&format!("{verb} ")));
            assert!(called, "{verb} reads recordings: {usage}");
        }
    }
    assert!(verbs > 6, "{verbs}");
}

fn fault(time: u64, address: u64, latency: u64) -> Event {
    Event::Fault(Box::new(Fault {
        time: Nanos(time),
        latency: Nanos(latency),
        pid: Some(7),
        address: Some(address),
        ..Fault::default()
    }))
}

fn mapping(start: u64, end: u64) -> Event {
    Event::Mapping(Box::new(MappingSample {
        time: Nanos(SECOND),
        pid: Some(7),
        start: Some(start),
        end: Some(end),
        permissions: Some("rw-p".into()),
        name: Some(String::new()),
        anonymous: Some(Bytes(1 << 56)),
        ..MappingSample::default()
    }))
}

fn counts(count: u64) -> Event {
    Event::FaultCounts(Box::new(FaultCounts {
        time: Nanos(2 * SECOND),
        buckets: Some(vec![100, 200]),
        counts: Some(vec![count, 1]),
        ..FaultCounts::default()
    }))
}

fn access(address: u64) -> Event {
    Event::Access(Box::new(Access {
        time: Nanos(SECOND),
        pid: Some(7),
        address: Some(address),
        ..Access::default()
    }))
}

/// A call in the room, of 8 GB and four minutes at the most: this is a build for tests, and other tests run beside it.
fn call(room: &Path, words: &str) -> Ran {
    limited(room, words, "ulimit -v 8000000; exec \"$0\" \"$@\"")
}

fn limited(room: &Path, words: &str, limits: &str) -> Ran {
    let plain = pagemill();
    let mut command = Command::new("timeout");
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["-s", "KILL", "240", "bash", "-c", limits]).arg(plain.get_program());
    ran(command.args(words.split(' ')).current_dir(room))
}

/// Every call that reads such a recording answers, or says why not, and ends by itself.
fn ends(events: impl IntoIterator<Item = Event>) {
    let room = tempfile::tempdir().unwrap();
    made(room.path(), FaultSetup { details: true, ..Default::default() }, events);
    for words in reading() {
        let run = call(room.path(), &words);
        assert!(matches!(run.code(), Some(0..=2)), "{words}: {run:?}");
        for end in ["panicked", "there is no memory for"] {
            assert!(!run.err.contains(end), "{words}: {run:?}");
        }
    }
}

/// A megabyte of faults, one a region, was simulated for longer than anybody waited.
#[test]
fn faults_all_over_the_address_space_end() {
    ends((0..20_000).map(|n| fault(SECOND + n, n * 4 * HUGE, 1000)));
}

/// So were two thousand that a day lay between.
#[test]
fn faults_over_a_day_end() {
    let faults = (0..2000).map(|n| fault(SECOND + n * 43 * SECOND, n * 4 * HUGE, 1000));
    ends(faults.chain([counts(2000)]));
}

/// Each of these mappings overlaps all others, and each had all faults.
#[test]
fn mappings_that_overlap_and_are_wider_than_any_memory_end() {
    let maps = (0..20_000).map(|n| mapping(n * HUGE, (n + 20_000) * HUGE));
    let faults = (0..20_000).map(|n| fault(SECOND + n, n * HUGE, 1000));
    let wide = (8..1000).map(|n| mapping(n << 44, (n << 44) + (1 << 43)));
    ends(maps.chain(wide).chain(faults));
}

/// Each that is given back had all pages looked at.
#[test]
fn large_allocations_that_come_and_go_end() {
    let allocation = |n: u64| {
        Event::Allocation(Box::new(Allocation {
            time: Nanos(SECOND + n),
            pid: Some(7),
            address: Some(1 << 40),
            size: (n % 2 == 1).then_some(1 << 39),
            stack: Some(vec![n]),
        }))
    };
    ends((0..50_000).map(|n| access(n * BASE)).chain((1..50_000).map(allocation)));
}

/// Where an address and what is counted from it are together more than there is.
#[test]
fn addresses_at_the_end_of_memory_end() {
    let last = u64::MAX / 2;
    let touched = Touched {
        time: Nanos(SECOND + 9),
        pid: Some(7),
        began: Some(Nanos(SECOND)),
        starts: Some(vec![0, last - 1]),
        pages: Some(vec![1 << 44, 1 << 44]),
        written_starts: Some(vec![last]),
        written_pages: Some(vec![1 << 44]),
        ..Touched::default()
    };
    let allocation = Allocation {
        time: Nanos(SECOND),
        pid: Some(7),
        address: Some(last),
        size: Some(1 << 56),
        stack: Some(vec![last]),
    };
    ends([
        mapping(0, last),
        mapping(last, 1),
        Event::Allocation(Box::new(allocation)),
        access(last),
        fault(SECOND + 1, last, 1 << 55),
        Event::Touched(Box::new(touched)),
    ]);
}

/// Sums of such figures were printed, and the exit code said that all was well.
#[test]
fn figures_that_no_machine_has_are_refused_and_named() {
    let sized = |size| {
        let (pid, address, size) = (Some(7), Some(4096), Some(size));
        let time = Nanos(SECOND);
        Event::Allocation(Box::new(Allocation { time, pid, address, size, stack: None }))
    };
    let pages = |pages| {
        let (starts, pages) = (Some(vec![4096]), Some(vec![pages]));
        let time = Nanos(SECOND);
        Event::Touched(Box::new(Touched { time, starts, pages, ..Touched::default() }))
    };
    let setup = |lost| FaultSetup { details: true, lost, ..FaultSetup::default() };
    let mut wrong = Vec::new();
    for (setup, event, said) in [
        (setup(0), counts(u64::MAX), "counts is 9223372036854775807"),
        (setup(0), fault(SECOND, 4096, u64::MAX / 2), "latency_ns is "),
        (setup(0), sized(1 << 60), "size_bytes is "),
        (setup(0), pages(1 << 60), "pages is 1152921504606846976"),
        (setup(u64::MAX), counts(1), "faults: lost: 18446744073709551615 is more than"),
        (setup(0), counts(1 << 50), "1125899906842625 page faults in 1.0 s"),
    ] {
        let room = tempfile::tempdir().unwrap();
        made(room.path(), setup, [event]);
        for words in reading() {
            // Faults for the time are impossible only where both are looked at; live needs no allocations.
            let judged = !said.contains(" page faults ")
                || ["report rec", "report rec --json"].contains(&&*words);
            let skipped = words.starts_with("live") && said.starts_with("size");
            if judged && !skipped {
                wrong.extend(complaint(room.path(), &words, &[said, "made up"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What is wrong with how a call refuses: it ends with 2, says why in a line that has these words, and leaves nothing.
fn complaint(room: &Path, words: &str, said: &[&str]) -> Option<String> {
    let run = call(room, words);
    // Which tier is which is told first.
    let lines: Vec<&str> =
        run.err.lines().filter(|line| !line.contains("alternate tier")).collect();
    let fits = run.code() == Some(2)
        && lines.len() == 1
        && lines[0].starts_with("pagemill: ")
        && said.iter().all(|said| lines[0].contains(said))
        && !room.join("out").exists();
    (!fits).then(|| format!("{words}, {said:?}: {run:?}"))
}

/// One of each kind that the verbs above read.
fn sample(name: &str) -> Vec<Event> {
    let runs = |time: u64| {
        Event::Touched(Box::new(Touched {
            time: Nanos(SECOND + time * 1000),
            pid: Some(7),
            number: Some(time),
            began: Some(Nanos(SECOND + time * 1000 - 1000)),
            starts: Some(vec![4096, 1 << 21]),
            pages: Some(vec![1, 16]),
            written_starts: Some(vec![4096]),
            written_pages: Some(vec![1]),
            ..Touched::default()
        }))
    };
    let heap = HeapSample {
        time: Nanos(SECOND + 5),
        pid: Some(7),
        pss: Some(Bytes(1 << 24)),
        config: Some(name.into()),
        ..HeapSample::default()
    };
    let allocation = Allocation {
        time: Nanos(SECOND),
        pid: Some(7),
        address: Some(1 << 21),
        size: Some(1 << 16),
        stack: Some(vec![0x40_1000]),
    };
    let named = |start, end, name: &str| match mapping(start, end) {
        Event::Mapping(mut row) => {
            row.name = Some(name.into());
            row.permissions = Some("r-xp".into());
            row.anonymous = None;
            Event::Mapping(row)
        }
        other => other,
    };
    let mut events = vec![
        named(0x40_0000, 0x50_0000, name),
        mapping(0x10_0000, 0x40_0000),
        Event::Allocation(Box::new(allocation)),
        Event::Heap(Box::new(heap)),
        fault(SECOND + 1, 1 << 21, 1000),
        counts(3),
    ];
    events.extend((0..64).map(|n| access(4096 + n % 16 * 65536)));
    events.extend((1..5).map(runs));
    events
}

/// `live` showed what was left of a recording with a part gone as if it were the whole, and `advise` one that was not.
#[test]
fn a_recording_with_a_part_gone_or_changed_is_refused_by_every_verb() {
    let room = tempfile::tempdir().unwrap();
    made(room.path(), FaultSetup { details: true, ..Default::default() }, sample("/bin/true"));
    let whole: Vec<Ran> = reading().iter().map(|words| call(room.path(), words)).collect();
    let mut datasets = Vec::new();
    for place in fs::read_dir(room.path().join("rec")).unwrap().flatten() {
        datasets.extend(place.path().is_dir().then(|| place.file_name().into_string().unwrap()));
    }
    assert_eq!(datasets.len(), 7, "{datasets:?}");
    let mut wrong = Vec::new();
    for (dataset, damage) in
        datasets.iter().flat_map(|set| ["gone", "bit", "half"].map(|how| (set, how)))
    {
        let own = tempfile::tempdir().unwrap();
        for rec in ["rec", "both"] {
            copied(&room.path().join(rec), &own.path().join(rec));
        }
        for rec in ["rec", "both/faults"] {
            let place = own.path().join(rec).join(dataset);
            let part = fs::read_dir(place).unwrap().flatten().next().unwrap().path();
            let mut bytes = fs::read(&part).unwrap();
            let half = bytes.len() / 2;
            match damage {
                "gone" => fs::remove_file(&part).unwrap(),
                "bit" => {
                    bytes[half] ^= 4;
                    fs::write(&part, bytes).unwrap();
                }
                _ => fs::write(&part, &bytes[..half]).unwrap(),
            }
        }
        for (words, before) in reading().iter().zip(&whole) {
            let run = call(own.path(), words);
            let what = format!("{words}, {dataset}, {damage}: {run:?}");
            let over = match words {
                _ if damage == "gone" => false,
                _ if words.starts_with("live") => ["allocations", "accesses"].contains(&&**dataset),
                // What they tell is in the summary.
                _ if words.contains("folded") || words.contains("speedscope") => {
                    damage == "bit" && !["allocations", "accesses", "touched"].contains(&&**dataset)
                }
                _ => false,
            };
            let named = match damage {
                "gone" => {
                    ["gone", &format!("part 0 of {dataset}")].iter().all(|it| run.err.contains(it))
                }
                _ => run.err.contains(&format!("{dataset}/part-")) && run.err.contains("damaged"),
            };
            let fits = match over {
                true => run.code() == before.code(),
                false => run.code() == Some(2) && named && !run.err.contains("panicked"),
            };
            wrong.extend((!fits).then_some(what));
        }
    }
    assert!(wrong.is_empty(), "{} answers: {wrong:#?}", wrong.len());
}

/// A pipe in the place of a file was waited for until somebody wrote to it, and of `/dev/zero` 4 GiB were read.
#[test]
fn what_is_no_recording_or_has_something_else_in_a_files_place_is_refused() {
    let is_none = "is no recording";
    let mut wrong = Vec::new();
    let mut made_by = |script: &str, said: &[&str]| {
        let room = tempfile::tempdir().unwrap();
        made(room.path(), FaultSetup { details: true, ..Default::default() }, sample("/bin/true"));
        let run = ran(Command::new("sh").args(["-ec", script]).current_dir(room.path()));
        assert_eq!(run.code(), Some(0), "{script}: {run:?}");
        for words in reading() {
            // What is no directory may be a workload, a trace or a profile.
            let other = ["simulate", "report", "plan"].iter().any(|verb| words.starts_with(verb));
            let said = if other && said[0] == is_none { &["rec"] } else { said };
            wrong.extend(complaint(room.path(), &words, said));
        }
    };
    let everywhere =
        |script: &str| format!("for rec in $PWD/rec $PWD/both/*; do cd $rec; {script}; done");
    let instead = |script: &str| everywhere(&format!("cd ..; rm -r $rec; {script}"));
    let in_place = |file: &str, script: &str| everywhere(&format!("rm {file}; {script}"));
    made_by(&instead(":"), &[is_none, "does not exist"]);
    made_by(&instead("mkdir $rec"), &[is_none, "no meta.json"]);
    made_by(&instead("echo 1 >$rec"), &[is_none, "no meta.json"]);
    made_by(&instead("mkfifo $rec"), &[is_none, "no meta.json"]);
    made_by(&in_place("meta.json", ": >meta.json"), &["meta.json is damaged"]);
    made_by(&in_place("meta.json", "echo {} >meta.json"), &[is_none]);
    made_by(&in_place("meta.json", "mkdir meta.json"), &["meta.json", "no regular file"]);
    made_by(&in_place("meta.json", "mkfifo meta.json"), &["meta.json", "no regular file"]);
    made_by(&in_place("meta.json", "ln -s /dev/zero meta.json"), &["meta.json", "no regular file"]);
    let part = "p=$(echo $rec/heap/part-*); rm $p";
    made_by(&everywhere(&format!("{part}; mkfifo $p")), &["heap/part-", "no regular file"]);
    made_by(&everywhere(&format!("{part}; mkdir $p")), &["heap/part-", "no regular file"]);
    made_by(
        &everywhere(&format!("{part}; ln -s /dev/zero $p")),
        &["heap/part-", "no regular file"],
    );
    made_by(&in_place("-r heap", "echo >heap"), &["cannot read", "heap"]);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whoever made a recording names files in it, and they are looked at for the names of what is in them.
#[test]
fn files_that_a_recording_names_are_read_only_if_they_are_programs() {
    let other = tempfile::tempdir().unwrap();
    let pipe = other.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for named in [pipe.to_str().unwrap(), "/dev/zero", "/dev/tty", "/proc/kcore"] {
        let room = tempfile::tempdir().unwrap();
        let mut events = sample(named);
        events.extend((0..4).map(|n| access(0x40_0000 + n * BASE)));
        made(room.path(), FaultSetup { details: true, ..Default::default() }, events);
        for words in reading() {
            let limits = "ulimit -v 1500000; exec \"$0\" \"$@\"";
            let run = limited(room.path(), &words, limits);
            assert!(matches!(run.code(), Some(0..=2)), "{words}, {named}: {run:?}");
            assert!(!run.err.contains("there is no memory for"), "{words}, {named}: {run:?}");
        }
    }
}

/// Names in a recording are those of strangers, in whatever form they are passed on.
#[test]
fn escape_sequences_in_a_recording_are_spelled_out_by_every_verb() {
    const EVIL: &str = "/evil\u{1b}]0;owned\u{7}\u{1b}[31m\r\u{202e}\u{9b}2J";
    let room = tempfile::tempdir().unwrap();
    let words = || vec![EVIL.to_owned(); 2];
    let why = NotMeasured { what: EVIL.into(), why: EVIL.into() };
    let meta = Meta {
        tool: EVIL.into(),
        command: words(),
        comm: EVIL.into(),
        kernel: EVIL.into(),
        machine: EVIL.into(),
        clock: EVIL.into(),
        capabilities: words(),
        not_measured: vec![why],
        page_size: Bytes(BASE),
        started: Nanos(SECOND),
        faults: Some(FaultSetup {
            details: true,
            back_end: EVIL.into(),
            not_used: words(),
            ..FaultSetup::default()
        }),
        accesses: Some(AccessSetup {
            back_end: EVIL.into(),
            not_used: words(),
            untraced: words(),
            ..AccessSetup::default()
        }),
        ..Meta::default()
    };
    let mut events = sample(EVIL);
    events.extend((0..4).map(|n| access(0x40_0000 + n * BASE)));
    made_with(room.path(), meta, events);
    let steers = |text: &str| {
        text.chars().any(|c| c == '\u{202e}' || c.is_control() && !matches!(c, '\n' | '\t'))
    };
    let (mut spelled, mut wrong) = (0, Vec::new());
    for words in reading() {
        let run = call(room.path(), &words);
        let fits = matches!(run.code(), Some(0..=2)) && !steers(&run.out) && !steers(&run.err);
        wrong.extend((!fits).then(|| format!("{words}: {run:?}")));
        let out = room.path().join("out");
        let wrote = fs::read(&out).unwrap_or_default();
        if !words.contains("parquet") && !words.contains("pftrace") {
            let text = String::from_utf8(wrote).unwrap();
            wrong.extend(steers(&text).then(|| format!("{words}: {text}")));
            spelled += usize::from(text.contains("u001b"));
        }
        spelled += usize::from(run.out.contains("\\u001b]0;owned"));
        let _ = fs::remove_file(out);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(spelled > 8, "{spelled} answers have the names");
}
