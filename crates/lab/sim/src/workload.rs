//! Programs as the simulator sees them: classes of pages with a part of the reads each, and what a core
//! does between two reads.
//!
//! The address space is cut into equal *segments* (one a thread, or many where a loader interleaves
//! its structures); each holds its part of every class, in the order of `classes`. Pages are first
//! touched in address order, all segments at once where threads touch their own.
//!
//! Each constructor names where its numbers come from; what was derived is derived in its code.

use pagemill_model::page::HUGE;

use crate::cache::{self, Lines};
use crate::closed::{CoreKind, Group, Walks};
use crate::machine::Machine;
use crate::split_pages::HotSpots;

/// Bytes of a GiB.
pub const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
const LINE: f64 = 64.0;
const PTE: f64 = 8.0;

/// Pages read equally often.
#[derive(Clone, Debug)]
pub struct Class {
    /// What they hold.
    pub name: String,
    /// Their size.
    pub bytes: f64,
    /// Their part of all reads that reach memory.
    pub weight: f64,
    /// Their part after the hot set has moved, where it does.
    pub later: f64,
}

impl Class {
    fn new(name: &str, bytes: f64, weight: f64) -> Self {
        Self { name: name.to_owned(), bytes, weight, later: weight }
    }
}

/// What a core does for one read.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Micro-operations, all of which take a place in the reorder buffer.
    pub uops: f64,
    /// Cycles of the dependency chain from one read's address to the next one's.
    pub chain_cycles: f64,
    /// Cycles from a read's entering the window to its address, divisions apart.
    pub address_cycles: f64,
    /// Divisions on that path.
    pub divisions: f64,
    /// Mispredicted branches.
    pub mispredicted: f64,
    /// Reads in flight allowed by data dependence; the reorder buffer and the fill buffers bound it too.
    pub independent: usize,
    /// Time spent computing, in nanoseconds.
    pub compute_ns: f64,
    /// Lines written back.
    pub writes: f64,
    /// Reads that make up one unit of the metric.
    pub per_unit: f64,
    /// Part of reads that need a page table walk (locality within a page needs none).
    pub walked: f64,
    /// Lines that a read fetches side by side; it ends with the last of them.
    pub lines: f64,
}

impl Step {
    /// A read that waits for nothing but memory.
    const PLAIN: Self = Self {
        uops: 1.0,
        chain_cycles: 0.0,
        address_cycles: 0.0,
        divisions: 0.0,
        mispredicted: 0.0,
        independent: usize::MAX,
        compute_ns: 0.0,
        writes: 0.0,
        per_unit: 1.0,
        walked: 1.0,
        lines: 1.0,
    };
}

/// A program.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// Unit of the metric, a second.
    pub unit: &'static str,
    /// Cores it runs on.
    pub cores: usize,
    /// Classes, in address order within a segment.
    pub classes: Vec<Class>,
    /// Segments of the address space.
    pub segments: usize,
    /// Whether all segments are first touched at once.
    pub together: bool,
    /// What a core does.
    pub step: Step,
    /// Memory of the default tier it may use, in GiB, where the evaluation says; otherwise the machine's.
    pub default_gib: Option<f64>,
    /// Lines of its data that are read again soon enough for the last level cache to hold some; weights are reads of
    /// them for each read that reaches memory.
    pub reused: Vec<Lines>,
    /// Units after which the program ends, where it does; its throughput is then that of the whole run.
    pub length: Option<f64>,
    /// Whether its hot set moves halfway through a run of which nobody says when it does.
    pub moves: bool,
    /// Whether it is a recording, whose pages are all there is to simulate.
    pub recorded: bool,
}

/// A workload on a machine.
type Make = fn(&Machine) -> Workload;

