//! Cutting runs of sparse pages into extents where they fit into images.
//!
//! Terms: a **run** is a row of pages side by side, of spans of whatever classes; an **image** a row of pages that
//! several extents share; an **extent** is what is cut off the front of a run, and lies in an image from some page on.
//! An extent costs a mapping, a page of an image memory.
//!
//! ```text
//!  run 0     |■□□|□■□|□□□|□■■|□□□|       extents: pages 0 1 2 at 0, pages 3 4 at 1
//!  run 1     |□■□|■□□|□□■|               pages 0 1 2 at 0
//!  image     |■■□|■■■|□□■|
//! ```
//!
//! How long an extent can be is found and not laid down: in an empty image it is long, in one nearly full as short as
//! what is left there, so that images get much fuller than with extents that are cut beforehand.
//!
//! Algorithm: as many images as the live bytes need if these fill a given share of them, all empty. Of each run the
//! longest extent from its front that fits anywhere is a candidate, and the one that holds most is placed first. What a
//! run has for a candidate only shrinks as images fill, so a bound for each is kept in a heap, and a run is looked at
//! again when it comes first (lazy greedy). When the best extent holds next to nothing, or a run's next page fits
//! nowhere, one more image is begun.
//!
//! Properties (tested): extents lie in one run each and take its pages in order; the live bits of an image are
//! disjoint; no extent holds nothing live of the first or the last of its spans, unless it is the run's; if there are
//! enough images, no live page is left; the outcome depends on the input only, not on how the work is cut.

use super::population;

/// Bits of a page: each stands for an equal part of it.
pub type Page = [u64; 4];

/// Bits of a page in all.
const BITS: u32 = 256;

/// Pages side by side that are still to be cut: `first..end` of those given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The first page that is in no extent.
    pub first: u32,
    /// The end of the run.
    pub end: u32,
    /// Where in the images its last extent ended, or [`Run::NOWHERE`].
    pub after: u32,
}

impl Run {
    /// Nothing was cut off yet.
    pub const NOWHERE: u32 = u32::MAX;
}

/// Pages of a run that lie in an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlannedExtent {
    /// Its first page, of those given.
    pub first: u32,
    /// Pages.
    pub pages: u8,
    /// The page of the image that its first page shares.
    pub at: u8,
    /// The image.
    pub image: u32,
}

/// A run by what its next extent holds at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queued {
    bound: u32,
    run: u32,
}

/// Bounds on how runs are cut.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Pages of an image.
    pub image_pages: usize,
    /// Most pages of an extent.
    pub extent_pages: usize,
    /// Places in images that a run is tried at.
    pub probes: u32,
    /// Images that there are from the beginning.
    pub images: u32,
    /// Live bits that an extent must hold for no further image to be begun instead.
    pub least: u32,
}

/// What is cut, and memory for the outcome.
#[derive(Debug)]
pub struct Tables<'a> {
    /// The live bits of all pages.
    pub pages: &'a [Page],
    /// For each whether it is the first of its span.
    pub begins: &'a [bool],
    /// The runs, which shrink.
    pub runs: &'a mut [Run],
    /// An element a run.
    pub queue: &'a mut [Queued],
    /// Room for images: pages, which may hold anything.
    pub images: &'a mut [Page],
    /// Room for extents: as many as there may be.
    pub extents: &'a mut [PlannedExtent],
}

/// What came of cutting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Extents made.
    pub extents: usize,
    /// Images begun.
    pub images: u32,
    /// Whether there was room for no more extents.
    pub full: bool,
}

/// A place for the next extent of a run.
#[derive(Clone, Copy)]
struct Place {
    image: u32,
    at: usize,
    pages: usize,
}

/// Where cutting left off.
#[derive(Clone, Copy, Debug)]
pub struct Cutting {
    /// The run whose bound is found next, as long as there is one.
    next: usize,
    queued: usize,
    extents: usize,
    images: u32,
    /// Whether the last image holds anything.
    begun: bool,
    /// Live bits that are in no extent.
    left: u64,
    /// The image that is tried first.
    turn: u32,
}

