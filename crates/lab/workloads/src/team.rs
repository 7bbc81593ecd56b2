//! Fork and join: a parallel region over parts that were split beforehand.

use crate::threads;

/// Runs `work` on each part, each on a thread of its own; on the caller if there is one part.
/// Results in the order of the parts.
pub(crate) fn each<T: Send, R: Send>(parts: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    if parts.len() <= 1 {
        return parts.into_iter().map(work).collect();
    }
    std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> =
            parts.into_iter().map(|part| threads::spawn(scope, move || work(part))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// The half-open ranges that split `count` things among `threads` as evenly as can be; none empty.
pub(crate) fn ranges(count: usize, threads: usize) -> Vec<std::ops::Range<usize>> {
    let threads = threads.clamp(1, count.max(1));
    (0..threads).map(|index| count * index / threads..count * (index + 1) / threads).collect()
}

/// `data` in consecutive pieces of `rows * row` elements, `rows` as [`ranges`] has them, each with its first row.
pub(crate) fn slabs<T>(data: &mut [T], row: usize, threads: usize) -> Vec<(usize, &mut [T])> {
    let mut rest = data;
    let mut slabs = Vec::new();
    for range in ranges(rest.len() / row, threads) {
        let (slab, tail) = rest.split_at_mut(range.len() * row);
        slabs.push((range.start, slab));
        rest = tail;
    }
    slabs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_everything_once_and_none_is_empty() {
        for (count, threads) in [(10, 3), (2, 5), (7, 7), (1, 1)] {
            let ranges = ranges(count, threads);
            assert!(ranges.iter().all(|range| !range.is_empty()));
            assert_eq!(
                ranges.into_iter().flatten().collect::<Vec<_>>(),
                (0..count).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn parts_are_worked_on_and_come_back_in_order() {
        let mut data = vec![0; 12];
        let firsts = each(slabs(&mut data, 2, 4), |(first, slab)| {
            slab.fill(first);
            first
        });
        assert_eq!(firsts, [0, 1, 3, 4]);
        assert_eq!(data, [0, 0, 1, 1, 1, 1, 3, 3, 4, 4, 4, 4]);
    }
}
