//! `pagemill run --huge`: programs are none the wiser, policies decide, and nothing stays behind.

#![expect(clippy::unwrap_used, reason = "what does not come about fails the test")]

#[cfg(test)]
mod support;

use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use pagemill_kernel::Linux;
use pagemill_kernel::memory::huge_pages_of::Pages;
use pagemill_kernel::process::Capability;
use pagemill_model::Pid;
use serde_json::Value;
use support::{Machine, Ran, compiled, pagemill, pagemill_with, ran, skip, until};
use tempfile::TempDir;

const SITES: &str = include_str!("programs/sites.c");
const GROW: &str = include_str!("programs/grow.c");
const BLOCKS: &str = include_str!("programs/blocks.c");
const FILTERS: &str = include_str!("programs/filters.c");

/// Policies that do anything inside a program.
const ACTIVE: [&str; 5] = ["ingens", "hawkeye", "cbmm", "cbmm+", "auto"];

fn grow(room: &TempDir) -> Option<String> {
    let program = compiled(room, "grow", GROW, &["-O2", "-pthread"])?;
    Some(program.to_str().unwrap().to_owned())
}

/// Runs a command under a policy; its end, and the counters of the library in each process.
fn under(policy: &str, extra: &[&str], command: &[&str]) -> (Ran, Value) {
    let room = tempfile::tempdir().unwrap();
    let stats = room.path().join("stats.json");
    let mut run = pagemill();
    run.args(["run", "--huge", policy, "--stats"]).arg(&stats).args(extra).arg("--").args(command);
    let ran = ran(&mut run);
    let text = std::fs::read_to_string(stats).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    (ran, serde_json::from_str(&text).unwrap())
}

fn sum(stats: &Value, counter: &str) -> u64 {
    let processes = stats["processes"].as_array().unwrap();
    processes.iter().map(|process| process[counter].as_u64().unwrap()).sum()
}

/// Why the library cannot provide anything here, if so.
fn unable() -> Option<String> {
    let answer = pagemill_with(&["doctor", "--json"]).out;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let row = answer["rows"].as_array().unwrap().iter().find(|row| row["name"] == "prefault");
    let row = row.unwrap_or_else(|| panic!("no row prefault: {answer}"));
    (row["status"] == "missing").then(|| row["finding"].to_string())
}

/// Why small mappings get no pages of 64 KiB here, if so.
fn unable_to_borrow() -> Option<String> {
    let linux = Linux::live();
    let root = linux.status(Pid::own()).is_ok_and(|own| own.effective_uid == 0);
    if !root || linux.thp_medium().is_none() {
        return Some("pages of 64 KiB cannot be borrowed (root, Linux 6.8)".into());
    }
    unable()
}

#[test]
fn what_threads_and_forks_find_in_memory_is_what_they_put_there() {
    let room = tempfile::tempdir().unwrap();
    let Some(grow) = grow(&room) else { return };
    for policy in ACTIVE {
        for arguments in [&["1"][..], &["1", "forks"]] {
            let (ran, _) = under(policy, &[], &[&[grow.as_str()], arguments].concat());
            assert_eq!((ran.code(), ran.out.as_str()), (Some(0), "whole\n"), "{policy}: {ran:?}");
        }
    }
}

#[test]
fn a_program_that_grows_gets_pages_before_it_touches_them() {
    if let Some(why) = unable() {
        return skip(&why).unwrap_or(());
    }
    let program = env!("CARGO_BIN_EXE_pagemill");
    let command = [program, "workload", "growing-server", "--scale", "0.2", "--think", "10"];
    // The published rule for eager paging asks neither how busy nor how fragmented the machine is.
    let room = tempfile::tempdir().unwrap();
    let profile = room.path().join("eager.csv");
    std::fs::write(&profile, "eager,heap,4294967296\neager,mmap,4294967296\n").unwrap();
    let (ran, stats) = under("cbmm", &["--profile", profile.to_str().unwrap()], &command);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(sum(&stats, "base_pages") > 0, "{stats}");
    // What this one does depends on both; whatever it is, the program ends well and the library lacks nothing.
    let (ran, stats) = under("cbmm+", &[], &command);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert_eq!(sum(&stats, "degraded"), 0, "{stats}");
}

