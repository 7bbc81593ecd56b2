//! The board: words in a shared file, written by the libraries inside the programs and by their launcher.
//!
//! ```text
//!  head       magic, version, orders for all          written by the launcher
//!  process 0  pid, counters                           written by its library
//!    region 0   where it is, how it grows | order     library | launcher
//!    …
//!  process 63
//! ```
//!
//! Every word is an atomic 64-bit number, so neither side can find a value half written, and neither side trusts
//! the other's: an unknown order is [`Order::Nothing`], and addresses that the launcher reads are only ever
//! reported or handed back to the kernel, which checks them.
//!
//! A region's `generation` is odd while its library rewrites it as another region; an order is for the generation
//! that it names.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number at the beginning of a board.
pub const MAGIC: u64 = u64::from_le_bytes(*b"pgmlhuge");
/// Layout of the words below.
pub const VERSION: u64 = 7;
/// Programs that one board has room for; further ones run without help.
pub const PROCESSES: usize = 64;
/// Regions of each.
pub const REGIONS: usize = 32;

/// Words of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Head {
    /// [`MAGIC`].
    Magic,
    /// [`VERSION`].
    Version,
    /// The launcher's last sign of life, ns of CLOCK_MONOTONIC.
    Heartbeat,
    /// Order for a region that the launcher has not looked at yet.
    First,
    /// Thousandths of its resident memory that may lie provided and untouched in a program.
    LeadPerMille,
    /// Nanoseconds of growth that may lie provided and untouched.
    HorizonNs,
    /// Most bytes that may.
    LeadMost,
    /// Ten thousandths of a mapping of 64 MiB or more that are provided before its first touch.
    Lend,
    /// Most bytes that may lie provided and untouched, whatever the rest says: the control group's headroom.
    Headroom,
    /// Filters of system calls (seccomp) that hold for the launcher, and so for whatever it starts.
    Filters,
    /// 1: the system gives huge pages at every first touch, so memory of which nobody has said anything is left so.
    HugeUnasked,
    /// 1: the system gives 64 KiB at every first touch where no larger page is asked for.
    MediumUnasked,
    /// A program has no thread of the library's before it has mapped so many bytes; 0: from the start.
    LeastMapped,
    /// Such a thread does nothing before the process has taken so much CPU time, ns.
    LeastNs,
    /// While nothing is tried or provided ahead the thread takes at most one in so many parts of the time; 0: any.
    Share,
    /// Number of words of the head.
    Words,
}

/// Words of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ProcessWord {
    /// Process id; 0: free.
    Pid,
    /// Bits of [`degraded`].
    Degraded,
    /// Resident bytes.
    Resident,
    /// CPU time of the library's thread, ns.
    HelperNs,
    /// Huge pages delivered.
    HugePages,
    /// Base pages delivered.
    BasePages,
    /// Pieces that came too late: the program had touched them.
    Late,
    /// Huge pages that the kernel did not have.
    Refused,
    /// Last costs of making a huge page, ns, smoothed.
    HugeNs,
    /// Last costs of making 512 base pages, ns, smoothed.
    BaseNs,
    /// The longest time that making one huge page took, ns.
    HugeMostNs,
    /// Zeroed huge pages in the pool now.
    Pool,
    /// Address of a chunk that the launcher asks to collapse; 0: none.
    CollapseAt,
    /// Chunks collapsed.
    Collapsed,
    /// Chunks that the kernel would not collapse.
    NotCollapsed,
    /// Last costs of a collapse, ns, smoothed.
    CollapseNs,
    /// Whether the library's thread runs: 0 not, 1 yes.
    Running,
    /// Bytes provided and, as far as is known, untouched.
    Untouched,
    /// Rounds of the library's thread.
    Rounds,
    /// Chunks made of pages of 64 KiB, where the system gives them.
    MediumChunks,
    /// Last costs of making 64 KiB where such pages are asked for, ns, smoothed.
    MediumNs,
    /// Chunks that got a head, so that the program's own faults bring 64 KiB.
    Heads,
    /// One more than the [`Order`] for its regions that the launcher has not looked at yet; 0: that of the head. By the
    /// launcher.
    First,
    /// Most bytes of such a region that [`Order::Fault`] or [`Order::FaultBase`] is about; 0: all. By the launcher.
    FirstMost,
    /// Bytes by which its regions have been found to grow, in order of addresses.
    Grown,
    /// CPU time of the program's own threads, ns.
    ProgramNs,
    /// Thread number of the library's thread.
    HelperThread,
    /// 1: its growth is being measured, so it is looked at often. By the launcher.
    Brisk,
    /// Number of words of a process, regions apart.
    Words,
}

