//! Where bytes become files, and where the repository has what seeds are made of.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

thread_local! {
    static SCRATCH: OnceCell<Option<TempDir>> = const { OnceCell::new() };
}

/// Does something in a directory of this thread's own. What is not overwritten stays from one time to the next.
pub(crate) fn in_scratch(act: impl FnOnce(&Path)) {
    SCRATCH.with(|room| {
        if let Some(room) = room.get_or_init(|| tempfile::tempdir().ok()) {
            act(room.path());
        }
    });
}

/// Puts a file where it is looked for.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    std::fs::write(path, bytes)
}

/// A directory of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path)
}
