//! How `advise` ends before its time: by a signal, out of time, refused. What was measured is told, in text and JSON.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pagemill_kernel::{Linux, process::Capability, process::signal};
use pagemill_model::Pid;
use serde_json::Value;
use support::{Ran, pagemill, pagemill_with, ran, skip, until};
use tempfile::TempDir;

const INTERRUPT: i32 = 2;

/// A command that writes a line each time that it runs, and how often it did.
struct Counted(TempDir);

impl Counted {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let script = room.path().join("script");
        let text =
            format!("#!/bin/sh\necho >>{}; sleep 0.06\n", room.path().join("runs").display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        Self(room)
    }

    fn command(&self) -> PathBuf {
        self.0.path().join("script")
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.0.path().join("runs")).map_or(0, |text| text.lines().count())
    }

    /// `advise` of it with these levers, so many times that somebody has to end it.
    fn advised(&self, words: &[&str]) -> Child {
        let mut advise = pagemill();
        advise.arg("advise").args(words).args(["--runs", "9999", "--"]).arg(self.command());
        advise.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn alive(child: &Child) -> bool {
    let stat = Linux::live().stat(Pid(child.id()));
    stat.is_ok_and(|stat| stat.state != 'Z')
}

/// Sends a signal, and what came of it.
fn ended(child: Child, signal: i32) -> Ran {
    signal::send(Pid(child.id()), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { status: output.status, out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn who_is_interrupted_tells_what_was_measured_and_progress_is_told_without_a_terminal() {
    for (sent, code) in [(INTERRUPT, 130), (signal::TERMINATE, 143)] {
        let counted = Counted::new();
        let child = counted.advised(&["--levers", "early trim,one arena"]);
        // The look, and three rounds of three.
        until("three rounds", || counted.runs() >= 10);
        let told = ended(child, sent);
        assert_eq!(told.code(), Some(code), "{told:?}");
        for part in
            ["incomplete (interrupted in run ", "\nas it is ", "\nearly trim ", "\none arena "]
        {
            assert!(told.out.contains(part), "no {part:?} in {}", told.out);
        }
        assert!(told.out.contains("as it is: "), "nothing is chosen: {}", told.out);
        assert!(told.err.contains("advise, 0 s on: run 1: as it is"), "{}", told.err);
        assert!(told.err.contains("nothing is left changed"), "{}", told.err);
    }
    let counted = Counted::new();
    let child = counted.advised(&["--json", "--levers", "early trim"]);
    until("a round", || counted.runs() >= 4);
    let told = ended(child, INTERRUPT);
    let advice: Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{told:?}"));
    assert_eq!((told.code(), &advice["interrupted"]), (Some(130), &Value::Bool(true)));
    assert_eq!((&advice["choice"], &advice["undecided"]), (&Value::Null, &Value::Bool(true)));
    assert!(advice["base"]["runs"].as_u64() >= Some(1), "{advice:#}");
}

#[test]
fn a_setting_that_is_borrowed_when_a_signal_comes_is_given_back() {
    let setting =
        || fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let me = Linux::live().status(Pid::own()).unwrap();
    let before = setting();
    if !me.can(Capability::SysAdmin) || !before.contains('[') || before.contains("[always]") {
        return skip("the setting of huge pages cannot be borrowed here").unwrap_or(());
    }
    let counted = Counted::new();
    let child = counted.advised(&["--levers", "huge pages always"]);
    until("the loan", || setting().contains("[always]"));
    let told = ended(child, signal::TERMINATE);
    assert_eq!(told.code(), Some(143), "{told:?}");
    // Another test may have it on loan.
    until("its return", || setting() == before);
}

/// The look takes five seconds and each run as many: of nine nothing else fits.
#[test]
fn a_run_that_would_not_fit_is_not_begun() {
    let levers = "early trim,one arena,malloc huge,no huge pages";
    let words = ["advise", "--json", "--within", "9s", "--levers", levers, "--", "sleep", "5"];
    let told = pagemill_with(&words);
    let advice: Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{told:?}"));
    assert_eq!((told.code(), &advice["runs"]), (Some(2), &Value::from(1)), "{advice:#}");
    let says = advice["conclusion"].as_str().unwrap();
    assert!(
        says.starts_with("undecided: ") && says.contains("not tried for lack of time (--within "),
        "{says}"
    );
    let text =
        pagemill_with(&words.iter().copied().filter(|word| *word != "--json").collect::<Vec<_>>());
    assert!(text.out.contains("as it is: sleep 5"), "{text:?}");
}

#[test]
fn an_error_is_json_where_json_was_asked_for() {
    let says = |code: i32, arguments: &[&str], part: &str| {
        let told = pagemill_with(&[&["advise", "--json"], arguments].concat());
        let answer: Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{told:?}"));
        assert_eq!((&answer["layout"], &answer["verb"]), (&"error".into(), &"advise".into()));
        assert_eq!(
            (told.code(), &answer["exit_code"]),
            (Some(code), &Value::from(code)),
            "{answer:#}"
        );
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(part) && told.err.contains("pagemill: "), "{told:?}");
    };
    says(2, &["--", "false"], "fails as it is");
    says(2, &["--levers", "luck", "--", "true"], "no lever");
    says(127, &["--", "/no/such/program"], "/no/such/program");
    says(2, &["-p", "999999999"], "999999999");
    says(2, &["/no/such/recording"], "/no/such/recording");
    let mut advise = pagemill();
    let child = advise.args(["advise", "--json", "--", "sleep", "1000"]);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = || Linux::live().children(Pid(child.id())).is_ok_and(|all| !all.is_empty());
    until("the command", started);
    let told = ended(child, signal::TERMINATE);
    let answer: Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{told:?}"));
    assert_eq!((told.code(), &answer["exit_code"]), (Some(143), &Value::from(143)), "{told:?}");
}

#[test]
fn a_process_of_another_user_is_refused_with_4_and_what_helps() {
    let me = Linux::live().status(Pid::own()).unwrap();
    if !me.can(Capability::SysAdmin) {
        return skip("only root becomes another user").unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let copy: PathBuf = room.path().join("pagemill");
    support::installed(Path::new(pagemill().get_program()), &copy, "755");
    fs::set_permissions(room.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut waiting = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    let told = ran(command.args(["advise", "--json", "-p", &waiting.id().to_string()]));
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert_eq!(told.code(), Some(4), "{told:?}");
    assert!(told.err.contains("run as root or as the user who owns the process"), "{told:?}");
    let answer: Value = serde_json::from_str(&told.out).unwrap_or_else(|_| panic!("{told:?}"));
    assert_eq!(answer["exit_code"], 4);
}

#[test]
fn a_program_that_was_read_from_standard_input_is_not_offered_again() {
    let mut shell = Command::new("sh").stdin(Stdio::piped()).spawn().unwrap();
    let pid = shell.id().to_string();
    let told = pagemill_with(&["advise", "-p", &pid, "--for", "200ms"]);
    let answer = pagemill_with(&["advise", "-p", &pid, "--for", "200ms", "--json"]);
    drop(shell.stdin.take());
    shell.wait().unwrap();
    assert_eq!((told.code(), answer.code()), (Some(0), Some(0)), "{told:?} {answer:?}");
    let first = told.out.lines().next().unwrap();
    assert!(
        first.starts_with(&format!("process {pid} (sh): "))
            && told.out.contains("nothing was tried"),
        "{told:?}"
    );
    assert!(
        told.out.contains("cannot be started again as it was: it reads its program"),
        "{told:?}"
    );
    assert!(!told.out.contains("-- sh"), "{told:?}");
    let answer: Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(answer["next"], Value::Null, "{answer:#}");
    assert!(answer["not_again"].as_str().unwrap().contains("standard input"), "{answer:#}");
}

/// They ended with 2 or 130 whatever the signal was, and "0 runs are too few".
#[test]
fn runs_by_places_that_are_interrupted_end_by_the_signal() {
    let counted = Counted::new();
    for (sent, code, runs) in [(INTERRUPT, 130, 1), (signal::TERMINATE, 143, 2)] {
        let child = counted.advised(&["--places", "--from", "runs"]);
        let before = counted.runs();
        until("a run", || counted.runs() >= before + runs || !alive(&child));
        if !alive(&child) {
            let told = child.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&told.stderr).into_owned();
            assert!(why.contains("pagemill: ") && told.status.code() != Some(0), "{told:?}");
            return skip(&why).unwrap_or(());
        }
        let told = ended(child, sent);
        assert_eq!(told.code(), Some(code), "{told:?}");
        assert!(told.err.contains("interrupted before anything was measured"), "{told:?}");
    }
}

/// Ways to wait for what somebody types: to read from the terminal, to ask whether it can be read, and, as editors do,
/// to take standard error for it where standard input is empty.
const TYPED: &str = r#"
#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>
#include <unistd.h>
int main(int count, char **words) {
  char byte;
  if (words[1][0] == 'e') {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(0, &set);
    dup2(2, 0);
    return select(1, &set, 0, 0, 0) < 0;
  }
  struct pollfd asked = {open("/dev/tty", O_RDWR), POLLIN, 0};
  if (asked.fd < 0) return 3;
  if (words[1][0] == 'p') poll(&asked, 1, -1);
  return read(asked.fd, &byte, 1) < 0;
}
"#;

/// An editor was waited for until somebody lost patience.
#[test]
fn who_waits_for_what_nobody_types_is_ended_with_the_way_out() {
    let room = tempfile::tempdir().unwrap();
    let Some(typed) = support::compiled(&room, "typed", TYPED, &["-O1"]) else { return };
    let typed = typed.to_str().unwrap();
    let refused = |told: &Ran, output: &str| {
        assert_eq!(told.code(), Some(2), "{told:?}");
        for part in ["somebody types at the terminal", "nothing was tried", "ends by itself"] {
            assert!(output.contains(part), "no {part:?} in {told:?}");
        }
    };
    let told = pagemill_with(&["advise", "--within", "10m", "--", typed, "error"]);
    refused(&told, &told.err);
    if Command::new("script").arg("--version").output().is_err() {
        return skip("there is no script(1)").unwrap_or(());
    }
    for way in ["read", "poll"] {
        let advise = pagemill();
        let line =
            format!("{} advise --within 10m -- {typed} {way}", advise.get_program().display());
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("COLUMNS", "999");
        let told = ran(&mut script);
        refused(&told, &told.out);
    }
}
