//! How much of a program's memory could be slower, by a recording of its accesses: modelled, nothing is tried.
//!
//! Two ways to have slower memory. *Compressed* (zram, zswap): fast memory keeps the pages that were used last, and
//! what comes back costs a fault that decompresses it and the compression of the page that makes room. Each page that
//! was touched is held to be one that can be compressed; what its compressed copy takes is not known and not counted.
//! A recording does not tell in which order an interval's pages were touched, and what comes back once while the
//! program sets itself up is no cost of a longer run: so the cost lies between that of the best order in the second
//! half of the recording, and that of the worst order in all of it. To fast memory smaller than what one interval
//! touches a page may come back many times within it, and there is no bound above.
//! *A slower tier*: the hottest pages are on the fast one, by whoever simulates it. A recording does not tell whether a
//! program's reads wait for each other either: where they do, what half of them take longer is half of the cost, and
//! where they do not, one slow read holds up those behind it.
//!
//! Always true: more fast memory is no slower; with all of it fast nothing is.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use pagemill_analysis::heat::Bounds;
use pagemill_analysis::refaults::{RefaultFold, RefaultView};
use pagemill_launch::progress::Progress;
use pagemill_model::page::BASE;
use pagemill_model::recording::Meta;
use pagemill_model::{Bytes, Event, Fold as _, Nanos};
use pagemill_report::draw::text;
use serde_json::{Value, json};

/// CPU time that a page costs which comes back: 8 us to fault and decompress it, 10 us to compress another. Measured
/// with zram and lzo-rle on Linux 6.18, 64 MiB of a program's code and data, on a processor of 2021.
const COMES_BACK: Nanos = Nanos(18_000);

/// Intervals of which the second half tells what comes back, at the least.
const FEWEST: u64 = 8;

/// Touches that are looked at, and pages that are told apart (64 GiB): what takes seconds.
const BOUNDS: Bounds = Bounds { looks: 1 << 27, pages: 1 << 24 };

/// Sizes of fast memory: all, and so many halves of it.
const HALVES: u32 = 7;

/// Parts of the speed that are asked about.
const PARTS: [f64; 2] = [0.9, 0.99];

/// A size in words.
fn size(bytes: f64) -> String {
    match bytes.max(0.0) as u64 {
        0 => "next to none".to_owned(),
        bytes => Bytes(bytes).to_string().trim().to_owned(),
    }
}

/// What slower memory would cost, by the size of the fast one.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowerMemory {
    touched: RefaultView,
    /// Time that the program had, without what tracing took, seconds.
    seconds: f64,
    points: Vec<Point>,
    /// Fast memory that so large a part of the speed needs with a slower tier, bytes.
    needs: Vec<(f64, [f64; 2])>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    fast: u64,
    /// Pages that come back.
    come_back: u64,
    /// Times as long with zram, at the most; not known where it is smaller than what an interval touches.
    compressed: Option<f64>,
    /// The same at the least.
    compressed_least: f64,
    /// Times as long with a slower tier, where that was simulated: at the least and at the most.
    tier: Option<[f64; 2]>,
}

/// A program on two tiers, by whoever simulates it, with reads that do not wait for each other and with such that do,
/// or the other way round.
pub trait Tier {
    /// The part of the speed that is left with so many bytes of fast memory, 0 to 1.
    fn part(&self, fast: f64) -> [f64; 2];
    /// Bytes of fast memory that so large a part of the speed needs.
    fn needs(&self, part: f64) -> [f64; 2];
}

/// The same two, the lesser first.
fn ordered([one, other]: [f64; 2]) -> [f64; 2] {
    [one.min(other), one.max(other)]
}

/// The pages that a recording says were touched, from its events.
pub struct Touches {
    /// Time between intervals that was asked for, ns.
    asked: Option<u64>,
    fold: RefaultFold,
    line: Progress,
    first: u64,
    last: u64,
}

