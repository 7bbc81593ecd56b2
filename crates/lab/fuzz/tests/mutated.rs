//! Every target with mutated seeds: none of them makes it panic. `PAGEMILL_FUZZ=100000` makes more of them,
//! `PAGEMILL_SEED` others. An input that does is kept in the directory for temporary files and named, and goes to
//! `cargo fuzz run TARGET FILE` as it is.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use pagemill_fuzz::{TARGETS, Target};
use pagemill_model::random::Random;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Changes some places: bits, bytes, numbers, pieces.
fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    const WORDS: [&[u8]; 12] = [
        b"18446744073709551615",
        b"-1",
        b"0",
        b"9223372036854775808",
        b"ffffffffffffffff",
        b"\0",
        b"\n",
        b" ",
        b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x00\x00\x00\x00\x00\x00\x00\x80",
        b"\xc3\xa4",
    ];
    for _ in 0..1 + random.index(4) {
        if bytes.is_empty() {
            bytes.push(0);
        }
        let at = random.index(bytes.len());
        match random.index(8) {
            0 => bytes[at] ^= 1 << random.index(8),
            1 => bytes[at] = random.bits() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..(at + 1 + random.index(16)).min(bytes.len()))),
            4 => {
                let word = WORDS[random.index(WORDS.len())];
                let end = (at + word.len()).min(bytes.len());
                bytes.splice(at..end, word.iter().copied());
            }
            5 => {
                // A number in the text becomes another.
                let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric());
                let end = at + digits.count();
                bytes.splice(at..end, WORDS[random.index(5)].iter().copied());
            }
            6 => {
                let piece = bytes[at..(at + 40).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let other = &others[random.index(others.len())];
                let from = random.index(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
    bytes.truncate(1 << 20);
}

fn drive(target: &Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    let mut random = Random::new(setting("PAGEMILL_SEED", 1));
    // Programs are large.
    let size = seeds.iter().map(Vec::len).sum::<usize>() / seeds.len();
    let count = match target.name {
        _ if size > 20_000 => 100,
        // Each writes a recording, and works through it several times.
        "advised" | "followed" => 300,
        _ => 1000,
    };
    let count = setting("PAGEMILL_FUZZ", count);
    for number in 0..count as usize {
        let mut bytes = seeds[number % seeds.len()].clone();
        if number >= seeds.len() {
            mutate(&mut bytes, &seeds, &mut random);
        }
        if catch_unwind(AssertUnwindSafe(|| (target.body)(&bytes))).is_err() {
            let kept = std::env::temp_dir().join(format!("pagemill-fuzz-{}-{number}", target.name));
            let wrote = std::fs::write(&kept, &bytes);
            panic!("{} panics, see above; its input: {} ({wrote:?})", target.name, kept.display());
        }
    }
}

fn drive_named(name: &str) {
    drive(TARGETS.iter().find(|target| target.name == name).unwrap());
}

macro_rules! driven {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            drive_named(stringify!($name));
        })*

        #[test]
        fn every_target_is_driven_here_and_by_cargo_fuzz() {
            let here = [$(stringify!($name)),*];
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, here);
            let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz");
            let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
            for name in names {
                let file: PathBuf = fuzz.join("fuzz_targets").join(format!("{name}.rs"));
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                assert!(text.contains(&format!("run(\"{name}\", bytes)")), "{}", file.display());
                assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
            }
        }
    };
}

driven! {
    perf_data pftrace profile machine latencies meta part cell collected traces program events kernel
    matrix malloc emulator records code state stats_page request resp
    memcached free_memory board ring answers reports
    advised followed summary
}