/// Words of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RegionWord {
    /// Odd while it changes; 0: never used.
    Generation,
    /// First address.
    Start,
    /// Address behind the last.
    End,
    /// A [`Kind`].
    Kind,
    /// Address up to which it is known to be touched.
    Touched,
    /// Address up to which it is provided.
    Provided,
    /// Bytes a millisecond by which it grows.
    Rate,
    /// Times that a touch was found far from where the region grew.
    Jumps,
    /// When it was first seen, ns of CLOCK_MONOTONIC.
    Since,
    /// An [`Order`], by the launcher.
    Order,
    /// Generation that the order is for.
    For,
    /// Address up to which [`Order::Fault`] and [`Order::FaultBase`] hold; 0: the region's end. By the launcher.
    Until,
    /// Number of words of a region.
    Words,
}

/// Where a region comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// A mapping.
    #[default]
    Mapping = 0,
    /// The heap behind the program's data (`brk`).
    Heap = 1,
}

impl Kind {
    /// The kind with this number; a mapping if there is none.
    pub fn from_word(word: u64) -> Self {
        if word == 1 { Self::Heap } else { Self::Mapping }
    }
}

/// What a library does about a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Order {
    /// Nothing.
    #[default]
    Nothing = 0,
    /// Base pages ahead of its growth.
    Base = 1,
    /// Huge pages ahead of its growth.
    Huge = 2,
    /// Huge pages by the program's own faults (`MADV_HUGEPAGE`), as far as the order reaches.
    Fault = 3,
    /// Huge pages ahead of its growth, zeroed beforehand in the library's pool and moved into place.
    Pool = 4,
    /// Pages of 64 KiB ahead of its growth, where the system gives them to advised memory.
    Medium = 5,
    /// Pages of 64 KiB by the program's own faults, where the system gives them to advised memory.
    FaultMedium = 6,
    /// Base pages by the program's own faults (`MADV_NOHUGEPAGE`), as far as the order reaches.
    FaultBase = 7,
}

impl Order {
    /// The order with this number; nothing if there is none.
    pub fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Base,
            2 => Self::Huge,
            3 => Self::Fault,
            4 => Self::Pool,
            5 => Self::Medium,
            6 => Self::FaultMedium,
            7 => Self::FaultBase,
            _ => Self::Nothing,
        }
    }
}

/// Why a library does less than asked.
pub mod degraded {
    /// No userfaultfd that moves pages (Linux 6.8): nothing is provided ahead.
    pub const NO_MOVE: u64 = 1;
    /// The helper thread could not be started, or had to leave because of a seccomp filter.
    pub const NO_THREAD: u64 = 1 << 1;
    /// The kernel does not list mappings by address (`PROCMAP_QUERY`, Linux 6.11): only what the program maps
    /// itself is seen, not what its C library does.
    pub const NO_QUERY: u64 = 1 << 2;
    /// The kernel does not tell which pages are there (`PAGEMAP_SCAN`, Linux 6.7).
    pub const NO_SCAN: u64 = 1 << 3;
    /// The program has said that it wants no huge pages (`prctl(PR_SET_THP_DISABLE)`).
    pub const REFUSED_BY_PROGRAM: u64 = 1 << 4;
    /// The program has locked its memory or limited its address space.
    pub const LIMITED: u64 = 1 << 5;
}

const PROCESS_WORDS: usize = ProcessWord::Words as usize + REGIONS * RegionWord::Words as usize;

/// Words of a whole board.
pub const WORDS: usize = Head::Words as usize + PROCESSES * PROCESS_WORDS;

/// A board.
#[derive(Clone, Copy, Debug)]
pub struct Board<'a>(&'a [AtomicU64]);

impl<'a> Board<'a> {
    /// The board in these words; `None` if they are too few.
    pub fn new(words: &'a [AtomicU64]) -> Option<Self> {
        (words.len() >= WORDS).then_some(Self(words))
    }

