//! Page faults in a report: text, JSON and HTML.

use pagemill_analysis::faults::{Category, FaultFold, FaultView, LOSS_LIMIT, Moment, Slow, loss};
use pagemill_analysis::findings::RecordedViews;
use pagemill_analysis::latency::{Histogram, SHARES};
use pagemill_analysis::spikes::{Inconclusive, Spikes};
use pagemill_model::page::BASE;
use pagemill_model::{Bytes, EventKind, FaultSetup, Nanos};
use serde_json::{Map, Value, json};

use super::section::{Figure, Section, SectionKind, folding};
use crate::draw::chart::{LineChart, Series};
use crate::draw::html::Page;
use crate::draw::log_chart::{LogChart, Vertical};
use crate::draw::text;

/// Mappings shown; the rest is in one line.
const MAPPINGS: usize = 12;

/// Its line in the table.
pub const KIND: SectionKind = SectionKind {
    member: "faults",
    shows: &[EventKind::Fault, EventKind::FaultSum, EventKind::FaultCounts],
    begin: |input| {
        let meta = input.reader.meta();
        let (setup, allow_loss) = (meta.faults.clone()?, input.options.allow_loss);
        let spike = input.options.spike.or(setup.spike);
        let fold = FaultFold::new(&setup, meta.started).with_spikes(spike);
        folding(fold, move |view| Some(Box::new(Faults { setup, view, allow_loss })))
    },
};

/// The faults of a recording.
pub struct Faults {
    /// How they were measured.
    pub setup: FaultSetup,
    /// What they add up to.
    pub view: FaultView,
    /// Show percentiles although faults were lost.
    pub allow_loss: bool,
}

impl Section for Faults {
    /// Why percentiles are not shown, if they are not.
    fn refusal(&self) -> Option<String> {
        // As many as 8192 processors would have if each fault took the time of an access to memory.
        const MOST: f64 = 1e11;
        let (counted, duration) = (self.view.counted, self.view.duration);
        if counted as f64 > MOST * duration.seconds().max(1.0) {
            return Some(format!(
                "it says that there were {counted} page faults in {}, which is impossible: it was made up, or is \
                 damaged",
                duration.plain()
            ));
        }
        let lost = loss(&self.setup);
        (lost > LOSS_LIMIT && !self.allow_loss).then(|| {
            format!(
                "percentiles are refused: {:.1} % of the page faults were lost, and the slow ones are the likelier \
                 ones to be (--allow-loss shows them all the same)",
                lost * 100.0
            )
        })
    }

