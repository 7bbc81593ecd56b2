//! Accesses in the formats of other tools: Parquet, CSV as Moca, TABARNAC and Mitos have it, trace events for
//! Perfetto, a profile for the Firefox Profiler.
//!
//! Each format is a writer that is handed the accesses one by one, named, and the end of each interval. What a
//! format asks for and a recording does not have is written as its zero or left empty: see docs/verbs/export.md.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use anyhow::{Result, anyhow};
use pagemill_analysis::faults::Category;
use pagemill_analysis::objects::{KERNEL, Names};
use pagemill_launch::stdio::printable;
use pagemill_model::dataset::FileWriter;
use pagemill_model::fault::Flags;
use pagemill_model::recording::Reader;
use pagemill_model::sums::sum;
use pagemill_model::{Access, Event, NamedAccess, Nanos, Source as _};
use serde_json::{Map, Value, json};

use super::format::Format;
use pagemill_record::symbols::Files;

/// Rows of one group of a Parquet file.
const GROUP: usize = 1 << 18;

/// An access with its names.
struct SymbolizedAccess<'a> {
    row: &'a Access,
    since: u64,
    write: bool,
    /// Accesses that the row stands for.
    count: u64,
    fetch: bool,
    in_kernel: bool,
    object: &'a str,
    kind: &'a str,
    /// From where the object begins, and its bytes.
    offset: u64,
    size: u64,
    line: &'a str,
}

