//! Accesses as CSV in the columns of Mitos's samples.

use std::io::Write as _;

use anyhow::Result;
use pagemill_launch::stdio::printable;

use super::format::{AccessWriter, Content, Format, Output, SymbolizedAccess};

pub(super) const FORMAT: Format = Format {
    name: "mitos",
    about: "Accesses as CSV in the columns of Mitos's samples",
    content: Content::Accesses(|out, _| Ok(Box::new(Mitos::new(out)?))),
};

/// A field of CSV.
fn field(text: &str) -> String {
    let text = printable(text);
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into_owned(),
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
struct Mitos(Output);

impl Mitos {
    fn new(mut out: Output) -> Result<Self> {
        writeln!(
            out,
            "source,line,instruction,bytes,ip,variable,buffer_size,dims,xidx,yidx,zidx,pid,tid,time,addr,cpu,\
             latency,data_src"
        )?;
        Ok(Self(out))
    }
}

impl AccessWriter for Mitos {
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
}