#[test]
fn a_program_that_grows_is_measured_and_what_was_decided_is_decided_again() {
    if let Some(why) = unable() {
        return skip(&why).unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_pagemill");
    let command = [program, "workload", "growing-server", "--scale", "0.25", "--think", "20"];
    for goal in ["throughput", "tail", "memory"] {
        let rec = room.path().join(goal);
        let rec = rec.to_str().unwrap();
        // The workload ends with an error if a page does not hold what it wrote.
        let (ran, stats) = under("auto", &["--forget", "--goal", goal, "--log", rec], &command);
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        assert_eq!(sum(&stats, "degraded"), 0, "{stats}");
        let decided = stats["decisions"].as_object().unwrap();
        let decided: u64 = decided.values().map(|count| count.as_u64().unwrap()).sum();
        assert!(decided > 0, "{goal}: {stats}");
        let replay = pagemill_with(&["plan", rec, "--replay"]);
        assert_eq!(replay.out, format!("{decided} decisions replayed, 0 differ\n"), "{replay:?}");
    }
}

/// How a run of `auto` began, and how many there were before it.
fn begun(extra: &[&str], command: &[&str]) -> (String, u64) {
    let (ran, stats) = under("auto", extra, command);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    (stats["begins_with"].as_str().unwrap().to_owned(), stats["earlier_runs"].as_u64().unwrap())
}

#[test]
fn runs_of_a_command_are_remembered_and_forgotten() {
    // A command of its own: some 100 ms of work.
    let room = tempfile::tempdir().unwrap();
    let script = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
    let command = ["sh", "-c", script, room.path().to_str().unwrap()];
    let (first, runs) = begun(&[], &command);
    assert_eq!(runs, 0);
    let with_port = [&command[..], &["7001"]].concat();
    assert_eq!(begun(&[], &with_port), (first.clone(), 1), "a number makes no other command");
    let (other, runs) = begun(&["--goal", "tail"], &command);
    assert_eq!(runs, 0, "{other}: another goal");
    assert_eq!(begun(&["--dry"], &command).1, 2, "a dry run sees them");
    assert_eq!(begun(&[], &command), (first.clone(), 2), "and adds none");
    assert_eq!(begun(&["--forget"], &command), (first.clone(), 0));
    assert_eq!(begun(&[], &command), (first, 1));
    for file in learned_of(room.path().to_str().unwrap()) {
        let _ = std::fs::remove_file(file);
    }
}

/// Files of root's about commands that have this in a word.
fn learned_of(mark: &str) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir("/run/pagemill/learned").into_iter().flatten().flatten();
    let files = files.map(|entry| entry.path());
    files
        .filter(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains(mark)))
        .collect()
}

