//! `record --import FILE`: accesses that another tool sampled, as a recording.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pagemill_model::access::AccessSetup;
use pagemill_model::recording::{Meta, Writer};
use pagemill_model::{Bytes, Event, Nanos, whole};
use pagemill_model::{Pid, perf_data};

use super::arguments::Arguments;
use pagemill_launch::exit::Exit;

/// Makes a recording of the perf.data at `path`.
pub(super) fn import(arguments: &Arguments, path: &Path) -> Result<Exit> {
    let shown = path.display();
    let bytes = whole::read(path, whole::DATA).with_context(|| format!("cannot read {shown}"))?;
    let read = match perf_data::read(&bytes) {
        Ok(read) => read,
        Err(damage) => bail!("{shown}: byte {}: {}", damage.at, damage.why),
    };
    if read.accesses.is_empty() {
        bail!(
            "{shown} has no samples with an address (record with: perf mem record, or perf record -d -e page-faults)"
        );
    }
    let (pid, comm) = read.program.unwrap_or_default();
    let started = read.accesses.first().map_or(Nanos(0), |access| access.time);
    let ended = read.accesses.last().map_or(started, |access| access.time);
    let mut meta = Meta {
        tool: pagemill_model::TOOL.into(),
        pid,
        comm,
        machine: std::env::consts::ARCH.into(),
        page_size: Bytes(4096),
        clock: "perf record's".into(),
        started,
        accesses: Some(AccessSetup {
            back_end: "import".into(),
            lost: read.lost,
            without_address: Some(read.without_address),
            ..AccessSetup::default()
        }),
        capabilities: vec![format!("{shown}, by perf record")],
        ..Meta::default()
    };
    meta.lacks("pages that were not sampled", "samples are a part of the accesses");
    if !read.says_kind {
        let why = "the file does not say (perf mem record does)";
        meta.lacks("whether an access reads or writes", why);
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let output = arguments.directory(&name, Pid(pid as u32));
    let mut writer = Writer::create(&output, meta, arguments.force, None)?;
    for mut mapping in read.mappings {
        mapping.time = started;
        writer.event(&Event::Mapping(Box::new(mapping)))?;
    }
    let rows = read.accesses.len();
    for access in read.accesses {
        writer.event(&Event::Access(Box::new(access)))?;
    }
    let recording = writer.finish(ended)?;
    eprintln!("imported {rows} accesses from {shown} into {}", recording.display());
    eprintln!("next: pagemill report {}", pagemill_model::shell::quoted(recording));
    Ok(Exit::Ok)
}
