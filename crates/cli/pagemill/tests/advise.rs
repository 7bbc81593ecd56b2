//! `advise` on programs whose truth is known. What is judged here is memory and how commands end, which a busy machine
//! does not change; never time.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use pagemill_kernel::settings::cgroup::Child;
use serde_json::Value;
use support::{Ran, compiled, pagemill, pagemill_with, ran, recording};
use tempfile::TempDir;

use pagemill_model::Pid;

/// Asks for huge pages and touches one base page of each.
const SPARSE: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
int main(void) {
  size_t huge = 2 << 20, n = 24;
  char *a = mmap(0, huge * (n + 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  a = (char *)(((size_t)a + huge - 1) / huge * huge);
  madvise(a, huge * n, MADV_HUGEPAGE);
  for (size_t i = 0; i < n; i++) a[i * huge] = 1;
  struct timespec rest = { 0, 150000000 };
  nanosleep(&rest, 0);
  puts("done");
}
"#;

/// Memory that is written and held: there is nothing to gain.
const HELD: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int main(void) {
  size_t size = 24 << 20;
  char *a = malloc(size);
  struct timespec rest = { 0, 15000000 };
  for (int i = 0; i < 10; i++) { memset(a, i, size); nanosleep(&rest, 0); }
  printf("%d\n", a[size / 2]);
}
"#;

/// Reads and writes at random in 64 MiB for a second of its CPU time, without a rest.
const WORKS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int main(void) {
  size_t size = 64 << 20;
  unsigned char *a = malloc(size);
  memset(a, 1, size);
  unsigned long x = 88172645463325252ul;
  do {
    for (int i = 0; i < 100000; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; a[x & (size - 1)]++; }
  } while (clock() < CLOCKS_PER_SEC);
  printf("%d\n", a[size / 2] > 0);
}
"#;

/// 24 MiB in small objects, all but the last of which are freed: none goes back. Threads have arenas of their own.
const FREED: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
enum { N = 12000, SIZE = 1000 };
static void *fill(void *ignored) {
  static __thread char *kept[N];
  for (int i = 0; i < N; i++) { kept[i] = malloc(SIZE); memset(kept[i], 1, SIZE); }
  for (int i = 0; i < N - 1; i++) free(kept[i]);
  struct timespec rest = { 1, 500000000 };
  nanosleep(&rest, 0);
  return kept[N - 1];
}
int main(void) {
  pthread_t thread;
  pthread_create(&thread, 0, fill, 0);
  fill(0);
  pthread_join(thread, 0);
  puts("done");
}
"#;

/// Advice in JSON, for memory, of these levers.
fn advice(levers: &str, command: &[&str]) -> (Ran, Value) {
    let mut advise = pagemill();
    advise.args(["advise", "--json", "--goal", "memory", "--within", "5m", "--slower", "99%"]);
    let ran = ran(advise.args(["--levers", levers, "--"]).args(command));
    let value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    (ran, value)
}

fn lever<'a>(advice: &'a Value, name: &str) -> &'a Value {
    let levers = advice["levers"].as_array().unwrap();
    levers.iter().find(|lever| lever["lever"] == name).unwrap()
}

/// A script that a test runs.
fn script(room: &TempDir, text: &str) -> PathBuf {
    let path = room.path().join("script");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_program_that_huge_pages_bloat_is_told_to_do_without() {
    let room = tempfile::tempdir().unwrap();
    let Some(sparse) = compiled(&room, "sparse", SPARSE, &["-O1"]) else { return };
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if setting.is_ok_and(|text| text.contains("[never]")) {
        return support::skip::<()>("this system gives no huge pages").unwrap_or(());
    }
    let sparse = sparse.to_str().unwrap();
    let (ran, advice) = advice("no huge pages,early trim,one arena", &[sparse]);
    if advice["seen"]["huge_bytes"] == 0 {
        return support::skip::<()>("this machine has no huge page free").unwrap_or(());
    }
    assert_eq!(ran.code(), Some(1), "{ran:?}");
    assert_eq!(advice["choice"]["lever"], "no huge pages", "{advice:#}");
    let ratio = &lever(&advice, "no huge pages")["changes"]["memory_mean"]["ratio"];
    assert!(ratio.as_f64().unwrap() < 0.5, "{advice:#}");
    let to_use = advice["use"].as_str().unwrap();
    assert!(to_use.starts_with("pagemill run --huge ") && to_use.ends_with(sparse), "{to_use}");
}

#[test]
fn what_malloc_keeps_free_is_seen_and_given_back() {
    let room = tempfile::tempdir().unwrap();
    let Some(freed) = compiled(&room, "freed", FREED, &["-O1", "-pthread"]) else { return };
    let (ran, advice) = advice("trim at rest", &[freed.to_str().unwrap()]);
    let seen = |name: &str| advice["seen"][name].as_u64().unwrap_or_else(|| panic!("{advice:#}"));
    let (heap, free) = (seen("malloc_heap_bytes"), seen("malloc_free_bytes"));
    assert!(free > 22 << 20 && heap >= free, "both arenas: {advice:#}");
    let back = seen("malloc_returnable_bytes");
    assert!(back > 20 << 20 && back <= free, "{advice:#}");
    let trimmed = &lever(&advice, "trim at rest");
    let ratio = trimmed["changes"]["memory_mean"]["ratio"].as_f64();
    assert!(ratio.is_some_and(|ratio| ratio < 0.8), "{advice:#}");
    assert_eq!((ran.code(), &advice["choice"]["lever"]), (Some(1), &Value::from("trim at rest")));
    assert!(advice["use"].as_str().unwrap().starts_with("pagemill run --trim -- "), "{advice:#}");
}

/// Of a static program it was said that one arena cannot be tried, for nothing can be preloaded: its glibc reads the
/// variable.
#[test]
fn a_static_program_has_the_settings_of_the_malloc_that_it_carries() {
    let room = tempfile::tempdir().unwrap();
    let Some(freed) = compiled(&room, "freed", FREED, &["-O1", "-pthread", "-static"]) else {
        return;
    };
    let mut advise = pagemill();
    advise.args(["advise", "--json", "--runs", "3", "--levers", "one arena,jemalloc", "--"]);
    let ran = ran(advise.arg(freed));
    let advice: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!(lever(&advice, "one arena")["runs"], 3, "{advice:#}");
    let preloaded = lever(&advice, "jemalloc")["why"].to_string();
    assert!(preloaded.contains("nothing can be preloaded: it is statically linked"), "{advice:#}");
}

/// Of all that never rest it said that what is free is not known; and that levers on malloc may bring all of a table
/// that is never freed.
#[test]
fn what_is_free_in_a_program_that_never_rests_is_read_while_it_works() {
    let room = tempfile::tempdir().unwrap();
    let Some(works) = compiled(&room, "works", WORKS, &["-O1"]) else { return };
    let (_, advice) = advice("one arena", &[works.to_str().unwrap()]);
    let seen = |name: &str| advice["seen"][name].as_u64().unwrap_or_else(|| panic!("{advice:#}"));
    assert_eq!(advice["seen"]["malloc_not_known"], Value::Null, "{advice:#}");
    assert!(
        seen("anonymous_bytes") > 60 << 20 && seen("malloc_free_bytes") < 1 << 20,
        "{advice:#}"
    );
    for name in ["early trim", "jemalloc", "plain heap", "compacting heap", "ksm heap"] {
        let most = lever(&advice, name)["estimate"]["memory"].as_f64().unwrap();
        assert!(most < 0.05, "{name}: {advice:#}");
    }
}

/// Small blocks of 24 MiB, which all are freed but the last; and a rest until its input ends.
const NODES: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { BLOCKS = 220000 };
static char *blocks[BLOCKS];
int main(void) {
  for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(100), 1, 100);
  for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
  write(1, "\n", 1);
  read(0, (char[1]){0}, 1);
}
"#;