    /// Makes it one: the magic number comes last.
    pub fn found(&self) {
        self.set(Head::Version, VERSION);
        self.set(Head::Magic, MAGIC);
    }

    /// Whether it is one, in this layout.
    pub fn is_founded(&self) -> bool {
        self.get(Head::Magic) == MAGIC && self.get(Head::Version) == VERSION
    }

    /// A word of the head.
    pub fn get(&self, word: Head) -> u64 {
        self.0[word as usize].load(Relaxed)
    }

    /// Sets a word of the head.
    pub fn set(&self, word: Head, value: u64) {
        self.0[word as usize].store(value, Relaxed);
    }

    /// The process with this number.
    pub fn process(&self, number: usize) -> Process<'a> {
        let first = Head::Words as usize + number.min(PROCESSES - 1) * PROCESS_WORDS;
        Process(&self.0[first..first + PROCESS_WORDS])
    }

    /// All processes.
    pub fn processes(&self) -> impl Iterator<Item = Process<'a>> + use<'a> {
        let board = *self;
        (0..PROCESSES).map(move |number| board.process(number))
    }

    /// The number of a place for a process that has none; `None` if the board is full.
    pub fn join(&self, pid: Pid) -> Option<usize> {
        let number = self.processes().position(|process| {
            let word = &process.0[ProcessWord::Pid as usize];
            word.compare_exchange(0, u64::from(pid.0), Relaxed, Relaxed).is_ok()
        })?;
        self.process(number).clear();
        Some(number)
    }
}

/// The number of a process (`pid_t`); none has 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pid(pub u32);

/// A process's part of a board.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a>(&'a [AtomicU64]);

impl<'a> Process<'a> {
    /// Forgets everything but whose place it is.
    pub fn clear(&self) {
        for word in &self.0[ProcessWord::Degraded as usize..] {
            word.store(0, Relaxed);
        }
    }

    /// A word.
    pub fn get(&self, word: ProcessWord) -> u64 {
        self.0[word as usize].load(Relaxed)
    }

    /// Sets a word.
    pub fn set(&self, word: ProcessWord, value: u64) {
        self.0[word as usize].store(value, Relaxed);
    }

    /// Adds to a word that only the caller writes.
    pub fn add(&self, word: ProcessWord, more: u64) {
        self.set(word, self.get(word).wrapping_add(more));
    }

    /// Moves a word that only the caller writes an eighth of the way to `value`; the first value is taken whole. One
    /// that is more than twice what came before counts as twice: the one page for which a host took long says little of
    /// the next.
    pub fn smooth(&self, word: ProcessWord, value: u64) {
        let before = self.get(word);
        let told = value.min(before.saturating_mul(2));
        self.set(word, if before == 0 { value } else { before - before / 8 + told / 8 });
    }

    /// The order for regions of this process that the launcher has not looked at, if it has said one.
    pub fn first(&self) -> Option<Order> {
        self.get(ProcessWord::First).checked_sub(1).map(Order::from_word)
    }

    /// Says which order that is, and of how many bytes of a region it is (0: all).
    pub fn begin_with(&self, order: Order, most: u64) {
        self.set(ProcessWord::FirstMost, most);
        self.set(ProcessWord::First, order as u64 + 1);
    }

    /// The region with this number.
    pub fn region(&self, number: usize) -> Region<'a> {
        let words = RegionWord::Words as usize;
        let first = ProcessWord::Words as usize + number.min(REGIONS - 1) * words;
        Region(&self.0[first..first + words])
    }

    /// All regions.
    pub fn regions(&self) -> impl Iterator<Item = Region<'a>> + use<'a> {
        let process = *self;
        (0..REGIONS).map(move |number| process.region(number))
    }
}

/// A region's part of a board.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a>(&'a [AtomicU64]);

