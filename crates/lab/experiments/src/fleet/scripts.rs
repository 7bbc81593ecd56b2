//! The scripts that engines run, written beside the matrix.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use pagemill_kernel::Linux;
use pagemill_kernel::settings::thp::Choice;
use pagemill_launch::files;
use pagemill_model::shell::quoted;

/// Brings memory into the state in which a cell begins, and back.
const PROLOG: &str = include_str!("prolog.sh");
const EPILOG: &str = include_str!("epilog.sh");

/// Runs one cell.
const CELL: &str = include_str!("cell.sh");

/// The machine that cells are submitted from.
pub struct SubmitHost<'a> {
    /// The kernel, for the settings that machines are brought to.
    pub linux: &'a Linux,
    /// This binary, which machines have at the same place.
    pub executable: &'a Path,
    /// The results directory, absolute.
    pub results: &'a Path,
}

impl SubmitHost<'_> {
    /// The results directory, as text.
    ///
    /// # Errors
    /// For a path that scripts cannot name.
    pub fn results(&self) -> Result<&str> {
        let text = self.results.to_str().context("the results directory's name is no text")?;
        // The first is taken for a number of the job by Slurm.
        if let Some(odd) = text.chars().find(|&letter| "%\"\\\n".contains(letter)) {
            bail!("a results directory for other machines has no {odd:?} in its name: {text}");
        }
        Ok(text)
    }

    /// Writes `prolog.sh`, `epilog.sh` and `cell.sh`.
    ///
    /// # Errors
    /// Where they cannot be written.
    pub fn write(&self) -> Result<()> {
        let active = |choice: pagemill_kernel::Result<Choice>| {
            choice.map(|choice| choice.active).unwrap_or_default()
        };
        let prolog = PROLOG
            .replace("@ENABLED@", &active(self.linux.thp_enabled()))
            .replace("@DEFRAG@", &active(self.linux.thp_defrag()));
        let pagemill = self.executable.to_str().context("this binary's name is no text")?;
        let cell = CELL
            .replace("@RESULTS@", &quoted(self.results()?))
            .replace("@PAGEMILL@", &quoted(pagemill));
        for (name, text) in [("prolog.sh", prolog), ("epilog.sh", EPILOG.into()), ("cell.sh", cell)]
        {
            files::write(&self.results.join(name), text, true)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// A tree with the files that the scripts set.
    fn machine(enabled: &str) -> tempfile::TempDir {
        let room = tempfile::tempdir().unwrap();
        for directory in ["sys/kernel/mm/transparent_hugepage", "proc/sys/vm", "run"] {
            fs::create_dir_all(room.path().join(directory)).unwrap();
        }
        let at = room.path().join("sys/kernel/mm/transparent_hugepage");
        fs::write(at.join("enabled"), enabled).unwrap();
        fs::write(at.join("defrag"), "always defer defer+madvise [madvise] never\n").unwrap();
        fs::write(room.path().join("proc/sys/vm/drop_caches"), "0\n").unwrap();
        fs::write(room.path().join("proc/sys/vm/compact_memory"), "0\n").unwrap();
        room
    }

    fn read(room: &Path, name: &str) -> String {
        fs::read_to_string(room.join(name)).unwrap().trim().to_owned()
    }

    #[test]
    fn a_machine_is_brought_to_the_state_of_the_one_that_submits_and_back() {
        let (submits, node) =
            (machine("[always] madvise never\n"), machine("always madvise [never]\n"));
        let results = tempfile::tempdir().unwrap();
        let linux = Linux::at(submits.path());
        let executable = Path::new("/bin/true");
        SubmitHost { linux: &linux, executable, results: results.path() }.write().unwrap();
        let run = |name: &str| {
            let script = fs::read_to_string(results.path().join(name)).unwrap();
            let root = format!("root='{}'", node.path().display());
            let script = script.replacen("root=", &root, 1);
            let mut shell = Command::new("sh");
            shell.args(["-ec", &script]).env_remove("PAGEMILL_NODE_AS_FOUND");
            assert!(shell.status().unwrap().success());
        };
        let (enabled, before) = ("sys/kernel/mm/transparent_hugepage/enabled", "run/pagemill-node");
        run("prolog.sh");
        assert_eq!(read(node.path(), enabled), "always");
        assert_eq!(read(node.path(), "proc/sys/vm/drop_caches"), "3");
        assert_eq!(read(node.path(), "proc/sys/vm/compact_memory"), "1");
        // A cell that was killed has left this; the next one keeps what was there first.
        run("prolog.sh");
        assert_eq!(read(node.path(), before), "enabled never\ndefrag madvise");
        run("epilog.sh");
        assert_eq!(read(node.path(), enabled), "never");
        assert!(!node.path().join(before).exists());
        run("epilog.sh");
    }

    #[test]
    fn a_directory_that_a_script_cannot_name_is_refused() {
        let linux = Linux::live();
        for odd in ["/a/%j", "/a/\"b", "/a\nb"] {
            let submitter = SubmitHost {
                linux: &linux,
                executable: Path::new("/bin/true"),
                results: Path::new(odd),
            };
            assert!(submitter.results().is_err(), "{odd:?}");
        }
    }
}
