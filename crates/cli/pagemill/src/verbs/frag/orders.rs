//! Orders and scores, as they are typed.

use anyhow::Result;
use pagemill_model::Order;

/// Reads an order of a block: 0 to 20; whether this kernel has it is asked later.
pub(super) fn order(text: &str) -> Result<Order, String> {
    let order = text.parse::<Order>().ok().filter(|order| order.0 <= 20);
    order.ok_or_else(|| "expected an order, such as 9 for 2 MiB".to_owned())
}

/// Reads a score.
pub(super) fn score(text: &str) -> Result<f64, String> {
    let score = text.parse::<f64>().ok().filter(|score| (0.0..=1.0).contains(score));
    score.ok_or_else(|| "expected a score from 0 (whole) to 1 (no block of that order)".to_owned())
}

/// Refuses an order that this kernel does not have.
pub(super) fn check_order(order: Order, orders: usize) -> Result<()> {
    anyhow::ensure!(
        order.index() < orders,
        "this kernel has blocks of order 0 to {} (asked for: {order})",
        orders.saturating_sub(1)
    );
    Ok(())
}
