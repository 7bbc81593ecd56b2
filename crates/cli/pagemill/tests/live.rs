//! `pagemill live`: one frame as text, and the screen on a terminal of 80 by 24.

#![expect(clippy::unwrap_used, reason = "what cannot be set up fails the test")]

#[cfg(test)]
mod support;

use std::fs;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use pagemill_kernel::Linux;
use pagemill_model::Pid;
use support::{pagemill, pagemill_with, ran, skip, until};
use tempfile::TempDir;

/// A program that waits until it is dropped.
struct Waiting(Child, Option<ChildStdin>);

impl Waiting {
    fn from(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let input = child.stdin.take();
        Self(child, input)
    }

    fn new() -> Self {
        Self::from(Command::new("sh").args(["-c", "echo; read line"]))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// It runs on as if nobody had looked.
    fn is_untouched(&self) -> bool {
        let status = Linux::live().stat(Pid(self.0.id())).unwrap();
        status.state == 'S'
    }

    fn end(&mut self) {
        drop(self.1.take());
        self.0.wait().unwrap();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}

/// A terminal in tmux with a shell that runs one line; its server ends when this is dropped.
struct Terminal {
    room: TempDir,
}

impl Terminal {
    /// `None`, and a line that says so, where there is no tmux. `before` stands before the command, such as variables.
    fn start(before: &str, arguments: &[&str]) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            return skip("tmux, which gives a terminal, is not installed");
        }
        let terminal = Self { room: tempfile::tempdir().unwrap() };
        let plain = pagemill();
        let set = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| match value {
            Some(value) => format!("export {}='{}'\n", name.display(), value.display()),
            None => format!("unset {}\n", name.display()),
        };
        let variables: String = plain.get_envs().map(set).collect();
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        let program = Path::new(plain.get_program()).display();
        let script = format!(
            "{variables}export LC_ALL=C.UTF-8\n{before}\n'{program}' live {}\necho \"status $?\"\nexec sleep 1000\n",
            words.join(" ")
        );
        let path = terminal.room.path().join("script");
        fs::write(&path, script).unwrap();
        let path = path.to_str().unwrap();
        let run = terminal.tmux(&["new-session", "-d", "-x", "80", "-y", "24", "sh", path]);
        assert!(run.status.success(), "{run:?}");
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> support::Ran {
        let socket = self.room.path().join("socket");
        let mut command = Command::new("tmux");
        command.arg("-S").arg(socket).args(["-f", "/dev/null"]).args(arguments);
        ran(command.env_remove("TMUX").env("LC_ALL", "C.UTF-8"))
    }

    /// What is on the screen.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).out
    }

    /// Waits until all of these are on the screen, and returns it.
    fn shows(&self, words: &[&str]) -> String {
        let mut screen = String::new();
        let mut seen = String::new();
        until(&format!("a screen with {words:?}"), || {
            screen = self.screen();
            if screen != seen {
                seen.clone_from(&screen);
            }
            words.iter().all(|word| screen.contains(word))
        });
        screen
    }

    fn lacks(&self, word: &str) {
        until(&format!("a screen without {word}"), || !self.screen().contains(word));
    }

    fn press(&self, key: &str) {
        assert!(self.tmux(&["send-keys", key]).status.success());
    }

    /// The process of the view.
    fn view(&self) -> Pid {
        let shell: Pid =
            self.tmux(&["display-message", "-p", "#{pane_pid}"]).out.trim().parse().unwrap();
        let linux = Linux::live();
        let mut found = None;
        until("the view", || {
            let children = linux.children(shell).unwrap_or_default();
            let named = |pid: &&Pid| linux.stat(**pid).is_ok_and(|stat| stat.comm == "pagemill");
            found = children.iter().find(named).copied();
            found.is_some()
        });
        found.unwrap()
    }

