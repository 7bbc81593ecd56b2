//! External fragmentation: how far free memory is from being there in large blocks.
//!
//! Terms, for a zone with n_i free blocks of order i (2^i pages), T = sum n_i 2^i free pages:
//! - **unusable free space index** of order k = the share of the free pages that lie in blocks
//!   smaller than order k: (T - sum_{i >= k} n_i 2^i) / T. 0: all free memory serves a request of that order;
//!   1: none does. Without free pages it is 1. The literature also calls it the fragmentation index of
//!   Gorman and Whitcroft (The What, The Why and the Where To of Anti-Fragmentation, OLS 2006), or FMFI.
//! - **external fragmentation index** of order k = why a request of that order would fail:
//!   1 - (1 + T / 2^k) / sum n_i. Near 1: for fragmentation; near 0: for want of memory; -1: it would not
//!   fail, a block is free.
//!
//! Algorithm: the integers of the kernel (mm/vmstat.c, `unusable_free_index`, `__fragmentation_index`)
//! in its order, in thousandths and truncated, printed the way it prints them. So a score is equal to
//! what `/sys/kernel/debug/extfrag` says digit by digit, not only close to it.
//!
//! Properties: the unusable index lies in 0..=1000 and does not fall from one order to the next; it is 0
//! at order 0 while anything is free; joining two free buddies raises it nowhere; the external index is -1000 exactly
//! where a block of the order is free.

pub mod timeline;

use pagemill_model::Order;
use std::fmt;

use pagemill_model::sums::{add, sum};

/// A score in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score(pub i64);

impl Score {
    /// As a number.
    pub fn value(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

/// As the kernel prints it, `%d.%03d` of quotient and remainder, with both signs: `0.407`, `-1.000`,
/// `0.-25`.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{:03}", self.0 / 1000, self.0 % 1000))
    }
}

/// Free pages in these free blocks: entry k counts blocks of 2^k pages.
pub fn free_pages(blocks: &[u64]) -> u64 {
    pages_from(blocks, Order(0))
}

/// Free pages in blocks of this order or a larger one.
pub fn pages_from(blocks: &[u64], order: Order) -> u64 {
    let pages = |(order, count): (Order, &u64)| count.saturating_mul(order.pages());
    let orders = Order::first(blocks.len()).zip(blocks);
    sum(orders.skip(order.index()).map(pages))
}

/// The largest order of which a block is free.
pub fn largest(blocks: &[u64]) -> Option<Order> {
    let orders = Order::first(blocks.len()).zip(blocks);
    orders.filter(|(_, count)| **count > 0).last().map(|(order, _)| order)
}

/// The unusable free space index of an order.
pub fn unusable(blocks: &[u64], order: Order) -> Score {
    let free = free_pages(blocks);
    let small = u128::from(free - pages_from(blocks, order));
    Score((small * 1000).checked_div(free.into()).map_or(1000, |share| share as i64))
}

/// The external fragmentation index of an order.
pub fn external(blocks: &[u64], order: Order) -> Score {
    let count = sum(blocks.iter().copied());
    if count == 0 {
        return Score(0);
    }
    if blocks.iter().skip(order.index()).any(|count| *count > 0) {
        return Score(-1000);
    }
    let wanted = (u128::from(free_pages(blocks)) * 1000) >> order.0.min(127);
    let share = (1000 + wanted) / u128::from(count);
    Score(1000_i64.saturating_sub(i64::try_from(share).unwrap_or(i64::MAX)))
}

