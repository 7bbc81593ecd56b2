//! `heap`: the statistics of a running heap, without stopping the program.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use pagemill_analysis::heap::{HeapFold, HeapView, fragmentation_score, mean_occupancy};
use pagemill_kernel::Linux;
use pagemill_model::{Bytes, Event, Fold as _, HeapSample, Nanos, Pid};
use serde_json::{Value, json};

use pagemill_launch::exit::{Exit, permitted};
use pagemill_launch::stats_page;
use pagemill_launch::stdio;
use pagemill_record::sampler::Sampler;
use pagemill_report::draw::text;
use pagemill_report::heap as heap_report;

const EXAMPLES: &str = "\
Examples:
  pagemill heap 4711
  pagemill heap redis-server
  pagemill heap 4711 --watch 500ms
  pagemill heap 4711 --json | jq .sample.footprint_bytes
  pagemill heap 4711 --compact          ask for a compaction pass and wait for it
";

const AFTER: &str = "\
Exit status: 0 shown; 2 there is no such process or it has no pagemill heap; 4 it may not be looked into.";

/// Which process to look at, and how.
#[derive(Debug, Args)]
#[command(before_long_help = EXAMPLES, before_help = EXAMPLES, after_help = AFTER)]
pub struct Arguments {
    /// The process: its id or its name.
    #[arg(value_name = "PID", value_parser = crate::values::process)]
    pid: Pid,
    /// Print a frame again and again, every INTERVAL, until the process ends.
    #[arg(
        long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "1s",
        value_parser = crate::values::interval
    )]
    watch: Option<Nanos>,
    /// Print one frame (the default).
    #[arg(long, conflicts_with = "watch")]
    once: bool,
    #[command(flatten)]
    printed: crate::values::Printed,
    #[command(flatten)]
    redact: crate::values::Redact,
    /// Ask the heap for a compaction pass and wait until it is done.
    #[arg(long)]
    compact: bool,
}

/// How long a requested pass may take. It works in slices beside the program, which may be busy.
const COMPACT_PATIENCE: Duration = Duration::from_secs(60);

/// The shortest time between frames: each costs the process a walk of its page tables.
const WATCH_FLOOR: Nanos = Nanos(10_000_000);

/// Runs the verb.
pub fn run(arguments: &Arguments) -> Result<Exit> {
    permitted(frames(arguments))
}

fn frames(arguments: &Arguments) -> Result<Exit> {
    let linux = pagemill_launch::context::machine();
    let redact = arguments.redact.redact;
    let mut sampler = Sampler::attach(linux.clone(), arguments.pid)?;
    let mut first = next(&mut sampler)?;
    if first.is_some() && sampler.page().is_none() && sampler.comm() == WRAPPER {
        let pid = under_wrapper(&linux, arguments.pid)?;
        sampler = Sampler::attach(linux.clone(), pid)?;
        first = next(&mut sampler)?;
        let (wrapper, program) = (arguments.pid, if redact { "program" } else { sampler.comm() });
        eprintln!(
            "process {wrapper} is pagemill itself; shown is the program under it, {pid} ({program})"
        );
    }
    let pid = sampler.pid();
    if first.is_none() {
        match linux.stat(pid) {
            Ok(stat) if stat.kernel_thread => {
                bail!("process {pid} ({}) is a thread of the kernel: it has no heap", stat.comm)
            }
            _ => bail!("process {pid} has ended"),
        }
    }
    if sampler.page().is_none() {
        let below = heaps_below(&linux, pid);
        let way = match below.first() {
            Some(child) => format!("one of its descendants has: pagemill heap {child}"),
            None => "start the program with: pagemill run --heap compact -- CMD".to_owned(),
        };
        let comm = if redact { "program" } else { sampler.comm() };
        bail!("process {pid} ({comm}) has no pagemill heap ({way})");
    }
    if arguments.compact {
        compact(&sampler, pid)?;
    }
    let mut fold = HeapFold::default();
    let interval = arguments.watch.map(|interval| Duration::from(interval.max(WATCH_FLOOR)));
    let clears = interval.is_some() && !arguments.printed.json;
    let mut is_first = true;
    while let Some(sample) = next(&mut sampler)? {
        fold.event(&Event::Heap(Box::new(sample.clone())));
        let comm = if redact { "program" } else { sampler.comm() };
        let frame = Frame { sampler: &sampler, comm, sample: &sample, view: fold.view() };
        let text = match (arguments.printed.json, interval) {
            (true, _) => crate::answer::text("heap", frame.json(), interval.map(|_| is_first))?,
            (false, Some(_)) if stdio::terminal().is_none() => format!("{}\n", frame.text()),
            (false, _) => frame.text(),
        };
        is_first = false;
        // Whoever read us has seen enough.
        if !stdio::frame(&text, clears) {
            return Ok(Exit::Ok);
        }
        let Some(interval) = interval else { return Ok(Exit::Ok) };
        thread::sleep(interval);
    }
    eprintln!("process {pid} has ended");
    Ok(Exit::Ok)
}

