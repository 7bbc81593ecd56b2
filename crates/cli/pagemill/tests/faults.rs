//! `record --with faults`, `report` of it, `hugepages`, `export`, `advise --counters`: from the outside.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use pagemill_model::recording::Reader;
use pagemill_model::{Event, FaultSetup, Source as _};
use serde_json::Value;
use support::{compiled, pagemill, ran, skip};

/// Touches so many new pages when a line comes in, and says how many faults that were.
const TOUCH: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
static long faults(void) { struct rusage u; getrusage(RUSAGE_SELF, &u); return u.ru_minflt + u.ru_majflt; }
int main(int n, char **words) {
    char line[64];
    long pages = atol(words[1]);
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("%ld\n", faults());
    while (n < 3 || fgets(line, sizeof line, stdin)) {
        char *memory = mmap(0, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
        long before = faults();
        for (long i = 0; i < pages; i++) memory[i * 4096] = 1;
        printf("%ld\n", faults() - before);
        if (n < 3) return 5;
    }
    return 0;
}
"#;

/// Events and header of a recording.
fn read(path: &Path) -> (FaultSetup, Vec<Event>) {
    let mut reader = Reader::open(path).unwrap();
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        events.push(event);
    }
    (reader.meta().faults.clone().unwrap(), events)
}

fn report(path: &Path) -> Value {
    let run = ran(pagemill().args(["report", "--json"]).arg(path));
    assert_eq!(run.code(), Some(0), "{run:?}");
    serde_json::from_str(&run.out).unwrap()
}

/// Back ends that work here; the others are named.
fn back_ends() -> Vec<&'static str> {
    let all = ["bpf-fexit", "bpf-tracepoints", "perf", "counters"];
    let works = |name: &&str| {
        let room = tempfile::tempdir().unwrap();
        let rec = room.path().join("rec");
        let run = ran(pagemill()
            .args(["record", "--with", "faults", "--fault-backend", name, "-o"])
            .arg(&rec)
            .args(["--", "true"]));
        if run.code() != Some(0) {
            skip::<()>(&format!("{name}: {}", run.err.trim()));
        }
        run.code() == Some(0)
    };
    all.into_iter().filter(works).collect()
}

#[test]
fn every_fault_of_a_command_is_counted_by_each_back_end_and_its_status_passed_on() {
    let room = tempfile::tempdir().unwrap();
    let Some(touch) = compiled(&room, "touch", TOUCH, &["-O1"]) else { return };
    for back_end in back_ends() {
        let rec = room.path().join(back_end);
        let run = ran(pagemill()
            .args(["record", "--with", "faults", "--fault-backend", back_end, "-o"])
            .arg(&rec)
            .arg("--")
            .arg(&touch)
            .arg("20000"));
        assert_eq!(run.code(), Some(5), "{run:?}");
        let (setup, events) = read(&rec);
        assert_eq!((setup.back_end.as_str(), setup.lost, setup.lost_rows), (back_end, 0, 0));
        let accounted = setup.accounted.unwrap();
        assert_eq!(setup.counted, accounted, "{setup:?}");
        // execve's own get_user_pages tells no event; without privileges, faults inside system
        // calls do not either.
        let unseen = if setup.in_kernel { 8 } else { 200 };
        assert!(setup.untimed <= unseen, "{setup:?}");
        let view = &report(&rec)["faults"];
        assert_eq!(view["counted"], setup.counted);
        if back_end == "counters" {
            assert_eq!(view["all"]["count"], 0, "nothing is timed");
            continue;
        }
        assert_eq!(view["all"]["count"], setup.counted - setup.untimed);
        assert!(view["all"]["p99_ns"].as_u64() >= view["all"]["p50_ns"].as_u64(), "{view}");
        let slow = events.iter().filter(|event| matches!(event, Event::Fault(_))).count();
        assert_eq!(view["slow"]["count"], slow);
        let in_order = events.is_sorted_by_key(Event::time);
        assert!(in_order, "stamps do not decrease");
    }
}

