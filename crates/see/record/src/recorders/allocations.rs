//! Which code of a traced program asks for memory: the ring that `libpagemill_sites.so` writes in it, read.
//!
//! What is given back has the time stamp counter; it is turned into the recording's clock here, by the two clocks
//! looked at together at the beginning and at each reading. What is taken has no time of its own, for looking at the
//! counter costs as much as the rest of a note: it is told at the latest moment that is known to be before, which is
//! the note before it or the reading before.
//!
//! Always true: notes come out in the order of their tickets, and their times in that order too; one that was
//! overwritten before it was read is counted as lost. What is smaller than a page, and is taken and given back between
//! two readings and within [`SHORT`] notes, is left out: it names nearly no access, and there are millions of it. So
//! less than 1 MiB is left out of what is live at any time, however seldom the ring is read.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use pagemill_kernel::memory::shared_words::SharedWords;
use pagemill_kernel::{clock, process::injected};
use pagemill_model::recording::Losses;
use pagemill_model::{Allocation, Nanos};
use pagemill_preload_sys::sites as layout;

use pagemill_launch::library;
use pagemill_launch::program::{self, Verdict};

const NAME: &str = "pagemill-names";

/// Smaller ones that live shorter than a reading and than [`SHORT`] notes are left out.
const SMALL: u64 = 4096;
/// Notes.
const SHORT: u64 = 256;

/// A note that is not finished is waited for over so many readings; its thread may have been killed in it.
const PATIENCE: u32 = 50;

/// The ring.
#[derive(Debug)]
pub struct Allocations {
    shared: SharedWords,
    notes: Notes,
}

impl Allocations {
    /// A ring for the program at `path`, and the variables that make it write there; `preloaded` is what else it is to
    /// load. With a size `least` only what is as large is noted, and not that it was given back; without one, all that
    /// a traced program does. The error says why there is none.
    ///
    /// # Errors
    /// The program takes no library, there is none, or no memory to share.
    pub fn begin(
        path: &Path,
        least: Option<u64>,
        preloaded: Option<&OsStr>,
    ) -> Result<(Self, Vec<(OsString, OsString)>)> {
        let search = std::env::var_os("PATH");
        if let Verdict::Refused(refusal) = program::inspect(path, search.as_deref()).verdict {
            anyhow::bail!("{}", refusal.reason);
        }
        let library = library::find_sites()?;
        let shared = SharedWords::create(&[Path::new("/dev/shm")], NAME, layout::WORDS)
            .context("the ring of allocations")?;
        let inside = if least.is_none() { injected::INSIDE } else { 0 };
        shared.words()[layout::INSIDE].store(inside, Ordering::Relaxed);
        shared.words()[layout::LEAST].store(least.unwrap_or(0), Ordering::Relaxed);
        shared.words()[0].store(layout::VERSION, Ordering::Release);
        let variables = vec![
            ("LD_PRELOAD".into(), library::preload(&library, preloaded)),
            ("PAGEMILL_SITES".into(), shared.path().into()),
        ];
        Ok((Self { shared, notes: Notes::begin() }, variables))
    }

    /// Notes that were overwritten before they could be read.
    pub fn lost(&self) -> u64 {
        self.notes.lost
    }

    /// Notes so far, those that were overwritten among them.
    pub fn notes(&self) -> u64 {
        self.notes.next
    }

    /// Says in a header how many notes there were, and of those that were lost.
    pub fn tell(&self, losses: &mut Losses) {
        losses.notes += self.notes();
        losses.lost_notes += self.lost();
    }

    /// What was noted since the last reading, until now: a program may note faster than we read, and would be read for
    /// ever.
    pub fn read(&mut self) -> Vec<Allocation> {
        self.notes.read(self.shared.words())
    }
}

/// What was read of a ring so far. Whatever its words say, for the program writes them: a ticket is read once, and
/// what is told is of the words alone.
#[derive(Debug)]
pub struct Notes {
    next: u64,
    lost: u64,
    waited: u32,
    began: (u64, Nanos),
    /// Of the latest note that was read, and when that reading began.
    latest: Nanos,
}

/// A moment on both clocks.
fn both() -> (u64, Nanos) {
    (clock::cycles(), Nanos::from(clock::monotonic()))
}

