//! Real programs under `record --with accesses`: the same standard output, the same exit status, and little more
//! memory.
//!
//! It takes minutes, so it runs by name: `cargo test -p pagemill --test transparency -- --ignored --nocapture`; with
//! `PAGEMILL_PROGRAMS=perl,node` only these. It prints a row for each program. What this machine does not have is
//! skipped.

#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{compiled, pagemill, ran, skip};

macro_rules! script {
    ($name:literal) => {
        include_str!(concat!("programs/", $name))
    };
}

/// Name, what it needs, and what bash is to run.
const PROGRAMS: [(&str, &str, &str); 13] = [
    ("pipelines", "awk", script!("pipelines.sh")),
    ("perl", "perl", script!("perl.sh")),
    ("numpy", "python3", script!("numpy.sh")),
    ("python", "python3", concat!(script!("python.sh"), script!("python_json.sh"))),
    ("node", "node", script!("node.sh")),
    ("go", "go", script!("go.sh")),
    ("rustc", "cargo", script!("cargo.sh")),
    ("gcc", "gcc", script!("gcc.sh")),
    ("sqlite3", "sqlite3", script!("sqlite3.sh")),
    ("sqlite3-script", "sqlite3", script!("sqlite3_script.sh")),
    ("xz", "xz", script!("xz.sh")),
    ("redis", "redis-server", script!("redis.sh")),
    ("git", "git", script!("git.sh")),
];

/// Runs a command, and says at the end, in a file: exit status, KiB of the largest process, and ms of CPU time.
const MEASURE: &str = r#"
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    pid_t child = fork();
    if (!child) { execvp(words[2], words + 2); _exit(127); }
    int status;
    struct rusage used;
    while (waitpid(child, &status, 0) < 0) {}
    getrusage(RUSAGE_CHILDREN, &used);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    FILE *file = fopen(words[1], "w");
    fprintf(file, "%d %ld %ld\n", code, used.ru_maxrss,
            (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000
                + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000);
    return fclose(file) ? 1 : code;
}
"#;

/// Exit status, KiB, ms, and standard output.
type Seen = (i64, i64, i64, String);

fn seen(mut command: Command, room: &Path, said: &Path) -> Seen {
    let run = ran(command.current_dir(room));
    let text = std::fs::read_to_string(said).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    let numbers: Vec<i64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert_eq!(run.code().map(i64::from), Some(numbers[0]), "{run:?}");
    (numbers[0], numbers[1], numbers[2], run.out)
}

#[test]
#[ignore = "takes minutes: see the head of the file"]
fn real_programs_do_the_same_and_take_little_more_memory() {
    let only = std::env::var("PAGEMILL_PROGRAMS").unwrap_or_default();
    let room = tempfile::tempdir().unwrap();
    let Some(measure) = compiled(&room, "measure", MEASURE, &["-O1"]) else { return };
    println!(
        "| program | exit status | bytes of output | CPU s, natively and recorded | resident MiB, natively and \
         recorded |"
    );
    println!("|---|---|---|---|---|");
    let mut different = Vec::new();
    for (name, needs, script) in PROGRAMS {
        if !only.is_empty() && !only.split(',').any(|word| word == name) {
            continue;
        }
        let there =
            Command::new("sh").args(["-c", &format!("command -v {needs}")]).output().unwrap();
        if !there.status.success() {
            let _: Option<()> = skip(&format!("{name}: there is no {needs}"));
            continue;
        }
        let [native, traced] = ["native", "traced"].map(|how| {
            // At one place, for some programs print or keep where they are.
            let place = room.path().join("place");
            let _ = std::fs::remove_dir_all(&place);
            std::fs::create_dir(&place).unwrap();
            let (said, recording) = (room.path().join("said"), room.path().join("recording"));
            let _ = std::fs::remove_file(&said);
            let mut command = match how {
                "native" => Command::new(&measure),
                _ => {
                    let mut command = pagemill();
                    command.args(["record", "--with", "accesses", "-f", "-o"]).arg(&recording);
                    command.arg("--").arg(&measure);
                    command
                }
            };
            command.arg(&said).args(["bash", "-c", script]);
            command.env("BINARY", room.path().join("binary-of-go"));
            seen(command, &place, &said)
        });
        println!(
            "| {name} | {} | {} | {:.2}, {:.2} | {:.1}, {:.1} |",
            native.0,
            native.3.len(),
            native.2 as f64 / 1e3,
            traced.2 as f64 / 1e3,
            native.1 as f64 / 1024.0,
            traced.1 as f64 / 1024.0
        );
        if (native.0, &native.3) != (traced.0, &traced.3) {
            different.push(format!("{name}: {} {}\n{} {}", native.0, native.3, traced.0, traced.3));
        }
        if traced.1 as f64 > native.1 as f64 * 1.15 + 65_536.0 {
            different.push(format!("{name}: {} KiB natively, {} KiB recorded", native.1, traced.1));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}