/// The kernel copies the arguments of execve page by page into the new memory; each of these pages is a fault in the
/// account of the process and in no event.
#[test]
fn the_faults_that_no_event_tells_are_the_pages_of_the_arguments() {
    const PAGES: u64 = 24;
    let room = tempfile::tempdir().unwrap();
    for back_end in back_ends().into_iter().filter(|back_end| *back_end != "counters") {
        let untimed = |argument: &str, name: &str| {
            let rec = room.path().join(format!("{back_end}-{name}"));
            let run = ran(pagemill()
                .args(["record", "--with", "faults", "--fault-backend", back_end, "-o"])
                .arg(&rec)
                .args(["--", "true", argument]));
            assert_eq!(run.code(), Some(0), "{run:?}");
            let (setup, _) = read(&rec);
            (setup.in_kernel && setup.lost == 0).then_some(setup.untimed)
        };
        let long = "x".repeat(PAGES as usize * 4096);
        let (Some(short), Some(long)) = (untimed("x", "short"), untimed(&long, "long")) else {
            println!("skipped: {back_end} does not see faults inside system calls here");
            continue;
        };
        assert!((PAGES..=PAGES + 1).contains(&(long - short)), "{back_end}: {short}, {long}");
    }
}

#[test]
fn of_a_running_process_just_the_faults_of_the_recording_are_counted() {
    let room = tempfile::tempdir().unwrap();
    let Some(touch) = compiled(&room, "touch", TOUCH, &["-O1"]) else { return };
    for back_end in back_ends() {
        let mut process = Command::new(&touch)
            .args(["3000", "again"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap()).lines();
        out.next().unwrap().unwrap();
        let rec = room.path().join(back_end);
        let mut recorder = pagemill()
            .args([
                "record",
                "--with",
                "faults",
                "--fault-backend",
                back_end,
                "--threshold",
                "1ns",
                "-o",
            ])
            .arg(&rec)
            .args(["-p", &process.id().to_string()])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        support::until("the recording to begin", || rec.join("meta.json").exists());
        let mut input = process.stdin.take().unwrap();
        let mut touched = 0;
        for _ in 0..2 {
            input.write_all(b"\n").unwrap();
            touched += out.next().unwrap().unwrap().parse::<u64>().unwrap();
        }
        assert!(
            Command::new("kill")
                .args(["-INT", &recorder.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(recorder.wait().unwrap().code(), Some(0));
        drop(input);
        process.wait().unwrap();
        let (setup, events) = read(&rec);
        assert!(touched >= 6000, "{touched}");
        // A process that waits in read(2) has no other faults than a few of its C library's.
        assert!(
            (touched..touched + 30).contains(&setup.counted),
            "{back_end}: {touched}, {setup:?}"
        );
        // Without privileges, what read(2) touches for the process is not seen.
        let unseen = if setup.in_kernel { 0 } else { 8 };
        let accounted = setup.accounted.unwrap();
        assert!((accounted - unseen..=accounted).contains(&setup.counted), "{back_end}: {setup:?}");
        if back_end != "counters" {
            let rows = events.iter().filter(|event| matches!(event, Event::Fault(_))).count();
            assert_eq!(rows as u64, setup.counted, "each has a row");
            let mappings = report(&rec)["faults"]["mappings"].clone();
            // Memory that comes and goes between two looks at the mappings has no name.
            let mostly = mappings[0]["mapping"].as_str().unwrap();
            assert!(mostly.starts_with("anonymous") || mostly == "unknown", "{mappings}");
            assert!(mappings[0]["slow"].as_u64().unwrap() >= 3000, "{mappings}");
        }
    }
}

#[test]
fn processes_that_the_command_starts_are_followed() {
    let room = tempfile::tempdir().unwrap();
    let Some(touch) = compiled(&room, "touch", TOUCH, &["-O1"]) else { return };
    let rec = room.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "faults", "-o"])
        .arg(&rec)
        .args(["--", "sh", "-c", "\"$0\" 5000; exit 3"])
        .arg(&touch));
    assert_eq!(run.code(), Some(3), "{run:?}");
    let (setup, _) = read(&rec);
    if !setup.children {
        skip::<()>("children are not followed by this back end");
        return;
    }
    assert!(setup.counted >= 5000, "{setup:?}");
}

/// Maps 24 MiB for each of so many requests, touches them page by page, and gives them back.
const REQUESTS: &str = r#"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int n, char **words) {
    long size = 24 << 20;
    for (long i = 0; i < atol(words[1]); i++) {
        char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(memory, size, MADV_NOHUGEPAGE);
        for (long at = 0; at < size; at += 4096) memory[at] = 1;
        munmap(memory, size);
        usleep(20000);
    }
    return 0;
}
"#;

