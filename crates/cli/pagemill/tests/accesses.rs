//! `record --with accesses` and `report` of it, from the outside.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use pagemill_model::recording::Reader;
use pagemill_model::{Event, Source as _};
use serde_json::Value;
use support::{Ran, compiled, pagemill, ran};

/// Writes every page of one block, reads every second page of another, and ends with status 5.
const WALK: &str = r#"
#include <stdlib.h>
#include <sys/mman.h>
int main(void) {
    enum { PAGES = 3000 };
    char *written = mmap(0, PAGES * 4096L, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *read = mmap(0, PAGES * 4096L, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile char sum = 0;
    for (long round = 0; round < 20000; round++) {
        for (long i = 0; i < PAGES; i++) written[i * 4096] = 1;
        for (long i = 0; i < PAGES; i += 2) sum += read[i * 4096];
    }
    return 5;
}
"#;

/// Whether the run could not trace, said.
fn skipped(run: &Ran) -> bool {
    let cannot = run.code() == Some(125);
    if cannot {
        println!("skipped: {}", run.err);
    }
    cannot
}

/// Records a program in intervals of 20 ms; `None`, and why, if it could not be traced.
fn recorded(program: &Path, recording: &Path) -> Option<Ran> {
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--access-interval", "20ms", "-o"])
        .arg(recording)
        .arg("--")
        .arg(program));
    (!skipped(&run)).then_some(run)
}

#[test]
fn every_page_that_a_program_touches_is_in_the_recording_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "walk", WALK, &["-O1"]) else { return };
    let recording = directory.path().join("rec");
    let Some(run) = recorded(&program, &recording) else { return };
    assert_eq!(run.code(), Some(5), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    let accesses = &report["accesses"];
    let mappings = accesses["mappings"].as_array().unwrap();
    // Both blocks lie side by side and are one kind of mapping.
    let blocks =
        mappings.iter().find(|mapping| mapping["name"] == "anonymous, 2 to 64 MiB").unwrap();
    assert_eq!(blocks["counts"]["pages"], 3000 + 1500);
    if report["meta"]["accesses"]["back_end"] == "bpf" {
        assert_eq!(blocks["counts"]["written_pages"], 3000);
        assert_eq!(report["meta"]["accesses"]["lost"], 0);
    }
    assert!(accesses["intervals"].as_u64().unwrap() > 1, "{accesses}");
    let text = ran(pagemill().arg("report").arg(&recording));
    assert!(text.out.contains("working set of an interval"), "{}", text.out);
}

/// Writes to one page all the time while children that share it come and go, and to shared memory, which is not kept.
/// Then reads a third page, has the kernel take it for a futex that processes may share, and writes to it, once in
/// several intervals. Prints where the three lie.
const WRITES_AGAIN: &str = r#"
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static char *page(int kind) { return mmap(0, 4096, 3, kind | MAP_ANONYMOUS, -1, 0); }
static volatile char *pulse;
static void spin(volatile char *at, int ms) {
    struct timespec now, from;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    do {
        for (int i = 0; i < 1000; i++) { (*at)++; (*pulse)++; }
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    } while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000 < ms);
}
int main(void) {
    char *kept = page(MAP_PRIVATE);
    volatile int *word = (volatile int *)page(MAP_PRIVATE);
    pulse = page(MAP_SHARED);
    printf("%p\n%p\n%p\n", kept, (void *)word, (void *)pulse);
    fflush(stdout);
    for (int i = 0; i < 6; i++) {
        pid_t child = fork();
        if (!child) { pause(); _exit(0); }
        spin(kept, 25);
        kill(child, SIGKILL);
        waitpid(child, 0, 0);
        spin(kept, 10);
    }
    for (int i = 0; i < 6; i++) {
        spin(kept, 25);
        int before = *word;
        syscall(SYS_futex, word, FUTEX_WAKE, 1, 0, 0, 0);
        *word = before + 1;
    }
    return 0;
}
"#;