#[test]
fn a_command_whose_runs_took_less_on_huge_pages_begins_with_them_and_gives_them_back() {
    if let Some(why) = unable_to_borrow() {
        return skip(&why).unwrap_or(());
    }
    let setting = "/sys/kernel/mm/transparent_hugepage/enabled";
    let before = std::fs::read_to_string(setting).unwrap();
    if !before.contains("[madvise]") {
        return skip("the system's huge pages come unasked, or never").unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let script = format!("i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; cat {setting}");
    let mark = room.path().to_str().unwrap();
    let command = ["sh", "-c", &script, mark];
    let usual = begun(&[], &command).0;
    let file = learned_of(mark).remove(0);
    // As if 20 runs had found it.
    let mut known: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let costs = |cost: u64| vec![cost.to_string(); 3].join(" ");
    let (dear, cheap) = (costs(9_000_000), costs(1_000_000));
    known["runs"] = 20.into();
    known["trials"] = format!(
        "spent 100000000000 charged 0 size 4 first {usual}; base {dear}; fault-64k {dear}; fault-2m {cheap}"
    )
    .into();
    let run = |first: &str, ns: u64| serde_json::json!([first, ns, 1 << 20]);
    let (slow, fast) = (1_000_000_000_000, 500_000_000_000);
    known["last"] =
        [run(&usual, slow), run(&usual, slow), run("fault-2m", fast), run("fault-2m", fast)].into();
    std::fs::write(&file, known.to_string()).unwrap();
    let (ran, stats) = under("auto", &[], &command);
    assert_eq!((&stats["begins_with"], &stats["earlier_runs"]), (&"fault-2m".into(), &20.into()));
    assert!(ran.out.contains("[always]"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(setting).unwrap(), before);
    // Where they took more they are left.
    known["last"] =
        [run(&usual, fast), run(&usual, fast), run("fault-2m", slow), run("fault-2m", slow)].into();
    std::fs::write(&file, known.to_string()).unwrap();
    let (ran, stats) = under("auto", &[], &command);
    assert_eq!(stats["begins_with"], usual);
    assert!(ran.out.contains("[madvise]"), "{ran:?}");
    let _ = std::fs::remove_file(&file);
}

#[test]
fn a_program_that_hardly_grows_has_no_thread_of_ours_unless_its_tail_counts() {
    if let Some(why) = unable() {
        return skip(&why).unwrap_or(());
    }
    for (goal, threads) in [("throughput", 1), ("memory", 1), ("tail", 2)] {
        let (ran, _) = under("auto", &["--goal", goal], &["grep", "Threads", "/proc/self/status"]);
        assert_eq!(ran.out, format!("Threads:\t{threads}\n"), "{goal}: {ran:?}");
    }
}

#[test]
fn a_goal_is_for_policies_that_measure_themselves() {
    let refused = |arguments: &[&str]| {
        let refused = ran(pagemill().args(["run", "--huge"]).args(arguments).args(["--", "true"]));
        assert_eq!(refused.code(), Some(125), "{refused:?}");
        refused.err
    };
    assert!(refused(&["cbmm+", "--goal", "tail"]).contains("which cbmm+ does not"));
    assert!(refused(&["auto", "--goal", "luck"]).contains("throughput, tail, memory"));
}

#[test]
fn a_dry_run_decides_and_does_nothing() {
    let program = env!("CARGO_BIN_EXE_pagemill");
    let command = [program, "workload", "growing-server", "--scale", "0.2", "--think", "2"];
    let (ran, stats) = under("cbmm+", &["--dry"], &command);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.err.contains("nothing was done"), "{ran:?}");
    assert_eq!((sum(&stats, "huge_pages"), sum(&stats, "base_pages")), (0, 0), "{stats}");
}

#[test]
fn a_dry_run_leaves_the_system_and_the_program_their_huge_pages() {
    let machine = Machine::new();
    let file = machine.root().join("sys/kernel/mm/transparent_hugepage/enabled");
    let dry = |policy: &str, command: &[&str]| {
        let mut run = pagemill();
        run.env("PAGEMILL_ROOT", machine.root()).args(["run", "--dry", "--huge", policy, "--"]);
        ran(run.args(command))
    };
    let seen = dry("linux-always", &["cat", file.to_str().unwrap()]);
    assert_eq!((seen.code(), seen.out.trim()), (Some(0), machine.thp().as_str()), "{seen:?}");
    let show = ["grep", "THP_enabled", "/proc/self/status"];
    let plain = ran(std::process::Command::new(show[0]).args(&show[1..]));
    for policy in ["linux-never", "linux-madvise", "cbmm+"] {
        assert_eq!(dry(policy, &show).out, plain.out, "{policy}");
    }
}

#[test]
fn counters_that_cannot_be_written_are_refused_before_the_program_starts() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("stats.json");
    let run = |path: &std::path::Path, extra: &[&str]| {
        let mut run = pagemill();
        run.args(["run", "--huge", "linux-never", "--stats"]).arg(path).args(extra);
        ran(run.args(["--", "echo", "ran"]))
    };
    let there = || std::fs::read_to_string(&file).unwrap();
    assert_eq!(run(&file, &[]).code(), Some(0));
    assert!(there().contains("linux-never"));
    std::fs::write(&file, "mine, and longer than what comes in its place: ").unwrap();
    for (path, why) in [(file.as_path(), "exists (use -f"), (room.path(), "cannot write")] {
        let refused = run(path, &[]);
        assert_eq!((refused.code(), refused.out.as_str()), (Some(125), ""), "{refused:?}");
        assert!(refused.err.contains(why), "{refused:?}");
    }
    assert!(there().starts_with("mine"));
    assert_eq!(run(&file, &["-f"]).code(), Some(0));
    let _: Value = serde_json::from_str(&there()).unwrap();
    assert_eq!(run("/dev/null".as_ref(), &[]).code(), Some(0));
}

#[test]
fn recorded_decisions_are_decided_again_the_same() {
    let room = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_pagemill");
    for policy in ACTIVE {
        let rec = room.path().join(policy);
        let rec = rec.to_str().unwrap();
        let command = [program, "workload", "growing-server", "--scale", "0.1", "--think", "10"];
        let (ran, stats) = under(policy, &["--log", rec], &command);
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        let decided = stats["decisions"].as_object().unwrap();
        let decided: u64 = decided.values().map(|count| count.as_u64().unwrap()).sum();
        if decided == 0 {
            // Ingens and HawkEye decide when their scan finds something.
            continue;
        }
        let replay = pagemill_with(&["plan", rec, "--replay"]);
        assert_eq!(replay.code(), Some(0), "{replay:?}");
        assert_eq!(replay.out, format!("{decided} decisions replayed, 0 differ\n"));
    }
}

/// Says how much of its own memory is on huge pages after it has asked for none.
const REFUSES: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **arguments) {
    size_t size = 128 << 20;
    (void)arguments;
    if (count > 1) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    char *area = mmap(0, size + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (count == 1) madvise(area, size + (2 << 20), MADV_NOHUGEPAGE);
    for (size_t at = 0; at < size; at += 4096) {
        area[at] = 1;
        if (at % (1 << 20) == 0) nanosleep(&(struct timespec){0, 200000}, 0);
    }
    char line[256];
    long kib, huge = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    unsigned long start, end;
    int inside = 0;
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start < (unsigned long)area + size && end > (unsigned long)area;
        if (inside && sscanf(line, "AnonHugePages: %ld", &kib) == 1) huge += kib;
    }
    // What was lent before the advice came is one mapping's first chunks at most.
    printf("%s\n", huge <= 2048 ? "as asked" : "overridden");
    return 0;
}
"#;