    /// Whether the terminal is as it was before the view: the screen, the cursor, and lines that are edited.
    fn is_restored(&self) {
        let of = |what: &str| self.tmux(&["display-message", "-p", what]).out.trim().to_owned();
        assert_eq!((of("#{alternate_on}"), of("#{cursor_flag}")), ("0".into(), "1".into()));
        let tty = of("#{pane_tty}");
        let mode = ran(Command::new("stty").args(["-F", &tty, "-a"])).out;
        assert!(mode.contains(" icanon") && mode.contains(" echo "), "{mode}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// The panes, by what each shows of any process.
const PANES: [&str; 5] = ["heat ", "memory ", "faults ", "machine ", "tiers "];

#[test]
fn one_frame_is_text_of_all_panes_and_leaves_the_process_alone() {
    let waiting = Waiting::new();
    let run = pagemill_with(&["live", "-p", &waiting.pid(), "--once", "--interval", "100ms"]);
    assert_eq!((run.code(), run.err.as_str()), (Some(0), ""), "{run:?}");
    assert!(
        run.out.starts_with(&format!("pagemill live sh ({})  running", waiting.pid())),
        "{}",
        run.out
    );
    for pane in PANES {
        assert!(run.out.lines().any(|line| line.starts_with(pane)), "{pane} in\n{}", run.out);
    }
    assert!(run.out.contains(" of memory") && run.out.contains("[heap]"), "{}", run.out);
    assert!(run.out.lines().all(|line| line.chars().count() <= 80), "{}", run.out);
    // Text for files and pipes has no control sequences.
    assert!(!run.out.contains('\u{1b}'), "{}", run.out);
    assert!(waiting.is_untouched());
}

#[test]
fn as_json_a_frame_is_a_line_each_interval_until_the_process_ends() {
    let waiting = Waiting::new();
    let mut live = pagemill();
    live.args(["live", "-p", &waiting.pid(), "--json", "--interval", "100ms"]);
    let mut child = live.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let frames = std::io::BufRead::lines(out)
        .map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    let mut waiting = Some(waiting);
    let mut last = serde_json::Value::Null;
    for (number, frame) in frames.enumerate() {
        assert!(frame["memory"]["bytes"].as_u64() > Some(0), "{frame:#}");
        assert!(last["time_ns"].as_u64() < frame["time_ns"].as_u64(), "{last:#} {frame:#}");
        if number == 2 {
            assert!(waiting.as_ref().is_some_and(Waiting::is_untouched));
            waiting = None;
        }
        last = frame;
    }
    assert_eq!((child.wait().unwrap().code(), &last["over"]), (Some(0), &true.into()), "{last:#}");
}

/// Small objects, written once, of which every third is freed; and a rest.
const KEPT: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *all[8192];
int main(void) {
  for (int i = 0; i < 8192; i++) memset(all[i] = malloc(2000), i, 2000);
  for (int i = 0; i < 8192; i += 3) free(all[i]);
  write(1, "\n", 1);
  read(0, (char[1]){0}, 1);
}
"#;

/// What is read of a heap to see what is free there counts as accessed.
#[test]
fn the_heap_of_a_process_that_rests_is_not_touched_though_it_is_read() {
    let room = tempfile::tempdir().unwrap();
    let Some(kept) = support::compiled(&room, "kept", KEPT, &["-O1"]) else { return };
    let kept = Waiting::from(&mut Command::new(kept));
    let mut live = pagemill();
    live.args(["live", "-p", &kept.pid(), "--json", "--interval", "200ms"]);
    let mut child = live.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let (mut warm, mut says) = (Vec::new(), String::new());
    // On a busy machine a first window takes many frames.
    for line in out.lines().take(150) {
        let frame: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        let regions = frame["heat"]["regions"].as_array().unwrap();
        let heap = regions.iter().find(|region| region["name"] == "[heap]");
        warm.extend(heap.and_then(|heap| heap["warm_bytes"].as_u64()));
        says += &frame["says"].to_string();
        if warm.len() > 8 {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(says.contains("of it free in glibc's malloc"), "it was not read: {says}");
    // A reading touches all of its 16 MiB.
    assert!(warm.len() > 8 && warm.iter().all(|bytes| *bytes <= 2 << 20), "{warm:?}");
}

/// Touches 500 new pages at a time, and says after each time when it began and ended and how many faults that were.
const BATCHES: &str = r#"
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
static long faults(void) { struct rusage u; getrusage(RUSAGE_SELF, &u); return u.ru_minflt + u.ru_majflt; }
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (;;) {
        long began = now(), before = faults();
        char *memory = mmap(0, 500 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(memory, 500 * 4096, MADV_NOHUGEPAGE);
        for (long i = 0; i < 500; i++) memory[i * 4096] = 1;
        munmap(memory, 500 * 4096);
        printf("%ld %ld %ld\n", began, now(), faults() - before);
        usleep(3000);
    }
}
"#;

/// Ends a process that runs for ever.
struct Endless(Child);

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Once, the first frame had what was counted until its beginning, a fortieth of the faults, and the window of what was
/// counted was another than that by which it was divided.
/// It went on for as long as the process did (`pagemill live -p PID --json | head -1`).
#[test]
fn frames_end_when_nobody_reads_them_any_more() {
    let pid = Pid::own().to_string();
    let mut live = pagemill();
    live.args(["live", "-p", &pid, "--json", "--interval", "50ms"]).stdout(Stdio::piped());
    let mut live = live.spawn().unwrap();
    let mut frame = String::new();
    std::io::BufReader::new(live.stdout.take().unwrap()).read_line(&mut frame).unwrap();
    assert!(frame.starts_with('{'), "{frame}");
    until("its end", || live.try_wait().unwrap().is_some());
    assert!(live.wait().unwrap().success());
}

#[test]
fn the_faults_of_each_frame_are_those_of_its_window() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = support::compiled(&room, "batches", BATCHES, &["-O1"]) else { return };
    let told = room.path().join("told");
    let out = fs::File::create(&told).unwrap();
    let program = Endless(Command::new(program).stdout(out).spawn().unwrap());
    let mut live = pagemill();
    live.args(["live", "-p", &program.0.id().to_string(), "--json", "--interval", "700ms"]);
    let mut live = Endless(live.stdout(Stdio::piped()).spawn().unwrap());
    let out = std::io::BufReader::new(live.0.stdout.take().unwrap());
    let frames: Vec<serde_json::Value> = std::io::BufRead::lines(out)
        .take(3)
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    drop((live, program));
    let told = fs::read_to_string(&told).unwrap();
    // What it was ended in the middle of is no line.
    let batches = told.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse::<u64>().unwrap());
        [words.next().unwrap(), words.next().unwrap(), words.next().unwrap()]
    });
    let batches: Vec<[u64; 3]> = batches.collect();
    for frame in frames {
        let faults = &frame["faults"];
        let (count, seconds) = (faults["count"].as_u64().unwrap(), faults["seconds"].as_f64());
        let end = frame["time_ns"].as_u64().unwrap();
        let begin = end - (seconds.unwrap() * 1e9) as u64;
        let within = |edge: u64| {
            let lies =
                |[began, ended, _]: &&[u64; 3]| *began + edge >= begin && *ended <= end + edge;
            batches.iter().filter(lies).map(|batch| batch[2]).sum::<u64>()
        };
        // The moment of a count is known to within what it takes to attach and to read: a batch or some at each edge.
        let (least, most) = (within(0).saturating_sub(2000), within(60_000_000) + 2000);
        assert!(least > 3000 && (least..=most).contains(&count), "{least} to {most}: {frame:#}");
    }
}

/// Once, such a program was said to have no spikes of page faults.
#[test]
fn many_short_faults_in_a_row_are_said_to_be_stalls() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = support::compiled(&room, "batches", BATCHES, &["-O1"]) else { return };
    let program = Endless(Command::new(program).stdout(Stdio::null()).spawn().unwrap());
    let pid = program.0.id().to_string();
    let run = pagemill_with(&["live", "-p", &pid, "--once", "--json", "--interval", "1s"]);
    let frame: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    let says = frame["says"].to_string();
    if says.contains("counted and not timed") {
        return skip("nothing is timed here").unwrap_or(());
    }
    assert!(says.contains("of 1.0 ms a thread spent half or more in shorter ones"), "{frame:#}");
    assert!(frame["faults"]["bursts"].as_u64() > Some(0), "{frame:#}");
}

