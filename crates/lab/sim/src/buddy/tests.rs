use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use Mobility::{Movable, Unmovable};
use pagemill_model::random::Random;

const SIDES: [Mobility; 2] = [Movable, Unmovable];

impl Buddy {
    /// Free blocks of each order whose pageblock has this mobility.
    fn free_blocks_of(&self, mobility: Mobility) -> [u64; ORDERS] {
        std::array::from_fn(|order| self.lists[mobility as usize][order].length)
    }

    /// The blocks in use, in the order of their place.
    fn in_use(&self) -> impl Iterator<Item = (Block, Mobility)> + '_ {
        self.pages.iter().zip(0..).filter_map(|(page, start)| match *page {
            Page::Used(order, mobility) => Some((Block { start, order }, mobility)),
            _ => None,
        })
    }
}

/// The same allocator written down naively: lists are vectors, a buddy is searched for, what is in
/// use is a map, and a pageblock is counted page by page.
struct Naive {
    lists: [Vec<Vec<u32>>; 2],
    used: BTreeMap<u32, (u8, Mobility)>,
    sides: Vec<Mobility>,
    pages: u32,
}

impl Naive {
    fn new(pages: u32) -> Self {
        let mut lists = [vec![Vec::new(); ORDERS], vec![Vec::new(); ORDERS]];
        lists[0][10] = (0..pages).step_by(1024).rev().collect();
        Self { lists, used: BTreeMap::new(), sides: vec![Movable; pages as usize / 512], pages }
    }

    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u32> {
        let mine = |lists: &[Vec<Vec<u32>>; 2], side: Mobility| {
            (usize::from(order)..ORDERS).find(|&k| !lists[side as usize][k].is_empty())
        };
        let (side, k) = match mine(&self.lists, mobility) {
            Some(k) => (mobility, k),
            None => self.fallback(order, mobility)?,
        };
        let start = self.lists[side as usize][k].pop()?;
        for k in (usize::from(order)..k).rev() {
            self.lists[side as usize][k].push(start + (1 << k));
        }
        self.used.insert(start, (order, mobility));
        Some(start)
    }

    fn fallback(&mut self, order: u8, mobility: Mobility) -> Option<(Mobility, usize)> {
        let other = mobility.other();
        let full = |lists: &[Vec<Vec<u32>>; 2], k: usize| !lists[other as usize][k].is_empty();
        let largest = (usize::from(order)..ORDERS).rev().find(|&k| full(&self.lists, k))?;
        let start = *self.lists[other as usize][largest].last()?;
        if largest >= 9 {
            self.lists[other as usize][largest].pop();
            self.lists[mobility as usize][largest].push(start);
            for block in start / 512..(start + (1 << largest)) / 512 {
                self.sides[block as usize] = mobility;
            }
            return Some((mobility, largest));
        }
        let from = start / 512 * 512;
        let fits = (from..from + 512).filter(|&page| match self.user(page) {
            Some(user) => user == mobility,
            None => true,
        });
        if (largest >= 4 || mobility == Unmovable) && fits.count() >= 256 {
            self.sides[from as usize / 512] = mobility;
            let mut moving = Vec::new();
            for k in 0..9 {
                let inside = |start: &u32| (from..from + 512).contains(start);
                for side in 0..2 {
                    let (take, keep) =
                        self.lists[side][k].iter().copied().partition(|start| inside(start));
                    self.lists[side][k] = keep;
                    let take: Vec<u32> = take;
                    moving.extend(take.into_iter().map(|start| (start, k)));
                }
            }
            moving.sort_unstable();
            for (start, k) in moving {
                self.lists[mobility as usize][k].push(start);
            }
            // The one that the claim was made for need not be the newest now, so look again.
            return (usize::from(order)..ORDERS)
                .find(|&k| !self.lists[mobility as usize][k].is_empty())
                .map(|k| (mobility, k));
        }
        let smallest = (usize::from(order)..ORDERS).find(|&k| full(&self.lists, k))?;
        Some((other, smallest))
    }

    fn user(&self, page: u32) -> Option<Mobility> {
        let (start, (order, mobility)) = self.used.range(..=page).next_back()?;
        (page < start + (1 << order)).then_some(*mobility)
    }

    fn free(&mut self, mut start: u32) {
        let (order, _) = self.used.remove(&start).unwrap();
        let side = self.sides[start as usize / 512];
        let mut k = usize::from(order);
        while k < 10 {
            let buddy = start ^ (1 << k);
            let found = (0..2).find_map(|side| {
                let at = self.lists[side][k].iter().position(|&start| start == buddy)?;
                Some((side, at))
            });
            let Some((side, at)) = found else { break };
            self.lists[side][k].remove(at);
            start = start.min(buddy);
            k += 1;
        }
        if k == 10 {
            self.sides[start as usize / 512] = side;
            self.sides[start as usize / 512 + 1] = side;
        }
        self.lists[side as usize][k].push(start);
    }