/// One format.
trait Writing {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()>;
    /// An interval of a process ends: when it began and ended.
    fn interval(&mut self, _pid: u64, _began: u64, _ended: u64) -> Result<()> {
        Ok(())
    }
    /// Any other event, so long after the start, of which the format may have something.
    fn other(&mut self, _event: &Event, _since: u64) -> Result<()> {
        Ok(())
    }
    /// How many events it wrote, where that is not the number of accesses.
    fn events(&self) -> Option<u64> {
        None
    }
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Writes the accesses of a recording, and what else the format has, and says how many there were.
pub(super) fn write(
    reader: &mut Reader,
    format: Format,
    out: impl Write + Send + 'static,
) -> Result<u64> {
    let meta = reader.meta().clone();
    let out = std::io::BufWriter::new(out);
    let mut writing: Box<dyn Writing> = match format {
        Format::Parquet => Box::new(Parquet {
            file: FileWriter::create(out).map_err(|e| anyhow!(e))?,
            rows: Vec::new(),
        }),
        Format::Moca => Box::new(Moca::new(out, meta.page_size.0)?),
        Format::Tabarnac => Box::new(Tabarnac {
            out,
            page: meta.page_size.0,
            pages: BTreeMap::new(),
            threads: Vec::new(),
        }),
        Format::Mitos => Box::new(Mitos::new(out)?),
        Format::Perfetto => Box::new(Perfetto::new(out)?),
        Format::Firefox => Box::new(Firefox::new(out, &meta)),
        Format::Pftrace | Format::Folded | Format::Speedscope => {
            return Err(anyhow!("{format:?} holds no accesses one by one"));
        }
    };
    let mut names = Names::new(Files::default());
    let mut objects: Vec<Option<(String, String)>> = Vec::new();
    let mut lines: HashMap<(u64, u64), String> = HashMap::new();
    let mut count = 0;
    while let Some(event) = reader.next_event()? {
        names.event(&event);
        match &event {
            Event::Access(row) => {
                let pid = row.pid.unwrap_or(0);
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
                writing.access(&SymbolizedAccess {
                    row,
                    since: row.time.since(meta.started).0,
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
                let began = row.began.unwrap_or(row.time).since(meta.started).0;
                writing.interval(row.pid.unwrap_or(0), began, row.time.since(meta.started).0)?;
            }
            event => writing.other(event, event.time().since(meta.started).0)?,
        }
    }
    let events = writing.events();
    writing.finish()?;
    Ok(events.unwrap_or(count))
}

struct Parquet<W: Write + Send> {
    file: FileWriter<W, NamedAccess>,
    rows: Vec<NamedAccess>,
}

impl<W: Write + Send> Parquet<W> {
    fn flush(&mut self) -> Result<()> {
        self.file.write(&self.rows).map_err(|error| anyhow!(error))?;
        self.rows.clear();
        Ok(())
    }
}

impl<W: Write + Send> Writing for Parquet<W> {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        let SymbolizedAccess { row, .. } = access;
        self.rows.push(NamedAccess {
            time: Nanos(access.since),
            pid: row.pid,
            tid: row.tid,
            cpu: row.cpu,
            address: row.address,
            write: Some(access.write.into()),
            count: Some(access.count),
            in_kernel: Some(access.in_kernel.into()),
            object: Some(access.object.to_owned()),
            kind: Some(access.kind.to_owned()),
            offset: Some(access.offset),
            instruction: row.instruction,
            line: Some(access.line.to_owned()),
            latency: row.latency,
            data_source: row.data_source,
        });
        if self.rows.len() >= GROUP { self.flush() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.flush()?;
        self.file.finish().map_err(|error| anyhow!(error))?.flush()?;
        Ok(())
    }
}

/// A field of CSV.
fn field(text: &str) -> String {
    let text = printable(text);
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into_owned(),
    }
}

/// One line for each page, interval and thread, as Moca flushes its chunks.
struct Moca<W> {
    out: W,
    page: u64,
    /// By process, page and thread: reads, writes, processors.
    pages: BTreeMap<(u64, u64, u64), (u64, u64, u64)>,
    began: u64,
    last: u64,
}

impl<W: Write> Moca<W> {
    fn new(mut out: W, page: u64) -> Result<Self> {
        writeln!(out, "@Virt, @Phy, Nreads, Nwrites, CPUMask, Start, End, TaskId")?;
        Ok(Self { out, page: page.max(1), pages: BTreeMap::new(), began: 0, last: 0 })
    }
}

impl<W: Write> Writing for Moca<W> {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        let row = access.row;
        let page = row.address.unwrap_or(0) / self.page * self.page;
        let key = (row.pid.unwrap_or(0), page, row.tid.unwrap_or(0));
        let counts = self.pages.entry(key).or_default();
        *(if access.write { &mut counts.1 } else { &mut counts.0 }) += access.count;
        counts.2 |= 1 << row.cpu.unwrap_or(0).min(63);
        self.last = access.since;
        Ok(())
    }

    fn interval(&mut self, pid: u64, began: u64, ended: u64) -> Result<()> {
        let pages = std::mem::take(&mut self.pages);
        let (ended_now, others) = pages.into_iter().partition(|(key, _)| key.0 == pid);
        self.pages = others;
        let ended_now: BTreeMap<_, _> = ended_now;
        for ((_, page, tid), (reads, writes, processors)) in ended_now {
            writeln!(
                self.out,
                "{page:#x}, 0x0, {reads}, {writes}, {processors}, {began}, {ended}, {tid}"
            )?;
        }
        self.began = ended;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        // What came after the last interval of a recording that was cut off.
        let mut pids: Vec<u64> = self.pages.keys().map(|key| key.0).collect();
        pids.dedup();
        let (began, last) = (self.began, self.last);
        for pid in pids {
            self.interval(pid, began, last)?;
        }
        self.out.flush()?;
        Ok(())
    }
}

/// Two lines for each page, reads and writes, with a column for each thread.
struct Tabarnac<W> {
    out: W,
    page: u64,
    /// By page: number of the thread that came first, reads and writes by thread.
    pages: BTreeMap<u64, (usize, [BTreeMap<usize, u64>; 2])>,
    threads: Vec<u64>,
}

impl<W: Write> Writing for Tabarnac<W> {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        // It counts what instructions load and store, not what they are loaded from.
        if access.fetch {
            return Ok(());
        }
        let tid = access.row.tid.unwrap_or(0);
        let thread = self.threads.iter().position(|known| *known == tid).unwrap_or_else(|| {
            self.threads.push(tid);
            self.threads.len() - 1
        });
        let page = access.row.address.unwrap_or(0) / self.page.max(1);
        let (_, counts) = self.pages.entry(page).or_insert_with(|| (thread, Default::default()));
        *counts[usize::from(access.write)].entry(thread).or_default() += access.count;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        write!(self.out, "addr,firstacc,type")?;
        for thread in 0..self.threads.len() {
            write!(self.out, ",T{thread}")?;
        }
        writeln!(self.out)?;
        for (at, letter) in ["R", "W"].into_iter().enumerate() {
            for (page, (first, counts)) in
                self.pages.iter().filter(|(_, (_, counts))| !counts[at].is_empty())
            {
                write!(self.out, "{page},{first},{letter}")?;
                for thread in 0..self.threads.len() {
                    write!(self.out, ",{}", counts[at].get(&thread).unwrap_or(&0))?;
                }
                writeln!(self.out)?;
            }
        }
        self.out.flush()?;
        Ok(())
    }
}

