//! System settings, changed for the length of a test and restored whatever happens.

use std::fs;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A changed setting. A shell waits for the end of this value, or of this process, and writes the old one back: a panic, an
/// abort or a kill of the test leaves nothing behind.
pub struct Setting {
    keeper: Child,
    held: Option<ChildStdin>,
}

impl Setting {
    /// Writes `value` to the file, or says why it cannot.
    pub fn set(path: &str, value: &str) -> Result<Self, String> {
        let old =
            fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
        let script = r#"trap '' INT TERM HUP; cat >/dev/null; printf %s "$2" > "$1""#;
        let mut keeper = Command::new("sh")
            .args(["-c", script, "sh", path, old.trim()])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start sh: {error}"))?;
        let held = keeper.stdin.take();
        let setting = Self { keeper, held };
        fs::write(path, value)
            .map_err(|error| format!("cannot write {path}: {error} (run as root)"))?;
        Ok(setting)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        drop(self.held.take());
        let _ = self.keeper.wait();
    }
}

/// `ksmd`, running fast, until the values are dropped.
pub fn ksm() -> Result<Vec<Setting>, String> {
    [("pages_to_scan", "20000"), ("sleep_millisecs", "2"), ("run", "1")]
        .iter()
        .map(|(name, value)| Setting::set(&format!("/sys/kernel/mm/ksm/{name}"), value))
        .collect()
}
