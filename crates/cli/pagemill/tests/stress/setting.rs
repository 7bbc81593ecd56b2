//! System settings, changed for the length of a test and restored whatever happens.

use std::fs::{self, File};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::support;

/// A changed setting. A shell waits for the end of this value, or of this process, and writes the old one back: a
/// panic, an abort or a kill of the test leaves nothing behind.
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

/// `ksmd` as one test needs it: dropped, the old settings are back and the next test has its turn.
pub struct Ksm {
    _settings: Vec<Setting>,
    // After the settings: a test that waits sees them restored.
    _turn: File,
}

/// `ksmd`, running fast, until the value is dropped. Waits until no other test of this machine has it.
pub fn ksm() -> Result<Ksm, String> {
    let turn = support::ksm_turn()?;
    let settings = [("pages_to_scan", "20000"), ("sleep_millisecs", "2"), ("run", "1")]
        .iter()
        .map(|(name, value)| Setting::set(&format!("/sys/kernel/mm/ksm/{name}"), value))
        .collect::<Result<_, _>>()?;
    Ok(Ksm { _settings: settings, _turn: turn })
}
