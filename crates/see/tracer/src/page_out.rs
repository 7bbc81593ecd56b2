//! A running program whose memory cannot be made droppable is watched from outside: each interval, what is in its page tables
//! was touched, and is paged out to swap.
//!
//! ```text
//!  scan   anonymous pages that are present = touched since the last tick, or kept by the kernel
//!  out    process_madvise(MADV_PAGEOUT) on them; the next access is a major fault
//!  drain  these faults
//! ```
//!
//! Nothing is put into the program and nothing stops it, but a fault costs ten times as much, and some pages the kernel does
//! not page out: pinned, locked, or shared with a forked process. They are told in each interval, and counted as `kept`. Pages of files and
//! of shared memory are left alone. Which pages were written is not known: the kernel maps a page that it read from swap
//! writable at once.
//!
//! Always true: an anonymous page that was touched is in the set of its interval.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pagemill_kernel::page_out::page_out;
use pagemill_kernel::pagemap::{self, Pagemap};
use pagemill_kernel::signal::{self, Signals};
use pagemill_kernel::{Error, Kind, Linux, Result, page_size, pidfd, poll};

use crate::Sink;
use crate::follow::{Tracer, now};
use crate::process::{Interval, Pages, normal};
use crate::trace::{Ended, Options, Untraced};

/// Swap that must be free: less would fill up while it is watched.
const SWAP: u64 = 64 << 20;

/// A process that is paged out.
#[derive(Debug)]
pub(crate) struct PagedOut {
    process: OwnedFd,
    pagemap: Pagemap,
    number: u64,
    began: u64,
}

impl PagedOut {
    fn present(&self) -> Result<Vec<Pages>> {
        let mut found = Vec::new();
        let asked = pagemap::PRESENT | pagemap::FILE;
        self.pagemap.scan(0, 0x7fff_ffff_f000, pagemap::PRESENT, asked, |region| {
            if region.categories & pagemap::FILE == 0 {
                found.push((region.start, region.end));
            }
        })?;
        Ok(normal(found))
    }

    fn tick(&mut self, pid: u32, last: bool) -> Result<Interval> {
        let scanned = now();
        let touched = self.present()?;
        let mut kept = 0;
        if !last {
            page_out(&self.process, &touched)?;
            let left = self.present()?;
            kept = left.iter().map(|pages| (pages.1 - pages.0) / page_size() as u64).sum();
        }
        let ended = now();
        let interval = Interval {
            process: pid,
            number: self.number,
            began: self.began,
            scanned,
            ended,
            touched,
            kept,
            ..Interval::default()
        };
        (self.number, self.began) = (self.number + 1, ended);
        Ok(interval)
    }
}

impl Tracer {
    /// Watches `pid`, whose memory cannot be made droppable: `refusal` says why.
    pub(crate) fn from_outside(
        linux: Linux,
        options: Options,
        pid: u32,
        refusal: &Error,
    ) -> Result<Self> {
        let free = linux.free_swap()?;
        if free < SWAP {
            let why = format!("{refusal}; and there is too little swap to page it out to");
            return Err(Error::new(Kind::Unsupported, "trace", format_args!("process {pid}"), why)
                .advise(
                    "modprobe zram && zramctl -f -s 2G && mkswap /dev/zram0 && swapon /dev/zram0",
                ));
        }
        let mut paged = PagedOut {
            process: pidfd::open(pid)?,
            pagemap: Pagemap::open(&linux, pid)?,
            number: 0,
            began: now(),
        };
        // Whether it may be done is known before anything else is.
        page_out(&paged.process, &paged.present()?)?;
        paged.began = now();
        let mut tracer = Self::new(linux, options, pid)?;
        tracer.attached = true;
        tracer.events.follow(pid)?;
        let why = "memory of files and shared memory, which is left alone".into();
        tracer.untraced.push(Untraced { process: pid, start: 0, end: 0, why });
        tracer.paged = Some(paged);
        tracer.paged_out = Some(refusal.to_string());
        tracer.pace = tracer.start_interval();
        Ok(tracer)
    }

    /// Watches until the process has ended, or a signal or the time that the options say ends it.
    pub(crate) fn run_from_outside(
        &mut self,
        mut paged: PagedOut,
        signals: &Signals,
        sink: &mut dyn Sink,
    ) -> Result<Ended> {
        let (pid, began) = (self.root, Instant::now());
        let pending = signals.descriptor()?;
        let _ = sink.process(pid, &self.linux.maps(pid)?);
        loop {
            let over = |limit: Duration| began.elapsed() >= limit;
            let mut stop = self.full || self.options.duration.is_some_and(over);
            while let Some(received) = signals.wait(Duration::ZERO)? {
                stop |= signal::ENDS.contains(&received.signal);
            }
            self.drain(sink);
            let left = self.left();
            if stop || left.is_zero() {
                match paged.tick(pid, stop) {
                    Ok(interval) => {
                        self.drain(sink);
                        self.full |= sink.interval(interval).is_err();
                        self.next_interval();
                    }
                    Err(_) if self.linux.stat(pid).map_or(true, |stat| stat.state == 'Z') => {
                        return Ok(Ended::LetGo);
                    }
                    Err(error) => return Err(error),
                }
            }
            if stop || self.linux.stat(pid).map_or(true, |stat| stat.state == 'Z') {
                return Ok(Ended::LetGo);
            }
            let wait = left.clamp(Duration::from_micros(200), Duration::from_millis(5));
            poll::sleep(&[std::os::fd::AsFd::as_fd(&pending)], wait)?;
        }
    }

    /// How its memory is watched from outside, and why.
    pub fn paged_out(&self) -> Option<&str> {
        self.paged_out.as_deref()
    }

    /// Whether faults say which pages were written.
    pub fn tells_writes(&self) -> bool {
        self.rung().tells_writes() && self.paged_out.is_none()
    }
}
