//! The board of `run --huge`, which any process of the user may write while the launcher reads it.
//!
//! ```text
//!  policy 1 │ profile, dry 1 │ process 1 │ word 1 │ value 8 │ …       process 255: a look, `value` µs later
//! ```

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use pagemill_control::costs::Calibration;
use pagemill_control::huge::launcher::{Launcher, Options};
use pagemill_kernel::memory::huge_costs::HugeCosts;
use pagemill_kernel::settings::loan;
use pagemill_kernel::{Linux, clock};
use pagemill_model::Pid;
use pagemill_policy::huge::POLICIES;
use pagemill_policy::huge::profile::Profile;
use pagemill_prefault::board::{Head, ProcessWord, REGIONS, RegionWord};

use crate::scratch::{in_scratch, put};
use crate::seeds;

/// A process that has files below the root of ours.
const PID: u32 = 4242;
/// Words of a process.
const WORDS: usize = ProcessWord::Words as usize + REGIONS * RegionWord::Words as usize;
/// Processes whose words are written.
const PROCESSES: usize = 4;
/// Looks at a board, each of which reads the machine.
const LOOKS: usize = 30;

/// What a launcher makes of a board that others write.
pub fn board(bytes: &[u8]) {
    let _ = orders(bytes);
}

/// The orders that the first process's first region has in the end, for its generation; `None` without a launcher.
fn orders(bytes: &[u8]) -> Option<(u64, u64)> {
    let (&[which, how], bytes) = bytes.split_first_chunk::<2>()?;
    let mut told = None;
    in_scratch(|room| {
        let root = room.join("board");
        let linux = Linux::at(&root);
        let measured = HugeCosts {
            base_ns: Some(500),
            huge_ns: Some(90_000),
            huge_cold_ns: Some(900_000),
            cold_permille: Some(125),
            ..HugeCosts::default()
        };
        let known = Calibration { boot: "one".into(), measured_unix_s: 7, measured };
        let known = serde_json::to_vec(&known).unwrap_or_default();
        let made = loan::make(&loan::directory(&linux)).is_ok()
            && put(&loan::directory(&linux).join("huge-costs.json"), &known).is_ok()
            && put(&linux.path("/proc/sys/kernel/random/boot_id"), b"one\n").is_ok()
            && put(&linux.process_file(Pid(PID), "stat"), b"").is_ok()
            && put(&linux.path("/sys/kernel/mm/transparent_hugepage/enabled"), ENABLED).is_ok()
            && put(&linux.path("/proc/meminfo"), MEMORY).is_ok()
            && put(&linux.path("/proc/loadavg"), b"0.10 0.1 0.1 1/100 7\n").is_ok();
        let profile = seeds::profile().first().and_then(|text| {
            Profile::parse(&String::from_utf8_lossy(text)).ok().filter(|_| how & 1 != 0)
        });
        let options = Options {
            policy: POLICIES[usize::from(which) % POLICIES.len()],
            profile,
            log: None,
            force: false,
            dry: how & 2 != 0,
            stats: None,
            command: Vec::new(),
            // Helped from outside, so that no setting is borrowed.
            pid: Some(Pid(PID)),
            forget: false,
        };
        if let Some(mut launcher) = made.then(|| Launcher::new(&linux, options).ok()).flatten() {
            told = written(&mut launcher, bytes);
        }
    });
    told
}

const ENABLED: &[u8] = b"always [madvise] never\n";
const MEMORY: &[u8] = b"MemTotal: 16384000 kB\nMemFree: 8192000 kB\nMemAvailable: 12288000 kB\n";

