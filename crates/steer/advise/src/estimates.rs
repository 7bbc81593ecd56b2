//! What levers may bring to a program that runs already, or that was recorded: estimates only, for nothing is tried.
//!
//! A running program is looked at for a while. Its pages, or a sample of them, are marked as not accessed once, at the
//! beginning ([`crate::marks`]), and some of its huge pages are read for pages of zeros, from outside. Pauses between
//! looks are 200 times what a look takes, and its malloc is read for a fortieth of the time at the most: all of it
//! costs the program 2 % at the most.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pagemill_analysis::hugepages::HugePageFold;
use pagemill_control::run_memory::{Memory, sample};
use pagemill_kernel::process::signal::Signals;
use pagemill_kernel::{
    Linux,
    process::{psi, scheduling},
};
use pagemill_launch::allocator::Allocator;
use pagemill_launch::{cpython, prepare, program, stats_page};
use pagemill_model::recording::{Meta, NotMeasured};
use pagemill_model::whole::{self, TEXT};
use pagemill_model::{Bytes, Event, Fold as _, HeapSample, Pid};
use pagemill_record::malloc_free::{self, MallocFree};
use pagemill_report::draw::html::Page;
use pagemill_report::draw::text;
use serde_json::{Value, json};

use crate::estimate::Estimate;
use crate::free_memory::FreeMemory;
use crate::growth::{self, ProcessGrowth};
use crate::lever::{Lever, Start, Target};
use crate::levers::REGISTRY;
use crate::levers::plain::PLAIN;
use crate::levers::slower_memory::SlowerMemory;
use crate::marks::Marks;
use crate::observation::{RunObservation, UNKNOWN, bytes};
use crate::session::SMALL;
use crate::zeros::ZeroSample;

/// Time between two looks, in times of what one takes, and at the least.
const PAUSES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(100);
/// A part of the time for reading what its malloc keeps free, one in so many, and the least.
const READING: u32 = 40;
const READ: Duration = Duration::from_secs(1);
/// A part of memory that is worth a lever, and one that is worth no row.
const WORTH: f64 = 0.05;
const LITTLE: f64 = 0.01;
/// Stalls for memory that are worth a word, percent of the last 10 s.
const STALLED: f64 = 1.0;

/// What the table of levers has.
const HEADER: [&str; 4] = ["lever", "memory", "time", "why"];

