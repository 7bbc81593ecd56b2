//! Words as a shell reads them back.

use std::ffi::OsStr;

/// A word as a shell reads it back: in quotes, unless it is plain.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    let text = word.as_ref().to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%^{}".contains(c);
    let expands = text.contains('{') && (text.contains(',') || text.contains(".."));
    if !text.is_empty() && !expands && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_the_shell_would_split_them() {
        assert_eq!(quoted("/a/b-c_1.json"), "/a/b-c_1.json");
        assert_eq!(quoted("/my dir/it's"), "'/my dir/it'\\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(["{2}", "{a,b}", "{1..3}"].map(quoted), ["{2}", "'{a,b}'", "'{1..3}'"]);
    }
}
