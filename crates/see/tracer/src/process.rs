//! A traced process: its memory file, its injector, and the scan of an interval.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use pagemill_kernel::memory::maps::Mapping;
use pagemill_kernel::memory::pagemap::{self, Categories, Pagemap, Region};
use pagemill_kernel::memory::watched::Watched;
use pagemill_kernel::process::injected::{self, Control, Image, Shared};
use pagemill_kernel::process::keeper::Keeper;
use pagemill_kernel::{
    Error, Linux, Result,
    process::{scheduling, signal},
};
use pagemill_model::{PageRange, Pid};

use crate::arguments::Arguments;
use crate::calls::{Call, DONT_NEED_LOCKED, MADVISE, PROCESS_MADVISE, call};
use crate::inject::checked;
use crate::interval::{Interval, normal, now};
use crate::layout::own_file;
use crate::notification::SyscallNotification;
use crate::trace::Untraced;
use crate::{Granule, PATIENCE};

/// `process_madvise` on the caller itself.
const MYSELF: i64 = -10_001;

/// How long a mapper may take that is to end by itself.
const ENDS: Duration = Duration::from_secs(5);

/// What a fork is to do with a range (`MADV_DONTFORK`, `MADV_WIPEONFORK`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkAdvice {
    /// Addresses; of what is remembered of a process, offsets in the memory file.
    pub(crate) range: PageRange,
    pub(crate) advice: u64,
}

/// Words that the kernel writes at a fork, by address and with what they held before.
#[derive(Debug, Default)]
pub(crate) struct TidWords {
    pub(crate) child: Vec<(u64, u32)>,
    pub(crate) parent: Vec<(u64, u32)>,
}

/// What a child takes over from its parent.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub(crate) memory: File,
    pub(crate) inode: u64,
    pub(crate) heap: PageRange,
    pub(crate) images: Vec<Image>,
    pub(crate) arguments: Option<Arguments>,
    /// Where the descriptors of ours are in the parent.
    pub(crate) own_fds: u32,
}

/// A process whose memory is ours to drop.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) linux: Linux,
    pub(crate) pid: Pid,
    pub(crate) control: Shared,
    pub(crate) memory: File,
    /// Inode of `memory`, by which its mappings are known.
    pub(crate) inode: u64,
    /// First of the descriptors of ours in it.
    pub(crate) own_fds: u32,
    /// Number of `memory` in the program.
    pub(crate) memory_fd: i64,
    pub(crate) watched: Watched,
    pub(crate) granule: Granule,
    /// Whether page tables are to say which pages were written, because faults do not.
    pub(crate) arm: bool,
    pub(crate) wake: OwnedFd,
    pub(crate) pagemap: Pagemap,
    pub(crate) injector: Pid,
    /// They are not the first.
    pub(crate) revived: bool,
    /// The processor that the injector is kept on: the tracer's when it was asked last.
    pub(crate) injector_on: Cell<Option<usize>>,
    /// `None` where the program is in another PID namespace.
    pub(crate) mapper: Option<Pid>,
    /// Tells injector and mapper that the tracer lives.
    #[expect(dead_code, reason = "what counts is that it is open")]
    pub(crate) lock: File,
    /// Children that still read `memory`, until when nobody may write it.
    pub(crate) sharers: Vec<Pid>,
    /// When to share the memory again, and how long to wait after that, if its threads did not stop for it.
    pub(crate) late: Option<(Instant, Duration)>,
    /// What a fork shall do with parts of `memory`: MADV_DONTFORK or MADV_WIPEONFORK.
    pub(crate) fork_advice: Vec<ForkAdvice>,
    /// Forks that were asked for, by thread: what the kernel writes.
    pub(crate) fork_words: BTreeMap<Pid, TidWords>,
    /// It may have private writable mappings of files, which come into being by the tracer's hand only.
    pub(crate) own_files: bool,
    /// Touched, and already gone from the page tables.
    pub(crate) pending: Vec<PageRange>,
    /// Written, as far as the page tables say so.
    pub(crate) written: Vec<PageRange>,
    /// Protected by the last scan.
    pub(crate) protected: Vec<PageRange>,
    /// Mappings whose page table entries stay as they are: huge pages and memory of drivers.
    pub(crate) apart: Vec<Mapping>,
    /// Where the words that it was started with stood, if they stand elsewhere.
    pub(crate) arguments: Option<Arguments>,
    /// Its mappings when it began, by the names that they had.
    pub(crate) original: Vec<Mapping>,
    pub(crate) intervals: u64,
    pub(crate) began: u64,
    /// Pages that the last tick could not drop: they are told in this interval, too.
    pub(crate) stays: u64,
}