/// What was seen, and what levers may bring.
pub struct Estimates {
    /// Whose memory it is.
    pub whose: String,
    /// The command, as it was started.
    pub words: Vec<OsString>,
    /// Whether it waits for others to connect to it: a server.
    pub listens: bool,
    /// What was seen.
    pub seen: RunObservation,
    /// All levers: what each may bring, and how the command would be started under it or why it cannot be.
    pub levers: Vec<(&'static dyn Lever, Estimate, Result<Start, String>)>,
    /// What is to be known beside that.
    pub notes: Vec<String>,
    /// Why its command cannot be started again as it was, if it cannot.
    pub not_again: Option<String>,
    /// The signal that ended the look before its time, if one did.
    pub interrupted: Option<i32>,
    /// That the process grows, if it did while it was looked at.
    pub growth: Option<ProcessGrowth>,
    /// Of several processes the one that was looked into, and what it has, bytes; accesses of the others, and what
    /// their mallocs keep free, are not known.
    pub looked_into: Option<(Pid, u64)>,
}

impl Estimates {
    fn of(whose: String, seen: RunObservation, target: &Target, notes: Vec<String>) -> Self {
        let lever =
            |lever: &&'static dyn Lever| (*lever, lever.estimate(&seen), lever.start(target));
        let levers = REGISTRY.iter().map(lever).collect();
        let words = target.words.clone();
        let not_again = not_again(&words, &target.path);
        Self {
            whose,
            words,
            listens: false,
            levers,
            seen,
            notes,
            not_again,
            interrupted: None,
            growth: None,
            looked_into: None,
        }
    }
}

/// Looks at a running process, and at what it has started, for `time`.
///
/// # Errors
/// There is no such process, or this user may not look.
pub fn process(linux: &Linux, pid: Pid, time: Duration, signals: &Signals) -> Result<Estimates> {
    let before = linux.living(pid)?;
    ensure!(
        !before.kernel_thread,
        "process {pid} ({}) is a thread of the kernel: it has no memory of its own",
        before.comm
    );
    // Who may not look is refused before anything is marked.
    linux.smaps_rollup(pid)?;
    let (target, titled) = started_as(linux, pid)?;
    // A look holds the process's lock on its mappings: on a busy machine it is not to be put aside meanwhile. Where the
    // kernel refuses, so be it.
    let _ = scheduling::be_real_time();
    let marks = Marks::set(linux, pid, time)?;
    let free = FreeMemory::of(linux);
    let begun = Instant::now();
    let Looks { looks, growth, interrupted } = Looks::at(linux, pid, time, signals)?;
    let after = linux.stat(pid).with_context(|| format!("process {pid} has ended"))?;
    ensure!(after.started == before.started, "process {pid} has ended, and another has its number");
    let mut seen = RunObservation::of(looks);
    seen.seconds = begun.elapsed().as_secs_f64();
    seen.user = (after.user - before.user).as_secs_f64();
    seen.system = (after.system - before.system).as_secs_f64();
    seen.faults = (after.minor_faults + after.major_faults)
        .saturating_sub(before.minor_faults + before.major_faults);
    let mut notes: Vec<String> = titled.into_iter().collect();
    match marks {
        Ok(marks) => seen.cold = Some(marks.read(linux, pid, seen.seconds)?),
        Err(why) => {
            seen.not_marked = Some(format!("what it accesses is not known: {why:#}"));
            notes.push(format!("{why:#}"));
        }
    }
    let largest = seen.peak.largest;
    ask_malloc(linux, &mut seen, (time / READING).max(READ));
    if let Some(zeros) = ZeroSample::of(linux, largest) {
        notes.push(zeros.note(seen.most_huge()));
        seen.bloat = Some(zeros.bloat(seen.most_huge()));
    }
    if let Some((allocator, free)) = own_heap(linux, largest) {
        (seen.allocator, seen.malloc, seen.not_asked) = (Some(allocator), Some(free), None);
    }
    notes.extend(target.lent());
    let may_be_huge = seen.more_huge_pages().time > 0.0;
    if let (true, Some(free)) = (may_be_huge, free) {
        let small = seen.peak.anonymous.saturating_sub(seen.most_huge());
        notes.extend(free.note(linux, small));
    }
    notes.extend(pressure(linux));
    let glance = Estimates::of(format!("process {pid} ({})", after.comm), seen, &target, notes);
    // Who may not look at its files does not know.
    let listens = linux.listens(pid).unwrap_or(false);
    let alone = (glance.seen.peak.processes > 1).then(|| sample(linux, &[pid]));
    let looked_into = alone.flatten().map(|alone| (pid, alone.bytes));
    Ok(Estimates { listens, interrupted, growth, looked_into, ..glance })
}

/// Looks at a process and all that it has started, for a time.
struct Looks {
    looks: Vec<Memory>,
    growth: Option<ProcessGrowth>,
    interrupted: Option<i32>,
}

impl Looks {
    fn at(linux: &Linux, pid: Pid, time: Duration, signals: &Signals) -> Result<Self> {
        let begun = Instant::now();
        let (mut looks, mut counted, mut interrupted) = (Vec::new(), Vec::new(), None);
        let mut due = begun;
        while interrupted.is_none() {
            let now = Instant::now();
            let seconds = (now - begun).as_secs_f64();
            let all = linux.descendants(&[pid]);
            counted.extend(growth::counted(linux, &all).map(|bytes| (seconds, bytes)));
            if now >= due {
                let seen = sample(linux, &all)
                    .with_context(|| format!("process {pid} has ended, or may not be looked at"))?;
                looks.push(Memory { seconds, ..seen });
                due = (now + (now.elapsed() * PAUSES).max(PAUSE)).min(begun + time);
            }
            if now >= begun + time {
                break;
            }
            let pause = due.saturating_duration_since(now).min(PAUSE);
            interrupted = signals.wait(pause)?.map(|received| received.signal);
        }
        let growth = ProcessGrowth::of(pid, &looks, &counted);
        Ok(Self { looks, growth, interrupted })
    }
}

/// Asks the malloc of the largest process what it keeps free.
fn ask_malloc(linux: &Linux, seen: &mut RunObservation, time: Duration) {
    (seen.malloc, seen.allocator) = malloc_free::of(linux, seen.peak.largest, time);
    seen.lives = true;
    seen.pymalloc = cpython::has_pymalloc(linux, seen.peak.largest);
    seen.not_asked = seen.malloc.is_none().then(|| match seen.allocator {
        Some(Allocator::Glibc | Allocator::Jemalloc) => {
            "its heap changes all the time, is partly in swap, or too large for the time (--for gives more)".into()
        }
        Some(other) => format!("{} did not tell what it keeps free", other.name()),
        None => "which malloc it has is not known".into(),
    });
}

/// What pagemill's heap says of itself, where a process has that.
fn own_heap(linux: &Linux, pid: Pid) -> Option<(Allocator, MallocFree)> {
    let heap = stats_page::locate(linux, pid).ok()??.read().ok()??;
    Some(in_own_heap(heap.config_name(), heap.live_bytes?, heap.footprint_bytes?))
}

/// What pagemill's heap keeps free in this configuration: pieces of pages, for whole ones go back.
fn in_own_heap(config: Option<&str>, live: u64, footprint: u64) -> (Allocator, MallocFree) {
    let allocator = match config.is_some_and(prepare::compacts) {
        true => Allocator::Pagemill,
        false => PLAIN,
    };
    let free = footprint.saturating_sub(live);
    (allocator, MallocFree { heap: footprint, free, returnable: 0, pieces: free })
}

/// That the machine is short of memory, if so.
pub(crate) fn pressure(linux: &Linux) -> Option<String> {
    let some = linux.pressure(psi::Resource::Memory).ok()?.some;
    (some.avg10 >= STALLED).then(|| {
        format!(
            "the machine is short of memory: something waited for it in {:.0} % of the last 10 s",
            some.avg10
        )
    })
}

/// What reads its program from standard input where no file is named, and the options that give it one.
const INTERPRETERS: [&str; 12] =
    ["sh", "bash", "dash", "ksh", "zsh", "python", "perl", "ruby", "node", "lua", "php", "Rscript"];
const PROGRAMS: [&str; 6] = ["-c", "-m", "-e", "-E", "-r", "--eval"];

/// Why a command cannot be started again by its words, if it cannot.
fn not_again(words: &[OsString], path: &Path) -> Option<String> {
    let text = |word: &OsString| word.to_string_lossy().into_owned();
    let rest: Vec<String> = words.iter().skip(1).map(text).collect();
    let input = |word: &&String| {
        let there = ["/dev/stdin", "/dev/fd/", "/proc/self/fd/"];
        *word == "-" || there.iter().any(|name| word.starts_with(name))
    };
    let deleted = path.as_os_str().as_bytes().ends_with(b" (deleted)");
    let Some(called) = path.file_name().map(|name| name.to_string_lossy().into_owned()) else {
        return Some("what was started is not known".into());
    };
    let called = called.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let given = |word: &String| {
        !word.starts_with('-') || PROGRAMS.iter().any(|option| word.starts_with(option))
    };
    match rest.iter().find(input) {
        _ if deleted => Some("its file is deleted".into()),
        Some(word) => Some(format!("it reads from its standard input ({word})")),
        None if INTERPRETERS.contains(&called) && !rest.iter().any(given) => {
            Some("it reads its program from standard input".into())
        }
        None => None,
    }
}

/// The command that a process was started by, and what is to be known of that.
fn started_as(linux: &Linux, pid: Pid) -> Result<(Target, Option<String>)> {
    let path = std::fs::read_link(linux.process_file(pid, "exe"))
        .with_context(|| format!("cannot find out what process {pid} executes"))?;
    let words = whole::read(&linux.process_file(pid, "cmdline"), TEXT)
        .with_context(|| format!("cannot read the arguments of process {pid}"))?;
    let known = program::arguments(&words);
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

/// A recorded program's memory, from the recording's events.
pub struct Recorded {
    meta: Meta,
    looks: Vec<Memory>,
    huge: HugePageFold,
    /// CPU time, ns: the first that was recorded, and the last.
    cpu: Option<(u64, u64)>,
    /// The last sample that says what its malloc, or pagemill's heap in its place, keeps free.
    told: Option<Box<HeapSample>>,
}

impl Recorded {
    /// Nothing yet, of a recording with this header.
    pub fn begin(meta: &Meta) -> Self {
        let (looks, huge) = (Vec::new(), HugePageFold::default());
        Self { meta: meta.clone(), looks, huge, cpu: None, told: None }
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
        if sample.malloc_heap.is_some() || sample.footprint.is_some() {
            self.told = Some(sample.clone());
        }
        if let Some(cpu) = sample.cpu {
            self.cpu = Some((self.cpu.map_or(cpu.0, |(first, _)| first), cpu.0));
        }
    }

    /// What levers may bring.
    ///
    /// # Errors
    /// The recording has no samples of memory.
    pub fn glance(self, linux: &Linux) -> Result<Estimates> {
        let Self { meta, mut looks, huge, cpu, told } = self;
        ensure!(
            !looks.is_empty(),
            "the recording has no samples of memory (make one with: pagemill record --with heap,hugepages -o rec -- \
             CMD)"
        );
        let most_huge = huge.view().points.iter().map(|(_, used)| used.huge.0).max();
        for look in &mut looks {
            look.huge = most_huge.unwrap_or(0).min(look.anonymous);
        }
        let mut seen = RunObservation::of(looks);
        seen.seconds = seen.looks.last().map_or(0.0, |look| look.seconds);
        seen.recorded = true;
        if let Some((first, last)) = cpu {
            seen.user = last.saturating_sub(first) as f64 / 1e9;
        }
        let started = [&meta.command, &meta.attached_command];
        let words: Vec<OsString> = match started.into_iter().find(|words| !words.is_empty()) {
            None => vec![meta.comm.clone().into()],
            Some(words) => words.iter().map(OsString::from).collect(),
        };
        let found = program::find(&words[0], std::env::var_os("PATH").as_deref());
        let path = found.unwrap_or_else(|_| PathBuf::from(&words[0]));
        let target = Target::of(linux, &words, &path)?;
        seen.allocator = target.allocator;
        if let Some((allocator, free)) = told.as_deref().and_then(kept) {
            // It is as it was seen at the end, for nobody knows whether that has ended since.
            (seen.allocator, seen.malloc, seen.lives) = (Some(allocator), Some(free), true);
        }
        let rows = meta.parts.get("touched").map_or(0, |parts| parts.rows);
        seen.not_marked = Some(match rows {
            0 | 1 => format!(
                "its accesses were not recorded: pagemill record --with accesses -o rec -- {}, then pagemill \
                 advise rec",
                Start::default().line(&words)
            ),
            _ => "modelled below, from its accesses".into(),
        });
        let mut notes = vec![
            "what of its CPU time page faults took is not in a recording: all of it counts as the program's"
                .into(),
        ];
        if seen.allocator.is_some_and(|has| [Allocator::Pagemill, PLAIN].contains(&has)) {
            notes.push(format!(
                "it ran on pagemill's heap in place of its own malloc, so what other mallocs would take is hardly \
                 known: pagemill record --with heap,hugepages --heap none -- {} tells more",
                Start::default().line(&words)
            ));
        }
        seen.pymalloc =
            meta.not_measured.iter().any(|missing| missing.what == NotMeasured::PYMALLOC);
        if most_huge.is_none() {
            notes.push("it says nothing of huge pages (record --with heap,hugepages)".into());
        }
        Ok(Estimates::of(format!("{} ({}), recorded", meta.comm, meta.pid), seen, &target, notes))
    }
}

/// What a sample says that a malloc keeps free, or pagemill's heap.
fn kept(sample: &HeapSample) -> Option<(Allocator, MallocFree)> {
    let bytes = |value: Option<Bytes>| value.map_or(0, |bytes| bytes.0);
    if let (Some(live), Some(footprint)) = (sample.live, sample.footprint) {
        return Some(in_own_heap(sample.config.as_deref(), live.0, footprint.0));
    }
    let allocator = Allocator::asked(sample.malloc.as_deref()?)?;
    let all = MallocFree {
        heap: sample.malloc_heap?.0,
        free: bytes(sample.malloc_free),
        returnable: bytes(sample.malloc_returnable),
        pieces: bytes(sample.malloc_pieces),
    };
    Some((allocator, all))
}

/// Whether a lever may bring as much as can be told from nothing.
fn may_help((_, estimate, _): LeverEstimate<'_>) -> bool {
    estimate.memory >= LITTLE || estimate.time > 0.0
}

fn is_slower_memory((lever, ..): LeverEstimate<'_>) -> bool {
    lever.name() == SlowerMemory.name()
}

/// Whether it can be tried, or is modelled.
fn is_known(row: LeverEstimate<'_>) -> bool {
    row.2.is_ok() || is_slower_memory(row)
}

type LeverEstimate<'a> = &'a (&'static dyn Lever, Estimate, Result<Start, String>);

impl Estimates {
    /// The levers that may help, the greatest gain first.
    fn ranked(&self) -> Vec<LeverEstimate<'_>> {
        let mut ranked: Vec<LeverEstimate<'_>> =
            self.levers.iter().filter(|row| may_help(row)).collect();
        // A guess is no finer than a tenth: of two that are likely to bring as much the first of the registry, which
        // asks least, comes first.
        let key = |(_, estimate, _): LeverEstimate<'_>| match (estimate.likely * 10.0).round() {
            0.0 => (0.0, -estimate.memory, -estimate.time),
            tenths => (-tenths, 0.0, 0.0),
        };
        ranked.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(Ordering::Equal));
        ranked
    }