/// Call sites in the places that `plan` finds in a recording, with the pages touched in each.
#[cfg(target_arch = "x86_64")]
fn sites_in(recording: &str) -> Vec<(String, u64)> {
    let planned = pagemill_with(&["plan", recording, "--json"]);
    let places: Value =
        serde_json::from_str(&planned.out).unwrap_or_else(|_| panic!("{planned:?}"));
    let told = |place: &Value| {
        let site = place["place"].as_str()?.strip_prefix("mappings made by ")?.to_owned();
        Some((site, place["touched_pages"].as_u64().unwrap_or(0)))
    };
    places["places"].as_array().unwrap().iter().filter_map(told).collect()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn memory_is_told_apart_by_the_code_that_asked_for_it() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "sites", SITES, &["-O1"]) else { return };
    let program = program.to_str().unwrap();
    let path = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    let (recording, profile, log) = (path("rec"), path("profile.csv"), path("log"));
    let what = ["--with", "faults,hugepages,sites", "--threshold", "0ns"];
    let record =
        [&["record"], &what[..], &["-o", recording.as_str(), "--", program, "200"]].concat();
    let recorded = pagemill_with(&record);
    assert_eq!((recorded.code(), recorded.out.as_str()), (Some(0), "whole\n"), "{recorded:?}");
    let mut sites = sites_in(&recording);
    sites.sort_by_key(|(_, touched)| std::cmp::Reverse(*touched));
    let [(filled, most), (few, least)] = sites.as_slice() else { panic!("{sites:?}") };
    assert!(filled.starts_with("sites+0x") && few.starts_with("sites+0x"), "{sites:?}");
    let report = pagemill_with(&["report", &recording, "--json"]).out;
    let report: Value = serde_json::from_str(&report).unwrap();
    if report["meta"]["faults"]["back_end"] == "counters" {
        println!("densities skipped: the faults that this user may see have no addresses");
    } else {
        assert!(*most > 400 && *least < 100, "{sites:?}");
    }
    if let Some(why) = unable() {
        return skip(&why).unwrap_or(());
    }
    std::fs::write(&profile, format!("# unit: ns\nhuge,mmap,987654321,site,=,{filled}\n")).unwrap();
    let (ran, _) = under("cbmm+", &["--profile", &profile, "--log", &log], &[program, "2000"]);
    assert_eq!((ran.code(), ran.out.as_str()), (Some(0), "whole\n"), "{ran:?}");
    let told = pagemill_with(&["report", &log]).out;
    assert!(told.contains("walks 987654321"), "{told}");
    let replayed = pagemill_with(&["plan", &log, "--replay"]);
    assert_eq!(replayed.code(), Some(0), "{replayed:?}");
}

#[test]
fn who_refuses_huge_pages_gets_none() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "refuses", REFUSES, &["-O1"]) else { return };
    let program = program.to_str().unwrap();
    for arguments in [&[program][..], &[program, "prctl"]] {
        let (ran, _) = under("cbmm+", &[], arguments);
        assert_eq!(
            (ran.code(), ran.out.as_str()),
            (Some(0), "as asked\n"),
            "{arguments:?} {ran:?}"
        );
    }
}