impl Process {
    /// What a child takes over.
    pub(crate) fn inherited(&self) -> Result<Inherited> {
        Ok(Inherited {
            memory: cloned(&self.memory)?,
            inode: self.inode,
            heap: self.heap(),
            images: self.control.images(),
            arguments: self.arguments,
            own_fds: self.own_fds,
        })
    }

    /// What its mapper asks, if it does.
    pub(crate) fn notification(&self) -> Option<SyscallNotification> {
        if self.control.asks() { self.received() } else { None }
    }

    /// The call that its mapper received last, unless it is done with.
    pub(crate) fn received(&self) -> Option<SyscallNotification> {
        received(&self.control)
    }

    /// A fresh part of the memory file for `length` bytes.
    pub(crate) fn fresh(&self, length: u64) -> u64 {
        fresh(&self.control, length)
    }

    /// Keeps faults on a range of mappings from mapping neighbours, if that is wanted.
    pub(crate) fn watch(&self, range: PageRange) {
        if self.granule == Granule::Page {
            match self.arm && !self.frozen() {
                true => self.watched.register_armed(range),
                // Where the kernel refuses, faults map neighbours too.
                false => drop(self.watched.register(range)),
            }
        }
    }

    /// Has the injector make system calls.
    pub(crate) fn serve(&self, calls: &[Call]) -> Result<Vec<i64>> {
        let here = scheduling::this_processor();
        if let Some(processor) = here
            && self.injector_on.replace(here) != here
        {
            scheduling::keep_on(self.injector, processor);
        }
        let mut results = Vec::with_capacity(calls.len());
        for calls in calls.chunks(injected::COMMANDS) {
            results.extend(self.control.serve(calls, PATIENCE, &|| self.awake())?);
        }
        Ok(results)
    }

    /// Whether injector and mapper live. One that was stopped, by a signal to all of its group, say, is set going.
    pub(crate) fn awake(&self) -> bool {
        [Some(self.injector), self.mapper].into_iter().flatten().all(|helper| {
            match self.linux.stat(helper).map(|stat| stat.state) {
                Ok('Z' | 'X') | Err(_) => false,
                Ok('T') => signal::send(helper, signal::CONTINUE).is_ok(),
                Ok(_) => true,
            }
        })
    }

    /// Has the injector make one system call; a negative result is an error.
    pub(crate) fn serve_one(&self, action: &'static str, call: Call) -> Result<i64> {
        checked(action, self.pid, self.serve(&[call])?[0])
    }

    /// Whether its memory is private at the moment, because children read the file.
    pub(crate) fn frozen(&self) -> bool {
        self.control.frozen.load(Relaxed) != 0
    }

    /// Ends the interval: what was touched; and drops exactly that, unless this is the last scan.
    pub(crate) fn tick(&mut self, last: bool) -> Result<Interval> {
        let scanned = now();
        let (drop, stays) = self.collect()?;
        if !last {
            // A process that changes its mappings meanwhile may be told of out of order.
            self.drop_page_tables(&normal(drop))?;
            self.see_unprotected()?;
            // What left after the scan was touched before the end of the interval.
            self.control.wait_for_writers();
            let logged = self.control.take_log();
            self.left(logged);
        }
        let touched = std::mem::take(&mut self.pending);
        let says = self.arm && !self.frozen();
        let written = normal(std::mem::take(&mut self.written));
        let ended = now();
        let interval = Interval {
            process: self.pid,
            number: self.intervals,
            began: self.began,
            scanned,
            ended,
            touched: normal(touched),
            written: says.then_some(written),
            heap: self.heap(),
            kept: std::mem::replace(&mut self.stays, stays),
            stays,
        };
        self.intervals += 1;
        self.began = ended;
        Ok(interval)
    }

