//! Small text files from outside: a machine, a script.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Bytes of the longest.
const LONGEST: u64 = 1 << 20;

/// The text of a file, which is refused where it has no end (`/dev/zero`) or is no text.
///
/// # Errors
/// It cannot be read, is longer than 1 MiB, or is no text.
pub fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        bytes.len() as u64 <= LONGEST,
        "{} is longer than 1 MiB, so it is not what is asked for here",
        path.display()
    );
    String::from_utf8(bytes).ok().with_context(|| format!("{} is no text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_or_text_is_refused() {
        let error = text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero is longer than 1 MiB"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"a\xff").unwrap();
        assert!(text(file.path()).unwrap_err().to_string().ends_with("is no text"));
        std::fs::write(file.path(), "a = 1").unwrap();
        assert_eq!(text(file.path()).unwrap(), "a = 1");
    }
}
