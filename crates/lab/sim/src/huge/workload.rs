//! What programs do whose huge pages are simulated.

use std::sync::Arc;

use pagemill_model::page::PER_HUGE;
use pagemill_model::random::Random;
use pagemill_policy::huge::profile::Mapping;

/// What a program does, in order. Pages are numbered from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Base pages of its memory.
    pub pages: u64,
    /// Pages in the order in which they are touched first.
    pub touches: Vec<u64>,
    /// Reads after each touch, of pages touched before.
    pub reads_per_touch: u64,
    /// Reads after the last touch.
    pub reads_after: u64,
    /// Of the reads, thousandths that go to the first tenth of the touched pages.
    pub hot: u64,
    /// The program's own time after each touch, ns; none for a synthetic workload, whose time is its reads.
    pub own: Vec<u64>,
    /// Reads in a millisecond of its own time.
    pub reads_per_ms: u64,
    /// Where each region lies; none for a synthetic workload, which is one heap.
    pub homes: Vec<RegionMapping>,
}

/// Where a region lies: the mapping that it lies whole in, and its address there. `None`: in parts of several, or at an
/// end, so no huge page fits.
pub type RegionMapping = Option<(Arc<Mapping>, u64)>;

/// Makes of a workload that touches its pages in order, and then reads them, another.
type Shape = fn(&mut Workload, u64);

/// Every synthetic workload, by its name.
const WORKLOADS: &[(&str, Shape)] = &[
    ("grow", |load, _| (load.reads_per_touch, load.reads_after) = (16, 0)),
    ("random", |load, seed| {
        let mut random = Random::new(seed);
        for last in (1..load.touches.len()).rev() {
            load.touches.swap(last, random.below(last as u64 + 1) as usize);
        }
    }),
    ("hot", |load, _| load.hot = 900),
    ("sparse", |load, _| load.touches.retain(|page| page % 16 == 0)),
];

/// Names of the synthetic workloads.
pub fn names() -> impl Iterator<Item = &'static str> {
    WORKLOADS.iter().map(|(name, _)| *name)
}

impl Workload {
    /// A synthetic workload on so many regions of 2 MiB.
    #[must_use]
    pub fn named(name: &str, regions: u64, seed: u64) -> Option<Self> {
        let (name, shape) = WORKLOADS.iter().find(|(known, _)| *known == name)?;
        let pages = regions * PER_HUGE;
        let mut load = Self {
            name: (*name).to_owned(),
            pages,
            touches: (0..pages).collect(),
            reads_after: pages * 20,
            ..Self::default()
        };
        shape(&mut load, seed);
        Some(load)
    }
}
