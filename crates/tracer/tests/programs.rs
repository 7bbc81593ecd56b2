//! Real programs do the same under the tracer, and the two sources of truth agree: what the page tables
//! show and what the faults report.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which may panic")]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::process::Command;

use pagemill_kernel::Linux;
use pagemill_kernel::maps::Mapping;
use pagemill_kernel::signal::{self, Signals};
use pagemill_tracer::{Access, Ended, Interval, Options, Sink, Stopped, Tracer};

const PAGE: u64 = 4096;

#[derive(Default)]
struct Seen {
    accesses: Vec<Access>,
    intervals: Vec<Interval>,
}

impl Sink for Seen {
    fn access(&mut self, access: &Access) -> Result<(), Stopped> {
        self.accesses.push(*access);
        Ok(())
    }
    fn interval(&mut self, interval: Interval) -> Result<(), Stopped> {
        self.intervals.push(interval);
        Ok(())
    }
    fn process(&mut self, _pid: u32, mappings: &[Mapping]) -> Result<(), Stopped> {
        assert!(mappings.iter().any(|mapping| mapping.name == "[stack]"));
        Ok(())
    }
}

struct Traced {
    ended: Ended,
    pid: u32,
    seen: Seen,
    lost: u64,
    events: bool,
}

/// A tracer that hangs, and the program with it, fails the run instead of stopping it.
fn watch_dog() {
    std::thread::spawn(|| {
        std::thread::sleep(std::time::Duration::from_secs(120));
        eprintln!("a traced program did not end in two minutes");
        std::process::abort();
    });
}

