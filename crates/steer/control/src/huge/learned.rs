//! What earlier runs of a command have taught a policy that measures itself, on this boot.
//!
//! A program that ends after half a second has ended before a trial fits into one percent of its time; one that runs a
//! hundred times has room for it. So the time that its runs have taken, what trials have cost and the costs of each
//! arm's last epochs are kept, a file a command in the directory `learned` beside the costs of huge pages (see
//! `costs`). The next run begins with what was best.
//!
//! | runs | begin with |
//! |---|---|
//! | the first, and those at each power of [`ANEW`] | what the policy begins with; nothing is known of arms |
//! | the others | 2 MiB at every first touch, if trials found that best and whole runs agree (`policy::huge::runs`) |
//!
//! So whatever was found is asked again when there have been so many times as many runs. A command is its program and
//! its arguments, but for those that are numbers: a port, a size. A file that is no such file counts as none.
//!
//! Always so: a file that cannot be written changes nothing but that nothing is learned.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagemill_kernel::Linux;
use pagemill_model::digest::Digest;
use pagemill_model::whole;
use pagemill_policy::huge::runs::RunCost;
use pagemill_policy::huge::trials::{ARMS, Trials};
use pagemill_policy::huge::{Action, runs};
use serde::{Deserialize, Serialize};

use crate::costs;

/// CPU time of runs from which on a trial may be worth that the library looks at a program from its beginning.
const ENOUGH: Duration = Duration::from_secs(2);
/// Runs that take less teach nothing.
const LEAST: Duration = Duration::from_millis(20);
/// The numbers of runs that begin as the first one: powers of this.
const ANEW: u64 = 8;
/// Commands that are remembered.
const COMMANDS: usize = 256;

/// Runs that are remembered.
const RUNS: usize = 16;

/// What is on file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    boot: String,
    policy: String,
    command: Vec<String>,
    runs: u64,
    trials: String,
    /// The arm that each of the last runs began with, its CPU time in ns and its peak in bytes, the last one at the
    /// end.
    last: Vec<(String, u64, u64)>,
}

impl Kept {
    /// The last runs; those that began with what is no arm are left out.
    fn costs(&self) -> Vec<RunCost> {
        let cost = |(name, cpu, peak): &(String, u64, u64)| {
            let first = ARMS.into_iter().find(|arm| arm.name() == name)?;
            Some(RunCost { first, cpu: *cpu, peak: *peak })
        };
        self.last.iter().filter_map(cost).collect()
    }
}

/// What is known of a command, and what this run adds.
#[derive(Debug)]
pub struct Learned {
    paths: Vec<PathBuf>,
    kept: Kept,
    costs: Vec<RunCost>,
    before: Option<Trials>,
    now: Option<Trials>,
}

impl Learned {
    /// What earlier runs of a command have taught this policy; nothing if it is to be forgotten, or the kernel does not
    /// name this boot.
    pub fn of(linux: &Linux, policy: &str, command: &[String], forget: bool) -> Self {
        let boot = linux.boot().unwrap_or_default();
        let is_number = |word: &&String| {
            word.bytes().any(|byte| byte.is_ascii_digit())
                && word.bytes().all(|byte| !byte.is_ascii_alphabetic())
        };
        let words =
            command.iter().take(1).chain(command.iter().skip(1).filter(|word| !is_number(word)));
        let own = Kept {
            boot,
            policy: policy.to_owned(),
            command: words.cloned().collect(),
            ..Kept::default()
        };
        let name =
            format!("{:016x}.json", Digest::of(format!("{policy} {:?}", own.command).as_bytes()));
        let paths = costs::files_called(linux, &format!("learned/{name}"));
        let known = paths.iter().filter(|_| !forget && !own.boot.is_empty()).find_map(|path| {
            let kept: Kept = serde_json::from_slice(&whole::read(path, whole::TEXT).ok()?).ok()?;
            let same =
                (&kept.boot, &kept.policy, &kept.command) == (&own.boot, &own.policy, &own.command);
            let trials = kept.trials.parse().ok().filter(|_| same)?;
            Some((kept, trials))
        });
        let (kept, before) = known.map_or((own, None), |(kept, trials)| (kept, Some(trials)));
        Self { paths, costs: kept.costs(), kept, before, now: None }
    }

