//! Files that are read whole, though anybody may have made them: never more of one than is said.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::path::Path;

/// Bytes of a header, a profile, costs and the like.
pub const TEXT: u64 = 64 << 20;
/// Bytes of a part of a recording, a trace or a perf.data.
pub const DATA: u64 = 4 << 30;

/// The bytes of a file, or an error if they are more than `most`, as those of `/dev/zero` are.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let why = format!("it is longer than {most} bytes, so it is not what is asked for here");
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(bytes)
}

/// The same, of text.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(read(path, TEXT)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_and_one_that_is_no_text_are_refused() {
        let endless = read(Path::new("/dev/zero"), 1 << 16).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
        assert!(endless.to_string().contains("longer than 65536 bytes"), "{endless}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"a\xff").unwrap();
        assert_eq!(read(file.path(), 2).unwrap(), b"a\xff");
        assert!(text(file.path()).unwrap_err().to_string().ends_with("no text"));
    }
}
