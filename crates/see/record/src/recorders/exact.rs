//! `--with accesses --backend exact`: every access, from the emulator.
//!
//! The emulator tells of accesses by page, thread and cell of time (or one by one); this writes them as
//! rows, and for each interval the pages touched in it. A thread that was not running when its cell ended
//! tells of it later, so an interval is held back for a while; what comes later still is a row more of the
//! same interval.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{clock, poll};
use pagemill_model::access::{Access, AccessSetup, Touched};
use pagemill_model::fault::Flags;
use pagemill_model::recording::Writer;
use pagemill_model::{Event, Nanos, PageRange, Pid};
use pagemill_tracer::exact::{self, Collector, Emulator, EmulatorEvent, Use};
use tempfile::TempDir;

use super::accesses::{OURS, runs};
use super::mappings::layout;

/// How long an interval is held back at least.
const HELD: u64 = 500_000_000;

/// The emulator, ready to run a program.
pub struct Emulated {
    emulator: Emulator,
    collector: Collector,
    cell: Duration,
    /// Where plugin and socket are, until the end.
    room: TempDir,
}

impl Emulated {
    /// Finds the emulator and tries it. Rows are of one `cell` of time; of length 0, of one access.
    ///
    /// # Errors
    /// There is no emulator that loads the plugin, or no directory for both.
    pub fn prepare(cell: Duration) -> Result<Self> {
        let room = tempfile::Builder::new()
            .prefix("pagemill-exact.")
            .tempdir()
            .context("cannot make a directory for the emulator's plugin")?;
        let emulator = Emulator::install(room.path(), std::env::var_os("PATH").as_deref())?;
        let collector = Collector::listen(room.path())?;
        Ok(Self { emulator, collector, cell, room })
    }

    /// The words that run the program in `path` with these arguments in the emulator.
    ///
    /// # Errors
    /// As of [`Emulator::words`].
    pub fn words(&self, path: &Path, arguments: &[OsString]) -> Result<Vec<OsString>> {
        Ok(self.emulator.words(&self.collector, self.cell, path, arguments)?)
    }

    /// What the plugins tell, and the directory that must stay until they have ended.
    pub fn into_parts(self) -> (Collector, TempDir) {
        (self.collector, self.room)
    }

    /// Runs `command`, which is the emulator's, to its end.
    ///
    /// # Errors
    /// The emulator cannot be waited for or listened to, or what it told not be written.
    pub fn record(
        mut self,
        signals: &Signals,
        mut command: Command,
        sink: &mut Exact<'_>,
    ) -> Result<std::io::Result<ExitStatus>> {
        signals.restore_in(&mut command);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(Err(error)),
        };
        let pending = signals.descriptor()?;
        let mut status = None;
        loop {
            if status.is_none() {
                status = child.try_wait().context("cannot wait for the program")?;
            }
            self.collector.read(|told| sink.take(told))?;
            if let Some(status) = status.filter(|_| !self.collector.busy()) {
                sink.finish();
                return Ok(Ok(status));
            }
            let mut descriptors = self.collector.descriptors();
            descriptors.push(std::os::fd::AsFd::as_fd(&pending));
            poll::sleep(&descriptors, Duration::from_millis(20))?;
            while let Some(received) = signals.wait(Duration::ZERO)? {
                if received.signal != signal::CHILD && !received.from_kernel && status.is_none() {
                    // It may have ended a moment ago.
                    let _ = signal::send(Pid(child.id()), received.signal);
                }
            }
        }
    }
}

/// Writes what the emulator tells.
pub struct Exact<'a> {
    writer: &'a mut Writer,
    page: u64,
    began: u64,
    interval: u64,
    waiting: BTreeMap<u64, Vec<Use>>,
    processes: HashMap<Pid, Process>,
    not_followed: BTreeSet<Pid>,
    /// Intervals of all processes.
    pub intervals: u64,
    /// Accesses.
    pub accesses: u64,
    /// Why writing stopped before the program did.
    pub failure: Option<pagemill_model::Error>,
}

