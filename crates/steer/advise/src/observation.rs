//! What is seen of a command as it is: where its memory is, how it grows, what is cold.

use pagemill_control::run_memory::{self, Memory};
use pagemill_launch::allocator::Allocator;
use pagemill_model::Bytes;
use pagemill_model::page::BASE;
use pagemill_record::malloc_free::MallocFree;
use serde_json::{Value, json};

use crate::estimate::Estimate;
use crate::readings::Readings;

/// Anonymous memory that a lever on huge pages or on malloc would not be noticed for, bytes.
const LITTLE: u64 = 4 << 20;
/// Part of a CPU that a program uses at the least which a faster malloc may make faster.
const COMPUTES: f64 = 0.05;
/// Anonymous memory that is worth looking for what is not accessed in it, bytes.
pub(crate) const MUCH: u64 = 8 << 20;
/// What the processor holds translations of at a time, of base pages: 2048 entries of its second level and more in
/// none of today's (Intel Sunny Cove, AMD Zen 2).
const REACH: u64 = 2048 * 4096;
/// One byte of so many live ones may be a header, or rounding to a size class.
const ROUNDED: u64 = 5;

/// Why a lever on malloc may bring much where it could not be asked.
pub(crate) const UNKNOWN: &str = "how much malloc keeps free is not known";

/// When a malloc merges pages with holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merging {
    /// It does not.
    Never,
    /// By itself, in time that the program leaves to it.
    AtRest,
    /// The kernel does, whatever the program does.
    AnyTime,
}

/// What was seen in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunObservation {
    /// Its wall time.
    pub seconds: f64,
    /// CPU time in user mode, seconds.
    pub user: f64,
    /// CPU time in kernel mode, seconds.
    pub system: f64,
    /// Page faults.
    pub faults: u64,
    /// Whether a recording tells of it, which does not say what part of CPU time the kernel took, nor page faults.
    pub recorded: bool,
    /// Memory at its highest.
    pub peak: Memory,
    /// Mean memory, bytes.
    pub mean: f64,
    /// All looks.
    pub looks: Vec<Memory>,
    /// What was not accessed in a late part of a run, if that was looked at.
    pub cold: Option<Cold>,
    /// Zeros in huge pages, if these were read, bytes.
    pub bloat: Option<u64>,
    /// Which malloc its largest process has, if that is known.
    pub allocator: Option<Allocator>,
    /// Whether it is CPython with its own allocator beside malloc.
    pub pymalloc: bool,
    /// What that held free, as it is most of the time, if it was asked.
    pub malloc: Option<MallocFree>,
    /// What was read of it in a run.
    pub readings: Readings,
    /// Why what it accesses was not looked at, where that is known.
    pub not_marked: Option<String>,
    /// Why that is not known, where it was to be asked.
    pub not_asked: Option<String>,
    /// Whether it runs on: what its malloc holds free is what levers would find.
    pub lives: bool,
    /// The highest charge of its control group, if it had one of its own, bytes.
    pub charge: Option<u64>,
}

/// Memory that was not accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cold {
    /// How much, bytes.
    pub bytes: u64,
    /// For how long, seconds.
    pub seconds: f64,
    /// What it is at the least and at the most, bytes, where a sample was looked at.
    pub range: Option<Bounds>,
    /// Pages of files and shared memory beside, bytes: 0 where nobody looked.
    pub files: u64,
}

/// What a number of bytes lies between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The least.
    pub low: u64,
    /// The most.
    pub high: u64,
}

/// What has rested for a second, or for a quarter of the run, is cold.
const RESTED: f64 = 1.0;
const RESTED_PART: f64 = 0.25;

impl RunObservation {
    /// Of looks at a run.
    pub fn of(looks: Vec<Memory>) -> Self {
        let peak = looks.iter().max_by_key(|look| look.bytes).copied().unwrap_or_default();
        let threads = looks.iter().map(|look| look.threads).max().unwrap_or_default();
        let peak = Memory { threads, ..peak };
        let mean = run_memory::mean(&looks).unwrap_or(0.0);
        Self { peak, mean, looks, ..Self::default() }
    }

    /// A part of its memory at its highest, as a share.
    pub fn share(&self, bytes: u64) -> f64 {
        bytes as f64 / self.peak.bytes.max(1) as f64
    }