impl Touches {
    /// Nothing yet, of a recording with this header.
    pub fn begin(meta: &Meta) -> Self {
        let asked = meta.accesses.as_ref().map(|setup| setup.interval.0);
        let line = Progress::new("reading accesses");
        Self { asked, fold: RefaultFold::within(BOUNDS), line, first: u64::MAX, last: 0 }
    }

    /// The next event.
    pub fn event(&mut self, event: &Event) {
        if let Event::Touched(row) = event {
            self.first = self.first.min(row.began.unwrap_or(row.time).0);
            self.last = self.last.max(row.time.0);
            self.line.say(&format!("{} s", self.last.saturating_sub(self.first) / 1_000_000_000));
        }
        self.fold.event(event);
    }

    /// What slower memory would cost.
    ///
    /// # Errors
    /// There are too few intervals.
    pub fn slower(self, tier: Option<&dyn Tier>) -> Result<SlowerMemory> {
        let touched = self.fold.view();
        ensure!(
            touched.intervals >= FEWEST,
            "it has {} intervals of accesses, too few to tell (more: pagemill record --with accesses \
             --access-interval 10ms -- CMD)",
            touched.intervals
        );
        let clock = self.last.saturating_sub(self.first);
        let useful = self.asked.map_or(clock, |asked| asked.saturating_mul(touched.intervals));
        Ok(SlowerMemory::curve(touched, clock.min(useful).max(1) as f64 / 1e9, tier))
    }
}

impl SlowerMemory {
    fn curve(touched: RefaultView, seconds: f64, tier: Option<&dyn Tier>) -> Self {
        let point = |half: u32| {
            let pages = touched.pages >> half;
            let (fast, come_back) = (pages.saturating_mul(BASE), touched.come_back(pages));
            let times = |come_back: u64, seconds: f64| {
                1.0 + come_back as f64 * COMES_BACK.0 as f64 / 1e9 / seconds
            };
            let once = times(come_back, seconds);
            let steady = steady_seconds(&touched, seconds);
            let compressed_least = times(touched.surely_come_back(pages), steady).min(once);
            let compressed = (pages >= touched.widest).then_some(once);
            let times = |part: f64| 1.0 / part.clamp(1e-6, 1.0);
            let tier = tier.map(|tier| ordered(tier.part(fast as f64).map(times)));
            Point { fast, come_back, compressed, compressed_least, tier }
        };
        let points = (0..=HALVES).rev().map(point).filter(|point| point.fast > 0).collect();
        let needs = tier.map_or_else(Vec::new, |tier| {
            PARTS.map(|part| (part, ordered(tier.needs(part)))).to_vec()
        });
        Self { touched, seconds, points, needs }
    }

    /// The least size of fast memory, in bytes, with which the program has so large a part of its speed with zram: in
    /// the best order, and in the worst.
    fn compressed_needs(&self, part: f64) -> [u64; 2] {
        let width = self.touched.widest.saturating_mul(BASE);
        let most = needs(&self.touched.needs, part, self.seconds).max(width);
        let steady = steady_seconds(&self.touched, self.seconds);
        [needs(&self.touched.least, part, steady).min(most), most]
    }

    /// How much fast memory it needs, in a sentence.
    pub fn conclusion(&self) -> String {
        format!("{} (modelled)", self.need())
    }

    fn need(&self) -> String {
        let range = |bytes: [f64; 2]| match bytes.map(size) {
            [least, most] if least == most => most,
            [_, most] if bytes[0] < 1.0 => format!("at most {most}"),
            [least, most] => format!("{least} to {most}"),
        };
        let compressed = range(self.compressed_needs(0.9).map(|bytes| bytes as f64));
        let tier = self.needs.first();
        let tier = tier.map(|(_, bytes)| format!(", {} with a slower tier", range(*bytes)));
        format!(
            "9 of 10 of the speed needs {compressed} of the {} that it touches with zram behind it{}",
            size(self.touched()),
            tier.unwrap_or_default()
        )
    }

    /// Bytes that it touches.
    fn touched(&self) -> f64 {
        self.touched.pages.saturating_mul(BASE) as f64
    }

