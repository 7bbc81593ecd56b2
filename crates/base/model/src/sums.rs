//! Sums of what a file says: they stop at the largest number, since a file may say anything.

/// Adds to a sum.
pub fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// The sum of all of these.
pub fn sum(of: impl IntoIterator<Item = u64>) -> u64 {
    of.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_ends_at_the_largest_number() {
        let mut all = sum([1, u64::MAX - 1]);
        add(&mut all, 5);
        assert_eq!((all, sum([2, 3])), (u64::MAX, 5));
    }
}