    fn see<'a>(&'a self, seen: &mut RecordedViews<'a>) {
        seen.faults = Some((&self.setup, &self.view));
    }

    fn closing(&self) -> Option<String> {
        let slow = !self.view.worst.is_empty();
        let mut out = if slow { text::table(&WORST_HEADER, &self.worst()) } else { String::new() };
        // That there was none is said, too, unless no more is known than how many faults there were.
        if self.setup.details && self.view.all.total() > 0 {
            let Slow { compaction, reclaim, .. } = &self.view.slow;
            out.push_str(&format!(
                "compaction: {}; reclaim: {}\n",
                self.stalled(*compaction, Category::Compaction),
                self.stalled(*reclaim, Category::Reclaim)
            ));
        }
        if let Some(spikes) = &self.view.spikes {
            out.push_str(&format!("{}\n", self.explained(spikes)));
        }
        (!out.is_empty()).then_some(out)
    }

    fn length(&self) -> Option<String> {
        Some(self.view.duration.plain())
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name: &str, unit, value| Figure { name: name.into(), unit, value };
        let mut figures = vec![figure("page faults", "", self.view.counted as f64)];
        for (name, share) in [("median fault", 0.5), ("p99 fault", 0.99), ("p99.9 fault", 0.999)] {
            let time = self.view.all.quantile(share);
            figures.extend(time.map(|time| figure(name, "ns", time.0 as f64)));
        }
        figures
    }

    fn text(&self) -> String {
        let mut out = String::from("\npage faults\n");
        for (label, value) in self.facts() {
            out.push_str(&format!("  {label:<13}{value}\n"));
        }
        if self.view.all.total() > 0 {
            match self.refusal() {
                Some(why) => out.push_str(&format!("\n{why}\n")),
                None => {
                    out.push_str(&format!("\n{}", text::table(&header(), &self.rows())));
                    out.push_str(&format!("{PRECISION}\n"));
                }
            }
        }
        if self.view.slow.faults > 0 && self.setup.details {
            out.push_str(&format!(
                "\n{}\n{}",
                self.slow_title(),
                text::table(&[], &parts(&self.view.slow))
            ));
        }
        if !self.view.worst.is_empty() {
            out.push_str(&format!("\n{}", text::table(&WORST_HEADER, &self.worst())));
        }
        if let Some(spikes) = &self.view.spikes {
            out.push_str(&format!("\n{}\n", self.explained(spikes)));
        }
        let mappings = self.mappings();
        if !mappings.is_empty() {
            out.push_str(&format!("\n{}", text::table(&MAPPING_HEADER, &mappings)));
        }
        let rates = [self.rates()];
        let chart = text::chart(&rates, "faults/s", "s", 72, 8);
        if !chart.is_empty() {
            out.push_str(&format!("\n{chart}"));
        }
        out
    }

    /// The figures are the source's two forms.
    fn html(&self, page: &mut Page) {
        let facts: Vec<Vec<String>> =
            self.facts().into_iter().map(|(label, value)| vec![label.to_owned(), value]).collect();
        page.heading("Page faults").facts(&facts);
        if self.view.all.total() > 0 {
            match self.refusal() {
                Some(why) => {
                    page.paragraph(&why);
                }
                None => {
                    page.table(&header(), &self.rows()).paragraph(PRECISION);
                    page.chart(&self.distribution().svg()).chart(&self.intervals().svg());
                }
            }
        }
        if self.view.slow.faults > 0 && self.setup.details {
            page.paragraph(&self.slow_title()).table(&["", "", ""], &parts(&self.view.slow));
        }
        if !self.view.worst.is_empty() {
            page.table(&WORST_HEADER, &self.worst());
        }
        if let Some(spikes) = &self.view.spikes {
            page.paragraph(&self.explained(spikes));
        }
        let mappings = self.mappings();
        if !mappings.is_empty() {
            page.table(&MAPPING_HEADER, &mappings);
        }
        let (title, series) = ("Page faults over time", vec![self.rates()]);
        let chart = LineChart::new(title, "seconds", "faults a second", series);
        page.chart(&chart.svg());
    }

    fn json(&self) -> Value {
        let view = &self.view;
        let refused = self.refusal().is_some();
        let category = |(category, times): &(_, Histogram)| {
            let category: &Category = category;
            let mut value = times_json(times, refused);
            value.insert("category".into(), json!(category.name()));
            Value::Object(value)
        };
        let mapping = |(name, slow): &(String, pagemill_analysis::faults::PerMapping)| {
            json!({
                "mapping": name, "slow": slow.faults, "time_ns": slow.time.0,
                "longest_ns": slow.longest.0
            })
        };
        let slow = &view.slow;
        json!({
            "setup": self.setup,
            "counted": view.counted,
            "duration_ns": view.duration.0,
            "per_second": rate(view.counted, view.duration),
            "loss": loss(&self.setup),
            "percentiles_refused": refused,
            "longest_ns": view.longest_of(&view.all).map(|longest| longest.0),
            "all": times_json(&view.all, refused),
            "categories": view.categories.iter().map(category).collect::<Vec<_>>(),
            "slow": {
                "count": slow.faults,
                "time_ns": slow.time.0,
                "compaction_ns": slow.compaction.0,
                "reclaim_ns": slow.reclaim.0,
                "locks_ns": slow.waits_known.then_some(slow.locks.0),
                "waited_ns": slow.waits_known.then_some(slow.cpu.0),
                "reading_ns": slow.reading.0,
                "clearing_ns": slow.clearing.0,
                "cold_host_ns": slow.cold.0,
                "cold_host_faults": slow.cold_faults,
                "slept_ns": slow.asleep.0,
                "rest_ns": slow.remainder().0,
            },
            "short": { "count": view.short.0, "time_ns": view.short.1.0 },
            "worst": view.worst.iter().map(|moment| json!({
                "at_ns": moment.at.0, "latency_ns": moment.latency.0, "pid": moment.pid,
                "tid": moment.tid, "address": moment.address, "mapping": moment.place,
                "category": moment.category.name(), "cause": moment.cause.name(),
            })).collect::<Vec<_>>(),
            "spikes": view.spikes.map(|spikes| json!({
                "length_ns": spikes.length.0, "faults": spikes.faults, "bursts": spikes.bursts,
                "first_ended_ns": spikes.ended.map(|(first, _)| first.0),
                "last_ended_ns": spikes.ended.map(|(_, last)| last.0),
                "told": view.inconclusive(&self.setup, &spikes).is_none(),
            })),
            "mappings": view.mappings.iter().map(mapping).collect::<Vec<_>>(),
            "timeline": view.timeline.iter().map(|(at, rate, longest)| json!({
                "seconds": at, "per_second": rate, "longest_ns": longest.map(|longest| longest.0),
            })).collect::<Vec<_>>(),
        })
    }
}

