//! Programs of other packages, found on this machine, and where those are kept that were fetched.

use std::env;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// A program that is missing or unsuitable, with what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unsuitable(pub String);

/// A program on the path, or among the games that root's path leaves out.
///
/// # Errors
/// What to install.
pub fn find(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/games".into()])
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    match found {
        Some(path) => Ok(path),
        None => {
            let why = format!("{name} is not installed (run: apt-get install {package})");
            Err(Unsuitable(why).into())
        }
    }
}

/// Where what was fetched is kept from run to run: `pagemill` in the user's cache.
///
/// # Errors
/// Where the user has no home.
pub fn cache() -> Result<PathBuf> {
    let kept = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    Ok(kept.or_else(home).context("HOME is not set")?.join("pagemill"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = find("no-such-program", "some-package").unwrap_err();
        assert!(error.is::<Unsuitable>());
        assert!(error.to_string().contains("apt-get install some-package"));
    }
}