/// File and line of `function (file:line)`; what says neither is the source.
fn place(text: &str) -> (&str, &str) {
    let place = text
        .rsplit_once('(')
        .and_then(|(_, place)| place.strip_suffix(')')?.rsplit_once(':'))
        .filter(|(_, line)| line.parse::<u64>().is_ok());
    place.unwrap_or((text, "0"))
}

/// One line for each access.
struct Mitos<W>(W);

impl<W: Write> Mitos<W> {
    fn new(mut out: W) -> Result<Self> {
        writeln!(
            out,
            "source,line,instruction,bytes,ip,variable,buffer_size,dims,xidx,yidx,zidx,pid,tid,time,addr,cpu,latency,data_src"
        )?;
        Ok(Self(out))
    }
}

impl<W: Write> Writing for Mitos<W> {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        let row = access.row;
        let (source, line) = place(access.line);
        let number = |value: Option<u64>| value.unwrap_or(0);
        writeln!(
            self.0,
            "{},{line},{},1,{:#x},{},{},1,{},0,0,{},{},{},{:#x},{},{},{}",
            field(source),
            if access.write { "W" } else { "R" },
            number(row.instruction),
            field(access.object),
            access.size,
            access.offset,
            number(row.pid),
            number(row.tid),
            access.since,
            number(row.address),
            number(row.cpu),
            number(row.latency),
            number(row.data_source),
        )?;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.0.flush()?;
        Ok(())
    }
}

/// Trace events in JSON: a moment on its thread's track for each access, a counter of each interval's accesses.
struct Perfetto<W> {
    out: W,
    events: u64,
    counts: BTreeMap<u64, (u64, u64)>,
}

impl<W: Write> Perfetto<W> {
    fn new(mut out: W) -> Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        Ok(Self { out, events: 0, counts: BTreeMap::new() })
    }

    fn put(&mut self, event: &Value) -> Result<()> {
        let lead = if self.events == 0 { "" } else { ",\n" };
        self.events += 1;
        write!(self.out, "{lead}{}", printable(&event.to_string()))?;
        Ok(())
    }
}

