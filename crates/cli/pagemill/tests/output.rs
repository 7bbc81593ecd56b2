//! What is printed and written: lost by nobody unnoticed, and no way into a terminal for what others have named.

#![expect(clippy::unwrap_used, reason = "what cannot be read fails the test")]

#[cfg(test)]
mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use pagemill_model::recording::{Losses, Meta, Writer};
use pagemill_model::{FaultSetup, Nanos};
use support::verbs::{Sleeping, verbs, verbs_with_json};
use support::{Ran, compiled, pagemill, pagemill_with, ran, skip};

/// Verbs whose standard output is their program's, or that print only what they have done.
const PRINT_NOTHING: [(&str, &str); 5] = [
    ("run", "the program's"),
    ("record", "the program's"),
    ("export", "a file"),
    ("tier", "a daemon, which needs two memory nodes; what it prints by tier status"),
    ("tier restore", "standard error"),
];

/// Verbs with verbs of their own.
const GROUPS: [&str; 1] = ["frag"];

/// Recordings of a short program, made once: with page faults and huge pages, and with accesses where they can be
/// traced.
struct Recordings {
    faults: PathBuf,
    accesses: Option<PathBuf>,
    results: PathBuf,
}

fn recordings() -> &'static Recordings {
    static MADE: OnceLock<Recordings> = OnceLock::new();
    MADE.get_or_init(|| {
        // Nothing is dropped in the end: the next time removes what there is.
        let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let _ = std::fs::remove_dir_all(&room);
        std::fs::create_dir_all(&room).unwrap();
        let record = |with: &str, name: &str| {
            let path = room.join(name);
            let mut command = pagemill();
            command.args(["record", "--with", with, "--threshold", "0ns", "-o"]).arg(&path);
            (ran(command.args(["--", "sh", "-c", "sleep 0.2; echo"])), path)
        };
        let (run, faults) = record("faults,hugepages", "faults");
        assert_eq!(run.code(), Some(0), "{run:?}");
        let (run, accesses) = record("accesses", "accesses");
        let accesses = if run.code() == Some(0) { Some(accesses) } else { skip(&run.err) };
        let results = room.join("results");
        let run = ran(pagemill()
            .args(["reproduce", "throughput", "--quick", "--reps", "1", "--scale", "0.01"])
            .args(["--arms", "glibc", "-o"])
            .arg(&results));
        // A program of so small a size may be too short to be measured, which is no failure.
        assert_eq!(run.code(), Some(0), "{run:?}");
        Recordings { faults, accesses, results }
    })
}

fn to_full(arguments: &[&str]) -> Ran {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = pagemill();
    let child = command.args(arguments).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped());
    let done = child.spawn().unwrap().wait_with_output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    Ran { status: done.status, out: String::new(), err }
}

fn is_told(arguments: &[&str]) {
    let run = to_full(arguments);
    assert!(run.err.contains("standard output could not be written"), "{arguments:?}: {run:?}");
    // 3: what is missing on this machine is more than that.
    assert!(matches!(run.code(), Some(2 | 3)), "{arguments:?}: {run:?}");
}

#[test]
fn a_full_disk_is_told_by_the_help_of_every_verb() {
    is_told(&["--help"]);
    is_told(&["--version"]);
    for verb in verbs().keys() {
        let mut words: Vec<&str> = verb.split(' ').collect();
        words.push("--help");
        is_told(&words);
    }
}

