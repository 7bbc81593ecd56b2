//! Real programs do the same under the tracer, and the two sources of truth agree: what the page tables
//! show and what the faults report.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which may panic")]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::Command;

use pagemill_kernel::Linux;
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_model::Pid;
use pagemill_tracer::{Access, Ended, Interval, Options, Sink, Stopped, Tracer, Untraced};

const PAGE: u64 = 4096;

#[derive(Default)]
struct Seen {
    accesses: Vec<Access>,
    intervals: Vec<Interval>,
    forks: Vec<(Pid, Pid)>,
    /// To be created when a forked child has been told of three times.
    enough: Option<PathBuf>,
}

impl Sink for Seen {
    fn access(&mut self, access: &Access) -> Result<(), Stopped> {
        self.accesses.push(*access);
        Ok(())
    }
    fn interval(&mut self, interval: Interval) -> Result<(), Stopped> {
        let child = self.forks.first().map(|fork| fork.1);
        self.intervals.push(interval);
        let of_child = self.intervals.iter().filter(|seen| Some(seen.process) == child).count();
        if of_child == 3
            && let Some(path) = self.enough.take()
        {
            File::create(path).unwrap();
        }
        Ok(())
    }
    fn process(&mut self, _pid: Pid, mappings: &[Mapping]) -> Result<(), Stopped> {
        assert!(mappings.iter().any(|mapping| mapping.name == "[stack]"));
        Ok(())
    }
    fn forked(&mut self, parent: Pid, child: Pid) -> Result<(), Stopped> {
        self.forks.push((parent, child));
        Ok(())
    }
}

struct Traced {
    ended: Ended,
    pid: Pid,
    seen: Seen,
    lost: u64,
    events: bool,
    untraced: Vec<Untraced>,
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
    trace_into(Seen::default(), command, options)
}