    /// What was not accessed and is data: what malloc could give back, or the kernel take at once, nobody needs to keep
    /// elsewhere. Of a sample it is all of the rest at the most. What rested for a moment only says nothing.
    pub fn cold_data(&self) -> Option<Cold> {
        let cold =
            self.cold.filter(|cold| cold.seconds >= RESTED.min(self.seconds * RESTED_PART))?;
        let returnable = self.asked().map_or(0, |malloc| malloc.returnable);
        let free = returnable.saturating_add(self.peak.lazy_free);
        let less = |bytes: u64| bytes.saturating_sub(free);
        let range = cold.range.map(|Bounds { low, high }| Bounds {
            low: less(low),
            high: high.min(less(self.peak.bytes)),
        });
        Some(Cold { bytes: less(cold.bytes), range, ..cold })
    }

    /// What of these pages is live, bytes: without the pieces of them that malloc keeps free. Which pages have these is
    /// not known: all have as many.
    pub fn live_of(&self, cold: Cold) -> u64 {
        let (pieces, returnable) =
            self.asked().map_or((0, 0), |malloc| (malloc.pieces, malloc.returnable));
        let free = returnable.saturating_add(self.peak.lazy_free);
        let pages = self.peak.anonymous.saturating_sub(free).max(1);
        (cold.bytes as f64 * (1.0 - pieces.min(pages) as f64 / pages as f64)) as u64
    }

    /// The most that was on huge pages at a time.
    pub fn most_huge(&self) -> u64 {
        self.looks.iter().map(|look| look.huge).max().unwrap_or(0)
    }

    /// The share of its CPU time that the kernel took.
    pub fn system_share(&self) -> f64 {
        self.system / (self.user + self.system).max(1e-9)
    }

    /// What was seen, in lines; `what` ran for that time. `live`: live bytes, if a heap has told.
    pub fn text(&self, what: &str, live: Option<u64>) -> String {
        let Self { seconds: time, user, system, faults, peak, .. } = self;
        let mut parts = vec![format!("anonymous {}", bytes(peak.anonymous as f64))];
        let mut part = |name: &str, value: u64| {
            if value >= 64 << 10 {
                parts.push(format!("{name} {}", bytes(value as f64)));
            }
        };
        part("files", peak.file);
        part("shared", peak.shared);
        part("swap", peak.swap);
        part("on huge pages", self.most_huge());
        part("free to the kernel (MADV_FREE)", peak.lazy_free);
        part("page tables", peak.page_tables);
        let memory = match peak.bytes {
            0 => "not seen: it ended before it was looked at".to_owned(),
            most => format!("{} at its highest: {}", bytes(most as f64), parts.join(", ")),
        };
        let used = match self.recorded {
            true => format!("{} of CPU time", seconds(*user)),
            false => {
                let [user, system] = [user, system].map(|time| seconds(*time));
                format!("{user} user, {system} system, {faults} page faults")
            }
        };
        let mut text = format!("{what:<12}{}: {used}\nmemory      {memory}", seconds(*time));
        if let Some(charge) = self.charge {
            text.push_str(&format!(
                "\n            {} charged to its control group at the peak (files that others use are charged to them)",
                bytes(charge as f64)
            ));
        }
        if let Some(live) = live {
            text.push_str(&format!(
                "\nlive data   {} from malloc at its fullest, rounded to slots of pagemill's heap, under which it \
                 ran, too",
                bytes(live as f64)
            ));
        }
        text.push_str(&self.free());
        if self.pymalloc {
            text.push_str(
                "\npymalloc    it is CPython: small objects are in arenas of its own beside that malloc, each of which \
                 stays while anything lives in it; what is free in them is not known",
            );
        }
        if let Some(cold) = self.cold {
            let range = cold.range.map_or_else(String::new, |Bounds { low, high }| {
                format!(" ({} to {}, by a sample)", bytes(low as f64), bytes(high as f64))
            });
            text.push_str(&format!(
                "\nunused      {}{range} of it were not accessed for {}",
                bytes(cold.bytes as f64),
                seconds(cold.seconds)
            ));
            if cold.files >= MUCH {
                let files = bytes(cold.files as f64);
                text.push_str(&format!("\n            nor were {files} of files or shared memory"));
            }
        }
        text
    }

