//! The statistics page.

use pagemill_heap::stats::StatsPage;

/// The statistics page, found by its name from outside; see [`StatsPage`].
#[unsafe(no_mangle)]
pub static pagemill_stats: StatsPage = StatsPage::zeroed();