/// What is known of a process's memory.
#[derive(Default)]
struct Process {
    names: Vec<Mapping>,
    /// Memory of the program by start: end and protection.
    ranges: BTreeMap<u64, (u64, u64)>,
    heap: PageRange,
    stack: u64,
    told: HashMap<u64, (u64, String)>,
}

impl<'a> Exact<'a> {
    /// Will write to `writer`, in intervals of this length.
    pub fn new(writer: &'a mut Writer, page: u64, interval: Duration) -> Self {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let meta = writer.meta_mut();
        meta.accesses = Some(AccessSetup {
            back_end: "exact".into(),
            interval: Nanos(interval),
            ..AccessSetup::default()
        });
        meta.lacks(
            "accesses by the kernel",
            "an emulator sees the program's own instructions (the default back end sees what system calls touch)",
        );
        Self {
            writer,
            page,
            began: Nanos::from(clock::monotonic()).0,
            interval,
            waiting: BTreeMap::new(),
            processes: HashMap::new(),
            not_followed: BTreeSet::new(),
            intervals: 0,
            accesses: 0,
            failure: None,
        }
    }

    /// The recording may fail (a full disk); the program does not.
    fn write(&mut self, event: &Event) {
        if self.failure.is_none() {
            self.failure = self.writer.event(event).err();
        }
    }

    /// Takes in what the emulator tells.
    pub fn take(&mut self, told: EmulatorEvent) {
        match told {
            EmulatorEvent::Use(one) => {
                let number = one.last.saturating_sub(self.began) / self.interval;
                self.waiting.entry(number).or_default().push(one);
                let held = HELD.div_ceil(self.interval).max(2);
                while let Some(first) = self.waiting.first_entry()
                    && first.key().saturating_add(held) < number
                {
                    let (number, uses) = first.remove_entry();
                    self.close(number, uses);
                }
            }
            EmulatorEvent::Range { process, start, end, protection } => {
                let known = self.processes.entry(process).or_default();
                known.put(PageRange::new(start..end), protection);
            }
            EmulatorEvent::Heap { process, start, end } => {
                let known = self.processes.entry(process).or_default();
                known.heap = PageRange::new(start..end);
                known.put(PageRange::new(start..end), 3);
            }
            EmulatorEvent::Stack { process, address } => {
                let known = self.processes.entry(process).or_default();
                known.stack = address;
            }
            EmulatorEvent::Names { process, mappings } => {
                let known = self.processes.entry(process).or_default();
                let overlaps =
                    |new: &Mapping, old: &Mapping| new.start < old.end && old.start < new.end;
                // What the back end by faults has made its own keeps the name that it had.
                let (ours, named): (Vec<Mapping>, Vec<Mapping>) =
                    mappings.into_iter().partition(|mapping| mapping.name.starts_with(OURS));
                known.names.retain(|old| !named.iter().any(|new| overlaps(new, old)));
                known.names.extend(named);
                let before = known.names.clone();
                let fresh = |new: &Mapping| !before.iter().any(|old| overlaps(new, old));
                let unnamed = |mapping| Mapping { name: String::new(), inode: 0, ..mapping };
                known.names.extend(ours.into_iter().filter(fresh).map(unnamed));
                known.names.sort_by_key(|mapping| mapping.start);
                // Those of a process do not overlap; but it is the traced program that says so.
                let mut end = 0;
                known.names.retain(|mapping| {
                    let fits = end <= mapping.start && mapping.start < mapping.end;
                    end = if fits { mapping.end } else { end };
                    fits
                });
            }
            EmulatorEvent::NotFollowed { process } => {
                self.not_followed.insert(process);
            }
        }
    }

    /// Writes what is left and completes the header.
    pub fn finish(&mut self) {
        for (number, uses) in std::mem::take(&mut self.waiting) {
            self.close(number, uses);
        }
        self.tell_mappings(Nanos::from(clock::monotonic()));
        let untraced = self.not_followed.iter().map(|process| {
            format!(
                "process {process}: a program that it executed and that the emulator does not run"
            )
        });
        if let Some(setup) = &mut self.writer.meta_mut().accesses {
            setup.untraced = untraced.collect();
        }
    }

