//! Recordings of all kinds with one file changed, through every verb that reads recordings: refused with the file's
//! name, or read as if nothing had been changed. `PAGEMILL_MUTANTS=500` makes more of them, `PAGEMILL_SEED` others.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagemill_model::random::Random;
use support::{Ran, daemon, pagemill, ran, skip};

/// A kind of recording, and the words that read one of it in the directory `rec`.
struct Kind {
    name: &'static str,
    made: PathBuf,
    calls: Vec<Vec<&'static str>>,
}

fn words(calls: &[&'static str]) -> Vec<Vec<&'static str>> {
    let general = ["report rec", "report rec --json --redact", "compare rec rec --json"];
    let calls = general.iter().chain(calls);
    calls.map(|call| call.split(' ').collect()).collect()
}

fn kinds(room: &Path) -> Vec<Kind> {
    let recorded = |name: &'static str, options: &str, calls: &[&'static str]| {
        let made = room.join("whole").join(name);
        let mut command = pagemill();
        command.args(["record", "-o"]).arg(&made).args(options.split(' '));
        let run = ran(command.args(["--", "sh", "-c", "sleep 0.1; echo; /bin/true"]));
        if run.code() != Some(0) {
            return skip(&run.err);
        }
        Some(Kind { name, made, calls: words(calls) })
    };
    fs::create_dir(room.join("whole")).unwrap();
    let accesses = [
        "report rec --html out",
        "export rec --format perfetto -o out",
        "export rec --format moca -o out",
        "export rec --format parquet -o out",
        "simulate rec --tiers fast=16M,slow=640M --policy none,hemem --seconds 1 --threads 2",
    ];
    let tier = room.join("whole/tier");
    daemon::record(&tier, "hemem", false);
    let tier = Kind {
        name: "tier",
        made: tier,
        calls: words(&[
            "tier replay rec --json",
            "simulate rec --tiers fast=16M,slow=64M --seconds 1 --threads 2",
        ]),
    };
    let mut kinds: Vec<Kind> = [
        recorded("accesses", "--with accesses", &accesses),
        recorded("exact", "--with accesses --backend exact", &accesses[..3]),
        recorded(
            "faults",
            "--with faults,hugepages,sites --threshold 0ns",
            &[
                "plan rec --json",
                "hugepages rec --json",
                "export rec --format pftrace -o out",
                "simulate rec --huge linux-always --seconds 1",
            ],
        ),
        recorded("heap", "--with heap --interval 10ms", &["export rec --format perfetto -o out"]),
        recorded("frag", "--with faults,frag --interval 10ms", &[]),
        Some(tier),
    ]
    .into_iter()
    .flatten()
    .collect();
    let both = room.join("whole/validate");
    let mut command = pagemill();
    let run = ran(command.args(["validate", "-o"]).arg(&both).args(["--", "true"]));
    match run.code() {
        Some(0 | 1) => {
            let calls = vec![vec!["validate", "rec", "--json"]];
            kinds.push(Kind { name: "validate", made: both, calls });
        }
        _ => drop(skip::<()>(&run.err)),
    }
    kinds
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let found = Command::new("find").arg(directory).args(["-type", "f"]).output().unwrap();
    let mut files: Vec<_> =
        String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect();
    files.sort();
    files
}

/// Changes one file; how.
fn mutate(directory: &Path, random: &mut Random) -> String {
    let files = files(directory);
    let file = &files[random.index(files.len())];
    let mut bytes = fs::read(file).unwrap();
    let at = random.index(bytes.len());
    let how = match random.index(20) {
        0 => {
            fs::remove_file(file).unwrap();
            return format!("{} deleted", file.display());
        }
        1 => {
            bytes.truncate(bytes.len() / 2);
            "halved".to_owned()
        }
        2..8 => {
            bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = random.bits() as u8);
            format!("8 bytes from {at}")
        }
        _ => {
            let bit = random.index(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at}")
        }
    };
    fs::write(file, bytes).unwrap();
    format!("{}: {how}", file.display())
}

/// One call in a directory that has `rec`, and what it wrote.
fn call(room: &Path, words: &[&str]) -> (Ran, Option<Vec<u8>>) {
    let plain = pagemill();
    let mut command = Command::new("timeout");
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // What takes as long does not end; and nothing needs as much memory.
    let limits = "ulimit -v 8000000; exec \"$0\" \"$@\"";
    command.args(["-s", "KILL", "300", "bash", "-c", limits]).arg(plain.get_program());
    let run = ran(command.args(words).current_dir(room));
    let out = room.join("out");
    let wrote = fs::read(&out).ok();
    let _ = fs::remove_file(out);
    (run, wrote)
}

/// Six flipped bits of 160 in headers were taken, and nobody missed half a summary.
#[test]
fn a_changed_recording_is_refused_by_the_files_name_or_is_what_it_was() {
    let set = |name: &str, default| {
        std::env::var(name).map_or(default, |value| value.parse::<u64>().unwrap())
    };
    let (mutants, seed) = (set("PAGEMILL_MUTANTS", 28), set("PAGEMILL_SEED", 1));
    let room = tempfile::tempdir().unwrap();
    let kinds = kinds(room.path());
    assert!(kinds.len() >= 4, "what can be recorded here");
    let copied = |kind: &Kind, name: &str| {
        let place = room.path().join(name);
        fs::create_dir(&place).unwrap();
        let rec = place.join("rec");
        assert!(Command::new("cp").arg("-r").arg(&kind.made).arg(&rec).status().unwrap().success());
        (place, rec)
    };
    let whole: Vec<Vec<_>> = kinds
        .iter()
        .map(|kind| {
            let (place, rec) = copied(kind, kind.name);
            // The first reading keeps a summary.
            kind.calls.iter().for_each(|words| drop(call(&place, words)));
            fs::remove_dir_all(&kind.made).unwrap();
            assert!(
                Command::new("cp").arg("-r").arg(&rec).arg(&kind.made).status().unwrap().success()
            );
            kind.calls.iter().map(|words| call(&place, words)).collect()
        })
        .collect();
    let mut random = Random::new(seed);
    let mut wrong = Vec::new();
    let mut refused = 0;
    for number in 0..mutants {
        let at = number as usize % kinds.len();
        let (place, rec) = copied(&kinds[at], &number.to_string());
        let how = mutate(&rec, &mut random);
        for (words, (before, wrote)) in kinds[at].calls.iter().zip(&whole[at]) {
            let (now, writes) = call(&place, words);
            let same = now.status == before.status && now.out == before.out && writes == *wrote;
            let said = now.code() == Some(2)
                && ["meta.json", "summary.json", "part-", "gone"]
                    .iter()
                    .any(|name| now.err.contains(name));
            refused += u64::from(said);
            if (!same && !said) || now.err.contains("panicked") {
                wrong.push(format!("{words:?} {how}: {now:?}"));
            }
        }
        fs::remove_dir_all(place).unwrap();
    }
    assert!(wrong.is_empty(), "{} of {mutants} mutants: {wrong:#?}", wrong.len());
    assert!(refused > mutants, "hardly any change was seen: {refused}");
}