    /// Begins its intervals anew, while nobody runs: what is there now was told.
    pub(crate) fn restart_intervals(&mut self) -> Result<()> {
        let (drop, stays) = self.collect()?;
        self.drop_page_tables(&normal(drop))?;
        self.pending.clear();
        self.written.clear();
        self.protected.clear();
        self.stays = stays;
        Ok(())
    }

    fn heap(&self) -> PageRange {
        let word = |word: &std::sync::atomic::AtomicU64| word.load(Relaxed);
        PageRange::new(word(&self.control.break_start)..word(&self.control.break_end))
    }

    /// Adds what is in the page tables to what was touched. Of that, what may be dropped, and how many
    /// pages may not.
    pub(crate) fn collect(&mut self) -> Result<(Vec<PageRange>, u64)> {
        let logged = self.control.take_log();
        self.left(logged);
        let mut drop = Vec::new();
        let mut all = 0;
        // A page of the program's own is one of a file or of shared memory, the memory file's above all; or it is a
        // copy, where memory is private.
        let private = self.frozen() || self.own_files;
        let file = if private { 0 } else { pagemap::FILE };
        let with = Categories { all: file, any: pagemap::MAPPED };
        let asked = pagemap::PRESENT | pagemap::FILE;
        for PageRange { start, end } in self.spans()? {
            self.pagemap.scan(PageRange::new(start..end), with, asked, |region| {
                if !region.is_mapped() {
                    return;
                }
                self.pending.push(region.range());
                all += region.end - region.start;
                if region.categories & pagemap::FILE != 0 {
                    drop.push(region.range());
                }
            })?;
            if self.arm && !self.frozen() {
                let said = &mut self.written;
                let asked = asked | pagemap::WRITTEN;
                self.pagemap.scan_and_protect(
                    PageRange::new(start..end),
                    with,
                    asked,
                    |region| {
                        if !region.is_mapped() {
                            return;
                        }
                        let range = region.range();
                        self.pending.push(range);
                        if region.categories & pagemap::FILE != 0 {
                            drop.push(range);
                        }
                        self.protected.push(range);
                        if region.categories & pagemap::WRITTEN != 0 {
                            said.push(range);
                        }
                    },
                )?;
            }
        }
        if !private {
            return Ok((drop, 0));
        }
        let drop = self.of_others(normal(drop))?;
        let dropped: u64 = drop.iter().map(|range| range.bytes()).sum();
        Ok((drop, all.saturating_sub(dropped) / pagemill_kernel::page_size() as u64))
    }

    /// Without what is private and may be written: a write after the scan makes a page the program's own, which is lost
    /// when its entry is dropped.
    fn of_others(&mut self, drop: Vec<PageRange>) -> Result<Vec<PageRange>> {
        let maps = self.linux.maps(self.pid)?;
        self.own_files = maps.iter().any(own_file);
        let ours = |mapping: &Mapping| mapping.inode == self.inode && !mapping.shared;
        let own = maps.iter().filter(|mapping| own_file(mapping) || ours(mapping));
        let own: Vec<PageRange> = own.map(Mapping::range).collect();
        self.protect_kept(&own)?;
        Ok(without(drop, own.into_iter()))
    }

    /// Protects what is there of memory whose entries stay, so that the first write of an interval is a fault there,
    /// too. What came since it was scanned was touched.
    fn protect_kept(&mut self, own: &[PageRange]) -> Result<()> {
        // Where faults do not say that they are writes, it is not known what was written.
        if self.arm || self.granule != Granule::Page {
            return Ok(());
        }
        let present = pagemap::PRESENT;
        for &PageRange { start, end } in own {
            let pending = &mut self.pending;
            self.pagemap.scan_and_protect(
                PageRange::new(start..end),
                Categories { all: present, any: 0 },
                present,
                |region| {
                    pending.push(region.range());
                },
            )?;
        }
        Ok(())
    }