    /// Tells mappings that are new, as of `since`.
    fn tell_mappings(&mut self, since: Nanos) {
        let mut rows = Vec::new();
        for (&pid, known) in &mut self.processes {
            for mapping in known.named() {
                let value = (mapping.end, mapping.name.clone());
                if known.told.get(&mapping.start) != Some(&value) {
                    known.told.insert(mapping.start, value);
                    rows.push(layout(since, pid, &mapping));
                }
            }
        }
        for row in rows {
            self.write(&Event::Mapping(Box::new(row)));
        }
    }

    /// The end of an interval.
    fn close(&mut self, number: u64, mut uses: Vec<Use>) {
        // What is there by now lay there before it was accessed.
        let began = self.began.saturating_add(number.saturating_mul(self.interval));
        self.tell_mappings(Nanos(began.saturating_sub(1)));
        uses.sort_unstable_by_key(|one| (one.first, one.thread));
        let mut touched: BTreeMap<Pid, (BTreeSet<u64>, BTreeSet<u64>)> = BTreeMap::new();
        for one in &uses {
            let page = one.address / self.page;
            let (all, written) = touched.entry(one.process).or_default();
            let (flags, count) = match one.access {
                exact::Access::Read => (0, one.count),
                exact::Access::Write => (Flags::WRITE, one.count),
                exact::Access::Execute => (Flags::EXECUTE, one.count),
                // It may have, and nobody knows how often.
                exact::Access::Futex => (Flags::IN_KERNEL, 0),
            };
            if one.access != exact::Access::Futex {
                all.insert(page);
            }
            if flags == Flags::WRITE {
                written.insert(page);
            }
            self.accesses += u64::from(count);
            self.write(&Event::Access(Box::new(Access {
                time: Nanos(one.first),
                pid: Some(one.process.into()),
                tid: Some(one.thread.into()),
                address: Some(one.address),
                instruction: Some(one.instruction),
                flags: Some(flags),
                count: Some(count.into()),
                last: Some(Nanos(one.last)),
                ..Access::default()
            })));
        }
        for (pid, (all, written)) in touched {
            let (starts, pages) = runs(all, self.page);
            let (written_starts, written_pages) = runs(written, self.page);
            self.intervals += 1;
            self.write(&Event::Touched(Box::new(Touched {
                time: Nanos(began.saturating_add(self.interval)),
                pid: Some(pid.into()),
                number: Some(number),
                began: Some(Nanos(began)),
                scanned: None,
                starts: Some(starts),
                pages: Some(pages),
                written_starts: Some(written_starts),
                written_pages: Some(written_pages),
                kept: None,
            })));
        }
    }
}

impl Process {
    /// Memory of the program, in the place of what was there.
    fn put(&mut self, PageRange { start, end }: PageRange, protection: u64) {
        let before: Vec<(u64, (u64, u64))> = self
            .ranges
            .range(..end)
            .filter(|(_, (other, _))| *other > start)
            .map(|(&start, &range)| (start, range))
            .collect();
        for (other, (other_end, other_protection)) in before {
            self.ranges.remove(&other);
            if other < start {
                self.ranges.insert(other, (start, other_protection));
            }
            if other_end > end {
                self.ranges.insert(end, (other_end, other_protection));
            }
        }
        if start < end {
            self.ranges.insert(start, (end, protection));
        }
    }