impl Default for Cutting {
    fn default() -> Self {
        Self::new()
    }
}

impl Cutting {
    /// Nothing done yet.
    pub const fn new() -> Self {
        Self { next: 0, queued: 0, extents: 0, images: 0, begun: false, left: 0, turn: 0 }
    }

    /// Goes on for about `work` steps, of ten nanoseconds or so. Returns what came of it once all is done. Each call of
    /// one cutting is given the same input and what the last one left in the tables.
    ///
    /// # Panics
    /// If `begins` is shorter than `pages`, `queue` than `runs`, or a run goes beyond the pages.
    pub fn step(&mut self, tables: &mut Tables<'_>, bounds: Bounds, work: u32) -> Option<Cut> {
        let mut left = work;
        while left > 0 {
            let spent = if self.next < tables.runs.len() {
                self.find_bound(tables, bounds)
            } else if self.queued == 0 {
                return Some(self.cut(false));
            } else if self.extents == tables.extents.len() {
                return Some(self.cut(true));
            } else {
                self.place(tables, bounds)
            };
            left = left.saturating_sub(spent);
        }
        None
    }

    /// Live bits that are in no extent.
    pub fn left(&self) -> u64 {
        self.left
    }

    fn cut(&self, full: bool) -> Cut {
        Cut { extents: self.extents, images: self.images, full }
    }

    /// Queues the next run by what its next extent may hold; returns the steps that it took.
    fn find_bound(&mut self, tables: &mut Tables<'_>, bounds: Bounds) -> u32 {
        if self.next == 0 {
            self.queued = 0;
            self.left = 0;
            while self.images < bounds.images && self.begin_image(tables, bounds) {}
        }
        let run = self.next;
        self.next += 1;
        let Run { first, end, .. } = tables.runs[run];
        let pages = &tables.pages[first as usize..end as usize];
        self.left += pages.iter().map(|page| u64::from(population(page))).sum::<u64>();
        self.queue(tables, run as u32, held(pages, bounds.extent_pages));
        1 + pages.len() as u32
    }

    fn begin_image(&mut self, tables: &mut Tables<'_>, bounds: Bounds) -> bool {
        let from = self.images as usize * bounds.image_pages;
        let Some(fresh) = tables.images.get_mut(from..from + bounds.image_pages) else {
            return false;
        };
        fresh.fill([0; 4]);
        self.images += 1;
        self.begun = false;
        true
    }

    /// Places the run that comes first, or finds that another one does; returns the steps that it took.
    fn place(&mut self, tables: &mut Tables<'_>, bounds: Bounds) -> u32 {
        let run = tables.queue[0].run;
        self.dequeue(tables);
        if self.skip_empty(tables, run, bounds.extent_pages) {
            return 1;
        }
        let (place, probes) = self.find(tables, bounds, tables.runs[run as usize]);
        let first = tables.runs[run as usize].first as usize;
        let holds = held(&tables.pages[first..], place.pages);
        if self.queued > 0 && holds < tables.queue[0].bound {
            self.queue(tables, run, holds);
            return 1 + probes;
        }
        let poor =
            holds < bounds.least && self.left * 4 >= bounds.image_pages as u64 * u64::from(BITS);
        let Run { end, .. } = tables.runs[run as usize];
        let stuck = holds == 0 && held(&tables.pages[first..end as usize], bounds.extent_pages) > 0;
        if (poor && self.begun || stuck) && self.begin_image(tables, bounds) {
            // What all runs may have there is not known.
            self.next = 0;
            return 1 + probes;
        }
        let entry = &mut tables.runs[run as usize];
        if holds == 0 {
            // This page fits nowhere, or nothing lives far and wide.
            self.left -= u64::from(population(&tables.pages[first]));
            entry.first += 1;
            entry.after = Run::NOWHERE;
        } else {
            let at = place.image as usize * bounds.image_pages + place.at;
            let (own, shared) =
                (&tables.pages[first..first + place.pages], &mut tables.images[at..]);
            for (into, page) in shared.iter_mut().zip(own) {
                into.iter_mut().zip(page).for_each(|(word, more)| *word |= more);
            }
            tables.extents[self.extents] = PlannedExtent {
                first: first as u32,
                pages: place.pages as u8,
                at: place.at as u8,
                image: place.image,
            };
            self.extents += 1;
            self.left -= u64::from(holds);
            self.begun |= place.image + 1 == self.images;
            entry.first += place.pages as u32;
            let inside = place.at + place.pages < bounds.image_pages;
            entry.after = if inside { (at + place.pages) as u32 } else { Run::NOWHERE };
        }
        let Run { first, end, .. } = *entry;
        let bound = held(&tables.pages[first as usize..end as usize], bounds.extent_pages);
        self.queue(tables, run, bound);
        1 + probes
    }