#[test]
fn a_page_that_was_kept_or_taken_by_the_kernel_is_told_as_written_when_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "again", WRITES_AGAIN, &["-O1"]) else { return };
    let recording = directory.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--access-interval", "5ms", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program));
    if skipped(&run) {
        return;
    }
    assert_eq!(run.code(), Some(0), "{run:?}");
    let places = run.out.lines().map(|line| u64::from_str_radix(&line[2..], 16).unwrap());
    let [kept, word, pulse] = places.collect::<Vec<u64>>()[..] else { panic!("{run:?}") };
    let (mut touched, mut written, mut keeps) = ([0; 2], [0; 2], 0);
    let mut reader = Reader::open(&recording).unwrap();
    let back_end = reader.meta().accesses.clone().unwrap().back_end;
    let mut parent = None;
    while let Some(event) = reader.next_event().unwrap() {
        let Event::Touched(row) = event else { continue };
        if *parent.get_or_insert(row.pid) != row.pid {
            continue;
        }
        let Some(written_starts) = &row.written_starts else {
            return println!("skipped: {back_end}");
        };
        let has = |starts: &[u64], pages: &Option<Vec<u64>>, at: u64| {
            let mut runs = starts.iter().zip(pages.iter().flatten());
            runs.any(|(start, pages)| (*start..start + pages * 4096).contains(&at))
        };
        let touches = |at: u64| has(row.starts.as_deref().unwrap(), &row.pages, at);
        let writes = |at: u64| has(written_starts, &row.written_pages, at);
        keeps += u64::from(row.kept.unwrap() > 0);
        // In some intervals the program does not run.
        if touches(kept) && touches(pulse) {
            (touched[0], written[0]) = (touched[0] + 1, written[0] + u64::from(writes(kept)));
        }
        // What is kept is told in each.
        if touches(word) && row.kept == Some(0) {
            (touched[1], written[1]) = (touched[1] + 1, written[1] + u64::from(writes(word)));
        }
    }
    assert!(keeps > 0, "no interval with kept pages");
    // The two writes of a round may lie in two intervals.
    assert!(written[0] + 2 >= touched[0], "touched {touched:?}, written {written:?}");
    // So may reading and writing.
    if back_end == "bpf" {
        assert!(2 * written[1] >= touched[1], "touched {touched:?}, written {written:?}");
    }
}

/// Threads, forked children and a timer's handler map memory, cut it, let it grow again and give it back; whatever is
/// new reads as zeros and whatever was written stays.
const MAPS: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGE = 4096 };
static volatile int wrong;
static char *map(size_t pages) { return mmap(0, pages * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
static void fresh(char *at, int pages, char mark) {
    for (int i = 0; i < pages; i++) { if (at[i * PAGE]) wrong++; at[i * PAGE] = mark; }
}
static void handler(int number) { char *at = map(2); fresh(at, 2, number); munmap(at, 2 * PAGE); }
static void *work(void *rounds) {
    for (long round = 0; round < (long)rounds; round++) {
        char *at = map(16), mark = 1 + round % 100;
        fresh(at, 16, mark);
        munmap(at + 8 * PAGE, 8 * PAGE);
        at = mremap(at, 8 * PAGE, 24 * PAGE, MREMAP_MAYMOVE);
        fresh(at + 8 * PAGE, 16, mark);
        for (int i = 0; i < 24; i++) if (at[i * PAGE] != mark) wrong++;
        munmap(at, 24 * PAGE);
    }
    return 0;
}
int main(void) {
    pthread_t threads[3];
    struct itimerval every = { { 0, 2000 }, { 0, 2000 } };
    signal(SIGALRM, handler);
    setitimer(ITIMER_REAL, &every, 0);
    for (int i = 0; i < 3; i++) pthread_create(threads + i, 0, work, (void *)800L);
    for (int i = 0; i < 8; i++) {
        char *at = map(4);
        fresh(at, 4, 7);
        pid_t child = fork();
        if (!child) { for (int i = 0; i < 4; i++) if (at[i * PAGE] != 7) wrong++; work((void *)20L); _exit(wrong); }
        memset(at, 9, 4 * PAGE);
        munmap(at, 4 * PAGE);
        int status;
        while (waitpid(child, &status, 0) < 0) {}
        if (status) wrong++;
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("wrong %d\n", wrong);
    return 5;
}
"#;

#[test]
fn memory_that_threads_map_and_unmap_is_what_it_is_without_a_tracer() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "maps", MAPS, &["-O1", "-pthread"]) else { return };
    let recording = directory.path().join("rec");
    let Some(run) = recorded(&program, &recording) else { return };
    assert_eq!((run.code(), run.out.as_str()), (Some(5), "wrong 0\n"), "{run:?}");
}

#[test]
fn what_cannot_be_recorded_is_said_before_the_program_starts() {
    let missing = ran(pagemill().args(["record", "--with", "accesses", "--", "no-such-program"]));
    assert_eq!(missing.code(), Some(127));
    let mixed = ran(pagemill().args(["record", "--with", "accesses,heap", "--", "true"]));
    assert_eq!(mixed.code(), Some(125));
    assert!(mixed.err.contains("by themselves"), "{}", mixed.err);
    let granule =
        ran(pagemill().args(["record", "--with", "accesses", "--granule", "8K", "--", "true"]));
    assert_eq!(granule.code(), Some(125));
    let budget =
        ran(pagemill().args(["record", "--with", "accesses", "--budget", "1", "--", "true"]));
    assert_eq!(budget.code(), Some(125));
    let alone = ran(pagemill().args(["record", "--backend", "exact", "--", "true"]));
    assert_eq!(alone.code(), Some(125));
    assert!(alone.err.contains("--with accesses"), "{}", alone.err);
    let init = ran(pagemill().args(["record", "--with", "accesses", "-p", "1"]));
    assert!(matches!(init.code(), Some(3 | 4)), "{init:?}");
    assert!(init.err.contains("nothing is recorded"), "{}", init.err);
}

#[test]
fn an_end_by_a_signal_is_told_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--budget", "1.5x", "-o"])
        .arg(&recording)
        .args(["--", "sh", "-c", "kill -SEGV $$"]));
    if skipped(&run) {
        return;
    }
    assert!(run.err.contains("ended by signal 11"), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(report["meta"]["exit_signal"], 11);
    assert_eq!(report["meta"]["accesses"]["budget_permille"], 1500);
    let text = ran(pagemill().arg("report").arg(&recording)).out;
    assert!(text.contains("139, ended by signal 11 (SIGSEGV)"), "{text}");
}