    /// What its malloc keeps free, in lines; or why nobody knows.
    fn free(&self) -> String {
        let name = self.allocator.map_or("malloc", Allocator::name);
        match (self.malloc, &self.not_asked) {
            (Some(MallocFree { heap: 0, .. }), _) => format!(
                "\nfree        nothing: {name} has no heap, only blocks that are mapped by themselves, if any"
            ),
            (Some(MallocFree { heap, free, returnable, pieces }), _) => format!(
                "\nfree        {} of the {} that {name} {}, {} are live\n            of that {} in whole pages that it \
                 could give back, {} in pieces of pages that hold data, too{}{}",
                bytes(free as f64),
                bytes(heap as f64),
                match self.readings.rest {
                    _ if self.lives => "holds",
                    rest if rest == self.malloc => "held when it rested",
                    _ if self.readings.anonymous
                        < self.peak.anonymous - self.peak.anonymous / 10 =>
                    {
                        "held when it was read, before it had all of its memory"
                    }
                    _ => "held at its most while it worked",
                },
                bytes(heap.saturating_sub(free) as f64),
                bytes(returnable as f64),
                bytes(pieces as f64),
                match free.saturating_sub(returnable.saturating_add(pieces)) {
                    0 => String::new(),
                    rest => format!(", {} not in memory: address space", bytes(rest as f64)),
                },
                self.beside(heap)
            ),
            (None, Some(why)) => format!("\nfree        not known: {why}"),
            (None, None) => String::new(),
        }
    }

    /// That most of its memory is not in its malloc's heap of this size, if that was seen.
    fn beside(&self, heap: u64) -> String {
        // What was read at one time.
        let (all, heap) = match self.lives {
            true => (self.peak.anonymous, heap),
            false => (self.readings.anonymous, self.readings.heap),
        };
        let rest = all.saturating_sub(heap);
        if rest <= all / 2 || all <= self.peak.anonymous / 2 {
            return String::new();
        }
        let rest = bytes(rest as f64);
        format!(
            "\n            {rest} are not in that heap: blocks that are mapped by themselves, or not malloc's"
        )
    }

    /// What was seen, as JSON.
    pub fn json(&self, live: Option<u64>) -> Value {
        let Self { seconds, user, system, faults, peak, mean, cold, bloat, malloc, charge, .. } =
            self;
        let allocator = self.allocator.map(Allocator::name);
        json!({
            "seconds": seconds,
            "user_seconds": user,
            "system_seconds": (!self.recorded).then_some(system),
            "page_faults": (!self.recorded).then_some(faults),
            "mean_bytes": mean,
            "peak_bytes": peak.bytes,
            "cgroup_peak_bytes": charge,
            "anonymous_bytes": peak.anonymous,
            "file_bytes": peak.file,
            "shared_bytes": peak.shared,
            "swap_bytes": peak.swap,
            "huge_bytes": self.most_huge(),
            "huge_zero_bytes": bloat,
            "page_table_bytes": peak.page_tables,
            "threads": peak.threads,
            "processes": peak.processes,
            "live_bytes": live,
            "lazy_free_bytes": peak.lazy_free,
            "allocator": allocator,
            "pymalloc": self.pymalloc,
            "malloc_heap_bytes": malloc.map(|malloc| malloc.heap),
            "malloc_free_bytes": malloc.map(|malloc| malloc.free),
            "malloc_returnable_bytes": malloc.map(|malloc| malloc.returnable),
            "malloc_pieces_bytes": malloc.map(|malloc| malloc.pieces),
            "malloc_not_known": self.not_asked,
            "cold_bytes": cold.map(|cold| cold.bytes),
            "cold_low_bytes": cold.and_then(|cold| Some(cold.range?.low)),
            "cold_high_bytes": cold.and_then(|cold| Some(cold.range?.high)),
            "cold_seconds": cold.map(|cold| cold.seconds),
            "cold_file_bytes": cold.filter(|cold| cold.files > 0).map(|cold| cold.files),
        })
    }