#[test]
fn a_heap_of_ours_says_how_much_of_it_is_live() {
    let mut command = pagemill();
    let waiting =
        Waiting::from(command.args(["run", "--mesh", "1y", "--", "sh", "-c", "echo; read line"]));
    let run = pagemill_with(&["live", "-p", &waiting.pid(), "--once", "--interval", "100ms"]);
    assert!(run.out.contains("heap ") && run.out.contains(": live "), "{run:?}");
}

/// What was being recorded was "not recorded" until its first rows were there.
#[test]
fn what_is_not_written_yet_is_not_said_to_be_missing() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let waiting = Waiting::new();
    let mut command = pagemill();
    command.args(["record", "--with", "heap", "-p", &waiting.pid(), "--flush", "1h", "-o"]);
    let mut recorder = command.arg(&path).stderr(Stdio::null()).spawn().unwrap();
    until("the recording begins", || path.join("meta.json").exists());
    let run = ran(pagemill().arg("live").arg(&path).arg("--once"));
    assert!(run.out.contains("nothing is written yet"), "{run:?}");
    assert!(!run.out.contains("not recorded"), "{run:?}");
    drop(waiting);
    recorder.wait().unwrap();
    let run = ran(pagemill().arg("live").arg(&path).arg("--once"));
    assert!(!run.out.contains("nothing is written yet"), "{run:?}");
}