    /// What is known at the beginning: the arms' costs too, unless it is time to ask anew.
    pub fn beginning(&self) -> Option<Trials> {
        let anew = std::iter::successors(Some(1), |power: &u64| power.checked_mul(ANEW))
            .any(|power| power == self.kept.runs + 1);
        self.before.map(|trials| if anew { trials.forgetting_arms() } else { trials })
    }

    /// Whether the runs so far have taken so much that a trial may be due.
    pub fn has_room(&self) -> bool {
        self.before.is_some_and(|trials| u128::from(trials.spent) >= ENOUGH.as_nanos())
    }

    /// What the last runs cost, the last one at the end.
    pub fn runs(&self) -> &[RunCost] {
        &self.costs
    }

    /// How many runs there were before.
    pub fn count(&self) -> u64 {
        self.kept.runs
    }

    /// Takes in what a process has taught; that which has taken most time counts.
    pub fn taught(&mut self, trials: Trials) {
        if self.now.is_none_or(|known| known.spent < trials.spent) {
            self.now = Some(trials);
        }
    }

    /// Keeps it, after a run with these figures: `beginning` if nothing was tried; `usual`: what the policy begins with
    /// where it knows nothing.
    pub fn keep(&self, beginning: Trials, usual: Action, run: RunCost) {
        if run.cpu < LEAST.as_nanos() as u64 || self.kept.boot.is_empty() {
            return;
        }
        let before = self.before.unwrap_or_default();
        let mut trials = self.now.unwrap_or(beginning);
        // Time that nothing was tried in counts, too.
        trials.spent = before.spent.saturating_add(run.cpu);
        trials.charged = trials.charged.max(before.charged);
        if run.first != usual {
            trials.charged = trials.charged.saturating_add(runs::beyond(&self.costs, &run, usual));
        }
        let mut kept = Kept { trials: trials.to_string(), ..self.kept.clone() };
        kept.runs = kept.runs.saturating_add(1);
        kept.last.push((run.first.name().to_owned(), run.cpu, run.peak));
        let more = kept.last.len().saturating_sub(RUNS);
        kept.last.drain(..more);
        let Ok(text) = serde_json::to_vec_pretty(&kept) else { return };
        let written = self.paths.iter().find(|path| costs::keep(path, &text).is_ok());
        if let Some(path) = written.filter(|_| kept.runs == 1) {
            make_room(path);
        }
    }
}