    /// Leaves out what is empty of the run's first span; whether that was so, and the run is queued again.
    fn skip_empty(&mut self, tables: &mut Tables<'_>, run: u32, extent_pages: usize) -> bool {
        let entry = &mut tables.runs[run as usize];
        let rest = entry.first as usize..entry.end as usize;
        let is_next = |at: &usize| *at > rest.start && tables.begins[*at];
        let until = rest.clone().find(is_next).unwrap_or(rest.end);
        if rest.start == until || tables.pages[rest.start..until].iter().any(|page| *page != [0; 4])
        {
            return false;
        }
        entry.first = until as u32;
        entry.after = Run::NOWHERE;
        let bound = held(&tables.pages[until..rest.end], extent_pages);
        self.queue(tables, run, bound);
        true
    }

    /// The longest extent from the run's front that fits anywhere, and how many places were tried.
    fn find(&mut self, tables: &Tables<'_>, bounds: Bounds, run: Run) -> (Place, u32) {
        let most = bounds.extent_pages.min((run.end - run.first) as usize);
        let pages = &tables.pages[run.first as usize..][..most];
        let mut best = Place { image: 0, at: 0, pages: 0 };
        let mut probes = 0;
        let image_of = |image: u32| {
            let own = image as usize * bounds.image_pages;
            &tables.images[own..own + bounds.image_pages]
        };
        // Where the last extent ended the two are one mapping.
        if run.after != Run::NOWHERE {
            let (image, at) = (run.after / bounds.image_pages as u32, run.after as usize);
            let at = at % bounds.image_pages;
            best = Place { image, at, pages: longer(&image_of(image)[at..], pages, 0) };
        }
        let tried = self.images.min((bounds.probes / bounds.image_pages as u32).max(1));
        for number in 0..tried {
            if best.pages == most {
                break;
            }
            let image = (self.turn + number) % self.images;
            let own = image_of(image);
            let mut at = 0;
            // The last page that must fit first: most places fail there.
            while best.pages < most
                && let Some(rest) = own.get(at + best.pages..)
                && let Some(skipped) = rest.iter().position(|page| !meets(page, &pages[best.pages]))
            {
                at += skipped;
                let len = longer(&own[at..], pages, best.pages);
                if len > best.pages {
                    best = Place { image, at, pages: len };
                }
                at += 1;
            }
            probes += bounds.image_pages as u32;
        }
        if tried < self.images {
            self.turn = (self.turn + tried) % self.images;
        }
        best.pages = self.trimmed(tables, run, best.pages);
        (best, probes)
    }

    /// The extent without the pages at its end that are empty and the only ones of their span.
    fn trimmed(&self, tables: &Tables<'_>, run: Run, pages: usize) -> usize {
        let first = run.first as usize;
        let mut end = first + pages;
        if end == run.end as usize || tables.begins[end] {
            return pages;
        }
        while end > first && tables.pages[end - 1] == [0; 4] {
            end -= 1;
            if tables.begins[end] {
                return end - first;
            }
        }
        pages
    }

