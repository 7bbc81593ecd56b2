//! What pagemills leave for one another: journals of loans, what daemons say of themselves, measured costs, what runs
//! of a command have shown, and the page of a heap's statistics.

use std::fs;
use std::path::{Path, PathBuf};

use pagemill_control::costs;
use pagemill_control::huge::learned::Learned;
use pagemill_control::tier::status::{self, Board, Status};
use pagemill_experiments::simulate::huge::prices;
use pagemill_kernel::memory::huge_costs::HugeCosts;
use pagemill_kernel::{
    Linux,
    settings::{damon, ksm_loan, loan},
};
use pagemill_launch::stats_page::{self, Page};
use pagemill_model::{Nanos, Pid};
use pagemill_policy::huge::runs::{self, RunCost};
use pagemill_policy::huge::trials::{ARMS, Trials};
use pagemill_policy::huge::{Action, Figure, Moment, POLICIES, Unit, View};

use crate::scratch::{in_scratch, put};

/// The process whose files these are.
const PID: Pid = Pid(4242);
/// What may be restored, at the root of a machine.
const SETTINGS: [&str; 4] = [
    "sys/kernel/mm/ksm/run",
    "sys/kernel/mm/ksm/pages_to_scan",
    "sys/kernel/mm/ksm/sleep_millisecs",
    "proc/sys/vm/compaction_proactiveness",
];

/// A file in the directory of loans, by its first byte: a journal, a status, costs, or what runs have shown.
pub fn state(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    in_scratch(|room| {
        let root = room.join("state");
        let _ = fs::remove_dir_all(&root);
        let linux = Linux::at(&root);
        let directory = loan::directory(&linux);
        let made = SETTINGS.iter().all(|path| put(&root.join(path), b"1\n").is_ok());
        if !made || loan::make(&directory).is_err() {
            return;
        }
        match which % 6 {
            0 => files(&linux, &directory, bytes),
            1 => ksm(&linux, &directory, bytes),
            2 => kdamonds(&linux, &directory, bytes),
            3 => daemons(&directory, bytes),
            4 => known_costs(&linux, &directory, bytes),
            _ => learned(&linux, &directory, bytes),
        }
    });
}

fn files(linux: &Linux, directory: &Path, bytes: &[u8]) {
    if put(&directory.join("compaction.settings"), bytes).is_ok() {
        let left = loan::left_over_files(directory);
        let restored = loan::recover_files(linux, directory);
        assert!(left.is_ok() || restored.is_err());
        // A second time there is nothing to do.
        if restored.is_ok() {
            assert_eq!(loan::recover_files(linux, directory).map(|all| all.len()).ok(), Some(0));
        }
    }
}

fn ksm(linux: &Linux, directory: &Path, bytes: &[u8]) {
    if put(&directory.join("ksm.journal"), bytes).is_ok() {
        let _ = (ksm_loan::left_over(directory), ksm_loan::borrowers(directory));
        let _ = ksm_loan::recover(linux, directory);
    }
}

/// The kernel's count of threads, and a journal that says that they are ours.
fn kdamonds(linux: &Linux, directory: &Path, bytes: &[u8]) {
    let admin = linux.path("/sys/kernel/mm/damon/admin/kdamonds");
    let count = put(&admin.join("nr_kdamonds"), bytes);
    let journal = put(&directory.join("damon.kdamonds"), b"found 0\n");
    if count.and(journal).and(put(&admin.join("0/state"), b"on\n")).is_ok() {
        let _ = (linux.damon(), damon::left_over(directory));
        let _ = damon::recover(linux, directory);
    }
}