/// Such blocks are in lists in which they look as if they were in use.
#[test]
fn small_blocks_that_were_freed_are_free() {
    let room = tempfile::tempdir().unwrap();
    let Some(nodes) = compiled(&room, "nodes", NODES, &["-O1"]) else { return };
    let piped = std::process::Stdio::piped;
    let mut nodes = std::process::Command::new(nodes);
    let mut child = nodes.stdin(piped()).stdout(piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let pid = child.id().to_string();
    let ran = pagemill_with(&["advise", "-p", &pid, "--for", "1s", "--json"]);
    drop(child.stdin.take());
    child.wait().unwrap();
    let all: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    assert!(all["seen"]["malloc_returnable_bytes"].as_u64() > Some(22 << 20), "{all:#}");
}

/// Eight threads hold 4 MiB each in arenas of their own, free it and end; malloc says what it holds then; and a rest
/// until its input ends.
const THREADS: &str = r#"
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { THREADS = 8, BLOCKS = 8000 };
static pthread_barrier_t all;
static void *work(void *ignored) {
  static __thread char *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(500), 1, 500);
  pthread_barrier_wait(&all);
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
  return 0;
}
int main(void) {
  pthread_t threads[THREADS];
  pthread_barrier_init(&all, 0, THREADS);
  for (int i = 0; i < THREADS; i++) pthread_create(threads + i, 0, work, 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
  malloc_info(0, stdout);
  fflush(stdout);
  close(1);
  read(0, (char[1]){0}, 1);
}
"#;

/// What arenas of threads had given back counted as live: 177 MiB of a process of 2 MiB.
#[test]
fn what_arenas_have_given_back_is_not_held() {
    let room = tempfile::tempdir().unwrap();
    let Some(threads) = compiled(&room, "threads", THREADS, &["-O1", "-pthread"]) else { return };
    let piped = std::process::Stdio::piped;
    let mut threads = std::process::Command::new(threads);
    let mut child = threads.stdin(piped()).stdout(piped()).spawn().unwrap();
    let mut says = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut says).unwrap();
    let pid = child.id().to_string();
    let ran = pagemill_with(&["advise", "-p", &pid, "--for", "1s", "--json"]);
    drop(child.stdin.take());
    child.wait().unwrap();
    // The totals stand last.
    let told = |name: &str| -> u64 {
        let after = says.rsplit(name).next().unwrap();
        after.split('"').next().unwrap().parse().unwrap_or_else(|_| panic!("{says}"))
    };
    let held = told("<system type=\"current\" size=\"");
    let all: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    let heap = all["seen"]["malloc_heap_bytes"].as_u64().unwrap_or_else(|| panic!("{all:#}"));
    assert!(heap.abs_diff(held) <= held / 10 + 65536, "{heap}, malloc says {held}: {all:#}");
    let live = heap - all["seen"]["malloc_free_bytes"].as_u64().unwrap();
    assert!(live < 1 << 20, "{all:#}");
}

/// Two processes have one memory of 64 MiB, until the input of the first ends.
const SHARES: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
char *held;
static int waits(void *ignored) { close(1); return pause(); }
int main(void) {
  char *stack = malloc(65536);
  held = malloc(64 << 20);
  memset(held, 1, 64 << 20);
  int child = clone(waits, stack + 65536, CLONE_VM | SIGCHLD, 0);
  puts(child > 0 ? "ready" : "none");
  fflush(stdout);
  close(1);
  read(0, (char[1]){0}, 1);
  kill(child, SIGKILL);
  return waitpid(child, 0, 0) != child || held[1] != 1;
}
"#;