/// Once, only faults of the threshold or longer were looked at: 6144 of 2 us, one after the other, were said to explain
/// no stalls of 5 ms.
#[test]
fn stalls_of_many_short_faults_are_explained_by_them() {
    let room = tempfile::tempdir().unwrap();
    let Some(requests) = compiled(&room, "requests", REQUESTS, &["-O1"]) else { return };
    for back_end in back_ends() {
        let rec = room.path().join(back_end);
        let run = ran(pagemill()
            .args(["record", "--with", "faults", "--fault-backend", back_end])
            .args(["--spike", "5ms", "-o"])
            .arg(&rec)
            .arg("--")
            .arg(&requests)
            .arg("20"));
        assert_eq!(run.code(), Some(0), "{run:?}");
        if back_end == "counters" {
            assert!(run.err.contains("cannot tell whether page faults explain stalls"), "{run:?}");
            continue;
        }
        assert!(run.err.contains("explain stalls of 5.0 ms: "), "{run:?}");
        assert!(run.err.contains("stretches of 5.0 ms a thread spent half or more"), "{run:?}");
        assert!(run.err.contains(" in page faults, between "), "{run:?}");
        let spikes = |length: &str| {
            let mut command = pagemill();
            let run = ran(command.args(["report", "--json", "--spike", length]).arg(&rec));
            serde_json::from_str::<Value>(&run.out).unwrap()["faults"]["spikes"].clone()
        };
        // Where others have the CPUs between two faults a request's stretch is not half of faults: of twenty some are.
        assert!(spikes("5ms")["bursts"].as_u64() >= Some(5), "{}", spikes("5ms"));
        assert_eq!(spikes("5ms")["told"], true);
        let none = spikes("1m");
        assert_eq!((&none["bursts"], &none["told"]), (&0.into(), &true.into()), "{none}");
    }
}