/// A row of the emulator stands for many accesses; what is made of them counts all.
#[test]
fn counted_accesses_are_exported_as_many() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--backend", "exact", "-o"])
        .arg(path("rec"))
        .args(["--", "/bin/true"]));
    if skipped(&run) {
        return;
    }
    let shown = ran(pagemill().args(["report", "--json"]).arg(path("rec")));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    let total = report["accesses"]["total"]["accesses"].as_u64().unwrap();
    let export = ran(pagemill()
        .args(["export", "--format", "moca", "-o"])
        .arg(path("csv"))
        .arg(path("rec")));
    assert_eq!(export.code(), Some(0), "{export:?}");
    let csv = std::fs::read_to_string(path("csv")).unwrap();
    let counts = csv.lines().skip(1).map(|line| {
        let fields = line.split(", ").skip(2).take(2).map(|field| field.parse::<u64>().unwrap());
        fields.sum::<u64>()
    });
    assert_eq!(counts.sum::<u64>(), total);
    assert!(total > csv.lines().count() as u64);
}

#[test]
fn a_recording_that_ends_before_the_program_leaves_it_and_its_status_alone() {
    let directory = tempfile::tempdir().unwrap();
    let recording = directory.path().join("rec");
    let script = "my @a = map { $_ x 3000 } 1..200; my $end = time + 2; my $n = 0;
        while (time < $end) { $n++; $a[$n % 200] .= 'x'; chop $a[$n % 200] }
        my $wrong = grep { $a[$_ - 1] ne $_ x 3000 } 1..200; print \"wrong $wrong\\n\"; exit 6";
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "--for", "300ms", "--granule", "64K", "-o"])
        .arg(&recording)
        .args(["--", "perl", "-e", script]));
    if skipped(&run) {
        return;
    }
    assert_eq!((run.code(), run.out.as_str()), (Some(6), "wrong 0\n"), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(report["meta"]["accesses"]["granule"], 65536);
    assert!(report["accesses"]["intervals"].as_u64().unwrap() > 0);
}

/// A table of the program, a block from a function of its own, and one from the C library's shell.
const NAMED: &str = r#"
#include <stdlib.h>
#include <string.h>
char table[64 * 4096];
__attribute__((noinline)) char *make_block(void) { return malloc(100 * 4096); }
int main(void) {
    char *block = make_block();
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < 100; i++) block[i * 4096] = round;
        for (int i = 0; i < 64; i++) table[i * 4096] += block[i * 4096];
    }
    return block[0] == 1;
}
"#;