/// The free blocks of several zones taken together.
pub fn together<'a>(zones: impl IntoIterator<Item = &'a [u64]>) -> Vec<u64> {
    let mut sum = Vec::new();
    for blocks in zones {
        if sum.len() < blocks.len() {
            sum.resize(blocks.len(), 0);
        }
        sum.iter_mut().zip(blocks).for_each(|(sum, blocks)| add(sum, *blocks));
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The free blocks of the study's DMA zone: one of the two that have 3974 pages, at most three
    /// blocks of each order, and its printed row.
    const DMA: [u64; 11] = [0, 3, 2, 1, 1, 1, 1, 0, 1, 1, 3];

    fn printed(blocks: &[u64]) -> Vec<String> {
        Order::first(blocks.len()).map(|order| unusable(blocks, order).to_string()).collect()
    }

    #[test]
    fn the_dma_row_of_the_study_is_reproduced_digit_by_digit() {
        let row = [
            "0.000", "0.000", "0.001", "0.003", "0.005", "0.009", "0.017", "0.033", "0.033",
            "0.098", "0.226",
        ];
        assert_eq!(free_pages(&DMA), 3974, "15.5 MiB");
        assert_eq!(printed(&DMA), row);
        assert_eq!(printed(&[2, 2, 2, 1, 1, 1, 1, 0, 1, 1, 3]), row);
        // It is the unusable index, not the external one, which says that nothing would fail.
        assert!(Order::first(11).all(|order| external(&DMA, order).to_string() == "-1.000"));
    }

    #[test]
    fn without_free_memory_the_two_scores_are_what_the_kernel_says() {
        assert_eq!(unusable(&[0; 11], Order(9)).to_string(), "1.000");
        assert_eq!(external(&[0; 11], Order(9)).to_string(), "0.000");
        assert_eq!((free_pages(&[]), largest(&[0; 11])), (0, None));
    }

    #[test]
    fn a_negative_share_is_printed_with_the_sign_where_the_kernel_puts_it() {
        // One block of 256 pages cannot serve 512: 1000 - (1000 + 500) / 1.
        assert_eq!(external(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], Order(9)).to_string(), "0.-500");
        assert_eq!(Score(-7).to_string(), "0.-07");
        assert_eq!(format!("{:>7}", Score(98)), "  0.098");
    }

    #[test]
    fn zones_add_up() {
        let both = together([&DMA[..], &[1, 0, 5]]);
        assert_eq!(both[..3], [1, 3, 7]);
        assert_eq!(free_pages(&both), 3974 + 21);
        assert_eq!(largest(&both), Some(Order(10)));
    }

    fn blocks() -> impl Strategy<Value = Vec<u64>> {
        let count = prop_oneof![Just(0), 0..5_u64, 0..1_000_000_u64];
        prop::collection::vec(count, 11)
    }

    proptest! {
        #[test]
        fn the_unusable_index_is_a_share_that_does_not_fall_with_the_order(blocks in blocks()) {
            let row: Vec<i64> = Order::first(11).map(|order| unusable(&blocks, order).0).collect();
            prop_assert!(row.iter().all(|score| (0..=1000).contains(score)), "{row:?}");
            prop_assert!(row.windows(2).all(|pair| pair[0] <= pair[1]), "{row:?}");
            prop_assert_eq!(row[0] == 0, free_pages(&blocks) > 0);
            // Truncation, not rounding: never above the exact share, less than a thousandth below it.
            for (order, &score) in Order::first(11).zip(&row) {
                let free = free_pages(&blocks) as f64;
                if free > 0.0 {
                    let exact = 1000.0 * (free - pages_from(&blocks, order) as f64) / free;
                    prop_assert!(score as f64 <= exact + 1e-6 && exact < score as f64 + 1.0 + 1e-6);
                }
            }
        }

        #[test]
        fn joining_buddies_raises_it_nowhere(blocks in blocks(), order in 0..10_usize) {
            prop_assume!(blocks[order] >= 2);
            let mut joined = blocks.clone();
            joined[order] -= 2;
            joined[order + 1] += 1;
            prop_assert_eq!(free_pages(&joined), free_pages(&blocks));
            for order in Order::first(11) {
                prop_assert!(unusable(&joined, order) <= unusable(&blocks, order));
            }
        }

        #[test]
        fn the_external_index_says_whether_a_request_would_fail(blocks in blocks(), order in 0..11_u8) {
            let order = Order(order);
            let fails = pages_from(&blocks, order) == 0 && free_pages(&blocks) > 0;
            let score = external(&blocks, order);
            prop_assert_eq!(score == Score(-1000), pages_from(&blocks, order) > 0);
            if fails {
                prop_assert!(score <= Score(1000));
            }
        }
    }
}