/// Touches pages that another thread fills by userfaultfd 20 ms after it was asked.
const ANSWERED: &str = r#"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int answers;
static void *answer(void *unused) {
    static char page[4096];
    struct uffd_msg asked;
    while (read(answers, &asked, sizeof asked) == sizeof asked) {
        usleep(20000);
        struct uffdio_copy copy = {
            .dst = asked.arg.pagefault.address & ~4095ul, .src = (unsigned long)page, .len = 4096 };
        ioctl(answers, UFFDIO_COPY, &copy);
    }
    return unused;
}
int main(void) {
    struct uffdio_api api = { .api = UFFD_API };
    pthread_t thread;
    answers = syscall(SYS_userfaultfd, O_CLOEXEC);
    char *memory = mmap(0, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {
        .range = { (unsigned long)memory, 8 * 4096 }, .mode = UFFDIO_REGISTER_MODE_MISSING };
    if (answers < 0 || ioctl(answers, UFFDIO_API, &api) || ioctl(answers, UFFDIO_REGISTER, &all)) return 9;
    pthread_create(&thread, 0, answer, 0);
    for (int page = 0; page < 8; page++) memory[page * 4096] = 1;
    return 0;
}
"#;

/// "Waiting for the host's memory" was said of them.
#[test]
fn a_fault_that_another_thread_answers_sleeps() {
    let room = tempfile::tempdir().unwrap();
    let Some(answered) = compiled(&room, "answered", ANSWERED, &["-O1", "-pthread"]) else {
        return;
    };
    let rec = room.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "faults", "--spike", "5ms", "-o"])
        .arg(&rec)
        .arg("--")
        .arg(&answered));
    if run.code() == Some(9) {
        skip::<()>("no userfaultfd");
        return;
    }
    assert_eq!(run.code(), Some(0), "{run:?}");
    let (setup, _) = read(&rec);
    if !setup.back_end.starts_with("bpf") {
        skip::<()>("the back end tells no causes");
        return;
    }
    let report = report(&rec);
    let faults = &report["faults"];
    let slept = faults["worst"].as_array().unwrap().iter().take(8);
    let causes: Vec<&str> = slept.map(|fault| fault["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["sleeping until another thread fills the page"; 8], "{run:?}");
    assert!(faults["slow"]["slept_ns"].as_u64() >= Some(160_000_000), "{}", faults["slow"]);
    assert!(faults["slow"]["cold_host_ns"].as_u64() < Some(80_000_000), "{}", faults["slow"]);
}

/// Starts processes that touch memory, one after the other, as many as the first argument says.
const MANY: &str = r#"
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int n, char **words) {
    for (long i = 0; i < atol(words[1]); i++) {
        if (!fork()) _exit(0);
        wait(0);
    }
    return 0;
}
"#;

/// Once, processes stayed in the table of those that are followed when they had ended, so the faults of all after the
/// 8192nd were called "made by the kernel for the program".
#[test]
fn a_command_that_starts_more_processes_than_can_be_followed_at_a_time_loses_none() {
    let room = tempfile::tempdir().unwrap();
    let Some(many) = compiled(&room, "many", MANY, &["-O1"]) else { return };
    let rec = room.path().join("rec");
    // More than the table of the BPF programs holds.
    let processes = 9_000_u64;
    let run = ran(pagemill()
        .args(["record", "--with", "faults", "-o"])
        .arg(&rec)
        .arg("--")
        .arg(&many)
        .arg(processes.to_string()));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let (setup, _) = read(&rec);
    if !setup.back_end.starts_with("bpf") {
        skip::<()>("the back end has no table of processes");
        return;
    }
    assert!(setup.counted > processes, "{setup:?}");
    assert!(setup.untimed <= 8 && setup.lost == 0 && setup.unmatched == 0, "{setup:?}");
}

#[test]
fn a_process_that_is_gone_is_a_clear_error() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    child.wait().unwrap();
    let room = tempfile::tempdir().unwrap();
    for verb in [&["record", "--with", "faults", "-p"][..], &["hugepages", "-p"]] {
        let run = ran(pagemill().args(verb).arg(&pid).current_dir(&room));
        assert_eq!(run.code(), Some(2), "{run:?}");
        assert!(run.err.contains("there is no such process"), "{run:?}");
    }
}

#[test]
fn percentiles_of_a_recording_that_lost_faults_are_refused() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "faults", "-o"])
        .arg(&rec)
        .args(["--", "sh", "-c", "true"]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let meta = rec.join("meta.json");
    let mut header: Value = serde_json::from_str(&fs::read_to_string(&meta).unwrap()).unwrap();
    if header["faults"]["back_end"] == "counters" {
        skip::<()>("nothing is timed here");
        return;
    }
    header["faults"]["lost"] = header["faults"]["counted"].clone();
    fs::write(&meta, header.to_string()).unwrap();
    let run = ran(pagemill().arg("report").arg(&rec));
    assert!(run.code() == Some(2) && run.err.contains("meta.json is damaged"), "{run:?}");
    // Earlier recordings have no checksum.
    for member in ["checked", "checksum"] {
        header.as_object_mut().unwrap().remove(member).unwrap();
    }
    fs::write(&meta, header.to_string()).unwrap();
    let run = ran(pagemill().arg("report").arg(&rec));
    assert_eq!(run.code(), Some(2));
    assert!(
        run.out.contains("percentiles are refused: 50.0 %") && !run.out.contains("p99.9"),
        "{run:?}"
    );
    let run = ran(pagemill().args(["report", "--json"]).arg(&rec));
    assert!(!run.out.contains("\"p50_ns\""), "{run:?}");
    let run = ran(pagemill().args(["report", "--allow-loss"]).arg(&rec));
    assert!(run.code() == Some(0) && run.out.contains("p99.9"), "{run:?}");
}