#[test]
fn a_recording_is_shown_finished_or_in_the_making() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let waiting = Waiting::new();
    let mut command = pagemill();
    command.args(["record", "--with", "heap,hugepages,faults,frag", "-p", &waiting.pid()]);
    command.args(["--interval", "20ms", "--flush", "20ms", "-o"]).arg(&path);
    let mut recorder = command.stderr(Stdio::null()).spawn().unwrap();
    let frame = || ran(pagemill().arg("live").arg(&path).arg("--once"));
    let mut run = None;
    until("a frame of the recording", || {
        let frame = run.insert(frame());
        let whole = [" of memory", "[heap]", " in blocks too small for a huge page"];
        frame.code() == Some(0) && whole.iter().all(|word| frame.out.contains(word))
    });
    let run = run.unwrap();
    assert!(run.out.contains("is being recorded"), "{run:?}");
    // Where memory was touched was not recorded, and how to is said.
    assert!(run.out.contains("not recorded (record --with accesses)"), "{run:?}");
    drop(waiting);
    recorder.wait().unwrap();
    let run = frame();
    assert!(run.out.contains("ended: a finished recording"), "{run:?}");
}

#[test]
fn pages_of_a_recording_of_accesses_are_warm() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let mut command = pagemill();
    command.args(["record", "--with", "accesses", "-o"]).arg(&path).args(["--", "true"]);
    let run = ran(&mut command);
    if run.code() != Some(0) {
        return skip(&run.err).unwrap_or(());
    }
    let run = ran(pagemill().arg("live").arg(&path).args(["--once"]).env("LC_ALL", "C.UTF-8"));
    assert!(run.out.contains('█') && run.out.contains("iB+ in "), "{run:?}");
    assert!(run.out.contains("not recorded (record --with heap)"), "{run:?}");
}

#[test]
fn what_cannot_be_shown_is_told_with_what_to_do() {
    let file = |arguments: &[&str], code: i32, words: &[&str]| {
        let run = pagemill_with(arguments);
        assert_eq!(run.code(), Some(code), "{arguments:?}: {run:?}");
        assert!(words.iter().all(|word| run.err.contains(word)), "{arguments:?}: {run:?}");
        assert_eq!(run.out, "", "{arguments:?}");
    };
    file(&["live", "--once"], 2, &["nothing to look at", "-p PID"]);
    file(&["live", "--once", "-p", "2147483647"], 2, &["no such process"]);
    file(&["live", "--once", "/proc/self"], 2, &["is no recording"]);
    file(&["live", "--once", "--", "true"], 125, &["live -p PID --once"]);
    let waiting = Waiting::new();
    // No terminal at all: a session of its own has none.
    let mut command = Command::new("setsid");
    command.arg("-w").arg(pagemill().get_program()).args(["live", "-p", &waiting.pid()]);
    let run = ran(&mut command);
    assert_eq!(run.code(), Some(2), "{run:?}");
    assert!(run.err.contains("no terminal") && run.err.contains("--once"), "{run:?}");
    let mut command = Command::new("setsid");
    command.arg("-w").arg(pagemill().get_program()).args(["live", "--", "true"]);
    assert_eq!(ran(&mut command).code(), Some(125));
}

