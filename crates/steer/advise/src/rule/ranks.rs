//! How likely an order of values is by chance alone: of few values, whatever they are distributed like.

/// How likely it is that values that are drawn as the `old` ones are lie as low beside them as the `new` ones do, or
/// lower (Mann & Whitney, "On a test of whether one of two random variables is stochastically larger than the other",
/// 1947, exact). Equal ones count against it. 1 without a value of either.
pub fn chance_of_lower(new: &[f64], old: &[f64]) -> f64 {
    let below = |value: &f64| old.iter().filter(|other| value < other).count();
    let least: usize = new.iter().map(below).sum();
    // By the number of old values, and of pairs of which the new one is the lower: how likely that is.
    let mut known: Vec<Vec<f64>> = vec![vec![1.0]; old.len() + 1];
    for i in 1..=new.len() {
        let mut row = vec![vec![1.0]];
        for j in 1..=old.len() {
            // The largest of all is an old one, and above all `i` new ones; or a new one, and below none.
            let share = j as f64 / (i + j) as f64;
            let of = |counts: &[f64], pairs: Option<usize>| {
                pairs.and_then(|pairs| counts.get(pairs)).copied().unwrap_or(0.0)
            };
            let likely = |pairs: usize| {
                share * of(&row[j - 1], pairs.checked_sub(i))
                    + (1.0 - share) * of(&known[j], Some(pairs))
            };
            let counts = (0..=i * j).map(likely).collect();
            row.push(counts);
        }
        known = row;
    }
    known.last().map_or(1.0, |counts| counts.iter().skip(least).sum::<f64>().min(1.0))
}

/// The same where no new value of so many is above an old one of so many: no order is less likely.
pub fn least_chance_of_lower(new: usize, old: usize) -> f64 {
    (1..=new).map(|n| n as f64 / (old + n) as f64).product()
}

/// How likely it is that as many of these differences or more are below zero, if each is as likely above.
pub fn chance_of_negative(differences: &[f64]) -> f64 {
    let all = differences.len();
    let least = differences.iter().filter(|difference| **difference < 0.0).count();
    let mut likely = vec![1.0];
    for n in 1..=all {
        let of = |at: Option<usize>| at.and_then(|at| likely.get(at)).copied().unwrap_or(0.0_f64);
        likely = (0..=n).map(|k| (of(Some(k)) + of(k.checked_sub(1))) / 2.0).collect();
    }
    likely.iter().skip(least).sum::<f64>().min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 1e-12
    }

    #[test]
    fn of_five_and_ten_that_do_not_overlap_the_order_is_one_in_3003() {
        let old: Vec<f64> = (10..20).map(f64::from).collect();
        assert!(is(chance_of_lower(&[1.0, 2.0, 3.0, 4.0, 5.0], &old), 1.0 / 3003.0));
        assert!(is(least_chance_of_lower(5, 10), 1.0 / 3003.0));
        assert!(is(chance_of_lower(&[21.0, 22.0, 23.0], &old[..3]), 1.0));
        assert!(is(chance_of_lower(&[1.0, 2.0, 3.0], &old[..3]), 0.05));
        assert_eq!((chance_of_lower(&[], &old), chance_of_lower(&old, &[])), (1.0, 1.0));
    }

    /// SciPy: `mannwhitneyu([1, 3, 5, 7], [4, 6, 8, 9, 10], alternative='less', method='exact')`.
    #[test]
    fn what_overlaps_is_as_likely_as_scipy_says() {
        let chance = chance_of_lower(&[1.0, 3.0, 5.0, 7.0], &[4.0, 6.0, 8.0, 9.0, 10.0]);
        assert!(is(chance, 0.055_555_555_555_555_55), "{chance}");
        assert!(is(chance_of_lower(&[2.0, 2.0], &[2.0, 2.0]), 1.0), "equal ones show nothing");
    }

    #[test]
    fn signs_are_thrown_like_coins() {
        assert!(is(chance_of_negative(&[-1.0; 5]), 1.0 / 32.0));
        assert!(is(chance_of_negative(&[-1.0, -2.0, -3.0, 4.0, 0.0]), 0.5));
        assert!(is(chance_of_negative(&[]), 1.0));
    }
}
