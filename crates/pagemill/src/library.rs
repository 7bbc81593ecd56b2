//! The preload library: where it is, and how a program is told to load it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// File name of the preload library.
const NAME: &str = "libpagemill.so";

/// The variable that names the library if it is somewhere else.
const OVERRIDE: &str = "PAGEMILL_LIB";

/// The absolute path of the preload library: `$PAGEMILL_LIB`, or next to this program, or in the
/// `lib` directory beside this program's directory.
pub fn find() -> Result<PathBuf> {
    let path = match env::var_os(OVERRIDE) {
        Some(path) => std::path::absolute(&path)
            .ok()
            .filter(|path| path.is_file())
            .with_context(|| format!("{OVERRIDE} is {path:?}, and there is no such file"))?,
        None => {
            let program = env::current_exe().context("cannot find out where this program is")?;
            let directory = program.parent().unwrap_or(Path::new("/"));
            let places = [directory.join(NAME), directory.join("../lib").join(NAME)];
            let found = places.into_iter().find(|path| path.is_file());
            found.and_then(|path| path.canonicalize().ok()).with_context(|| {
                format!(
                    "there is no {NAME} next to {} (run: cargo build --profile preload -p pagemill-preload, \
                     and set {OVERRIDE} to the file)",
                    program.display()
                )
            })?
        }
    };
    // The loader takes both for separators and knows no way to quote them.
    if path.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
        bail!("LD_PRELOAD cannot name {path:?}: move it to a path without spaces and colons");
    }
    Ok(path)
}

/// The value of `LD_PRELOAD` that loads `library` first and then what was loaded before.
pub fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_stays_behind_ours() {
        let library = Path::new("/x/libpagemill.so");
        assert_eq!(preload(library, None), "/x/libpagemill.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/x/libpagemill.so");
        assert_eq!(
            preload(library, Some(OsStr::new("/a.so /b.so"))),
            "/x/libpagemill.so:/a.so /b.so"
        );
    }
}