/// Calls that print: at least one of every verb that does, by the command line's own list, and one for JSON of every
/// verb that answers in it and is given no command.
fn calls(pid: &str) -> Vec<Vec<&str>> {
    let recordings = recordings();
    let faults = recordings.faults.to_str().unwrap();
    let mut calls: Vec<Vec<&str>> = vec![
        vec!["doctor"],
        vec!["report", faults],
        vec!["compare", faults, faults],
        vec!["plan", faults],
        vec!["hugepages", faults],
        vec!["counters", "--runs", "3", "--", "true"],
        vec!["advise", "--within", "3s", "--", "true"],
        vec!["heap", pid],
        vec!["live", "-p", pid, "--once", "--interval", "100ms"],
        vec!["live", faults, "--once"],
        vec!["frag", "show"],
        vec!["frag", "induce", "--dry-run", "--target", "0.5"],
        vec!["frag", "compact", "--dry-run", "--target", "0.5"],
        vec!["reproduce", "--list"],
        vec!["collect", recordings.results.to_str().unwrap()],
        vec!["workload", "--list"],
        vec!["generate", "bash"],
        vec!["generate", "man"],
        vec!["simulate", "gups", "--policy", "tpp", "--seconds", "2", "--scale", "256"],
        vec!["simulate", "--print-machine"],
        vec!["simulate", "zipf", "--sweep"],
        vec!["tier", "doctor"],
        vec!["tier", "probe", "--for", "10ms"],
        vec!["tier", "status"],
        vec!["tier", "replay", faults],
    ];
    if let Some(accesses) = &recordings.accesses {
        calls.push(vec!["report", accesses.to_str().unwrap()]);
        calls.push(vec!["validate", "--", "true"]);
    }
    let known = verbs();
    let verb = |call: &Vec<&str>| {
        let words: Vec<&str> =
            call.iter().copied().take_while(|word| !word.starts_with('-')).collect();
        let named =
            [words.get(..2), words.get(..1)].into_iter().flatten().map(|words| words.join(" "));
        named.into_iter().find(|name| known.contains_key(name))
    };
    for with_json in verbs_with_json() {
        let of = |call: &&Vec<&str>| verb(call).as_ref() == Some(&with_json);
        let alone = calls.iter().find(|call| of(call) && !call.contains(&"--"));
        let asked = alone.map(|call| [call.as_slice(), &["--json"]].concat());
        calls.extend(asked);
    }
    let seen: BTreeSet<String> = calls.iter().filter_map(verb).collect();
    let silent = PRINT_NOTHING.map(|(verb, _)| verb.to_owned());
    let forgotten: Vec<&String> = known
        .keys()
        .filter(|verb| {
            !seen.contains(*verb) && !silent.contains(verb) && !GROUPS.contains(&verb.as_str())
        })
        .filter(|verb| *verb != "validate" || recordings.accesses.is_some())
        .collect();
    assert!(forgotten.is_empty(), "verbs that no call above is of: {forgotten:?}");
    calls
}

/// `report`, `compare`, `frag show` and others ended with 0 and nothing said.
#[test]
fn a_full_disk_is_told_by_every_verb_that_prints() {
    let sleeping = Sleeping::on_heap();
    let pid = sleeping.pid();
    let calls = calls(&pid);
    for call in &calls {
        let run = to_full(call);
        let there = Command::new(pagemill().get_program()).args(call).output().unwrap();
        // A verb that has nothing to print here says why, and that is no loss.
        if there.stdout.is_empty() {
            assert_ne!(run.code(), Some(0), "{call:?} prints nothing and says nothing: {run:?}");
            continue;
        }
        is_told(call);
    }
}

/// It was a file named `-`. The number of events was that of the rows that they were made of.
#[test]
fn a_hyphen_is_standard_output_and_no_directory() {
    let room = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| ran(pagemill().args(words).current_dir(room.path()));
    let faults = recordings().faults.to_str().unwrap();
    let exported = run(&["export", faults, "--format", "perfetto", "-o", "-"]);
    assert_eq!(exported.code(), Some(0), "{exported:?}");
    let trace: serde_json::Value = serde_json::from_str(&exported.out).unwrap();
    let events = trace["traceEvents"].as_array().unwrap().len();
    assert_eq!(exported.err, format!("wrote {events} events to standard output\n"));
    for (words, code) in [
        (&["record", "-o", "-", "--", "true"][..], 125),
        (&["generate", "man", "-o", "-"], 2),
        (&["validate", "-o", "-", "--", "true"], 2),
    ] {
        let refused = run(words);
        assert_eq!(refused.code(), Some(code), "{refused:?}");
        assert!(refused.err.contains("./-"), "{refused:?}");
    }
    assert_eq!(std::fs::read_dir(room.path()).unwrap().count(), 0);
}