impl Faults {
    /// Time of slow faults in compaction or reclaim, or that only shorter ones had any, or none.
    fn stalled(&self, time: Nanos, category: Category) -> String {
        let any = self.view.categories.iter().any(|(known, _)| *known == category);
        match (time.0, any) {
            (0, true) => format!("in faults of less than {} only", self.setup.threshold.plain()),
            _ => or_none(time),
        }
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let (setup, view) = (&self.setup, &self.view);
        let mut facts = vec![("back end", setup.back_end.clone())];
        // The kernel's is of the process, and of those of its children that it has waited for at the most.
        let missing = match setup.children && setup.accounted.is_some_and(|all| view.counted > all)
        {
            true => ", without all that it started",
            false => "",
        };
        let accounted = setup
            .accounted
            .map_or_else(String::new, |all| format!(" (the kernel's accounting{missing}: {all})"));
        let rate = match rate(view.counted, view.duration) {
            Some(rate) => format!(", {rate:.0} a second"),
            None => String::new(),
        };
        facts.push(("counted", format!("{}{accounted}{rate}", view.counted)));
        if setup.untimed > 0 {
            let why = match setup.in_kernel {
                true => {
                    "made by the kernel for the program (arguments of execve, MAP_POPULATE, mlock, direct input and \
                     output)"
                }
                false => {
                    "made by the kernel for the program, or inside system calls, which this user may not see"
                }
            };
            facts.push(("not timed", format!("{} of them: {why}", setup.untimed)));
        }
        if setup.lost + setup.lost_rows + setup.unmatched > 0 {
            facts.push((
                "lost",
                format!(
                    "{} faults ({:.2} %), {} rows of slow faults; {} faults had begun before",
                    setup.lost,
                    loss(setup) * 100.0,
                    setup.lost_rows,
                    setup.unmatched
                ),
            ));
        }
        // Where nothing is timed there is none.
        if view.all.total() > 0 {
            let rows =
                format!("{} faults of {} and longer", view.slow.faults, setup.threshold.plain());
            facts.push(("rows", rows));
        }
        if view.short.0 > 0 {
            let (faults, took) = (view.short.0, view.short.1.plain());
            facts.push((
                "in a row",
                format!("{faults} shorter ones, {took} of a thread's time together"),
            ));
        }
        if let Some(touch) = setup.touch {
            facts.push((
                "first touch",
                format!("{} as a program sees it (small page, warm, median)", touch.plain()),
            ));
        }
        facts.extend(setup.not_used.iter().map(|why| ("not used", why.clone())));
        facts
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let whole = self.view.all.sum().0.max(1) as f64;
        let row = |name: &str, times: &Histogram| {
            let mut row = vec![name.to_owned(), times.total().to_string()];
            row.push(format!("{:.1} %", 100.0 * times.sum().0 as f64 / whole));
            let cell = |time: Option<Nanos>| time.map_or("-".into(), |time| time.to_string());
            row.extend(SHARES.iter().map(|share| cell(times.quantile(*share))));
            row.push(cell(self.view.longest_of(times)));
            row
        };
        let mut rows = vec![row("all", &self.view.all)];
        rows.extend(
            self.view.categories.iter().map(|(category, times)| row(category.name(), times)),
        );
        rows
    }

    fn slow_title(&self) -> String {
        let slow = &self.view.slow;
        let time = slow.time.to_string();
        format!("what the {} slow faults' {} went into", slow.faults, time.trim())
    }

    fn mappings(&self) -> Vec<Vec<String>> {
        let row = |name: &str, faults: u64, time: Nanos, longest: Nanos| {
            vec![name.to_owned(), faults.to_string(), time.to_string(), longest.to_string()]
        };
        let mut rows = Vec::new();
        let (shown, rest) = self.view.mappings.split_at(MAPPINGS.min(self.view.mappings.len()));
        for (name, slow) in shown {
            rows.push(row(name, slow.faults, slow.time, slow.longest));
        }
        if !rest.is_empty() {
            let faults = rest.iter().map(|(_, slow)| slow.faults).sum();
            let time = Nanos(rest.iter().map(|(_, slow)| slow.time.0).sum());
            let longest = rest.iter().map(|(_, slow)| slow.longest).max().unwrap_or_default();
            rows.push(row(&format!("{} others", rest.len()), faults, time, longest));
        }
        rows
    }

