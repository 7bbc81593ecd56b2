//! `pagemill doctor`: what this machine and user can do, what it is good for, and how to mend what
//! is missing. Also: whether preloading can work in a given program.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use pagemill_control::capability::{self, Row, Status};
use pagemill_launch::exit::Exit;
use pagemill_launch::program::{self, NoProgram, Verdict};

const EXAMPLES: &str = "\
Examples:
  pagemill doctor                     what works here, and the command that mends what does not
  pagemill doctor -- redis-server     also: can the heap be preloaded into this program?
  pagemill doctor --json | jq '.rows[] | select(.status != \"ok\")'
";

const AFTER: &str = "\
Exit status: 0 when everything is ok or degraded, 3 when something is missing, or the program named \
cannot use the preload library.";

/// What to look at.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    #[command(flatten)]
    printed: crate::values::Printed,

    /// Say whether the heap can be preloaded into this program
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    program: Option<OsString>,

    /// The same; what follows the program's name is ignored
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The whole answer, as `--json` prints it.
#[derive(Serialize)]
struct Answer {
    /// Grows when a field changes its meaning, which none has.
    kernel: String,
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<ProgramRow>,
}

/// Whether preloading can work in the program asked about.
#[derive(Serialize)]
struct ProgramRow {
    name: String,
    /// `ok`, or `degraded` when nobody can know, or `missing`.
    status: Status,
    /// The program's file and the interpreters through which it runs.
    chain: Vec<PathBuf>,
    /// A stable word for why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// Tries everything and prints what came of it.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let name = arguments.program.as_ref().or(arguments.command.first());
    let answer = Answer {
        kernel: linux.release().unwrap_or_else(|_| "unknown".to_owned()),
        rows: capability::all(&linux),
        program: name.map(|name| program_row(name)),
    };
    if arguments.printed.json {
        crate::answer::print("doctor", serde_json::to_value(&answer)?)?;
    } else {
        print(&answer);
    }
    let missing = answer.rows.iter().any(|row| row.status == Status::Missing)
        || answer.program.is_some_and(|program| program.status == Status::Missing);
    Ok(if missing { Exit::Unsupported } else { Exit::Ok })
}

fn program_row(name: &OsStr) -> ProgramRow {
    let search = std::env::var_os("PATH");
    let mut row = ProgramRow {
        name: name.to_string_lossy().into_owned(),
        status: Status::Missing,
        chain: Vec::new(),
        kind: None,
        finding: String::new(),
        fix: None,
    };
    let path = match program::find(name, search.as_deref()) {
        Ok(path) => path,
        Err(NoProgram::Missing) => {
            (row.kind, row.finding) = (Some("not-found"), "not found".to_owned());
            row.fix = Some("name a file, or a program in $PATH".to_owned());
            return row;
        }
        Err(NoProgram::NotExecutable(path)) => {
            let (why, fix) = program::not_executable(&path);
            (row.kind, row.finding) = (Some("not-executable"), why.to_owned());
            row.fix = Some(fix);
            return row;
        }
    };
    let inspection = program::inspect(&path, search.as_deref());
    row.chain = inspection.chain;
    match inspection.verdict {
        Verdict::Fits
            if row.chain.last().is_some_and(|last| row.chain.len() > 1 && is_shell(last)) =>
        {
            of_what_a_script_executes(&path, search.as_deref(), &mut row);
        }
        Verdict::Fits => {
            (row.status, row.finding) = (Status::Ok, "the heap can be preloaded".to_owned());
        }
        Verdict::Unknown(why) => {
            (row.status, row.kind, row.finding) = (Status::Degraded, Some("unreadable"), why);
            row.fix = Some("run doctor as a user who may read the file".to_owned());
        }
        Verdict::Refused(refusal) => {
            (row.kind, row.finding, row.fix) =
                (Some(refusal.kind), refusal.reason, Some(refusal.way));
        }
    }
    row
}

fn is_shell(path: &Path) -> bool {
    const SHELLS: [&str; 7] = ["sh", "bash", "dash", "ksh", "mksh", "zsh", "busybox"];
    path.file_name().is_some_and(|name| SHELLS.iter().any(|shell| name == *shell))
}

/// Wrappers of programs are shell scripts that execute them at last.
fn of_what_a_script_executes(script: &Path, search: Option<&OsStr>, row: &mut ProgramRow) {
    row.status = Status::Degraded;
    row.kind = Some("script");
    let Some(program) = executed_by(script) else {
        row.finding =
            "the heap can be preloaded into the shell that runs it; what that starts is not known"
                .into();
        row.fix = Some("ask for the programs that it starts: pagemill doctor -- PROGRAM".into());
        return;
    };
    let inspection = program::inspect(&program, search);
    row.chain.extend(inspection.chain);
    let name = program.display();
    match inspection.verdict {
        Verdict::Fits => {
            row.finding = format!("the heap can be preloaded, also into {name}, which it executes");
            (row.status, row.kind) = (Status::Ok, None);
        }
        Verdict::Unknown(why) => row.finding = format!("it executes {name}: {why}"),
        Verdict::Refused(refusal) => {
            (row.status, row.kind) = (Status::Missing, Some(refusal.kind));
            row.finding = format!("it executes {name}: {}", refusal.reason);
            row.fix = Some(refusal.way);
        }
    }
}

/// The last program that a shell script executes (`exec`) by its whole path, if it says so in plain words.
fn executed_by(script: &Path) -> Option<PathBuf> {
    const MOST: u64 = 1 << 18;
    let mut bytes = Vec::new();
    std::fs::File::open(script).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "exec").skip(1);
        let word = words.find(|word| !word.starts_with('-'))?.trim_matches(['"', '\'']);
        let path = PathBuf::from(word);
        (path.is_absolute() && path.is_file()).then_some(path)
    };
    text.lines().filter(|line| !line.trim_start().starts_with('#')).filter_map(of_line).next_back()
}

fn print(answer: &Answer) {
    println!("kernel {}", answer.kernel);
    for row in &answer.rows {
        line(row.status, row.name, &row.finding);
        if let Some(fix) = &row.fix {
            detail("for", row.used_for);
            detail("since", &format!("kernel {}", row.since));
            detail("fix", fix);
        }
    }
    if let Some(program) = &answer.program {
        line(program.status, &program.name, &program.finding);
        if let [file, interpreters @ ..] = program.chain.as_slice() {
            let names = interpreters.iter().map(|path| format!(" run by {}", path.display()));
            detail("file", &format!("{}{}", file.display(), names.collect::<String>()));
        }
        if let Some(fix) = &program.fix {
            detail("fix", fix);
        }
    }
}

fn line(status: Status, name: &str, finding: &str) {
    let status = match status {
        Status::Ok => "ok",
        Status::Degraded => "degraded",
        Status::Missing => "missing",
    };
    println!("{status:<9} {name:<26} {finding}");
}

fn detail(key: &str, text: &str) {
    println!("{:10}{key:>5}: {text}", "");
}