    /// What may be scanned and dropped: all of the address space but what is ours or stays as it is.
    fn spans(&mut self) -> Result<Vec<PageRange>> {
        if !self.apart.is_empty() {
            let maps = self.linux.maps(self.pid)?;
            let is = |one: &Mapping, other: &Mapping| {
                (one.inode, &one.name) == (other.inode, &other.name)
                    && one.start < other.end
                    && other.start < one.end
            };
            let known = std::mem::take(&mut self.apart);
            let still = |mapping: &Mapping| known.iter().any(|before| is(mapping, before));
            self.apart = maps.into_iter().filter(still).collect();
            self.tell_apart();
        }
        let mut left: Vec<PageRange> = self.apart.iter().map(Mapping::range).collect();
        left.push(PageRange::new(injected::CODE..injected::OURS_END));
        left.push(PageRange::new(0x7fff_ffff_f000..u64::MAX));
        let mut at = 0;
        let mut spans = Vec::new();
        for PageRange { start, end } in normal(left) {
            if start > at {
                spans.push(PageRange::new(at..start));
            }
            at = end;
        }
        Ok(spans)
    }

    /// A mapping whose page table entries are to stay, or is gone.
    pub(crate) fn tell_apart(&self) {
        let count = self.apart.len() as u32;
        self.control.apart.store(count, Relaxed);
    }

    /// Pages that left the address space.
    pub(crate) fn left(&mut self, logged: Vec<Region>) {
        for region in logged {
            self.pending.push(region.range());
            // Where writes are not watched, every page counts as written for the kernel.
            let seen = pagemap::WRITTEN | pagemap::WRITES_SEEN;
            if region.categories & seen == seen {
                self.written.push(region.range());
            }
        }
    }

    /// Pages that were written between their scan and their drop: the write lifted the protection, so their
    /// entries left no marker. They get one.
    fn see_unprotected(&mut self) -> Result<()> {
        let protected = normal(std::mem::take(&mut self.protected));
        let any = pagemap::PRESENT | pagemap::SWAPPED;
        for &PageRange { start: first, end } in &protected {
            let mut at = first;
            let mut bare = Vec::new();
            self.pagemap.scan_any(PageRange::new(first..end), any, any, |region| {
                if region.start > at {
                    bare.push(PageRange::new(at..region.start));
                }
                at = region.end;
            })?;
            if at < end {
                bare.push(PageRange::new(at..end));
            }
            for range in bare {
                // One that was unmapped meanwhile cannot be protected, and was told when it left.
                if self.watched.arm(range) {
                    self.written.push(range);
                }
            }
        }
        Ok(())
    }

    /// Drops the page table entries of these ranges.
    pub(crate) fn drop_page_tables(&self, ranges: &[PageRange]) -> Result<()> {
        for ranges in ranges.chunks(injected::RANGES) {
            for (slot, range) in self.control.ranges.iter().zip(ranges) {
                slot.set(*range);
            }
            // The kernel takes at most 1,024 ranges in a call.
            let calls: Vec<Call> = (0..ranges.len())
                .step_by(1024)
                .map(|first| {
                    let count = (ranges.len() - first).min(1024);
                    let address = Control::ranges_address() as i64 + 16 * first as i64;
                    call(PROCESS_MADVISE, [MYSELF, address, count as i64, DONT_NEED_LOCKED])
                })
                .collect();
            let results = self.serve(&calls)?;
            // A mapping that went away meanwhile stops a call half way: then range by range.
            for (result, ranges) in results.into_iter().zip(ranges.chunks(1024)) {
                let bytes: u64 = ranges.iter().map(|range| range.bytes()).sum();
                if result != bytes as i64 {
                    let one = |range: &PageRange| {
                        let (start, length) = (range.start as i64, range.bytes() as i64);
                        call(MADVISE, [start, length, DONT_NEED_LOCKED])
                    };
                    self.serve(&ranges.iter().map(one).collect::<Vec<_>>())?;
                }
            }
        }
        Ok(())
    }

    /// What its calls mapped that is not traced.
    pub(crate) fn untraced(&self) -> Option<Untraced> {
        let bytes = self.control.untraced.load(Relaxed);
        let why = format!(
            "{} KiB that it mapped: huge pages, memory that grows down by itself, or of files that cannot be read",
            bytes / 1024
        );
        (bytes > 0).then_some(Untraced::of(self.pid, why))
    }

    /// Ends what runs for us in the program. The call that its mapper had received and not answered, which
    /// may be another process's.
    pub(crate) fn dismiss(
        &self,
        linux: &Linux,
        keeper: Option<&Keeper>,
    ) -> Option<SyscallNotification> {
        end_helpers(linux, &self.control, (self.injector, self.mapper), keeper)
    }
}