/// Every workload, by its name.
const WORKLOADS: &[(&str, Make)] = &[
    ("gups", |_| gups(64.0)),
    ("silo", silo),
    ("pagerank", pagerank),
    ("cachelib", |_| cachelib()),
    ("chase", |_| chase(8.0 * GIB)),
    ("zipf", |_| zipf(64.0 * GIB, 0.99)),
    ("moving", |_| Workload { name: "moving", moves: true, ..gups(64.0) }),
    ("scattered", |_| scattered()),
];

/// The names that [`named`] knows.
pub fn names() -> impl Iterator<Item = &'static str> {
    WORKLOADS.iter().map(|(name, _)| *name)
}

/// A workload by name.
#[must_use]
pub fn named(name: &str, machine: &Machine) -> Option<Workload> {
    WORKLOADS.iter().find(|(known, _)| *known == name).map(|(_, make)| make(machine))
}

/// The evaluation's GUPS: 15 threads, 72 GiB, the last 20 GiB of the threads' buffers take 90 % of the
/// operations; each loads and stores one object.
///
/// 40 micro-operations an object: counted in the code that gcc -O3 -march=icelake-server makes of the published
/// loop (two xorshifts of nine, eleven for the choice, eight with the division's four, load, store, loop).
/// The choice is mispredicted whenever it is cold, 10 %.
#[must_use]
pub fn gups(object_bytes: f64) -> Workload {
    let cold = |gib: f64| 0.1 * gib / 52.0;
    let mut classes = vec![
        Class::new("cold, first 20 GiB", 20.0 * GIB, cold(20.0)),
        Class::new("cold", 32.0 * GIB, cold(32.0)),
        Class::new("hot", 20.0 * GIB, 0.9),
    ];
    classes[0].later = 0.9;
    classes[2].later = cold(20.0);
    let lines = (object_bytes / LINE).max(1.0);
    Workload {
        name: "gups",
        unit: "updates/s",
        classes,
        segments: 15,
        together: true,
        step: Step {
            uops: (40.0 + 2.0 * (lines - 1.0)) / lines,
            chain_cycles: 12.0 / lines,
            // Two xorshifts, a shift and an addition.
            address_cycles: 14.0,
            divisions: 1.0,
            mispredicted: 0.1 / lines,
            writes: 1.0,
            per_unit: lines,
            walked: 1.0 / lines,
            ..Step::PLAIN
        },
        ..Workload::plain()
    }
}