fn daemons(directory: &Path, bytes: &[u8]) {
    let Ok(board) = Board::claim(directory) else { return };
    if board.write(&Status::default()).is_err() {
        return;
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let file =
        entries.map(|entry| entry.path()).find(|path| path.extension() == Some("json".as_ref()));
    if file.is_some_and(|file| put(&file, bytes).is_ok()) {
        let all = status::all(directory);
        let _ = status::prometheus(&[], &all);
        status::sweep(directory);
    }
}

/// The file that names this boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Costs as anybody may have written them, what every policy decides by them, and what the simulator makes of them.
fn known_costs(linux: &Linux, directory: &Path, bytes: &[u8]) {
    let (boot, file) = (put(&linux.path(BOOT), b"one\n"), directory.join("huge-costs.json"));
    if boot.and(put(&file, bytes)).is_err() {
        return;
    }
    for compaction in [None, Some(Nanos(u64::MAX))] {
        let _ = prices(Some(&file), compaction);
    }
    let Ok(Some(known)) = costs::on_file(linux) else { return };
    let machine = costs::machine_view(linux, &known);
    for moment in [Moment::Fault, Moment::Ahead, Moment::Scan, Moment::Idle] {
        let view = View {
            moment,
            present: Figure::Measured(7),
            expected: Figure::Measured(512),
            profile_huge: Figure::Modelled(1 << 40),
            unit: Unit::Cycles,
            free_huge: Figure::Measured(3),
            load: Figure::Measured(20),
            used: Figure::Measured(30),
            ..machine
        };
        for policy in POLICIES {
            let _ = policy.decide(&view).to_string();
        }
    }
}

/// A run of a command of this much CPU time.
fn run_cost(first: Action, cpu: u64) -> RunCost {
    RunCost { first, cpu, peak: 1 << 30 }
}

/// Remembers a run of a command; where that was written.
fn remembered(linux: &Linux, directory: &Path, command: &[String]) -> Option<PathBuf> {
    let mut run = Learned::of(linux, policy(), command, true);
    let mut shown = Trials::of(|_| true);
    for arm in ARMS {
        if let Some(tally) = shown.tally_mut(arm) {
            tally.add(7_000);
        }
    }
    run.taught(shown);
    run.keep(shown, Action::Fault64k, run_cost(Action::Fault2m, 3_000_000_000));
    let mut entries = fs::read_dir(directory.join("learned")).ok()?.flatten();
    entries.next().map(|entry| entry.path())
}

/// The name of a policy that remembers.
fn policy() -> &'static str {
    POLICIES.iter().find(|policy| policy.tries().is_some()).map_or("none", |policy| policy.name())
}

/// What runs of a command have shown, as anybody may have written it: what the next run begins with, what the policies
/// decide by it, and what is kept after that.
fn learned(linux: &Linux, directory: &Path, bytes: &[u8]) {
    let command = ["program".to_owned(), "--small".to_owned()];
    if put(&linux.path(BOOT), b"one\n").is_err() {
        return;
    }
    let Some(file) = remembered(linux, directory, &command) else { return };
    if put(&file, bytes).is_err() {
        return;
    }
    let mut next = Learned::of(linux, policy(), &command, false);
    let mut trials = Trials::of(|_| true);
    if let Some(earlier) = next.beginning() {
        trials.resume(&earlier);
    }
    let view = View { trials, unit: Unit::Cycles, ..View::default() };
    for policy in POLICIES {
        let _ = policy.decide(&view).to_string();
        let Some(tries) = policy.tries() else { continue };
        let usual = tries.first(&view);
        let _ = (tries.best(&view), tries.helper_price(&view), next.has_room());
        for arm in ARMS {
            let _ = tries.stake(arm, &view);
            let _ = runs::judge(next.runs(), arm, usual, tries.room(&view));
        }
    }
    next.taught(trials);
    let before = next.count();
    next.keep(trials, Action::Fault64k, run_cost(Action::Fault2m, u64::MAX));
    // It is replaced by a file that is one.
    let kept = Learned::of(linux, policy(), &command, false).count();
    assert_eq!(kept, before.saturating_add(1));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let measured = HugeCosts {
        base_ns: Some(2_100),
        huge_ns: Some(371_700),
        huge_cold_ns: Some(1_907_700),
        cold_permille: Some(125),
        fetch_ns: Some(280_000),
        read_base_ps: Some(9_000),
        read_huge_ps: Some(4_000),
        ..HugeCosts::default()
    };
    let known = costs::Calibration { boot: "one".into(), measured_unix_s: 7, measured };
    let status = Status {
        policy: "one+another".into(),
        share: Some(0.75),
        tiers: vec![status::Tier { latency_interval_ns: Some((1.0, 2.0)), ..Default::default() }],
        processes: vec![status::Process { comm: "redis".into(), ..Default::default() }],
        kept: [("busy".to_owned(), 3)].into(),
        ..Status::default()
    };
    let text = |which: u8, text: &str| [&[which], text.as_bytes()].concat();
    let json = |which: u8, json: serde_json::Result<Vec<u8>>| {
        json.map(|json| [vec![which], json].concat()).unwrap_or_default()
    };
    vec![
        text(0, "found /proc/sys/vm/compaction_proactiveness 20\nholder compaction.77.0\n"),
        text(1, "found run 0\nfound pages_to_scan 100\nfound sleep_millisecs 20\nholder ksm.7.0\n"),
        text(2, "3\n"),
        json(3, serde_json::to_vec(&status)),
        json(4, serde_json::to_vec(&known)),
        [vec![5], runs_shown().unwrap_or_default()].concat(),
    ]
}

/// What is on file of a command that ran once, as [`learned`] looks for it.
fn runs_shown() -> Option<Vec<u8>> {
    let room = tempfile::tempdir().ok()?;
    let linux = Linux::at(room.path());
    let directory = loan::directory(&linux);
    put(&linux.path(BOOT), b"one\n").ok()?;
    let command = ["program".to_owned(), "--small".to_owned()];
    fs::read(remembered(&linux, &directory, &command)?).ok()
}

