//! Accesses as CSV in the columns of TABARNAC's pages.

use std::collections::BTreeMap;
use std::io::Write as _;

use anyhow::Result;

use super::format::{AccessWriter, Content, Format, Output, SymbolizedAccess};

pub(super) const FORMAT: Format = Format {
    name: "tabarnac",
    about: "Accesses as CSV in the columns of TABARNAC's pages",
    content: Content::Accesses(|out, meta| {
        let page = meta.page_size.0;
        Ok(Box::new(Tabarnac { out, page, pages: BTreeMap::new(), threads: Vec::new() }))
    }),
};

/// Two lines for each page, reads and writes, with a column for each thread.
struct Tabarnac {
    out: Output,
    page: u64,
    /// By page: number of the thread that came first, reads and writes by thread.
    pages: BTreeMap<u64, (usize, [BTreeMap<usize, u64>; 2])>,
    threads: Vec<u64>,
}

impl AccessWriter for Tabarnac {
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
