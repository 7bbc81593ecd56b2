//! Accesses as CSV in Moca's columns.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::Result;
use pagemill_model::Pid;

use super::format::{AccessWriter, Content, Format, Output, SymbolizedAccess};

pub(super) const FORMAT: Format = Format {
    name: "moca",
    about: "Accesses as CSV in Moca's columns: pages, intervals, threads",
    content: Content::Accesses(|out, meta| Ok(Box::new(Moca::new(out, meta.page_size.0)?))),
};

/// One line for each page, interval and thread, as Moca flushes its chunks.
struct Moca {
    out: Output,
    page: u64,
    /// By process, page and thread: reads, writes, processors.
    pages: BTreeMap<(Pid, u64, u64), (u64, u64, u64)>,
    began: u64,
    last: u64,
}

impl Moca {
    fn new(mut out: Output, page: u64) -> Result<Self> {
        writeln!(out, "@Virt, @Phy, Nreads, Nwrites, CPUMask, Start, End, TaskId")?;
        Ok(Self { out, page: page.max(1), pages: BTreeMap::new(), began: 0, last: 0 })
    }
}

impl AccessWriter for Moca {
    fn access(&mut self, access: &SymbolizedAccess<'_>) -> Result<()> {
        let row = access.row;
        let page = row.address.unwrap_or(0) / self.page * self.page;
        let key = (Pid::told(row.pid.unwrap_or(0)), page, row.tid.unwrap_or(0));
        let counts = self.pages.entry(key).or_default();
        *(if access.write { &mut counts.1 } else { &mut counts.0 }) += access.count;
        counts.2 |= 1 << row.cpu.unwrap_or(0).min(63);
        self.last = access.since;
        Ok(())
    }

    fn interval(&mut self, pid: Pid, began: u64, ended: u64) -> Result<()> {
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
        let mut pids: Vec<Pid> = self.pages.keys().map(|key| key.0).collect();
        pids.dedup();
        let (began, last) = (self.began, self.last);
        for pid in pids {
            self.interval(pid, began, last)?;
        }
        self.out.flush()?;
        Ok(())
    }
}