/// Makes mappings without room for a huge page until one of them is advised, takes the advice back for a part of it
/// without the library's hearing of it, and has the whole moved.
const SMALL: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
enum { LEN = 1 << 20, PAGE = 4096 };
static int advised(char *area) {
    char line[512];
    unsigned long start, end;
    int inside = 0, found = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start <= (unsigned long)area && (unsigned long)area < end;
        if (inside && !strncmp(line, "VmFlags:", 8)) found = strstr(line, " hg") != 0;
    }
    fclose(smaps);
    return found;
}
int main(void) {
    int read_write = PROT_READ | PROT_WRITE, ours = MAP_PRIVATE | MAP_ANONYMOUS;
    char *area = 0;
    for (int tries = 0; tries < 1000; tries++) {
        area = mmap(0, LEN, read_write, ours, -1, 0);
        if (advised(area)) break;
        munmap(area, LEN);
        usleep(10000);
    }
    char *tail = area + LEN - PAGE;
    memset(area, 7, LEN);
    syscall(SYS_madvise, tail, PAGE, MADV_NOHUGEPAGE);
    printf("%s, the last page %s\n", advised(area) ? "advised" : "not advised", advised(tail) ? "is" : "is not");
    errno = 4711;
    char *moved = mremap(area, LEN, 4 * LEN, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return perror("mremap"), 1;
    for (int at = 0; at < LEN; at++) if (moved[at] != 7) return 1;
    printf("moved, errno %d\n", errno);
    munmap(moved, 4 * LEN);
    errno = 0;
    printf("of nothing: %d", mremap(moved, LEN, 2 * LEN, MREMAP_MAYMOVE) == MAP_FAILED);
    printf(" errno %d\n", errno);
    return 0;
}
"#;

#[test]
fn a_small_mapping_is_advised_by_the_thread_that_makes_it() {
    if let Some(why) = unable_to_borrow() {
        return skip(&why).unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "small", SMALL, &["-O1"]) else { return };
    let run = || under("cbmm+", &[], &[program.to_str().unwrap()]).0;
    // Where all CPUs are busy and pages of 64 KiB have just been given back by another, nothing may be worth it.
    let mut ran = run();
    for _ in 0..20 {
        if ran.out.starts_with("advised") {
            break;
        }
        ran = run();
    }
    let told = "advised, the last page is not\nmoved, errno 4711\nof nothing: 1 errno 14\n";
    assert_eq!((ran.code(), ran.out.as_str()), (Some(0), told), "{ran:?}");
}

#[test]
fn blocks_of_every_allocator_are_as_without_it() {
    const TOLD: &str = "too much: 1 1 1 1 1 1 1\nerrno 4711\nwhole\n";
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "blocks", BLOCKS, &["-O2", "-pthread"]) else { return };
    let program = program.to_str().unwrap();
    for extra in [&[][..], &["--mesh", "1y"]] {
        let (ran, _) = under("cbmm+", extra, &[program]);
        assert_eq!((ran.code(), ran.out.as_str()), (Some(0), TOLD), "{extra:?}: {ran:?}");
    }
    for other in ["libjemalloc.so.2", "libmimalloc.so.2.0", "libtcmalloc_minimal.so.4"] {
        let variable = format!("LD_PRELOAD={other}");
        let plain = ran(std::process::Command::new("env").args([&variable, program]));
        if !plain.err.is_empty() {
            skip::<()>(&format!("{other}: {}", plain.err));
            continue;
        }
        let with = ran(pagemill()
            .args(["run", "--huge", "cbmm+", "--", program])
            .env("LD_PRELOAD", other));
        assert_eq!((with.code(), &with.out), (plain.code(), &plain.out), "{other}: {with:?}");
    }
}

#[test]
fn a_library_that_replaces_one_function_of_malloc_has_blocks_of_its_own() {
    // In front of its blocks there is nothing that could be read.
    const LIBRARY: &str = r#"
#include <stddef.h>
#include <sys/mman.h>
int posix_memalign(void **place, size_t align, size_t size) {
    (void)align;
    char *area = mmap(0, size + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(area + 4096, size, PROT_READ | PROT_WRITE);
    *place = area + 4096;
    return 0;
}
"#;
    const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    void *block = 0;
    int result = posix_memalign(&block, 4096, 1 << 20);
    memset(block, 1, 1 << 20);
    return printf("%d\n", result) < 0;
}
"#;
    let room = tempfile::tempdir().unwrap();
    let Some(library) = compiled(&room, "one.so", LIBRARY, &["-shared", "-fPIC"]) else { return };
    let Some(program) = compiled(&room, "program", PROGRAM, &[]) else { return };
    let mut run = pagemill();
    run.args(["run", "--huge", "cbmm+", "--"]).arg(program).env("LD_PRELOAD", library);
    let ran = ran(&mut run);
    assert_eq!((ran.code(), ran.out.as_str()), (Some(0), "0\n"), "{ran:?}");
}

#[test]
fn a_program_that_filters_its_system_calls_makes_none_of_ours() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "filters", FILTERS, &["-O1"]) else { return };
    let program = program.to_str().unwrap();
    for threads in ["one", "all", "exec"] {
        let plain = ran(std::process::Command::new(program).arg(threads));
        if plain.code() != Some(0) {
            return skip(&format!("no filter can be set here: {}", plain.err)).unwrap_or(());
        }
        for policy in ACTIVE {
            let (with, _) = under(policy, &[], &[program, threads]);
            assert_eq!((with.code(), &with.out), (Some(0), &plain.out), "{policy}: {with:?}");
        }
    }
}

#[test]
fn a_program_whose_sanitizer_has_to_come_first_is_helped_from_outside() {
    const PROGRAM: &str = "#include <stdio.h>\n#include <stdlib.h>\nint main(void) \
                           { return printf(\"%d\\n\", malloc(3 << 20) != 0) < 0 ? 1 : 6; }\n";
    let room = tempfile::tempdir().unwrap();
    let flags = ["-fsanitize=address"];
    let Some(program) = compiled(&room, "program", PROGRAM, &flags) else { return };
    let plain = ran(std::process::Command::new(&program).env("ASAN_OPTIONS", "detect_leaks=0"));
    if plain.code() != Some(6) {
        return skip(&format!("AddressSanitizer: {}", plain.err)).unwrap_or(());
    }
    let run = |words: &[&str]| {
        let mut run = pagemill();
        ran(run.args(words).arg("--").arg(&program).env("ASAN_OPTIONS", "detect_leaks=0"))
    };
    let with = run(&["run", "--huge", "ingens"]);
    assert_eq!((with.code(), with.out.as_str()), (Some(6), "1\n"), "{with:?}");
    assert!(with.err.contains("AddressSanitizer"), "{with:?}");
    let refused = run(&["run"]);
    assert_eq!(refused.code(), Some(125), "{refused:?}");
    assert!(refused.err.contains("without -fsanitize=address"), "{refused:?}");
}

