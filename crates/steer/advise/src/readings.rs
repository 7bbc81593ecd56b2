//! What the malloc of a command keeps free, read from outside while it runs: whenever it rests, and now and then while
//! it works. A heap that changes while it is read has no answer rather than a wrong one ([`malloc_free`]).

use std::time::{Duration, Instant};

use pagemill_control::run_memory::Memory;
use pagemill_kernel::Linux;
use pagemill_launch::allocator::Allocator;
use pagemill_model::Pid;
use pagemill_record::malloc_free::{self, MallocFree};

/// What was read in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Readings {
    /// When it rested: the one with most free.
    pub rest: Option<MallocFree>,
    /// The same while it worked.
    pub work: Option<MallocFree>,
    /// How often it was read while it worked.
    pub times: usize,
    /// When it was read last while it worked, seconds.
    pub last: f64,
    /// The most anonymous memory that it had when it was read, bytes.
    pub anonymous: u64,
    /// The size of its malloc's heap then, bytes.
    pub heap: u64,
}

impl Readings {
    /// So many readings while it works tell what is free while it does.
    const ENOUGH: usize = 3;

    /// What it keeps free, as it is most of the time: when it rests, or, if it works for more than half of its time, at
    /// its most.
    pub fn free(&self, rests: bool) -> Option<MallocFree> {
        match (self.rest, self.work) {
            (Some(rest), Some(work)) if !rests && work.free > rest.free => Some(work),
            (rest, work) => rest.or(work),
        }
    }

    /// Whether it was read while a run of so many seconds worked, from early on until late.
    pub fn throughout(&self, seconds: f64) -> bool {
        self.times >= Self::ENOUGH && self.last >= seconds / 2.0
    }

    /// Of so much anonymous memory at its highest what its malloc's heap may have had: all of it, if it was never read.
    pub fn in_heap(&self, peak: u64) -> u64 {
        peak.saturating_sub(self.anonymous).saturating_add(self.heap).min(peak)
    }

    /// Adds a reading.
    pub(crate) fn add(&mut self, look: &Memory, free: MallocFree, rests: bool) {
        if look.anonymous >= self.anonymous {
            (self.anonymous, self.heap) = (look.anonymous, free.heap);
        }
        let most = if rests { &mut self.rest } else { &mut self.work };
        if most.is_none_or(|most| free.free >= most.free) {
            *most = Some(free);
        }
        if !rests {
            self.times += 1;
            self.last = look.seconds;
        }
    }
}

/// Asks the malloc of the largest process of a run.
pub(crate) struct Asking<'a> {
    linux: &'a Linux,
    /// Which, when it was looked at, and until then its CPU time and what all waited for a CPU, seconds.
    last: Option<(Pid, f64, f64)>,
    /// Which answered, and its CPU time until then: without more of that its heap is as it was.
    told: Option<(Pid, f64)>,
    /// It is not read again before so many seconds, unless it has come to rest since.
    due: f64,
    /// Whether it rested when it was read last.
    rested: bool,
    /// How often it was asked and did not answer.
    silent: usize,
    /// What it said.
    pub readings: Readings,
}

impl<'a> Asking<'a> {
    /// Time that tells rest from work, seconds; and what part of a CPU makes it work.
    const SPAN: f64 = 0.1;
    const PART: f64 = 0.05;
    /// CPU time for reading its heap: at rest, and while it works.
    const READING: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(200)];
    /// After a reading comes a pause of so many times what it took, and until the run is so many times as old: pages
    /// are marked after each, for what was read counts as accessed.
    const PAUSE: f64 = 10.0;
    const OLDER: f64 = 1.5;

    pub(crate) fn new(linux: &'a Linux) -> Self {
        let readings = Readings::default();
        Self { linux, last: None, told: None, due: Self::SPAN, rested: false, silent: 0, readings }
    }

    /// Reads what it keeps free, if it is time to. Whether it was read: those pages count as accessed now
    /// ([`malloc_free`]).
    pub(crate) fn ask(&mut self, look: &Memory) -> bool {
        let Ok(stat) = self.linux.stat(look.largest) else { return false };
        let cpu = (stat.user + stat.system).as_secs_f64();
        // Who waits for a CPU that others have is at work; a wait that goes on is not counted yet, but seen as `R`.
        let busy = cpu + look.waited.unwrap_or_default().as_secs_f64();
        let (pid, since, before) = *self.last.get_or_insert((look.largest, look.seconds, busy));
        let span = look.seconds - since;
        if pid == look.largest && span < Self::SPAN {
            return false;
        }
        self.last = Some((look.largest, look.seconds, busy));
        let sleeps = pid == look.largest && stat.state == 'S';
        let rests = sleeps && busy - before < span * Self::PART;
        let early = look.seconds < self.due && (self.rested || !rests);
        if self.told == Some((pid, cpu)) || early {
            return false;
        }
        // Of several processes one after the other, the largest is asked.
        if self.told.is_some_and(|(told, _)| told != pid) {
            if look.anonymous < self.readings.anonymous {
                return false;
            }
            (self.readings, self.told) = (Readings::default(), None);
        }
        let begun = Instant::now();
        let free = malloc_free::of(self.linux, look.largest, Self::READING[usize::from(!rests)]).0;
        let pause = (begun.elapsed().as_secs_f64() * Self::PAUSE).max(Self::SPAN);
        (self.due, self.rested) = ((look.seconds + pause).max(look.seconds * Self::OLDER), rests);
        match free {
            Some(free) => {
                self.told = Some((look.largest, cpu));
                self.readings.add(look, free, rests);
            }
            None => self.silent += 1,
        }
        true
    }

    /// Why nothing was told, if nothing was.
    pub(crate) fn why_not(&self, allocator: Option<Allocator>) -> Option<String> {
        let why = match (allocator, self.silent) {
            _ if self.told.is_some() => return None,
            (Some(other), _) if !matches!(other, Allocator::Glibc | Allocator::Jemalloc) => {
                format!("{} does not tell from outside what it keeps free", other.name())
            }
            (_, 0) => format!("it ended before its heap could be read, {} s on", Self::SPAN),
            (None, _) => "which malloc it has is not known".into(),
            (Some(name), times) => format!(
                "{} was read {times} times, and changed meanwhile, was partly in swap, or too large to be read in time",
                name.name(),
            ),
        };
        Some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_at_rest_counts_for_who_rests_and_the_most_for_who_works() {
        let free =
            |mib: u64| MallocFree { heap: 90 << 20, free: mib << 20, ..MallocFree::default() };
        let look = |seconds: f64| Memory { seconds, anonymous: 100 << 20, ..Memory::default() };
        let mut readings = Readings::default();
        assert_eq!(readings.free(true), None);
        for (at, mib) in [(0.1, 20), (0.2, 60), (0.6, 10)] {
            readings.add(&look(at), free(mib), false);
        }
        assert_eq!(readings.free(true), Some(free(60)));
        readings.add(&look(0.7), free(30), true);
        assert_eq!((readings.free(true), readings.free(false)), (Some(free(30)), Some(free(60))));
        assert!(readings.throughout(1.2) && !readings.throughout(1.3), "{readings:?}");
        assert_eq!((readings.anonymous, readings.heap), (100 << 20, 90 << 20));
        assert_eq!(
            readings.in_heap(110 << 20),
            100 << 20,
            "what came after the last reading may be in it"
        );
        assert_eq!(Readings::default().in_heap(7), 7);
    }
}