#[test]
fn a_recording_is_exported_as_a_pftrace_and_read_again() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "faults", "--threshold", "2us", "-o"])
        .arg(&rec)
        .args(["--", "sh", "-c", "ls / >/dev/null"]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let (setup, _) = read(&rec);
    if setup.back_end == "counters" {
        skip::<()>("nothing is timed here");
        return;
    }
    let trace = room.path().join("t.pftrace");
    let export =
        || ran(pagemill().arg("export").arg(&rec).args(["--format", "pftrace", "-o"]).arg(&trace));
    assert_eq!(export().code(), Some(0));
    let again = export();
    assert!(again.code() == Some(2) && again.err.contains("use -f"), "{again:?}");
    let run = ran(pagemill().args(["report", "--json", "--mhz", "1000"]).arg(&trace));
    let read: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(read["faults"]["counted"], setup.counted, "{run:?}");
    let slow = report(&rec)["faults"]["slow"].clone();
    assert_eq!(
        (&read["faults"]["slow"]["count"], &read["faults"]["slow"]["time_ns"]),
        (&slow["count"], &slow["time_ns"])
    );
    // What it is not told, it asks for; what is cut off or foreign, it names.
    let run = ran(pagemill().arg("report").arg(&trace));
    assert!(run.code() == Some(2) && run.err.contains("--mhz"), "{run:?}");
    let mut bytes = fs::read(&trace).unwrap();
    bytes.extend([1, 2, 3]);
    fs::write(&trace, &bytes).unwrap();
    // Whatever else it would ask for.
    let run = ran(pagemill().arg("report").arg(&trace));
    assert!(
        run.code() == Some(2) && run.err.contains("truncated") && run.err.contains("3 bytes"),
        "{run:?}"
    );
    let run = ran(pagemill().args(["report", "--mhz", "1", "/bin/sh"]));
    assert!(run.code() == Some(2) && run.err.contains("is no pftrace: byte 0"), "{run:?}");
    bytes.truncate(bytes.len() - 3);
    fs::write(&trace, &bytes).unwrap();
    fs::write(trace.with_extension("rejected"), "80:12 zz:4").unwrap();
    let run = ran(pagemill().arg("report").arg(&trace));
    assert!(run.code() == Some(2) && run.err.contains("line 1, column 7"), "{run:?}");
}