/// The name of the process that `run --ksm` and `record` stay as, above the program.
const WRAPPER: &str = "pagemill";

/// How long a wrapper's program is waited for: it may be about to be started, and to load the library.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// The program that runs under the wrapper `pid`: the topmost one that has a heap.
fn under_wrapper(linux: &Linux, pid: Pid) -> Result<Pid> {
    let begun = Instant::now();
    loop {
        if let Some(program) = heaps_below(linux, pid).first() {
            return Ok(*program);
        }
        if begun.elapsed() > START_PATIENCE || linux.stat(pid).is_err() {
            bail!("process {pid} is pagemill itself, and no program with a heap runs under it");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Descendants of `pid` that run on the library, nearest first.
fn heaps_below(linux: &Linux, pid: Pid) -> Vec<Pid> {
    let mut to_visit = std::collections::VecDeque::from([pid]);
    let mut found = Vec::new();
    while let Some(parent) = to_visit.pop_front() {
        let children = linux.children(parent).unwrap_or_default();
        let on_heap = |child: &&Pid| matches!(stats_page::locate(linux, **child), Ok(Some(_)));
        found.extend(children.iter().filter(on_heap));
        to_visit.extend(children);
    }
    found
}

fn next(sampler: &mut Sampler) -> Result<Option<HeapSample>> {
    Ok(sampler.sample()?)
}

/// Asks for a pass and waits for it; what it gained goes to stderr.
fn compact(sampler: &Sampler, pid: Pid) -> Result<()> {
    let Some(page) = sampler.page() else { bail!("process {pid} has no pagemill heap") };
    let Some(before) = page.read()? else {
        bail!("the heap of process {pid} has not started: there is nothing to compact")
    };
    if before.config_name().is_some_and(|name| !name.ends_with('y')) {
        bail!(
            "the heap of process {pid} does not compact: its configuration is {} (start the program with: \
             pagemill run --heap compact -- CMD)",
            before.config_name().unwrap_or("unknown")
        );
    }
    let request = page.request_compaction()?;
    let begun = Instant::now();
    let after = loop {
        thread::sleep(Duration::from_millis(5));
        match page.read()? {
            Some(now) if now.request_done.is_some_and(|done| done >= request) => break now,
            _ if begun.elapsed() > COMPACT_PATIENCE => bail!(
                "the heap of process {pid} has not compacted within {} s: {}",
                COMPACT_PATIENCE.as_secs(),
                heap_report::degradations(before.degraded.unwrap_or(0)).first().map_or(
                    "its helper thread is not running or the program is stopped",
                    String::as_str
                )
            ),
            _ => {}
        }
    };
    let size = |bytes: Option<u64>| Bytes(bytes.unwrap_or(0)).plain();
    let time = Nanos(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
    eprintln!(
        "compacted in {}: footprint {} -> {}",
        time.plain(),
        size(before.footprint_bytes),
        size(after.footprint_bytes)
    );
    Ok(())
}

/// One look at the heap.
struct Frame<'a> {
    sampler: &'a Sampler,
    comm: &'a str,
    sample: &'a HeapSample,
    view: HeapView,
}

impl Frame<'_> {
    fn score(&self) -> Option<f64> {
        fragmentation_score(self.sample.live?, self.sample.footprint?)
    }

    /// The part of the pages that ksmd looks at which is this process's.
    fn ksmd_share(&self) -> Option<f64> {
        let all = self.sample.ksm_items_all.filter(|all| *all > 0)?;
        Some((self.sample.ksm_items? as f64 / all as f64).min(1.0))
    }

    fn json(&self) -> Value {
        let (missing, totals) = (self.sampler.not_measured(), self.totals());
        json!({
            "comm": self.comm,
            "sample": heap_report::sample_json(self.sample),
            "fragmentation_score": self.score(),
            "mean_occupancy": self.sample.occupancy.as_deref().and_then(mean_occupancy),
            "pauses": totals.pauses.as_ref().map(heap_report::pauses_json),
            "stalls": totals.stalls.as_ref().map(heap_report::pauses_json),
            "ksmd_share": self.ksmd_share(),
            "resting": heap_report::resting(self.sample),
            "degraded": heap_report::degradations(self.sample.degraded.unwrap_or(0)),
            "not_measured": missing,
        })
    }

    /// Totals since the heap started, from this sample alone.
    fn totals(&self) -> HeapView {
        let mut fold = HeapFold::default();
        let origin = HeapSample { time: Nanos(0), ..HeapSample::default() };
        fold.event(&Event::Heap(Box::new(origin)));
        fold.event(&Event::Heap(Box::new(self.sample.clone())));
        fold.view()
    }

    fn text(&self) -> String {
        let sample = self.sample;
        let word = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        let heap = match sample.live {
            Some(_) => format!(
                "configuration {}, back end {}, barrier {}",
                word(&sample.config),
                heap_report::back_end(sample),
                word(&sample.barrier)
            ),
            None => "the heap has not started".to_owned(),
        };
        let mut out = format!("{} ({})   {heap}\n", self.comm, sample.pid.unwrap_or(0));
        for (title, rows) in [
            ("heap", self.heap_rows()),
            ("kernel's view", self.kernel_rows()),
            ("compaction", self.compaction_rows()),
        ] {
            if !rows.is_empty() {
                out.push_str(&format!("\n{}", text::table(&[title, "", ""], &rows)));
            }
        }
        self.occupancy(&mut out);
        let totals = self.totals();
        for (explained, name, durations) in [
            (heap_report::PAUSES, "pauses", totals.pauses),
            (heap_report::STALLS, "stalls", totals.stalls),
        ] {
            let Some(durations) = durations.filter(|durations| durations.count > 0) else {
                continue;
            };
            let table = text::table(&[], &heap_report::percentiles(&durations));
            let longest = durations
                .longest
                .map_or(String::new(), |longest| format!(", longest {}", longest.plain()));
            out.push_str(&format!("\n{explained}\n{table}{} {name}{longest}\n", durations.count));
        }
        let notes = [
            ("degraded", heap_report::degradations(sample.degraded.unwrap_or(0))),
            (
                "not measured",
                self.sampler
                    .not_measured()
                    .iter()
                    .map(|missing| format!("{}: {}", missing.what, missing.why))
                    .collect(),
            ),
        ];
        for (title, lines) in notes {
            for line in lines {
                out.push_str(&format!("\n{title}: {line}\n"));
            }
        }
        out
    }

    fn heap_rows(&self) -> Vec<Vec<String>> {
        let sample = self.sample;
        let mut rows = Rows::default();
        rows.size("live", sample.live, "allocated, or in a thread's cache");
        rows.size(
            "footprint",
            sample.footprint,
            "physical memory of the heap, merged pages counted once",
        );
        rows.size("  peak", sample.footprint_peak, "");
        rows.size("  free and resident", sample.dirty, "given back after a while");
        rows.size("  in thread caches", sample.cached, "");
        rows.size("  large objects", sample.large, "");
        rows.size("own tables", sample.metadata, "");
        rows.size("address space", sample.mapped, "");
        rows.add(
            "fragmentation score",
            self.score().map(|score| format!("{score:.2}")),
            "1 - live / footprint",
        );
        rows.add("thread caches", sample.threads.map(|threads| threads.to_string()), "");
        rows.0
    }

    fn kernel_rows(&self) -> Vec<Vec<String>> {
        let sample = self.sample;
        let mut rows = Rows::default();
        rows.size("Pss", sample.pss, "a page shared by n mappings counts 1/n in each");
        rows.size(
            "unmapped images",
            sample.unmapped,
            "merged pages that no page table has until they are touched: in no Pss",
        );
        let memory = sample.pss.zip(sample.unmapped).map(|(pss, more)| Bytes(pss.0 + more.0));
        rows.size("memory", memory, "their sum: the one to believe");
        rows.size("Rss", sample.rss, "counts a merged page once for each alias, so too high");
        rows.size("swapped out", sample.swap.filter(|swap| swap.0 > 0), "");
        rows.size(
            "cgroup charge",
            sample.cgroup,
            "all processes in the group, kernel memory included",
        );
        rows.size("  kernel memory", sample.cgroup_kernel, "");
        rows.add("mappings", sample.mappings.map(|count| count.to_string()), "");
        rows.0
    }

    fn compaction_rows(&self) -> Vec<Vec<String>> {
        let sample = self.sample;
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let mut rows = Rows::default();
        rows.add("groups in force", number(sample.groups), "sets of pages that share one image");
        rows.size("  merged", sample.merged, "");
        rows.size("  saved", sample.saved, "");
        rows.size("free pages given back", sample.released, "in total");
        rows.add(
            "un-merged pages",
            number(sample.unmerged_pages),
            "written to after merging, in total",
        );
        rows.add(
            "groups given up",
            number(sample.aborted_groups),
            "changed, pinned or over budget, in total",
        );
        let budget = heap_report::mapping_bound(sample).unwrap_or_default();
        rows.add("mappings held", number(sample.vmas), &budget);
        rows.add("passes", number(sample.passes), &self.triggers());
        let last = heap_report::last_pass(sample).unwrap_or_default();
        rows.add("resting", heap_report::resting(sample), last);
        rows.size("  could be saved", sample.mergeable, "as the last look at every span found");
        rows.size(
            "  left alone",
            sample.left_alone.filter(|bytes| bytes.0 > 0),
            "sparse pages that the program wrote lately, for a while",
        );
        rows.time("time of compaction", sample.compact, "wall time, in total");
        rows.time("CPU of the helper", sample.helper_cpu, "part of the process's CPU time");
        rows.time("CPU of the process", sample.cpu, "");
        let share = self.ksmd_share().map_or_else(
            || "since boot, for all processes".into(),
            |share| format!("since boot, for all processes; {:.1} % of the pages it looks at are this one's", share * 100.0),
        );
        rows.time("CPU of ksmd", sample.ksmd_cpu, &share);
        if self.view.samples > 1 {
            rows.time("  this process's share", self.view.ksmd_cpu, "since this view began");
        }
        rows.add(
            "waiting for ksmd",
            number(heap_report::waiting_for_ksmd(sample, pagemill_kernel::page_size() as u64)),
            "pages offered, not merged yet",
        );
        rows.0
    }

    fn triggers(&self) -> String {
        let sample = self.sample;
        let triggers = [
            ("score", sample.trigger_score),
            ("idle", sample.trigger_idle),
            ("pressure", sample.trigger_psi),
            ("cgroup", sample.trigger_cgroup),
            ("request", sample.trigger_request),
            ("not worth it", sample.gated),
        ];
        let some: Vec<String> = triggers
            .into_iter()
            .filter_map(|(name, count)| {
                count.filter(|count| *count > 0).map(|count| format!("{name} {count}"))
            })
            .collect();
        some.join(", ")
    }

    fn occupancy(&self, out: &mut String) {
        let Some(histogram) = self.sample.occupancy.as_deref() else { return };
        let Some(mean) = mean_occupancy(histogram) else { return };
        let most = histogram.iter().copied().max().unwrap_or(1).max(1);
        out.push_str(&format!("\nspans by live share (mean {:.0} %)\n", mean * 100.0));
        for (index, count) in histogram.iter().enumerate() {
            let label = heap_report::occupancy_label(index, histogram.len());
            let bar = text::bar(*count as f64 / most as f64, 40);
            out.push_str(format!("{label:>9} {count:>9} {bar}").trim_end());
            out.push('\n');
        }
    }
}

/// Rows of name, value and remark; a value that was not measured leaves its row out.
#[derive(Default)]
struct Rows(Vec<Vec<String>>);

impl Rows {
    fn add(&mut self, name: &str, value: Option<String>, remark: &str) {
        self.0.extend(value.map(|value| vec![name.to_owned(), value, remark.to_owned()]));
    }

    fn size(&mut self, name: &str, value: Option<Bytes>, remark: &str) {
        self.add(name, value.map(|value| value.to_string()), remark);
    }

    fn time(&mut self, name: &str, value: Option<Nanos>, remark: &str) {
        self.add(name, value.map(|value| value.to_string()), remark);
    }
}
