//! Who is hot: from hint faults ([`tpp`]), accessed bits of regions ([`damon`]), sampled counters ([`hemem`]) or a
//! histogram of sampled counters ([`memtis`]), which also says which huge pages to split ([`split`]).

use super::Page;

pub mod damon;
pub mod hemem;
pub mod memtis;
pub mod split;
pub mod tpp;

/// A tracker that counts sampled loads. A page's *heat* is its count.
pub trait Counter: std::fmt::Debug {
    /// Counts one sampled load. Pages that are not tracked are ignored.
    fn sample(&mut self, page: Page);

    /// A page's count.
    fn heat(&self, page: Page) -> u32;

    /// Tracks pages `0..pages` at least.
    fn grow(&mut self, pages: usize);

    /// Forgets what was seen of a page.
    fn forget(&mut self, page: Page);

    /// The least count that deserves a default tier of `capacity` pages.
    fn hot(&self, capacity: usize) -> u32;

    /// Sets a page's count, after a huge page was split. A tracker that splits none leaves it.
    fn set(&mut self, _page: Page, _count: u32) {}
}