/// Silo under YCSB-C: a Masstree of 400,005,000 records, read by Zipf's law with an exponent of 0.5.
///
/// The evaluation runs the Silo of MEMTIS's benchmarks (its scripts name `memtis-userspace/bench_dir/silo`). There
/// `ycsb.cc` has a mix of reads only and draws keys by `zipfian_rng.init(nkeys, 0.5, …)`, whose `next` gives the ranks
/// themselves: key 0 is the hottest, and nothing scatters them. So the first part `x` of the keys takes the part
/// `sqrt(x)` of the reads, and since keys are loaded in order, what is hot is touched first. Here the keys are cut into
/// [`SILO_RANGES`] ranges that are read equally often.
///
/// Derived from the structure (Silo's and Masstree's sources): one loader inserts keys in order, so Masstree's
/// sequential split leaves every node full: leaves of 15 records and 312 bytes, inner nodes of 16 children and 272
/// bytes, both in
/// 320. A record of 100 bytes and its header take 128. That makes 150.7 bytes a record, 60.3 GB; the evaluation's
/// default tier, a third of all memory, says 62.3 GB.
///
/// A lookup goes down the inner nodes (the lowest level, 0.53 GB, and the one above, 33 MB, do not fit the caches), to
/// a leaf and a record. Masstree prefetches the first four lines of a node side by side. An inner node's keys and
/// children end with the fourth; in a leaf the pointers of the last two of 15 records (bytes 256 to 271) lie in the
/// fifth, which is read once the key has been found: one more read, in a page whose translation is known. Page table
/// lines and inner nodes share the last level cache; leaves and records are not read again soon.
///
/// `compute_ns` is **anchored**: it is the value at which plain TPP without antagonist does what the evaluation
/// measured. That one cell is therefore an input, not a result.
#[must_use]
pub fn silo(machine: &Machine) -> Workload {
    let (records, width, node_lines) = (400_005_000.0, 15.0, 4.0);
    let leaves = records / width;
    let inner = leaves / (width + 1.0);
    let above = inner / (width + 1.0);
    let page_lines = |bytes: f64| bytes / 4096.0 * PTE / LINE;
    let (leaf_bytes, record_bytes, inner_bytes) = (leaves * 320.0, records * 128.0, inner * 320.0);
    // The part of the keys in each range, and that of the reads.
    let border = |range: usize| (range as f64 / SILO_RANGES as f64).powi(2);
    let parts: Vec<f64> = (0..SILO_RANGES).map(|range| border(range + 1) - border(range)).collect();
    let read = 1.0 / SILO_RANGES as f64;
    // Reads for each transaction: five kinds of lines a range.
    let kinds = [
        (inner * node_lines, node_lines),
        (above * node_lines, node_lines),
        (page_lines(inner_bytes), 1.0),
        (page_lines(leaf_bytes), 1.0),
        (page_lines(record_bytes), 1.0),
    ];
    let lines: Vec<Lines> = parts
        .iter()
        .flat_map(|part| {
            kinds.map(|(lines, weight)| Lines { lines: lines * part, weight: weight * read })
        })
        .collect();
    let cached = cache::misses(&lines, cache_lines(machine), 0.0);
    let indices: Vec<f64> =
        cached.chunks_exact(kinds.len()).map(|missed| (missed[0] + missed[1]) * read).collect();
    let index: f64 = indices.iter().sum();
    let fifth = 2.0 / width;
    let all = index + 2.0 + fifth;
    let classes = parts
        .iter()
        .zip(&indices)
        .flat_map(|(part, index)| {
            let class = |name, bytes: f64, reads| Class::new(name, bytes * part, reads / all);
            [
                class("inner nodes", inner_bytes + above * 320.0, *index),
                class("leaves", leaf_bytes, (1.0 + fifth) * read),
                class("records", record_bytes, read),
            ]
        })
        .collect();
    let reused = lines
        .chunks_exact(kinds.len())
        .flat_map(|kinds| &kinds[..2])
        .map(|inner| Lines { weight: inner.weight / all, ..*inner })
        .collect();
    Workload {
        name: "silo",
        unit: "transactions/s",
        classes,
        step: Step {
            uops: 60.0,
            independent: 1,
            compute_ns: SILO_COMPUTE_NS / all,
            per_unit: all,
            walked: (all - fifth) / all,
            lines: ((index + 1.0) * node_lines + fifth + record_bytes / records / LINE) / all,
            ..Step::PLAIN
        },
        default_gib: Some(20_761_804_800.0 / GIB),
        reused,
        // 100e6 transactions a worker.
        length: Some(15.0 * 100e6),
        ..Workload::plain()
    }
}

/// Ranges of [`silo`]'s keys, each read equally often.
const SILO_RANGES: usize = 16;

/// What a transaction of [`silo`] takes apart from memory, anchored (see there).
const SILO_COMPUTE_NS: f64 = 689.0;

