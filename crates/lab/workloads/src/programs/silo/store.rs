//! A store in memory with optimistic transactions, as Silo has them (Tu and others, SOSP 2013).
//!
//! ```text
//!  a record:  TID word  [locked | absent | epoch, 22 bits | number, 40 bits]   and words of data
//!
//!  read    copy the data between two equal, unlocked TID words; remember the word
//!  commit  lock what is written, in order;  all that was read still has its word, or abort;
//!          write under a TID above all that were seen, in the present epoch;  unlock
//! ```
//!
//! Records are numbered, and a table has room for a fixed number; one that was never written, or was removed, is
//! *absent*, which is read and validated as any other, so that scans see no phantoms.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering, fence};

const LOCKED: u64 = 1 << 63;
const ABSENT: u64 = 1 << 62;
/// Bits of a TID below the epoch.
const NUMBER: u32 = 40;
/// Stands for the new data of a record that is to be removed.
const REMOVED: usize = usize::MAX;

/// Records of one size.
pub(super) struct Table {
    words: usize,
    tids: Vec<AtomicU64>,
    data: Vec<AtomicU64>,
}

impl Table {
    /// Of `room` records of `words` words, all absent.
    pub(super) fn new(room: usize, words: usize) -> Self {
        let atomics =
            |count: usize, value: u64| (0..count).map(|_| AtomicU64::new(value)).collect();
        Self { words, tids: atomics(room, ABSENT), data: atomics(room * words, 0) }
    }

    /// Puts a record in place before any transaction.
    pub(super) fn load(&mut self, at: usize, record: &[u64]) {
        self.tids[at] = AtomicU64::new(0);
        let words = &mut self.data[at * self.words..(at + 1) * self.words];
        words.iter_mut().zip(record).for_each(|(word, &value)| *word = AtomicU64::new(value));
    }

    /// Makes a record absent.
    #[cfg(test)]
    pub(super) fn lose(&mut self, at: usize) {
        self.tids[at] = AtomicU64::new(ABSENT);
    }

    /// Records that it has room for.
    pub(super) fn room(&self) -> usize {
        self.tids.len()
    }

    fn words_of(&self, at: usize) -> &[AtomicU64] {
        &self.data[at * self.words..(at + 1) * self.words]
    }

    /// Copies a record; returns its TID word.
    fn read(&self, at: usize, out: &mut Vec<u64>) -> u64 {
        loop {
            let tid = self.tids[at].load(Ordering::Acquire);
            if tid & LOCKED == 0 {
                out.clear();
                out.extend(self.words_of(at).iter().map(|word| word.load(Ordering::Relaxed)));
                fence(Ordering::Acquire);
                if self.tids[at].load(Ordering::Relaxed) == tid {
                    return tid;
                }
            }
            hint::spin_loop();
        }
    }

    /// Locks a record; returns its TID word before. A thread that holds it may be waiting for the processor.
    fn lock(&self, at: usize) -> u64 {
        let mut spins = 0_u32;
        loop {
            let tid = self.tids[at].load(Ordering::Relaxed);
            if tid & LOCKED == 0
                && self.tids[at]
                    .compare_exchange(tid, tid | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                // Whoever sees the new data sees the lock.
                fence(Ordering::Release);
                return tid;
            }
            spins += 1;
            if spins.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                hint::spin_loop();
            }
        }
    }
}

/// A record of a table.
pub(super) type Place = (usize, usize);

/// All tables.
pub(super) struct Store {
    pub(super) tables: Vec<Table>,
    epoch: AtomicU64,
}

impl Store {
    pub(super) fn new(tables: Vec<Table>) -> Self {
        Self { tables, epoch: AtomicU64::new(1) }
    }

    /// Begins the next epoch.
    pub(super) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// A record outside of transactions, when none runs; `None` if it is absent.
    pub(super) fn committed(&self, (table, at): Place) -> Option<Vec<u64>> {
        let mut record = Vec::new();
        let tid = self.tables[table].read(at, &mut record);
        (tid & ABSENT == 0).then_some(record)
    }
}

/// What one committed transaction read and wrote, for the check that there is a serial order.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    /// Records with the TID words that were seen.
    pub(super) reads: Vec<(Place, u64)>,
    /// Records with the TID words before.
    pub(super) writes: Vec<(Place, u64)>,
    /// The TID word after.
    pub(super) tid: u64,
}

