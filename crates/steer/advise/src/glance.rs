//! What levers may bring to a program that runs already, or that was recorded: estimates only, for nothing is tried.
//!
//! A running program is looked at for a while. Its pages, or a sample of them, are marked as not accessed once, at the
//! beginning ([`crate::marks`]), and some of its huge pages are read for pages of zeros, from outside. Pauses between
//! looks are 100 times what a look takes, and its malloc is read for a twentieth of the time at the most: all of it
//! costs the program 2 % at the most.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pagemill_analysis::hugepages::HugePageFold;
use pagemill_control::run_memory::{Memory, descendants, look};
use pagemill_kernel::huge_pages_of::Pages;
use pagemill_kernel::signal::Signals;
use pagemill_kernel::{Linux, psi};
use pagemill_launch::{program, stats_page};
use pagemill_model::recording::Meta;
use pagemill_model::whole::{self, TEXT};
use pagemill_model::{Bytes, Event, Fold as _, Pid};
use pagemill_record::malloc_free;
use pagemill_report::draw::text;
use serde_json::{Value, json};

use crate::ending::Interrupted;
use crate::estimate::Estimate;
use crate::lever::{Lever, REGISTRY, Start, Target};
use crate::look::Seen;
use crate::marks::Marks;

/// Time between two looks, in times of what one takes, and at the least.
const PAUSES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);
/// A part of the time for reading what its malloc keeps free, one in so many, and the least.
const READING: u32 = 20;
const READ: Duration = Duration::from_millis(200);
/// Huge pages that are read for zeros, at most.
const SAMPLED: usize = 64;
const HUGE: u64 = 2 << 20;
/// Stalls for memory that are worth a word, percent of the last 10 s.
const STALLED: f64 = 1.0;