/// Lines of `report` were 122 columns wide on a terminal of 60.
#[test]
fn the_text_of_every_verb_fits_the_terminal() {
    if Command::new("script").arg("--version").output().is_err() {
        return skip("script(1), which gives a terminal, is not installed").unwrap_or(());
    }
    let sleeping = Sleeping::on_heap();
    let pid = sleeping.pid();
    let plain = pagemill();
    let mut printed = 0;
    let verbs = verbs();
    let help = verbs.keys().map(|verb| verb.split(' ').chain(["--help"]).collect::<Vec<_>>());
    let calls: Vec<_> = calls(&pid).into_iter().chain(help).collect();
    for width in [60, 80] {
        for call in &calls {
            let data =
                |word: &&str| ["--json", "bash", "man", "--print-machine", "probe"].contains(word);
            if call.iter().any(data) {
                continue;
            }
            let quoted: Vec<String> = call.iter().map(|word| format!("'{word}'")).collect();
            let program = plain.get_program().to_str().unwrap();
            let script =
                format!("stty cols {width}; exec {program} {} 2> /dev/null", quoted.join(" "));
            let mut command = Command::new("script");
            command.env("NO_COLOR", "1");
            command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let run = ran(command.args(["-qec", &script, "/dev/null"]).env("SHELL", "/bin/sh"));
            let wide = |line: &&str| {
                // A word that is longer by itself is not broken.
                let words = line.split_whitespace().count();
                line.chars().count() > width && words > 1
            };
            let text = run.out.replace('\r', "");
            printed += text.lines().count();
            let lines: Vec<&str> = text.lines().filter(wide).collect();
            assert!(lines.is_empty(), "{call:?} on {width} columns: {lines:#?}");
        }
    }
    assert!(printed > 200, "{printed} lines");
}

/// 2 where there is no command, 125 where 2 may be the command's: for every verb, and for whatever is wrong.
#[test]
fn wrong_usage_is_2_and_125_where_there_is_a_command_to_run() {
    for verb in verbs().keys() {
        let words: Vec<&str> = verb.split(' ').collect();
        let code = |rest: &[&str]| pagemill_with(&[&words[..], rest].concat()).code();
        let wrapper = ["run", "record", "live", "frag induce"].contains(&verb.as_str());
        let alone = if verb == "run" { 125 } else { 2 };
        assert_eq!(code(&["--no-such-flag"]), Some(alone), "{verb}");
        let with_command = if wrapper { 125 } else { 2 };
        assert_eq!(code(&["--no-such-flag", "--", "true"]), Some(with_command), "{verb}");
    }
    for wrong in [
        "--with nosuch",
        "--interval 0ms",
        "--interval soon",
        "-o",
        "--backend exact",
        "--with accesses,heap",
        "--with accesses --granule 8K",
        "--with heap --mesh 9q",
        "-o /dev/null/rec",
        "--import /dev/null/file",
    ] {
        let words: Vec<&str> = ["record"].into_iter().chain(wrong.split(' ')).collect();
        let with = |rest: &[&str]| pagemill_with(&[&words, rest].concat());
        let run = with(&["--", "true"]);
        assert_eq!(run.code(), Some(125), "{wrong}: {run:?}");
        let run = with(&["-p", "1"]);
        // The heap's configuration is for a command.
        assert!(run.code() == Some(2) || wrong.contains("--mesh"), "{wrong}: {run:?}");
    }
    let run = pagemill_with(&["frag", "induce", "--target", "7", "--", "true"]);
    assert_eq!(run.code(), Some(125), "{run:?}");
    let run = pagemill_with(&["frag", "induce", "--target", "0.5", "--order", "60", "--", "true"]);
    assert_eq!(run.code(), Some(125), "{run:?}");
}