impl<W: Write> Writing for Perfetto<W> {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        let row = access.row;
        let counts = self.counts.entry(row.pid.unwrap_or(0)).or_default();
        *(if access.write { &mut counts.1 } else { &mut counts.0 }) += access.count;
        let address = format!("{:#x}", row.address.unwrap_or(0));
        self.put(&json!({
            "name": access.object, "cat": if access.write { "write" } else { "read" }, "ph": "i", "s": "t",
            "ts": access.since as f64 / 1e3, "pid": row.pid, "tid": row.tid,
            "args": {
                "address": address, "offset": access.offset, "line": access.line, "cpu": row.cpu,
                "count": access.count,
            },
        }))
    }

    fn interval(&mut self, pid: u64, began: u64, _ended: u64) -> Result<()> {
        let (reads, writes) = self.counts.remove(&pid).unwrap_or_default();
        self.put(&json!({
            "name": "accesses of an interval", "ph": "C", "ts": began as f64 / 1e3, "pid": pid,
            "args": { "reads": reads, "writes": writes },
        }))
    }

    fn other(&mut self, event: &Event, since: u64) -> Result<()> {
        let at = since as f64 / 1e3;
        match event {
            // A fault's stamp is its end.
            Event::Fault(row) => {
                let flags = Flags(row.flags.unwrap_or(0));
                let address = format!("{:#x}", row.address.unwrap_or(0));
                self.put(&json!({
                    "name": format!("page fault, {}", Category::of(flags, true).name()), "cat": "fault", "ph": "X",
                    "ts": since.saturating_sub(row.latency.0) as f64 / 1e3, "dur": row.latency.0 as f64 / 1e3,
                    "pid": row.pid, "tid": row.tid,
                    "args": {
                        "address": address, "is": flags.names(), "clearing_ns": row.after_allocation,
                        "compaction_ns": row.compaction, "reclaim_ns": row.reclaim,
                    },
                }))?;
            }
            Event::FaultCounts(row) => {
                let name = Category::of(Flags(row.flags.unwrap_or(0)), true).name();
                let counts = row.counts.iter().flatten();
                let faults = sum(counts.copied());
                self.put(&json!({
                    "name": format!("page faults, {name}"), "ph": "C", "ts": at, "pid": 0, "args": { "faults": faults },
                }))?;
            }
            Event::Heap(row) => {
                let memory = [
                    ("live", row.live), ("footprint", row.footprint), ("pss", row.pss), ("merged", row.merged),
                ];
                let memory: Map<String, Value> =
                    memory.into_iter().filter_map(|(name, bytes)| Some((name.into(), bytes?.0.into()))).collect();
                self.put(&json!({ "name": "heap, bytes", "ph": "C", "ts": at, "pid": row.pid, "args": memory }))?;
                if let (Some(passes), Some(longest)) = (row.passes, row.longest_pause) {
                    self.put(&json!({
                        "name": "compaction", "ph": "C", "ts": at, "pid": row.pid,
                        "args": { "passes": passes, "longest_pause_ns": longest },
                    }))?;
                }
            }
            Event::Mapping(row) if row.huge.is_some() => self.put(&json!({
                "name": format!("{} {:#x}", row.name.as_deref().unwrap_or(""), row.start.unwrap_or(0)), "ph": "C",
                "ts": at, "pid": row.pid, "args": { "anonymous": row.anonymous, "on_huge_pages": row.huge },
            }))?,
            _ => {}
        }
        Ok(())
    }

    fn events(&self) -> Option<u64> {
        Some(self.events)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok(())
    }
}

/// A table of texts, each once.
#[derive(Default)]
struct Texts {
    numbers: HashMap<String, usize>,
    order: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &str) -> usize {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.order.push(text.to_owned());
        self.numbers.insert(text.to_owned(), self.order.len() - 1);
        self.order.len() - 1
    }
}

/// A thread of a profile: its samples, and stacks of two frames, line below object.
#[derive(Default)]
struct Thread {
    pid: u64,
    texts: Texts,
    /// Frames by name; each is a function of its own.
    frames: HashMap<String, usize>,
    functions: Vec<usize>,
    /// Stacks by frame and the stack below.
    stacks: HashMap<(usize, Option<usize>), usize>,
    stack_rows: Vec<(usize, Option<usize>)>,
    /// Stack, time and accesses.
    samples: Vec<(usize, f64, u64)>,
}

impl Thread {
    fn stack(&mut self, name: &str, below: Option<usize>) -> usize {
        let frame = match self.frames.get(name) {
            Some(frame) => *frame,
            None => {
                self.functions.push(self.texts.number(name));
                self.frames.insert(name.to_owned(), self.functions.len() - 1);
                self.functions.len() - 1
            }
        };
        let rows = &mut self.stack_rows;
        *self.stacks.entry((frame, below)).or_insert_with(|| {
            rows.push((frame, below));
            rows.len() - 1
        })
    }

