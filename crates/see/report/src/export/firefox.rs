//! Accesses as a profile for the Firefox Profiler.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;

use anyhow::Result;
use pagemill_launch::stdio::printable;
use pagemill_model::recording::Meta;
use serde_json::{Value, json};

use super::format::{AccessWriter, Content, Format, Output, SymbolizedAccess};

pub(super) const FORMAT: Format = Format {
    name: "firefox",
    about: "Accesses as a profile for the Firefox Profiler",
    content: Content::Accesses(|out, meta| Ok(Box::new(Firefox::new(out, meta)))),
};

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
            "markers": {
                "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": []
            },
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
struct Firefox {
    out: Output,
    name: String,
    main: u64,
    began: u64,
    threads: BTreeMap<u64, Thread>,
}

impl Firefox {
    fn new(out: Output, meta: &Meta) -> Self {
        Self {
            out,
            name: meta.comm.clone(),
            main: meta.pid,
            began: meta.started_unix.0,
            threads: BTreeMap::new(),
        }
    }
}

impl AccessWriter for Firefox {
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
