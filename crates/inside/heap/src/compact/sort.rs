//! Sorting in slices: heapsort, which can stop after any step and needs no memory.

/// Where sorting left off.
#[derive(Clone, Copy)]
pub(super) struct Sorting {
    /// Values from here on are above their children, unless it is 0: then the greatest of those before `end` comes
    /// first.
    root: usize,
    /// Values from here on are in place.
    end: usize,
}

impl Sorting {
    /// Nothing of `len` values sorted yet.
    pub(super) const fn new(len: usize) -> Self {
        Self { root: len / 2, end: len }
    }

    /// Moves up to so many values to where they belong; whether all are in order then. The length is that of
    /// [`Sorting::new`], and between two slices nobody else moves a value.
    pub(super) fn step<T: Copy>(
        &mut self,
        values: &mut [T],
        key: impl Fn(&T) -> usize,
        moves: usize,
    ) -> bool {
        for _ in 0..moves {
            if self.root > 0 {
                self.root -= 1;
            } else if self.end > 1 {
                self.end -= 1;
                values.swap(0, self.end);
            } else {
                return true;
            }
            sift(&mut values[..self.end], self.root, &key);
        }
        false
    }
}

/// Moves the value at `at` below all that are greater.
fn sift<T: Copy>(values: &mut [T], mut at: usize, key: &impl Fn(&T) -> usize) {
    let Some(&value) = values.get(at) else { return };
    while let Some(mut child) = values.get(2 * at + 1).map(|_| 2 * at + 1) {
        if values.get(child + 1).is_some_and(|right| key(right) > key(&values[child])) {
            child += 1;
        }
        if key(&value) >= key(&values[child]) {
            break;
        }
        values[at] = values[child];
        at = child;
    }
    values[at] = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_are_in_order_however_the_work_is_cut(
            values in prop::collection::vec(any::<usize>(), 0..if cfg!(miri) { 30 } else { 300 }), moves in 1usize..50,
        ) {
            let mut sliced = values.clone();
            let mut sorting = Sorting::new(sliced.len());
            while !sorting.step(&mut sliced, |value| *value, moves) {}
            let mut sorted = values;
            sorted.sort_unstable();
            prop_assert_eq!(sliced, sorted);
        }
    }
}
