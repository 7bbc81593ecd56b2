//! `--redact`: what is passed on does not say whose it is.

#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{Ran, compiled, pagemill, pagemill_with, ran};

const SOURCE: &str = "#include <string.h>\n#include <stdlib.h>\n#include <stdio.h>\n#include <unistd.h>\n\
    char topsecret_global[1 << 20];\n\
    int main(int count, char **words) { char *p = malloc(8 << 20); memset(p, count, 8 << 20);\n\
    for (int i = 0; i < 100; i++) memset(topsecret_global, p[77] + i, 1 << 20);\n\
    usleep(400000);\n\
    if (words[1][0] == 'r') sleep(3);\n\
    if (words[1][0] == 'x') getchar(); return 0; }\n";

/// In every name of the program's: of its directory, file, variable, argument, and machine.
fn secret(bytes: &[u8]) -> bool {
    bytes.windows(9).any(|part| part.eq_ignore_ascii_case(b"topsecret"))
}

/// A program whose names are nobody's business, and the verbs that were asked about it.
struct Fixture {
    room: tempfile::TempDir,
    program: PathBuf,
    asked: RefCell<BTreeSet<String>>,
    /// Answers that named something where they were not to be redacted.
    named: RefCell<usize>,
}

impl Fixture {
    fn new() -> Option<Self> {
        let room = tempfile::tempdir().unwrap();
        let built = compiled(&room, "topsecret-program", SOURCE, &["-g"])?;
        // A blank ends what looks like a path in a text.
        let home = room.path().join("topsecret home, of topsecret");
        fs::create_dir(&home).unwrap();
        let program = home.join("topsecret-program");
        fs::rename(built, &program).unwrap();
        Some(Self { room, program, asked: RefCell::default(), named: RefCell::default() })
    }

    fn path(&self, name: &str) -> String {
        self.room.path().join(name).to_str().unwrap().to_owned()
    }

    /// `pagemill` with these words, on a machine of that name where there can be one.
    fn run(&self, words: &[&str]) -> Ran {
        let plain = pagemill();
        let mut command = Command::new("sh");
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let script = "exec 3>&1; if unshare --uts true 2>/dev/null; then\n\
            exec unshare --uts sh -c 'hostname topsecrethost; exec \"$@\"' sh \"$@\"; else exec \"$@\"; fi";
        command.args(["-c", script, "sh"]).arg(plain.get_program()).args(words);
        ran(command.current_dir(self.room.path()))
    }

    /// An answer in every form that the verb has: with these exit codes, and without names.
    fn passes_on(&self, verb: &str, rest: &[&str], codes: &[i32]) {
        self.asked.borrow_mut().insert(verb.to_owned());
        let file = self.path("page.html");
        let help = pagemill_with(&[verb, "--help"]).out;
        let forms: [&[&str]; 5] = [
            &[],
            &["--redact"],
            &["--redact", "--json"],
            &["--redact", "--csv"],
            &["--redact", "-f", "--html", &file],
        ];
        for form in forms {
            let mut options = form.iter().filter(|word| word.starts_with("--"));
            let has_page = verb == "report" || rest.contains(&"--within");
            if !options.all(|option| help.contains(option)) || form.contains(&"--html") && !has_page
            {
                continue;
            }
            let run = self.run(&[&[verb], form, rest].concat());
            let what = format!("{verb} {form:?} {rest:?}: {run:?}");
            assert!(run.code().is_some_and(|code| codes.contains(&code)), "{what}");
            let wrote = fs::read(&file).unwrap_or_default();
            let _ = fs::remove_file(&file);
            assert_eq!(wrote.is_empty(), !form.contains(&"--html"), "{what}");
            if form.is_empty() {
                *self.named.borrow_mut() += usize::from(secret(run.out.as_bytes()));
                continue;
            }
            // Of a table without rows that is said.
            let said = run.out.len() + wrote.len() > 40 || form.contains(&"--csv");
            assert!(said, "{what}");
            assert!(!secret((run.out + &run.err).as_bytes()), "{what}");
            let page = String::from_utf8(wrote).unwrap();
            assert!(!secret(page.as_bytes()), "{what}: {page}");
            // The ends of its tags were taken for paths.
            let whole = page.contains("<meta charset=\"utf-8\"/>\n<meta ");
            assert!(whole || page.is_empty(), "{what}: {page}");
        }
    }

    /// A file in this format, without names.
    fn exports(&self, recording: &str, format: &str) {
        self.asked.borrow_mut().insert("export".into());
        let file = self.path("exported");
        for redact in [&[][..], &["--redact"]] {
            let words = ["export", recording, "-f", "--format", format, "-o", &file];
            let run = self.run(&[&words, redact].concat());
            assert_eq!(run.code(), Some(0), "{format}: {run:?}");
            let bytes = fs::read(&file).unwrap();
            assert!(!bytes.is_empty(), "{format}");
            if redact.is_empty() {
                *self.named.borrow_mut() += usize::from(secret(&bytes));
            } else {
                assert!(!secret(&bytes), "{format}: {}", String::from_utf8_lossy(&bytes));
            }
        }
    }

