//! GNU parallel: a cell at a time on each of some hosts, over ssh; `:` is this machine.
//!
//! The scripts are sent to each host and results come back by rsync, so hosts share no file system; where they do, both
//! find that there is nothing to copy. A cell whose host fails is tried again, on another where there is one.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pagemill_kernel::process::signal::Signals;
use pagemill_launch::files;
use pagemill_model::shell::quoted;
use pagemill_model::{Pid, whole};

use super::matrix::Matrix;
use pagemill_launch::exit::Interrupted;

/// How often a cell, or a host, is tried.
const TRIES: u32 = 3;

/// Between two tries of a host: it may be starting.
const PAUSE: Duration = Duration::from_secs(2);

/// Seconds for a host to answer.
const ANSWERS: u32 = 20;

/// What parallel notes of each command.
const LOG: &str = "parallel.log";

/// The cells that are left, as parallel reads them.
const LEFT: &str = "left.txt";

/// Its words, but for the hosts': one cell of `left.txt` each.
pub fn words(results: &str, hosts: &[String]) -> Vec<String> {
    let mut words = vec!["parallel".to_owned(), "--sshlogin".into(), hosts.join(",")];
    let mut say = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
    say(&["--jobs", "1", "--retries", &TRIES.to_string(), "--colsep", " ", "--line-buffer"]);
    say(&["--tagstring", "{2}", "--joblog", &format!("{results}/{LOG}")]);
    if hosts.iter().any(|host| host != ":") {
        for name in ["matrix.json", "cell.sh", "prolog.sh", "epilog.sh"] {
            say(&["--basefile", &format!("{results}/{name}")]);
        }
        say(&["--return", &format!("{results}/{{3}}")]);
    }
    let cell = format!("sh {} {{1}}", quoted(format!("{results}/cell.sh")));
    say(&[&cell, "::::", &format!("{results}/{LEFT}")]);
    words
}

/// The words as a line for a shell.
pub fn line(words: &[String]) -> String {
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Writes the list of cells that are left.
///
/// # Errors
/// Where it cannot be written.
pub fn write(results: &Path, matrix: &Matrix, left: &[usize]) -> Result<()> {
    let lines = left.iter().map(|number| {
        let name = &matrix.cells[number - 1];
        format!("{number} {name} {}\n", Matrix::result(Path::new(""), name).display())
    });
    files::write(&results.join(LEFT), lines.collect::<String>(), true)
}

/// A command that is not to be waited for without a bound by who ends this.
fn parallel(words: &[String], signals: &Signals) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    // Without it a host's SHELL runs the commands: none where that is unset, and not all shells read the same words.
    command.env("PARALLEL_SHELL", "/bin/sh");
    signals.restore_in(&mut command);
    command
}

/// Hosts that do not answer, with the reason.
pub type DownHosts = Vec<(String, String)>;

/// The hosts that answer, and those that do not, with the reason: three tries each.
///
/// # Errors
/// Without GNU parallel; [`Interrupted`] by a signal between two tries.
pub fn answering(
    executable: &Path,
    hosts: &[String],
    signals: &Signals,
) -> Result<(Vec<String>, DownHosts)> {
    let mut down = DownHosts::new();
    let mut asked: Vec<String> = hosts.to_vec();
    for at in 0..TRIES {
        if at > 0
            && let Some(received) = signals.wait(PAUSE)?
        {
            return Err(Interrupted(received.signal).into());
        }
        down.clear();
        for host in &asked {
            let command = format!("{} --version", quoted(executable));
            let mut words = ["parallel", "--nonall", "--sshlogin", host, "--timeout"]
                .map(str::to_owned)
                .to_vec();
            words.extend([ANSWERS.to_string(), command]);
            let output = match parallel(&words, signals).output() {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    bail!("there is no GNU parallel here (run: apt-get install parallel rsync)")
                }
                output => output.context("cannot run parallel")?,
            };
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let here = format!("pagemill {}", env!("CARGO_PKG_VERSION"));
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let said = said.lines().last().unwrap_or("it does not answer").to_owned();
                down.push((host.clone(), said));
            } else if said != here {
                let other = format!("it has {said:?} at {}, not {here:?}", executable.display());
                down.push((host.clone(), other));
            }
        }
        asked = down.iter().map(|(host, _)| host.clone()).collect();
        if down.is_empty() {
            break;
        }
    }
    let up = hosts.iter().filter(|host| !asked.contains(host)).cloned().collect();
    Ok((up, down))
}

/// Runs it to its end. A signal ends it, with the cells that are being run: it is what is returned.
///
/// # Errors
/// Where it cannot be started.
pub fn run(words: &[String], signals: &Signals) -> Result<Option<Interrupted>> {
    let mut child = parallel(words, signals).spawn().context("cannot start parallel")?;
    let mut ended = None;
    loop {
        if child.try_wait()?.is_some() {
            return Ok(ended);
        }
        if let Some(received) = signals.wait(Duration::from_millis(100))? {
            // At the first it starts no more, at the second it ends what runs.
            for _ in 0..2 {
                let _ = pagemill_kernel::process::signal::send(Pid(child.id()), 15);
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            ended = Some(Interrupted(received.signal));
        }
    }
}

/// The host that ran a cell last, and how that ended, by parallel's notes.
pub fn last(results: &Path, number: usize) -> Option<String> {
    last_in(&whole::text(&results.join(LOG)).ok()?, &number.to_string())
}

/// The same, by the text of the notes. The columns are Seq, Host, Starttime, JobRuntime, Send, Receive, Exitval, Signal
/// and Command, which ends with the cell's number.
pub fn last_in(log: &str, number: &str) -> Option<String> {
    let ends = format!(" {number}");
    let line = log.lines().rev().find(|line| line.ends_with(&ends))?;
    let fields: Vec<&str> = line.split('\t').collect();
    let (host, status, signal) = (fields.get(1)?, fields.get(6)?, fields.get(7)?);
    Some(match *signal {
        "0" => format!("on {host}, exit status {status}"),
        signal => format!("on {host}, signal {signal}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_travel_only_where_there_are_other_machines() {
        let here = line(&words("/r", &[":".into()]));
        assert_eq!(
            here,
            "parallel --sshlogin : --jobs 1 --retries 3 --colsep ' ' --line-buffer --tagstring {2} \
             --joblog /r/parallel.log 'sh /r/cell.sh {1}' :::: /r/left.txt"
        );
        let there = line(&words("/r", &["a".into(), "b".into()]));
        assert!(there.contains("--sshlogin a,b ") && there.contains("--return /r/{3}"), "{there}");
        assert!(there.contains("--basefile /r/matrix.json"), "{there}");
    }

    #[test]
    fn the_host_of_a_cell_is_read_from_the_notes() {
        let log = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n\
                   1\tn1\t1.0\t 2.0\t0\t0\t0\t0\tsh /r/cell.sh 1\n\
                   2\tn2\t1.0\t 2.0\t0\t0\t255\t0\tsh /r/cell.sh 11\n";
        assert_eq!(last_in(log, "11").unwrap(), "on n2, exit status 255");
        assert_eq!(last_in(log, "1").unwrap(), "on n1, exit status 0");
        assert_eq!(last_in(log, "2"), None);
    }
}
