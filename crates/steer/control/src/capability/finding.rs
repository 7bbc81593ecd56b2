//! What a probe came to.

use serde::Serialize;

/// How far a capability goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It works.
    Ok,
    /// It works in part, or only after a change.
    Degraded,
    /// It does not work.
    Missing,
}

/// What a probe came to.
pub(super) struct Finding {
    pub(super) status: Status,
    pub(super) finding: String,
    pub(super) fix: Option<String>,
}

impl Finding {
    pub(super) fn ok(finding: impl Into<String>) -> Self {
        Self { status: Status::Ok, finding: finding.into(), fix: None }
    }

    pub(super) fn degraded(finding: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: Status::Degraded, finding: finding.into(), fix: Some(fix.into()) }
    }

    pub(super) fn missing(finding: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status: Status::Missing, finding: finding.into(), fix: Some(fix.into()) }
    }
}
