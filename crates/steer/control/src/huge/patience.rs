//! What is spent on a program before there is something to gain: a library without a thread, a launcher that hardly
//! looks.
//!
//! A second thread and its looks cost a program some ms, and each look from here a CPU that the program may be using.
//! So a program has neither before it has mapped [`LEAST_MAPPED`] and worked for [`LEAST_TIME`]; from then on, while
//! nothing is tried, thread and launcher take at most one in [`SHARE`] parts of the time each.

use std::time::Duration;

use pagemill_kernel::process::{UsageScope, resources};
use pagemill_prefault::board::{Board, Head, ProcessWord};

/// Bytes that a program maps before it has a thread of the library's.
const LEAST_MAPPED: u64 = 64 << 20;
/// CPU time that it takes before that thread does anything.
const LEAST_TIME: Duration = Duration::from_millis(500);
/// Parts of the time of which a look may take one.
const SHARE: u32 = 250;
/// Bounds of the wait between two looks.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// CPU time after which that thread begins where earlier runs have left room for a trial, and the wait between two
/// looks until then.
const SOON: Duration = Duration::from_millis(20);

/// When there may be something to gain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// Once a program has grown and worked.
    #[default]
    Usual,
    /// Soon: earlier runs of the program have left room for a trial.
    Short,
    /// Never: the kernel does all that is to be done.
    Endless,
}

/// Tells the libraries.
pub fn tell(board: Board<'_>, patience: Patience) {
    let mapped = if patience == Patience::Endless { u64::MAX } else { LEAST_MAPPED };
    board.set(Head::LeastMapped, mapped);
    let least = if patience == Patience::Short { SOON } else { LEAST_TIME };
    board.set(Head::LeastNs, least.as_nanos() as u64);
    board.set(Head::Share, SHARE.into());
}

/// Whether some library has seen its program grow.
pub fn is_over(board: Board<'_>) -> bool {
    board.processes().any(|process| process.get(ProcessWord::Grown) > 0)
}

/// How long to wait for that at this age: a quarter of it, within bounds.
pub fn wait_time(age: Duration, patience: Patience) -> Duration {
    let least = if patience == Patience::Short { SOON } else { REST.0 };
    (age / 4).clamp(least, REST.1)
}

/// How long to wait after a look that took so long.
pub fn after(took: Duration) -> Duration {
    (took * SHARE).min(REST.1)
}

/// CPU time that the calling thread has taken.
pub fn own_time() -> Duration {
    let own = resources(UsageScope::ThisThread);
    own.user + own.system
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use pagemill_prefault::board::WORDS;

    use super::*;

    #[test]
    fn it_waits_until_a_library_has_seen_growth_and_ever_longer() {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let board = Board::new(&words).unwrap();
        tell(board, Patience::Endless);
        assert_eq!(board.get(Head::LeastMapped), u64::MAX);
        tell(board, Patience::Short);
        assert_eq!(board.get(Head::LeastNs), 20_000_000);
        tell(board, Patience::Usual);
        assert_eq!(board.get(Head::LeastMapped), 64 << 20);
        assert_eq!(board.get(Head::LeastNs), 500_000_000);
        assert!(!is_over(board));
        board.process(3).set(ProcessWord::Grown, 4096);
        assert!(is_over(board));
        let rests = [0, 1_000, 60_000]
            .map(|ms| wait_time(Duration::from_millis(ms), Patience::Usual).as_millis());
        assert_eq!(rests, [100, 250, 1_000]);
        assert_eq!(wait_time(Duration::ZERO, Patience::Short), SOON);
        assert_eq!(after(Duration::from_micros(100)), Duration::from_millis(25));
        assert_eq!(after(Duration::from_millis(100)), Duration::from_secs(1));
    }
}