/// Writes to the board and has it looked at.
fn written(launcher: &mut Launcher, bytes: &[u8]) -> Option<(u64, u64)> {
    let file = OpenOptions::new().read(true).write(true).open(launcher.board_path()).ok()?;
    let (mut now, mut looks) = (clock::monotonic(), 0);
    for chunk in bytes.as_chunks::<10>().0 {
        let [process, word, value @ ..] = *chunk;
        let value = u64::from_le_bytes(value);
        if process == u8::MAX {
            now += Duration::from_micros(value % 4_000_000);
            looks += 1;
            if looks > LOOKS {
                break;
            }
            launcher.tick_at(now).ok()?;
        } else {
            let at = place(usize::from(process) % PROCESSES, usize::from(word) % WORDS);
            file.write_all_at(&value.to_le_bytes(), at).ok()?;
        }
    }
    launcher.tick_at(now + Duration::from_secs(2)).ok()?;
    let first =
        |word: RegionWord| word_at(&file, place(0, ProcessWord::Words as usize + word as usize));
    Some((first(RegionWord::For)?, first(RegionWord::Order)?))
}

/// Where in the file a word of a process is.
fn place(process: usize, word: usize) -> u64 {
    ((Head::Words as usize + process * WORDS + word) * size_of::<u64>()) as u64
}

fn word_at(file: &File, at: u64) -> Option<u64> {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, at).ok()?;
    Some(u64::from_le_bytes(word))
}

pub fn seeds() -> Vec<Vec<u8>> {
    let put = |word: usize, value: u64| [&[0, word as u8], &value.to_le_bytes()[..]].concat();
    let look = |us: u64| [&[u8::MAX, 0], &us.to_le_bytes()[..]].concat();
    let process = |word: ProcessWord, value| put(word as usize, value);
    let region = |word: RegionWord, value| put(ProcessWord::Words as usize + word as usize, value);
    // A program that grows by 100 MiB between two looks, and takes time for it.
    let grows = |step: u64| {
        let grown = step * (100 << 20);
        [
            process(ProcessWord::Resident, grown),
            process(ProcessWord::Grown, grown),
            process(ProcessWord::ProgramNs, step * 150_000_000),
            process(ProcessWord::HelperNs, step * 10_000_000),
            process(ProcessWord::Rounds, step * 50),
            process(ProcessWord::HugePages, step * 40),
            process(ProcessWord::BasePages, step * 512),
            region(RegionWord::Touched, 0x7f00_0000_0000 + grown),
            look(100_000),
        ]
        .concat()
    };
    let begins = [
        process(ProcessWord::Pid, PID.into()),
        process(ProcessWord::HugeNs, 80_000),
        process(ProcessWord::BaseNs, 200_000),
        process(ProcessWord::Pool, 3),
        region(RegionWord::Generation, 2),
        region(RegionWord::Start, 0x7f00_0000_0000),
        region(RegionWord::End, 0x7f00_8000_0000),
        region(RegionWord::Touched, 0x7f00_0000_0000),
        look(1000),
    ]
    .concat();
    // Whatever the words say: all as large as can be, then back.
    let most = |value: u64| {
        let words = (1..=ProcessWord::Words as usize).map(|word| put(word, value));
        let words = words.chain([region(RegionWord::Touched, value), look(100_000)]);
        words.collect::<Vec<_>>().concat()
    };
    let odd = [most(u64::MAX), grows(21), most(u64::MAX - 1), most(1 << 63), most(u64::MAX)];
    let words = [begins, (1..20).flat_map(grows).collect(), odd.concat()].concat();
    let policies = (0_u8..).take(POLICIES.len());
    let plain = policies.map(|policy| [&[policy, 0], &words[..]].concat());
    let others = [1, 2].map(|how| [&[7, how], &words[..]].concat());
    plain.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_decided_about() {
        let seeds = seeds();
        for seed in &seeds[..POLICIES.len()] {
            let policy = POLICIES[usize::from(seed[0])];
            // Up to where the words are what no library writes.
            let plain = &seed[..2 + 10 * (9 + 19 * 9)];
            let (generation, order) = orders(plain).unwrap();
            let decides = !policy.mechanism().growth.is_empty();
            assert_eq!(generation, if decides { 2 } else { 0 }, "{}: {order}", policy.name());
        }
    }
}