fn entries(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The kernel ends who writes past the limit by a signal: nothing was said, and half a file left.
#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_leaves_no_part_of_one() {
    let recordings = recordings();
    let room = tempfile::tempdir().unwrap();
    let limited = |arguments: &[&str]| {
        let plain = pagemill();
        let mut command = Command::new("bash");
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["-c", "ulimit -f 1; exec \"$0\" \"$@\""]).arg(plain.get_program());
        ran(command.args(arguments).current_dir(room.path()))
    };
    let faults = recordings.faults.to_str().unwrap();
    let mut calls = vec![
        vec!["report", faults, "--html", "page.html"],
        vec!["export", faults, "--format", "pftrace", "-o", "trace"],
        vec!["record", "--with", "faults", "--threshold", "0ns", "-o", "rec", "--", "true"],
    ];
    if let Some(accesses) = recordings.accesses.as_deref().and_then(Path::to_str) {
        calls.push(vec!["export", accesses, "--format", "perfetto", "-o", "p.json"]);
        calls.push(vec!["export", accesses, "--format", "parquet", "-o", "p.parquet"]);
    }
    for call in &calls {
        let run = limited(call);
        assert!(run.code().is_some(), "{call:?} was ended by a signal: {run:?}");
        let wrapper = call[0] == "record";
        assert!(run.code() != Some(0) || wrapper || run.err.contains("wrote"), "{call:?}: {run:?}");
        if !wrapper && run.code() != Some(0) {
            assert!(run.err.contains("File too large"), "{call:?}: {run:?}");
            assert!(entries(room.path()).is_empty(), "{call:?}");
        }
        let _ = fs::remove_dir_all(room.path().join("rec"));
        entries(room.path())
            .iter()
            .for_each(|name| fs::remove_file(room.path().join(name)).unwrap());
    }
    assert!(limited(&calls[0]).err.contains("File too large"), "a page has more than 1 KiB");
}

/// "No space left on device", and nobody knew where.
#[test]
fn an_export_that_cannot_be_written_names_its_file_in_every_format() {
    let recordings = recordings();
    let faults = recordings.faults.to_str().unwrap();
    let help = pagemill_with(&["export", "--help"]).out;
    let listed = help.split("Possible values:").nth(1).unwrap();
    let formats = listed
        .lines()
        .filter_map(|line| Some(line.trim().strip_prefix("- ")?.split_once(':')?.0.to_owned()));
    let formats: Vec<String> = formats.collect();
    assert!(formats.len() >= 7, "{formats:?}");
    let room = tempfile::tempdir().unwrap();
    let plain = pagemill();
    for format in &formats {
        let accesses = recordings.accesses.as_deref().and_then(Path::to_str);
        let Some(recording) = (if format == "pftrace" { Some(faults) } else { accesses }) else {
            continue;
        };
        let call = ["export", recording, "-f", "--format", format, "-o"];
        let run = pagemill_with(&[&call[..], &["/dev/full"]].concat());
        assert_eq!(run.code(), Some(2), "{format}: {run:?}");
        assert!(run.err.contains("/dev/full: No space"), "{format}: {run:?}");
        let mut command = Command::new("bash");
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""]).arg(plain.get_program());
        let run = ran(command.args(call).arg("out.file").current_dir(room.path()));
        assert_eq!(run.code(), Some(2), "{format}: {run:?}");
        assert!(run.err.contains("out.file: File too large"), "{format}: {run:?}");
        assert_eq!(run.err.matches("File too large").count(), 1, "{format}: {run:?}");
        assert!(entries(room.path()).is_empty(), "{format}");
    }
}

