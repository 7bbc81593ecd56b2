//! The six core workloads of YCSB (Cooper and others, SoCC 2010): what a client does next.

use std::fmt;
use std::str::FromStr;

use pagemill_model::random::Random;

use crate::zipf::Zipf;

/// Records that a scan reads at most.
const LONGEST_SCAN: u64 = 100;

/// A core workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads, of the latest records most; 5 % inserts.
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts.
    E,
    /// Half reads, half read, modify and write.
    F,
}

impl Mix {
    /// All six.
    pub const ALL: [Self; 6] = [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F];
}

impl fmt::Display for Mix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|mix| mix.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("there is no YCSB workload {text:?}; valid: A, B, C, D, E, F"))
    }
}

/// What to do, with which record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read(u64),
    Update(u64),
    Insert,
    /// From this record, so many.
    Scan(u64, u64),
    Modify(u64),
}

/// Draws steps over records numbered from 0.
#[derive(Debug)]
pub(crate) struct Chooser {
    mix: Mix,
    zipf: Zipf,
}

impl Chooser {
    /// Of so many records that are there at the beginning.
    pub(crate) fn new(mix: Mix, records: u64) -> Self {
        Self { mix, zipf: Zipf::new(records) }
    }

    /// The next step; `records` are there by now.
    pub(crate) fn next(&self, random: &mut Random, records: u64) -> Step {
        let first = random.unit();
        let any = self.zipf.scattered(random);
        match self.mix {
            Mix::A if first < 0.5 => Step::Read(any),
            Mix::A => Step::Update(any),
            Mix::B if first < 0.95 => Step::Read(any),
            Mix::B => Step::Update(any),
            Mix::C => Step::Read(any),
            Mix::D if first < 0.95 => {
                Step::Read(records.saturating_sub(1 + self.zipf.rank(random)))
            }
            Mix::E if first < 0.95 => Step::Scan(any, 1 + random.below(LONGEST_SCAN)),
            Mix::D | Mix::E => Step::Insert,
            Mix::F if first < 0.5 => Step::Read(any),
            Mix::F => Step::Modify(any),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_published_ones_and_names_are_read() {
        let mut random = Random::new(1);
        for (mix, share) in
            [(Mix::A, 0.5), (Mix::B, 0.95), (Mix::C, 1.0), (Mix::D, 0.95), (Mix::F, 0.5)]
        {
            let chooser = Chooser::new(mix, 100);
            let is_read = |_: &i32| matches!(chooser.next(&mut random, 120), Step::Read(_));
            let reads = (0..10_000).filter(is_read).count() as f64 / 1e4;
            assert!((reads - share).abs() < 0.02, "{mix}: {reads}");
        }
        assert_eq!("e".parse(), Ok(Mix::E));
        assert!("G".parse::<Mix>().unwrap_err().contains("A, B, C, D, E, F"));
    }
}