    /// What it comes to, in a sentence.
    pub fn conclusion(&self) -> String {
        let ranked = self.ranked();
        // What slower memory would bring is modelled from what was seen: it is said last, for it costs time.
        let slower = |row: LeverEstimate<'_>| is_slower_memory(row);
        // A part of little is nothing.
        let of = self.seen.peak.bytes as f64 / (self.seen.peak.bytes as f64).max(SMALL);
        let much = |row: &LeverEstimate<'_>| is_known(row) && row.1.memory * of >= WORTH;
        let worth = |row: &&LeverEstimate<'_>| much(row) && !row.1.unknown;
        let not_known = ranked.iter().any(|row| much(row) && row.1.unknown);
        // What is likely comes before what may be more and is not.
        let likely = |row: &&LeverEstimate<'_>| worth(row) && row.1.likely >= WORTH;
        let others = || ranked.iter().filter(|row| !slower(row));
        let mut first = others().find(likely).or_else(|| others().find(worth));
        let colder = ranked.iter().filter(|row| slower(row)).find(worth);
        let beside = colder.filter(|_| first.is_some() || not_known).map_or_else(
            String::new,
            |(_, estimate, _)| {
                let [low, high] = [estimate.likely, estimate.memory].map(|share| share * 100.0);
                let share = match high - low < 1.0 {
                    true => format!("{high:.0} %"),
                    false => format!("{low:.0} to {high:.0} %"),
                };
                format!("; {share} could live in slower memory ({})", estimate.why)
            },
        );
        let left_out = self.left_out().map_or_else(String::new, |left_out| format!("; {left_out}"));
        let beside = format!("{beside}{left_out}");
        first = first.filter(|row| !not_known || row.1.likely >= WORTH);
        if !not_known {
            first = first.or(colder);
        }
        let how = match self.interrupted {
            Some(_) => "nothing was tried, and the look was interrupted",
            None => "nothing was tried",
        };
        // What a lever makes less comes back where memory grows; and a guess is no answer to that.
        let guess = first.is_none_or(|(_, Estimate { likely, .. }, _)| *likely < WORTH);
        let what = match (&self.growth, first) {
            (Some(growth), _) if guess => return format!("{growth}{beside}; {how}"),
            (_, None) if not_known => self.not_known(),
            (_, first) => self.may_bring(first, &ranked, of),
        };
        match &self.growth {
            Some(growth) => format!("{growth}; of what it has, {what}{beside}; {how}"),
            None => format!("{what}{beside}; {how}"),
        }
    }

