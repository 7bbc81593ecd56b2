//! A program that was recorded, as a workload: its pages' heat is measured, what its cores do between two
//! reads is not known and is taken from another workload.
//!
//! Pages are put into classes by the binary logarithm of their heat in the first and in the second half of the
//! recording; the second half is what the simulated hot set moves to. Within a class all pages are alike.
//!
//! Always so: classes hold all bytes; weights of each half sum to one.

use std::collections::BTreeMap;

use crate::workload::{Class, Workload};

/// A page of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page {
    /// Its first address; classes are laid out in the order of theirs.
    pub address: u64,
    /// Its size.
    pub bytes: f64,
    /// Accesses seen in the first half.
    pub before: u64,
    /// Accesses seen in the second half.
    pub after: u64,
}

/// The bin of a count: 0 for none, otherwise the bits it has.
fn bin(count: u64) -> u32 {
    u64::BITS - count.leading_zeros()
}

/// The workload of these pages, whose cores do what those of `like` do; `None` if no access was seen in
/// either half.
#[must_use]
pub fn workload(pages: &[Page], like: &Workload) -> Option<Workload> {
    // In floating point, for a crafted recording may say anything; counts as they are come out exactly.
    let total = |heat: fn(&Page) -> u64| pages.iter().map(|page| heat(page) as f64).sum::<f64>();
    let (before, after) = (total(|page| page.before), total(|page| page.after));
    if before <= 0.0 || after <= 0.0 {
        return None;
    }
    let mut bins: BTreeMap<(u32, u32), Vec<&Page>> = BTreeMap::new();
    for page in pages {
        bins.entry((bin(page.before), bin(page.after))).or_default().push(page);
    }
    let mut classes: Vec<(u64, Class)> = bins
        .into_iter()
        .map(|((first, second), pages)| {
            let sum =
                |value: fn(&Page) -> u64| pages.iter().map(|page| value(page) as f64).sum::<f64>();
            let middle = (sum(|page| page.address / 4096) / pages.len() as f64) as u64;
            let least = |bin: u32| if bin == 0 { 0 } else { 1_u64 << (bin - 1) };
            let class = Class {
                name: format!("seen {} times, then {}", least(first), least(second)),
                bytes: pages.iter().map(|page| page.bytes).sum(),
                weight: sum(|page| page.before) / before,
                later: sum(|page| page.after) / after,
            };
            (middle, class)
        })
        .collect();
    classes.sort_by_key(|(middle, _)| *middle);
    Some(Workload {
        name: "recording",
        classes: classes.into_iter().map(|(_, class)| class).collect(),
        segments: 1,
        together: false,
        default_gib: None,
        reused: Vec::new(),
        length: None,
        // The second half of a recording is where its hot set has moved to.
        moves: true,
        recorded: true,
        ..like.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::chase;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn classes_hold_all_bytes_and_weights_sum_to_one(
            heats in prop::collection::vec((0_u64..1000, 0_u64..1000), 1..60),
        ) {
            let pages: Vec<Page> = heats.iter().enumerate().map(|(at, &(before, after))| {
                Page { address: at as u64 * 8192, bytes: 8192.0, before: before + 1, after: after + 1 }
            }).collect();
            let workload = workload(&pages, &chase(1.0)).unwrap();
            let sum = |value: fn(&Class) -> f64| workload.classes.iter().map(value).sum::<f64>();
            prop_assert!((sum(|class| class.bytes) - 8192.0 * pages.len() as f64).abs() < 1e-6);
            prop_assert!((sum(|class| class.weight) - 1.0).abs() < 1e-9);
            prop_assert!((sum(|class| class.later) - 1.0).abs() < 1e-9);
        }
    }

    /// As a crafted recording has it: their sum ended a debug build.
    #[test]
    fn counts_of_any_size_are_weights() {
        let page = |address| Page { address, bytes: 4096.0, before: u64::MAX, after: u64::MAX - 1 };
        let load = workload(&[page(0), page(u64::MAX), page(4096)], &chase(1.0)).unwrap();
        let weight: f64 = load.classes.iter().map(|class| class.weight).sum();
        assert!((weight - 1.0).abs() < 1e-9, "{weight}");
    }

    #[test]
    fn what_was_never_seen_accessed_is_no_workload() {
        let page = Page { address: 0, bytes: 4096.0, before: 0, after: 3 };
        assert!(workload(&[page], &chase(1.0)).is_none());
        assert!(workload(&[], &chase(1.0)).is_none());
    }
}