/// Traces a command; `None`, said, where this machine cannot.
fn trace(command: &[&str], options: Options) -> Option<Traced> {
    watch_dog();
    let text = |word: &str| CString::new(word).unwrap();
    let arguments: Vec<CString> = command.iter().map(|word| text(word)).collect();
    let environment: Vec<CString> =
        std::env::vars().map(|(name, value)| text(&format!("{name}={value}"))).collect();
    let mut blocked = signal::SENT_TO_PROGRAMS.to_vec();
    blocked.push(signal::CHILD);
    let signals = Signals::block(&blocked).unwrap();
    let mut seen = Seen::default();
    let launched = Tracer::launch(Linux::live(), options, &arguments[0], &arguments, &environment);
    let mut tracer = match launched {
        Ok(tracer) => tracer.unwrap(),
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let ended = tracer.run(&signals, &mut seen).unwrap();
    Some(Traced {
        ended,
        pid: tracer.pid(),
        lost: tracer.lost().unwrap(),
        events: tracer.without_events().is_none(),
        seen,
    })
}

/// What a shell command prints natively and traced; both go through a file.
fn same_output(script: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let native = format!("({script}) > {} 2>&1", path("native"));
    let status = Command::new("/bin/bash").args(["-c", &native]).status().unwrap();
    let traced = format!("({script}) > {} 2>&1", path("traced"));
    let Some(run) = trace(&["/bin/bash", "-c", &traced], Options::default()) else { return };
    assert_eq!(run.ended, Ended::Exited(status.code().unwrap()), "{script}");
    let read = |name: &str| {
        let mut text = String::new();
        File::open(path(name)).unwrap().read_to_string(&mut text).unwrap();
        text
    };
    assert_eq!(read("traced"), read("native"), "{script}");
    assert_eq!(run.lost, 0);
    assert!(!run.seen.intervals.is_empty());
}

#[test]
fn shells_pipelines_and_subshells_do_the_same() {
    same_output("for i in 1 2 3; do echo $i | tr 1-3 a-c; done; echo $(ls / | wc -l); (exit 3)");
}

#[test]
fn a_perl_with_a_large_hash_and_children_does_the_same() {
    same_output(
        "perl -e 'my %h; $h{$_} = $_ x 10 for 1..100000; print scalar(keys %h), \"\\n\"; print `echo sub`; my $p = fork; if (!$p) { $h{7} = 1; print $h{7}, \"\\n\"; exit 5 } waitpid $p, 0; print $? >> 8, $h{7}, \"\\n\"'",
    );
}

#[test]
fn a_python_with_threads_and_forks_does_the_same() {
    same_output(
        "python3 -c '
import os, subprocess, threading
rows = []
def add():
    for i in range(20000): rows.append(i)
threads = [threading.Thread(target=add) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(rows), subprocess.check_output([\"echo\", \"x\"]))
x = list(range(100000))
for k in range(3):
    p = os.fork()
    if p == 0:
        x[5] = k; os._exit(sum(x) % 7)
    x[6] = k
    print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]), sum(x))
'",
    );
}

#[test]
fn a_program_that_dies_by_a_signal_is_told_as_such() {
    let Some(run) = trace(&["/bin/bash", "-c", "kill -SEGV $$"], Options::default()) else {
        return;
    };
    assert_eq!(run.ended, Ended::Killed(11));
}

#[test]
fn a_program_that_cannot_be_executed_is_told_with_the_reason() {
    let name = CString::new("/nowhere/nothing").unwrap();
    match Tracer::launch(Linux::live(), Options::default(), &name, std::slice::from_ref(&name), &[])
    {
        Ok(launched) => assert_eq!(launched.err().and_then(|error| error.raw_os_error()), Some(2)),
        Err(error) => println!("skipped: {error}"),
    }
}

/// The page tables say which pages were touched, the faults say which byte was touched when. Both are
/// complete, so each touched page has a fault, and each fault is of a touched page.
#[test]
fn page_tables_and_faults_tell_of_the_same_pages() {
    let script = "my @a; for my $i (1..20) { push @a, 'x' x 300000 for 1..10; my $s = 0; $s += length for @a; }";
    let options = Options { interval: std::time::Duration::from_millis(5), ..Options::default() };
    let Some(run) = trace(&["/usr/bin/perl", "-e", script], options) else { return };
    if !run.events {
        return println!("skipped: no events on this machine");
    }
    assert_eq!(run.lost, 0);
    let pages = |interval: &Interval| -> BTreeSet<u64> {
        interval.touched.iter().flat_map(|&(start, end)| (start / PAGE)..(end / PAGE)).collect()
    };
    let intervals: Vec<&Interval> =
        run.seen.intervals.iter().filter(|interval| interval.process == run.pid).collect();
    assert!(intervals.len() > 3, "{} intervals", intervals.len());
    let touched: BTreeSet<u64> = intervals.iter().flat_map(|interval| pages(interval)).collect();
    let faulted: BTreeSet<u64> =
        run.seen.accesses.iter().map(|access| access.address / PAGE).collect();
    let missing: Vec<&u64> = touched.difference(&faulted).collect();
    // The kernel gets at a few pages without a fault: when it pins one, for a futex, say.
    assert!(missing.len() <= 8, "{} touched pages without a fault: {missing:x?}", missing.len());
    // Interval by interval: a fault well inside one is of a page touched in that one.
    for pair in intervals.windows(2) {
        let (before, interval) = (pair[0], pair[1]);
        let now = pages(interval);
        let inside = run
            .seen
            .accesses
            .iter()
            .filter(|access| access.time > before.ended && access.time < interval.scanned);
        for access in inside {
            assert!(
                now.contains(&(access.address / PAGE)),
                "{access:x?} is not among the pages of interval {}",
                interval.number
            );
        }
    }
}

#[test]
fn a_killed_tracer_leaves_the_program_running_on_intact_memory() {
    // The test traces itself: a copy of this program is the tracer that is killed.
    if std::env::var_os("PAGEMILL_TEST_TRACER").is_some() {
        trace(&["/usr/bin/perl", "-e", VICTIM], Options::default());
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let mut tracer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_tracer_leaves_the_program_running_on_intact_memory"])
        .env("PAGEMILL_TEST_TRACER", "1")
        .env("OUT", &out)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let wait = |what: &str| {
        for _ in 0..400 {
            let text = std::fs::read_to_string(&out).unwrap_or_default();
            if text.contains(what) {
                return true;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        false
    };
    if !wait("ready") {
        let _ = tracer.kill();
        let _ = tracer.wait();
        return println!("skipped: nothing is traced on this machine");
    }
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    assert!(wait("child 4950 5050 done"), "{}", std::fs::read_to_string(&out).unwrap());
}

/// Fills memory, says so, and after a second checks it, in a forked child too.
const VICTIM: &str = r#"
open(my $f, '>', $ENV{OUT}); $f->autoflush(1);
my @a = map { $_ x 5000 } 1..100; print $f "ready\n"; sleep 1;
my $s = 0; for my $i (1..100) { $s += $i if $a[$i-1] eq $i x 5000 }
pipe(my $r, my $w);
my $p = fork; if (!$p) { $a[0] = ''; my $t = 0; $t += $_ for grep { 1 } 0..99; print $w "$t"; close $w; exit 0 }
close $w; my $t = <$r>; waitpid $p, 0;
print $f "child $t $s done\n";
"#;