/// What was seen, and what levers may bring.
pub struct Glance {
    /// Whose memory it is.
    pub whose: String,
    /// The command, as it was started.
    pub words: Vec<OsString>,
    /// Whether it waits for others to connect to it: a server.
    pub listens: bool,
    /// What was seen.
    pub seen: Seen,
    /// All levers: what each may bring, and how the command would be started under it or why it cannot be.
    pub levers: Vec<(&'static dyn Lever, Estimate, Result<Start, String>)>,
    /// What is to be known beside that.
    pub notes: Vec<String>,
}

impl Glance {
    fn of(whose: String, seen: Seen, target: &Target, notes: Vec<String>) -> Self {
        let lever =
            |lever: &&'static dyn Lever| (*lever, lever.estimate(&seen), lever.start(target));
        let levers = REGISTRY.iter().map(lever).collect();
        Self { whose, words: target.words.clone(), listens: false, levers, seen, notes }
    }
}

/// Looks at a running process, and at what it has started, for `time`.
///
/// # Errors
/// There is no such process, or this user may not look.
pub fn process(linux: &Linux, pid: Pid, time: Duration, signals: &Signals) -> Result<Glance> {
    let before = linux.stat(pid).with_context(|| format!("process {pid} cannot be looked at"))?;
    let (target, titled) = started_as(linux, pid)?;
    let marks = Marks::set(linux, pid, time)?;
    let (begun, mut looks) = (Instant::now(), Vec::new());
    loop {
        let now = Instant::now();
        let seconds = (now - begun).as_secs_f64();
        let seen = look(linux, &descendants(linux, &[pid]));
        let seen =
            seen.with_context(|| format!("process {pid} has ended, or may not be looked at"))?;
        looks.push(Memory { seconds, ..seen });
        let pause = (now.elapsed() * PAUSES).max(PAUSE).min(time.saturating_sub(now - begun));
        if pause.is_zero() {
            break;
        }
        if signals.wait(pause)?.is_some() {
            return Err(Interrupted.into());
        }
    }
    let after = linux.stat(pid).with_context(|| format!("process {pid} has ended"))?;
    ensure!(after.started == before.started, "process {pid} has ended, and another has its number");
    let mut seen = Seen::of(looks);
    seen.seconds = begun.elapsed().as_secs_f64();
    seen.user = (after.user - before.user).as_secs_f64();
    seen.system = (after.system - before.system).as_secs_f64();
    seen.faults = (after.minor_faults + after.major_faults)
        .saturating_sub(before.minor_faults + before.major_faults);
    let mut notes: Vec<String> = titled.into_iter().collect();
    match marks {
        Ok(marks) => seen.cold = Some(marks.read(&linux.smaps_rollup(pid)?, seen.seconds)),
        Err(why) => notes.push(format!("{why:#}")),
    }
    let largest = seen.peak.largest;
    (seen.malloc, seen.allocator) = malloc_free::of(linux, largest, (time / READING).max(READ));
    seen.lives = true;
    if let Some((zeros, read)) = zeros(linux, largest) {
        let bloat = (seen.most_huge() as f64 * zeros as f64 / (read * HUGE) as f64) as u64;
        notes.push(format!(
            "about {} of its huge pages hold only zeros ({read} of them were read)",
            Bytes(bloat).to_string().trim()
        ));
        seen.bloat = Some(bloat);
    }
    if let Ok(Some(page)) = stats_page::locate(linux, largest)
        && let Ok(Some(heap)) = page.read()
        && let (Some(live), Some(footprint)) = (heap.live_bytes, heap.footprint_bytes)
    {
        notes.push(format!(
            "it runs on pagemill's heap: {} are live of {} that the heap takes",
            Bytes(live).to_string().trim(),
            Bytes(footprint).to_string().trim()
        ));
    }
    notes.extend(target.lent());
    if let Ok(pressure) = linux.pressure(psi::Resource::Memory)
        && pressure.some.avg10 >= STALLED
    {
        notes.push(format!(
            "the machine is short of memory: something waited for it in {:.0} % of the last 10 s",
            pressure.some.avg10
        ));
    }
    let glance = Glance::of(format!("process {pid} ({})", after.comm), seen, &target, notes);
    // Who may not look at its files does not know.
    Ok(Glance { listens: linux.listens(pid).unwrap_or(false), ..glance })
}

/// The command that a process was started by, and what is to be known of that.
fn started_as(linux: &Linux, pid: Pid) -> Result<(Target, Option<String>)> {
    let path = std::fs::read_link(linux.process_file(pid, "exe"))
        .with_context(|| format!("cannot find out what process {pid} executes"))?;
    let words = whole::read(&linux.process_file(pid, "cmdline"), TEXT)
        .with_context(|| format!("cannot read the arguments of process {pid}"))?;
    let known = arguments(&words);
    let titled = known.is_none().then(|| {
        let title = String::from_utf8_lossy(&words);
        let title = title.trim_end_matches('\0');
        format!("it has written a title over its arguments ({title}): put them behind the command to try levers")
    });
    let words = known.unwrap_or_else(|| vec![called(&words, &path)]);
    Ok((Target::of(linux, &words, &path)?, titled))
}

/// What a program in this file is called: as the title that it has written begins, if that is a name of the file, for
/// some do as they are called.
fn called(title: &[u8], path: &Path) -> OsString {
    let name = title.split(|byte| matches!(byte, b' ' | b':' | 0)).next().unwrap_or_default();
    let name = OsStr::from_bytes(name);
    let found = program::find(name, std::env::var_os("PATH").as_deref());
    let same = found.is_ok_and(|found| found.canonicalize().is_ok_and(|found| found == path));
    if same { name.to_owned() } else { path.into() }
}

/// The words that a process was started with, by its `cmdline`; none where it has written a title over them, as servers
/// do (`redis-server *:6379`, `nginx: master process`): one word with spaces, and often zeros for what it was longer.
fn arguments(cmdline: &[u8]) -> Option<Vec<OsString>> {
    let text = cmdline.strip_suffix(&[0]).unwrap_or(cmdline);
    let words: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    let title = words[0].contains(&b' ') && words[1..].iter().all(|word| word.is_empty());
    let known = !title && !words[0].is_empty();
    known.then(|| words.into_iter().map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Bytes of zeros in some of the huge pages of a process, and how many of these were read; none without any.
fn zeros(linux: &Linux, pid: Pid) -> Option<(u64, u64)> {
    let pages = Pages::of(linux, pid).ok()?;
    let mut starts = Vec::new();
    for entry in linux.smaps(pid).ok()? {
        if entry.usage.anon_huge_pages.unwrap_or(0) == 0 {
            continue;
        }
        let runs = pages.runs(entry.mapping.start, entry.mapping.end).ok()?;
        for run in runs.into_iter().filter(|run| run.huge) {
            starts.extend((run.start..run.end).step_by(HUGE as usize));
        }
    }
    let step = starts.len().div_ceil(SAMPLED).max(1);
    let (mut sum, mut read) = (0, 0);
    for start in starts.into_iter().step_by(step) {
        // One that goes meanwhile is not read.
        let Ok(found) = pages.zeros(start, HUGE) else { continue };
        sum += found * pagemill_kernel::page_size() as u64;
        read += 1;
    }
    (read > 0).then_some((sum, read))
}

/// A recorded program's memory, from the recording's events.
pub struct Recorded {
    meta: Meta,
    looks: Vec<Memory>,
    huge: HugePageFold,
    /// CPU time, ns: the first that was recorded, and the last.
    cpu: Option<(u64, u64)>,
}

impl Recorded {
    /// Nothing yet, of a recording with this header.
    pub fn begin(meta: &Meta) -> Self {
        Self { meta: meta.clone(), looks: Vec::new(), huge: HugePageFold::default(), cpu: None }
    }

    /// The next event.
    pub fn event(&mut self, event: &Event) {
        self.huge.event(event);
        let Event::Heap(sample) = event else { return };
        let bytes = |value: Option<Bytes>| value.map_or(0, |bytes| bytes.0);
        if let Some(pss) = sample.pss {
            self.looks.push(Memory {
                seconds: sample.time.0.saturating_sub(self.meta.started.0) as f64 / 1e9,
                bytes: pss.0 + bytes(sample.unmapped),
                anonymous: bytes(sample.pss_anon),
                shared: bytes(sample.pss_shmem) + bytes(sample.unmapped),
                swap: bytes(sample.swap),
                processes: 1,
                threads: self.meta.threads.unwrap_or(1),
                ..Memory::default()
            });
        }
        if let Some(cpu) = sample.cpu {
            self.cpu = Some((self.cpu.map_or(cpu.0, |(first, _)| first), cpu.0));
        }
    }

    /// What levers may bring.
    ///
    /// # Errors
    /// The recording has no samples of memory.
    pub fn glance(self, linux: &Linux) -> Result<Glance> {
        let Self { meta, mut looks, huge, cpu } = self;
        ensure!(
            !looks.is_empty(),
            "the recording has no samples of memory (make one with: pagemill record --with heap,hugepages -o rec -- CMD)"
        );
        let most_huge = huge.view().points.iter().map(|(_, used)| used.huge.0).max();
        for look in &mut looks {
            look.huge = most_huge.unwrap_or(0).min(look.anonymous);
        }
        let mut seen = Seen::of(looks);
        seen.seconds = seen.looks.last().map_or(0.0, |look| look.seconds);
        if let Some((first, last)) = cpu {
            seen.user = last.saturating_sub(first) as f64 / 1e9;
        }
        let words: Vec<OsString> = match meta.command.is_empty() {
            true => vec![meta.comm.clone().into()],
            false => meta.command.iter().map(OsString::from).collect(),
        };
        let found = program::find(&words[0], std::env::var_os("PATH").as_deref());
        let path = found.unwrap_or_else(|_| PathBuf::from(&words[0]));
        let target = Target::of(linux, &words, &path)?;
        seen.allocator = target.allocator;
        let mut notes = vec![
            "a recording has no page faults' share of CPU time here: all of it counts as the program's"
                .into(),
        ];
        if most_huge.is_none() {
            notes.push("it says nothing of huge pages (record --with heap,hugepages)".into());
        }
        Ok(Glance::of(format!("{} ({}), recorded", meta.comm, meta.pid), seen, &target, notes))
    }
}

impl Glance {
    /// As text.
    pub fn text(&self) -> String {
        let row = |(lever, estimate, start): &(&dyn Lever, Estimate, Result<Start, String>)| {
            let nothing = estimate.memory == 0.0 && estimate.time == 0.0;
            let memory = match estimate.memory {
                0.0 => "-".to_owned(),
                share => format!("up to {:.0} %", share * 100.0),
            };
            let time = match estimate.time {
                0.0 => "-".to_owned(),
                1.0 => "unknown".to_owned(),
                share => format!("up to {:.0} %", share * 100.0),
            };
            let why = match start {
                Err(why) if !nothing => format!("{}; {why}", estimate.why),
                _ => estimate.why.clone(),
            };
            vec![lever.name().to_owned(), memory, time, why]
        };
        let rows: Vec<Vec<String>> = self.levers.iter().map(row).collect();
        let mut text = format!("{}\n{}\n", self.whose, self.seen.text("looked at", None));
        for note in &self.notes {
            text.push_str(&format!("{note}\n"));
        }
        text.push_str("\nwhat levers may bring at the most, by what was seen; nothing was tried\n");
        text.push_str(&text::table(&["lever", "memory", "time", "why"], &rows));
        text.push_str(&format!("\nto try them: {}\n", self.next()));
        text
    }

    /// The command that tries them.
    pub fn next(&self) -> String {
        let line = Start::default().line(&self.words);
        match self.listens {
            true => format!(
                "pagemill advise --load 'CLIENT' -- {line} (CLIENT: what asks it, a line for sh)"
            ),
            false => format!("pagemill advise -- {line}"),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let lever = |(lever, estimate, start): &(&dyn Lever, Estimate, Result<Start, String>)| {
            json!({
                "lever": lever.name(),
                "what": lever.what(),
                "needs": lever.needs(),
                "estimate": {
                    "memory": estimate.memory,
                    "time": estimate.time,
                    "why": estimate.why,
                },
                "why_not": start.as_ref().err(),
                "command": start.as_ref().ok().map(|start| start.line(&self.words)),
            })
        };
        json!({
            "whose": self.whose,
            "command": self.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>(),
            "seen": self.seen.json(None),
            "levers": self.levers.iter().map(lever).collect::<Vec<_>>(),
            "notes": self.notes,
            "next": self.next(),
            "slower_memory": null,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_title_begins_with_is_the_command_if_it_is_the_program() {
        let path = program::find(OsStr::new("sh"), std::env::var_os("PATH").as_deref()).unwrap();
        let path = path.canonicalize().unwrap();
        assert_eq!(called(b"sh: at work", &path), "sh");
        assert_eq!(called(b"nosuch: at work", &path), path);
        assert_eq!(called(b"", &path), path);
    }

    #[test]
    fn a_title_that_a_server_wrote_over_its_arguments_is_no_command() {
        let words = |text: &str| arguments(text.as_bytes()).map(|words| words.join(" ".as_ref()));
        assert_eq!(words("sort\0-u\0a b\0"), Some("sort -u a b".into()));
        assert_eq!(words("/a b/sort\0-u\0"), Some("/a b/sort -u".into()), "a name with a space");
        assert_eq!(words("echo\0\0"), Some("echo ".into()), "an empty word is a word");
        assert_eq!(words("redis-server *:6379\0\0\0\0"), None);
        assert_eq!(words("nginx: master process /usr/sbin/nginx"), None);
        assert_eq!(words(""), None, "a kernel thread, or it has ended");
    }
}