/// `PageRank` (pull) on a Kronecker graph of scale 26 and degree 20 with Graph500's initiator: a gather of a
/// 4-byte score an edge, and the edges themselves in order.
///
/// Labels are not permuted, so a page or line whose number has `k` one bits of `n` is read in proportion to
/// `0.76^(n-k) 0.24^k`; gathers that hit the last level cache are taken out by Che's approximation.
#[must_use]
pub fn pagerank(machine: &Machine) -> Workload {
    const SCALE: u32 = 26;
    let vertices = f64::from(1 << SCALE);
    let edges = vertices * 20.0;
    let class = |bits: u32, ones: u32| {
        let weight = 0.76_f64.powi((bits - ones) as i32) * 0.24_f64.powi(ones as i32);
        (choose(bits, ones), choose(bits, ones) * weight)
    };
    let lines: Vec<Lines> = (0..=SCALE - 4)
        .map(|ones| class(SCALE - 4, ones))
        .map(|(lines, weight)| Lines { lines, weight })
        .collect();
    // Edges are read once a pass and not admitted.
    let missed = cache::misses(&lines, cache_lines(machine), 0.0);
    // A page's lines have six more bits: their ones spread binomially.
    let gathers: Vec<(f64, f64)> = (0..=SCALE - 10)
        .map(|ones| {
            let (pages, weight) = class(SCALE - 10, ones);
            let missing: f64 =
                (0..=6).map(|more| class(6, more).1 * missed[(ones + more) as usize]).sum();
            (pages * 4096.0, weight * missing)
        })
        .collect();
    let stream = 1.0 / 16.0;
    let all = gathers.iter().map(|gather| gather.1).sum::<f64>() + stream;
    let mut classes = vec![Class::new("edges", edges * 2.0 * 4.0, stream / all)];
    for (ones, (bytes, weight)) in gathers.into_iter().enumerate() {
        classes.push(Class::new(&format!("scores, {ones} one bits"), bytes, weight / all));
    }
    Workload {
        name: "pagerank",
        unit: "edges/s",
        classes,
        step: Step {
            uops: 6.0 / all,
            address_cycles: machine.get("core.l1_cycles"),
            per_unit: all,
            walked: 1.0 - stream / all,
            ..Step::PLAIN
        },
        default_gib: Some(4_404_019_200.0 / GIB),
        ..Workload::plain()
    }
}

fn choose(of: u32, some: u32) -> f64 {
    (0..some).map(|at| f64::from(of - at) / f64::from(at + 1)).product()
}

/// `CacheLib`'s published mix: 15 million keys of 64 bytes with values of 4096, a fifth of the keys takes 90 % of
/// the operations, 90 % gets and 10 % updates, every value touched.
///
/// An operation reads a bucket of the index, an item's header and 65 lines; 1,500 micro-operations of its
/// own code are assumed.
#[must_use]
pub fn cachelib() -> Workload {
    let (keys, item, lines) = (15e6, 4096.0 + 64.0 + 32.0, 67.0);
    Workload {
        name: "cachelib",
        unit: "operations/s",
        classes: vec![
            Class::new("index", keys * 8.0 * 2.0, 1.0 / lines),
            Class::new("popular items", keys * 0.2 * item, 0.9 * (lines - 1.0) / lines),
            Class::new("other items", keys * 0.8 * item, 0.1 * (lines - 1.0) / lines),
        ],
        step: Step {
            uops: (1500.0 + 3.0 * lines) / lines,
            address_cycles: 5.0,
            writes: 0.1,
            per_unit: lines,
            walked: 3.0 / lines,
            ..Step::PLAIN
        },
        default_gib: Some(keys * item / 3.0 / GIB),
        // 66,666,666 operations a thread.
        length: Some(15.0 * 66_666_666.0),
        ..Workload::plain()
    }
}

/// A pointer chase on one core, all lines alike.
#[must_use]
pub fn chase(bytes: f64) -> Workload {
    Workload {
        name: "chase",
        unit: "reads/s",
        cores: 1,
        classes: vec![Class::new("chain", bytes, 1.0)],
        step: Step { uops: 1.0, independent: 1, ..Step::PLAIN },
        ..Workload::plain()
    }
}