    /// As text.
    pub fn text(&self) -> String {
        let all = self.touched();
        let mut text = format!("\nslower memory, modelled: {}\n", self.need());
        let rows = self.points.iter().map(|point| {
            let times = |times: f64| match times {
                times if times >= 100.0 => format!("{times:.0} x"),
                times => format!("{times:.3} x"),
            };
            let range = |[least, most]: [f64; 2]| match [least, most].map(times) {
                [least, most] if least == most => most,
                [least, most] => format!("{} to {most}", least.trim_end_matches(" x")),
            };
            vec![
                size(point.fast as f64),
                format!("{:.1} %", point.fast as f64 / all * 100.0),
                format!("{:.0}", point.come_back as f64 / self.seconds),
                match point.compressed {
                    None => format!("{} or more", times(point.compressed_least)),
                    Some(most) => range([point.compressed_least, most]),
                },
                point.tier.map_or("-".into(), range),
            ]
        });
        let header =
            ["fast memory", "of touched", "come back/s", "time, zram", "time, slower tier"];
        text.push_str(&text::table(&header, &rows.collect::<Vec<_>>()));
        text.push_str(&format!(
            "come back/s: pages that were touched again, of {:.2} s, each once an interval at the most; {} us each \
             with zram, on the program's own time\nzram: from the best order of an interval's pages in the second \
             half to the worst in all of it; or more, where it is smaller than the {} that one interval touches \
             (record --access-interval: shorter ones tell more)\n",
            self.seconds,
            COMES_BACK.0 / 1000,
            size(self.touched.widest.saturating_mul(BASE) as f64)
        ));
        if !self.needs.is_empty() {
            text.push_str(
                "slower tier: of a program that does nothing but read, where each read waits for the one before and \
                 where none does; one that computes, too, loses less\n",
            );
        }
        if self.touched.left_out > 0 {
            text.push_str(&format!(
                "{} touches are left out: more than are looked at\n",
                self.touched.left_out
            ));
        }
        text
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let point = |point: &Point| {
            json!({
                "fast_bytes": point.fast,
                "come_back": point.come_back,
                "zram_times": point.compressed,
                "zram_times_least": point.compressed_least,
                "tier_times": point.tier.map(|[_, most]| most),
                "tier_times_least": point.tier.map(|[least, _]| least),
            })
        };
        let needs = PARTS.map(|part| {
            let tier = self.needs.iter().find(|(of, _)| *of == part).map(|(_, bytes)| *bytes);
            let [least, most] = self.compressed_needs(part);
            json!({
                "part": part,
                "zram_bytes": most,
                "zram_bytes_least": least,
                "tier_bytes": tier.map(|[_, most]| most),
                "tier_bytes_least": tier.map(|[least, _]| least),
            })
        });
        json!({
            "modelled": true,
            "touched_bytes": self.touched() as u64,
            "seconds": self.seconds,
            "comes_back_ns": COMES_BACK.0,
            "left_out": self.touched.left_out,
            "points": self.points.iter().map(point).collect::<Vec<_>>(),
            "needs": needs,
        })
    }
}

/// Bytes of fast memory with which so large a part of the speed is left, of a program that had so many seconds and
/// whose pages come back by these needs.
fn needs(needs: &BTreeMap<u64, u64>, part: f64, seconds: f64) -> u64 {
    let most = (1.0 / part - 1.0) * seconds * 1e9 / COMES_BACK.0 as f64;
    // What needs more than a size comes back to it: the greatest needs are added up until it is too much.
    let mut come_back = 0_u64;
    for (pages, touches) in needs.iter().rev() {
        come_back = come_back.saturating_add(*touches);
        if come_back as f64 > most {
            return pages.saturating_mul(BASE);
        }
    }
    0
}

/// What the second half of the intervals took of so many seconds.
fn steady_seconds(touched: &RefaultView, seconds: f64) -> f64 {
    seconds * touched.steady.max(1) as f64 / touched.intervals.max(1) as f64
}

#[cfg(test)]
mod tests {
    use pagemill_model::Touched;

    use super::*;

    struct Half;