impl Region<'_> {
    /// A word.
    pub fn get(&self, word: RegionWord) -> u64 {
        self.0[word as usize].load(Relaxed)
    }

    /// Sets a word.
    pub fn set(&self, word: RegionWord, value: u64) {
        self.0[word as usize].store(value, Relaxed);
    }

    /// The launcher's order, or `first` if there is none for this generation yet.
    pub fn order(&self, first: Order) -> Order {
        if self.get(RegionWord::For) == self.get(RegionWord::Generation) {
            Order::from_word(self.get(RegionWord::Order))
        } else {
            first
        }
    }

    /// Up to which address an order holds that was given, or one of `most` bytes (0: all) that was not.
    pub fn until(&self, touched: u64, most: u64) -> u64 {
        let given = self.get(RegionWord::For) == self.get(RegionWord::Generation);
        let until = match (given, most) {
            (true, _) => self.get(RegionWord::Until),
            (false, 0) => 0,
            (false, most) => touched.saturating_add(most),
        };
        if until == 0 { u64::MAX } else { until }
    }

    /// Gives an order for the generation that the launcher has looked at, up to an address (0: the region's end).
    pub fn give(&self, order: Order, until: u64, generation: u64) {
        self.set(RegionWord::Until, until);
        self.set(RegionWord::Order, order as u64);
        self.set(RegionWord::For, generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn words() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_board_is_one_when_it_was_founded() {
        let words = words();
        let board = Board::new(&words).unwrap();
        assert!(!board.is_founded());
        board.found();
        assert!(board.is_founded());
        assert!(Board::new(&words[1..]).is_none());
    }

    #[test]
    fn each_process_and_each_region_has_words_of_its_own() {
        let words = words();
        let board = Board::new(&words).unwrap();
        for number in 0..PROCESSES {
            board.process(number).set(ProcessWord::Rounds, number as u64 + 1);
            for (index, region) in board.process(number).regions().enumerate() {
                region.set(RegionWord::For, (number * REGIONS + index) as u64);
            }
        }
        for (number, process) in board.processes().enumerate() {
            assert_eq!(process.get(ProcessWord::Rounds), number as u64 + 1);
            for (index, region) in process.regions().enumerate() {
                assert_eq!(region.get(RegionWord::For), (number * REGIONS + index) as u64);
            }
        }
    }

    #[test]
    fn a_full_board_takes_no_more_and_a_left_place_is_clean() {
        let words = words();
        let board = Board::new(&words).unwrap();
        for pid in 1..=PROCESSES as u32 {
            assert!(board.join(Pid(pid)).is_some());
        }
        assert!(board.join(Pid(999)).is_none());
        let left = board.process(7);
        left.set(ProcessWord::Late, 3);
        left.set(ProcessWord::Pid, 0);
        let place = board.process(board.join(Pid(999)).unwrap());
        assert_eq!((place.get(ProcessWord::Pid), place.get(ProcessWord::Late)), (999, 0));
    }

    #[test]
    fn a_cost_follows_what_lasts_and_not_what_happens_once() {
        let words = words();
        let process = Board::new(&words).unwrap().process(0);
        process.smooth(ProcessWord::HugeNs, 80_000);
        assert_eq!(process.get(ProcessWord::HugeNs), 80_000);
        process.smooth(ProcessWord::HugeNs, 40_000_000);
        assert_eq!(process.get(ProcessWord::HugeNs), 90_000);
        for _ in 0..100 {
            process.smooth(ProcessWord::HugeNs, 5_000_000);
        }
        assert!(process.get(ProcessWord::HugeNs) > 4_000_000, "all of them take long now");
    }

    #[test]
    fn a_process_has_no_first_order_until_one_was_said() {
        let words = words();
        let process = Board::new(&words).unwrap().process(3);
        assert_eq!(process.first(), None);
        for order in [Order::Nothing, Order::FaultMedium] {
            process.begin_with(order, 0);
            assert_eq!(process.first(), Some(order));
        }
    }

    #[test]
    fn an_order_is_for_the_generation_that_it_names() {
        let words = words();
        let region = Board::new(&words).unwrap().process(0).region(0);
        region.set(RegionWord::Generation, 2);
        assert_eq!(region.order(Order::Base), Order::Base);
        region.give(Order::Huge, 0, 2);
        assert_eq!(region.order(Order::Base), Order::Huge);
        region.set(RegionWord::Generation, 4);
        assert_eq!(region.order(Order::Nothing), Order::Nothing);
        assert_eq!((region.until(100, 0), region.until(100, 7)), (u64::MAX, 107));
        region.give(Order::Fault, 300, 4);
        assert_eq!((region.until(100, 0), region.until(100, 7)), (300, 300));
    }
}