#[test]
fn what_malloc_maps_for_one_block_is_advised_when_it_is_made() {
    if let Some(why) = unable_to_borrow() {
        return skip(&why).unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "blocks", BLOCKS, &["-O2", "-pthread"]) else { return };
    let run = || under("cbmm+", &[], &[program.to_str().unwrap(), "advised"]).0;
    let mut ran = run();
    for _ in 0..20 {
        // As above.
        if !ran.out.contains("not advised") {
            break;
        }
        ran = run();
    }
    let functions =
        ["malloc", "calloc", "realloc", "memalign", "aligned_alloc", "posix_memalign", "grown"];
    let told: String = functions.map(|name| format!("{name}: advised\n")).concat();
    assert_eq!((ran.code(), ran.out.as_str()), (Some(0), told.as_str()), "{ran:?}");
}

/// Fills memory densely, then more of it, and frees most of that; says when what is dense is on huge pages and what is
/// sparse is not.
const DENSE_AND_SPARSE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
enum { CHUNK = 2 << 20, SIZE = 32 << 20, DENSE = 1024, SPARSE = 256, KEEP = 64 };
static char *dense[SIZE / DENSE], *sparse[SIZE / SPARSE];
/* Chunks on huge pages among those that lie between these objects. */
static int huge(int pagemap, char **objects, int count) {
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (int i = 0; i < count; i++) {
        uintptr_t at = (uintptr_t)objects[i];
        if (!at) continue;
        if (at < low) low = at;
        if (at > high) high = at;
    }
    int found = 0;
    for (uintptr_t at = (low + CHUNK - 1) / CHUNK * CHUNK; at + CHUNK <= high; at += CHUNK) {
        uint64_t run[3], scan[12] = {sizeof scan, 0, at, at + CHUNK, 0, (uintptr_t)run, 1, 0, 0, 1 << 6, 0, 1 << 6};
        found += ioctl(pagemap, 0xc0606610, scan) == 1;
    }
    return found;
}
int main(void) {
    for (int i = 0; i < SIZE / DENSE; i++) memset(dense[i] = malloc(DENSE), 1, DENSE);
    for (int i = 0; i < SIZE / SPARSE; i++) memset(sparse[i] = malloc(SPARSE), 2, SPARSE);
    for (int i = 0; i < SIZE / SPARSE; i++)
        if (i % KEEP) free(sparse[i]), sparse[i] = 0;
    int pagemap = open("/proc/self/pagemap", O_RDONLY), is_dense = 0, is_sparse = 0;
    for (int tries = 0; tries < 600 && !(is_dense && is_sparse); tries++) {
        usleep(100000);
        free(malloc(SPARSE));
        is_dense = huge(pagemap, dense, SIZE / DENSE) > 0;
        is_sparse = huge(pagemap, sparse, SIZE / SPARSE) == 0;
    }
    for (int i = 0; i < SIZE / DENSE; i++) if (dense[i][DENSE - 1] != 1) return 1;
    for (int i = 0; i < SIZE / SPARSE; i += KEEP) if (sparse[i][SPARSE - 1] != 2) return 1;
    printf("dense: %s, sparse: %s\n", is_dense ? "huge" : "base", is_sparse ? "base" : "huge");
    return 0;
}
"#;

#[test]
fn on_the_compacting_heap_dense_memory_is_huge_and_sparse_memory_is_not() {
    if let Some(why) = unable() {
        return skip(&why).unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "dense", DENSE_AND_SPARSE, &["-O1"]) else { return };
    // Ingens collapses what is nine tenths full, whatever it costs: the one policy whose answer is the same on every
    // machine.
    let (ran, stats) = under("ingens", &["--mesh", "1y"], &[program.to_str().unwrap()]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    if ran.out.starts_with("dense: base") {
        return skip(&format!("the kernel makes no huge page here: {stats}")).unwrap_or(());
    }
    assert_eq!(ran.out, "dense: huge, sparse: base\n", "{stats}");
}

/// Touches 32 MiB, says so, and waits until one of its chunks is a huge page, a minute at most.
const DENSE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
    size_t size = 32 << 20, chunk = 2 << 20;
    char *area = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(area, 7, size);
    printf("touched\n");
    fflush(stdout);
    int pagemap = open("/proc/self/pagemap", O_RDONLY), found = 0;
    uintptr_t first = ((uintptr_t)area + chunk - 1) / chunk * chunk;
    for (int tries = 0; tries < 600 && !found; tries++) {
        usleep(100000);
        for (uintptr_t at = first; at + chunk <= (uintptr_t)area + size; at += chunk) {
            uint64_t run[3], scan[12] = {sizeof scan, 0, at, at + chunk, 0, (uintptr_t)run, 1, 0, 0, 1 << 6, 0, 1 << 6};
            found += ioctl(pagemap, 0xc0606610, scan) == 1;
        }
    }
    for (size_t at = 0; at < size; at++) if (area[at] != 7) return 1;
    printf("%s\n", found ? "huge" : "base");
    return 0;
}
"#;

