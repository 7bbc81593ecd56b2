//! What `advise` answers on programs of known truth, many times each: time counts here, so it is no test of every day.
//!
//! `PAGEMILL_TIMES=20 cargo test -p pagemill --test truth -- --ignored --nocapture` prints a line a program and turn,
//! and in the end how often the answer was right; `PAGEMILL_PROGRAMS=hurt,nothing` runs some.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use serde_json::Value;
use support::{compiled, pagemill, ran};

/// The programs' names, what is asked beside, and the levers that are right; none: the command as it is.
const PROGRAMS: [(&str, &[&str], &[&str]); 6] = [
    ("hurt", &[], &["no huge pages"]),
    ("nothing", &[], &[]),
    ("cold", &["--goal", "memory"], &[]),
    ("kept", &["--goal", "memory"], &[]),
    // All of them back the table with huge pages.
    (
        "walks",
        &["--goal", "speed"],
        &["malloc huge", "huge pages always", "pages by trial", "huge pages ahead"],
    ),
    ("holes", &["--goal", "memory"], &["compacting heap"]),
];

/// Of these programs so much is not used at least, bytes.
const UNUSED: [&str; 2] = ["cold", "kept"];
const COLD: u64 = 60 << 20;

#[test]
#[ignore = "it takes half a minute a program and turn, and a busy machine changes what it measures"]
fn the_right_lever_is_named_or_none() {
    let variable = |name: &str| std::env::var(name).ok();
    let times = variable("PAGEMILL_TIMES").map_or(1, |times| times.parse::<usize>().unwrap());
    let asked = variable("PAGEMILL_PROGRAMS");
    let asked = |name: &str| asked.as_ref().is_none_or(|all| all.split(',').any(|one| one == name));
    let room = tempfile::tempdir().unwrap();
    let source = include_str!("truth/known.c");
    let Some(known) = compiled(&room, "known", source, &["-O1"]) else { return };
    let mut wrong = Vec::new();
    for (name, options, right) in PROGRAMS.iter().filter(|(name, ..)| asked(name)) {
        let mut hits = 0;
        for turn in 1..=times {
            // Where free memory is in pieces, pages of 2 MiB cost what they bring, and are rightly not named.
            if *name == "walks" {
                let compacted = ran(pagemill().args(["frag", "compact"]));
                println!("{}{}", compacted.out.lines().next().unwrap_or_default(), compacted.err);
            }
            let mut advise = pagemill();
            advise.args(["advise", "--json"]).args(*options).arg("--").arg(&known).arg(name);
            let ran = ran(&mut advise);
            let advice: Value =
                serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
            let choice = advice["choice"]["lever"].as_str();
            let decided = advice["undecided"] == false;
            let cold = || advice["seen"]["cold_bytes"].as_u64() >= Some(COLD);
            let seen = !UNUSED.contains(name) || cold();
            let hit = seen && decided && choice.map_or(right.is_empty(), |it| right.contains(&it));
            hits += usize::from(hit);
            println!("{name} {turn}: {}", advice["conclusion"]);
        }
        println!("{name}: {hits} of {times}");
        if hits < times {
            wrong.push(*name);
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