    /// What this lever may bring, which is the first of those that are worth it; a part `of` the memory counts.
    fn may_bring(
        &self,
        first: Option<&LeverEstimate<'_>>,
        ranked: &[LeverEstimate<'_>],
        of: f64,
    ) -> String {
        match first {
            Some((lever, Estimate { memory, likely, why, .. }, _)) => {
                let (name, up_to) = (lever.name(), memory * 100.0);
                match *likely >= WORTH {
                    true => {
                        let likely = likely * 100.0;
                        let by = match up_to - likely < 1.0 {
                            true => format!("up to {up_to:.0} % of its memory"),
                            false => format!(
                                "likely {likely:.0} % of its memory, {up_to:.0} % at the most"
                            ),
                        };
                        format!("{name} may bring most: {by} ({why})")
                    }
                    false => format!(
                        "no lever{} is likely to bring {:.0} % of its memory; {name} may, up to {up_to:.0} % ({why}){}",
                        self.but_slower_memory(),
                        WORTH * 100.0,
                        self.not_seen()
                    ),
                }
            }
            None if of < WORTH => {
                format!("it has {}: too little for a lever", bytes(self.seen.peak.bytes as f64))
            }
            None if self.left_out().is_some() => "what levers may bring is not known".into(),
            None if ranked.iter().any(|row| is_known(row)) => format!(
                "no lever{} may bring {:.0} % of its memory; what some would bring in time only a trial tells{}",
                self.but_slower_memory(),
                WORTH * 100.0,
                self.not_seen()
            ),
            None => format!(
                "no lever{} may help, by what was seen{}",
                self.but_slower_memory(),
                self.not_seen()
            ),
        }
    }

    /// Where what it accesses was not looked at, nothing is said of slower memory.
    fn but_slower_memory(&self) -> &'static str {
        if self.seen.not_marked.is_some() { " but slower memory" } else { "" }
    }

    /// Why nothing is said of slower memory here, if so.
    fn not_seen(&self) -> String {
        let why = |why: &String| format!("; of slower memory: {why}");
        self.seen.not_marked.as_ref().map_or_else(String::new, why)
    }

    /// That much of the memory is in processes that were not looked into, if so.
    fn left_out(&self) -> Option<String> {
        let peak = &self.seen.peak;
        let (pid, one) = self.looked_into?;
        let one = one.min(peak.bytes);
        let other = match peak.largest {
            largest if largest == pid => String::new(),
            largest => format!(": pagemill advise -p {largest} looks into the largest"),
        };
        ((peak.bytes - one) as f64 >= peak.bytes as f64 * WORTH).then(|| {
            let [one, all] = [one, peak.bytes].map(|size| bytes(size as f64));
            format!(
                "looked into only one of {} processes, which has {one} of {all}{other}",
                peak.processes
            )
        })
    }

    /// By what that is known, and of which processes.
    fn of_what(&self) -> String {
        match (self.left_out(), self.looked_into) {
            (Some(_), Some((pid, _))) => {
                format!(" in process {pid}, by what was seen of it: the others may have more")
            }
            _ => ", by what was seen".into(),
        }
    }