    /// The program's memory in pieces of one name each.
    fn named(&self) -> Vec<Mapping> {
        let mapping = |of: PageRange, protection: u64, name: &str, inode: u64| Mapping {
            start: of.start,
            end: of.end,
            read: protection & 1 != 0,
            write: protection & 2 != 0,
            execute: protection & 4 != 0,
            shared: false,
            offset: 0,
            inode,
            name: name.to_owned(),
        };
        let mut all = Vec::new();
        for (&start, &(end, protection)) in &self.ranges {
            let mut at = start;
            while at < end {
                // What the emulator maps, up to where that, the heap or the range ends.
                let after = self.names.partition_point(|mapping| mapping.end <= at);
                let (until, name, inode) = match self.names.get(after) {
                    Some(mapping) if mapping.start <= at => {
                        (mapping.end, mapping.name.as_str(), mapping.inode)
                    }
                    Some(mapping) => (mapping.start, "", 0),
                    None => (end, "", 0),
                };
                let PageRange { start: heap, end: heap_end } = self.heap;
                let (until, name) = match () {
                    () if heap <= at && at < heap_end => (until.min(heap_end), "[heap]"),
                    () if at < heap && heap < until => (heap, name),
                    () => (until, name),
                };
                let until = until.min(end);
                let holds_stack = at <= self.stack && self.stack < until;
                // The emulator's own heap is none of the program's.
                let name = match name {
                    _ if holds_stack => "[stack]",
                    "[heap]" if !(heap <= at && at < heap_end) => "",
                    name => name,
                };
                all.push(mapping(PageRange::new(at..until), protection, name, inode));
                at = until;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_memory_is_named_by_what_the_emulator_maps() {
        let mut process =
            Process { heap: PageRange::new(0x5000..0x6000), stack: 0x9800, ..Process::default() };
        process.names = [
            "1000-3000 r-xp 00000000 fe:00 7 /bin/program",
            "3000-7000 rw-p 00000000 00:00 0",
            "9000-a000 rw-p 00000000 00:00 0",
            "f000-10000 rw-p 00000000 00:00 0 [heap]",
        ]
        .iter()
        .filter_map(|line| Mapping::parse(line))
        .collect();
        process.put(PageRange::new(0x1000..0x4000), 5);
        process.put(PageRange::new(0x4000..0x8000), 3);
        process.put(PageRange::new(0x9000..0xa000), 3);
        // Replaces the end of the first.
        process.put(PageRange::new(0x3000..0x4000), 3);
        let named: Vec<(u64, u64, String)> =
            process.named().into_iter().map(|piece| (piece.start, piece.end, piece.name)).collect();
        let expected = [
            (0x1000, 0x3000, "/bin/program"),
            (0x3000, 0x4000, ""),
            (0x4000, 0x5000, ""),
            (0x5000, 0x6000, "[heap]"),
            (0x6000, 0x7000, ""),
            (0x7000, 0x8000, ""),
            (0x9000, 0xa000, "[stack]"),
        ];
        assert_eq!(named, expected.map(|(start, end, name)| (start, end, name.to_owned())));
    }

    /// The stream comes from within the traced program. Mappings that overlapped had no end, an access at the end of
    /// time an interval beyond it.
    #[test]
    fn what_no_kernel_says_of_a_program_is_survived() {
        let mut writer = Writer::passing(pagemill_model::recording::Meta::default());
        let mut exact = Exact::new(&mut writer, 4096, Duration::from_nanos(1));
        let lines = ["1000-9000 rw-p 0 0:0 0", "2000-3000 rw-p 0 0:0 0", "2800-8000 rw-p 0 0:0 0"];
        let mappings = lines.iter().filter_map(|line| Mapping::parse(line)).collect();
        let process = Pid(7);
        exact.take(EmulatorEvent::Names { process, mappings });
        exact.take(EmulatorEvent::Range { process, start: 0, end: 0x10_000, protection: 3 });
        for last in [u64::MAX, u64::MAX - 1, 0] {
            exact.take(EmulatorEvent::Use(Use {
                process,
                thread: process,
                access: exact::Access::Write,
                address: u64::MAX,
                instruction: 0,
                first: 0,
                last,
                count: u32::MAX,
            }));
        }
        exact.finish();
        assert_eq!((exact.failure.is_none(), exact.intervals), (true, 3));
        let names = &exact.processes[&process].names;
        assert_eq!(names.iter().map(|name| name.start).collect::<Vec<_>>(), [0x1000]);
    }
}