/// Of a Redis of 79 MiB whose accesses had been recorded 237 were told: two helpers in it have its memory.
#[test]
fn memory_that_processes_have_together_counts_once() {
    let room = tempfile::tempdir().unwrap();
    let Some(shares) = compiled(&room, "shares", SHARES, &["-O1"]) else { return };
    let piped = std::process::Stdio::piped;
    let mut shares = std::process::Command::new(shares);
    let mut child = shares.stdin(piped()).stdout(piped()).spawn().unwrap();
    let mut says = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut says).unwrap();
    let ran = pagemill_with(&["advise", "-p", &child.id().to_string(), "--for", "1s", "--json"]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success() && says == "ready\n", "{says}");
    let all: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    let peak = all["seen"]["peak_bytes"].as_u64().unwrap();
    assert!((64 << 20..80 << 20).contains(&peak), "{all:#}");
    assert_eq!(all["seen"]["processes"], 1, "{all:#}");
}

/// Small objects of 60 MiB are written once, and 2 MiB used for most of a second.
const KEPT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
int main(void) {
  for (int i = 0; i < 61440; i++) memset(malloc(1000), i, 1000);
  size_t size = 2 << 20;
  char *used = malloc(size);
  long sum = 0;
  memset(used, 1, size);
  while (clock() < CLOCKS_PER_SEC * 4 / 5) for (size_t i = 0; i < size; i += 64) sum += used[i]++;
  puts(sum ? "done" : "odd");
}
"#;

/// What is read of a heap to see what is free there counts as accessed.
#[test]
fn what_a_program_does_not_use_of_its_heap_is_seen_though_the_heap_is_read() {
    let room = tempfile::tempdir().unwrap();
    let Some(kept) = compiled(&room, "kept", KEPT, &["-O1"]) else { return };
    let (ran, all) = advice("slower memory", &[kept.to_str().unwrap()]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(all["seen"]["malloc_free_bytes"].is_u64(), "it was not read: {all:#}");
    assert!(all["seen"]["cold_bytes"].as_u64().unwrap() >= 56 << 20, "{all:#}");
}

#[test]
fn where_what_is_free_cannot_be_read_it_is_said_why() {
    let (_, advice) = advice("one arena", &["true"]);
    let why = advice["seen"]["malloc_not_known"].as_str().unwrap_or_else(|| panic!("{advice:#}"));
    assert!(why.contains("it ended before"), "{why}");
    assert_eq!(advice["seen"]["malloc_free_bytes"], Value::Null, "{advice:#}");
}

/// Of a shell that executes the program in its place (as shims of version managers do), the live bytes were the
/// shell's.
#[test]
fn the_heap_that_is_asked_is_that_of_what_runs_in_the_end() {
    let room = tempfile::tempdir().unwrap();
    let Some(held) = compiled(&room, "held", HELD, &["-O1"]) else { return };
    let line = format!("sleep 0.1; exec {}", held.display());
    let (_, advice) = advice("compacting heap", &["sh", "-c", &line]);
    let live = advice["seen"]["live_bytes"].as_u64();
    assert!(live.is_some_and(|live| live >= 24 << 20), "{live:?} {advice:#}");
}

#[test]
fn where_nothing_helps_that_is_said() {
    let room = tempfile::tempdir().unwrap();
    let Some(held) = compiled(&room, "held", HELD, &["-O1"]) else { return };
    let held = held.to_str().unwrap();
    let (ran, advice) = advice("early trim,plain heap,compacting heap", &[held]);
    assert_eq!(ran.code(), Some(0), "{ran:?} {advice:#}");
    assert_eq!((&advice["choice"], &advice["use"]), (&Value::Null, &Value::from(held)));
    assert!(advice["conclusion"].as_str().unwrap().contains("use the command as it is"));
    assert_eq!(advice["undecided"], Value::Bool(false));
}

#[test]
fn a_lever_that_breaks_the_command_is_told_and_not_chosen() {
    let room = tempfile::tempdir().unwrap();
    let text =
        "[ -z \"$MALLOC_TRIM_THRESHOLD_\" ] || { echo no such setting >&2; exit 3; }\nsleep 0.1";
    let (_, advice) = advice("early trim,one arena", &[script(&room, text).to_str().unwrap()]);
    let broken = lever(&advice, "early trim");
    assert_eq!(broken["state"], "breaks", "{advice:#}");
    let why = broken["why"].as_str().unwrap();
    assert!(why.contains("exit status: 3") && why.contains("no such setting"), "{why}");
    assert_eq!(advice["choice"], Value::Null);
}

#[test]
fn a_lever_under_which_the_command_prints_something_else_breaks_it() {
    let room = tempfile::tempdir().unwrap();
    let text = "echo \"the same$MALLOC_ARENA_MAX\"; sleep 0.1";
    let (_, advice) = advice("early trim,one arena", &[script(&room, text).to_str().unwrap()]);
    let broken = lever(&advice, "one arena");
    assert_eq!(broken["state"], "breaks", "{advice:#}");
    assert!(broken["why"].as_str().unwrap().contains("prints something else"));
    assert_ne!(lever(&advice, "early trim")["state"], "breaks");
}

/// Takes 400 MiB where a setting or the first word says so.
const GREEDY: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
  int much = getenv("MALLOC_TRIM_THRESHOLD_") || count > 1;
  size_t size = (much ? 400 : 8) << 20;
  volatile char *all = memset(malloc(size), 1, size);
  usleep(100000);
  return all[size / 2] - 1;
}
"#;

