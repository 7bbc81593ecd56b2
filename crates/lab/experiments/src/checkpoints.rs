//! What was finished, in a directory: a long run that was ended goes on where it was.
//!
//! ```text
//!  DIR/fragmentation/…            the runs of each state of memory
//! ```
//!
//! A part is taken only if it is of the same build and of a run with the same options.

use std::path::PathBuf;
use std::time::UNIX_EPOCH;
use std::{env, fs};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Finished parts of a run.
#[derive(Debug)]
pub struct Checkpoints {
    directory: PathBuf,
    of: String,
}

impl Checkpoints {
    /// Those in a directory that belong to a run with the options that `of` tells.
    ///
    /// # Errors
    /// Where the directory cannot be made or this program's file not be looked at.
    pub fn new(directory: PathBuf, of: &str) -> Result<Self> {
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let program = fs::metadata(env::current_exe().context("cannot find this binary")?)?;
        let built = program.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let of = format!("{of}, build {:x}-{:x}", program.len(), built.as_nanos());
        Ok(Self { directory, of })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// A part, if it was finished by such a run.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read_to_string(self.path(name)).ok()?;
        let mut value: Value = serde_json::from_str(&text).ok()?;
        (value["of"] == *self.of).then_some(())?;
        serde_json::from_value(value["part"].take()).ok()
    }

    /// Keeps a part, whole or not at all.
    pub(super) fn write<T: Serialize>(&self, name: &str, part: &T) -> Result<()> {
        let (path, new) = (self.path(name), self.directory.join("unfinished"));
        let text = serde_json::to_string(&json!({ "of": self.of, "part": part }))?;
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_made_once_for_each_run_and_comes_back_as_it_was() {
        let room = tempfile::tempdir().unwrap();
        let first = Checkpoints::new(room.path().join("parts"), "seed 1").unwrap();
        first.write("7", &vec![1, 2]).unwrap();
        assert_eq!(first.read::<Vec<u32>>("7").unwrap(), [1, 2]);
        let other = Checkpoints::new(room.path().join("parts"), "seed 2").unwrap();
        assert!(other.read::<Vec<u32>>("7").is_none(), "another seed is another run");
    }
}
