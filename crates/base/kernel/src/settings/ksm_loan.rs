//! Borrowing `ksmd` ([`crate::settings::loan`]): its settings go together, and one that runs already is left alone.
//!
//! The journal is `DIRECTORY/ksm.journal`; its lines are `found run 0`, `found pages_to_scan 100`, ….

use std::path::Path;

use pagemill_model::Pid;

use crate::memory::ksm::{Run, Settings, parse_run};
use crate::{Linux, Result, settings::loan};

const NAME: &str = "ksm";

impl loan::Settings for Settings {
    const EXTENSION: &'static str = "journal";

    /// As many lines of `key value`; [`Settings::parse`] reads them.
    fn to_text(&self) -> String {
        let mut text = format!(
            "run {}\npages_to_scan {}\nsleep_millisecs {}\n",
            self.run.number(),
            self.pages_to_scan,
            self.sleep_millisecs
        );
        if let Some(mode) = &self.advisor_mode {
            text += &format!("advisor_mode {mode}\n");
        }
        if let Some(smart) = self.smart_scan {
            text += &format!("smart_scan {smart}\n");
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        let value =
            |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        Some(Self {
            run: parse_run(value("run")?)?,
            pages_to_scan: value("pages_to_scan")?.parse().ok()?,
            sleep_millisecs: value("sleep_millisecs")?.parse().ok()?,
            advisor_mode: value("advisor_mode").map(str::to_owned),
            smart_scan: value("smart_scan").and_then(|value| value.parse().ok()),
        })
    }

    fn restore(&self, linux: &Linux) -> Result<()> {
        linux.set_ksm_settings(self)
    }
}

/// `ksmd` on loan. Dropping it puts the settings back.
pub type Loan = loan::Loan<Settings>;

/// What [`Loan::take`] came to.
#[derive(Debug)]
pub enum TakeOutcome {
    /// `ksmd` runs already, by somebody else's will: its settings are not ours to change.
    Running(Settings),
    /// It is on loan until the value is dropped.
    Borrowed(Loan),
}

impl loan::Loan<Settings> {
    /// Borrows `ksmd`; the journal lives in `directory`, which should not survive a reboot
    /// ([`loan::directory`]), as the settings do not.
    ///
    /// # Errors
    /// The kernel has no KSM, or the journal or a setting cannot be written.
    pub fn take(linux: &Linux, directory: &Path) -> Result<TakeOutcome> {
        // A borrower starts `ksmd` only while a journal exists, so this needs no lock: and hence no
        // right to take one.
        if loan::Journal::<Settings>::load(directory, NAME)?.is_none() {
            let found = linux.ksm_settings()?;
            if found.run == Run::Merge {
                return Ok(TakeOutcome::Running(found));
            }
        }
        let find = || linux.ksm_settings();
        let runs = |found: &Settings| found.run == Run::Merge;
        Ok(match Self::take_unless(linux, directory, NAME, find, runs)? {
            Ok(loan) => TakeOutcome::Borrowed(loan),
            Err(found) => TakeOutcome::Running(found),
        })
    }