/// A control group for 192 MiB, or why there is none here.
fn confined() -> Result<Child, pagemill_kernel::Error> {
    let group = pagemill_kernel::Linux::live().memory_cgroup(Pid::own())?;
    let confined = group.create(&format!("test-advise-{}", std::process::id()))?;
    // Without swap, where that is bounded at all; of version 1 the first bound comes first.
    let names = ["memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
    for (name, limit) in
        names.map(|name| (name, "201326592")).into_iter().chain([("memory.swap.max", "0")])
    {
        let file = confined.directory().join(name);
        if file.exists() {
            fs::write(file, limit).unwrap();
        }
    }
    Ok(confined)
}

#[test]
fn a_lever_that_needs_more_memory_than_there_is_is_told_from_one_that_breaks_the_command() {
    let room = tempfile::tempdir().unwrap();
    let Some(greedy) = compiled(&room, "greedy", GREEDY, &["-O1"]) else { return };
    let group = match confined() {
        Ok(group) => group,
        Err(error) => return support::skip::<()>(&error.to_string()).unwrap_or(()),
    };
    let mut advise = pagemill();
    advise.args(["advise", "--json", "--within", "5m", "--levers", "early trim,one arena", "--"]);
    group.start_inside(&mut advise).unwrap();
    let told = ran(advise.arg(&greedy));
    let advice: Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{told:?}"));
    let starved = lever(&advice, "early trim");
    let why = starved["why"].as_str().unwrap_or_else(|| panic!("{advice:#}"));
    assert_eq!(starved["state"], "starves", "{advice:#}");
    assert!(why.contains("want of memory") && why.contains("192.0 MiB"), "{why}");
    assert_eq!((told.code(), &advice["choice"]), (Some(0), &Value::Null), "{advice:#}");
    let mut advise = pagemill();
    advise.args(["advise", "--"]).arg(&greedy).arg("much");
    group.start_inside(&mut advise).unwrap();
    let told = ran(&mut advise);
    assert_eq!(told.code(), Some(2), "{told:?}");
    assert!(
        told.err.contains("want of memory") && told.err.contains("nothing was tried"),
        "{told:?}"
    );
}

#[test]
fn python_is_tried_without_its_own_allocator_by_a_variable_of_the_command_alone() {
    let room = tempfile::tempdir().unwrap();
    let log = room.path().join("log");
    let text = format!("echo \"[$PYTHONMALLOC]\" >>{}; sleep 0.2", log.display());
    let (told, advice) = advice("no pymalloc", &[script(&room, &text).to_str().unwrap()]);
    assert!([Some(0), Some(1), Some(2)].contains(&told.code()), "{told:?}");
    assert_eq!(lever(&advice, "no pymalloc")["estimate"]["why"], "it is not CPython with pymalloc");
    assert!(
        lever(&advice, "no pymalloc")["command"]
            .as_str()
            .unwrap()
            .starts_with("PYTHONMALLOC=malloc ")
    );
    let log = fs::read_to_string(log).unwrap();
    let (with, without) = (log.matches("[malloc]").count(), log.matches("[]").count());
    assert_eq!(lever(&advice, "no pymalloc")["runs"], with, "{log}");
    // The look is a run, too.
    assert_eq!(advice["base"]["runs"], without - 1, "{log}");
    let source = "#include <string.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
                  int main(void) { long size = 32 << 20;\n\
                  char *all = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
                  memset(all, 1, size); usleep(400000); return all[9] != 1; }\n";
    let Some(python) = compiled(&room, "python3", source, &["-O1"]) else { return };
    let mut advise = pagemill();
    advise.args(["advise", "--json", "--within", "5m", "--levers", "no pymalloc", "--"]);
    let told = ran(advise.arg(&python).env_remove("PYTHONMALLOC"));
    let advice: Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{told:?}"));
    assert_eq!(advice["seen"]["pymalloc"], true, "{advice:#}");
    assert!(lever(&advice, "no pymalloc")["estimate"]["memory"].as_f64() > Some(0.9), "{advice:#}");
}

#[test]
fn a_lever_under_which_the_command_dies_at_once_is_told_and_not_chosen() {
    let room = tempfile::tempdir().unwrap();
    // As a program does that brings its own allocator and finds another one loaded.
    let text = "[ -z \"$LD_PRELOAD\" ] || kill -SEGV $$\nsleep 0.1";
    let (told, advice) =
        advice("plain heap,compacting heap,one arena", &[script(&room, text).to_str().unwrap()]);
    for name in ["plain heap", "compacting heap"] {
        let broken = lever(&advice, name);
        assert_eq!(broken["state"], "breaks", "{advice:#}");
        let why = broken["why"].as_str().unwrap();
        assert!(why.contains("signal: 11") || why.contains("exit status: 139"), "{why}");
    }
    assert_eq!((told.code(), &advice["choice"]), (Some(0), &Value::Null), "{advice:#}");
}

#[test]
fn what_cannot_be_judged_is_refused_with_the_way_out() {
    let room = tempfile::tempdir().unwrap();
    let fails = |code: i32, arguments: &[&str], says: &[&str]| {
        let ran = pagemill_with(&[&["advise"], arguments].concat());
        assert_eq!(ran.code(), Some(code), "{arguments:?}: {ran:?}");
        assert!(ran.out.is_empty(), "{ran:?}");
        for text in says {
            assert!(ran.err.contains(text), "{arguments:?}: no {text:?} in {}", ran.err);
        }
    };
    let fail = "echo out of luck >&2; exit 7";
    fails(2, &["--", "sh", "-c", fail], &["exit status: 7", "out of luck", "nothing was tried"]);
    fails(2, &["--", "sh", "-c", "tty || { echo not a tty >&2; exit 1; }"], &["terminal"]);
    fails(2, &["--", "sh", "-c", "setsid sleep 1000 & exit 0"], &["in the background"]);
    fails(2, &["--within", "1s", "--", "sleep", "1000"], &["still ran after 1.0 s", "--within"]);
    fails(2, &["--metric", "x: ([0-9]+)", "--", "true"], &["matches the metric"]);
    fails(2, &["--metric", "([", "--", "true"], &["no regular expression"]);
    fails(2, &["--metric", "x: [0-9]+", "--", "true"], &["has no group for the number"]);
    fails(2, &["--levers", "luck", "--", "true"], &["no lever \"luck\"", "jemalloc"]);
    let mark = room.path().join("worked");
    let touch = ["--", "touch", mark.to_str().unwrap()];
    fails(2, &[&["--levers", "jemaloc"], &touch[..]].concat(), &["did you mean \"jemalloc\"?"]);
    fails(2, &[&["--runs", "1"], &touch[..]].concat(), &["--runs 1 is too few", "--runs 3"]);
    fails(
        2,
        &[&["--for", "5s"], &touch[..]].concat(),
        &["--for goes with -p PID or --load CLIENT"],
    );
    fails(2, &[&["-f"], &touch[..]].concat(), &["--force goes with"]);
    assert!(!mark.exists(), "it is refused before anything runs");
    fails(2, &["--goal", "tail", "--", "true"], &["--less-is-better"]);
    fails(2, &["--worth", "200%", "--", "true"], &["percentage"]);
    fails(127, &["--", "/no/such/program"], &["not found"]);
    let page = room.path().join("page.html");
    fs::write(&page, "mine").unwrap();
    fails(2, &["--html", page.to_str().unwrap(), "--", "true"], &["exists"]);
    assert_eq!(fs::read_to_string(page).unwrap(), "mine");
    let (page, ran) = (room.path().join("missing/page.html"), room.path().join("ran"));
    let words = ["--html", page.to_str().unwrap(), "--", "touch", ran.to_str().unwrap()];
    fails(2, &words, &["cannot write", "missing"]);
    assert!(!ran.exists(), "it is refused before anything runs");
    let load = |server| ["--load", "true", "--", "sh", "-c", server];
    fails(2, &load("echo port taken >&2; exit 3"), &["ended before it was asked", "port taken"]);
    fails(2, &load("sleep 0.2"), &["ended before it was asked", "in the foreground"]);
}

/// Of a process and of a recording all of this was ignored, with exit status 0.
#[test]
fn what_is_for_trials_is_refused_where_nothing_is_tried() {
    let room = tempfile::tempdir().unwrap();
    let recording = room.path().join("rec");
    let recording = recording.to_str().unwrap();
    let made =
        ["record", "--with", "heap", "--heap", "none", "-o", recording, "--", "sleep", "0.3"];
    let made = pagemill_with(&made);
    assert_eq!(made.code(), Some(0), "{made:?}");
    let own = std::process::id().to_string();
    for whose in [&["-p", own.as_str(), "--for", "100ms"][..], &[recording]] {
        for options in [
            &["--levers", "jemalloc"][..],
            &["--metric", "x"],
            &["--load", "true"],
            &["--goal", "speed"],
            &["--runs", "5"],
            &["--all"],
            &["--within", "5s"],
            &["--worth", "5%"],
            &["--slower", "5%"],
            &["--seed", "2"],
        ] {
            let ran = pagemill_with(&[&["advise"][..], whose, options].concat());
            assert_eq!((ran.code(), ran.out.as_str()), (Some(2), ""), "{options:?}: {ran:?}");
            let says = format!(
                "pagemill: {} goes only with a command (-- CMD): nothing is tried",
                options[0]
            );
            assert!(ran.err.starts_with(&says) && ran.err.lines().count() == 1, "{ran:?}");
        }
        let json = pagemill_with(&[&["advise", "--json"][..], whose].concat());
        assert!(json.code() == Some(0) && json.out.contains("\"levers\""), "{json:?}");
        let page = room.path().join("page.html");
        let ran = pagemill_with(
            &[&["advise", "--html", page.to_str().unwrap(), "-f"][..], whose].concat(),
        );
        assert_eq!(ran.code(), Some(0), "{ran:?}");
        let text = fs::read_to_string(&page).unwrap();
        let conclusion = ran.out.lines().next().unwrap().split(": ").nth(1).unwrap().to_owned();
        let first = conclusion.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
        assert!(text.contains(&first) && text.contains("cannot help"), "no {first:?} in {text}");
        fs::remove_file(page).unwrap();
    }
}

#[test]
fn a_command_that_fails_now_and_then_is_found_out() {
    let room = tempfile::tempdir().unwrap();
    let count = room.path().join("count");
    let text = format!("sleep 0.06; mkdir {} 2>/dev/null || exit 9", count.display());
    let script = script(&room, &text);
    let ran = pagemill_with(&["advise", "--", script.to_str().unwrap()]);
    assert_eq!(ran.code(), Some(2), "{ran:?}");
    assert!(
        ran.err.contains("differs between runs") && ran.err.contains("exit status: 9"),
        "{ran:?}"
    );
}

#[test]
fn where_time_is_short_for_levers_it_is_undecided() {
    let mut advise = pagemill();
    // The look and the first round, which is always run, take six seconds at the least.
    advise.args(["advise", "--json", "--goal", "memory", "--within", "5s"]);
    let levers = "early trim,one arena,malloc huge,no huge pages";
    let ran = ran(advise.args(["--levers", levers, "--", "sleep", "2"]));
    let advice: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((ran.code(), &advice["undecided"]), (Some(2), &Value::Bool(true)), "{advice:#}");
    let says = advice["conclusion"].as_str().unwrap();
    assert!(says.starts_with("undecided: ") && says.contains("--within"), "{says}");
    assert!(ran.err.contains(says), "{ran:?}");
    let untried = |lever: &&Value| lever["state"] == "no-time";
    let untried = advice["levers"].as_array().unwrap().iter().filter(untried).count();
    assert!(untried > 0 && says.contains(&format!("{untried} lever")), "{advice:#}");
}

#[test]
fn a_command_that_ends_at_once_is_run_in_batches() {
    let ran = pagemill_with(&["advise", "--within", "5m", "--levers", "early trim", "--", "true"]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(ran.out.contains("a run is ") || ran.out.contains("as it is "), "{ran:?}");
    assert!(ran.out.contains("use: true"), "{ran:?}");
}

#[test]
fn the_page_says_what_the_text_says() {
    let room = tempfile::tempdir().unwrap();
    let page = room.path().join("page.html");
    let file = page.to_str().unwrap();
    let arguments = ["advise", "--within", "5m", "--levers", "early trim", "--html", file, "--"];
    let ran = pagemill_with(&[&arguments[..], &["sh", "-c", "sleep 0.1; echo '<&>'"]].concat());
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let text = fs::read_to_string(page).unwrap();
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(&text, options).unwrap();
    assert!(text.contains("early trim") && text.contains("use the command as it is"), "{text}");
}

#[test]
fn a_server_is_asked_by_its_client_and_its_metric_read() {
    let room = tempfile::tempdir().unwrap();
    let socket = room.path().join("socket");
    let server = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n\
        kept = bytearray(16 << 20)\n\
        while True:\n    c, _ = s.accept(); c.sendall(b'7'); c.close()\n";
    let client = "import socket, sys, time\n\
        for i in range(20):\n    \
        s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1); time.sleep(0.01)\n\
        print('answers: 20')\n";
    let (program, asks) = (room.path().join("server.py"), room.path().join("client.py"));
    fs::write(&program, server).unwrap();
    fs::write(&asks, client).unwrap();
    // Each turn starts anew, and the socket of the last is in the way.
    let clean = format!("rm -f {0}; exec python3 {1} {0}", socket.display(), program.display());
    let load = format!("python3 {} {}", asks.display(), socket.display());
    let run = |load: &str| {
        let mut advise = pagemill();
        advise.args([
            "advise",
            "--json",
            "--within",
            "5m",
            "--levers",
            "early trim",
            "--for",
            "5m",
            "--load",
            load,
        ]);
        ran(advise.args(["--metric", "answers: ([0-9]+)", "--", "sh", "-c", &clean]))
    };
    let asked = run(&load);
    if asked.err.contains("python3: not found") {
        return support::skip::<()>("there is no python3").unwrap_or(());
    }
    assert_eq!(asked.code(), Some(0), "{asked:?}");
    let advice: Value = serde_json::from_str(&asked.out).unwrap();
    assert_eq!(advice["base"]["medians"]["metric"], 20.0, "{advice:#}");
    let first = asked.err.lines().next().unwrap_or_default();
    let lasts =
        "a turn of the server takes up to about 302 s (--for); no turn is begun after about 300 s";
    assert!(first.contains(lasts), "{asked:?}");
    assert_eq!(advice["time"], "metric");
    assert!(advice["seen"]["anonymous_bytes"].as_u64().unwrap() >= 16 << 20, "{advice:#}");
    let failed = run("exit 4");
    assert_eq!(failed.code(), Some(2), "{failed:?}");
    assert!(failed.err.contains("the client ended with exit status: 4"), "{failed:?}");
    let silent = run("true");
    assert_eq!(silent.code(), Some(2), "{silent:?}");
    assert!(silent.err.contains("nothing that the client prints matches"), "{silent:?}");
}

#[test]
fn redis_is_asked_by_its_own_benchmark() {
    let installed = |name: &str| std::process::Command::new(name).arg("--version").output().is_ok();
    for needed in ["redis-server", "redis-benchmark"] {
        if !installed(needed) {
            return support::skip::<()>(&format!("{needed} is not installed")).unwrap_or(());
        }
    }
    let room = tempfile::tempdir().unwrap();
    let socket = room.path().join("socket");
    let socket = socket.to_str().unwrap();
    let load = format!("redis-benchmark -s {socket} -q -t set -n 20000 -r 20000 -d 2000");
    let mut advise = pagemill();
    advise.args(["advise", "--json", "--within", "10m", "--levers", "plain heap"]);
    // On a busy machine the client takes long, and how fast it is differs.
    advise.args(["--for", "5m", "--goal", "memory", "--slower", "99%"]);
    advise.args(["--metric", "SET: ([0-9.]+) requests", "--load", &load, "--", "redis-server"]);
    let asked = ran(advise.args(["--port", "0", "--unixsocket", socket, "--save", ""]));
    assert!(matches!(asked.code(), Some(0 | 1)), "{asked:?}");
    let advice: Value = serde_json::from_str(&asked.out).unwrap();
    assert!(advice["base"]["medians"]["metric"].as_f64().unwrap() > 100.0, "{advice:#}");
    // 12 600 keys or so are drawn, of 2000 bytes each.
    assert!(advice["seen"]["anonymous_bytes"].as_u64().unwrap() > 20 << 20, "{advice:#}");
    let plain = lever(&advice, "plain heap");
    assert!(plain["runs"].as_u64().unwrap() >= 1, "{advice:#}");
    assert!(!plain["state"].as_str().unwrap().contains("breaks"), "{advice:#}");
}

#[test]
fn a_running_process_is_looked_at_and_nothing_is_tried() {
    let room = tempfile::tempdir().unwrap();
    let Some(held) = compiled(&room, "held", &HELD.replace("i < 10", "i < 100000"), &["-O1"])
    else {
        return;
    };
    let mut child = std::process::Command::new(&held).spawn().unwrap();
    let pid = child.id().to_string();
    let linux = pagemill_kernel::Linux::live();
    let full =
        || linux.smaps_rollup(Pid(child.id())).is_ok_and(|usage| usage.anonymous >= Some(20 << 20));
    support::until("its memory", full);
    let seen = pagemill_with(&["advise", "-p", &pid, "--for", "1s", "--json"]);
    let shown = pagemill_with(&["advise", "-p", &pid, "--for", "300ms"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((seen.code(), shown.code()), (Some(0), Some(0)), "{seen:?} {shown:?}");
    let seen: Value = serde_json::from_str(&seen.out).unwrap();
    assert!(seen["seen"]["anonymous_bytes"].as_u64().unwrap() >= 20 << 20, "{seen:#}");
    let arena = seen["levers"].as_array().unwrap().iter().find(|row| row["lever"] == "one arena");
    assert_eq!(arena.unwrap()["estimate"]["memory"], 0.0, "it has one thread: {seen:#}");
    assert!(
        shown.out.contains("nothing was tried")
            && shown.out.contains("to try them: pagemill advise")
    );
    let gone = pagemill_with(&["advise", "-p", &pid]);
    assert_eq!(gone.code(), Some(2), "{gone:?}");
    assert!(gone.err.contains(&format!("process {pid}")), "{gone:?}");
}

/// Keeps one small object of four, and says what its malloc says of itself, if that is jemalloc: bytes that are live,
/// and in pages with any.
const HOLES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { N = 60000, SIZE = 1000 };
static char *kept[N];
int main(void) {
  for (int i = 0; i < N; i++) { kept[i] = malloc(SIZE); memset(kept[i], 1, SIZE); }
  char *large = malloc(5 << 20);
  memset(large, 1, 5 << 20);
  for (int i = 0; i < N; i++) if (i % 4) free(kept[i]);
  int (*ctl)(const char *, void *, size_t *, void *, size_t) = dlsym(RTLD_DEFAULT, "mallctl");
  size_t live = 0, active = 0, size = sizeof live, epoch = 1;
  char buffer[64];
  setbuf(stdout, 0);
  if (ctl) {
    ctl("thread.tcache.flush", 0, 0, 0, 0);
    ctl("epoch", 0, 0, &epoch, sizeof epoch);
    ctl("stats.allocated", &live, &size, 0, 0);
    ctl("stats.active", &active, &size, 0, 0);
  }
  write(1, buffer, snprintf(buffer, sizeof buffer, "%zu %zu\n", live, active));
  pause();
  return large[1] + kept[0][0];
}
"#;

/// What `advise -p` sees of a program on this malloc, and what that said of itself; none if it is not installed.
fn seen_on(library: &str) -> Option<(Vec<u64>, Value, String)> {
    let path = format!("/usr/lib/x86_64-linux-gnu/{library}");
    if !std::path::Path::new(&path).exists() {
        return support::skip(&format!("{library} is not installed"));
    }
    let room = tempfile::tempdir().unwrap();
    let program = compiled(&room, "holes", HOLES, &["-O1"])?;
    let mut child = std::process::Command::new(program)
        .env("LD_PRELOAD", path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let pid = child.id().to_string();
    let seen = pagemill_with(&["advise", "-p", &pid, "--for", "100ms", "--json"]);
    let shown = pagemill_with(&["advise", "-p", &pid, "--for", "100ms"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let value = serde_json::from_str(&seen.out).unwrap_or_else(|error| panic!("{error}: {seen:?}"));
    let said = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    Some((said, value, shown.out))
}

/// No setting of glibc's malloc is estimated to bring anything.
fn claims_nothing_for_glibc(seen: &Value) {
    for name in ["one arena", "early trim", "trim at rest", "malloc huge"] {
        let estimate = &lever(seen, name)["estimate"];
        assert_eq!((&estimate["memory"], &estimate["time"]), (&0.0.into(), &0.0.into()), "{name}");
    }
}

#[test]
fn jemalloc_s_free_memory_is_read_and_is_what_levers_may_bring() {
    let Some((said, seen, shown)) = seen_on("libjemalloc.so.2") else { return };
    let of = |name: &str| seen["seen"][name].as_u64().unwrap_or_else(|| panic!("{seen:#}"));
    assert_eq!(seen["seen"]["allocator"], "jemalloc");
    let (heap, free, back) =
        (of("malloc_heap_bytes"), of("malloc_free_bytes"), of("malloc_returnable_bytes"));
    // What is dirty is in no page of jemalloc's that is active.
    let near = |value: u64, truth: u64| value.abs_diff(truth) < truth / 100;
    assert!(near(heap - free, said[0]) && near(heap - back, said[1]), "{said:?} {seen:#}");
    assert!(free > 30 << 20, "{seen:#}");
    claims_nothing_for_glibc(&seen);
    assert!(shown.contains("that jemalloc holds"), "{shown}");
    let estimate = |name: &str| lever(&seen, name)["estimate"]["memory"].as_f64().unwrap();
    assert!(estimate("plain heap") > 0.5 && estimate("purge at once") < 0.1, "{seen:#}");
    let command = lever(&seen, "purge behind")["command"].as_str().unwrap();
    assert!(command.starts_with("MALLOC_CONF=background_thread:true,"), "{command}");
}

#[test]
fn where_a_malloc_does_not_tell_what_is_free_that_is_said() {
    for (library, name) in
        [("libmimalloc.so.2", "mimalloc"), ("libtcmalloc_minimal.so.4", "tcmalloc")]
    {
        let Some((_, seen, shown)) = seen_on(library) else { continue };
        assert_eq!(seen["seen"]["allocator"], name);
        assert_eq!(seen["seen"]["malloc_free_bytes"], Value::Null, "{seen:#}");
        claims_nothing_for_glibc(&seen);
        assert!(shown.contains(&format!("not known: {name} did not tell")), "{shown}");
        let setting = lever(&seen, "mimalloc purge")["estimate"]["memory"].as_f64().unwrap();
        assert_eq!(setting > 0.0, name == "mimalloc", "{seen:#}");
    }
}

#[test]
fn redis_with_jemalloc_is_told_of_no_setting_of_glibc() {
    let room = tempfile::tempdir().unwrap();
    let socket = room.path().join("socket");
    let mut redis = std::process::Command::new("redis-server");
    redis.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket);
    let Ok(mut child) = redis.stdout(std::process::Stdio::null()).spawn() else {
        return support::skip::<()>("redis-server is not installed").unwrap_or(());
    };
    support::until("its socket", || socket.exists());
    let seen = pagemill_with(&["advise", "-p", &child.id().to_string(), "--for", "1s", "--json"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let seen: Value = serde_json::from_str(&seen.out).unwrap_or_else(|_| panic!("{seen:?}"));
    if seen["seen"]["allocator"] == "jemalloc" {
        claims_nothing_for_glibc(&seen);
        assert!(seen["seen"]["malloc_heap_bytes"].as_u64() > Some(0), "{seen:#}");
    }
    let next = seen["next"].as_str().unwrap();
    assert!(next.contains("-- redis-server "), "as it is called: {next}");
}

/// 192 MiB on base pages, of which the first half is touched all the time.
const HALF: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void) {
  size_t size = 192 << 20;
  char *a = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(a, size, MADV_NOHUGEPAGE);
  memset(a, 1, size);
  for (write(1, "\n", 1);;) for (size_t i = 0; i < size / 2; i += 4096) a[i]++;
}
"#;

#[test]
fn of_a_large_process_a_sample_is_marked_and_tells_what_is_not_accessed() {
    let room = tempfile::tempdir().unwrap();
    let Some(half) = compiled(&room, "half", HALF, &["-O1"]) else { return };
    let mut half = std::process::Command::new(half);
    let mut child = half.stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let pid = child.id().to_string();
    // In a second it may pay for 40 MiB, in ten for all. What a look has marked another knows of.
    let look = |time: &str| {
        let ran = pagemill_with(&["advise", "-p", &pid, "--for", time, "--json"]);
        serde_json::from_str::<Value>(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"))
    };
    let (sampled, again, all) = (look("1s"), look("1s"), look("10s"));
    child.kill().unwrap();
    child.wait().unwrap();
    let of = |seen: &Value, name: &str| {
        seen["seen"][name].as_u64().unwrap_or_else(|| panic!("{seen:#}"))
    };
    let near = |bytes: u64| bytes.abs_diff(96 << 20) < 8 << 20;
    assert!(near(of(&all, "cold_bytes")) && all["seen"]["cold_low_bytes"].is_null(), "{all:#}");
    if sampled["notes"].to_string().contains("was not looked at") {
        return support::skip::<()>(&sampled["notes"].to_string()).unwrap_or(());
    }
    for seen in [sampled, again] {
        let (low, high) = (of(&seen, "cold_low_bytes"), of(&seen, "cold_high_bytes"));
        assert!(low < 104 << 20 && high > 88 << 20 && low < high, "{seen:#}");
        assert!((low..=high).contains(&of(&seen, "cold_bytes")), "{seen:#}");
    }
}

#[test]
fn a_recording_of_memory_is_enough_for_estimates() {
    let room = tempfile::tempdir().unwrap();
    let Some(held) = compiled(&room, "held", HELD, &["-O1"]) else { return };
    let (held, rec) = (held.to_str().unwrap(), room.path().join("rec"));
    let rec = rec.to_str().unwrap();
    let recorded =
        pagemill_with(&["record", "--with", "heap", "--interval", "10ms", "-o", rec, "--", held]);
    assert_eq!(recorded.code(), Some(0), "{recorded:?}");
    let ran = pagemill_with(&["advise", rec, "--json"]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let seen: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(seen["seen"]["anonymous_bytes"].as_u64().unwrap() >= 20 << 20, "{seen:#}");
    assert!(seen["next"].as_str().unwrap().contains(held), "{seen:#}");
    let empty = pagemill_with(&["advise", room.path().to_str().unwrap()]);
    assert_eq!(empty.code(), Some(2), "{empty:?}");
}

#[test]
fn a_recording_of_accesses_tells_what_slower_memory_would_cost() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    recording::with_cold_memory(&rec);
    let rec = rec.to_str().unwrap();
    let ran = pagemill_with(&["advise", rec, "--json"]);
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    let answer: Value = serde_json::from_str(&ran.out).unwrap();
    let slower = &answer["slower_memory"];
    // 256 pages are touched in eight intervals, 16 in 64 of them.
    assert_eq!(slower["touched_bytes"], 272 * 4096, "{slower:#}");
    let points = slower["points"].as_array().unwrap();
    let of = |at: usize, name: &str| points[at][name].as_f64().unwrap();
    assert_eq!(of(7, "come_back"), 0.0);
    assert_eq!(of(7, "zram_times"), 1.0);
    // With 2 pages all come back; with 17 those that are used all the time do not, once no interval has all of them.
    assert_eq!(of(0, "come_back"), 7.0 * 272.0 + 56.0 * 16.0);
    assert_eq!(of(3, "come_back"), 7.0 * 272.0 + 16.0);
    // How often those 16 come back within an interval is not known where there is no room for them.
    assert!((0..3).all(|at| points[at]["zram_times"].is_null()), "{slower:#}");
    for at in 1..8 {
        assert!(at < 4 || of(at, "zram_times") <= of(at - 1, "zram_times"), "{slower:#}");
        assert!(at < 3 || of(at, "zram_times_least") <= of(at, "zram_times"), "{slower:#}");
        assert!(of(at, "tier_times") <= of(at - 1, "tier_times") * 1.001, "{slower:#}");
    }
    // Who holds it: each page once, and of what is touched in the first half alone all is unused.
    let holders = answer["holders"].as_array().unwrap();
    let sum = |key: &str| holders.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
    assert!(
        sum("resident_bytes") > 0 && sum("unused_bytes") <= sum("resident_bytes"),
        "{answer:#}"
    );
    let text = pagemill_with(&["advise", rec]);
    assert!(text.out.contains("who holds the "), "{text:?}");
    assert!(text.out.contains("slower memory, modelled: 9 of 10"), "{text:?}");
    assert!(text.out.contains("nothing was tried"), "{text:?}");
}