    fn worst(&self) -> Vec<Vec<String>> {
        let row = |moment: &Moment| {
            let word = |number: Option<u64>| number.map_or("-".into(), |it| it.to_string());
            vec![
                format!("{:.3} s", moment.at.seconds()),
                moment.latency.to_string(),
                word(moment.tid),
                moment.category.name().to_owned(),
                moment.cause.name().to_owned(),
                moment.address.map_or("-".into(), |address| format!("{address:#x}")),
                moment.place.clone(),
            ]
        };
        self.view.worst.iter().map(row).collect()
    }

    /// Whether faults explain stalls of a length, in a sentence.
    fn explained(&self, spikes: &Spikes) -> String {
        let length = spikes.length.plain();
        if let Some(why) = self.view.inconclusive(&self.setup, spikes) {
            return format!(
                "cannot tell whether page faults explain stalls of {length}: {}",
                self.why(why)
            );
        }
        let spent = "a thread spent half or more in page faults";
        let (faults, bursts) = (spikes.faults, spikes.bursts);
        let longest = self.view.longest_of(&self.view.all).map(Nanos::plain);
        let worst = self.view.worst.first();
        let when = spikes.ended.map_or_else(String::new, |(first, last)| {
            format!(", between {} and {} of the recording", first.plain(), last.plain())
        });
        match (faults, bursts, longest) {
            (0, 0, Some(longest)) => format!(
                "page faults do not explain stalls of {length}: the longest took {longest}, and no thread spent half \
                 of such a stretch in page faults"
            ),
            (0, 0, None) => {
                format!("page faults do not explain stalls of {length}: it had no page faults")
            }
            (0, bursts, _) if let Some(last) = spikes.only_at_the_start(self.view.duration) => {
                format!(
                    "page faults do not explain stalls of {length} after its first {}: until then, in {bursts} \
                     stretches of {length}, {spent}",
                    last.plain()
                )
            }
            (0, bursts, _) => format!(
                "page faults may explain stalls of {length}: none took so long, but in {bursts} stretches of {length} \
                 {spent}{when}"
            ),
            (faults, bursts, longest) => format!(
                "page faults explain stalls of {length}: {faults} took that long or longer, the longest {}, {}; in \
                 {bursts} other stretches of {length} {spent}{when}",
                worst.map(|worst| worst.latency.plain()).or(longest).unwrap_or_else(|| "-".into()),
                worst.map_or("", |worst| worst.cause.name()),
            ),
        }
    }

    /// Why that cannot be told, and what would tell.
    fn why(&self, why: Inconclusive) -> String {
        match why {
            Inconclusive::Untimed => {
                "they are counted and not timed here (see pagemill doctor)".into()
            }
            Inconclusive::Lost(lost) => format!(
                "{lost} of them, or of the rows of slow ones, were lost (fewer are with --threshold 100us)"
            ),
            Inconclusive::InCalls(untimed, counted) => format!(
                "{untimed} of {counted} faults, of {} or more, were made by the kernel inside of system calls and are \
                 not timed: such calls (mmap with MAP_POPULATE, mlock, madvise) may be the stalls, and strace -f -T \
                 times them",
                Bytes(untimed.saturating_mul(BASE)).plain()
            ),
            Inconclusive::Short(faults, took) => format!(
                "{faults} of less than {} took {} together, and not when each of them was is recorded (record with \
                 --threshold 0ns)",
                self.setup.threshold.plain(),
                took.plain()
            ),
        }
    }

    fn rates(&self) -> Series {
        let points = self.view.timeline.iter().map(|(at, rate, _)| (*at, *rate)).collect();
        Series { name: "faults a second".into(), points }
    }

    /// All faults first, then the categories.
    fn curves(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        let categories = self.view.categories.iter();
        std::iter::once(("all", &self.view.all))
            .chain(categories.map(|(category, times)| (category.name(), times)))
    }