/// Why nobody can be helped from outside here, if so.
fn unable_from_outside() -> Option<String> {
    let pages = Pages::of(&Linux::live(), Pid::own());
    pages.and_then(|pages| pages.may_collapse()).err().map(|error| error.to_string())
}

#[test]
fn a_static_program_is_helped_from_outside() {
    if let Some(why) = unable_from_outside() {
        return skip(&why).unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "dense", DENSE, &["-O1", "-static"]) else { return };
    let (ran, stats) = under("ingens", &[], &[program.to_str().unwrap()]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.err.contains("helped from outside only"), "{ran:?}");
    assert_eq!(stats["processes"].as_array().unwrap().len(), 0, "{stats}");
    if ran.out == "touched\nbase\n" {
        return skip(&format!("the kernel makes no huge page here: {stats}")).unwrap_or(());
    }
    assert_eq!(ran.out, "touched\nhuge\n", "{stats}");
    assert!(stats["decisions"]["collapse"].as_u64().unwrap() > 0, "{stats}");
}

#[test]
fn a_running_program_is_helped_from_outside_until_it_ends() {
    if let Some(why) = unable_from_outside() {
        return skip(&why).unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "dense", DENSE, &["-O1"]) else { return };
    let mut command = std::process::Command::new(program);
    let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "touched\n");
    let helped = pagemill_with(&["run", "--huge", "ingens", "-p", &program.id().to_string()]);
    assert_eq!(helped.code(), Some(0), "{helped:?}");
    assert!(program.wait().unwrap().success());
    line.clear();
    said.read_line(&mut line).unwrap();
    if line == "base\n" {
        return skip("the kernel makes no huge page here").unwrap_or(());
    }
    assert_eq!(line, "huge\n");
}

#[test]
fn only_what_can_be_done_from_outside_is_offered_for_a_running_program() {
    let own = std::process::id().to_string();
    for (policy, pid, expected) in [
        ("linux-never", own.as_str(), "have to start the program"),
        ("cbmm+", &own, "with --profile"),
        ("ingens", "4194305", "process 4194305 cannot be helped"),
    ] {
        let refused = pagemill_with(&["run", "--huge", policy, "-p", pid]);
        assert_eq!(refused.code(), Some(125), "{refused:?}");
        assert!(refused.err.contains(expected), "{refused:?}");
    }
}

#[test]
fn exit_codes_signals_and_streams_are_the_programs_own() {
    let shell = |policy, script| under(policy, &[], &["sh", "-c", script]).0;
    for policy in ["cbmm+", "linux-never", "linux-madvise"] {
        let ran = shell(policy, "echo out; echo err >&2; exit 7");
        assert_eq!((ran.code(), ran.out.as_str(), ran.err.as_str()), (Some(7), "out\n", "err\n"));
        assert_eq!(shell(policy, "kill -9 $$").code(), None);
    }
    let ran = pagemill_with(&["run", "--huge", "lru", "--", "true"]);
    assert_eq!(ran.code(), Some(125), "{ran:?}");
    assert!(ran.err.contains("cbmm+"), "the policies are named: {ran:?}");
}

#[test]
fn a_program_alone_in_its_process_may_enter_a_user_namespace() {
    let program = ["unshare", "--user", "--map-root-user", "id", "-u"];
    let plain = ran(std::process::Command::new(program[0]).args(&program[1..]));
    if plain.code() != Some(0) {
        return skip(&format!("unshare fails here by itself: {}", plain.err)).unwrap_or(());
    }
    let (ran, _) = under("cbmm+", &[], &program);
    assert_eq!((ran.code(), ran.out.as_str()), (Some(0), plain.out.as_str()), "{ran:?}");
}

/// A run under linux-always on a machine whose setting is another.
fn borrowing(machine: &Machine, script: &str) -> Child {
    let mut command = pagemill();
    command.env("PAGEMILL_ROOT", machine.root());
    command.args(["run", "--huge", "linux-always", "--", "sh", "-c", script]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn the_systems_setting_is_as_found_after_success_failure_and_sigterm() {
    for (script, code) in [("exit 0", 0), ("exit 3", 3)] {
        let machine = Machine::new();
        assert_eq!(borrowing(&machine, script).wait().unwrap().code(), Some(code));
        assert_eq!(machine.thp(), "madvise", "the word that was in brackets");
    }
    let machine = Machine::new();
    let mut run = borrowing(&machine, "exec sleep 1000");
    until("the loan", || machine.thp() == "always");
    pagemill_kernel::process::signal::send(Pid(run.id()), 15).unwrap();
    run.wait().unwrap();
    assert_eq!(machine.thp(), "madvise");
}

#[test]
fn the_systems_setting_is_as_found_whatever_the_limits_are() {
    let descriptors = (3..16).map(|most| format!("-n {most}"));
    for limit in descriptors.chain(["-f 8".into(), "-f 0".into()]) {
        let machine = Machine::new();
        let mut run = std::process::Command::new("bash");
        run.env("PAGEMILL_ROOT", machine.root());
        run.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "bash"]);
        run.arg(env!("CARGO_BIN_EXE_pagemill"));
        let ran = ran(run.args(["run", "--huge", "linux-always", "--", "true"]));
        assert_ne!(machine.thp(), "always", "{limit}: {ran:?}");
        assert!(ran.code().is_some(), "{limit}: ended by a signal: {ran:?}");
    }
}

