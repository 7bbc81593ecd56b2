//! What a recording holds, in formats of other tools: a file each, all from one table ([`FORMATS`]).
//!
//! A format of accesses is a writer that is handed these one by one, named, and the end of each interval; one of
//! resident memory is text that is made of all stacks. What a format asks for and a recording does not have is written
//! as its zero or left empty: see docs/verbs/export.md.

mod firefox;
mod format;
mod mitos;
mod moca;
mod parquet;
mod perfetto;
mod pftrace;
mod resident;
mod tabarnac;

pub use format::Format;

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Result, bail};
use format::{AccessWriter, Content, SymbolizedAccess};
use pagemill_analysis::cold_stacks::{ends, stacks};
use pagemill_analysis::objects::{KERNEL, Names};
use pagemill_launch::files::{self, NewFile};
use pagemill_launch::stdio::printable;
use pagemill_model::fault::Flags;
use pagemill_model::recording::Reader;
use pagemill_model::{Bytes, Event, Pid, Source as _};
use pagemill_record::summary;
use pagemill_record::symbols::Files;

/// The formats, in the order of the documentation. To add one: its file, its `mod`, and its line here.
pub const FORMATS: &[Format] = &[
    pftrace::FORMAT,
    parquet::FORMAT,
    moca::FORMAT,
    tabarnac::FORMAT,
    mitos::FORMAT,
    perfetto::FORMAT,
    firefox::FORMAT,
    resident::FOLDED,
    resident::SPEEDSCOPE,
];

/// Writes a recording, of which nothing was read yet, to `output`; what was written, in words. `mhz`: cycles in a
/// microsecond, for a format that has cycles.
///
/// # Errors
/// The recording does not have what the format holds, or is damaged; the file is there and is not to be replaced, or
/// cannot be written.
pub fn write(
    reader: &mut Reader,
    recording: &Path,
    format: &Format,
    (output, replaces): (&Path, bool),
    mhz: u64,
) -> Result<String> {
    let setup = reader.meta().accesses.as_ref();
    let shown = recording.display();
    if setup.is_none() && matches!(format.content, Content::Accesses(_) | Content::Resident(_)) {
        bail!("{shown} has no accesses (make one with: pagemill record --with accesses)");
    }
    let is_sampled = setup.is_some_and(|setup| setup.without_address.is_some());
    if is_sampled && matches!(format.content, Content::Resident(_)) {
        bail!(
            "{shown} has samples of accesses, and samples do not tell what is not used (make one of all with: \
             pagemill record --with accesses)"
        );
    }
    let (begin, what) = match format.content {
        Content::Faults => return pftrace::write(reader, recording, (output, replaces), mhz),
        Content::Resident(text) => {
            let page = reader.meta().page_size.0;
            let view = summary::opened(recording, reader)?.heat;
            let stacks = stacks(&view, page);
            let text = text(&view, &stacks, &ends(view.steps));
            files::write(output, printable(&text).as_bytes(), replaces)?;
            let bytes = Bytes(resident::bytes(&stacks)).plain();
            return Ok(format!("wrote {bytes} of resident memory to {}", files::shown(output)));
        }
        Content::Accesses(begin) => (begin, "accesses"),
        Content::Events(begin) => (begin, "events"),
    };
    let file = NewFile::create(output, replaces)?;
    let handle: Box<dyn Write + Send> = Box::new(file.handle()?);
    let writer = begin(BufWriter::new(handle), reader.meta())?;
    let count = accesses(reader, writer)?;
    file.finish()?;
    Ok(format!("wrote {count} {what} to {}", files::shown(output)))
}

/// Hands all accesses, and what else the format has, to its writer; how many it wrote.
fn accesses(reader: &mut Reader, mut writer: Box<dyn AccessWriter>) -> Result<u64> {
    let started = reader.meta().started;
    let mut names = Names::new(Files::default());
    let mut objects: Vec<Option<(String, String)>> = Vec::new();
    let mut lines: HashMap<(Pid, u64), String> = HashMap::new();
    let mut count = 0;
    while let Some(event) = reader.next_event()? {
        names.event(&event);
        match &event {
            Event::Access(row) => {
                let pid = Pid::told(row.pid.unwrap_or(0));
                let place = names.objects.at(pid, row.address.unwrap_or(0));
                if objects.len() <= place.object {
                    objects.resize(place.object + 1, None);
                }
                let (object, kind) = objects[place.object].get_or_insert_with(|| {
                    let (name, kind, _) = names.of(&names.objects.identities()[place.object]);
                    (name, format!("{kind:?}").to_lowercase())
                });
                let flags = Flags(row.flags.unwrap_or(0));
                let in_kernel = flags.has(Flags::IN_KERNEL);
                let instruction = if in_kernel { KERNEL } else { row.instruction.unwrap_or(0) };
                let line =
                    lines.entry((pid, instruction)).or_insert_with(|| names.line(pid, instruction));
                count += row.count.unwrap_or(1);
                writer.access(&SymbolizedAccess {
                    row,
                    since: row.time.since(started).0,
                    write: flags.has(Flags::WRITE),
                    count: row.count.unwrap_or(1),
                    fetch: flags.has(Flags::EXECUTE),
                    in_kernel,
                    object,
                    kind,
                    offset: place.offset,
                    size: place.size,
                    line,
                })?;
            }
            Event::Touched(row) => {
                let began = row.began.unwrap_or(row.time).since(started).0;
                let pid = Pid::told(row.pid.unwrap_or(0));
                writer.interval(pid, began, row.time.since(started).0)?;
            }
            event => writer.other(event, event.time().since(started).0)?,
        }
    }
    let events = writer.events();
    writer.finish()?;
    Ok(events.unwrap_or(count))
}