    /// The cumulative distribution by category.
    fn distribution(&self) -> LogChart {
        let series = self.curves().map(|(name, times)| {
            let mut below = 0;
            let mut points = vec![];
            for (low, count) in times.buckets() {
                below += count;
                points.push((low.0 as f64 / 1e3, below as f64 / times.total().max(1) as f64));
            }
            Series { name: name.into(), points }
        });
        LogChart {
            title: "Page faults that took at most so long, by category".into(),
            x: "latency, us".into(),
            y: "share of the category".into(),
            vertical: Vertical::Share,
            series: series.collect(),
        }
    }

    /// Average time between faults that took at least so long, by category.
    fn intervals(&self) -> LogChart {
        let seconds = self.view.duration.seconds();
        let series = self.curves().map(|(name, times)| Series {
            name: name.into(),
            points: times
                .tail()
                .into_iter()
                .map(|(low, above)| (low.0 as f64 / 1e3, seconds / above as f64))
                .collect(),
        });
        LogChart {
            title: "Average time between page faults that took at least so long".into(),
            x: "latency, us".into(),
            y: "seconds".into(),
            vertical: Vertical::Logarithmic,
            series: series.collect(),
        }
    }
}

const WORST_HEADER: [&str; 7] =
    ["longest, ended at", "took", "thread", "kind", "most of it", "address", "in"];
const MAPPING_HEADER: [&str; 4] = ["slow faults in", "faults", "time", "longest"];
const PRECISION: &str =
    "a percentile is right to within 1.6 %; - where fewer than one fault lies beyond it";

fn header() -> [&'static str; 10] {
    ["page faults", "faults", "time", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "longest"]
}

fn parts(slow: &Slow) -> Vec<Vec<String>> {
    let cold = format!("cold host pages, inferred ({} faults)", slow.cold_faults);
    let rest = match slow.waits_known {
        true => "lookup, allocation",
        false => "lookup, allocation, waiting",
    };
    let parts = [
        ("compaction", slow.compaction),
        ("reclaim", slow.reclaim),
        ("waiting for locks", slow.locks),
        ("waiting for a CPU that others had", slow.cpu),
        ("reading a file or swap", slow.reading),
        ("clearing or copying, and mapping", slow.clearing),
        (cold.as_str(), slow.cold),
        ("sleeping until another thread filled the page", slow.asleep),
        (rest, slow.remainder()),
    ];
    let share = |time: Nanos| format!("{:.1} %", 100.0 * time.0 as f64 / slow.time.0.max(1) as f64);
    // That there was none of the first two is an answer, too.
    let rows = parts.iter().enumerate().filter(|(at, (_, time))| *at < 2 || time.0 > 0);
    rows.map(|(_, (name, time))| vec![(*name).to_owned(), or_none(*time), share(*time)]).collect()
}

fn or_none(time: Nanos) -> String {
    if time.0 == 0 { "none".into() } else { time.plain() }
}

fn rate(count: u64, duration: Nanos) -> Option<f64> {
    (duration.0 > 0).then(|| count as f64 / duration.seconds())
}

fn times_json(times: &Histogram, refused: bool) -> Map<String, Value> {
    let mut value = Map::new();
    value.insert("count".into(), json!(times.total()));
    value.insert("time_ns".into(), json!(times.sum().0));
    if !refused {
        let names = ["p50_ns", "p90_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "p99_999_ns"];
        for (name, share) in names.iter().zip(SHARES) {
            value
                .extend(times.quantile(share).map(|Nanos(time)| ((*name).to_owned(), json!(time))));
        }
        let tail: Vec<_> = times.tail().iter().map(|(low, above)| json!([low.0, above])).collect();
        value.insert("at_least_ns".into(), json!(tail));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "counted 65193 (the kernel's accounting: 64524)" stood there without a word of the children's faults.
    #[test]
    fn the_kernel_s_number_is_said_to_be_without_children_where_more_was_counted() {
        let counted = |counted: u64, children: bool| {
            let setup = FaultSetup { accounted: Some(64_524), children, ..FaultSetup::default() };
            let view = FaultView { counted, ..FaultView::default() };
            let facts = Faults { setup, view, allow_loss: false }.facts();
            facts.into_iter().find(|(name, _)| *name == "counted").unwrap().1
        };
        let more = counted(65_193, true);
        assert_eq!(more, "65193 (the kernel's accounting, without all that it started: 64524)");
        for (all, children) in [(64_524, true), (60_000, true), (65_193, false)] {
            let says = format!("{all} (the kernel's accounting: 64524)");
            assert_eq!(counted(all, children), says);
        }
    }
}