#[test]
fn the_systems_setting_is_restored_by_the_next_start_after_a_kill() {
    let machine = Machine::new();
    let mut run = borrowing(&machine, "exec sleep 5");
    until("the loan", || machine.thp() == "always");
    run.kill().unwrap();
    run.wait().unwrap();
    assert_eq!(machine.thp(), "always", "nobody could restore it yet");
    let mut next = pagemill();
    next.env("PAGEMILL_ROOT", machine.root()).args(["run", "--huge", "linux-never", "--", "true"]);
    let next = ran(&mut next);
    assert!(next.err.contains("restored"), "{next:?}");
    assert_eq!(machine.thp(), "madvise");
}

/// Any user could lock the file of a loan, for flock(2) asks for no more than an open descriptor: root's pagemill
/// waited for ever, with the setting changed.
#[test]
fn another_user_cannot_hold_the_lock_of_a_loan() {
    let machine = Machine::new();
    let mut run = borrowing(&machine, "exec sleep 1000");
    until("the loan", || machine.thp() == "always");
    let directory = machine.root().join("run/pagemill");
    if !Linux::live().status(Pid::own()).unwrap().can(Capability::SysAdmin) {
        skip::<()>("only root becomes another user");
    } else {
        for path in [machine.root().to_owned(), machine.root().join("run")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let locks = fs::read_dir(&directory).unwrap().flatten().map(|file| file.path());
        let locks: Vec<_> = locks
            .filter(|path| path.extension().is_some_and(|kind| kind == "lock" || kind == "alive"))
            .collect();
        assert_eq!(locks.len(), 2, "{locks:?}");
        for lock in &locks {
            let mut other = Command::new("setpriv");
            other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "flock", "--nonblock"]);
            let refused = ran(other.arg(lock).arg("true"));
            assert!(refused.err.contains("ermission denied"), "{}: {refused:?}", lock.display());
        }
    }
    pagemill_kernel::process::signal::send(Pid(run.id()), 15).unwrap();
    run.wait().unwrap();
    assert_eq!(machine.thp(), "madvise");
}

#[test]
fn real_programs_print_what_they_print_without_it() {
    let room = tempfile::tempdir().unwrap();
    let scripts = [
        ("xz", "seq 400000 | xz -T2 -c | xz -dc | sha256sum"),
        ("sort", "seq 300000 | sort -r | sha256sum"),
        (
            "awk",
            "awk 'BEGIN { for (i = 0; i < 500000; i++) a[i] = i \"x\"; n = 0; \
         for (k in a) n += length(a[k]); print n }'",
        ),
        (
            "perl",
            "perl -e 'my @a = map { $_ x 3 } 1..200000; my %h; $h{$_}++ for @a; print scalar(keys %h), qq(\\n); exit \
             0 if fork; exit 0'",
        ),
        (
            "python3",
            "python3 -c 'import os\nd={i: str(i)*9 for i in range(300000)}\nif os.fork()==0: \
             os._exit(len(d)%7)\nprint(os.wait()[1]>>8, sum(map(len, d.values())))'",
        ),
        (
            "sqlite3",
            "sqlite3 :memory: \"create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c \
             where x < 100000) insert into t select x, hex(x * x) from c; select count(*), sum(length(b)) from t;\"",
        ),
        ("gcc", "echo 'int main(void) { return 0; }' | gcc -O2 -x c -S -o - - | sha256sum"),
    ];
    for (name, script) in scripts {
        let plain = ran(std::process::Command::new("bash").args(["-c", script]).current_dir(&room));
        if plain.code() != Some(0) {
            skip::<()>(&format!("{name}: {}", plain.err));
            continue;
        }
        let (with, _) = under("cbmm+", &[], &["bash", "-c", script]);
        assert_eq!((with.code(), &with.out), (plain.code(), &plain.out), "{name}: {with:?}");
        if name == "perl" {
            let (both, _) = under("cbmm+", &["--mesh", "1y"], &["bash", "-c", script]);
            assert_eq!((both.code(), &both.out), (plain.code(), &plain.out), "{name}: {both:?}");
        }
    }
}