/// Reads with Zipf's law over pages, hottest last in the address space.
#[must_use]
pub fn zipf(bytes: f64, exponent: f64) -> Workload {
    let pages = bytes / 4096.0;
    // The sum of r^-s over a doubling range, by its integral.
    let mass = |from: f64, to: f64| {
        let power = 1.0 - exponent;
        ((to + 0.5).powf(power) - (from - 0.5).powf(power)) / power
    };
    let (mut from, mut ranges) = (1.0, Vec::new());
    while from <= pages {
        let to = (from * 2.0 - 1.0).min(pages);
        ranges.push((from, to));
        from = to + 1.0;
    }
    let all: f64 = ranges.iter().map(|&(a, b)| mass(a, b)).sum();
    let classes = ranges
        .iter()
        .rev()
        .map(|&(a, b)| {
            Class::new(&format!("ranks {a} to {b}"), (b - a + 1.0) * 4096.0, mass(a, b) / all)
        })
        .collect();
    Workload { name: "zipf", classes, segments: 1, together: false, ..gups(64.0) }
}

/// Updates as in [`gups`], but hot pages lie scattered: of the 512 base pages of each 2 MiB, 64 take 90 % of the
/// updates, as where popular records of an index lie wherever they were inserted. All huge pages look alike.
#[must_use]
pub fn scattered() -> Workload {
    let (gib, one_in) = (72.0, 8.0);
    Workload {
        name: "scattered",
        classes: vec![
            Class::new("hot", gib * GIB / one_in, 0.9),
            Class::new("cold", gib * GIB * (1.0 - 1.0 / one_in), 0.1),
        ],
        segments: (gib * 512.0) as usize,
        together: false,
        ..gups(64.0)
    }
}

impl Workload {
    /// Of one segment, on the cores that the evaluation gave most, without an end.
    const fn plain() -> Self {
        Self {
            name: "",
            unit: "",
            cores: 15,
            classes: Vec::new(),
            segments: 1,
            together: false,
            step: Step::PLAIN,
            default_gib: None,
            reused: Vec::new(),
            length: None,
            moves: false,
            recorded: false,
        }
    }

    /// The workload as pages of `page_bytes` see it, where each of its segments is one of them: one class, and the heat
    /// inside.
    #[must_use]
    pub fn folded(&self, page_bytes: f64) -> Option<(Self, HotSpots)> {
        let segment = self.bytes() / self.segments as f64;
        let hot = self.classes.first()?;
        if self.classes.len() != 2 || segment != page_bytes {
            return None;
        }
        let spots =
            HotSpots { one_in: (self.bytes() / hot.bytes).round() as usize, weight: hot.weight };
        let all = Class::new("all", self.bytes(), 1.0);
        Some((Self { classes: vec![all], segments: 1, ..self.clone() }, spots))
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.classes.iter().map(|class| class.bytes).sum()
    }

    /// The part of walks whose last line comes from memory, by class, for pages of `page_bytes`.
    /// Page directories of 2 MiB pages fit the L2 cache.
    ///
    /// The last level cache admits what is expected to be read again: page table lines and [`Self::reused`] share it.
    #[must_use]
    pub fn walk_misses(&self, machine: &Machine, page_bytes: f64) -> Vec<f64> {
        if page_bytes >= HUGE as f64 || self.step.walked <= 0.0 {
            return vec![0.0; self.classes.len()];
        }
        let lines: Vec<Lines> = self
            .classes
            .iter()
            .map(|class| Lines {
                lines: class.bytes / page_bytes * PTE / LINE,
                weight: class.weight * self.step.walked,
            })
            .chain(self.reused.iter().copied())
            .collect();
        let mut missed = cache::misses(&lines, cache_lines(machine), 0.0);
        missed.truncate(self.classes.len());
        missed
    }

    /// How long a walk takes whose last line is in a cache, in nanoseconds: the L2 cache for pages of 2 MiB, the last
    /// level cache for smaller ones.
    #[must_use]
    pub fn walk_hit_ns(&self, machine: &Machine, page_bytes: f64) -> f64 {
        let level = if page_bytes >= HUGE as f64 { "core.l2_cycles" } else { "core.llc_cycles" };
        machine.cycles_ns(machine.get(level))
    }

