//! Files that users name.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use pagemill_analysis::objects::Symbols as _;
use pagemill_control::tier::latency::Script;
use pagemill_experiments::fleet::collect;
use pagemill_experiments::fleet::matrix::{FILE, Matrix};
use pagemill_experiments::moca::kept::KeptRun;
use pagemill_experiments::reproduce::keep;
use pagemill_experiments::tabled::Tables as _;
use pagemill_launch::program;
use pagemill_model::recording::{Meta, Reader};
use pagemill_model::{Source as _, event};
use pagemill_policy::huge::profile::Profile;
use pagemill_record::symbols::Files;
use pagemill_report::free_memory;
use pagemill_sim::machine::Machine;

use crate::scratch::{in_scratch, put};
use crate::seeds;

/// Samples that another tool took.
pub fn perf_data(bytes: &[u8]) {
    let _ = pagemill_model::perf_data::read(bytes);
}

/// Page faults that another tool traced.
pub fn pftrace(bytes: &[u8]) {
    let _ = pagemill_model::pftrace::parse("pftrace", bytes);
    let _ = pagemill_model::pftrace::parse_rejected("rejected", bytes);
}

/// Where huge pages pay.
pub fn profile(bytes: &[u8]) {
    let Ok(profile) = Profile::parse(&String::from_utf8_lossy(bytes)) else { return };
    // What is written is read again.
    let text = profile.to_string();
    let again = Profile::parse(&text);
    assert_eq!(again.as_ref().map(Profile::to_string).ok(), Some(text));
}

/// A machine to simulate.
pub fn machine(bytes: &[u8]) {
    let _ = Machine::parse(&String::from_utf8_lossy(bytes));
}

/// Latencies of tiers over time.
pub fn latencies(bytes: &[u8]) {
    let _ = Script::parse(&String::from_utf8_lossy(bytes));
}

/// Free memory of before, which `frag show --json` printed, beside that of another moment.
pub fn free_memory(bytes: &[u8]) {
    let Ok(before) = free_memory::parse(&String::from_utf8_lossy(bytes)) else { return };
    let after = free_memory::parse(seeds::FREE_MEMORY).unwrap_or_else(|_| before.clone());
    let _ =
        (free_memory::before_after(&before, &after), free_memory::before_after(&after, &before));
    // What is written is read again.
    let again = free_memory::parse(&free_memory::json(&before).to_string());
    assert_eq!(again.map(|again| again.zones).ok(), Some(before.zones));
}

/// Reads a recording to its end.
pub(crate) fn drain(recording: &Path) {
    let Ok(mut reader) = Reader::open(recording) else { return };
    while let Ok(Some(_)) = reader.next_event() {}
    let _ = (reader.missing(), reader.truncated_at(), reader.fingerprint());
}

/// The header of a recording, without the checksum that would refuse every change.
pub fn meta(bytes: &[u8]) {
    in_scratch(|room| {
        let recording = room.join("meta");
        if put(&recording.join("meta.json"), bytes).is_ok() {
            drain(&recording);
        }
    });
}

/// A part of a recording, with the checksum that it has: the first byte says of which dataset.
pub fn part(bytes: &[u8]) {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let dataset = event::DATASETS[usize::from(*which) % event::DATASETS.len()];
    in_scratch(|room| {
        let recording = room.join("part");
        let _ = fs::remove_dir_all(&recording);
        let header = Meta { pagemill_recording: 1, ..Meta::default() };
        let header = serde_json::to_vec(&header).unwrap_or_default();
        let name = format!("part-00000-{:016x}.parquet", twox_hash::XxHash3_64::oneshot(bytes));
        let written = put(&recording.join("meta.json"), &header)
            .and_then(|()| put(&recording.join(dataset).join(name), bytes));
        if written.is_ok() {
            drain(&recording);
        }
    });
}

/// A finished cell of an experiment.
pub fn cell(bytes: &[u8]) {
    in_scratch(|room| {
        let path = room.join("cell.json");
        if put(&path, bytes).is_ok() {
            let _ = keep::read(&path).map(keep::CellRecord::outcome);
        }
    });
}

/// Cells that were collected in one file.
pub fn collected(bytes: &[u8]) {
    in_scratch(|room| {
        let path = room.join("cells.parquet");
        if put(&path, bytes).is_ok() {
            let collected = collect::Collected::from(&[path]);
            let _ = collected.and_then(|collected| collected.summary());
        }
    });
}

/// The matrix of a fleet's cells.
pub fn matrix(bytes: &[u8]) {
    in_scratch(|room| {
        let results = room.join("matrix");
        let _ = fs::remove_dir_all(&results);
        if put(&results.join(FILE), bytes).is_err() {
            return;
        }
        let Ok(matrix) = Matrix::read(&results) else { return };
        for called in ["1", "0", "18446744073709551615", "pauses/churn/glibc/1", ""] {
            let _ = matrix.cell(called);
        }
        for name in &matrix.cells {
            // A cell's result is below the directory of results, whatever it is called.
            let result = Matrix::result(&results, name);
            assert!(result.starts_with(&results) && !result.to_string_lossy().contains("/../"));
        }
        let _ = matrix.left(&results);
        let _ = matrix.plan(&results);
    });
}

/// A kept run of the comparison of access traces.
pub fn traces(bytes: &[u8]) {
    let Ok(KeptRun { outcome, .. }) = KeptRun::read(bytes) else { return };
    let _ = (outcome.text(), outcome.claims(), outcome.json(), outcome.files(&[]));
}

/// A program: whether it can be preloaded, and what is in it.
pub fn program(bytes: &[u8]) {
    in_scratch(|room| {
        let path = room.join("program");
        if put(&path, bytes).is_err() {
            return;
        }
        let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o755));
        let _ = program::inspect(&path, None);
        let _ = program::sanitizer_with_fixed_layout(&path);
        crate::traced::file_code(bytes);
        let files = Files::default();
        let name = path.to_string_lossy();
        let size = files.image(&name).map_or(0, |image| image.bytes);
        for offset in [0, 1, size / 3, size / 2, size.saturating_sub(1), size, u64::MAX] {
            let _ = (files.code(&name, offset), files.follows_call(&name, offset));
        }
    });
}