impl Notes {
    /// Nothing was read.
    pub fn begin() -> Self {
        Self { next: 0, lost: 0, waited: 0, began: both(), latest: Nanos(0) }
    }

    /// What is new in the ring with these words: a header and a slot at least, as `preload_sys::sites` has them.
    pub fn read(&mut self, words: &[AtomicU64]) -> Vec<Allocation> {
        self.read_until(words, words[1].load(Ordering::Acquire))
    }

    /// The same up to this ticket.
    fn read_until(&mut self, words: &[AtomicU64], end: u64) -> Vec<Allocation> {
        let (time, begun) = (self.clock(), Nanos::from(clock::monotonic()));
        let mut read: Vec<Option<Allocation>> = Vec::new();
        let mut live: HashMap<(u64, u64), (usize, u64)> = HashMap::new();
        let mut notes = 0_u64;
        while self.next < end
            && let Some((note, cycles)) = self.note(words)
        {
            let Some(mut note) = note else { continue };
            notes += 1;
            self.latest = match cycles {
                0 => Nanos(self.latest.0 + 1),
                _ => time(cycles).max(self.latest),
            };
            note.time = self.latest;
            let key = (note.pid.unwrap_or(0), note.address.unwrap_or(0));
            let short = match note.size {
                Some(size) if size < SMALL => {
                    live.insert(key, (read.len(), notes));
                    None
                }
                Some(_) => None,
                None => live.remove(&key).filter(|(_, taken)| notes - taken < SHORT),
            };
            match short {
                Some((at, _)) => read[at] = None,
                None => read.push(Some(note)),
            }
        }
        // What comes later was not there yet.
        self.latest = self.latest.max(begun);
        read.into_iter().flatten().collect()
    }

    /// Nanoseconds of a time stamp, by what passed on both clocks so far.
    fn clock(&self) -> impl Fn(u64) -> Nanos + use<> {
        let ((from, began), (to, now)) = (self.began, both());
        let rate = now.since(began).0 as f64 / to.saturating_sub(from).max(1) as f64;
        move |cycles| Nanos(began.0 + (cycles.saturating_sub(from) as f64 * rate) as u64)
    }