    /// Its cores for the closed loop.
    #[must_use]
    pub fn group(&self, machine: &Machine, default_share: f64, walks: Walks) -> Group {
        let step = &self.step;
        let buffer = 1.0 + ((machine.get("core.rob_entries") - 3.0) / step.uops).floor();
        let window = (buffer.max(1.0) as usize)
            .min(machine.get("core.fill_buffers") as usize)
            .min(step.independent);
        let front = (step.uops / machine.get("core.issue_width")).max(step.chain_cycles);
        let address = step.address_cycles
            + step.divisions * machine.get("core.divide_cycles")
            + step.walked * machine.get("core.stlb_cycles");
        let penalty = machine.get("core.mispredict_cycles") + step.chain_cycles;
        Group {
            cores: self.cores,
            kind: CoreKind::Window {
                window,
                front_ns: machine.cycles_ns(front),
                issue_ns: machine.cycles_ns(address) + step.compute_ns,
                mispredicted: step.mispredicted,
                penalty_ns: machine.cycles_ns(penalty),
                walks,
                lines: step.lines,
            },
            default_share,
            writes_per_read: step.writes,
        }
    }
}

/// Micro-operations of a line of the antagonist: in the code that gcc -O3 -march=icelake-server makes of its
/// `ReadWrite64` (load with add, store, next address, loop).
const STREAM_UOPS: f64 = 4.0;

/// Lines of the last level cache.
fn cache_lines(machine: &Machine) -> f64 {
    machine.get("cache.llc_mib") * 1024.0 * 1024.0 / LINE
}

/// The antagonist: `steps` times the machine's cores, each loading, changing and storing the lines of a gigabyte
/// in order, on the default tier.
#[must_use]
pub fn antagonist(machine: &Machine, steps: f64) -> Group {
    Group {
        cores: (steps * machine.get("antagonist.cores_per_step")).round() as usize,
        kind: CoreKind::Stream {
            window: (machine.get("core.rob_entries") / STREAM_UOPS) as usize,
            buffers: machine.get("core.fill_buffers") as usize,
            distance: machine.get("core.streamer_lines") as usize,
            queue: machine.get("core.superqueue") as usize,
            near_ns: machine.cycles_ns(machine.get("core.l2_cycles")),
            lag: (machine.get("cache.l2_kib") * 1024.0 / LINE) as u64,
        },
        default_share: 1.0,
        writes_per_read: machine.get("antagonist.writes_per_read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ICELAKE;

    #[test]
    fn every_workload_reads_all_of_its_reads() {
        let machine = Machine::parse(ICELAKE).unwrap();
        for name in names() {
            let workload = named(name, &machine).unwrap();
            assert_eq!(workload.name, name);
            let sum: f64 = workload.classes.iter().map(|class| class.weight).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{name}: {sum}");
            let later: f64 = workload.classes.iter().map(|class| class.later).sum();
            assert!((later - 1.0).abs() < 1e-9, "{name}: {later}");
        }
        assert!((gups(64.0).bytes() / GIB - 72.0).abs() < 1e-9);
    }

    #[test]
    fn a_window_is_bounded_by_reorder_buffer_fill_buffers_and_dependence() {
        let machine = Machine::parse(ICELAKE).unwrap();
        let window = |workload: &Workload| match workload.group(&machine, 1.0, Walks::NONE).kind {
            CoreKind::Window { window, .. } => window,
            other => panic!("{other:?}"),
        };
        assert_eq!(window(&gups(64.0)), 9);
        assert_eq!(window(&gups(4096.0)), 12);
        assert_eq!(window(&chase(GIB)), 1);
    }

    #[test]
    fn huge_pages_need_no_page_table_line_from_memory() {
        let machine = Machine::parse(ICELAKE).unwrap();
        let small = gups(64.0).walk_misses(&machine, 4096.0);
        assert!(small[2] < small[1] && small[2] > 0.01, "{small:?}");
        assert!(gups(64.0).walk_misses(&machine, HUGE as f64).iter().all(|miss| *miss == 0.0));
    }
}