    /// Changes the settings for as long as the loan lasts.
    ///
    /// # Errors
    /// As of [`Linux::set_ksm_settings`].
    pub fn set(&self, settings: &Settings) -> Result<()> {
        self.linux().set_ksm_settings(settings)
    }
}

/// Restores what a killed borrower left behind. `Some` is what was restored.
///
/// # Errors
/// The journal cannot be read, or the settings not be restored.
pub fn recover(linux: &Linux, directory: &Path) -> Result<Option<Settings>> {
    loan::recover(linux, directory, NAME)
}

/// The settings that a killed borrower should have restored, if there is one; changes nothing.
///
/// # Errors
/// The journal cannot be read.
pub fn left_over(directory: &Path) -> Result<Option<Settings>> {
    loan::left_over(directory, NAME)
}

/// The processes to which `ksmd` is on loan now; changes nothing.
///
/// # Errors
/// The journal cannot be read.
pub fn borrowers(directory: &Path) -> Result<Vec<Pid>> {
    loan::borrowers::<Settings>(directory, NAME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::presence::Presence;
    use crate::settings::loan::Lock;
    use std::fs;
    use std::path::PathBuf;
    use tempfile::TempDir;

    type Journal = loan::Journal<Settings>;

    /// A machine of its own: a copy of the snapshot's KSM directory, and a place for the journal.
    fn machine() -> (TempDir, Linux, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        let to = linux.path("/sys/kernel/mm/ksm");
        fs::create_dir_all(&to).unwrap();
        let from = crate::fixtures::debian().path("/sys/kernel/mm/ksm");
        for entry in fs::read_dir(from).unwrap().flatten() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        // A real kernel answers a word with the line of words; a file keeps what was written.
        fs::remove_file(to.join("advisor_mode")).unwrap();
        let directory = root.path().join("run");
        (root, linux, directory)
    }

    fn fast(loan: &Loan) -> Settings {
        Settings { run: Run::Merge, pages_to_scan: 9999, ..loan.found().clone() }
    }

    fn borrow(linux: &Linux, directory: &Path) -> Loan {
        match Loan::take(linux, directory).unwrap() {
            TakeOutcome::Borrowed(loan) => loan,
            TakeOutcome::Running(settings) => panic!("ksmd is said to run: {settings:?}"),
        }
    }

    #[test]
    fn a_loan_that_is_dropped_restores_and_leaves_no_journal() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let loan = borrow(&linux, &directory);
        loan.set(&fast(&loan)).unwrap();
        assert_eq!(linux.ksm_settings().unwrap().pages_to_scan, 9999);
        assert_eq!(borrowers(&directory).unwrap(), [Pid::own()]);
        drop(loan);
        assert!(borrowers(&directory).unwrap().is_empty());
        assert_eq!(linux.ksm_settings().unwrap(), before);
        assert_eq!(left_over(&directory).unwrap(), None);
        assert!(!Journal::path(&directory, NAME).exists());
    }

    #[test]
    fn what_a_killed_borrower_left_is_restored_by_the_next_start() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let loan = borrow(&linux, &directory);
        loan.set(&fast(&loan)).unwrap();
        loan.end_as_killed();

        assert_eq!(left_over(&directory).unwrap(), Some(before.clone()));
        assert_eq!(recover(&linux, &directory).unwrap(), Some(before.clone()));
        assert_eq!(linux.ksm_settings().unwrap(), before);
        assert_eq!(recover(&linux, &directory).unwrap(), None, "once is enough");
    }

    #[test]
    fn a_new_borrower_after_a_killed_one_finds_the_true_settings() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let killed = Journal { found: before.clone(), holders: vec!["ksm.1.0".to_owned()] };
        Lock::take(&directory, NAME).unwrap();
        killed.store(&directory, NAME).unwrap();
        linux.write("/sys/kernel/mm/ksm/run", "1").unwrap();

        let loan = borrow(&linux, &directory);
        assert_eq!(loan.found(), &before);
        loan.give_back().unwrap();
        assert_eq!(linux.ksm_settings().unwrap(), before);
    }

    #[test]
    fn of_two_borrowers_the_last_to_leave_restores() {
        let (_root, linux, directory) = machine();
        let before = linux.ksm_settings().unwrap();
        let first = borrow(&linux, &directory);
        first.set(&fast(&first)).unwrap();
        let other = Presence::claim(&directory, NAME).unwrap();
        let mut journal = Journal::load(&directory, NAME).unwrap().unwrap();
        journal.holders.push(other.token().to_owned());
        journal.store(&directory, NAME).unwrap();

        first.give_back().unwrap();
        assert_eq!(linux.ksm_settings().unwrap().run, Run::Merge, "the other one still needs it");
        assert_eq!(recover(&linux, &directory).unwrap(), None);

        let second = borrow(&linux, &directory);
        assert_eq!(second.found(), &before, "not what the first one had set");
        drop(second);
        assert_eq!(Journal::load(&directory, NAME).unwrap().unwrap().holders.len(), 1);
    }

    #[test]
    fn settings_of_a_running_ksmd_are_left_alone() {
        let (_root, linux, directory) = machine();
        linux.write("/sys/kernel/mm/ksm/run", "1").unwrap();
        let before = linux.ksm_settings().unwrap();
        match Loan::take(&linux, &directory).unwrap() {
            TakeOutcome::Running(settings) => assert_eq!(settings, before),
            TakeOutcome::Borrowed(_) => panic!("it was borrowed"),
        }
        assert_eq!(linux.ksm_settings().unwrap(), before);
        assert!(!Journal::path(&directory, NAME).exists());
    }

    #[test]
    fn a_journal_that_cannot_be_read_stops_us_and_says_how_to_go_on() {
        let (_root, linux, directory) = machine();
        fs::create_dir_all(&directory).unwrap();
        fs::write(Journal::path(&directory, NAME), "hello\n").unwrap();
        let error = Loan::take(&linux, &directory).unwrap_err();
        assert!(error.to_string().contains("rm "), "{error}");
    }
}
