//! Which page table reads miss the last level cache, by Che's approximation of an LRU cache (Che,
//! Tung and Wang, 2002): a line stays if it is read again within the time `T` in which the cache fills
//! once; `T` solves `capacity = pollution T + sum n (1 - exp(-T rate))`.

/// Lines read at the same rate.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    /// How many.
    pub lines: f64,
    /// Their part of all reads.
    pub weight: f64,
}

/// The part of each class's reads that miss a cache of `capacity` lines, when each read comes with
/// `pollution` other lines that are never read again.
#[must_use]
pub fn misses(lines: &[Lines], capacity: f64, pollution: f64) -> Vec<f64> {
    let rate = |class: &Lines| if class.lines > 0.0 { class.weight / class.lines } else { 0.0 };
    let filled = |time: f64| {
        pollution * time
            + lines.iter().map(|c| c.lines * (1.0 - (-time * rate(c)).exp())).sum::<f64>()
    };
    if pollution <= 0.0 && lines.iter().map(|class| class.lines).sum::<f64>() <= capacity {
        return vec![0.0; lines.len()];
    }
    let (mut low, mut high) = (0.0, 1.0);
    while filled(high) < capacity && high < 1e18 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if filled(middle) < capacity {
            low = middle;
        } else {
            high = middle;
        }
    }
    lines.iter().map(|class| (-high * rate(class)).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of all reads that miss.
    fn miss_ratio(lines: &[Lines], capacity: f64, pollution: f64) -> f64 {
        let total: f64 = lines.iter().map(|class| class.weight).sum();
        let missed = misses(lines, capacity, pollution);
        missed.iter().zip(lines).map(|(miss, class)| miss * class.weight).sum::<f64>() / total
    }

    #[test]
    fn lines_that_fit_never_miss_and_a_tiny_cache_always_does() {
        let lines = [Lines { lines: 1000.0, weight: 1.0 }];
        assert!(miss_ratio(&lines, 2000.0, 0.0) < 1e-9);
        assert!(miss_ratio(&lines, 1.0, 1.0) > 0.99);
    }

    #[test]
    fn pollution_raises_misses_and_skew_lowers_them() {
        let even = [Lines { lines: 1000.0, weight: 1.0 }];
        let skewed = [Lines { lines: 100.0, weight: 0.9 }, Lines { lines: 900.0, weight: 0.1 }];
        assert!(miss_ratio(&even, 500.0, 1.0) > miss_ratio(&even, 500.0, 0.0));
        assert!(miss_ratio(&skewed, 500.0, 0.0) < miss_ratio(&even, 500.0, 0.0));
    }
}
