//! A command, found out about before it is executed: whether its file is there, and can do what is asked of it.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use pagemill_heap::config::{Config, NAMES};

use crate::exit::Exit;
use crate::library;
use crate::program::{self, NoProgram, Verdict};

/// A command under the heap, or the reason that has been said and the exit that follows from it.
pub enum Prepared {
    /// The command and the file that it will execute.
    Ready(Box<Command>, PathBuf),
    /// There is nothing to execute.
    Refused(Exit),
}

/// Makes the command that runs `command` under the heap in the configuration `config`, after
/// finding out whether that can work. An error is 125 for a wrapper.
///
/// # Errors
/// No program is named, or there is no library.
pub fn prepare(command: &[OsString], config: &str) -> Result<Prepared> {
    let prepared = preloaded(command, library::find_heap)?;
    Ok(match prepared {
        Prepared::Ready(mut command, path) => {
            command.env("PAGEMILL_HEAP", config).env_remove("PAGEMILL_MESH");
            Prepared::Ready(command, path)
        }
        refused => refused,
    })
}

/// Makes the command that runs `command` with its own malloc, whose free memory is given back while it rests, after
/// finding out whether that can work. An error is 125 for a wrapper.
///
/// # Errors
/// As of [`prepare`].
pub fn trimmed(command: &[OsString]) -> Result<Prepared> {
    preloaded(command, library::find_trim)
}

/// Makes the command that loads a library first, which `find` finds.
fn preloaded(command: &[OsString], find: impl Fn() -> Result<PathBuf>) -> Result<Prepared> {
    let search = env::var_os("PATH");
    let (path, mut plain) = match plain(command)? {
        Prepared::Ready(command, path) => (path, command),
        refused => return Ok(refused),
    };
    let wrapped = program::inspect_wrapped(&path, search.as_deref());
    let is_wrapper = wrapped.executes.is_some();
    if let Verdict::Refused(refusal) = &wrapped.verdict {
        let (path, program::Refusal { reason, way, .. }) = (path.display(), refusal);
        let exit = refusal.exit();
        if let Some(program) = &wrapped.executes {
            // What the script itself does is on the heap, and it may execute something else.
            notice!(
                "{path} executes {}, which cannot use the preload library: {reason} ({way})",
                program.display()
            );
        } else if exit == Exit::WrapperFailed {
            notice!("{path} cannot use the preload library: {reason} ({way})");
        } else {
            notice!("cannot run {path}: {reason} ({way})");
        }
        if !is_wrapper {
            return Ok(Prepared::Refused(exit));
        }
    }
    let library = find()?;
    plain.env("LD_PRELOAD", library::preload(&library, env::var_os("LD_PRELOAD").as_deref()));
    Ok(Prepared::Ready(plain, path))
}

/// Makes the command that runs `command` as it is, after finding its file. An error is 125 for a
/// wrapper.
///
/// # Errors
/// No program is named.
pub fn plain(command: &[OsString]) -> Result<Prepared> {
    let [name, rest @ ..] = command else {
        anyhow::bail!("no program is named");
    };
    let path = match program::find(name, env::var_os("PATH").as_deref()) {
        Ok(path) => path,
        Err(NoProgram::Missing) => {
            notice!("cannot run {}: not found", name.display());
            return Ok(Prepared::Refused(Exit::NotFound));
        }
        Err(NoProgram::NotExecutable(path)) => {
            let (why, fix) = program::not_executable(&path);
            notice!("cannot run {}: {why} ({fix})", path.display());
            return Ok(Prepared::Refused(Exit::CannotExecute));
        }
    };
    let mut command = Command::new(&path);
    command.arg0(name).args(rest);
    Ok(Prepared::Ready(Box::new(command), path))
}

/// The value of a variable. One that is set to nothing counts as not set, as in the library.
pub fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    value.map(|value| value.to_string_lossy().into_owned())
}

/// Configurations that have a name in words.
const WORDS: [(&str, &str); 7] = [
    ("plain", "0n"),
    ("refill-shuffle", "1n"),
    ("shuffle", "2n"),
    ("compact-ordered", "0y"),
    ("compact", "1y"),
    ("compact-shuffle", "2y"),
    ("hardened", "h"),
];

/// Whether the heap compacts in the configuration of this name.
pub fn compacts(name: &str) -> bool {
    Config::parse(name.as_bytes()).is_some_and(|config| config.compact)
}

/// The name of the configuration that the flag asks for, in words or as published, or else the environment, checked.
///
/// # Errors
/// There is none of that name; which there are.
pub fn configuration(flag: Option<String>) -> Result<String> {
    let name = flag.or_else(|| variable("PAGEMILL_HEAP")).or_else(|| variable("PAGEMILL_MESH"));
    let name = name.unwrap_or_else(|| NAMES[Config::DEFAULT.index()].to_owned());
    let named = WORDS.iter().find(|(word, _)| *word == name);
    let name = named.map_or(name, |(_, name)| (*name).to_owned());
    anyhow::ensure!(
        Config::parse(name.as_bytes()).is_some(),
        "unknown configuration {name:?} (choose one of: {}; or in words: {})",
        NAMES.join(" "),
        WORDS.map(|(word, _)| word).join(" ")
    );
    Ok(name)
}

/// Says why the program could not be executed; the exit code is the one env(1) would choose. Where only something has
/// run out here, that is no fault of the program.
pub fn cannot_execute(path: &Path, error: &std::io::Error) -> Exit {
    if let Some(advice) = pagemill_kernel::process::limits::advice(error) {
        notice!("cannot start {}: {error} ({advice})", path.display());
        return Exit::WrapperFailed;
    }
    notice!("cannot execute {}: {error}", path.display());
    match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotExecute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_not_the_programs_fault() {
        let code = |error: i32| {
            let error = std::io::Error::from_raw_os_error(error);
            cannot_execute(Path::new("program"), &error).status()
        };
        // ENOENT, EACCES, ENOEXEC; EAGAIN, EMFILE, ENOMEM.
        assert_eq!([2, 13, 8, 11, 24, 12].map(code), [127, 126, 126, 125, 125, 125]);
    }

    #[test]
    fn a_configuration_in_words_is_one_that_the_library_knows() {
        for (word, name) in WORDS {
            assert_eq!(configuration(Some(word.to_owned())).unwrap(), name);
            assert_eq!(configuration(Some(name.to_owned())).unwrap(), name);
        }
        // Each has a word.
        let mut named: Vec<&str> = WORDS.iter().map(|(_, name)| *name).collect();
        named.sort_unstable();
        let mut all = NAMES;
        all.sort_unstable();
        assert_eq!(named, all);
        let why = configuration(Some("compat".to_owned())).unwrap_err().to_string();
        assert!(why.contains("0n") && why.contains("compact-shuffle"), "{why}");
    }
}