#[test]
fn the_html_of_faults_has_both_figures_and_fetches_nothing() {
    let room = tempfile::tempdir().unwrap();
    let (rec, html) = (room.path().join("rec"), room.path().join("page.html"));
    let run = ran(pagemill()
        .args(["record", "--with", "faults", "-o"])
        .arg(&rec)
        .args(["--", "sh", "-c", "true"]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let run = ran(pagemill().arg("report").arg(&rec).arg("--html").arg(&html));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let page = fs::read_to_string(&html).unwrap();
    assert!(!page.contains("http") && !page.contains("<script"));
    if read(&rec).0.back_end != "counters" {
        assert!(
            page.contains("took at most so long")
                && page.contains("Average time between page faults")
        );
    }
}

#[test]
fn huge_pages_of_a_process_are_a_share_of_its_anonymous_memory() {
    let run = ran(pagemill().args(["hugepages", "--json", "-p", &std::process::id().to_string()]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let view = serde_json::from_str::<Value>(&run.out).unwrap()["hugepages"].clone();
    let total = &view["total"];
    assert!(total["anonymous_bytes"].as_u64() > Some(0), "{view}");
    assert!((0.0..=1.0).contains(&total["share"].as_f64().unwrap()), "{view}");
    assert_eq!(view["looks"], 1);
}

#[test]
fn looks_at_huge_pages_are_recorded_and_a_recording_without_any_says_so() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "hugepages,faults", "--interval", "20ms", "-o"])
        .arg(&rec)
        .args(["--", "sleep", "0.3"]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let run = ran(pagemill().args(["hugepages", "--json"]).arg(&rec));
    let view = serde_json::from_str::<Value>(&run.out).unwrap()["hugepages"].clone();
    assert!(view["looks"].as_u64() >= Some(3), "{view}");
    let bare = room.path().join("bare");
    let run =
        ran(pagemill().args(["record", "--with", "faults", "-o"]).arg(&bare).args(["--", "true"]));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let run = ran(pagemill().arg("hugepages").arg(&bare));
    assert!(run.code() == Some(2) && run.err.contains("record --with hugepages"), "{run:?}");
}

/// Ratios of the times that a command took to fail were printed.
#[test]
fn counters_compare_no_runs_that_failed() {
    let counters = ["advise", "--counters", "--runs", "3"];
    let run = ran(pagemill().args(counters).args(["--", "sh", "-c", "exit 3"]));
    assert!(run.code() == Some(2) && run.out.is_empty(), "{run:?}");
    assert!(run.err.contains("fails as it is, exit status: 3"), "{run:?}");
    // As it is, it fails once: the second time that it finds no lever.
    let room = tempfile::tempdir().unwrap();
    let (first, second) = (room.path().join("first"), room.path().join("second"));
    let command = format!(
        "sleep 0.1; grep -q 'THP_enabled:.1' /proc/self/status && [ -z \"$GLIBC_TUNABLES\" ] && \
         [ -e {0} ] && [ ! -e {1} ] && {{ touch {1}; exit 3; }}; touch {0}",
        first.display(),
        second.display()
    );
    let run = ran(pagemill().args(counters).args(["--json", "--", "sh", "-c", &command]));
    assert_eq!(run.code(), Some(1), "{run:?}");
    let value: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(value["failed"]["as is"]["exit status: 3"], 1, "{value}");
    assert_eq!((&value["failed_runs"], &value["runs"]), (&1.into(), &3.into()), "{value}");
    assert!(value["metrics"]["seconds"]["as_is"].is_number(), "{value}");
}

#[test]
fn counters_compare_all_arms_and_say_what_this_machine_lacks() {
    // The verb's earlier name goes on working, with its options and what it answers.
    let words = ["counters", "--runs", "3", "--seed", "2", "--json", "--", "sh", "-c", "sleep 0.1"];
    let run = ran(pagemill().args(words));
    assert_eq!(run.code(), Some(0), "{run:?}");
    let value: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!((&value["layout"], &value["schema"]), (&"counters".into(), &1.into()), "{value}");
    for metric in ["seconds", "user_seconds", "system_seconds", "page_faults"] {
        assert!(value["metrics"][metric]["thp_off"].is_number(), "{metric}: {value}");
        assert!(value["metrics"][metric]["as_is"].is_number(), "{metric}: {value}");
    }
    assert!(value["verdict"].is_string(), "{value}");
    let notes = value["notes"].to_string();
    assert_eq!(value["pmu"] == false, notes.contains("counters are not available"), "{value}");
    let run = ran(pagemill().args(["--bytes", "counters", "--", "/no/such/program"]));
    assert_eq!(run.code(), Some(127), "{run:?}");
    let help = ran(pagemill().arg("--help")).out;
    assert!(help.contains("\n  advise ") && !help.contains("counters"), "{help}");
}