    fn free_blocks(&self, side: Mobility) -> [u64; ORDERS] {
        std::array::from_fn(|k| self.lists[side as usize][k].len() as u64)
    }

    /// Free pages, by looking at each.
    fn free_pages(&self) -> u64 {
        (0..self.pages).filter(|&page| self.user(page).is_none()).count() as u64
    }
}

/// Every page is in one aligned block; no two buddies are free; the counts are those of the pages.
fn check(zone: &Buddy) {
    let mut page = 0;
    let (mut free, mut counts) = (0, [0; ORDERS]);
    while page < zone.pages.len() as u32 {
        let (order, is_free) = match zone.pages[page as usize] {
            Page::Free(order, _) => (order, true),
            Page::Used(order, _) => (order, false),
            other => panic!("page {page} is {other:?}"),
        };
        let block = Block { start: page, order };
        assert_eq!(page % block.pages(), 0, "{block:?} is not aligned");
        for inner in page + 1..page + block.pages() {
            assert_eq!(zone.pages[inner as usize], Page::Inside, "{inner} of {block:?}");
        }
        if is_free {
            free += u64::from(block.pages());
            counts[usize::from(order)] += 1;
            if order < MAX_ORDER {
                let buddy = zone.pages[(page ^ block.pages()) as usize];
                assert!(
                    !matches!(buddy, Page::Free(o, _) if o == order),
                    "{block:?} and its buddy"
                );
            }
        }
        page += block.pages();
    }
    assert_eq!((zone.free_pages(), zone.free_blocks()), (free, counts));
    for (side, lists) in zone.lists.iter().enumerate() {
        for (order, list) in lists.iter().enumerate() {
            let (mut at, mut length) = (list.newest, 0);
            while at != NONE {
                let expected = Page::Free(order as u8, SIDES[side]);
                assert_eq!(zone.pages[at as usize], expected);
                (at, length) = (zone.links[at as usize].1, length + 1);
            }
            assert_eq!(list.length, length);
        }
    }
}

/// A zone after a seeded life of allocations and frees.
fn used(
    pages: u32,
    seed: u64,
    steps: u32,
    unmovable: f64,
) -> (Buddy, BTreeMap<u32, (u8, Mobility)>) {
    let mut random = Random::new(seed);
    let mut zone = Buddy::new(pages);
    let mut held: Vec<Block> = Vec::new();
    for _ in 0..steps {
        if random.chance(0.55) {
            let order = [0, 0, 0, 0, 1, 2, 3, 9][random.below(8) as usize];
            let mobility = if random.chance(unmovable) { Unmovable } else { Movable };
            held.extend(zone.alloc(order, mobility));
        } else if !held.is_empty() {
            let block = held.swap_remove(random.below(held.len() as u64) as usize);
            assert_eq!(zone.free(block.start), Some(block));
        }
    }
    let held = zone.in_use().map(|(block, mobility)| (block.start, (block.order, mobility)));
    let held = held.collect();
    (zone, held)
}

