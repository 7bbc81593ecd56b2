//! Levers: ways to start a command that may cost it less memory or time, without changing it.
//!
//! A lever is a file of this folder's `levers` and a line in its `REGISTRY`. A command is started under a lever by the
//! very words that are recommended in the end, so what was measured is what is had.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pagemill_kernel::{
    Linux,
    settings::{loan, thp},
};
use pagemill_launch::allocator::Allocator;
use pagemill_launch::library;
use pagemill_launch::program::{self, Verdict};
use pagemill_model::shell::quoted;

pub use crate::estimate::Estimate;
use crate::observation::RunObservation;

/// One way.
pub trait Lever: Sync {
    /// Its name, one word or two; what it does, in a line; what it needs, in a few words, or nothing.
    fn description(&self) -> [&'static str; 3];

    /// Its name.
    fn name(&self) -> &'static str {
        self.description()[0]
    }

    /// What it does.
    fn what(&self) -> &'static str {
        self.description()[1]
    }

    /// What it needs; nothing if it needs nothing.
    fn needs(&self) -> &'static str {
        self.description()[2]
    }

    /// Whether what it saves stays allocated, and lies elsewhere.
    fn keeps_elsewhere(&self) -> bool {
        false
    }

    /// Whether it gets at holes between CPython's small objects.
    fn compacts_python(&self) -> bool {
        false
    }

    /// How a command is started under it.
    ///
    /// # Errors
    /// Why that cannot be tried here.
    fn start(&self, target: &Target) -> Result<Start, String>;

    /// What it may bring at the most, by what was seen of the command as it is.
    fn estimate(&self, seen: &RunObservation) -> Estimate;
}

/// How a command is started: words in front of it, and variables of its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The words of `pagemill` that stand in front, without that name; none: it is started as it is.
    pub words: Vec<OsString>,
    /// Variables, and their values.
    pub variables: Vec<(&'static str, OsString)>,
    /// Whether it runs on pagemill's heap.
    pub on_heap: bool,
    /// Whether ksmd merges its memory.
    pub merged: bool,
}

impl Start {
    /// Behind `pagemill` and these words.
    pub fn behind(words: &[&str]) -> Self {
        Self { words: words.iter().map(OsString::from).collect(), ..Self::default() }
    }

    /// On pagemill's heap, behind `pagemill` and these words.
    pub fn on_heap(words: &[&str]) -> Self {
        Self { on_heap: true, ..Self::behind(words) }
    }

    /// With a variable.
    pub fn with(name: &'static str, value: impl Into<OsString>) -> Self {
        Self { variables: vec![(name, value.into())], ..Self::default() }
    }

    /// With a library loaded first.
    pub fn loading(path: &Path) -> Self {
        let before = std::env::var_os("LD_PRELOAD");
        Self::with("LD_PRELOAD", library::preload(path, before.as_deref()))
    }

    /// With settings in a variable, behind those that are in it.
    pub fn added(name: &'static str, separator: &str, settings: &str) -> Self {
        let mut value = std::env::var_os(name).unwrap_or_default();
        value.push(if value.is_empty() { "" } else { separator });
        value.push(settings);
        Self::with(name, value)
    }

    /// As a line for a shell, in front of `command`.
    pub fn line(&self, command: &[OsString]) -> String {
        let mut parts: Vec<String> = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={}", quoted(value)))
            .collect();
        if !self.words.is_empty() {
            parts.push("pagemill".into());
            parts.extend(self.words.iter().map(quoted));
        }
        parts.extend(command.iter().map(quoted));
        parts.join(" ")
    }
}

/// The command, and what is known of it and of the machine before it runs.
#[derive(Clone, Debug)]
pub struct Target {
    /// The machine.
    pub linux: Linux,
    /// The command.
    pub words: Vec<OsString>,
    /// Its file.
    pub path: PathBuf,
    /// This binary.
    pub executable: PathBuf,
    /// Why no allocator can be preloaded, if none can.
    pub no_preload: Option<String>,
    /// Whether its file carries glibc's malloc, whose settings are variables: nothing is preloaded for them.
    pub static_glibc: bool,
    /// The malloc that its file names or carries, if it does.
    pub allocator: Option<Allocator>,
    /// The system's setting of transparent huge pages.
    pub thp: Option<String>,
    /// Whether this is root.
    pub root: bool,
}

impl Target {
    /// Of a command whose file is `path`.
    ///
    /// # Errors
    /// This binary cannot be found.
    pub fn of(linux: &Linux, words: &[OsString], path: &Path) -> anyhow::Result<Self> {
        let search = std::env::var_os("PATH");
        let no_preload = match program::inspect(path, search.as_deref()).verdict {
            Verdict::Refused(refusal) => Some(refusal.reason),
            Verdict::Fits | Verdict::Unknown(_) => None,
        };
        Ok(Self {
            linux: linux.clone(),
            words: words.to_vec(),
            path: path.to_owned(),
            executable: std::env::current_exe()?,
            static_glibc: no_preload.is_some() && program::carries_glibc(path),
            no_preload,
            allocator: Allocator::of_file(path),
            thp: linux.thp_enabled().ok().map(|choice| choice.active),
            root: linux.is_root(),
        })
    }

    /// Whether the heap of pagemill is there.
    ///
    /// # Errors
    /// It is not: where it was looked for.
    pub fn has_heap(&self) -> Result<(), String> {
        library::find_heap().map(|_| ()).map_err(|error| error.to_string())
    }

    /// That somebody else has borrowed the system's setting of huge pages now, if so.
    pub fn lent(&self) -> Option<String> {
        let directory = loan::directory(&self.linux);
        let lent = [thp::LOAN, thp::MEDIUM_LOAN].iter().any(|name| loan::is_lent(&directory, name));
        lent.then(|| {
            "another process has the system's setting of huge pages on loan: what is said of huge pages holds while it \
             has; ask again when it has ended"
                .into()
        })
    }

    /// Whether the system's setting of huge pages can be borrowed.
    ///
    /// # Errors
    /// It cannot, and why.
    pub fn may_borrow(&self) -> Result<(), String> {
        match self.lent() {
            Some(lent) => Err(lent),
            None if self.root => Ok(()),
            None => Err("changing the system's setting needs root".into()),
        }
    }

    /// Whether its malloc reads settings of glibc's, by what is known of its file.
    ///
    /// # Errors
    /// It does not, and why.
    pub fn may_set_malloc(&self) -> Result<(), String> {
        if self.static_glibc { Ok(()) } else { self.may_preload() }
    }

    /// Whether an allocator can be preloaded.
    ///
    /// # Errors
    /// None can, and why.
    pub fn may_preload(&self) -> Result<(), String> {
        match &self.no_preload {
            Some(reason) => Err(format!("nothing can be preloaded: {reason}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_back_as_what_was_started() {
        let command = ["a b", "it's", "plain-1.0", ""].map(OsString::from);
        let start = Start::with("LD_PRELOAD", "/x y.so");
        assert_eq!(start.line(&command), r#"LD_PRELOAD='/x y.so' 'a b' 'it'\''s' plain-1.0 ''"#);
        let start = Start::behind(&["run", "--heap", "compact", "--"]);
        assert_eq!(start.line(&command[2..3]), "pagemill run --heap compact -- plain-1.0");
        let words = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {}", Start::default().line(&command))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(words.stdout).unwrap(), "a b\nit's\nplain-1.0\n\n");
    }
}
