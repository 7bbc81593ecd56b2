//! Colloid's programs in the guest (`programs.sh`): each page is where the daemon has decided by its own log, and the
//! kernel's promotion was on and off as decided.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pagemill_model::page::{BASE, HUGE, PER_HUGE};
use pagemill_model::recording::Reader;
use pagemill_model::{Event, Source as _, TierDecision, TierOutcome, TierView};

/// What a recording of the daemon says.
#[derive(Debug, Default)]
struct Log {
    /// First address of each page that is tracked, by number.
    tracked: BTreeMap<u64, u64>,
    /// The decision that an outcome belongs to.
    decided: TierDecision,
    /// By first address: the tier that the page was last sent to and the bytes that went, if nothing kept it.
    sent: BTreeMap<u64, Option<(u64, u64)>>,
    /// Bytes that moved.
    moved: u64,
    /// Whether the kernel may promote, by decision.
    promotes: Vec<u64>,
}

impl Log {
    fn read(recording: &Path) -> Self {
        let mut log = Self::default();
        let mut reader = Reader::open(recording).unwrap();
        while let Some(event) = reader.next_event().unwrap() {
            match event {
                Event::TierView(view) => log.saw(*view),
                Event::TierDecision(decision) => {
                    log.promotes.extend(decision.kernel_promotes);
                    log.decided = *decision;
                }
                Event::TierOutcome(outcome) => log.came(*outcome),
                _ => {}
            }
        }
        log
    }

    fn saw(&mut self, view: TierView) {
        for number in view.gone.unwrap_or_default() {
            let address = self.tracked.remove(&number);
            address.and_then(|address| self.sent.remove(&address));
        }
        let addresses = view.page_address.unwrap_or_default();
        self.tracked.extend(view.page.unwrap_or_default().into_iter().zip(addresses));
    }

    fn came(&mut self, outcome: TierOutcome) {
        let list = |list: &Option<Vec<u64>>| list.clone().unwrap_or_default();
        let (pages, to) = (list(&self.decided.page), list(&self.decided.to));
        assert_eq!(list(&outcome.page), pages, "an outcome names the pages of its decision");
        let (moved, kept) = (list(&outcome.moved), list(&outcome.kept));
        self.moved += moved.iter().sum::<u64>();
        for (at, page) in pages.iter().enumerate() {
            self.sent.insert(self.tracked[page], (kept[at] == 0).then_some((to[at], moved[at])));
        }
    }
}

/// Node of each page of 4 KiB, by what `tiered where` wrote.
fn nodes(file: &Path) -> BTreeMap<u64, u64> {
    let mut nodes = BTreeMap::new();
    for line in fs::read_to_string(file).unwrap().lines() {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [start, end, node] = numbers[..] else { panic!("{line}") };
        nodes.extend((start..end).step_by(BASE as usize).map(|address| (address, node)));
    }
    nodes
}

/// Holds what the guest sent of each placement, a recording `PROGRAM.POLICY` and its `.pages`, against each other.
/// Returns the recordings.
pub fn are_where_decided(placed: &Path, programs: &[&str]) -> Vec<PathBuf> {
    let (mut placements, mut recordings) = (BTreeSet::new(), Vec::new());
    for entry in fs::read_dir(placed).unwrap() {
        let recording = entry.unwrap().path();
        if !recording.is_dir() {
            continue;
        }
        let name = recording.file_name().unwrap().to_str().unwrap().to_owned();
        let log = Log::read(&recording);
        let (program, policy) = name.split_once('.').unwrap();
        placements.insert((program.to_owned(), policy.to_owned()));
        match policy {
            "tpp" => assert!(log.promotes.iter().all(|promotes| *promotes == 1), "{name}: {log:?}"),
            "tpp+colloid" => {
                let (first, last) = (log.promotes.first(), log.promotes.last());
                assert_eq!((first, last), (Some(&1), Some(&0)), "{name}: held when overloaded");
            }
            _ => {
                let file = recording.with_file_name(format!("{name}.pages"));
                on_their_nodes(&name, &log, &nodes(&file));
            }
        }
        recordings.push(recording);
    }
    for program in programs {
        for policy in ["hemem+colloid", "hemem"] {
            let placement = ((*program).to_owned(), policy.to_owned());
            assert!(placements.contains(&placement), "{placement:?} is not among {placements:?}");
        }
    }
    recordings
}

/// Tiers have the numbers of their nodes here. GUPS allocates nothing while it runs, so all that was sent is there; the
/// others free memory and touch it anew.
fn on_their_nodes(name: &str, log: &Log, nodes: &BTreeMap<u64, u64>) {
    assert!(log.moved >= 1 << 20, "{name}: {} bytes were moved", log.moved);
    let (mut all, mut there) = (0, 0);
    for (&start, &sent) in &log.sent {
        let Some((to, moved)) = sent else { continue };
        let places = nodes.range(start..(start / HUGE + 1) * HUGE);
        let (of, right) =
            (places.clone().count() as u64, places.filter(|(_, node)| **node == to).count() as u64);
        // Beside memory that ends within 2 MiB there may be some that is not tracked.
        assert!(
            !name.starts_with("gups") || right == of || (of < PER_HUGE && right * BASE >= moved),
            "{name}: {right} of {of} pages from {start:#x} on are on node {to}, as decided"
        );
        // Once, the second page of each huge one was not counted, although it had gone with the others.
        let is_whole = start.is_multiple_of(HUGE) && of == PER_HUGE;
        assert!(!is_whole || moved != HUGE - BASE, "{name}: the huge page at {start:#x}");
        (all, there) = (all + of, there + right);
    }
    assert!(there > 0 && there * 10 >= all * 9, "{name}: {there} of {all} pages are as decided");
}
