//! What the program's own threads tell the helper: new mappings, and where huge pages are not wanted.
//!
//! Mappings go through a ring. Who writes takes a ticket; the helper reads in ticket order. A ring that ran over loses
//! notes of mappings, which costs some help and nothing else. Refusals of huge pages must not be lost: they stay in a
//! table, and when that is full the whole process counts as refusing.
//!
//! The other way the helper says how far it has acted on them, and whether they can wait.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pagemill_preload_sys::sys;

/// A program that takes so much is worth looking at: the least that a policy may gain from it is a hundred times what a
/// look costs.
const MUCH: u64 = 8 << 20;

const NOTES: usize = 256;
const REFUSALS: usize = 64;

struct Note {
    /// Ticket plus one, when the rest is written.
    ticket: AtomicU64,
    start: AtomicU64,
    len: AtomicU64,
}

impl Note {
    const fn empty() -> Self {
        Self { ticket: AtomicU64::new(0), start: AtomicU64::new(0), len: AtomicU64::new(0) }
    }
}

static RING: [Note; NOTES] = [const { Note::empty() }; NOTES];
static TICKETS: AtomicU64 = AtomicU64::new(0);
static NOTED: AtomicU64 = AtomicU64::new(0);
static TABLE: [[AtomicU64; 2]; REFUSALS] = [const { [const { AtomicU64::new(0) }; 2] }; REFUSALS];
static REFUSED: AtomicU64 = AtomicU64::new(0);
static REFUSED_ALL: AtomicBool = AtomicBool::new(false);
static ADVISE_SMALL: AtomicBool = AtomicBool::new(false);
static QUIET: AtomicBool = AtomicBool::new(false);
/// Changes when notes have been acted on: their number, cut to 32 bits.
static ACTED: AtomicU32 = AtomicU32::new(0);
/// Whether notes can wait until they are of much memory, and whether they can wait whatever they are of.
static WAIT: AtomicBool = AtomicBool::new(false);
static DOZE: AtomicBool = AtomicBool::new(false);

/// The program limits the system calls that it may make, or is about to: from now on its own threads make none of ours.
pub(crate) fn keep_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether the program's own threads make no system call of ours: a filter may end the process for it.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// A new private anonymous mapping that may be written; the note's number.
pub(crate) fn mapped(start: usize, len: usize) -> u64 {
    mapped_small(len);
    let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
    let note = &RING[ticket as usize % NOTES];
    note.ticket.store(0, Ordering::Release);
    note.start.store(start as u64, Ordering::Relaxed);
    note.len.store(len as u64, Ordering::Relaxed);
    note.ticket.store(ticket + 1, Ordering::Release);
    ticket
}

/// The same of a mapping that the helper need not know of: only its length counts.
pub(crate) fn mapped_small(len: usize) {
    NOTED.fetch_add(len as u64, Ordering::Relaxed);
}

/// Whether the thread that makes a mapping with no room for a huge page has its faults bring 64 KiB there.
pub(crate) fn advises_small() -> bool {
    ADVISE_SMALL.load(Ordering::Relaxed)
}

/// Says so.
pub(crate) fn advise_small(advise: bool) {
    ADVISE_SMALL.store(advise, Ordering::Relaxed);
}

/// Bytes of all mappings that were noted.
pub(crate) fn noted() -> u64 {
    NOTED.load(Ordering::Relaxed)
}

/// Whether a program with so many bytes of anonymous memory, or of new mappings, is worth looking at.
pub(crate) fn is_much(bytes: u64) -> bool {
    bytes >= MUCH
}

/// Whether the helper sleeps until the program has grown, and it has not grown [much](is_much); or until it has worked
/// for some time.
pub(crate) fn can_wait() -> bool {
    DOZE.load(Ordering::Relaxed) || WAIT.load(Ordering::Relaxed) && !is_much(noted())
}

/// The helper sleeps until the program has worked for some time, or does no longer.
pub(crate) fn doze(doze: bool) {
    DOZE.store(doze, Ordering::Relaxed);
}

/// The helper sleeps until the program has grown, or does no longer.
pub(crate) fn let_wait(wait: bool) {
    WAIT.store(wait, Ordering::Relaxed);
}

/// The helper has acted on the notes before this number.
pub(crate) fn acted(notes: u64) {
    if ACTED.swap(notes as u32, Ordering::Release) != notes as u32 {
        sys::futex_wake(&ACTED, u32::MAX >> 1);
    }
}

/// Waits until the helper has acted on a note, or for so long.
pub(crate) fn wait_until_acted(note: u64, patience_ns: u64) {
    let until = sys::clock(sys::CLOCK_MONOTONIC) + patience_ns;
    loop {
        let acted = ACTED.load(Ordering::Acquire);
        let now = sys::clock(sys::CLOCK_MONOTONIC);
        // Modulo 2^32: behind by less than half of it.
        if acted.wrapping_sub(note as u32 + 1) < u32::MAX / 2 || now >= until {
            return;
        }
        sys::futex_wait(&ACTED, acted, Some(sys::Timespec::from_ns(until - now)));
    }
}

/// The program does not want huge pages there.
pub(crate) fn refused(start: usize, len: usize) {
    let number = REFUSED.fetch_add(1, Ordering::Relaxed) as usize;
    let Some(entry) = TABLE.get(number) else {
        REFUSED_ALL.store(true, Ordering::Relaxed);
        return;
    };
    entry[0].store(start as u64, Ordering::Relaxed);
    entry[1].store((start + len) as u64, Ordering::Release);
}

/// The program does not want huge pages at all.
pub(crate) fn refused_all() {
    REFUSED_ALL.store(true, Ordering::Relaxed);
}

/// Whether the program has said that it does not want huge pages at all, or so often that we have lost count.
pub(crate) fn is_refused_everywhere() -> bool {
    REFUSED_ALL.load(Ordering::Relaxed)
}

/// Whether the program does not want huge pages in some part of a range.
pub(crate) fn is_refused(start: u64, end: u64) -> bool {
    let count = (REFUSED.load(Ordering::Relaxed) as usize).min(REFUSALS);
    is_refused_everywhere()
        || TABLE[..count].iter().any(|entry| {
            let last = entry[1].load(Ordering::Acquire);
            entry[0].load(Ordering::Relaxed) < end && start < last
        })
}

/// Reads the ring; one reader.
#[derive(Debug)]
pub(crate) struct Reader(u64);

impl Reader {
    /// From now on.
    pub(crate) fn new() -> Self {
        Self(TICKETS.load(Ordering::Relaxed).saturating_sub(NOTES as u64 / 2))
    }

    /// Notes read, by which a note's number says whether it is among them.
    pub(crate) fn read(&self) -> u64 {
        self.0
    }

    /// The next note: start and length.
    pub(crate) fn next(&mut self) -> Option<(u64, u64)> {
        let tickets = TICKETS.load(Ordering::Acquire);
        self.0 = self.0.max(tickets.saturating_sub(NOTES as u64));
        if self.0 >= tickets {
            return None;
        }
        let note = &RING[self.0 as usize % NOTES];
        let before = note.ticket.load(Ordering::Acquire);
        if before < self.0 + 1 {
            return None; // Being written.
        }
        let found = (note.start.load(Ordering::Relaxed), note.len.load(Ordering::Relaxed));
        let after = note.ticket.load(Ordering::Acquire);
        self.0 += 1;
        // Overwritten meanwhile: the range may be of two mappings.
        if before == self.0 && after == before { Some(found) } else { self.next() }
    }
}
