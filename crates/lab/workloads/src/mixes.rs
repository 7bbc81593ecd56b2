//! The six core workloads of YCSB (Cooper and others, SoCC 2010), and the one that CBMM's evaluation (ATC 2022) gives
//! MongoDB: what a client does next.

use std::fmt;
use std::str::FromStr;

use pagemill_model::random::Random;

use crate::zipf::Zipf;

/// Records that a scan reads at most.
const LONGEST_SCAN: u64 = 100;

/// A workload.
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
    /// A quarter reads, three eighths updates, three eighths inserts: a database that grows.
    Mongodb,
}

impl Mix {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::A, Self::B, Self::C, Self::D, Self::E, Self::F, Self::Mongodb];

    /// Share of the steps that insert a record.
    pub(crate) fn inserts(self) -> f64 {
        match self {
            Self::A | Self::B | Self::C | Self::F => 0.0,
            Self::D | Self::E => 0.05,
            Self::Mongodb => 0.375,
        }
    }

    /// Records that there is room for: `records`, and more than so many steps insert.
    pub(crate) fn room(self, records: usize, steps: usize) -> usize {
        records + (steps as f64 * self.inserts() * 1.3) as usize + 1_000
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mongodb => out.write_str("mongodb"),
            core => fmt::Debug::fmt(core, out),
        }
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mix| mix.to_string().eq_ignore_ascii_case(text)).ok_or_else(
            || {
                let valid = Self::ALL.map(|mix| mix.to_string()).join(", ");
                format!("there is no YCSB workload {text:?}; valid: {valid}")
            },
        )
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
            Mix::Mongodb if first < 0.25 => Step::Read(any),
            Mix::Mongodb if first < 0.625 => Step::Update(any),
            Mix::Mongodb => Step::Insert,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_published_ones_and_names_are_read() {
        let mut random = Random::new(1);
        let shares = [0.5, 0.95, 1.0, 0.95, 0.0, 0.5, 0.25];
        for (mix, share) in Mix::ALL.into_iter().zip(shares) {
            let chooser = Chooser::new(mix, 100);
            let steps: Vec<Step> = (0..10_000).map(|_| chooser.next(&mut random, 120)).collect();
            let part =
                |is: fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count() as f64 / 1e4;
            let (reads, inserts) =
                (part(|step| matches!(step, Step::Read(_))), part(|step| *step == Step::Insert));
            assert!((reads - share).abs() < 0.02, "{mix}: {reads}");
            assert!((inserts - mix.inserts()).abs() < 0.02, "{mix}: {inserts}");
        }
        assert_eq!("e".parse(), Ok(Mix::E));
        assert_eq!("mongodb".parse(), Ok(Mix::Mongodb));
        assert!("G".parse::<Mix>().unwrap_err().contains("A, B, C, D, E, F, mongodb"));
    }
}
