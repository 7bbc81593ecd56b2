//! `pagemill doctor`: what this machine and user can do, what it is good for, and how to mend what
//! is missing. Also: whether preloading can work in a given program.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::answer::{self, Layout};
use pagemill_control::capability::{self, CapabilityRow, Status};
use pagemill_launch::exit::Exit;
use pagemill_launch::program::{self, NoProgram, Verdict, Wrapped};

/// What it answers.
const LAYOUT: Layout = Layout::new("doctor", 1, "rows");

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
struct DoctorAnswer {
    /// Grows when a field changes its meaning, which none has.
    kernel: String,
    rows: Vec<CapabilityRow>,
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
    let answer = DoctorAnswer {
        kernel: linux.release().unwrap_or_else(|_| "unknown".to_owned()),
        rows: capability::all(&linux),
        program: name.map(|name| program_row(name)),
    };
    if arguments.printed.json {
        answer::print(&LAYOUT, &answer)?;
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
    let Wrapped { chain, executes, verdict, is_open } =
        program::inspect_wrapped(&path, search.as_deref());
    row.chain = chain;
    let executes = executes.map(|program| program.display().to_string());
    let of_it =
        executes.as_ref().map_or(String::new(), |program| format!("it executes {program}: "));
    (row.status, row.kind, row.finding, row.fix) = match verdict {
        Verdict::Fits if is_open => (
            Status::Degraded,
            Some("script"),
            format!(
                "{of_it}the heap can be preloaded into the shell that runs it; what that starts is not known"
            ),
            Some("ask for the programs that it starts: pagemill doctor -- PROGRAM".to_owned()),
        ),
        Verdict::Fits => {
            let also = executes.map(|program| format!(", also into {program}, which it executes"));
            let finding = format!("the heap can be preloaded{}", also.unwrap_or_default());
            (Status::Ok, None, finding, None)
        }
        Verdict::Unknown(why) => (
            Status::Degraded,
            Some("unreadable"),
            format!("{of_it}{why}"),
            Some("run doctor as a user who may read the file".to_owned()),
        ),
        Verdict::Refused(refusal) => (
            Status::Missing,
            Some(refusal.kind.word()),
            format!("{of_it}{}", refusal.reason),
            Some(refusal.way),
        ),
    };
    row
}

fn print(answer: &DoctorAnswer) {
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
