//! What a running process does not access for a while: its pages are marked as not accessed, and counted in the end.
//!
//! The first access to a page that is marked costs the program [`ACCESS`]. So all are marked only where that is no more
//! than [`SHARE`] of the time of the look; else a sample is: blocks of 2 MiB of its anonymous memory, one of so many,
//! any of them.
//!
//! ```text
//!  before     sample of s                 in the end
//!  u0         m = s · (1 - u0 / all)      u2: of the sample stayed f = (u2 - u0) / m
//!                                         not accessed = u2 + f · (all - u0 - m)
//! ```
//!
//! where `u` are the anonymous pages that are not marked as accessed, of the whole process, and `all` is such memory:
//! what stays so from a look before is known, and a random sample has its share of it. How many pages are marked is not
//! read from the process after marking: those that it accesses all the time are accessed again by then. The interval is
//! Wilson's for `f` of as many trials as there are blocks in the sample: as if each were accessed as a whole or not at
//! all.

use anyhow::{Context as _, Result, anyhow, ensure};
use pagemill_analysis::statistics::Random;
use pagemill_kernel::memory::huge_pages_of::{Pages, Run};
use pagemill_kernel::memory::smaps::Usage;
use pagemill_kernel::{Linux, clock, page_size};
use pagemill_model::page::HUGE;
use pagemill_model::sums::sum;
use pagemill_model::{PageRange, Pid};
use std::ops::Range;
use std::time::Duration;

use crate::observation::{Bounds, Cold};

/// What an access to a marked page costs the program more than to another: 0.3 us was measured in 512 MiB of a guest,
/// 0.9 us in 256 MiB of a busy one.
const ACCESS: Duration = Duration::from_micros(1);
/// A part of the time that the program may spend on that.
const SHARE: f64 = 0.005;
/// A process of whose anonymous memory more than this part is shared has no sample: marks of a range (`MADV_COLD`) pass
/// over pages that others map, too.
const SHARED: u64 = 16;
/// Blocks of a sample that tell anything.
const FEWEST: usize = 8;
/// Standard errors on each side of an interval of 95 %.
const Z: f64 = 1.96;

/// Pages that are marked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// Anonymous bytes that were not marked as accessed before, where a sample is marked.
    before: u64,
    /// Bytes that a sample marked, as far as they were not so before; without one all memory is marked.
    sample: Option<u64>,
}

fn of_mappings(linux: &Linux, pid: Pid) -> Result<Vec<Usage>> {
    Ok(linux.smaps(pid)?.into_iter().map(|mapping| mapping.usage).collect())
}

/// Anonymous memory that is not marked as accessed. Of a mapping that has pages of a file, too, all that is marked may
/// be the file's.
fn untouched(mappings: &[Usage]) -> u64 {
    let of = |usage: &Usage| {
        let [all, accessed] = [usage.rss, usage.referenced].map(Option::unwrap_or_default);
        all.saturating_sub(accessed).min(usage.anonymous.unwrap_or(0))
    };
    sum(mappings.iter().map(of))
}

/// The same of files and of shared memory: what is not marked as accessed.
fn of_files(mappings: &[Usage]) -> u64 {
    let of = |usage: &Usage| {
        let files = usage.rss.unwrap_or(0).saturating_sub(usage.anonymous.unwrap_or(0));
        files.saturating_sub(usage.referenced.unwrap_or(u64::MAX))
    };
    sum(mappings.iter().map(of))
}

impl Marks {
    /// Marks pages of `pid`, which is looked at for `time`. The inner error says why that is not to be.
    pub fn set(linux: &Linux, pid: Pid, time: Duration) -> Result<Result<Self>> {
        let usage = linux.smaps_rollup(pid)?;
        let (rss, huge) = (usage.rss.unwrap_or(0), usage.anon_huge_pages.unwrap_or(0));
        let entries = rss.saturating_sub(huge) / page_size() as u64 + huge / HUGE;
        let most = (time.as_secs_f64() * SHARE / ACCESS.as_secs_f64()) as u64;
        if entries <= most {
            linux.clear_referenced(pid)?;
            return Ok(Ok(Self { before: 0, sample: None }));
        }
        let all = usage.anonymous.unwrap_or(0).max(1);
        if usage.pss_anon.is_some_and(|own| own < all - all / SHARED) {
            let seconds = (ACCESS.as_secs_f64() * entries as f64 / SHARE).ceil();
            return Ok(Err(anyhow!(
                "what it accesses was not looked at: it shares memory with others since a fork, a part of which \
                 cannot be marked by itself (all of it can: --for {seconds}s)"
            )));
        }
        let before = untouched(&of_mappings(linux, pid)?);
        let new = 1.0 - before.min(all) as f64 / all as f64;
        let marked = sample(linux, pid, most);
        Ok(marked.map(|bytes| Self { before, sample: Some((bytes as f64 * new) as u64) }))
    }