    /// That it is not known how much is free, why, and what tells it: no share is made of that.
    fn not_known(&self) -> String {
        let seen = &self.seen;
        let free = match seen.malloc {
            Some(_) => "how much pymalloc's arenas keep free is not known".into(),
            None => match &seen.not_asked {
                Some(why) => format!("{UNKNOWN} ({why})"),
                None => UNKNOWN.to_owned(),
            },
        };
        let line = Start::default().line(&self.words);
        let tells = match self.not_again {
            Some(_) => "a trial of its command tells".into(),
            None if seen.recorded && seen.malloc.is_none() => {
                format!("pagemill record --with heap,hugepages --heap none -- {line} tells")
            }
            None => "a trial tells".to_owned(),
        };
        format!("{free}, so neither is what levers on it bring: {tells}")
    }

    /// As text.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.whose, self.conclusion());
        text.push_str(&format!("\n{}\n", self.seen.text("looked at", None)));
        self.notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
        let rows = self.rows();
        if !rows.is_empty() {
            text.push_str(&format!("\nwhat levers may bring at the most{}\n", self.of_what()));
            text.push_str(&text::table(&HEADER, &rows));
        }
        let folded = self.folded().into_iter();
        let folded: Vec<_> = folded.map(|(title, what)| vec![format!("{title}:"), what]).collect();
        text.push_str(&format!("\n{}", text::table(&[], &folded)));
        match (self.next(), &self.not_again) {
            (Some(next), _) => text.push_str(&format!("\nto try them: {next}\n")),
            (None, why) => text.push_str(&format!(
                "\nto try them: pagemill advise -- CMD; its own command cannot be started again as it was: {}\n",
                why.as_deref().unwrap_or_default()
            )),
        }
        text
    }

    /// As a page; `slower`: what slower memory would cost, where that was modelled.
    pub fn html(&self, slower: Option<&str>) -> String {
        let mut page = Page::new(&format!("What may help {}", self.whose));
        page.paragraph(&format!("{}.", self.conclusion()));
        if let Some(next) = self.next() {
            page.command(&format!("to try them: {next}"));
        }
        let rows = self.rows();
        if !rows.is_empty() {
            let heading = format!("What levers may bring at the most{}", self.of_what());
            page.heading(&heading).table(&HEADER, &rows);
        }
        for (title, names) in self.folded() {
            page.heading(title).paragraph(&names);
        }
        page.heading("What was seen").preformatted(&self.seen.text("looked at", None));
        if let Some(slower) = slower {
            page.heading("Slower memory").preformatted(slower.trim());
        }
        page.list(&self.notes);
        page.finish()
    }

    /// Levers that cannot be tried here, and that cannot help, and why.
    fn folded(&self) -> Vec<(&'static str, String)> {
        let names = |rows: Vec<LeverEstimate<'_>>, why: &dyn Fn(LeverEstimate<'_>) -> String| {
            grouped(rows.into_iter().map(|row| (row.0.name(), why(row))))
                .into_iter()
                .map(|(names, why)| format!("{names} ({why})"))
                .collect::<Vec<_>>()
                .join("; ")
        };
        let nothing = self.levers.iter().filter(|row| !may_help(row)).collect();
        let refused = self.ranked().into_iter().filter(|(.., start)| start.is_err()).collect();
        let why_refused = |(.., start): LeverEstimate<'_>| start.clone().err().unwrap_or_default();
        let folded = [
            ("cannot be tried here", names(refused, &why_refused)),
            ("cannot help", names(nothing, &|(_, estimate, _)| estimate.why.clone())),
        ];
        folded.into_iter().filter(|(_, what)| !what.is_empty()).collect()
    }

    /// Rows of the table; levers that say the same share one.
    fn rows(&self) -> Vec<Vec<String>> {
        let share = |share: f64| format!("up to {:.0} %", share * 100.0);
        let cells = |(lever, estimate, _): LeverEstimate<'_>| {
            let memory = match (estimate.memory, estimate.likely) {
                (most, _) if most < LITTLE / 2.0 => "-".to_owned(),
                _ if estimate.unknown => "unknown".to_owned(),
                (most, likely) if (most - likely) < LITTLE => share(most),
                (most, likely) => format!("{}, {:.0} % likely", share(most), likely * 100.0),
            };
            let time = match estimate.time {
                0.0 => "-".to_owned(),
                1.0 => "unknown".to_owned(),
                time => share(time),
            };
            (lever.name(), (memory, time, estimate.why.clone()))
        };
        grouped(self.ranked().into_iter().map(cells))
            .into_iter()
            .map(|(names, (memory, time, why))| vec![names, memory, time, why])
            .collect()
    }

    /// The command that tries them, if that of the process can be started again.
    pub fn next(&self) -> Option<String> {
        let line = Start::default().line(&self.words);
        match (&self.not_again, self.listens) {
            (Some(_), _) => None,
            (None, true) => Some(format!(
                "pagemill advise --load 'CLIENT' -- {line} (CLIENT: what asks it, a line for sh)"
            )),
            (None, false) => Some(format!("pagemill advise -- {line}")),
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
                    "likely": estimate.likely,
                    "likely_time": estimate.likely_time,
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
            "conclusion": self.conclusion(),
            "notes": self.notes,
            "next": self.next(),
            "not_again": self.not_again,
            "interrupted": self.interrupted.is_some(),
            "growth": self.growth.as_ref().map(ProcessGrowth::json),
            "slower_memory": null,
            "holders": [],
        })
    }
}