#[derive(Clone, Debug)]
enum Step {
    Alloc(u8, Mobility),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let mobility = prop_oneof![3 => Just(Movable), 1 => Just(Unmovable)];
    let order = prop_oneof![6 => 0..3_u8, 2 => 3..9_u8, 2 => 9..=10_u8];
    prop_oneof![
        3 => (order, mobility).prop_map(|(order, mobility)| Step::Alloc(order, mobility)),
        2 => any::<usize>().prop_map(Step::Free),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_does_what_the_naive_one_does(steps in prop::collection::vec(step(), 1..400)) {
        const PAGES: u32 = 4096;
        let (mut zone, mut naive) = (Buddy::new(PAGES), Naive::new(PAGES));
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Alloc(order, mobility) => {
                    let block = zone.alloc(order, mobility);
                    prop_assert_eq!(block.map(|b| b.start), naive.alloc(order, mobility));
                    held.extend(block);
                }
                Step::Free(which) if !held.is_empty() => {
                    let block: Block = held.swap_remove(which % held.len());
                    zone.free(block.start);
                    naive.free(block.start);
                }
                Step::Free(_) => {}
            }
            for side in SIDES {
                prop_assert_eq!(zone.free_blocks_of(side), naive.free_blocks(side));
            }
        }
        prop_assert_eq!(zone.free_pages(), naive.free_pages());
        check(&zone);
    }

    #[test]
    fn compaction_moves_movable_blocks_one_to_one_and_conserves_pages(
        seed: u64, unmovable in 0.0..0.5, order in prop::option::of(0..=MAX_ORDER),
    ) {
        let (mut zone, mut held) = used(16 << 10, seed, 6000, unmovable);
        let free = zone.free_pages();
        let mut pages = 0;
        let done = zone.compact(order, |from, to| {
            let what = held.remove(&from.start).expect("it was in use");
            assert_eq!(what, (from.order, Movable));
            assert_eq!(from.order, to.order);
            assert!(held.insert(to.start, what).is_none(), "the target was in use");
            pages += u64::from(from.pages());
        });
        check(&zone);
        prop_assert_eq!(zone.free_pages(), free);
        prop_assert_eq!(done.migrated, pages);
        let now = zone.in_use().map(|(block, mobility)| (block.start, (block.order, mobility)));
        prop_assert_eq!(now.collect::<BTreeMap<_, _>>(), held);
        if let (Some(order), true) = (order, done.complete) {
            prop_assert!(zone.alloc(order, Movable).is_some());
        }
    }

    #[test]
    fn what_is_split_can_be_freed_page_by_page(seed: u64) {
        let (mut zone, held) = used(8 << 10, seed, 2000, 0.2);
        for &start in held.keys() {
            zone.split(start);
        }
        check(&zone);
        let pages: Vec<u32> = zone.in_use().map(|(block, _)| block.start).collect();
        for page in pages {
            prop_assert_eq!(zone.free(page), Some(Block { start: page, order: 0 }));
        }
        prop_assert_eq!(zone.free_blocks()[10], 8);
    }
}

/// One page of each huge page stays: what a fragmenter leaves.
fn speckled(pages: u32, mobility: Mobility) -> Buddy {
    let mut zone = Buddy::new(pages);
    while let Some(huge) = zone.alloc(PAGEBLOCK_ORDER, Movable) {
        zone.split(huge.start);
        for page in huge.start + 1..huge.start + huge.pages() {
            zone.free(page);
        }
        zone.set_mobility(huge.start, mobility);
    }
    zone
}

#[test]
fn a_zone_speckled_with_movable_pages_is_mended_and_one_with_pinned_pages_is_not() {
    let mut zone = speckled(64 << 10, Movable);
    assert_eq!(zone.alloc(PAGEBLOCK_ORDER, Movable), None);
    let done = zone.compact(None, |_, _| {});
    assert!(done.complete && done.migrated > 0, "{done:?}");
    let huge: u64 = zone.free_blocks()[9] + 2 * zone.free_blocks()[10];
    // 128 pages are left over: they need a quarter of one of 128 huge pages.
    assert!(huge >= 120, "{:?}", zone.free_blocks());

    let mut pinned = speckled(64 << 10, Unmovable);
    let done = pinned.compact(Some(PAGEBLOCK_ORDER), |_, _| {});
    assert_eq!((done.migrated, done.complete), (0, false));
    assert_eq!(pinned.alloc(PAGEBLOCK_ORDER, Movable), None);
}

#[test]
fn compaction_for_one_block_stops_as_soon_as_it_has_one() {
    let mut zone = speckled(64 << 10, Movable);
    let one = zone.clone().compact(Some(PAGEBLOCK_ORDER), |_, _| {});
    let all = zone.compact(None, |_, _| {});
    assert!(one.complete && one.migrated <= 4, "{one:?}");
    assert!(one.migrated < all.migrated);
}

#[test]
fn unmovable_blocks_gather_in_few_pageblocks() {
    let mut zone = Buddy::new(64 << 10);
    for step in 0..20_000 {
        let mobility = if step % 20 == 0 { Unmovable } else { Movable };
        zone.alloc(0, mobility);
    }
    let places = zone.in_use().filter(|(_, mobility)| *mobility == Unmovable);
    let mut blocks: Vec<u32> = places.map(|(block, _)| block.start >> PAGEBLOCK_ORDER).collect();
    blocks.dedup();
    // 1,000 unmovable pages fit in two pageblocks; without grouping they would be in all forty.
    assert_eq!(blocks.len(), 2);
}

#[test]
fn what_is_not_in_use_cannot_be_freed_split_or_pinned() {
    let mut zone = Buddy::new(2048);
    assert_eq!(zone.free(0), None);
    assert_eq!(zone.split(5000), None);
    let block = zone.alloc(3, Movable).unwrap();
    assert_eq!(zone.free(block.start + 1), None);
    assert_eq!(zone.free(block.start), Some(block));
    assert_eq!(zone.free(block.start), None, "once is enough");
    assert_eq!(zone.alloc(11, Movable), None);
    assert_eq!(zone.free_blocks()[10], 2);
}