    /// What was not accessed for so many seconds, by what the process is in the end.
    pub fn read(self, linux: &Linux, pid: Pid, seconds: f64) -> Result<Cold> {
        Ok(self.cold(&of_mappings(linux, pid)?, seconds))
    }

    fn cold(self, mappings: &[Usage], seconds: f64) -> Cold {
        let anonymous = sum(mappings.iter().map(|usage| usage.anonymous.unwrap_or(0)));
        let stayed = untouched(mappings);
        let Some(sample) = self.sample else {
            return Cold { bytes: stayed, seconds, range: None, files: of_files(mappings) };
        };
        let marked = sample.max(1) as f64;
        let part = (stayed.saturating_sub(self.before) as f64 / marked).min(1.0);
        let rest = anonymous.saturating_sub(self.before + sample) as f64;
        let all = |part: f64| (stayed + (part * rest) as u64).min(anonymous);
        let (low, high) = interval(part, (marked / HUGE as f64).max(1.0));
        let range = Bounds { low: all(low), high: all(high) };
        Cold { bytes: all(part), seconds, range: Some(range), files: 0 }
    }
}

/// Wilson's interval of a part that was seen in so many trials.
fn interval(part: f64, trials: f64) -> (f64, f64) {
    let square = Z * Z / trials;
    let middle = part + square / 2.0;
    let width = Z * (part * (1.0 - part) / trials + square / (4.0 * trials)).sqrt();
    let end = |sign: f64| ((middle + sign * width) / (1.0 + square)).clamp(0.0, 1.0);
    (end(-1.0), end(1.0))
}

/// Marks blocks of anonymous memory that the program pays for with about `most` accesses. Returns bytes.
fn sample(linux: &Linux, pid: Pid, most: u64) -> Result<u64> {
    let why = "what it accesses was not looked at: to mark all of its memory would cost it too much (a longer --for \
               affords it), and a part";
    let pages = Pages::of(linux, pid).context(why)?;
    let mut blocks = Vec::new();
    for map in linux.maps(pid)?.iter().filter(|map| map.inode == 0 && map.write && !map.shared) {
        let map = PageRange::new(map.start..map.end);
        blocks.extend(Block::all(map, &pages.runs(map).context(why)?));
    }
    let all: u64 = sum(blocks.iter().map(|block| block.pages));
    let share = (most as f64 / all.max(1) as f64).min(1.0);
    let mut random = Random::new(clock::monotonic().as_nanos() as u64);
    let (mut count, mut bytes) = (0, 0);
    for block in chosen(&blocks, (blocks.len() as f64 * share) as usize, &mut random) {
        // One that goes meanwhile is not marked; who may not mark any is told.
        match pages.mark_untouched(block.range) {
            Ok(()) => (count, bytes) = (count + 1, bytes + block.bytes),
            Err(error) if count == 0 => return Err(error).context(why),
            Err(_) => {}
        }
    }
    ensure!(
        count >= FEWEST,
        "{why} of it that can be marked is too small to tell ({count} blocks of 2 MiB)"
    );
    Ok(bytes)
}

/// The part of a mapping that lies in 2 MiB, with pages there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    range: PageRange,
    /// Of pages that are there.
    bytes: u64,
    /// Those, a huge one as one.
    pages: u64,
}

impl Block {
    /// All of a mapping with these pages, in order.
    fn all(map: PageRange, runs: &[Run]) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let whole = PageRange::of_huge(at / HUGE * HUGE);
                let range = whole.within(map);
                let end = whole.end.min(run.end);
                let bytes = end - at;
                let pages = if run.huge { 1 } else { bytes / page_size() as u64 };
                match blocks.last_mut().filter(|last| last.range == range) {
                    Some(last) => {
                        (last.bytes, last.pages) = (last.bytes + bytes, last.pages + pages)
                    }
                    None => blocks.push(Self { range, bytes, pages }),
                }
                at = end;
            }
        }
        blocks
    }
}

