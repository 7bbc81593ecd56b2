//! Which pages were written in an interval, as the faults tell it.
//!
//! A page whose entry was dropped is mapped read-only by a read and writable by a write, so its first write in
//! an interval is a fault. Two things make a page writable without a fault in the interval:
//!
//! - a fault that was *under way* when the entries were read or dropped, and ended afterwards;
//! - the kernel, which *takes* a page for itself without a fault: for a futex that processes may share (as a
//!   thread's end is waited for), for direct I/O.
//!
//! Both leave a page that is there at the end of an interval and had no fault in it. If the fault under way was a
//! read, the page is read-only, and a write would have been a fault; else it counts as written: the program
//! may have written to it since.
//!
//! A page with a fault that is *over*, since its thread had another one before the scan, was touched, whether its entry
//! is there or not: the kernel takes entries away by itself (it moves pages, or reclaims them).
//!
//! Always true: a page that the program wrote to in an interval is among the written ones.

use std::collections::{BTreeSet, HashMap, HashSet};

use pagemill_model::Pid;

/// A fault takes at most this long, ns, but for one whose thread does not get a processor.
const UNDER_WAY: u64 = 5_000_000;

/// A fault of a process.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// When it began.
    pub time: u64,
    /// Number of the page.
    pub page: u64,
    /// Whose.
    pub thread: Pid,
    /// Whether to write.
    pub write: bool,
}

/// An interval's end.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// When its scan began.
    pub scanned: u64,
    /// When its entries were dropped.
    pub ended: u64,
    /// The pages that the scan found.
    pub present: &'a BTreeSet<u64>,
    /// Whether all that was present before was dropped, so that what is here now was touched since.
    pub fresh: bool,
}

/// What faults say of a process's pages.
#[derive(Debug, Default)]
pub struct Written {
    /// Faults of the interval under way.
    seen: Vec<Fault>,
    /// Pages that became writable around the last scan: they may be written again without a fault.
    kept: HashSet<u64>,
    /// Pages with a fault between the last scan and its end.
    around: HashSet<u64>,
    /// Pages for which a read may have been under way at the last scan.
    reading: HashSet<u64>,
}

impl Written {
    /// A fault.
    pub fn fault(&mut self, fault: Fault) {
        self.seen.push(fault);
    }

    /// The end of an interval: pages that were touched after their part of the scan, or whose entries the kernel took
    /// away before it, and the written ones of those that are `writable`.
    pub fn interval(
        &mut self,
        end: &End<'_>,
        writable: impl Fn(u64) -> bool,
    ) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let (mut late, mut written) = (BTreeSet::new(), BTreeSet::new());
        let (seen, after): (Vec<Fault>, Vec<Fault>) =
            std::mem::take(&mut self.seen).into_iter().partition(|fault| fault.time <= end.ended);
        self.seen = after;
        let told: HashSet<u64> = seen.iter().map(|fault| fault.page).collect();
        let (kept, around) = (std::mem::take(&mut self.kept), std::mem::take(&mut self.around));
        let reading = std::mem::take(&mut self.reading);
        for &page in end.present {
            let silent = !told.contains(&page) && !around.contains(&page);
            if kept.contains(&page)
                || silent && end.fresh && !reading.contains(&page) && writable(page)
            {
                written.insert(page);
            }
        }
        let mut last: HashMap<Pid, (u64, u64)> = HashMap::new();
        for fault in seen.iter().filter(|fault| fault.time <= end.scanned) {
            let latest = last.entry(fault.thread).or_default();
            *latest = (fault.time, fault.page).max(*latest);
        }
        let mut writing = HashSet::new();
        for fault in &seen {
            let (latest, page) = last.get(&fault.thread).copied().unwrap_or_default();
            // The same page again is the same fault, tried once more.
            let over = fault.time < latest && page != fault.page;
            let gone = !end.present.contains(&fault.page);
            if gone && over {
                late.insert(fault.page);
            }
            let absent = gone && !over;
            if fault.write {
                written.insert(fault.page);
            }
            if fault.time > end.scanned {
                late.insert(fault.page);
                self.around.insert(fault.page);
            }
            if fault.write && (fault.time > end.scanned || absent) {
                self.kept.insert(fault.page);
            }
            let under_way = fault.time <= end.scanned
                && (absent || latest == fault.time && fault.time + UNDER_WAY > end.scanned);
            if under_way {
                if fault.write { &mut writing } else { &mut self.reading }.insert(fault.page);
            }
        }
        self.reading.retain(|page| !writing.contains(page));
        (late, written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Interval n is scanned at 100 n + 90 ms and ends 2 ms later.
    fn end(number: u64, present: &BTreeSet<u64>) -> End<'_> {
        let scanned = (100 * number + 90) * MS;
        End { scanned, ended: scanned + 2 * MS, present, fresh: number > 0 }
    }