    fn json(&self, tid: u64, main: u64) -> Value {
        let (frames, stacks, samples) =
            (self.functions.len(), self.stack_rows.len(), self.samples.len());
        let all = |value: Value, length: usize| vec![value; length];
        json!({
            "processType": "default", "processStartupTime": 0, "processShutdownTime": null, "registerTime": 0,
            "unregisterTime": null, "pausedRanges": [], "name": format!("thread {tid}"),
            "isMainThread": tid == main, "pid": self.pid.to_string(), "tid": tid,
            "samples": {
                "weightType": "samples", "length": samples,
                "weight": self.samples.iter().map(|sample| sample.2).collect::<Vec<_>>(),
                "stack": self.samples.iter().map(|sample| sample.0).collect::<Vec<_>>(),
                "time": self.samples.iter().map(|sample| sample.1).collect::<Vec<_>>(),
            },
            "markers": { "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": [] },
            "stackTable": {
                "length": stacks,
                "frame": self.stack_rows.iter().map(|row| row.0).collect::<Vec<_>>(),
                "prefix": self.stack_rows.iter().map(|row| row.1).collect::<Vec<_>>(),
                "category": all(json!(0), stacks), "subcategory": all(json!(0), stacks),
            },
            "frameTable": {
                "length": frames, "address": all(json!(-1), frames), "inlineDepth": all(json!(0), frames),
                "category": all(json!(0), frames), "subcategory": all(json!(0), frames),
                "func": (0..frames).collect::<Vec<_>>(), "nativeSymbol": all(Value::Null, frames),
                "innerWindowID": all(Value::Null, frames), "implementation": all(Value::Null, frames),
                "line": all(Value::Null, frames), "column": all(Value::Null, frames),
            },
            "funcTable": {
                "length": frames, "name": self.functions, "isJS": all(json!(false), frames),
                "relevantForJS": all(json!(false), frames), "resource": all(json!(-1), frames),
                "fileName": all(Value::Null, frames), "lineNumber": all(Value::Null, frames),
                "columnNumber": all(Value::Null, frames),
            },
            "resourceTable": { "length": 0, "lib": [], "name": [], "host": [], "type": [] },
            "nativeSymbols": { "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [] },
            "stringArray": self.texts.order,
        })
    }
}

/// A processed profile: each access is a sample whose stack is the line of code, then the object.
struct Firefox<W> {
    out: W,
    name: String,
    main: u64,
    began: u64,
    threads: BTreeMap<u64, Thread>,
}

impl<W: Write> Firefox<W> {
    fn new(out: W, meta: &pagemill_model::recording::Meta) -> Self {
        Self {
            out,
            name: meta.comm.clone(),
            main: meta.pid,
            began: meta.started_unix.0,
            threads: BTreeMap::new(),
        }
    }
}

impl<W: Write> Writing for Firefox<W> {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        let thread = self.threads.entry(access.row.tid.unwrap_or(0)).or_default();
        thread.pid = access.row.pid.unwrap_or(0);
        let below = thread.stack(access.line, None);
        let word = if access.write { "write" } else { "read" };
        let stack = thread.stack(&format!("{} [{word}]", access.object), Some(below));
        thread.samples.push((stack, access.since as f64 / 1e6, access.count));
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let threads: Vec<Value> =
            self.threads.iter().map(|(tid, thread)| thread.json(*tid, self.main)).collect();
        let profile = json!({
            "meta": {
                "version": 24, "preprocessedProfileVersion": 46, "interval": 1,
                "startTime": self.began as f64 / 1e6, "processType": 0, "product": self.name, "stackwalk": 1,
                "categories": [{ "name": "Memory", "color": "blue", "subcategories": ["Other"] }],
                "markerSchema": [], "symbolicated": true,
            },
            "libs": [], "pages": [], "threads": threads,
        });
        self.out.write_all(printable(&profile.to_string()).as_bytes())?;
        self.out.flush()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_commas_stay_one_field() {
        assert_eq!(field("a"), "a");
        assert_eq!(field("map<a, \"b\">"), "\"map<a, \"\"b\"\">\"");
    }

    #[test]
    fn arguments_of_a_function_are_no_line() {
        assert_eq!(place("main (src/a.c:11)"), ("src/a.c", "11"));
        assert_eq!(place("use(std::ios_base, char)"), ("use(std::ios_base, char)", "0"));
        assert_eq!(place("libc.so.6+0x10"), ("libc.so.6+0x10", "0"));
    }

    #[test]
    fn a_stack_is_kept_once() {
        let mut thread = Thread::default();
        let below = thread.stack("main", None);
        let one = thread.stack("table [read]", Some(below));
        assert_eq!(thread.stack("main", None), below);
        assert_eq!(thread.stack("table [read]", Some(below)), one);
        assert_ne!(thread.stack("table [read]", None), one);
        assert_eq!((thread.functions.len(), thread.stack_rows.len()), (2, 3));
    }
}