    /// The next note, `None` inside for one that was lost; `None` if there is none yet.
    fn note(&mut self, words: &[AtomicU64]) -> Option<(Option<Allocation>, u64)> {
        let given = words[1].load(Ordering::Acquire);
        if self.next >= given {
            return None;
        }
        let slots = ((words.len() - layout::HEADER) / layout::SLOT) as u64;
        if given - self.next > slots {
            let behind = given - slots / 2 - self.next;
            self.lost += behind;
            self.next += behind;
        }
        let slot = |ticket: u64| {
            let at = layout::HEADER + (ticket % slots) as usize * layout::SLOT;
            &words[at..at + layout::SLOT]
        };
        let whole = |slot: &[AtomicU64], ticket: u64| {
            slot[0].load(Ordering::Acquire) == ticket.wrapping_add(1)
        };
        let first = slot(self.next);
        let value = |slot: &[AtomicU64], at: usize| slot[at].load(Ordering::Relaxed);
        let size = value(first, 3);
        let more = (size >> 56).min(layout::MORE as u64);
        if !whole(first, self.next) {
            // Part of a note that was lost, one that is being written, or one that never will be.
            let passed = first[0].load(Ordering::Acquire).saturating_sub(1) > self.next
                || self.waited > PATIENCE;
            if passed {
                self.waited = 0;
                self.lost += 1;
                self.next += 1;
                return Some((None, 0));
            }
            self.waited += 1;
            return None;
        }
        self.waited = 0;
        let mut stack: Vec<u64> = (5..8).map(|at| value(first, at)).collect();
        for n in 1..=more {
            let next = slot(self.next.wrapping_add(n));
            stack.extend((1..8).map(|at| value(next, at)));
        }
        stack.retain(|address| *address != 0);
        let freed = size & layout::FREED == layout::FREED;
        let note = Allocation {
            time: Nanos(0),
            pid: Some(value(first, 4)),
            address: Some(value(first, 2)),
            size: (!freed).then_some(size & layout::FREED),
            stack: (!freed).then_some(stack),
        };
        let cycles = value(first, 1);
        let kept = whole(first, self.next);
        self.lost += u64::from(!kept);
        self.next = self.next.saturating_add(1 + more);
        Some((kept.then_some(note), cycles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(room: &Path) -> Allocations {
        let shared = SharedWords::create(&[room], NAME, layout::WORDS).unwrap();
        Allocations { shared, notes: Notes::begin() }
    }

    /// Writes a note as the library does.
    fn put(ring: &Allocations, ticket: u64, address: u64, size: u64, stack: &[u64]) {
        let words = ring.shared.words();
        let at = layout::HEADER + ticket as usize % layout::SLOTS * layout::SLOT;
        let store = |at: usize, value| words[at].store(value, Ordering::Relaxed);
        store(at + 1, if size == layout::FREED { clock::cycles() } else { 0 });
        store(at + 2, address);
        store(at + 3, size);
        store(at + 4, 7);
        (0..3).for_each(|n| store(at + 5 + n, stack.get(n).copied().unwrap_or(0)));
        store(at, ticket + 1);
        words[1].fetch_max(ticket + 1, Ordering::Relaxed);
    }

    #[test]
    fn what_lives_short_and_is_small_is_left_out_and_the_rest_comes_in_order() {
        let room = tempfile::tempdir().unwrap();
        let mut ring = ring(room.path());
        put(&ring, 0, 0x1000, 64, &[0xa, 0xb]);
        put(&ring, 1, 0x2000, 64, &[0xc]);
        put(&ring, 2, 0x1000, layout::FREED, &[]);
        put(&ring, 3, 0x9000, 5000, &[0xd]);
        put(&ring, 4, 0x9000, layout::FREED, &[]);
        let read = ring.read();
        let told: Vec<_> = read.iter().map(|one| (one.address.unwrap(), one.size)).collect();
        assert_eq!(told, [(0x2000, Some(64)), (0x9000, Some(5000)), (0x9000, None)]);
        assert_eq!(read[0].stack, Some(vec![0xc]));
        assert!(read.windows(2).all(|two| two[0].time < two[1].time));
        assert!(read[1].time > ring.notes.began.1, "not before what was given back before it");
        assert!(ring.read().is_empty());
        put(&ring, 5, 0x2000, layout::FREED, &[]);
        assert_eq!(ring.read().len(), 1, "given back at a later reading");
        assert_eq!(ring.lost(), 0);
    }

    /// Half of a heap that was freed before the first reading was never seen to be live.
    #[test]
    fn what_lives_while_much_else_is_taken_is_kept() {
        let room = tempfile::tempdir().unwrap();
        let mut ring = ring(room.path());
        (0..SHORT).for_each(|ticket| put(&ring, ticket, ticket << 12, 64, &[0xa]));
        (0..SHORT).for_each(|ticket| {
            put(&ring, SHORT + ticket, ticket << 12, layout::FREED, &[]);
        });
        assert_eq!(ring.read().len() as u64, 2 * SHORT);
    }

    /// One that allocates in a loop notes faster than a recorder on a busy machine reads: it read for ever, until it
    /// was ended because it gave no sign of life.
    #[test]
    fn what_comes_while_it_reads_is_read_the_next_time() {
        let room = tempfile::tempdir().unwrap();
        let mut ring = ring(room.path());
        (0..5).for_each(|ticket| put(&ring, ticket, ticket << 12, 5000, &[]));
        let Allocations { shared, notes } = &mut ring;
        assert_eq!(notes.read_until(shared.words(), 3).len(), 3);
        assert_eq!(ring.read().len(), 2);
    }

    #[test]
    fn what_was_overwritten_is_counted() {
        let room = tempfile::tempdir().unwrap();
        let mut ring = ring(room.path());
        let slots = layout::SLOTS as u64;
        (slots..slots + 10).for_each(|ticket| put(&ring, ticket, ticket, 64, &[]));
        let read = ring.read();
        // Half of the ring is given up, so that the writer does not catch up at once; nothing was written there.
        assert_eq!(ring.lost() + read.len() as u64 + (slots + 10 - ring.notes()), slots + 10);
        assert!(ring.lost() >= slots / 2);
    }
}