/// Removes the oldest beside a new file, where there are more than [`COMMANDS`].
fn make_room(path: &Path) {
    let Some(Ok(entries)) = path.parent().map(fs::read_dir) else { return };
    let mut files: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    files.sort();
    let more = files.len().saturating_sub(COMMANDS);
    for (_, path) in &files[..more] {
        // Another run may have removed it.
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const BOOT: &str = "proc/sys/kernel/random/boot_id";

    fn machine() -> (tempfile::TempDir, Linux) {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(BOOT);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "one\n").unwrap();
        let linux = Linux::at(root.path());
        (root, linux)
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    /// A run of so much CPU time.
    fn took(cpu: Duration) -> RunCost {
        RunCost { first: Action::Fault64k, cpu: cpu.as_nanos() as u64, peak: 1 << 30 }
    }

    fn keep(learned: &Learned, beginning: Trials, cpu: Duration) {
        learned.keep(beginning, Action::Fault64k, took(cpu));
    }

    /// What a run of this time has taught: a 2 MiB region costs as much.
    fn taught(cost: u64, spent: u64) -> Trials {
        let mut trials = Trials::of(|_| true);
        trials.tally_mut(Action::Fault2m).unwrap().add(cost);
        trials.spent = spent;
        trials
    }

    #[test]
    fn the_next_run_of_a_command_knows_what_the_last_has_taught() {
        let (root, linux) = machine();
        let known = |line: &str, forget| Learned::of(&linux, "auto", &words(line), forget);
        let mut first = known("server --port 7001 --small", false);
        assert_eq!((first.beginning(), first.count(), first.has_room()), (None, 0, false));
        first.taught(taught(5, 10));
        first.taught(taught(7, 30));
        first.taught(taught(6, 20));
        keep(&first, Trials::default(), Duration::from_secs(3));
        let next = known("server --port 7002 --small", false);
        let trials = next.beginning().unwrap();
        assert_eq!(
            trials.tally(Action::Fault2m).median(),
            Some(7),
            "of the process that took most"
        );
        assert_eq!((trials.spent, next.count(), next.has_room()), (3_000_000_000, 1, true));
        // Nothing was tried: its time counts all the same.
        keep(&next, trials, Duration::from_secs(2));
        assert_eq!(next.runs(), [took(Duration::from_secs(3))]);
        let third = known("server --port 1 --small", false);
        assert_eq!((third.beginning().unwrap().spent, third.count()), (5_000_000_000, 2));
        for other in ["server --port 7001 --large", "client --port 7001 --small"] {
            assert!(known(other, false).beginning().is_none(), "{other}");
        }
        assert!(
            Learned::of(&linux, "auto-tail", &words("server --port 1 --small"), false)
                .beginning()
                .is_none()
        );
        assert!(known("server --port 1 --small", true).beginning().is_none());
        fs::write(root.path().join(BOOT), "two\n").unwrap();
        assert!(known("server --port 1 --small", false).beginning().is_none(), "another boot");
    }

    #[test]
    fn what_a_run_begins_with_is_asked_again_when_there_were_as_many_more() {
        let (_root, linux) = machine();
        let (mut anew, mut runs) = (Vec::new(), 0);
        for run in 1..=70 {
            let mut learned = Learned::of(&linux, "auto", &words("server"), false);
            let beginning = learned.beginning();
            if beginning.is_none_or(|trials| trials.tally(Action::Fault2m).epochs() == 0) {
                anew.push(run);
            }
            learned.taught(taught(7, 30));
            keep(&learned, Trials::default(), LEAST);
            runs += 1;
            assert_eq!(learned.runs().len(), RUNS.min(runs - 1));
        }
        assert_eq!(anew, [1, 8, 64]);
    }

    #[test]
    fn short_runs_and_files_that_are_none_teach_nothing() {
        let (root, linux) = machine();
        let known = || Learned::of(&linux, "auto", &words("true"), false);
        keep(&known(), taught(7, 1), LEAST / 2);
        assert!(known().beginning().is_none());
        keep(&known(), taught(7, 1), LEAST);
        assert!(known().beginning().is_some());
        let directory = root.path().join("run/pagemill/learned");
        let file = fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read_to_string(&file).unwrap();
        for text in ["", "{}", "\u{0}", &whole[..whole.len() / 2], &whole.replace("spent", "spend")]
        {
            fs::write(&file, text).unwrap();
            assert!(known().beginning().is_none(), "{text}");
        }
        keep(&known(), taught(7, 1), LEAST);
        assert!(known().beginning().is_some(), "it is replaced");
    }

    #[test]
    fn so_many_commands_are_remembered() {
        let (root, linux) = machine();
        for number in 0..COMMANDS + 9 {
            let command = words(&format!("program case{number}"));
            keep(&Learned::of(&linux, "auto", &command, false), Trials::default(), LEAST);
        }
        let files = fs::read_dir(root.path().join("run/pagemill/learned")).unwrap().count();
        assert_eq!(files, COMMANDS);
    }
}
