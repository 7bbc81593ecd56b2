//! The loop for a program that is watched from outside (`page_out`).

use std::time::{Duration, Instant};

use pagemill_kernel::process::signal::{self, Signals};
use pagemill_kernel::{Error, Kind, Linux, Result, poll};
use pagemill_model::Pid;

use crate::page_out::PagedOut;
use crate::trace::{Ended, Options, Sink, Untraced};
use crate::tracer::Tracer;

/// Swap that must be free: less would fill up while it is watched.
const SWAP: u64 = 64 << 20;

impl Tracer {
    /// Watches `pid`, whose memory cannot be made droppable: `refusal` says why.
    pub(crate) fn from_outside(
        linux: Linux,
        options: Options,
        pid: Pid,
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
        let paged = PagedOut::begin(&linux, pid)?;
        let mut tracer = Self::new(linux, options, pid)?;
        tracer.attached = true;
        tracer.events.follow(pid)?;
        let why = "memory of files and shared memory, which is left alone";
        tracer.untraced.push(Untraced::of(pid, why));
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
            let over = self.options.duration.is_some_and(over);
            let mut stop = self.deserted() || self.full || over;
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
        self.fault_source().tells_writes() && self.paged_out.is_none()
    }
}