/// What takes a minute was done, and then there was no place for it. That the input is not there either would be told
/// by who looks at it first.
#[test]
fn a_file_that_could_not_be_written_is_refused_before_anything_is_read_or_run() {
    let room = tempfile::tempdir().unwrap();
    let path = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    let (missing, there, input) = (path("missing/out"), path("there"), path("input"));
    fs::write(&there, "mine").unwrap();
    let calls: [(&[&str], &str); 8] = [
        (&["advise", "--", "touch", &input], "--html"),
        (&["advise", "--places", "--", "touch", &input], "-o"),
        (&["collect", &input], "-o"),
        (&["collect", &input], "--html"),
        (&["plan", &input], "-o"),
        (&["report", &input], "--html"),
        (&["export", &input, "--format", "perfetto"], "-o"),
        (&["simulate", &input, "--huge", "cbmm"], "--save-profile"),
    ];
    for (words, option) in calls {
        // One with a command behind it has its options in front.
        let named = |file: &str| {
            let mut words = words.to_vec();
            let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
            words.splice(at..at, [option, file]);
            pagemill_with(&words)
        };
        let told = named(&missing);
        assert_eq!(told.code(), Some(2), "{words:?}: {told:?}");
        let says = told.err.contains("cannot write") && told.err.contains("missing/out");
        if words[1] == "--places" && !says {
            skip::<()>(&told.err);
            continue;
        }
        assert!(says && !Path::new(&input).exists(), "{words:?}: {told:?}");
        // That one replaces what is there.
        if option != "--save-profile" {
            let told = named(&there);
            assert!(told.code() == Some(2) && told.err.contains("exists"), "{words:?}: {told:?}");
        }
        assert_eq!(fs::read_to_string(&there).unwrap(), "mine");
    }
}

#[test]
fn a_program_that_is_started_finds_the_signal_of_that_limit_as_it_was() {
    let program = "#include <signal.h>\nint main(void) { struct sigaction now; sigaction(SIGXFSZ, 0, &now);\n\
                   return now.sa_handler == SIG_DFL ? 10 : now.sa_handler == SIG_IGN ? 11 : 12; }";
    let room = tempfile::tempdir().unwrap();
    let Some(program) = compiled(&room, "signal", program, &[]) else { return };
    for (before, code) in [("", 10), ("trap '' XFSZ; ", 11)] {
        for verb in [
            "run --mesh 1y --",
            "run --huge linux-madvise --dry --",
            "record --with heap -f -o rec --",
        ] {
            let plain = pagemill();
            let mut command = Command::new("bash");
            command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
            let script = format!("{before}exec \"$0\" {verb} \"$1\"");
            command.args(["-c", &script]).arg(plain.get_program()).arg(&program);
            let run = ran(command.current_dir(room.path()));
            assert_eq!(run.code(), Some(code), "{before}{verb}: {run:?}");
        }
    }
}

#[test]
fn a_start_that_failed_leaves_nothing_that_a_second_one_would_have_to_overwrite() {
    let room = tempfile::tempdir().unwrap();
    let broken = room.path().join("broken");
    fs::write(&broken, "#!/nonexistent/interpreter\n").unwrap();
    fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for options in [
        &["run", "--huge", "cbmm+", "--log", "log", "--stats", "stats.json"][..],
        &["record", "--with", "faults", "-o", "rec"],
        &["record", "--with", "accesses", "-o", "rec"],
        &["record", "--with", "heap", "-o", "rec"],
    ] {
        for program in ["./broken", "./no-such-program"] {
            let run = ran(pagemill().args(options).args(["--", program]).current_dir(room.path()));
            assert!(matches!(run.code(), Some(125..=127)), "{options:?}: {run:?}");
            assert_eq!(entries(room.path()), ["broken"], "{options:?} {program}: {run:?}");
        }
    }
    let run = ran(pagemill()
        .args(["run", "--huge", "cbmm+", "--log", "log", "--stats", "no/stats.json", "--", "true"])
        .current_dir(room.path()));
    assert_eq!(
        (run.code(), entries(room.path())),
        (Some(125), vec!["broken".to_owned()]),
        "{run:?}"
    );
}

