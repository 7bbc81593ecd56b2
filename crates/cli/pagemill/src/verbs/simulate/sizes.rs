//! Sizes of the fast tier to compare.

use pagemill_model::Bytes;

/// What `--sweep` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Up to all of the workload.
    All,
    /// `fast=FROM..TO`.
    Between {
        /// The least, bytes.
        from: u64,
        /// The greatest.
        to: u64,
    },
}

/// Doublings up to all of a workload, where no sizes are named.
const DOUBLINGS: i32 = 8;

impl std::str::FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let valid = "valid: fast=FROM..TO such as fast=1G..64G, from 1M to 64T";
        if text == "all" {
            return Ok(Self::All);
        }
        let range = text.strip_prefix("fast=").or_else(|| text.strip_prefix("default="));
        let (from, to) = range.and_then(|range| range.split_once("..")).ok_or(valid)?;
        let size = |text: &str| match text.parse::<Bytes>() {
            Ok(Bytes(size)) if (1 << 20..=1 << 46).contains(&size) => Ok(size),
            Ok(_) | Err(_) => Err(format!("{text} is no size here; {valid}")),
        };
        let (from, to) = (size(from)?, size(to.trim_start_matches('='))?);
        if from > to {
            return Err(format!("the greater size comes last; {valid}"));
        }
        Ok(Self::Between { from, to })
    }
}

impl Sizes {
    /// Doubling up to the last, which is included, for a workload of so many bytes: more than its size changes nothing.
    pub(super) fn of(self, bytes: f64) -> Vec<f64> {
        let (from, to) = match self {
            Self::All => (bytes / 2_f64.powi(DOUBLINGS), bytes),
            Self::Between { from, to } => (from as f64, to as f64),
        };
        let doubled = std::iter::successors(Some(from), |size| Some(size * 2.0));
        let mut sizes: Vec<f64> = doubled.take_while(|size| *size < to.min(bytes)).collect();
        sizes.push(to.min(bytes));
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_double_up_to_the_last_and_others_are_refused() {
        let mib = |count: u32| f64::from(count) * f64::from(1 << 20);
        let sizes = |text: &str, bytes| text.parse::<Sizes>().unwrap().of(bytes);
        assert_eq!(sizes("fast=1M..5M", mib(9)), [1, 2, 4, 5].map(mib));
        assert_eq!(sizes("fast=1M..5M", mib(3)), [1, 2, 3].map(mib), "not more than there is");
        assert_eq!(sizes("fast=8M..=8M", mib(9)), [mib(8)]);
        assert_eq!(sizes("all", mib(256)), [1, 2, 4, 8, 16, 32, 64, 128, 256].map(mib));
        for wrong in
            ["", "1G..2G", "fast=1G", "fast=2G..1G", "fast=0..1G", "fast=1G..1E", "slow=1G..2G"]
        {
            assert!(wrong.parse::<Sizes>().unwrap_err().contains("valid: "), "{wrong}");
        }
    }
}
