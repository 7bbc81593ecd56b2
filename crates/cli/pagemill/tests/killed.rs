//! Whoever of us is killed, and when: a traced program ends as it would without us.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs::{self, File};
use std::io::ErrorKind::NotFound;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use support::traced::{can_trace, children, recorder, text};
use support::{compiled, pagemill_with, until};
use tempfile::TempDir;

const KILLED: &str = include_str!("programs/killed.c");
const PARTED: &str = include_str!("programs/parted.c");
const EXECUTED: &str = include_str!("programs/executed.c");

/// Who of us is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    Recorder,
    Tracer,
    Injector,
    Mapper,
}
use Who::{Injector, Mapper, Recorder, Tracer};

use pagemill_model::Pid;

/// Whether a process runs our code: it waits in it.
fn is_ours(process: Pid) -> bool {
    let call = fs::read_to_string(format!("/proc/{process}/syscall")).unwrap_or_default();
    call.split_whitespace().last().is_some_and(|address| address.starts_with("0x5500"))
}

fn kill(process: Pid) {
    // It may have ended by itself.
    let _ = std::process::Command::new("kill").args(["-9", &process.to_string()]).output();
}

/// When a process was started, by which it is told from a later one of its number.
fn started(process: Pid) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(19).map(str::to_owned)
}

/// A program under a recorder.
struct Run {
    room: TempDir,
    recorder: Child,
    tracer: Pid,
    program: Pid,
}

impl Run {
    /// Of a program with these words, in a directory of its own.
    fn start(program: &Path, words: &[&str]) -> Self {
        let room = tempfile::tempdir().unwrap();
        let path = |name: &str| room.path().join(name);
        let mut command = recorder(&[], &path("rec"), &[&[text(program)], words].concat());
        command.current_dir(room.path());
        command.stdout(File::create(path("said")).unwrap());
        command.stderr(File::create(path("errors")).unwrap());
        let recorder = command.spawn().unwrap();
        let (mut tracer, mut process) = (Pid(0), Pid(0));
        until("a program to be started", || {
            tracer = children(Pid(recorder.id())).first().copied().unwrap_or_default();
            process = children(tracer).first().copied().unwrap_or_default();
            process != Pid(0)
        });
        Self { room, recorder, tracer, program: process }
    }

    /// The injector and the mapper, if they are there.
    fn helpers(&self) -> Vec<Pid> {
        let mut helpers = children(self.program);
        helpers.retain(|helper| is_ours(*helper));
        helpers.sort_unstable();
        helpers
    }

    fn kill(&self, who: &[Who]) {
        let helpers = self.helpers();
        for one in who {
            match one {
                Recorder => kill(Pid(self.recorder.id())),
                Tracer => kill(self.tracer),
                Injector => helpers.first().into_iter().for_each(|helper| kill(*helper)),
                Mapper => helpers.get(1).into_iter().for_each(|helper| kill(*helper)),
            }
        }
    }

    /// What the program said at its end, and all that was said of it.
    fn end(mut self) -> (String, String) {
        let said = self.room.path().join("said");
        // A read may fail in the middle of an end, or of the execution of another program.
        let ended = || {
            fs::read_to_string(format!("/proc/{}/stat", self.program))
                .map_or_else(|error| error.kind() == NotFound, |stat| stat.contains(") Z "))
        };
        until("the program to end", ended);
        self.recorder.wait().unwrap();
        let errors = fs::read_to_string(self.room.path().join("errors")).unwrap();
        let child = errors.lines().find(|line| line.contains("child")).unwrap_or("");
        (fs::read_to_string(said).unwrap() + child, errors)
    }
}

/// It got SIGTRAP or SIGSEGV where the tracer was killed while it attached or forked, bytes of a file where it had
/// dropped pages, and waited for ever in `pthread_join`, or in a call that nobody answered.
fn ends_as_ever(who: &[&[Who]], moments: impl Iterator<Item = u64>) {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "killed", KILLED, &["-O1", "-pthread"]) else { return };
    if !can_trace(&room) {
        return;
    }
    for (moment, who) in moments.zip(who.iter().cycle()) {
        let run = Run::start(&program, &["16"]);
        std::thread::sleep(Duration::from_millis(moment));
        run.kill(who);
        let (said, errors) = run.end();
        assert_eq!(said, "wrong 0\n", "{who:?} at {moment} ms: {errors}");
    }
}

