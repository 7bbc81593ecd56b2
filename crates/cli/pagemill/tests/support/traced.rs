//! Programs under `record --with accesses`, and who is who there.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use pagemill_model::Pid;

use super::{pagemill, ran, skip};

/// The recording of a command, `before` of which comes before the recorder itself.
pub fn recorder(before: &[&str], recording: &Path, command: &[&str]) -> Command {
    let plain = pagemill();
    let mut recorder = match before {
        [] => pagemill(),
        [first, rest @ ..] => {
            let mut outer = Command::new(first);
            outer.args(rest).arg(plain.get_program());
            for (name, value) in plain.get_envs() {
                match value {
                    Some(value) => outer.env(name, value),
                    None => outer.env_remove(name),
                };
            }
            outer
        }
    };
    recorder.args(["record", "--with", "accesses", "--access-interval", "20ms", "-f", "-o"]);
    recorder.arg(recording).arg("--").args(command);
    recorder
}

/// Whether programs can be traced here at all; if not, it is said.
pub fn can_trace(room: &TempDir) -> bool {
    let run = ran(&mut recorder(&[], &room.path().join("try"), &["/bin/true"]));
    if run.code() != Some(0) {
        let _: Option<()> = skip(&run.err);
    }
    run.code() == Some(0)
}

pub fn children(process: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"));
    let read = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("children")).unwrap_or_default()
    };
    let text: Vec<String> = tasks.into_iter().flatten().flatten().map(read).collect();
    text.join(" ").split_whitespace().map(|word| word.parse().unwrap()).collect()
}

pub fn send(signal: &str, process: Pid) {
    let sent = Command::new("kill").args([signal, &process.to_string()]).status().unwrap();
    assert!(sent.success(), "{signal} {process}");
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
