//! How an address is cut.

use crate::dram::Shape;

/// A number to divide by, without a division where it is a power of two, as most of a channel's are.
#[derive(Clone, Copy)]
pub(super) struct Divisor {
    pub(super) by: u64,
    shift: Option<u32>,
}

impl Divisor {
    fn new(by: u64) -> Self {
        let by = by.max(1);
        Self { by, shift: by.is_power_of_two().then(|| by.trailing_zeros()) }
    }

    /// Quotient and remainder.
    pub(super) fn of(self, number: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (number >> shift, number & (self.by - 1)),
            None => (number / self.by, number % self.by),
        }
    }
}

/// What an address is cut by: channels of each tier, pairs of bank groups, lines of a row, banks beside the pair's,
/// banks of a group.
pub(super) struct Split {
    pub(super) channels: [Divisor; 2],
    pub(super) pair: Divisor,
    pub(super) row: Divisor,
    pub(super) others: Divisor,
    pub(super) banks: Divisor,
}

impl Split {
    pub(super) fn new(channels: [usize; 2], shape: &Shape) -> Self {
        // What cannot be paired off is not.
        let pairs = shape.groups > 1 && (shape.ranks * shape.groups).is_multiple_of(2);
        let pair = if pairs { 2 } else { 1 };
        Self {
            channels: channels.map(|count| Divisor::new(count as u64)),
            pair: Divisor::new(pair),
            row: Divisor::new(shape.row_lines),
            others: Divisor::new(shape.all() as u64 / pair),
            banks: Divisor::new(shape.banks as u64),
        }
    }
}