/// They left a directory that the next start refused; of `validate` the program went on, and was waited for.
#[test]
fn what_could_not_be_begun_on_a_full_disk_can_be_begun_again() {
    let room = tempfile::tempdir().unwrap();
    let calls: [&[&str]; 3] = [
        &["generate", "recording", "--events", "10", "-o", "out"],
        &["validate", "-o", "out", "--", "sleep", "1000"],
        &["reproduce", "ruby-strings", "--quick", "-o", "out"],
    ];
    for call in calls {
        let plain = pagemill();
        let mut command = Command::new("bash");
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""]).arg(plain.get_program());
        let run = ran(command.args(call).current_dir(room.path()));
        assert!(matches!(run.code(), Some(2..=4)), "{call:?}: {run:?}");
        assert!(entries(room.path()).is_empty(), "{call:?}: {run:?}");
    }
}

/// The name of a process, a file or a command went to the terminal as it was: a program could write to the terminal of
/// root who looked at it.
#[test]
fn names_that_others_have_chosen_steer_no_terminal() {
    const EVIL: &str = "\u{1b}]0;x\u{7}\u{1b}[31m\r";
    let room = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/prctl.h>\n\
        int main(int argc, char **argv) { prctl(PR_SET_NAME, argv[1]); char *p = malloc(1 << 22);\n\
        memset(p, 1, 1 << 22); puts(\"ready\"); fflush(stdout); if (argc > 2) getchar(); return p[5] - 1; }";
    let Some(program) = compiled(&room, "program", source, &["-O1"]) else { return };
    let evil = room.path().join(format!("evil{EVIL}"));
    fs::copy(&program, &evil).unwrap();
    let check = |what: &str, run: &Ran| {
        for (stream, text) in [("out", &run.out), ("err", &run.err)] {
            let found = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t'));
            assert_eq!(found, None, "{what}, std{stream}: {text:?}");
        }
    };
    let quiet = |arguments: &[&str]| {
        let mut command = pagemill();
        command.args(arguments).current_dir(room.path());
        let run = ran(&mut command);
        check(&arguments.join(" "), &run);
        run
    };
    let evil = evil.to_str().unwrap();
    for with in ["heap", "faults,hugepages", "accesses"] {
        let output = format!("rec-{}", &with[..4]);
        quiet(&["record", "--with", with, "-o", &output, "--", evil, EVIL]);
        for verb in [&["report"][..], &["report", "--json"], &["plan", "--explain"], &["hugepages"]]
        {
            quiet(&[verb, &[output.as_str()]].concat());
        }
        quiet(&["compare", &output, &output]);
        let page = format!("{output}.html");
        quiet(&["report", &output, "--html", &page]);
    }
    let mut command = pagemill();
    command.args(["run", "--mesh", "1y", "--", evil, EVIL, "wait"]).current_dir(room.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    let pid = child.id().to_string();
    let shown = quiet(&["heap", &pid]);
    assert!(shown.out.contains("\\u001b]0;x"), "the name is shown, spelled out: {shown:?}");
    quiet(&["hugepages", "-p", &pid]);
    drop(child.stdin.take());
    child.wait().unwrap();
    let gone = format!("no-{EVIL}");
    for call in [
        &["report", &gone][..],
        &["run", "--mesh", "1y", "--", &gone],
        &["doctor", "--program", &gone],
        &["reproduce", &gone],
        &["simulate", &gone, "--policy", "tpp"],
        &["heap", &gone],
        &["workload", &gone],
        &["record", "--with", &gone, "--", "true"],
    ] {
        quiet(call);
    }
}

/// A recording with a part deleted or a byte changed was compared, exported and validated as if it were whole.
#[test]
fn a_recording_that_is_not_whole_is_never_taken_for_one_that_is() {
    let recordings = recordings();
    let room = tempfile::tempdir().unwrap();
    let copy = |from: &Path, name: &str| {
        let to = room.path().join(name);
        assert!(Command::new("cp").arg("-r").arg(from).arg(&to).status().unwrap().success());
        to
    };
    let parts = |recording: &Path| {
        let found = Command::new("find").arg(recording).args(["-name", "part-*"]).output().unwrap();
        let text = String::from_utf8(found.stdout).unwrap();
        text.lines().map(PathBuf::from).collect::<Vec<_>>()
    };
    let mut kinds = vec![(&recordings.faults, "faults", "pftrace")];
    kinds.extend(recordings.accesses.as_ref().map(|accesses| (accesses, "accesses", "moca")));
    for (recording, dataset, format) in kinds {
        // The summary that reading leaves must hide nothing.
        let read = pagemill_with(&["report", recording.to_str().unwrap()]);
        assert_eq!(read.code(), Some(0), "{read:?}");
        for damage in ["deleted", "flipped"] {
            let damaged = copy(recording, &format!("{dataset}-{damage}"));
            let found = parts(&damaged);
            let of_dataset = |part: &&PathBuf| part.parent().unwrap().ends_with(dataset);
            let part = found.iter().find(of_dataset).unwrap();
            if damage == "deleted" {
                fs::remove_file(part).unwrap();
            } else {
                let mut bytes = fs::read(part).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 0x10;
                fs::write(part, bytes).unwrap();
            }
            let whole = recording.to_str().unwrap();
            let damaged = damaged.to_str().unwrap();
            let out = room.path().join("out");
            let mut calls = vec![
                vec!["report", damaged],
                vec!["report", damaged, "--json"],
                vec!["compare", whole, damaged],
                vec!["compare", damaged, whole],
                vec!["export", damaged, "-f", "--format", format, "-o", out.to_str().unwrap()],
            ];
            if dataset == "faults" {
                calls.push(vec!["plan", damaged]);
            }
            for call in calls {
                let run = pagemill_with(&call);
                assert_eq!(run.code(), Some(2), "{call:?}: {run:?}");
                assert!(
                    run.err.contains("gone") || run.err.contains("damaged"),
                    "{call:?}: {run:?}"
                );
            }
        }
    }
}

/// It stood below all else, as if it were like the rest.
#[test]
fn what_was_lost_stands_in_the_header_and_is_red_on_a_terminal() {
    let room = tempfile::tempdir().unwrap();
    let rec = room.path().join("rec");
    let losses = Losses { missed_samples: 7, ..Losses::default() };
    let faults = Some(FaultSetup { lost: 1, ..FaultSetup::default() });
    let meta = Meta { losses, faults, ..Meta::default() };
    Writer::create(&rec, meta, false, None).unwrap().finish(Nanos(1)).unwrap();
    let run = ran(pagemill().arg("report").arg(&rec));
    let header = run.out.split("\n\n").next().unwrap();
    assert!(header.ends_with("\nlost      7 samples, 1 page fault"), "{run:?}");
    if Command::new("script").arg("--version").output().is_err() {
        return skip("script(1), which gives a terminal, is not installed").unwrap_or(());
    }
    let red = "\x1b[31mlost      7 samples, 1 page fault\x1b[0m";
    for (no_color, coloured) in [("", true), ("1", false)] {
        let script = format!("{} report {}", pagemill().get_program().display(), rec.display());
        let mut command = Command::new("script");
        command.env("NO_COLOR", "1");
        command.env("NO_COLOR", no_color).args(["-qec", &script, "/dev/null"]);
        let run = ran(&mut command);
        assert_eq!(run.out.contains(red), coloured, "{run:?}");
        assert!(run.out.contains("lost      7 samples"), "{run:?}");
    }
}