/// Names that say the same, in the order of the first, joined by commas.
pub(crate) fn grouped<T: PartialEq>(
    rows: impl Iterator<Item = (impl Into<String>, T)>,
) -> Vec<(String, T)> {
    let mut groups: Vec<(String, T)> = Vec::new();
    for (name, says) in rows {
        let name = name.into();
        match groups.iter_mut().find(|(_, said)| *said == says) {
            Some((names, _)) => names.push_str(&format!(", {name}")),
            None => groups.push((name, says)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_reads_its_program_from_standard_input_is_not_offered_again() {
        let told = |path: &str, rest: &[&str]| {
            let words: Vec<OsString> = [path].iter().chain(rest).map(OsString::from).collect();
            not_again(&words, Path::new(path)).is_some()
        };
        for (path, rest) in [
            ("/usr/bin/python3.13", &["-"][..]),
            ("/usr/bin/python3.13", &["-u"]),
            ("/bin/sh", &[]),
            ("/bin/bash", &["-s"]),
            ("/bin/cat", &["/dev/fd/63"]),
            ("/tmp/a (deleted)", &["x"]),
            ("", &[]),
        ] {
            assert!(told(path, rest), "{path} {rest:?}");
        }
        for (path, rest) in [
            ("/usr/bin/python3.13", &["-u", "a.py"][..]),
            ("/usr/bin/python3.13", &["-c", "1"]),
            ("/bin/sh", &["-c", "read a"]),
            ("/usr/bin/redis-server", &["--port", "0"]),
            ("/usr/bin/sort", &[]),
        ] {
            assert!(!told(path, rest), "{path} {rest:?}");
        }
    }

    /// 19 rows in the order of the registry came before anything else, their reasons up to 170 columns wide.
    #[test]
    fn what_a_look_comes_to_comes_first_and_the_greatest_gain_next() {
        let words = ["python3", "-"].map(OsString::from).to_vec();
        let target = Target::of(&Linux::live(), &words, Path::new("/usr/bin/python3")).unwrap();
        let look = Memory {
            bytes: 100 << 20,
            anonymous: 100 << 20,
            processes: 1,
            threads: 1,
            ..Memory::default()
        };
        let free =
            MallocFree { heap: 98 << 20, free: 88 << 20, returnable: 4096, pieces: 88 << 20 };
        let seen = RunObservation {
            malloc: Some(free),
            allocator: Some(Allocator::Glibc),
            lives: true,
            seconds: 10.0,
            ..RunObservation::of(vec![look])
        };
        let mut glance = Estimates::of("process 7 (python3)".into(), seen, &target, Vec::new());
        for (.., start) in &mut glance.levers {
            *start = Ok(Start::default());
        }
        let text = glance.text();
        let begin = "process 7 (python3): compacting heap may bring most: likely 44 % of its memory, 90 % at the \
                     most (free in whole pages 4.0 KiB, ";
        assert!(text.starts_with(begin), "{text}");
        let shares: Vec<f64> =
            glance.ranked().iter().map(|(_, estimate, _)| estimate.memory).collect();
        assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
        assert!(glance.rows().len() <= 6, "levers that say the same share a row: {text}");
        let folded = text.lines().filter(|line| line.starts_with("cannot help:")).count();
        assert!(folded == 1 && text.contains("one arena (it has one thread"), "{text}");
        assert!(
            glance.next().is_none() && text.contains("cannot be started again as it was"),
            "{text}"
        );
    }

    /// Of a Redis that nobody asked anything and that was free memory for the most part it named slower memory.
    #[test]
    fn what_a_lever_frees_is_said_before_what_slower_memory_may_hold() {
        let target = Target::of(&Linux::live(), &["sh".into()], Path::new("/bin/sh")).unwrap();
        let look = Memory { bytes: 100 << 20, anonymous: 100 << 20, ..Memory::default() };
        let cold =
            Some(crate::observation::Cold { bytes: 98 << 20, seconds: 10.0, ..Default::default() });
        let told = |free: u64| {
            let pieces = free << 20;
            let malloc = MallocFree { heap: 99 << 20, free: pieces, returnable: 0, pieces };
            let seen = RunObservation {
                cold,
                malloc: Some(malloc),
                lives: true,
                ..RunObservation::of(vec![look])
            };
            let mut glance = Estimates::of("it".into(), seen, &target, Vec::new());
            for (lever, _, start) in &mut glance.levers {
                if lever.name() != SlowerMemory.name() {
                    *start = Ok(Start::default());
                }
            }
            glance.conclusion()
        };
        let both = told(70);
        assert!(
            both.starts_with("compacting heap may bring most: likely 35 % of its memory, 76 %"),
            "{both}"
        );
        assert!(both.contains("; 98 % could live in slower memory (not accessed for"), "{both}");
        let none = told(0);
        assert!(none.starts_with("no lever is likely to bring 5 % of its memory; "), "{none}");
    }

    /// The headline of a process that leaks was a lever that may bring most.
    #[test]
    fn that_it_grows_comes_before_any_lever_and_a_guess_is_no_answer_to_it() {
        let target = Target::of(&Linux::live(), &["sh".into()], Path::new("/bin/sh")).unwrap();
        let look = |seconds: f64| {
            let anonymous = (56 << 20) + (seconds * 9.0 * 1048576.0) as u64;
            Memory { seconds, bytes: anonymous, anonymous, ..Memory::default() }
        };
        let looks: Vec<Memory> = (0..=40).map(|at| look(f64::from(at) / 10.0)).collect();
        let told = |malloc: Option<MallocFree>| {
            let seen = RunObservation { malloc, lives: true, ..RunObservation::of(looks.clone()) };
            let mut glance = Estimates::of("it".into(), seen, &target, Vec::new());
            glance.levers.iter_mut().for_each(|(.., start)| *start = Ok(Start::default()));
            glance.growth = ProcessGrowth::of(Pid(7), &looks, &[]);
            glance.conclusion()
        };
        let guess = told(None);
        assert!(
            guess.starts_with("its memory grew by 36.0 MiB in 4.0 s, 9.0 MiB a second"),
            "{guess}"
        );
        assert!(guess.ends_with("-p 7 tells, looking for longer); nothing was tried"), "{guess}");
        let pieces = 60 << 20;
        let known = told(Some(MallocFree { heap: 90 << 20, free: pieces, returnable: 0, pieces }));
        assert!(known.starts_with("its memory grew by 36.0 MiB in 4.0 s"), "{known}");
        assert!(known.contains("; of what it has, compacting heap may bring most"), "{known}");
    }

    /// "100 % could live in slower memory" was said of a process that had given all of it to the kernel (`MADV_FREE`),
    /// and of one whose malloc could give back nearly all.
    #[test]
    fn what_is_free_needs_no_slower_memory() {
        let mib = |mib: u64| mib << 20;
        let seen = |lazy_free: u64, returnable: u64, pieces: u64, range: Option<(u64, u64)>| {
            let look =
                Memory { bytes: mib(100), anonymous: mib(100), lazy_free, ..Memory::default() };
            let malloc =
                MallocFree { heap: mib(99), free: returnable + pieces, returnable, pieces };
            let range = range.map(|(low, high)| crate::observation::Bounds { low, high });
            RunObservation {
                cold: Some(crate::observation::Cold {
                    bytes: mib(96),
                    seconds: 10.0,
                    range,
                    files: 0,
                }),
                malloc: Some(malloc),
                lives: true,
                ..RunObservation::of(vec![look])
            }
        };
        let cold = |lazy_free, returnable, range| {
            let cold = seen(lazy_free, returnable, 0, range).cold_data().unwrap();
            (cold.bytes, cold.range.map(|range| (range.low, range.high)))
        };
        assert_eq!(cold(0, 0, None), (mib(96), None));
        assert_eq!(cold(mib(90), 0, None), (mib(6), None));
        assert_eq!(cold(mib(60), mib(40), None), (0, None));
        assert_eq!(cold(0, mib(30), Some((mib(80), mib(98)))), (mib(66), Some((mib(50), mib(70)))));
        // Of 21.4 MiB of "data" 14.0 MiB were free pieces of pages.
        let live = |returnable: u64, pieces: u64| {
            let seen = seen(0, mib(returnable), mib(pieces), None);
            let cold = seen.cold_data().unwrap();
            (cold.bytes >> 20, seen.live_of(cold) >> 20)
        };
        assert_eq!([live(0, 0), live(0, 25), live(60, 30)], [(96, 96), (96, 72), (36, 9)]);
        assert_eq!(live(96, 50), (0, 0));
    }

    /// Of a Python that rested it said that the compacting heap may bring most where `run --trim` makes 26 MiB of 188;
    /// and of a `sleep` that slower memory may bring 31 % of 353 KiB.
    #[test]
    fn whole_pages_of_who_rests_are_trimmed_and_little_memory_is_left_alone() {
        let target = Target::of(&Linux::live(), &["sh".into()], Path::new("/bin/sh")).unwrap();
        let glance = |seen: RunObservation| {
            let mut glance = Estimates::of("it".into(), seen, &target, Vec::new());
            glance.levers.iter_mut().for_each(|(.., start)| *start = Ok(Start::default()));
            glance
        };
        let look = |bytes: u64| Memory { bytes, anonymous: bytes, ..Memory::default() };
        let (returnable, pieces) = (160 << 20, 2 << 20);
        let malloc = MallocFree { heap: 180 << 20, free: returnable + pieces, returnable, pieces };
        let rests = RunObservation {
            malloc: Some(malloc),
            allocator: Some(Allocator::Glibc),
            lives: true,
            seconds: 10.0,
            ..RunObservation::of(vec![look(188 << 20)])
        };
        let told = glance(rests.clone());
        assert!(
            told.conclusion().starts_with("trim at rest may bring most: up to 85 %"),
            "{}",
            told.conclusion()
        );
        assert!(told.rows()[0][0].starts_with("trim at rest"), "{:?}", told.rows());
        let works = glance(RunObservation { user: 10.0, ..rests }).conclusion();
        assert!(!works.contains("trim at rest"), "{works}");
        let cold = Some(crate::observation::Cold {
            bytes: 110 << 10,
            seconds: 10.0,
            ..Default::default()
        });
        let sleeps =
            RunObservation { cold, lives: true, ..RunObservation::of(vec![look(353 << 10)]) };
        let told = glance(sleeps).text();
        assert!(
            told.starts_with("it: it has 353.0 KiB: too little for a lever; nothing was tried"),
            "{told}"
        );
        assert!(!told.contains("31 %"), "{told}");
    }

    /// Of a process that leaks, whose malloc could not be read, the compacting heap might "bring most: up to 100 %".
    #[test]
    fn no_share_is_made_of_not_knowing_what_is_free() {
        let target = Target::of(&Linux::live(), &["sh".into()], Path::new("/bin/sh")).unwrap();
        let look = Memory { bytes: 100 << 20, anonymous: 99 << 20, ..Memory::default() };
        let cold =
            Some(crate::observation::Cold { bytes: 50 << 20, seconds: 10.0, ..Default::default() });
        let seen = RunObservation {
            cold,
            allocator: Some(Allocator::Glibc),
            not_asked: Some("its heap changes".into()),
            lives: true,
            ..RunObservation::of(vec![look])
        };
        let mut glance = Estimates::of("it".into(), seen, &target, Vec::new());
        for (lever, _, start) in &mut glance.levers {
            if lever.name() != SlowerMemory.name() {
                *start = Ok(Start::default());
            }
        }
        let begin = "how much malloc keeps free is not known (its heap changes), so neither is what levers on it \
                     bring: a trial of its command tells; 50 % could live in slower memory (";
        let told = glance.conclusion();
        assert!(told.starts_with(begin), "{told}");
        assert!(!glance.text().contains("100 %"), "{}", glance.text());
        (glance.seen.recorded, glance.not_again) = (true, None);
        let way = "bring: pagemill record --with heap,hugepages --heap none -- sh tells; ";
        assert!(glance.conclusion().contains(way), "{}", glance.conclusion());
    }

    /// Of a parent of 96 KiB, whose three children held 150 MiB, "no lever may bring 5 % of its memory".
    #[test]
    fn what_lies_in_children_that_were_not_looked_into_is_said() {
        let target = Target::of(&Linux::live(), &["sh".into()], Path::new("/bin/sh")).unwrap();
        let (bytes, largest) = (150 << 20, Pid(9));
        let look = Memory { bytes, anonymous: 1 << 20, processes: 4, largest, ..Memory::default() };
        let seen = RunObservation { lives: true, ..RunObservation::of(vec![look]) };
        let mut glance = Estimates::of("it".into(), seen, &target, Vec::new());
        glance.levers.clear();
        let mut told = |looked_into| {
            glance.looked_into = looked_into;
            glance.conclusion()
        };
        let says = "what levers may bring is not known; looked into only one of 4 processes, which has 96.0 KiB of \
                    150.0 MiB: pagemill advise -p 9 looks into the largest; ";
        assert!(
            told(Some((Pid(7), 96 << 10))).starts_with(says),
            "{}",
            told(Some((Pid(7), 96 << 10)))
        );
        let largest = told(Some((Pid(9), 50 << 20)));
        assert!(largest.contains("has 50.0 MiB of 150.0 MiB; nothing"), "{largest}");
        assert!(!told(Some((Pid(7), 149 << 20))).contains("looked into"));
    }

    /// "No lever may bring 5 % of its memory" stood above "what it accesses was not looked at".
    #[test]
    fn what_was_not_looked_at_is_not_said_to_bring_nothing() {
        let target = Target::of(&Linux::live(), &["sh".into()], Path::new("/bin/sh")).unwrap();
        let look = Memory { bytes: 200 << 20, anonymous: 199 << 20, ..Memory::default() };
        let malloc = MallocFree { heap: 1 << 20, free: 0, returnable: 0, pieces: 0 };
        let told = |why: Option<&str>| {
            let seen = RunObservation {
                malloc: Some(malloc),
                allocator: Some(Allocator::Glibc),
                not_marked: why.map(str::to_owned),
                lives: true,
                seconds: 10.0,
                ..RunObservation::of(vec![look])
            };
            Estimates::of("it".into(), seen, &target, Vec::new()).conclusion()
        };
        let all = told(None);
        assert!(all.starts_with("no lever may ") && !all.contains("slower memory"), "{all}");
        let part = told(Some("what it accesses was not looked at: too costly"));
        assert!(part.starts_with("no lever but slower memory may "), "{part}");
        let why = "; of slower memory: what it accesses was not looked at: too costly; ";
        assert!(part.contains(why), "{part}");
    }

    /// A recording of 188 MiB without accesses was told that its memory is small.
    #[test]
    fn a_recording_says_which_recording_would_tell_what_is_cold() {
        let why = |rows: u64| {
            let mut meta = Meta { command: vec!["/bin/sh".into(), "x".into()], ..Meta::default() };
            let parts = pagemill_model::recording::Parts { rows, ..Default::default() };
            meta.parts.insert("touched".into(), parts);
            let mut recorded = Recorded::begin(&meta);
            let pss = Some(Bytes(188 << 20));
            let sample = HeapSample { pss, pss_anon: pss, ..HeapSample::default() };
            recorded.event(&Event::Heap(Box::new(sample)));
            let glance = recorded.glance(&Linux::live()).unwrap();
            let mut levers = glance.levers.into_iter();
            levers.find(|(lever, ..)| lever.name() == SlowerMemory.name()).unwrap().1.why
        };
        let way = "pagemill record --with accesses -o rec -- /bin/sh x";
        assert!(
            why(0).starts_with(&format!("its accesses were not recorded: {way}")),
            "{}",
            why(0)
        );
        assert!(why(9).contains("modelled below"), "{}", why(9));
    }

    /// Of a program that was recorded on the compacting heap it said that this may bring 99 % of its memory, and of one
    /// whose jemalloc was seen to hold no free page that giving these back may.
    #[test]
    fn a_recording_says_what_its_malloc_keeps_free_and_on_which_heap_it_ran() {
        let mib = |mib: u64| Some(Bytes(mib << 20));
        let sample = |time: u64| HeapSample {
            time: pagemill_model::Nanos(time),
            pss: mib(100),
            pss_anon: mib(98),
            ..HeapSample::default()
        };
        let told = |last: HeapSample| {
            let meta = Meta { command: vec!["/bin/sh".into()], ..Meta::default() };
            let mut recorded = Recorded::begin(&meta);
            [sample(1), last, sample(3)]
                .into_iter()
                .for_each(|sample| recorded.event(&Event::Heap(Box::new(sample))));
            recorded.glance(&Linux::live()).unwrap()
        };
        let memory = |glance: &Estimates, name: &str| {
            let mut levers = glance.levers.iter();
            levers.find(|(lever, ..)| lever.name() == name).map(|(_, estimate, _)| estimate.memory)
        };
        let heap = |config: &str| HeapSample {
            live: mib(20),
            footprint: mib(90),
            config: Some(config.into()),
            ..sample(2)
        };
        let compacts = told(heap("1y"));
        assert_eq!(
            ["compacting heap", "plain heap"].map(|it| memory(&compacts, it)),
            [Some(0.0); 2]
        );
        assert!(compacts.text().contains("20.0 MiB are live"), "{}", compacts.text());
        let plain = told(heap("0n"));
        assert!(memory(&plain, "compacting heap") > Some(0.6), "{}", plain.text());
        let jemalloc = told(HeapSample {
            malloc: Some("jemalloc".into()),
            malloc_heap: mib(95),
            malloc_free: mib(70),
            malloc_returnable: mib(0),
            malloc_pieces: mib(70),
            ..sample(2)
        });
        assert_eq!(memory(&jemalloc, "purge at once"), Some(0.0), "{}", jemalloc.text());
        assert_eq!(memory(&jemalloc, "compacting heap"), Some(0.75), "{}", jemalloc.text());
    }

    #[test]
    fn what_a_title_begins_with_is_the_command_if_it_is_the_program() {
        let path = program::find(OsStr::new("sh"), std::env::var_os("PATH").as_deref()).unwrap();
        let path = path.canonicalize().unwrap();
        assert_eq!(called(b"sh: at work", &path), "sh");
        assert_eq!(called(b"nosuch: at work", &path), path);
        assert_eq!(called(b"", &path), path);
    }
}