    /// The written pages of each interval, given the faults (ms, page, thread, write) and what is present.
    fn written(faults: &[(u64, u64, u32, bool)], present: &[&[u64]]) -> Vec<Vec<u64>> {
        let mut state = Written::default();
        for &(time, page, thread, write) in faults {
            state.fault(Fault { time: time * MS, page, thread: Pid(thread), write });
        }
        let mut told = Vec::new();
        for (number, present) in present.iter().enumerate() {
            let present = present.iter().copied().collect();
            let (_, written) = state.interval(&end(number as u64, &present), |page| page < 100);
            told.push(written.into_iter().collect());
        }
        told
    }

    #[test]
    fn a_write_is_told_where_it_was_and_a_read_is_none() {
        let faults = [(10, 1, 7, true), (20, 2, 7, false), (30, 3, 7, false), (110, 2, 7, true)];
        assert_eq!(written(&faults, &[&[1, 2, 3], &[2]]), [vec![1], vec![2]]);
    }

    /// Two threads of CG: one waited for the end of the other, and the kernel took the page of the futex
    /// after its entry was dropped. The program then wrote to it without a fault, and the write was missing.
    #[test]
    fn a_page_that_is_there_without_a_fault_counts_as_written() {
        let faults = [(10, 1, 7, true), (20, 2, 7, false), (30, 200, 7, false), (80, 4, 7, false)];
        assert_eq!(written(&faults, &[&[1, 2, 200], &[1, 2]])[1], [1, 2]);
        // What cannot be written to was not.
        assert_eq!(written(&faults, &[&[1, 200], &[200]])[1], [] as [u64; 0]);
    }

    #[test]
    fn a_fault_that_was_under_way_at_the_scan_says_what_the_page_is_afterwards() {
        // The last thing that a thread did; the entry was there before by another thread's doing.
        let write = [(50, 1, 8, false), (60, 9, 8, false), (88, 1, 7, true)];
        assert_eq!(written(&write, &[&[1, 9], &[1]])[1], [1]);
        let read = [(50, 1, 8, false), (60, 9, 8, false), (88, 1, 7, false)];
        assert_eq!(written(&read, &[&[1, 9], &[1]])[1], [] as [u64; 0]);
        // A page that the scan did not find: its fault is the one that was under way.
        assert_eq!(written(&[(40, 1, 7, false)], &[&[], &[1]])[1], [] as [u64; 0]);
        assert_eq!(written(&[(40, 1, 7, true)], &[&[], &[1]])[1], [1]);
    }

    /// Runs of EP on a busy machine: one page of 100,000 that were told was missing.
    #[test]
    fn a_page_whose_entry_the_kernel_took_away_was_touched_if_its_fault_is_over() {
        let late = |faults: &[(u64, u64, u32, bool)]| {
            let mut state = Written::default();
            for &(time, page, thread, write) in faults {
                state.fault(Fault { time: time * MS, page, thread: Pid(thread), write });
            }
            let (late, written) = state.interval(&end(1, &BTreeSet::from([2, 3])), |_| true);
            let (_, next) = state.interval(&end(2, &BTreeSet::from([1])), |_| true);
            (late.into_iter().collect::<Vec<u64>>(), written.contains(&1), next.contains(&1))
        };
        assert_eq!(late(&[(110, 1, 7, true), (120, 2, 7, false)]), (vec![1], true, true));
        assert_eq!(late(&[(110, 1, 7, false), (120, 2, 7, false)]), (vec![1], false, true));
        // Of another thread, the same page once more, or after the scan: it may be under way.
        for faults in [
            [(110, 1, 7, false), (120, 2, 8, false)],
            [(110, 1, 7, false), (120, 1, 7, false)],
            [(189, 1, 7, false), (191, 2, 7, false)],
        ] {
            let (late, written, next) = late(&faults);
            assert!(!late.contains(&1) && !written && !next, "{faults:?}");
        }
    }

    #[test]
    fn what_was_mapped_while_entries_were_dropped_may_stay_and_a_write_to_it_is_known() {
        assert_eq!(written(&[(91, 1, 7, true)], &[&[], &[1]])[1], [1]);
        assert_eq!(written(&[(91, 1, 7, false)], &[&[], &[1]])[1], [] as [u64; 0]);
    }
}