#[test]
fn a_process_of_another_user_is_refused_with_4() {
    let me = Linux::live().status(Pid::own()).unwrap();
    if !me.can(pagemill_kernel::process::Capability::SysAdmin) {
        return skip("only root becomes another user").unwrap_or(());
    }
    let room = tempfile::tempdir().unwrap();
    let copy: PathBuf = room.path().join("pagemill");
    support::installed(Path::new(pagemill().get_program()), &copy, "755");
    fs::set_permissions(room.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let waiting = Waiting::new();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    let run = ran(command.args(["live", "--once", "-p", &waiting.pid()]));
    assert_eq!(run.code(), Some(4), "{run:?}");
    assert!(run.err.contains("ermission") || run.err.contains("not permitted"), "{run:?}");
}

#[test]
fn on_a_terminal_keys_are_shown_and_work_and_quitting_leaves_process_and_terminal_alone() {
    let waiting = Waiting::new();
    let pid = waiting.pid();
    let Some(terminal) = Terminal::start("", &["-p", &pid]) else { return };
    let screen = terminal.shows(&["running", "[heap]", "q quit  space hold", "tiers "]);
    assert_eq!(screen.trim_end_matches('\n').lines().count(), 24, "{screen}");
    assert!(PANES.iter().all(|pane| screen.contains(pane)), "{screen}");
    terminal.press("?");
    terminal.shows(&["the program goes on"]);
    terminal.press("Escape");
    terminal.shows(&["q quit  space hold"]);
    terminal.press("2");
    terminal.lacks("memory  ");
    terminal.press("2");
    terminal.shows(&["memory  "]);
    terminal.press("Space");
    terminal.shows(&["running, held"]);
    terminal.press("Space");
    terminal.lacks("held");
    terminal.press("+");
    terminal.shows(&["every 2.0 s"]);
    // Lower and narrower than all panes need.
    assert!(terminal.tmux(&["resize-window", "-x", "40", "-y", "10"]).status.success());
    terminal.lacks("tiers ");
    let screen = terminal.shows(&["pagemill live", "heat ", "q quit"]);
    assert!(screen.lines().all(|line| line.chars().count() <= 40), "{screen}");
    assert!(terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]).status.success());
    terminal.shows(&["tiers "]);
    terminal.press("q");
    terminal.shows(&["status 0"]);
    terminal.is_restored();
    assert!(waiting.is_untouched());
}

#[test]
fn a_signal_or_the_interrupt_key_ends_the_view_and_not_the_process() {
    let waiting = Waiting::new();
    let pid = waiting.pid();
    for signal in ["C-c", "TERM", "HUP", "INT"] {
        let Some(terminal) = Terminal::start("", &["-p", &pid]) else { return };
        terminal.shows(&["running", "q quit"]);
        if signal == "C-c" {
            terminal.press(signal);
        } else {
            let view = terminal.view().to_string();
            assert!(Command::new("kill").args(["-s", signal, &view]).status().unwrap().success());
        }
        terminal.shows(&["status 0"]);
        terminal.is_restored();
        assert!(waiting.is_untouched(), "{signal}");
    }
}

/// Without its terminal the view span at a whole processor, for the library that read keys waits for whole events.
#[test]
fn a_terminal_that_goes_away_ends_the_view_and_not_the_process() {
    let waiting = Waiting::new();
    let pid = waiting.pid();
    for before in ["", "trap '' HUP"] {
        let Some(terminal) = Terminal::start(before, &["-p", &pid]) else { return };
        terminal.shows(&["running", "q quit"]);
        let view = terminal.view();
        terminal.tmux(&["kill-server"]);
        let gone = || Linux::live().stat(view).is_ok_and(|stat| stat.comm == "pagemill");
        until("the view ends", || !gone());
        assert!(waiting.is_untouched());
    }
}

#[test]
fn the_stop_key_gives_the_terminal_back_until_the_view_is_continued() {
    let waiting = Waiting::new();
    let pid = waiting.pid();
    let Some(terminal) = Terminal::start("", &["-p", &pid]) else { return };
    terminal.shows(&["running", "q quit"]);
    let view = terminal.view();
    terminal.press("C-z");
    until("the view stops", || Linux::live().stat(view).is_ok_and(|stat| stat.state == 'T'));
    let alternate = || terminal.tmux(&["display-message", "-p", "#{alternate_on}"]).out;
    assert_eq!(alternate().trim(), "0");
    assert!(
        Command::new("kill").args(["-s", "CONT", &view.to_string()]).status().unwrap().success()
    );
    until("the screen is back", || alternate().trim() == "1");
    terminal.shows(&["running"]);
    terminal.press("q");
    terminal.shows(&["status 0"]);
    terminal.is_restored();
}

#[test]
fn the_last_frame_of_a_process_that_ends_stays_until_a_key() {
    let mut waiting = Waiting::new();
    let pid = waiting.pid();
    let Some(terminal) = Terminal::start("", &["-p", &pid]) else { return };
    terminal.shows(&["running", "[heap]"]);
    waiting.end();
    let screen = terminal.shows(&[&format!("sh ({pid})  ended")]);
    assert!(screen.contains("[heap]") && screen.contains(" of memory"), "{screen}");
    assert!(!screen.contains("status"), "{screen}");
    terminal.press("q");
    terminal.shows(&["status 0"]);
    terminal.is_restored();
}

