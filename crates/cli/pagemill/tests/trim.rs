//! `pagemill run --trim`: what glibc keeps free goes back while a program rests, and nothing else changes.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use support::{Ran, compiled, pagemill, pagemill_with, ran, skip, trim};

/// Fills memory with small objects and frees all but the last, which keeps glibc from giving any back; then says what
/// happens to it. Each of its waits ends by itself after a time that no machine needs.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { N = 32000, SIZE = 1000 };
static char *kept[N];
static long mib(void) {
  long all, resident;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &all, &resident) != 2) exit(9);
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}
static int threads(void) {
  int count = -2;
  DIR *tasks = opendir("/proc/self/task");
  while (readdir(tasks)) count++;
  closedir(tasks);
  return count;
}
static void nap(void) { struct timespec time = { 0, 20000000 }; nanosleep(&time, 0); }
static int falls(void) {
  for (int i = 0; i < 6000 && mib() > 15; i++) nap();
  return mib() <= 15;
}
static void fill(int from) {
  for (int i = from; i < N; i++) { kept[i] = malloc(SIZE); memset(kept[i], 1, SIZE); }
  for (int i = from; i < N - 1; i++) free(kept[i]);
}
int main(int count, char **words) {
  const char *what = words[1];
  if (!strcmp(what, "small")) { fill(N - 3000); for (int i = 0; i < 50; i++) nap(); }
  if (!strcmp(what, "filter")) prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (strcmp(what, "small")) fill(0);
  if (!strcmp(what, "small") || !strcmp(what, "filter")) { printf("threads %d\n", threads()); return 0; }
  printf("falls %d\n", falls());
  if (!strcmp(what, "directory")) {
    char name[4096];
    printf("in %s\n", getcwd(name, sizeof name));
  }
  if (kept[N - 1][0] != 1 || kept[N - 1][SIZE - 1] != 1) return 7;
  if (!strcmp(what, "fork")) {
    fflush(stdout);
    if (fork() == 0) { fill(0); printf("in the child falls %d\n", falls()); exit(0); }
    wait(0);
  }
  if (!strcmp(what, "unshare")) {
    int before = threads(), result = unshare(CLONE_NEWUSER);
    printf("%d threads, unshare %d, %d threads\n", before, errno == EPERM ? 0 : result, threads());
    fill(0);
    printf("again falls %d\n", falls());
  }
  return 3;
}
"#;

fn run(what: &str) -> Option<Ran> {
    let room = tempfile::tempdir().unwrap();
    let program = compiled(&room, "rest", PROGRAM, &["-O1"])?;
    Some(ran(pagemill().args(["run", "--trim", "--"]).arg(program).arg(what)))
}

#[test]
fn what_is_free_goes_back_while_the_program_rests() {
    let Some(ran) = run("rest") else { return };
    assert_eq!((ran.code(), ran.out.as_str()), (Some(3), "falls 1\n"), "{ran:?}");
    assert_eq!(ran.err, "");
}

/// Our thread went to `/` and took the program there: `node n.js` found no `/n.js`.
#[test]
fn the_program_stays_in_its_directory() {
    let room = tempfile::tempdir().unwrap();
    let here = room.path().canonicalize().unwrap();
    let Some(program) = compiled(&room, "rest", PROGRAM, &["-O1"]) else { return };
    let mut command = pagemill();
    command.current_dir(&here).args(["run", "--trim", "--"]).arg(program).arg("directory");
    let ran = ran(&mut command);
    assert_eq!(ran.out, format!("falls 1\nin {}\n", here.display()), "{ran:?}");
}

#[test]
fn a_forked_child_is_trimmed_too() {
    let Some(ran) = run("fork") else { return };
    assert_eq!(ran.out, "falls 1\nin the child falls 1\n", "{ran:?}");
}

#[test]
fn a_call_that_needs_a_single_thread_finds_one_and_the_thread_comes_back() {
    let Some(ran) = run("unshare") else { return };
    let says = "falls 1\n2 threads, unshare 0, 1 threads\nagain falls 1\n";
    assert_eq!(ran.out, says, "{ran:?}");
}

#[test]
fn a_program_with_a_small_heap_or_one_that_confines_itself_has_no_thread_of_ours() {
    for what in ["small", "filter"] {
        let Some(ran) = run(what) else { return };
        assert_eq!((ran.code(), ran.out.as_str()), (Some(0), "threads 1\n"), "{what}: {ran:?}");
    }
}

#[test]
fn another_malloc_is_left_alone() {
    let jemalloc = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if !std::path::Path::new(jemalloc).exists() {
        return skip::<()>("jemalloc is not installed").unwrap_or(());
    }
    let mut command = pagemill();
    command.env("LD_PRELOAD", jemalloc).args(["run", "--trim", "--", "python3", "-c"]);
    let script = "import os\nx=[str(i)*9 for i in range(300000)]\ndel x\n\
                  print(len(os.listdir('/proc/self/task')), os.environ['LD_PRELOAD'])";
    let ran = ran(command.arg(script));
    if ran.code() == Some(127) {
        return skip::<()>("there is no python3").unwrap_or(());
    }
    assert_eq!(ran.out.trim(), format!("1 {}:{jemalloc}", trim().display()), "{ran:?}");
}

#[test]
fn what_cannot_be_trimmed_is_refused() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "static", "int main(void){return 0;}", &["-static"]) else {
        return;
    };
    let program = program.to_str().unwrap();
    let ran = pagemill_with(&["run", "--trim", "--", program]);
    assert_eq!(ran.code(), Some(125), "{ran:?}");
    assert!(ran.err.contains("statically linked"), "{ran:?}");
    let ran = pagemill_with(&["run", "--trim", "--heap", "1y", "--", "true"]);
    assert_eq!(ran.code(), Some(125), "{ran:?}");
    assert!(ran.err.contains("cannot be used with"), "{ran:?}");
}