/// So many of the blocks, in order, one of each part of equal size, any of it: a look after this one has its share of
/// the same, not all or none.
fn chosen<T: Copy>(blocks: &[T], count: usize, random: &mut Random) -> Vec<T> {
    let bound = |part: usize| part * blocks.len() / count.max(1);
    let parts = (0..count).map(|at| bound(at)..bound(at + 1));
    let any = |part: Range<usize>| {
        let block = part.start + (random.unit() * part.len() as f64) as usize;
        blocks.get(block.min(part.end.saturating_sub(1))).copied()
    };
    parts.filter_map(any).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of anonymous memory and of a file, in blocks: what there is, and what is not marked as accessed.
    fn usage(anonymous: [u64; 2], file: [u64; 2]) -> Vec<Usage> {
        let of = |[all, untouched]: [u64; 2], anonymous: u64| Usage {
            rss: Some(all * HUGE),
            referenced: Some((all - untouched) * HUGE),
            anonymous: Some(anonymous * HUGE),
            ..Usage::default()
        };
        vec![of(anonymous, anonymous[0]), of(file, 0)]
    }

    #[test]
    fn a_sample_tells_of_all_with_an_interval_that_narrows() {
        let read = |scale: u64, stayed: u64| {
            let marks = Marks { before: 10 * scale * HUGE, sample: Some(100 * scale * HUGE) };
            let cold = marks.cold(&usage([1010 * scale, stayed * scale], [50, 50]), 1.0);
            let of = |bytes: u64| bytes as f64 / (scale * HUGE) as f64;
            let Bounds { low, high } = cold.range.unwrap();
            (of(cold.bytes), of(low), of(high))
        };
        // A quarter of the sample stayed: 35 that are known, and a quarter of the other 900.
        let (cold, low, high) = read(1, 35);
        assert!((cold - 260.0).abs() < 1.0);
        // Wilson's for 25 of 100: 0.1755 and 0.3430.
        assert!((low - 193.0).abs() < 1.0 && (high - 343.7).abs() < 1.0, "{low} {high}");
        let (_, narrow_low, narrow_high) = read(100, 35);
        assert!(narrow_low > low && narrow_high < high);
        let (none, _, most) = read(1, 10);
        assert!((none - 10.0).abs() < 1.0 && most > 10.0, "all of the sample was accessed");
        assert!((read(1, 110).0 - 1010.0).abs() < 1.0, "none of it");
    }

    /// One block counted twice where nearly all are chosen, and of 64 MiB that were not accessed 58 to 60 were told.
    #[test]
    fn of_blocks_so_many_are_chosen_and_none_twice() {
        let blocks: Vec<u64> = (0..100).map(|block| block * HUGE).collect();
        let mut random = Random::new(1);
        for count in [0, 1, 7, 83, 99, 100] {
            let some = chosen(&blocks, count, &mut random);
            assert_eq!(some.len(), count);
            assert!(some.is_sorted_by(|a, b| a < b), "{some:?}");
        }
        assert!(chosen::<u64>(&[], 3, &mut random).is_empty());
    }

    /// What lies before the first boundary of 2 MiB and after the last was in no block.
    #[test]
    fn all_pages_of_a_mapping_are_in_blocks() {
        let small = page_size() as u64;
        let map = HUGE - 2 * small..3 * HUGE + small;
        let run = |start: u64, end: u64, huge: bool| Run { start, end, huge };
        let runs = [
            run(HUGE - 2 * small, HUGE + small, false),
            run(HUGE + 5 * small, HUGE + 6 * small, false),
            run(2 * HUGE, 3 * HUGE, true),
            run(3 * HUGE, 3 * HUGE + small, false),
        ];
        let block = |range: Range<u64>, small_pages: u64| Block {
            range: PageRange::new(range),
            bytes: small_pages * small,
            pages: small_pages,
        };
        let expected = [
            block(HUGE - 2 * small..HUGE, 2),
            block(HUGE..2 * HUGE, 2),
            Block { bytes: HUGE, pages: 1, ..block(2 * HUGE..3 * HUGE, 0) },
            block(3 * HUGE..3 * HUGE + small, 1),
        ];
        assert_eq!(Block::all(PageRange::new(map.clone()), &runs), expected);
        assert_eq!(Block::all(PageRange::new(map), &[]), []);
    }

    #[test]
    fn where_all_is_marked_what_stayed_is_all() {
        let marks = Marks { before: 10 * HUGE, sample: None };
        let cold = Cold { bytes: 310 * HUGE, seconds: 2.0, range: None, files: 0 };
        assert_eq!(marks.cold(&usage([1010, 310], [0, 0]), 2.0), cold);
    }

    /// "up to 20 % of its memory" were 20 MiB that it accessed all the time, for 80 of a file were not.
    #[test]
    fn memory_that_is_accessed_is_not_cold_for_a_file_that_is_not() {
        let marks = Marks { before: 0, sample: None };
        let cold = marks.cold(&usage([10, 0], [40, 40]), 6.0);
        assert_eq!((cold.bytes, cold.files), (0, 40 * HUGE));
        let cold = marks.cold(&usage([10, 9], [40, 1]), 6.0);
        assert_eq!((cold.bytes, cold.files), (9 * HUGE, HUGE));
    }
}