    /// Puts a run into the queue, unless there is nothing left of it.
    fn queue(&mut self, tables: &mut Tables<'_>, run: u32, bound: u32) {
        let Run { first, end, .. } = tables.runs[run as usize];
        if bound == 0
            && tables.pages[first as usize..end as usize].iter().all(|page| *page == [0; 4])
        {
            return;
        }
        let queue = &mut tables.queue[..=self.queued];
        let mut at = self.queued;
        queue[at] = Queued { bound, run };
        self.queued += 1;
        while at > 0 && queue[at] > queue[(at - 1) / 2] {
            queue.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    /// Takes the first out of the queue.
    fn dequeue(&mut self, tables: &mut Tables<'_>) {
        self.queued -= 1;
        tables.queue.swap(0, self.queued);
        let queue = &mut tables.queue[..self.queued];
        let mut at = 0;
        loop {
            let children = (2 * at + 1..=2 * at + 2).filter(|child| *child < queue.len());
            let Some(child) = children.max_by_key(|child| queue[*child]) else { return };
            if queue[child] <= queue[at] {
                return;
            }
            queue.swap(at, child);
            at = child;
        }
    }
}

/// Live bits of the first pages.
fn held(pages: &[Page], most: usize) -> u32 {
    pages.iter().take(most).map(population).sum()
}

/// Whether live bits of two pages are in one place.
fn meets(taken: &Page, page: &Page) -> bool {
    let ([a, b, c, d], [e, f, g, h]) = (taken, page);
    a & e | b & f | c & g | d & h != 0
}

/// How many of the pages fit in a row where `taken` is; 0 if it is not more than `than`.
fn longer(taken: &[Page], pages: &[Page], than: usize) -> usize {
    let pairs = || taken.iter().zip(pages);
    if pairs().take(than).rev().any(|(taken, page)| meets(taken, page)) {
        return 0;
    }
    pairs()
        .skip(than)
        .position(|(taken, page)| meets(taken, page))
        .map_or_else(|| taken.len().min(pages.len()), |more| than + more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds =
        Bounds { image_pages: 64, extent_pages: 32, probes: 4096, images: 1, least: 4 };

    /// Pages, which of them begin a span, and how many there are in each run.
    #[derive(Clone, Debug, Default)]
    struct Heap {
        pages: Vec<Page>,
        begins: Vec<bool>,
        runs: Vec<usize>,
    }

    impl Heap {
        /// Adds a run of spans of these numbers of pages, of which each bit is live as `lives` says.
        fn run(&mut self, spans: &[usize], mut lives: impl FnMut() -> bool) {
            self.runs.push(spans.iter().sum());
            for pages in spans {
                for page in 0..*pages {
                    self.begins.push(page == 0);
                    self.pages.push(core::array::from_fn(|_| {
                        (0..64).fold(0, |word, bit| word | u64::from(lives()) << bit)
                    }));
                }
            }
        }

        /// As cut with room for so many images and extents, in slices of so much work.
        fn cut(
            &self,
            bounds: Bounds,
            images: usize,
            most: usize,
            work: u32,
        ) -> (Vec<PlannedExtent>, Cut) {
            let mut first = 0;
            let run = |len: &usize| {
                let run = Run { first, end: first + *len as u32, after: Run::NOWHERE };
                first = run.end;
                run
            };
            let mut runs: Vec<Run> = self.runs.iter().map(run).collect();
            let mut queue = vec![Queued { bound: 7, run: 7 }; runs.len()];
            let mut room = vec![[9; 4]; images * bounds.image_pages];
            let mut extents = vec![PlannedExtent::default(); most];
            let mut cutting = Cutting::new();
            let cut = loop {
                let mut tables = Tables {
                    pages: &self.pages,
                    begins: &self.begins,
                    runs: &mut runs,
                    queue: &mut queue,
                    images: &mut room,
                    extents: &mut extents,
                };
                if let Some(cut) = cutting.step(&mut tables, bounds, work) {
                    break cut;
                }
            };
            extents.truncate(cut.extents);
            (extents, cut)
        }

        /// The images that extents make, after looking at what must hold of every one.
        fn check(&self, extents: &[PlannedExtent], bounds: Bounds) -> Vec<Page> {
            let count = extents.iter().map(|extent| extent.image + 1).max().unwrap_or(0) as usize;
            let mut images = vec![[0; 4]; count * bounds.image_pages];
            let mut taken = vec![false; self.pages.len()];
            for extent in extents {
                let (first, len) = (extent.first as usize, usize::from(extent.pages));
                let at = usize::from(extent.at);
                assert!((1..=bounds.extent_pages).contains(&len));
                assert!(at + len <= bounds.image_pages, "{extent:?}");
                let mut end = 0;
                let run = self.runs.iter().find_map(|run| {
                    end += run;
                    (first < end).then_some(end - run..end)
                });
                assert!(run.is_some_and(|run| first + len <= run.end), "{extent:?} in one run");
                for page in 0..len {
                    assert!(!core::mem::replace(&mut taken[first + page], true), "taken once");
                    let image = &mut images[extent.image as usize * bounds.image_pages + at + page];
                    for (into, more) in image.iter_mut().zip(&self.pages[first + page]) {
                        assert_eq!(*into & more, 0, "two live bits in one place");
                        *into |= more;
                    }
                }
            }
            images
        }

        /// Live pages that are in no extent.
        fn left(&self, extents: &[PlannedExtent]) -> usize {
            let is_in = |page: usize| {
                extents.iter().any(|extent| {
                    (extent.first..extent.first + u32::from(extent.pages)).contains(&(page as u32))
                })
            };
            (0..self.pages.len())
                .filter(|page| self.pages[*page] != [0; 4] && !is_in(*page))
                .count()
        }
    }

    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        }
    }

    fn heaps() -> impl Strategy<Value = Heap> {
        let run = (prop::collection::vec(1usize..=16, 1..8), 1u64..200, any::<u64>());
        prop::collection::vec(run, 0..12).prop_map(|runs| {
            let mut heap = Heap::default();
            for (spans, share, seed) in runs {
                let mut random = random(seed);
                heap.run(&spans, || random(1000) < share);
            }
            heap
        })
    }

    fn bounds() -> impl Strategy<Value = Bounds> {
        (1usize..=64, 1usize..=32, 1u32..5000, 0u32..4, 0u32..300).prop_map(
            |(image_pages, extent_pages, probes, images, least)| Bounds {
                image_pages,
                extent_pages,
                probes,
                images: images + 1,
                least,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 128 }))]