#[test]
fn data_structures_are_named_by_their_variable_or_by_who_asked_for_them() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-g", "-fno-builtin"];
    let Some(program) = compiled(&directory, "named", NAMED, &flags) else { return };
    let recording = directory.path().join("rec");
    let Some(run) = recorded(&program, &recording) else { return };
    assert!(recording.join("summary.json").exists(), "{run:?}");
    let shown = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    if report["meta"]["accesses"]["back_end"] != "bpf" {
        println!("skipped: objects smaller than pages need the faults one by one");
        return;
    }
    let objects = report["accesses"]["objects"].as_array().unwrap();
    let object =
        |name: &str| objects.iter().find(|one| one["name"].as_str().unwrap().starts_with(name));
    let table = object("table").unwrap_or_else(|| panic!("{objects:#?}"));
    assert_eq!((&table["kind"], table["bytes"].as_u64()), (&"global".into(), Some(64 * 4096)));
    // Its first and last page may be touched first by way of what lies beside it, in each interval.
    assert!((62..=65).contains(&table["pages"].as_u64().unwrap()), "{table}");
    let block = object("make_block").unwrap_or_else(|| panic!("{objects:#?}"));
    assert_eq!((&block["kind"], block["bytes"].as_u64()), (&"allocation".into(), Some(100 * 4096)));
    assert!((99..=100).contains(&block["pages"].as_u64().unwrap()), "{block}");
    assert_eq!(block["threads"], 1);
    // Callers further out may stand in another page of the stack.
    assert!(block["detail"][0].as_str().unwrap().starts_with("make_block"), "{block}");
    // Damaged, the summary is told, and not made again: names in it may be found nowhere else.
    let summary = recording.join("summary.json");
    let whole = std::fs::read(&summary).unwrap();
    std::fs::write(&summary, "{").unwrap();
    let refused = ran(pagemill().args(["report", "--json"]).arg(&recording));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.err.contains("summary.json"), "{refused:?}");
    std::fs::write(&summary, whole).unwrap();
    let again = ran(pagemill().args(["report", "--json"]).arg(&recording));
    let again: Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!(again["accesses"]["objects"], report["accesses"]["objects"]);
    exports(&recording, directory.path());
    let same = ran(pagemill()
        .args(["compare", "--tolerance", "0", "--json"])
        .args([&recording, &recording]));
    assert_eq!(same.code(), Some(0), "{same:?}");
    let same: Value = serde_json::from_str(&same.out).unwrap();
    assert!(same["figures"].as_array().unwrap().len() > 4, "{same}");
    assert_eq!(same["objects"][0]["before"], same["objects"][0]["after"]);
    let page = directory.path().join("page.html");
    let html = ran(pagemill().arg("report").arg(&recording).arg("--html").arg(&page));
    assert_eq!(html.code(), Some(0), "{html:?}");
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("make_block") && page.contains("id=\"map\""));
}

/// Every format of accesses has the variable and the same number of accesses.
fn exports(recording: &Path, room: &Path) {
    let export = |format: &str| {
        let file = room.join(format);
        let run = ran(pagemill()
            .arg("export")
            .arg(recording)
            .args(["--format", format, "-o"])
            .arg(&file));
        assert_eq!(run.code(), Some(0), "{run:?}");
        let count: usize = run.err.split_whitespace().nth(1).unwrap().parse().unwrap();
        (std::fs::read(file).unwrap(), count)
    };
    let (parquet, count) = export("parquet");
    assert!(count > 160 && parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    let text = |format: &str| String::from_utf8(export(format).0).unwrap();
    let mitos = text("mitos");
    assert_eq!(mitos.lines().count(), count + 1);
    assert!(mitos.contains(",table,262144,1,"), "{}", &mitos[..400]);
    let columns =
        |text: &str| text.lines().map(|line| line.split(',').count()).collect::<BTreeSet<_>>();
    let moca = text("moca");
    assert_eq!(columns(&moca), BTreeSet::from([8]));
    let counted: usize = moca
        .lines()
        .skip(1)
        .map(|line| {
            line.split(", ").skip(2).take(2).map(|n| n.parse::<usize>().unwrap()).sum::<usize>()
        })
        .sum();
    assert_eq!(counted, count);
    let tabarnac = text("tabarnac");
    assert!(tabarnac.starts_with("addr,firstacc,type,T0"));
    assert_eq!(columns(&tabarnac).len(), 1);
    let perfetto: Value = serde_json::from_str(&text("perfetto")).unwrap();
    let events = perfetto["traceEvents"].as_array().unwrap();
    assert_eq!(events.iter().filter(|event| event["ph"] == "i").count(), count);
    let firefox: Value = serde_json::from_str(&text("firefox")).unwrap();
    let threads = firefox["threads"].as_array().unwrap();
    let samples: u64 =
        threads.iter().map(|thread| thread["samples"]["length"].as_u64().unwrap()).sum();
    assert_eq!(samples as usize, count);
    assert!(threads[0]["stringArray"].as_array().unwrap().contains(&"table [write]".into()));
    let again = ran(pagemill()
        .arg("export")
        .arg(recording)
        .args(["--format", "mitos", "-o"])
        .arg(room.join("mitos")));
    assert_eq!(again.code(), Some(2), "{again:?}");
}

#[test]
fn a_program_that_cannot_be_preloaded_is_recorded_without_allocations_and_that_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-static"];
    let Some(program) = compiled(&directory, "static", NAMED, &flags) else { return };
    let recording = directory.path().join("rec");
    let run = ran(pagemill()
        .args(["record", "--with", "accesses", "-o"])
        .arg(&recording)
        .arg("--")
        .arg(&program));
    if skipped(&run) {
        return;
    }
    let meta = std::fs::read_to_string(recording.join("meta.json")).unwrap();
    let meta: Value = serde_json::from_str(&meta).unwrap();
    let missing = meta["not_measured"].as_array().unwrap();
    assert!(
        missing.iter().any(|one| one["what"].as_str().unwrap().starts_with("allocations")),
        "{meta}"
    );
}

