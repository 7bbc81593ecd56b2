//! `record --overhead -- CMD`: what recording costs this command, by runs as it is and recorded, in turn.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use pagemill_analysis::statistics;
use pagemill_kernel::process::signal::{ENDS, Signals};
use pagemill_kernel::process::{UsageScope, resources};
use pagemill_model::{Pid, whole};

use super::arguments::Arguments;
use pagemill_launch::exit::Exit;
use pagemill_launch::prepare::{self, Prepared};
use pagemill_launch::supervise::{self, Companion};

/// Time by the clock and of processors, s.
type Times = [f64; 2];

/// Runs the command in turn as it is and recorded; the last recorded run is the one that is kept.
pub fn measure(arguments: &Arguments, runs: u32) -> Result<Exit> {
    let room = tempfile::tempdir().context("cannot make a directory for the recordings")?;
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let all = without(&words, &["--overhead"], &[]);
    let aside = without(&all, &["-f", "--force"], &["-o", "-fo", "--output"]);
    // Options of all verbs may stand in front of the verb.
    let verb = aside.iter().position(|word| word == "record").context("the verb has a name")? + 1;
    let output = room.path().join("recording");
    let errors = room.path().join("errors");
    let myself = std::env::current_exe().context("cannot find out where this program is")?;
    let mut times: [[Vec<f64>; 2]; 2] = Default::default();
    let mut last = Exit::Ok;
    let signals = supervise::hold_signals()?;
    for run in 0..runs {
        let is_last = run + 1 == runs;
        let plain = match prepare::plain(&arguments.command)? {
            Prepared::Ready(command, _) => *command,
            Prepared::Refused(exit) => return Ok(exit),
        };
        let mut recorded = Command::new(&myself);
        if is_last {
            recorded.args(&all);
        } else {
            recorded.args(&aside[..verb]).arg("-f").arg("-o").arg(&output).args(&aside[verb..]);
        }
        for (arm, mut command) in [plain, recorded].into_iter().enumerate() {
            if !(is_last && arm == 1) {
                command.stdout(Stdio::null());
                if arm == 1 {
                    command.stderr(File::create(&errors).context("cannot make a file")?);
                }
            }
            command.stdin(Stdio::null());
            let ran = timed(command, &signals)?;
            last = ran.exit;
            if ran.asked {
                notice!("interrupted, so what recording costs is not told");
                return Ok(last);
            }
            if arm == 1 && !is_last {
                // What made no recording is no run of one.
                if !output.join("meta.json").exists() {
                    match last_notice(&errors) {
                        Some(why) => bail!("no recording was made: {why}"),
                        None => bail!(
                            "no recording was made in {} (TMPDIR names another place; or run it without --overhead to \
                             see why)",
                            room.path().display()
                        ),
                    }
                }
                std::fs::remove_dir_all(&output).context("cannot remove a recording")?;
            }
            times[arm].iter_mut().zip(ran.took).for_each(|(all, one)| all.push(one));
        }
    }
    let median = |arm: usize, what: usize| statistics::median(&times[arm][what]).unwrap_or(0.0);
    let line = |what: usize| {
        let (plain, recorded) = (median(0, what), median(1, what));
        format!("{:.2} times ({plain:.3} to {recorded:.3} s)", recorded / plain.max(1e-9))
    };
    eprintln!(
        "overhead of recording: {} by the clock, {} of CPU time, the recorder's own included; medians of {runs} runs \
         each, in turn",
        line(0),
        line(1)
    );
    Ok(last)
}

/// What a recorder said last, if it could, the program's own words apart.
fn last_notice(errors: &Path) -> Option<String> {
    let said = whole::read(errors, whole::TEXT).ok()?;
    let said = String::from_utf8_lossy(&said);
    Some(said.lines().rev().find_map(|line| line.strip_prefix("pagemill: "))?.to_owned())
}

/// A run of the command.
struct Run {
    exit: Exit,
    took: Times,
    /// Somebody asked it to end, and us.
    asked: bool,
}

/// Sees whether a run is asked to end.
struct EndRequest<'a>(&'a mut bool);

impl Companion for EndRequest<'_> {
    const WHAT: &'static str = "the command";

    fn watch(&mut self, _: Pid) {}

    fn tick(&mut self) -> Result<Duration> {
        Ok(Duration::from_secs(1))
    }

    fn passed_on(&mut self, signal: i32) {
        *self.0 |= ENDS.contains(&signal);
    }

    fn suspend(&mut self) -> Result<()> {
        Ok(())
    }

    fn stop(self) -> Result<()> {
        Ok(())
    }
}

fn timed(command: Command, signals: &Signals) -> Result<Run> {
    let cpu =
        || resources(UsageScope::EndedChildren).user + resources(UsageScope::EndedChildren).system;
    let (began, before, mut asked) = (Instant::now(), cpu(), false);
    let path = std::path::PathBuf::from(command.get_program());
    let exit = supervise::supervise(command, &path, EndRequest(&mut asked), signals)?;
    let took = [began.elapsed(), cpu().saturating_sub(before)];
    Ok(Run { exit, took: took.map(|time: Duration| time.as_secs_f64()), asked })
}

/// The words in front of `--` without these flags, and without these options and their values; then the rest.
fn without(words: &[OsString], flags: &[&str], options: &[&str]) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut left = Vec::new();
    let mut own = words[..end].iter();
    while let Some(word) = own.next() {
        let text = word.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        if flags.contains(&name) {
            continue;
        }
        if options.contains(&name) {
            if !text.contains('=') {
                own.next();
            }
            continue;
        }
        // A value right behind its letter.
        if options.iter().any(|option| !option.starts_with("--") && text.starts_with(option)) {
            continue;
        }
        left.push(word.clone());
    }
    left.extend(words[end..].iter().map(|word| OsStr::to_os_string(word)));
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_taken_out_in_front_of_the_command_only() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let all = words(
            "record --overhead=3 -o a --with faults -ob -fo f --output=c --output d -- x --overhead -o e",
        );
        let rest = without(&all, &["--overhead"], &["-o", "-fo", "--output"]);
        assert_eq!(rest, words("record --with faults -- x --overhead -o e"));
    }
}