/// A page of statistics at an address of this process, or, by the first byte, the file of a library that exports one
/// and where it is mapped.
pub fn stats_page(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    if which % 2 == 0 {
        // The page is read as far as it says, at most all of it.
        let mut page = bytes.to_vec();
        page.resize(page.len().max(1 << 16), 0);
        let page = Page { pid: Pid::own(), address: page.as_ptr() as u64 };
        if let Ok(Some(snapshot)) = page.read() {
            let _ = (snapshot.config_name(), snapshot.backend_name(), snapshot.barrier_name());
            let _ = (snapshot.waits_name(), snapshot.stop_name(), snapshot.cell("pauses"));
        }
        return;
    }
    let Some((offset, image)) = bytes.split_first_chunk::<8>() else { return };
    in_scratch(|room| {
        let root = room.join("stats");
        let offset = u64::from_le_bytes(*offset);
        let maps = format!("7f0000000000-7f0000001000 r-xp {offset:x} fe:00 7 /library.so\n");
        let process = root.join("proc").join(PID.to_string());
        let written = put(&process.join("maps"), maps.as_bytes())
            .and_then(|()| put(&process.join("root/library.so"), image));
        if written.is_ok() {
            let _ = stats_page::locate(&Linux::at(&root), PID);
        }
    });
}

pub fn stats_page_seeds() -> Vec<Vec<u8>> {
    let magic = pagemill_heap::stats::MAGIC;
    let words: Vec<u64> = [magic, 1, 1 << 11].into_iter().chain(0..400).collect();
    let page: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let programs = crate::seeds::program().into_iter().take(1);
    let offset = 0_u64.to_le_bytes();
    let images = programs.map(|image| [&[1], &offset[..], &image].concat());
    [[vec![0], page].concat(), [&[1], &offset[..], &library()].concat()]
        .into_iter()
        .chain(images)
        .collect()
}

/// A library of one segment that exports the page: its header, one of a segment, those of its sections, names and
/// symbols.
fn library() -> Vec<u8> {
    const NAMES: &[u8] = b"\0pagemill_stats\0";
    const SYMBOLS: u64 = 64 + 56;
    const SECTIONS: u64 = SYMBOLS + 48 + NAMES.len().next_multiple_of(8) as u64;
    const LOAD: u64 = 1;
    const SYMBOL_TABLE: u64 = 11;
    const STRING_TABLE: u64 = 3;
    let longs =
        |longs: &[u64]| longs.iter().flat_map(|long| long.to_le_bytes()).collect::<Vec<u8>>();
    let size = SECTIONS + 3 * 64;
    // ELF of 64 bits, little endian; a library of x86-64, whose sections have no names.
    let header = longs(&[
        0x1_0102_464c_457f,
        0,
        3 | 62 << 16 | 1 << 32,
        0,
        64,
        SECTIONS,
        64 << 32 | 56 << 48,
        1 | 64 << 16 | 3 << 32 | 2 << 48,
    ]);
    let segment = longs(&[LOAD | 5 << 32, 0, 0x1000, 0x1000, size, size, 4096]);
    // A name, what it is (an object that all see), where, and how long.
    let symbols = longs(&[0, 0, 0, 1 | 0x11 << 32 | 1 << 48, 0x3000, 4096]);
    let mut names = NAMES.to_vec();
    names.resize((SECTIONS - SYMBOLS - 48) as usize, 0);
    let section = |kind: u64, at: u64, size: u64, link: u64, entry: u64| {
        longs(&[kind << 32, 2, 0, at, size, link | 1 << 32, 8, entry])
    };
    let sections = [
        section(0, 0, 0, 0, 0),
        section(SYMBOL_TABLE, SYMBOLS, 48, 2, 24),
        section(STRING_TABLE, SYMBOLS + 48, NAMES.len() as u64, 0, 0),
    ];
    [header, segment, symbols, names, sections.concat()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_what_is_left() {
        let all: Vec<u8> = seeds().iter().map(|seed| seed[0]).collect();
        assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        let shown = String::from_utf8(seeds()[5].clone()).unwrap();
        assert!(shown.contains("\"runs\": 1") && shown.contains("--small"), "{shown}");
        let room = tempfile::tempdir().unwrap();
        let maps = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 7 /library.so\n";
        let process = room.path().join("proc/4242");
        put(&process.join("maps"), maps.as_bytes()).unwrap();
        put(&process.join("root/library.so"), &library()).unwrap();
        let page = stats_page::locate(&Linux::at(room.path()), PID).unwrap();
        assert_eq!(page, Some(Page { pid: PID, address: 0x7f00_0000_0000 - 0x1000 + 0x3000 }));
    }
}
