//! Accesses, page faults, heap and huge pages as trace events in JSON, which Perfetto opens.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::Result;
use pagemill_analysis::faults::Category;
use pagemill_launch::stdio::printable;
use pagemill_model::fault::Flags;
use pagemill_model::sums::sum;
use pagemill_model::{Event, Pid};
use serde_json::{Map, Value, json};

use super::format::{AccessWriter, Content, Format, Output, SymbolizedAccess};

pub(super) const FORMAT: Format = Format {
    name: "perfetto",
    about: "Accesses, page faults, heap and huge pages as trace events in JSON, which Perfetto opens",
    content: Content::Events(|out, _| Ok(Box::new(Perfetto::new(out)?))),
};

/// Trace events in JSON: a moment on its thread's track for each access, a counter of each interval's accesses.
struct Perfetto {
    out: Output,
    events: u64,
    counts: BTreeMap<Pid, (u64, u64)>,
}

impl Perfetto {
    fn new(mut out: Output) -> Result<Self> {
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

impl AccessWriter for Perfetto {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        let row = access.row;
        let counts = self.counts.entry(Pid::told(row.pid.unwrap_or(0))).or_default();
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

    fn interval(&mut self, pid: Pid, began: u64, _ended: u64) -> Result<()> {
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
                        "locks_ns": row.locks, "waited_ns": row.waited,
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