/// One thread's transactions, one after the other.
pub(super) struct Worker<'a> {
    store: &'a Store,
    last: u64,
    reads: Vec<(Place, u64)>,
    /// Records and where their new data begin, or [`REMOVED`].
    writes: Vec<(Place, usize)>,
    data: Vec<u64>,
    pub(super) aborts: u64,
    /// Filled if the history is wanted.
    pub(super) traces: Option<Vec<Trace>>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(store: &'a Store) -> Self {
        Self {
            store,
            last: 0,
            reads: Vec::new(),
            writes: Vec::new(),
            data: Vec::new(),
            aborts: 0,
            traces: None,
        }
    }

    pub(super) fn begin(&mut self) {
        self.reads.clear();
        self.writes.clear();
        self.data.clear();
    }

    /// Reads a record as this transaction has it; false if it is absent.
    pub(super) fn read(&mut self, place: Place, record: &mut Vec<u64>) -> bool {
        let (table, at) = place;
        let table = &self.store.tables[table];
        if let Some(&(_, start)) = self.writes.iter().rev().find(|(written, _)| *written == place) {
            record.clear();
            let there = start != REMOVED;
            if there {
                record.extend_from_slice(&self.data[start..start + table.words]);
            }
            return there;
        }
        let tid = table.read(at, record);
        self.reads.push((place, tid));
        tid & ABSENT == 0
    }

    /// Writes a record when the transaction commits.
    pub(super) fn write(&mut self, place: Place, record: &[u64]) {
        let at = self.written(place);
        let start = self.writes[at].1;
        if start == REMOVED {
            self.writes[at].1 = self.data.len();
            self.data.extend_from_slice(record);
        } else {
            self.data[start..start + record.len()].copy_from_slice(record);
        }
    }

    /// Removes a record when the transaction commits.
    pub(super) fn remove(&mut self, place: Place) {
        let at = self.written(place);
        self.writes[at].1 = REMOVED;
    }

    /// Which of the writes is that of a record.
    fn written(&mut self, place: Place) -> usize {
        self.writes.iter().position(|(written, _)| *written == place).unwrap_or_else(|| {
            self.writes.push((place, REMOVED));
            self.writes.len() - 1
        })
    }

    /// Commits; false if the transaction must be done again.
    pub(super) fn commit(&mut self) -> bool {
        self.writes.sort_unstable();
        let table = |place: Place| &self.store.tables[place.0];
        let locked: Vec<u64> =
            self.writes.iter().map(|&(place, _)| table(place).lock(place.1)).collect();
        fence(Ordering::SeqCst);
        let epoch = self.store.epoch.load(Ordering::SeqCst);
        let mut greatest = self.last;
        let mut valid = true;
        for &(place, seen) in &self.reads {
            let now = table(place).tids[place.1].load(Ordering::Acquire);
            let own = || self.writes.binary_search_by_key(&place, |&(place, _)| place).is_ok();
            valid &= now & !LOCKED == seen && (now & LOCKED == 0 || own());
            greatest = greatest.max(seen & !ABSENT);
        }
        if !valid {
            for (&(place, _), &before) in self.writes.iter().zip(&locked) {
                table(place).tids[place.1].store(before, Ordering::Release);
            }
            self.aborts += 1;
            return false;
        }
        let greatest = locked.iter().fold(greatest, |most, tid| most.max(tid & !ABSENT));
        let tid = (greatest + 1).max(epoch << NUMBER);
        self.last = tid;
        for &(place, start) in &self.writes {
            let (words, removed) = (table(place).words_of(place.1), start == REMOVED);
            for (word, &value) in words.iter().zip(self.data.get(start..).unwrap_or_default()) {
                word.store(value, Ordering::Relaxed);
            }
            let tid = if removed { tid | ABSENT } else { tid };
            table(place).tids[place.1].store(tid, Ordering::Release);
        }
        if let Some(traces) = &mut self.traces {
            // A removal makes a version as any other write does.
            let versions = |seen: &[(Place, u64)]| {
                seen.iter().map(|&(place, tid)| (place, tid & !ABSENT)).collect::<Vec<_>>()
            };
            let places = self.writes.iter().map(|&(place, _)| place);
            let writes: Vec<_> = places.zip(locked).collect();
            traces.push(Trace { reads: versions(&self.reads), writes: versions(&writes), tid });
        }
        true
    }
}