/// Ends an injector and a mapper. The call that the mapper had received and not answered; the keeper is told of it
/// before the mapper is ended that has it, so that somebody answers whenever we are killed.
pub(crate) fn end_helpers(
    linux: &Linux,
    control: &Control,
    (injector, mapper): (Pid, Option<Pid>),
    keeper: Option<&Keeper>,
) -> Option<SyscallNotification> {
    const ALARM: i32 = 14;
    let here = scheduling::this_processor();
    for helper in [Some(injector), mapper].into_iter().flatten() {
        if let Some(processor) = here {
            scheduling::keep_on(helper, processor);
        }
    }
    // They may have ended with the program, or been killed.
    let _ = signal::send(injector, 9);
    let mapper = mapper?;
    let ended = || linux.stat(mapper).map_or(true, |stat| matches!(stat.state, 'Z' | 'X'));
    let wait = |limit: Duration, done: &dyn Fn() -> bool| {
        let limit = Instant::now() + limit;
        while !done() && Instant::now() < limit {
            std::thread::yield_now();
        }
    };
    control.dismiss_mapper();
    let _ = signal::send(mapper, ALARM);
    // One that was stopped.
    let _ = signal::send(mapper, signal::CONTINUE);
    // It ends between two calls, or asks us about the one that it has.
    wait(ENDS, &|| ended() || control.asks());
    if let (Some(call), Some(keeper)) = (received(control), keeper) {
        keeper.hold(&call.notified());
    }
    let _ = signal::send(mapper, 9);
    wait(PATIENCE, &ended);
    received(control)
}

/// The call that a mapper received last, unless it is done with.
fn received(control: &Control) -> Option<SyscallNotification> {
    let slot = &control.notification;
    let notification = SyscallNotification {
        id: slot.id.load(Acquire),
        thread: Pid(slot.pid.load(Relaxed)),
        number: slot.number.load(Relaxed),
        argument: std::array::from_fn(|index| slot.argument[index].load(Relaxed)),
    };
    (notification.id != 0).then_some(notification)
}

pub(crate) fn cloned(file: &File) -> Result<File> {
    file.try_clone().map_err(|error| Error::io("duplicate", "the memory file", error))
}

/// A fresh part of a memory file; twin of `fresh` in injected.c.
pub(crate) fn fresh(control: &Control, length: u64) -> u64 {
    const STRIDE: u64 = 1 << 36;
    control.next_offset.fetch_add(length.next_multiple_of(STRIDE), Relaxed)
}

/// The parts of `pages` that are not in `holes`; both in order, without overlap.
fn without(pages: Vec<PageRange>, holes: impl Iterator<Item = PageRange>) -> Vec<PageRange> {
    let mut left = Vec::new();
    let mut holes = holes.peekable();
    for PageRange { mut start, end } in pages {
        while holes.next_if(|hole| hole.end <= start).is_some() {}
        while let Some(&PageRange { start: from, end: to }) =
            holes.peek().filter(|hole| hole.start < end)
        {
            if start < from {
                left.push(PageRange::new(start..from));
            }
            start = to;
            if to > end {
                break;
            }
            holes.next();
        }
        if start < end {
            left.push(PageRange { start, end });
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use pagemill_model::PageRange;

    use super::{normal, without};

    #[test]
    fn pages_without_holes_are_what_a_set_of_pages_says() {
        let mut seed = 7_u64;
        let mut ranges = |count: usize| -> Vec<PageRange> {
            let mut next = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                seed >> 33
            };
            normal(
                (0..count)
                    .map(|_| (next() % 60, next() % 9))
                    .map(|(at, len)| PageRange::new(at..at + len + 1))
                    .collect(),
            )
        };
        for round in 0..500 {
            let (pages, holes) = (ranges(1 + round % 7), ranges(round % 6));
            let within = |ranges: &[PageRange], page| {
                ranges.iter().any(|range| range.numbers(1).contains(&page))
            };
            let left = without(pages.clone(), holes.iter().copied());
            for page in 0..80 {
                let expected = within(&pages, page) && !within(&holes, page);
                assert_eq!(within(&left, page), expected, "{pages:?} {holes:?} {left:?} {page}");
            }
        }
    }
}
