//! Checksums of the files that have none in their name: the header and the summary.
//!
//! ```text
//!  meta.json      { …, "checked": true, "checksum": "<of all other members>" }
//!  summary.json   <of the text>\n<text>
//! ```
//!
//! Always true: a header that says either is refused unless both are there and right, so nothing that changes one place
//! of it makes it one of earlier recordings, which have neither; a summary that such a header counts is there and
//! whole. White space and order of the header's members are anybody's.

use std::io::Write as _;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::{META, Meta, SUMMARY, checksum};
use crate::error::{Error, Result};
use crate::whole;

/// Why a file is refused.
const CHANGED: &str = "its content does not match its checksum";

/// What to do without a summary.
const REMEDY: &str =
    "to read the parts without it, take \"summary\", \"checked\" and \"checksum\" out of meta.json";

/// A header as it is written.
#[derive(Serialize)]
struct Sealed<'a> {
    #[serde(flatten)]
    meta: &'a Meta,
    checked: bool,
    checksum: String,
}

/// The text of a header.
pub(super) fn text(meta: &Meta) -> serde_json::Result<Vec<u8>> {
    let mut sealed = Sealed { meta, checked: true, checksum: String::new() };
    let mut value = serde_json::to_value(&sealed)?;
    value.as_object_mut().map(|members| members.remove("checksum"));
    sealed.checksum = sum_of(&value);
    let mut text = serde_json::to_vec_pretty(&sealed)?;
    text.push(b'\n');
    Ok(text)
}

fn sum_of(header: &Value) -> String {
    format!("{:016x}", checksum(header.to_string().as_bytes()))
}

/// Whether a header has a checksum, or why it is refused.
pub(super) fn check(header: &Value) -> std::result::Result<bool, &'static str> {
    let mut rest = header.clone();
    let sum = rest.as_object_mut().and_then(|members| members.remove("checksum"));
    match (sum, rest.get("checked")) {
        (None, None) => Ok(false),
        (Some(sum), Some(_)) if sum == sum_of(&rest) => Ok(true),
        _ => Err(CHANGED),
    }
}

/// The text of the summary; `None` if it is not there, or is none that a `checked` header could have.
pub(super) fn summary(recording: &Path, meta: &Meta, checked: bool) -> Result<Option<Vec<u8>>> {
    let path = recording.join(SUMMARY);
    let refused =
        |why: &dyn std::fmt::Display| Err(Error::damaged(&path, format_args!("{why} ({REMEDY})")));
    let file = match whole::regular(&path, whole::DATA) {
        Ok(file) => file,
        Err(_) if !meta.summary => return Ok(None),
        Err(error) => return refused(&error),
    };
    let text = file.split_at_checked(17).and_then(|(sum, text)| {
        (*sum == *format!("{:016x}\n", checksum(text)).as_bytes()).then(|| text.to_vec())
    });
    match text {
        None if checked => refused(&CHANGED),
        text => Ok(text),
    }
}

/// Keeps a summary in a recording that is whole, and counts it in a header that has a checksum.
///
/// # Errors
/// Its header is damaged, or a file cannot be written.
pub fn keep_summary(recording: &Path, text: &[u8]) -> Result<()> {
    let file = [format!("{:016x}\n", checksum(text)).as_bytes(), text].concat();
    // Two readers may be at it.
    let ending = format!(".{}.tmp", std::process::id());
    replace(recording, SUMMARY, &ending, &file)?;
    let path = recording.join(META);
    let header =
        whole::regular(&path, whole::TEXT).map_err(|error| Error::io("read", &path, error))?;
    let damaged = |error| Error::damaged(&path, error);
    let value: Value = serde_json::from_slice(&header).map_err(damaged)?;
    let mut meta: Meta = serde_json::from_value(value.clone()).map_err(damaged)?;
    // What this version does not know would be lost.
    let known = self::text(&meta).and_then(|same| serde_json::from_slice::<Value>(&same));
    if meta.summary || known.map_err(damaged)? != value {
        return Ok(());
    }
    meta.summary = true;
    replace(recording, META, &ending, &self::text(&meta).map_err(damaged)?)
}

/// Puts a whole file of a recording in place: written under a hidden name that a later writer of the recording knows,
/// then renamed. Its permissions are the umask's, for it is the user's own, and the disk is not waited for, since a
/// part is written each second or so: what a crash left of a file does not have the checksum that it should, and is
/// told. Where the old file must stay until the new one is safe, [`whole::replace`] waits.
pub(super) fn replace(directory: &Path, name: &str, ending: &str, bytes: &[u8]) -> Result<()> {
    let temporary = directory.join(format!(".{name}{ending}"));
    let target = directory.join(name);
    let written = whole::put(&target, &temporary, |file| file.write_all(bytes));
    written.map_err(|error| Error::io("write", &target, error))
}