    impl Tier for Half {
        fn part(&self, fast: f64) -> [f64; 2] {
            [0.6, 0.5].map(|least| (least + fast / (1024.0 * 4096.0)).min(1.0))
        }
        fn needs(&self, part: f64) -> [f64; 2] {
            [0.5, 0.6].map(|least| (part - least) * 1024.0 * 4096.0)
        }
    }

    fn curve(tier: Option<&dyn Tier>) -> SlowerMemory {
        // 24 pages are used all the time, the rest of 1024 once more.
        let needs = BTreeMap::from([(24, 240_000), (1024, 10_000)]);
        // Settled, those 24 only.
        let least = BTreeMap::from([(24, 120_000)]);
        let (intervals, steady) = (100, 50);
        let (pages, widest) = (1024, 24);
        let touched = RefaultView { pages, intervals, needs, least, steady, widest, left_out: 0 };
        SlowerMemory::curve(touched, 10.0, tier)
    }

    /// An interval that says that it began after its end: a crafted recording ended a debug build.
    #[test]
    fn an_interval_that_ends_before_it_begins_is_taken_as_it_is() {
        let mut touches = Touches::begin(&Meta::default());
        for time in 1..=FEWEST {
            let (number, began) = (Some(time), Some(Nanos(1 << 40)));
            let row = Touched { time: Nanos(time), number, began, ..Touched::default() };
            touches.event(&Event::Touched(Box::new(row)));
        }
        assert_eq!(touches.slower(None).map(|slower| slower.seconds).ok(), Some(1e-9));
    }

    #[test]
    fn less_fast_memory_is_slower_and_nine_of_ten_needs_what_is_used() {
        let curve = curve(Some(&Half));
        assert_eq!(curve.points.len(), 8);
        let fast: Vec<u64> = curve.points.iter().map(|point| point.fast >> 12).collect();
        assert_eq!(fast, [8, 16, 32, 64, 128, 256, 512, 1024]);
        let most: Vec<f64> = curve.points.iter().filter_map(|point| point.compressed).collect();
        assert_eq!(most.len(), 6, "an interval touches more than 8 and 16");
        assert!(most.windows(2).all(|pair| pair[0] >= pair[1]));
        let last = curve.points[7];
        assert_eq!((last.come_back, last.compressed, last.tier), (0, Some(1.0), Some([1.0, 1.0])));
        // 10,000 times 18 us in 10 s; and 120,000 in five of them.
        assert!((most[0] - 1.018).abs() < 1e-9, "{most:?}");
        assert!((curve.points[0].compressed_least - 1.432).abs() < 1e-9, "{:?}", curve.points[0]);
        assert_eq!(curve.points[2].compressed_least, 1.0);
        assert_eq!(curve.compressed_needs(0.9), [24 * BASE, 24 * BASE]);
        assert_eq!(curve.compressed_needs(0.5), [0, 24 * BASE], "at most what an interval touches");
        assert_eq!(curve.compressed_needs(0.99), [24 * BASE, 1024 * BASE]);
        let idle = SlowerMemory { seconds: 1000.0, ..curve.clone() }.text();
        assert!(idle.contains("needs at most 96.0 KiB of the 4.0 MiB"), "{idle}");
        let text = curve.text();
        assert!(text.contains("needs 96.0 KiB of the 4.0 MiB"), "{text}");
        assert!(text.contains("1.2 MiB to 1.6 MiB with a slower tier"), "{text}");
        assert!(
            text.contains(" 1.000 to 1.018 x ") && text.contains(" 1.432 x or more "),
            "{text}"
        );
    }

    #[test]
    fn without_a_simulator_the_column_of_the_tier_is_empty() {
        let curve = curve(None);
        assert!(curve.points.iter().all(|point| point.tier.is_none()));
        assert_eq!(curve.json()["needs"][0]["tier_bytes"], Value::Null);
        assert_eq!(curve.json()["needs"][1]["zram_bytes"], 1024 * BASE);
        assert!(!curve.text().contains("with a slower tier\n"), "{}", curve.text());
    }
}