#[test]
fn while_it_is_taken_over() {
    ends_as_ever(&[&[Tracer]], (0..20).map(|at| 3 * at));
}

/// The recording looked like one of a program that had ended when its recorder was killed.
#[test]
fn a_recording_says_that_its_recorder_was_killed() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "killed", KILLED, &["-O1", "-pthread"]) else { return };
    if !can_trace(&room) {
        return;
    }
    let mut run = Run::start(&program, &["16"]);
    let recording = run.room.path().join("rec");
    until("a recording to be begun", || recording.join("meta.json").exists());
    run.kill(&[Recorder]);
    run.recorder.wait().unwrap();
    let tracer = run.tracer;
    let number = started(tracer);
    until("the tracer to end", || number.is_none() || started(tracer) != number);
    let report = pagemill_with(&["report", text(&recording)]);
    let said = report.out;
    assert!(said.contains("which was let go then: the recorder was killed"), "{said}");
    let (said, errors) = run.end();
    assert_eq!(said, "wrong 0\n");
    assert!(errors.contains("unrecorded from then on: the recorder was killed"), "{errors}");
}

#[test]
fn while_it_forks_and_executes_programs() {
    ends_as_ever(&[&[Tracer], &[Recorder]], (0..12).map(|at| 90 + 97 * at));
}

/// The mapper waited for calls for ever where nobody was left to end it.
#[test]
fn what_is_left_of_us_ends_with_the_program() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "killed", KILLED, &["-O1", "-pthread"]) else { return };
    if !can_trace(&room) {
        return;
    }
    for who in [&[Tracer, Injector][..], &[Recorder, Tracer, Injector], &[Tracer, Mapper]] {
        let run = Run::start(&program, &["16"]);
        let mut helpers = Vec::new();
        until("an injector and a mapper", || {
            helpers = run.helpers();
            helpers.len() == 2
        });
        run.kill(who);
        let left = helpers[usize::from(who.contains(&Injector))];
        let number = started(left);
        run.end();
        until("the end of what is left of us", || started(left) != number || !is_ours(left));
    }
}

/// Without a tracer any mapper may receive the calls of every process. `MADV_DONTNEED` failed where that was another
/// process's, and a fork went on with memory that both sides wrote.
#[test]
fn whose_mapper_receives_a_call() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "parted", PARTED, &["-O1"]) else { return };
    if !can_trace(&room) {
        return;
    }
    let who: [&[Who]; 4] =
        [&[Tracer], &[Tracer, Injector], &[Tracer, Mapper], &[Tracer, Injector, Mapper]];
    for who in who {
        let run = Run::start(&program, &["go", "ready"]);
        let path = |name: &str| run.room.path().join(name);
        until("the program to be ready", || path("ready").exists());
        run.kill(who);
        File::create(path("go")).unwrap();
        let (said, errors) = run.end();
        assert_eq!(said, "wrong 0\n", "{who:?}: {errors}");
    }
}

/// A child or the program itself ended by a signal, for a fork went on while they shared memory; or it waited for ever.
#[test]
fn and_a_helper_with_the_tracer() {
    ends_as_ever(&[&[Tracer, Mapper], &[Tracer, Injector]], (0..12).map(|at| 90 + 97 * at));
    let who: [&[Who]; 2] = [&[Tracer, Injector, Mapper], &[Recorder, Tracer, Mapper, Injector]];
    ends_as_ever(&who, (0..6).map(|at| 60 + 151 * at));
}

/// The mapper made the mappings of the executed program in the memory of the one before, and it ended by SIGSEGV; so it
/// did where the library found code of ours that read words which were not there yet.
#[test]
fn while_it_becomes_another_program() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "executed", EXECUTED, &["-O1"]) else { return };
    if !can_trace(&room) {
        return;
    }
    for at in 0..12 {
        let run = Run::start(&program, &["60"]);
        std::thread::sleep(Duration::from_micros(100_000 + 2_370 * at));
        run.kill(&[Tracer]);
        let (said, errors) = run.end();
        assert_eq!(said, "wrong 0\n", "at {at}: {errors}");
    }
}