        #[test]
        fn what_is_live_in_an_image_is_disjoint_and_nothing_is_left(
            heap in heaps(), bounds in bounds(), work in 1u32..5000,
        ) {
            let ample = heap.pages.len() + 8;
            let (extents, cut) = heap.cut(bounds, ample, ample, u32::MAX);
            heap.check(&extents, bounds);
            prop_assert!(!cut.full);
            prop_assert_eq!(heap.left(&extents), 0);
            prop_assert!(extents.iter().all(|extent| extent.image < cut.images));
            prop_assert_eq!(heap.cut(bounds, ample, ample, work), (extents, cut));
        }

        #[test]
        fn there_are_no_more_pieces_and_images_than_there_is_room_for(
            heap in heaps(), bounds in bounds(), images in 1usize..6, most in 0usize..60,
        ) {
            let (extents, cut) = heap.cut(bounds, images, most, 1000);
            let used = heap.check(&extents, bounds).len() / bounds.image_pages;
            prop_assert!(used <= cut.images as usize && cut.images as usize <= images);
            prop_assert!(extents.len() <= most);
            prop_assert!(!cut.full || extents.len() == most);
        }

        #[test]
        fn every_piece_has_live_bytes_of_each_of_its_spans(heap in heaps(), bounds in bounds()) {
            let ample = heap.pages.len() + 8;
            let (extents, _) = heap.cut(bounds, ample, ample, u32::MAX);
            for extent in extents {
                let (first, end) = (extent.first as usize, extent.first as usize + usize::from(extent.pages));
                let is_cut_short = usize::from(extent.pages) == bounds.extent_pages
                    || usize::from(extent.at + extent.pages) == bounds.image_pages;
                let mut at = first;
                while at < end {
                    let next = (at + 1..end).find(|page| heap.begins[*page]).unwrap_or(end);
                    let ends = next < end || next == heap.pages.len() || heap.begins[next];
                    let lives = heap.pages[at..next].iter().any(|page| *page != [0; 4]);
                    let whole = (at == first || heap.begins[at]) && ends;
                    // A span that is dead altogether may be in the middle.
                    prop_assert!(lives || whole || is_cut_short, "{extent:?}: {at}..{next}");
                    at = next;
                }
            }
        }
    }

    /// Redis after its values have changed size, by pages: rounds of spans of 16, 256, 16 and 32 bytes a slot, of each
    /// of which one value in forty is left. Cut beforehand, a round was two extents, which filled half of their images.
    #[test]
    #[cfg_attr(miri, ignore = "takes long there, and is about sizes")]
    fn images_get_fuller_than_with_pieces_cut_beforehand() {
        let mut heap = Heap::default();
        let mut random = random(5);
        let rounds = 1500u32;
        for _ in 0..rounds / 10 {
            heap.runs.push(0);
            for (slot, pages) in [(1, 1), (16, 16), (1, 1), (2, 2)].repeat(10) {
                if let Some(run) = heap.runs.last_mut() {
                    *run += pages;
                }
                for page in 0..pages {
                    heap.begins.push(page == 0);
                    let mut bits = [0u64; 4];
                    for at in (0..256).step_by(slot).filter(|_| random(40) == 0) {
                        for bit in at..at + slot {
                            bits[bit / 64] |= 1 << (bit % 64);
                        }
                    }
                    heap.pages.push(bits);
                }
            }
        }
        let live: u32 = heap.pages.iter().map(population).sum();
        let bounds = Bounds { images: live.div_ceil(64 * 256 / 2), ..BOUNDS };
        let (extents, _) = heap.cut(bounds, 200, heap.pages.len(), u32::MAX);
        let used = heap.check(&extents, bounds).iter().filter(|page| **page != [0; 4]).count();
        assert_eq!(heap.left(&extents), 0);
        let fill = f64::from(live) / 256.0 / used as f64;
        let a_round = extents.len() as f64 / f64::from(rounds);
        assert!(fill > 0.46 && a_round < 1.6, "{fill} of {used} pages, {a_round}");
    }

    /// Pages that are alike in what lives have a place each.
    #[test]
    fn short_runs_lie_anywhere_in_an_image() {
        let mut heap = Heap::default();
        for _ in 0..60 {
            let mut bit = 0;
            heap.run(&[2], || {
                bit += 1;
                bit <= 257
            });
        }
        let bounds = Bounds { image_pages: 32, ..BOUNDS };
        let (extents, cut) = heap.cut(bounds, 10, 200, u32::MAX);
        heap.check(&extents, bounds);
        assert_eq!((extents.len(), heap.left(&extents)), (60, 0));
        assert_eq!(cut.images, 4, "sixteen to an image");
    }

    /// In an image that is nearly full an extent is short, in an empty one long.
    #[test]
    fn what_goes_on_where_the_last_piece_ended_follows_it() {
        let mut heap = Heap::default();
        heap.run(&[16, 16, 16, 16], || true);
        let (extents, _) = heap.cut(BOUNDS, 3, 10, u32::MAX);
        let places: Vec<_> = extents.iter().map(|extent| (extent.first, extent.at)).collect();
        assert_eq!(places, [(0, 0), (32, 32)]);
    }
}