#[test]
fn a_command_keeps_its_output_for_after_the_view_and_its_status_is_passed_on() {
    let Some(terminal) =
        Terminal::start("", &["--", "sh", "-c", "echo out; echo err >&2; cat; sleep 0.3; exit 7"])
    else {
        return;
    };
    let screen = terminal.shows(&["ended with 7"]);
    assert!(!screen.contains("status") && !screen.contains("\nout"), "{screen}");
    terminal.press("q");
    terminal.shows(&["out\nerr\nstatus 7"]);
    terminal.is_restored();
}

/// Frees all but the last of its blocks and rests.
const FREED: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { BLOCKS = 100000, SIZE = 600 };
static char *blocks[BLOCKS];
int main(void) {
    alarm(120);
    for (int i = 0; i < BLOCKS; i++) memset(blocks[i] = malloc(SIZE), 1, SIZE);
    for (int i = 0; i < BLOCKS - 1; i++) free(blocks[i]);
    pause();
}
"#;

/// Of a command, unlike of the same process by its number, nothing was said of its malloc, and the title was for ever
/// the name of the shell that executed it.
#[test]
fn what_the_malloc_of_a_command_keeps_free_is_said_under_the_name_of_what_it_executed() {
    let room = tempfile::tempdir().unwrap();
    let Some(program) = support::compiled(&room, "freed", FREED, &["-O1"]) else { return };
    let shell = format!("sleep 0.5; exec {}", program.display());
    let Some(terminal) = Terminal::start("", &["--", "sh", "-c", &shell]) else { return };
    terminal.shows(&["pagemill live freed (", "of it free in glibc's malloc", "run --trim"]);
}

#[test]
fn a_command_that_outlives_the_view_is_waited_for_and_prints_on() {
    let room = tempfile::tempdir().unwrap();
    let mark = room.path().join("mark");
    let program =
        format!("until [ -e {0} ]; do sleep 0.05; done; echo late; exit 3", mark.display());
    let Some(terminal) = Terminal::start("", &["--", "sh", "-c", &program]) else { return };
    terminal.shows(&["running", "q quit"]);
    terminal.press("q");
    let screen = terminal.shows(&["runs on, and is waited for"]);
    assert!(!screen.contains("status"), "{screen}");
    terminal.is_restored();
    fs::write(&mark, "").unwrap();
    terminal.shows(&["late\nstatus 3"]);
}

#[test]
fn a_command_that_cannot_be_run_never_takes_the_screen() {
    for (command, code) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let Some(terminal) = Terminal::start("", &["--", command]) else { return };
        terminal.shows(&[&format!("cannot run {command}"), &format!("status {code}")]);
        terminal.is_restored();
    }
}

#[test]
fn without_colours_nothing_is_coloured_and_in_a_plain_locale_all_is_ascii() {
    let waiting = Waiting::new();
    let pid = waiting.pid();
    let coloured = |before: &str| {
        let terminal = Terminal::start(before, &["-p", &pid])?;
        let shown = terminal.shows(&["running", "heat ", "q quit"]);
        let escapes = terminal.tmux(&["capture-pane", "-p", "-e"]).out;
        terminal.press("q");
        terminal.shows(&["status 0"]);
        Some((escapes.contains("[38;5;"), shown))
    };
    let Some((with, _)) = coloured("") else { return };
    let (without, plain) = coloured("export NO_COLOR=1 LC_ALL=C").unwrap();
    assert_eq!((with, without), (true, false));
    assert!(plain.is_ascii() && plain.contains("# 2 s"), "{plain}");
}

/// A recording that is taken away under the view is an error, which must not leave the terminal to the view.
#[test]
fn an_error_gives_the_terminal_back_and_is_told() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("rec");
    let waiting = Waiting::new();
    let mut command = pagemill();
    command.args(["record", "--with", "heap", "-p", &waiting.pid(), "--flush", "20ms", "-o"]);
    let mut recorder = command.arg(&path).stderr(Stdio::null()).spawn().unwrap();
    until("the recording begins", || path.join("meta.json").exists());
    let Some(terminal) = Terminal::start("", &[path.to_str().unwrap(), "--interval", "100ms"])
    else {
        drop(waiting);
        recorder.wait().unwrap();
        return;
    };
    terminal.shows(&["is being recorded", "q quit"]);
    drop(waiting);
    // It may be killed; the view is not told.
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    fs::rename(&path, room.path().join("elsewhere")).unwrap();
    terminal.shows(&["is no recording: it does not exist", "status 2"]);
    terminal.is_restored();
}