    /// What its malloc keeps free, if that was seen of most of its memory.
    fn asked(&self) -> Option<MallocFree> {
        self.malloc.filter(|malloc| {
            let half = self.peak.anonymous / 2;
            self.lives || malloc.heap >= half.max(1) || self.readings.anonymous >= half
        })
    }

    /// The same, if that is how it is most of the time: it runs on, or it rests for at least half of its time and was
    /// asked then, or it was asked while it worked, again and again. What a malloc keeps free while a program works is
    /// more, as a rule, than at rest.
    pub fn known(&self) -> Option<MallocFree> {
        self.asked().filter(|_| {
            let rests = self.rested() >= self.seconds / 2.0;
            self.lives || rests || self.readings.throughout(self.seconds)
        })
    }

    /// Whether a process that was looked at while it ran has never rested: then compaction takes next to none of its
    /// time. Of a command a trial tells.
    fn works(&self) -> bool {
        self.lives && !self.recorded && self.user + self.system > self.seconds * COMPUTES
    }

    /// How long it rested, seconds: several threads may work at once, and then a rest is missed here.
    pub fn rested(&self) -> f64 {
        let threads = self.peak.threads.max(1) as f64;
        let waited = self.looks.last().and_then(|look| look.waited).unwrap_or_default();
        self.seconds - (self.user + self.system + waited.as_secs_f64()) / threads
    }

    /// What another malloc may bring: what is free in this one, and a part of what is live for headers and rounding.
    /// Blocks that were mapped by themselves go back when they are freed. One that `merges` gets at pieces of pages for
    /// sure; of others, where it is not known how much is free, half of what may come is likely.
    pub fn other_malloc(&self, merges: Merging) -> Estimate {
        if self.peak.anonymous.saturating_add(self.peak.shared) < LITTLE {
            return self.faster_malloc(merges);
        }
        let anonymous = self.peak.anonymous;
        let most = match self.known() {
            Some(malloc) => {
                let live = malloc.heap.saturating_sub(malloc.free);
                let rounded = live / ROUNDED;
                let most = malloc.returnable + malloc.pieces + rounded;
                let [pages, pieces, rounded] =
                    [malloc.returnable, malloc.pieces, rounded].map(|size| bytes(size as f64));
                let gets = match merges {
                    Merging::AtRest if self.works() => {
                        format!("in pieces {pieces}, of which little is merged until it rests")
                    }
                    Merging::AtRest | Merging::AnyTime => format!("in pieces {pieces}"),
                    Merging::Never => format!("in pieces {pieces} where it places better"),
                };
                let why = format!(
                    "free in whole pages {pages}, {gets}; at most {rounded} of headers and rounding"
                );
                Estimate::up_to(self.share(most.min(anonymous)), 1.0, why)
            }
            None => {
                let most = self.share(self.readings.in_heap(anonymous));
                Estimate::up_to(most, 1.0, UNKNOWN).unknown()
            }
        };
        let likely = match self.asked() {
            // Of two pages that are laid over each other one goes.
            Some(malloc)
                if merges == Merging::Never || merges == Merging::AtRest && self.works() =>
            {
                self.share(malloc.returnable)
            }
            Some(malloc) => self.share(malloc.returnable + malloc.pieces / 2),
            None if merges == Merging::Never => most.memory / 2.0,
            None => most.memory,
        };
        // Little of the time goes to a malloc that has little of the memory: what is mapped by itself is not its.
        let part = self.known().map_or(1.0, |malloc| malloc.heap as f64 / anonymous.max(1) as f64);
        most.likely(likely).likely_time(part.min(1.0) / 2.0)
    }

    /// What another malloc may bring to a program that holds little: time alone, for it may allocate and free all the
    /// time. One that `merges` takes more of that.
    fn faster_malloc(&self, merges: Merging) -> Estimate {
        let little = "it has less than 4 MiB that malloc could hold";
        // Who hardly computes wins nothing by a faster one.
        let computes = self.user > self.seconds * COMPUTES;
        match computes && merges == Merging::Never {
            true => Estimate::up_to(0.0, 1.0, format!("{little}; it may allocate often"))
                .likely_time(0.0),
            false => Estimate::nothing(little),
        }
    }