fn trace_into(mut seen: Seen, command: &[&str], options: Options) -> Option<Traced> {
    watch_dog();
    let text = |word: &str| CString::new(word).unwrap();
    let arguments: Vec<CString> = command.iter().map(|word| text(word)).collect();
    let environment: Vec<CString> =
        std::env::vars().map(|(name, value)| text(&format!("{name}={value}"))).collect();
    let mut blocked = signal::SENT_TO_PROGRAMS.to_vec();
    blocked.push(signal::CHILD);
    let signals = Signals::block(&blocked).unwrap();
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
        events: tracer.fault_source().tells_writes(),
        untraced: tracer.untraced().to_vec(),
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
        "perl -e 'my %h; $h{$_} = $_ x 10 for 1..100000; print scalar(keys %h), \"\\n\"; print `echo sub`; my $p = \
         fork; if (!$p) { $h{7} = 1; print $h{7}, \"\\n\"; exit 5 } waitpid $p, 0; print $? >> 8, $h{7}, \"\\n\"'",
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

/// A private writable mapping of a file becomes one of the memory file: the same bytes, zeros behind the file's end,
/// and what is written does not reach the file. The program may run on as many processors as natively.
#[test]
fn private_mappings_of_files_hold_what_the_files_do() {
    same_output(
        "python3 -c '
import ctypes, hashlib, mmap, os, tempfile
file = tempfile.TemporaryFile()
data = bytes(i * i % 251 for i in range(300001))
file.write(data); file.flush()
for offset, length in (0, 300001), (4096, 200000), (0, 70000), (299008, 993):
    m = mmap.mmap(file.fileno(), length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
    print(hashlib.md5(m).hexdigest(), m[:] == data[offset:offset + length])
    m[5] = 7
    print(hashlib.md5(m).hexdigest())
c = ctypes.CDLL(None)
c.mmap.restype = ctypes.c_void_p
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
a = c.mmap(None, 16384, 3, 0x22, -1, 0)
ctypes.memset(a, 0x61, 16384)
print(c.mmap(a + 4096, 4096, 3, 0x12, file.fileno(), 299008) == a + 4096, ctypes.string_at(a + 4000, 1200))
z = os.open(\"/dev/zero\", os.O_RDWR)
print(mmap.mmap(z, 8192, mmap.MAP_PRIVATE)[:8] == bytes(8))
for bad in os.open(\"/dev/null\", os.O_WRONLY), 99:
    print(c.mmap(None, 4096, 3, 2, bad, 0) == 2**64 - 1)
file.seek(0); print(file.read() == data, sorted(os.sched_getaffinity(0)))
'",
    );
}

/// A C program of `tests/programs`, compiled; `None`, said, where there is no compiler.
fn compiled(directory: &tempfile::TempDir, name: &str, options: &[&str]) -> Option<String> {
    let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = directory.path().join(name).display().to_string();
    let status =
        Command::new("cc").args(["-O1", "-w", "-o", &program, &source]).args(options).status();
    match status {
        Ok(status) if status.success() => Some(program),
        // Without its library a sanitizer does not link.
        Ok(_) if !options.is_empty() => {
            println!("skipped: cc {options:?} fails");
            None
        }
        Ok(status) => panic!("cc {name}.c: {status}"),
        Err(error) => {
            println!("skipped: cc: {error}");
            None
        }
    }
}

fn same_output_of(name: &str, options: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, name, options) else { return };
    let file = directory.path().join("file");
    same_output(&format!("{program} {}", file.display()));
}

/// A child wrote its parent's memory where the kernel refused to make more than there is private at a fork.
#[test]
fn a_fork_with_more_reserved_than_there_is_parts_the_memory() {
    same_output_of("noreserve", &[]);
}

#[test]
fn a_program_with_an_address_sanitizer_forks_as_ever() {
    same_output_of("sanitized", &["-fsanitize=address"]);
}

/// A process that has more than its limits allow gets no new mapping. Where the tracer may not lift them for a moment,
/// the child is killed before it begins, which is told; never does it see its parent's memory.
#[test]
fn a_fork_that_cannot_part_the_memory_ends_the_child_before_it_begins() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "over_limit", &[]) else { return };
    let out = directory.path().join("out");
    for hard in ["", "hard"] {
        let command = format!("{program} file {hard} > {}", out.display());
        let Some(run) = trace(&["/bin/bash", "-c", &command], Options::default()) else { return };
        assert_eq!(run.ended, Ended::Exited(0));
        let said = std::fs::read_to_string(&out).unwrap();
        let told = run.untraced.iter().any(|what| what.why.contains("killed before it began"));
        let expected = if told { "0 wrong, child 9\n" } else { "0 wrong, child 500\n" };
        assert_eq!(said, expected, "{:?}", run.untraced);
        assert!(!told || !hard.is_empty(), "its hard limit is infinite: {:?}", run.untraced);
        println!("{}", if told { "killed" } else { "the limits were lifted" });
    }
}

#[test]
fn every_advice_on_every_kind_of_memory_does_the_same() {
    same_output_of("advice", &[]);
}

#[test]
fn calls_that_change_mappings_do_the_same_at_their_edges() {
    same_output_of("edges", &[]);
}

#[test]
fn limits_on_memory_are_reached_at_the_same_point() {
    same_output_of("limits", &[]);
}

/// Private writable mappings of a file: what is written between a look at the page tables and the drop of what was seen
/// is not lost, and is told.
#[test]
fn writes_to_private_pages_of_files_are_kept_while_pages_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "private_writes", &["-pthread"]) else { return };
    let (file, out) = (directory.path().join("file"), directory.path().join("out"));
    let command = format!("{program} {} > {}", file.display(), out.display());
    let options = Options { interval: std::time::Duration::from_millis(1), ..Options::default() };
    let Some(run) = trace(&["/bin/bash", "-c", &command], options) else { return };
    assert_eq!(run.ended, Ended::Exited(0));
    let said = std::fs::read_to_string(&out).unwrap();
    let (wrong, place) = said.trim().split_once(" wrong at ").unwrap();
    assert_eq!(wrong, "0");
    let first = u64::from_str_radix(place.trim_start_matches("0x"), 16).unwrap() / PAGE;
    let touched: BTreeSet<u64> = run
        .seen
        .intervals
        .iter()
        .flat_map(|interval| &interval.touched)
        .flat_map(|range| range.numbers(PAGE))
        .collect();
    assert_eq!(touched.range(first..first + 256).count(), 256);
}