/// Says when it has begun, waits for a file, and checks its memory until then.
const KEEPS: &str = r#"
    my ($begun, $stop, $out) = @ARGV; my @a = map { $_ x 4000 } 1..300; my ($n, $wrong) = (0, 0);
    open(my $f, '>', $begun); close $f; my $end = time + 500;
    while (!-e $stop && time < $end) {
        for my $k (1..300) { $a[$k - 1] .= 'x'; $wrong++ if $a[$k - 1] ne ($k x 4000) . 'x'; chop $a[$k - 1] }
        $n++;
    }
    open($f, '>', $out); print $f "wrong $wrong, ", $n > 0 ? 'rounds' : 'none', "\n"; close $f;"#;

/// Waits for a condition with a generous limit; whether it came.
fn comes(what: impl Fn() -> bool) -> bool {
    for _ in 0..4000 {
        if what() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    false
}

#[test]
fn a_killed_recorder_leaves_the_program_running_and_what_it_wrote_readable() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut recorder = pagemill()
        .args(["record", "--with", "accesses", "--access-interval", "10ms", "-o"])
        .arg(path("rec"))
        .args(["--", "perl", "-e", KEEPS])
        .args([path("begun"), path("stop"), path("out")])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let parts = || {
        let listed = std::fs::read_dir(path("rec").join("touched")).into_iter().flatten().flatten();
        listed.filter(|entry| entry.path().extension() == Some("parquet".as_ref())).count()
    };
    let recorded = comes(|| parts() > 0 || !path("rec").exists() && path("out").exists());
    let _ = recorder.kill();
    let status = recorder.wait().unwrap();
    if status.code() == Some(125) {
        return println!("skipped: nothing is recorded on this machine");
    }
    assert!(recorded, "no part was written");
    std::fs::write(path("stop"), "").unwrap();
    assert!(comes(|| std::fs::read_to_string(path("out")).is_ok_and(|text| text.ends_with('\n'))));
    assert_eq!(std::fs::read_to_string(path("out")).unwrap(), "wrong 0, rounds\n");
    let shown = ran(pagemill().args(["report", "--json"]).arg(path("rec")));
    assert_eq!(shown.code(), Some(0), "{shown:?}");
    let report: Value = serde_json::from_str(&shown.out).unwrap();
    assert!(report["accesses"]["intervals"].as_u64().unwrap() > 0, "{}", shown.out);
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "walk", WALK, &["-O1"]) else { return };
    let small = directory.path().join("small");
    std::fs::create_dir(&small).unwrap();
    // The disk goes with the process: it is mounted in a name space of its own.
    let script = "mount -t tmpfs -o size=64k none \"$1\" || exit 99; shift; exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(&small);
    let inner = pagemill();
    command.arg(inner.get_program());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let run = ran(command
        .args(["record", "--with", "accesses", "--access-interval", "2ms", "-o"])
        .arg(small.join("rec"))
        .arg("--")
        .arg(&program));
    if run.code() != Some(5) {
        assert!(
            skipped(&run) || run.err.contains("mount") || run.err.contains("unshare"),
            "{run:?}"
        );
        return println!("skipped: {}", run.err);
    }
    let (said, full) = (&run.err, "No space left on device");
    assert!(said.contains("the program was not disturbed") && said.contains(full), "{said}");
}
