//! One table with object and line, in Parquet.

use std::io::Write as _;

use anyhow::{Result, anyhow};
use pagemill_model::dataset::FileWriter;
use pagemill_model::{NamedAccess, Nanos};

use super::format::{AccessWriter, Content, Format, Output, SymbolizedAccess};

pub(super) const FORMAT: Format = Format {
    name: "parquet",
    about: "Accesses with object and line, one table",
    content: Content::Accesses(|out, _| {
        let file = FileWriter::create(out).map_err(|error| anyhow!(error))?;
        Ok(Box::new(Parquet { file, rows: Vec::new() }))
    }),
};

/// Rows of one group of a file.
const GROUP: usize = 1 << 18;

struct Parquet {
    file: FileWriter<Output, NamedAccess>,
    rows: Vec<NamedAccess>,
}

impl Parquet {
    fn flush(&mut self) -> Result<()> {
        self.file.write(&self.rows).map_err(|error| anyhow!(error))?;
        self.rows.clear();
        Ok(())
    }
}

impl AccessWriter for Parquet {
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