    /// A recording of the program, which stays long enough to be looked at on a busy machine. Its own name is the
    /// user's to choose.
    fn recorded(&self, with: &str, name: &str) -> Option<String> {
        let path = self.path(name);
        let often = match with {
            "accesses" => "--access-interval 2ms",
            "heap" => "--interval 20ms",
            _ => "--threshold 0ns",
        };
        let words = ["record", "--with", with, "-o", &path];
        let words = words.into_iter().chain(often.split(' '));
        let program = self.program.to_str().unwrap();
        let words: Vec<&str> = words.chain(["--", program, "r-topsecret-word"]).collect();
        let run = self.run(&words);
        if run.code() != Some(0) {
            println!("skipped: {}", run.err);
            return None;
        }
        Some(path)
    }
}

fn of_recordings(room: &Fixture) {
    let mut shown = 0;
    for (with, formats) in [
        ("faults,hugepages", &["pftrace", "perfetto"][..]),
        ("heap", &["perfetto"]),
        (
            "accesses",
            &[
                "perfetto",
                "moca",
                "tabarnac",
                "mitos",
                "parquet",
                "firefox",
                "folded",
                "speedscope",
            ],
        ),
    ] {
        let Some(rec) = room.recorded(with, &with[..4]) else { continue };
        shown += 1;
        room.passes_on("report", &[&rec], &[0]);
        room.passes_on("compare", &[&rec, &rec], &[0]);
        room.passes_on("live", &[&rec, "--once"], &[0]);
        if with.starts_with("faults") {
            room.passes_on("plan", &[&rec], &[0]);
            room.passes_on("plan", &[&rec, "--explain"], &[0]);
        }
        if with == "faults,hugepages" {
            room.passes_on("hugepages", &[&rec], &[0]);
        } else {
            room.passes_on("advise", &[&rec], &[0]);
        }
        formats.iter().for_each(|format| room.exports(&rec, format));
    }
    assert!(shown > 0, "nothing can be recorded here");
}

fn of_a_process(room: &Fixture) {
    let mut sleeping = Command::new(&room.program);
    // It waits in its last page until its standard input ends.
    sleeping.arg("x-topsecret").stdin(Stdio::piped()).env("LD_PRELOAD", support::library());
    let mut child = sleeping.spawn().unwrap();
    let pid = child.id().to_string();
    room.passes_on("hugepages", &["-p", &pid], &[0]);
    room.passes_on("heap", &[&pid], &[0]);
    room.passes_on("live", &["-p", &pid, "--once", "--interval", "100ms"], &[0]);
    room.passes_on("advise", &["-p", &pid, "--for", "1s"], &[0]);
    drop(child.stdin.take());
    child.wait().unwrap();
}

fn of_commands(room: &Fixture) {
    let program = room.program.to_str().unwrap();
    let command = ["--", program, "topsecret-word"];
    // 1: something helps; 2: time was short.
    room.passes_on("advise", &[&["--within", "3s"], &command[..]].concat(), &[0, 1, 2]);
    room.passes_on("advise", &[&["--counters", "--runs", "3"], &command[..]].concat(), &[0, 1, 2]);
    #[cfg(target_arch = "x86_64")]
    {
        room.passes_on(
            "advise",
            &[&["--places", "--runs", "7"], &command[..]].concat(),
            &[0, 1, 2, 3],
        );
        let both = room.path("both");
        let run = room.run(&[&["validate", "-o", &both], &command[..]].concat());
        match run.code() {
            Some(0 | 1) => room.passes_on("validate", &[&both], &[0, 1]),
            _ => println!("skipped: {}", run.err),
        }
    }
}

/// What says whose a recording, a process or a command is: nowhere in what is made to be passed on.
#[test]
fn what_is_redacted_names_no_command_no_process_no_file_and_no_machine() {
    let Some(room) = Fixture::new() else { return };
    of_recordings(&room);
    of_a_process(&room);
    of_commands(&room);
    assert!(*room.named.borrow() > 10, "without --redact it is there: {}", room.named.borrow());
    let mut asked = room.asked.into_inner();
    // Where it cannot be recorded it cannot be asked.
    asked.insert("validate".into());
    assert_eq!(asked, redacting(), "every verb that has --redact");
}

/// The verbs that have `--redact`, by the command line's own description.
fn redacting() -> BTreeSet<String> {
    let room = tempfile::tempdir().unwrap();
    let made = pagemill_with(&["generate", "man", "-o", room.path().to_str().unwrap()]);
    assert_eq!(made.code(), Some(0), "{made:?}");
    let has_it = |page: &Path| fs::read_to_string(page).unwrap().contains("\\-\\-redact\\fR");
    let pages = fs::read_dir(room.path()).unwrap().flatten().map(|page| page.path());
    let verb = |page: PathBuf| {
        let name = page.file_stem().unwrap().to_str().unwrap();
        Some(name.strip_prefix("pagemill-")?.replace('-', " "))
    };
    pages.filter(|page| has_it(page)).filter_map(verb).collect()
}