    /// What a setting of this malloc may bring: nothing to a program that has another.
    pub fn only_with(&self, needed: Allocator, estimate: impl FnOnce() -> Estimate) -> Estimate {
        match self.allocator {
            Some(has) if has != needed => {
                Estimate::nothing(format!("its malloc is {}", has.name()))
            }
            None if needed != Allocator::Glibc => {
                Estimate::nothing("which malloc it has is not known")
            }
            _ => estimate(),
        }
    }

    /// At the most what is free of such a part: what was read, and all that came after that. Of a program that works
    /// this tells where it was read late, or when it had nearly all of its memory.
    pub fn bounded(&self, part: impl Fn(MallocFree) -> u64) -> Option<u64> {
        if let Some(malloc) = self.known() {
            return Some(part(malloc));
        }
        let (peak, then) = (self.peak.anonymous, self.readings.anonymous);
        let late = self.readings.last >= self.seconds / 2.0 || then >= peak - peak / 10;
        self.asked()
            .filter(|_| late && self.readings.times > 0)
            .map(|malloc| part(malloc).saturating_add(peak.saturating_sub(then)))
    }

    /// What giving free pages back may bring; `why` where nobody knows how many there are.
    pub fn given_back(&self, why: &str) -> Estimate {
        let pages = |malloc: MallocFree| self.share(malloc.returnable);
        if let Some(malloc) = self.known() {
            let whole = bytes(malloc.returnable as f64);
            let why = format!("its malloc holds {whole} free in whole pages");
            return Estimate::up_to(pages(malloc), 0.0, why);
        }
        if let Some(free) = self.bounded(|malloc| malloc.returnable) {
            let whole = bytes(free as f64);
            let why = format!(
                "{whole} may be free in whole pages, by what its malloc held when it was read"
            );
            return Estimate::up_to(self.share(free), 0.0, why);
        }
        let most = self.share(self.readings.in_heap(self.peak.anonymous));
        let estimate = Estimate::up_to(most, 0.0, why).unknown();
        estimate.likely(self.asked().map_or(most / 2.0, pages))
    }

    /// What more huge pages may bring: no memory, and any part of its time, for nobody counts page walks here.
    pub fn more_huge_pages(&self) -> Estimate {
        let base = self.peak.anonymous.saturating_sub(self.most_huge());
        if base < LITTLE {
            return Estimate::nothing("it has less than 4 MiB on base pages that could be huge");
        }
        let share = self.share(base);
        // What the kernel does for first touches; and, if half of the accesses are anywhere, page walks for those
        // beyond what the processor holds translations of.
        let touched = (base / BASE) as f64 / self.faults.max(1) as f64;
        let faults = self.system_share() * touched.min(1.0);
        let used = base.saturating_sub(self.cold.map_or(0, |cold| cold.bytes)).max(1);
        let beyond = 1.0 - REACH.min(used) as f64 / used as f64;
        let likely = faults + (1.0 - self.system_share()) * beyond / 2.0;
        let why = format!("on base pages {:.0} % of its memory", share * 100.0);
        Estimate::up_to(0.0, 1.0, why).likely_time(likely)
    }
}

/// Bytes in words.
pub(crate) fn bytes(value: f64) -> String {
    Bytes(value.max(0.0) as u64).to_string().trim().to_owned()
}

/// A change in percent.
pub(crate) fn percent(ratio: f64) -> String {
    format!("{:+.1} %", (ratio - 1.0) * 100.0)
}

/// A part in percent, no finer than a tenth: of 0.05 `5 %`, of 0.999 `99.9 %`.
pub(crate) fn part(share: f64) -> String {
    format!("{} %", (share * 1000.0).round() / 10.0)
}

