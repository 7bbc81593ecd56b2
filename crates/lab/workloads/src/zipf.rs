//! Zipf's distribution, by the method of Gray and others (SIGMOD 1994) that YCSB uses.

use pagemill_model::random::{Random, mix};

/// YCSB's constant.
const EXPONENT: f64 = 0.99;

/// Ranks of so many items; the first is the most frequent.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    items: u64,
    sum: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    pub(crate) fn new(items: u64) -> Self {
        let sum_of =
            |count: u64| (1..=count).map(|rank| (rank as f64).powf(-EXPONENT)).sum::<f64>();
        let sum = sum_of(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - EXPONENT)) / (1.0 - sum_of(2) / sum);
        Self { items, sum, alpha: 1.0 / (1.0 - EXPONENT), eta }
    }

    /// A rank from 0.
    pub(crate) fn rank(&self, random: &mut Random) -> u64 {
        let at = random.unit();
        let scaled = at * self.sum;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(EXPONENT) {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * at - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }

    /// An item: frequent ones lie anywhere.
    pub(crate) fn scattered(&self, random: &mut Random) -> u64 {
        mix(self.rank(random)) % self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_as_the_law_says() {
        let zipf = Zipf::new(1000);
        let mut random = Random::new(1);
        let mut counts = vec![0_u32; 1000];
        (0..200_000).for_each(|_| counts[zipf.rank(&mut random) as usize] += 1);
        let share = |rank: usize| f64::from(counts[rank]) / 200_000.0;
        let law = |rank: usize| (rank as f64 + 1.0).powf(-EXPONENT) / zipf.sum;
        for rank in [0, 1, 9] {
            assert!((share(rank) / law(rank) - 1.0).abs() < 0.25, "{rank}: {}", share(rank));
        }
        assert!(counts[999] < counts[0] / 50);
        assert_eq!(Zipf::new(1).rank(&mut random), 0);
    }
}