/// At a fork the kernel writes the child's number where the parent has its own: a mutex that knows its owner
/// can still be unlocked by it, on both sides of the fork what it is natively.
#[test]
fn a_thread_that_forks_still_knows_its_own_number() {
    same_output(
        "python3 -c '
import ctypes, os
c = ctypes.CDLL(None)
attribute, mutex = ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
c.pthread_mutexattr_init(attribute)
c.pthread_mutexattr_settype(attribute, 2)
c.pthread_mutex_init(mutex, attribute)
for k in range(3):
    c.pthread_mutex_lock(mutex)
    p = os.fork()
    if p == 0:
        os._exit(c.pthread_mutex_unlock(mutex))
    print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]), c.pthread_mutex_unlock(mutex), flush=True)
'",
    );
}

/// A parent and its child write the same memory until the child has been told of three times; each sees its
/// own, and the child is traced from the fork on, then in memory of its own.
#[test]
fn a_forked_child_is_traced_from_the_fork_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let script = format!(
        r#"my @a = map {{ 'p' x 4096 }} 1..500; my $stop = '{}'; my $end = time + 60;
sub work {{ my ($c) = @_; while (1) {{
        for my $i (0..499) {{ substr($a[$i], 0, 1) = $c; $a[$i] =~ tr/x//; }} last if -e $stop || time > $end }} }}
open(my $f, '>', '{}'); $f->autoflush(1);
my $p = fork; if (!$p) {{
        work('c'); my $s = join('', map {{ substr($_, 0, 2) }} @a); print $f 'child ', $s eq 'cp' x 500, "\n"; exit 0 }}
work('q'); waitpid $p, 0; my $s = join('', map {{ substr($_, 0, 2) }} @a);
print $f 'parent ', $s eq 'qp' x 500, ' ', $? >> 8, "\n";"#,
        path("stop"),
        path("out")
    );
    let options = Options { interval: std::time::Duration::from_millis(20), ..Options::default() };
    let seen = Seen { enough: Some(path("stop").into()), ..Seen::default() };
    let Some(run) = trace_into(seen, &["/usr/bin/perl", "-e", &script], options) else { return };
    assert_eq!(run.ended, Ended::Exited(0));
    assert_eq!(std::fs::read_to_string(path("out")).unwrap(), "child 1\nparent 1 0\n");
    let (parent, child) = run.seen.forks[0];
    assert_eq!(parent, run.pid);
    let of_child: Vec<&Interval> =
        run.seen.intervals.iter().filter(|interval| interval.process == child).collect();
    assert!(of_child.len() >= 3, "{} intervals of the child", of_child.len());
    let numbers: Vec<u64> = of_child.iter().map(|interval| interval.number).collect();
    assert_eq!(numbers, (0..of_child.len() as u64).collect::<Vec<_>>());
    let pages = |interval: &Interval| -> u64 {
        interval.touched.iter().map(|range| range.bytes() / PAGE).sum()
    };
    assert!(of_child.iter().map(|interval| pages(interval)).max() >= Some(500));
}

/// Checks and changes its memory, in two threads and in pages that were there before the tracer came, until
/// a file appears; then says whether all is as it should be.
const RUNNING: &str = r#"
import os, sys, threading, time, mmap
blocks = [bytearray([k % 251] * 4096) for k in range(3000)]
early = mmap.mmap(-1, 1 << 22, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for k in range(1024): early[k * 4096] = k % 256
import ctypes
place = ctypes.addressof(ctypes.c_char.from_buffer(early))
stop, wrong, rounds = sys.argv[1] + "/stop", [], [0, 0]
def work(me):
    n = 0
    while True:
        for k in range(me, 3000, 2):
            if blocks[k][0] != (k + n) % 251: wrong.append((k, n))
            blocks[k][0] = (k + n + 1) % 251
        extra = [bytearray(70000) for _ in range(20)]
        if any(any(e) for e in extra): wrong.append("extra")
        n += 1; rounds[me] = n
        if os.path.exists(stop): return
threads = [threading.Thread(target=work, args=(me,)) for me in range(2)]
[t.start() for t in threads]
print("ready", place, flush=True)
[t.join() for t in threads]
p = os.fork()
if p == 0: os._exit(7 if blocks[5][1] == 5 else 8)
if os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) != 7: wrong.append("fork")
if any(early[k * 4096] != k % 256 for k in range(1024)): wrong.append("early")
print("rounds", min(rounds) > 0, "wrong", wrong[:5], flush=True)
"#;

/// Its memory stayed private, and each page told as kept, until the next child ended.
#[test]
fn memory_that_no_child_reads_is_dropped_again_although_a_thread_did_not_stop() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&directory, "late", &["-pthread"]) else { return };
    let Some(run) = trace(&[&program], Options::default()) else { return };
    assert_eq!(run.ended, Ended::Exited(0));
    let intervals = run.seen.intervals.iter().filter(|interval| interval.process == run.pid);
    let kept: Vec<u64> = intervals.map(|interval| interval.kept).collect();
    assert!(kept.iter().any(|&kept| kept > 0), "{kept:?}");
    assert_eq!(kept.last(), Some(&0), "{kept:?}");
}

#[test]
fn a_running_program_is_taken_over_and_let_go_without_noticing() {
    watch_dog();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let mut program = Command::new("python3")
        .args(["-c", RUNNING, path])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let early = line.trim().strip_prefix("ready ").unwrap().parse::<u64>().unwrap() / PAGE;
    let mut blocked = signal::SENT_TO_PROGRAMS.to_vec();
    blocked.push(signal::CHILD);
    let signals = Signals::block(&blocked).unwrap();
    let options = Options {
        interval: std::time::Duration::from_millis(10),
        duration: Some(std::time::Duration::from_millis(400)),
        ..Options::default()
    };
    let mut seen = Seen::default();
    match Tracer::attach(Linux::live(), options, Pid(program.id())) {
        Ok(mut tracer) => {
            assert_eq!(tracer.run(&signals, &mut seen).unwrap(), Ended::LetGo);
            let touched: BTreeSet<u64> = seen
                .intervals
                .iter()
                .flat_map(|interval| &interval.touched)
                .flat_map(|range| range.numbers(PAGE))
                .collect();
            assert!(touched.len() > 3000, "{} pages", touched.len());
            // Memory that it touched before, and not since.
            assert_eq!(touched.range(early + 1..early + 1023).count(), 0);
        }
        Err(error) => println!("skipped: {error}"),
    }
    std::fs::write(directory.path().join("stop"), "").unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(
        rest,
        "rounds True wrong []
"
    );
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_process_that_cannot_be_taken_over_is_refused_with_the_reason() {
    for pid in [1, std::process::id()] {
        let error = Tracer::attach(Linux::live(), Options::default(), Pid(pid)).err().unwrap();
        assert!(!error.to_string().is_empty());
    }
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
        interval.touched.iter().flat_map(|range| range.numbers(PAGE)).collect()
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
    // Interval by interval: a fault well inside one is of a page touched in that one, or, if the kernel was
    // still at it when the page tables were read, in the next.
    for three in intervals.windows(3) {
        let (before, interval, after) = (three[0], three[1], three[2]);
        let (now, next) = (pages(interval), pages(after));
        let inside = run
            .seen
            .accesses
            .iter()
            .filter(|access| access.time > before.ended && access.time < interval.scanned);
        for access in inside {
            let page = access.address / PAGE;
            assert!(
                now.contains(&page) || next.contains(&page),
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