/// A time in words.
pub(crate) fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{:.1} ms", value * 1e3) } else { format!("{value:.2} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(anonymous: u64, huge: u64) -> RunObservation {
        let look = Memory { bytes: anonymous + 100, anonymous, huge, ..Memory::default() };
        RunObservation::of(vec![Memory { bytes: 50, ..look }, look])
    }

    #[test]
    fn what_is_little_can_bring_nothing() {
        assert_eq!(seen(LITTLE - 1, 0).more_huge_pages().time, 0.0);
        assert_eq!(seen(LITTLE - 1, 0).other_malloc(Merging::AtRest).memory, 0.0);
        // Of malloc and free a million times a second another malloc takes less; who sleeps has nothing to gain.
        let times = |user: f64, merges: Merging| {
            let seen = RunObservation { seconds: 1.0, user, ..seen(LITTLE - 1, 0) };
            seen.other_malloc(merges).time
        };
        let [never, rests] = [Merging::Never, Merging::AtRest];
        assert_eq!([times(0.9, never), times(0.9, rests), times(0.01, never)], [1.0, 0.0, 0.0]);
        assert!(seen(LITTLE * 2, 0).more_huge_pages().time > 0.0);
        assert_eq!(seen(LITTLE * 2, LITTLE + 1).more_huge_pages().time, 0.0);
        assert!(seen(LITTLE * 2, 0).other_malloc(Merging::AtRest).memory > 0.9);
        assert_eq!(RunObservation::default().share(1), 1.0, "nothing seen is no division by zero");
    }

    #[test]
    fn who_gets_at_what_is_free_promises_most() {
        let free =
            MallocFree { heap: 90 << 20, free: 80 << 20, returnable: 700 << 10, pieces: 79 << 20 };
        let busy =
            RunObservation { malloc: Some(free), seconds: 2.0, user: 1.9, ..seen(100 << 20, 0) };
        let pages = |seen: &RunObservation| seen.given_back("").likely;
        assert!(
            pages(&busy) < 0.01 && busy.given_back("").memory > 0.9,
            "it may be more while it works"
        );
        assert!(
            busy.other_malloc(Merging::Never).likely < 0.01
                && busy.other_malloc(Merging::AtRest).likely > 0.35
        );
        let rests = RunObservation { user: 0.1, ..busy.clone() };
        assert!(rests.given_back("").memory < 0.01, "it is as it was seen most of the time");
        // A heap that was small when it was asked tells nothing of what came.
        let early = RunObservation { malloc: Some(MallocFree { heap: 1 << 20, ..free }), ..rests };
        assert!(
            early.given_back("").memory > 0.9 && early.other_malloc(Merging::Never).likely > 0.4
        );
        // "Early trim may bring up to 63 %" was said where 700 KiB were free in whole pages.
        let full = Readings { times: 2, last: 0.5, anonymous: 99 << 20, ..Readings::default() };
        let read = RunObservation { readings: full, ..busy.clone() };
        assert!(read.given_back("").memory < 0.02 && !read.given_back("").unknown);
        let half = RunObservation { readings: Readings { anonymous: 50 << 20, ..full }, ..read };
        assert!(half.given_back("").unknown, "it was read early, and memory came after that");
        // Of a server that never rests the kernel merges pages, and the heap does not.
        let server = RunObservation { lives: true, ..busy.clone() };
        assert!(server.other_malloc(Merging::AtRest).likely < 0.01);
        assert!(server.other_malloc(Merging::AnyTime).likely > 0.35);
        let unknown = RunObservation { malloc: None, ..busy };
        assert!(
            unknown.other_malloc(Merging::AtRest).likely
                > unknown.other_malloc(Merging::Never).likely
        );
    }

    /// "100 % of its memory could live in slower memory" was said of what had rested for 37 ms.
    #[test]
    fn what_rested_for_a_moment_is_not_called_cold() {
        let cold = |seconds: f64, rested: f64| {
            let cold = Some(Cold { bytes: 50 << 20, seconds: rested, ..Cold::default() });
            RunObservation { cold, seconds, ..seen(100 << 20, 0) }.cold_data().is_some()
        };
        let told = [(0.9, 0.037), (0.9, 0.3), (40.0, 0.6), (40.0, 1.1), (4.0, 0.226)];
        assert_eq!(told.map(|(run, rested)| cold(run, rested)), [false, true, false, true, false]);
    }

    /// Of `true`, which no look saw, it said that it had "0 B at its highest: anonymous 0 B".
    #[test]
    fn memory_that_was_not_seen_is_not_said_to_be_none() {
        let told = RunObservation::of(Vec::new()).text("as it is", None);
        assert!(told.contains("memory      not seen: it ended before"), "{told}");
        assert!(seen(100 << 20, 0).text("as it is", None).contains("anonymous 100.0 MiB"));
    }

    /// Of a Redis with jemalloc 1.8 MiB were free, 424 KiB of it in whole pages and 402 KiB in pieces.
    #[test]
    fn the_parts_of_what_is_free_add_up() {
        let free = MallocFree {
            heap: 9 << 20,
            free: 1800 << 10,
            returnable: 424 << 10,
            pieces: 402 << 10,
        };
        let told =
            |free| RunObservation { malloc: Some(free), lives: true, ..seen(9 << 20, 0) }.free();
        assert!(
            told(free).ends_with(
                "402.0 KiB in pieces of pages that hold data, too, 974.0 KiB not in memory: \
             address space"
            ),
            "{}",
            told(free)
        );
        let all = MallocFree { free: 826 << 10, ..free };
        assert!(told(all).ends_with("pieces of pages that hold data, too"), "{}", told(all));
        // A program of one block of 9 MiB was said to have 656 B live.
        let little = MallocFree { heap: 132 << 10, free: 131 << 10, returnable: 0, pieces: 0 };
        let rest = "\n            8.9 MiB are not in that heap: blocks that are mapped by themselves, or not malloc's";
        assert!(told(little).ends_with(rest), "{}", told(little));
    }

    /// Of a heap of 21 MiB that was read half-way, and grew to 46 MiB, 24 MiB were "not malloc's".
    #[test]
    fn a_heap_that_was_read_half_way_is_not_compared_with_what_came_later() {
        let free = MallocFree { heap: 21 << 20, free: 100 << 10, returnable: 0, pieces: 0 };
        let told = |anonymous: u64, heap: u64| {
            let readings = Readings { anonymous, heap, times: 1, ..Readings::default() };
            RunObservation { malloc: Some(free), readings, ..seen(46 << 20, 0) }.free()
        };
        let half = told(24 << 20, 21 << 20);
        assert!(!half.contains("not in that heap"), "{half}");
        assert!(
            half.contains("held when it was read, before it had all of its memory, "),
            "{half}"
        );
        let beside = told(46 << 20, 21 << 20);
        assert!(beside.ends_with(
            "25.0 MiB are not in that heap: blocks that are mapped by themselves, or not malloc's"
        ));
        assert!(beside.contains("held at its most while it worked"), "{beside}");
    }

    /// Of a recording it said "0.0 ms system, 0 page faults", which nobody knows.
    #[test]
    fn what_a_recording_does_not_have_is_not_told_as_none() {
        let recorded = RunObservation { recorded: true, user: 1.5, ..seen(100 << 20, 0) };
        assert!(
            recorded
                .text("looked at", None)
                .starts_with("looked at   0.0 ms: 1.50 s of CPU time\n")
        );
        let told = recorded.json(None);
        assert!(told["page_faults"].is_null() && told["system_seconds"].is_null(), "{told}");
    }

    /// Of a recording it said that "its memory is small, or it ends soon".
    #[test]
    fn why_it_is_not_known_what_is_accessed_is_said_as_it_is() {
        let why = |seen: &RunObservation| {
            crate::lever::Lever::estimate(&crate::levers::slower_memory::SlowerMemory, seen).why
        };
        assert!(why(&seen(MUCH - 1, 0)).contains("its memory is small"));
        assert!(why(&seen(MUCH, 0)).contains("it ends too soon"));
        let not_marked = Some("its accesses were not recorded".to_owned());
        let recorded = RunObservation { not_marked, ..seen(MUCH, 0) };
        assert_eq!(why(&recorded), "its accesses were not recorded");
    }

    #[test]
    fn what_is_free_is_told_with_what_is_live_or_why_it_is_not_known() {
        let free =
            MallocFree { heap: 90 << 20, free: 80 << 20, returnable: 4096, pieces: 79 << 20 };
        let told =
            RunObservation { malloc: Some(free), ..seen(100 << 20, 0) }.text("as it is", None);
        for part in [
            "80.0 MiB of the 90.0 MiB",
            "10.0 MiB are live",
            "4.0 KiB in whole pages",
            "79.0 MiB in pieces",
        ] {
            assert!(told.contains(part), "no {part:?} in {told}");
        }
        let why = Some("it never rested".to_owned());
        let told = RunObservation { not_asked: why, ..seen(100 << 20, 0) }.text("as it is", None);
        assert!(told.contains("free        not known: it never rested"), "{told}");
    }
}
