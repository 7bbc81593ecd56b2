//! How long tasks of the machine wait for memory.

use std::time::{Duration, Instant};

use pagemill_kernel::Linux;
use pagemill_kernel::process::psi::Resource;

/// What was waited by the last look.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryPressure(Option<(Instant, Duration)>);

impl MemoryPressure {
    /// Part of the time since the last look in which a task waited for memory; none the first time, and without PSI.
    pub fn since(&mut self, linux: &Linux) -> Option<f64> {
        let total = linux.pressure(Resource::Memory).ok()?.some.total;
        let now = Instant::now();
        let (before, waited) = self.0.replace((now, total))?;
        let span = now.duration_since(before).as_secs_f64();
        (span > 0.0).then(|| (total.saturating_sub(waited).as_secs_f64() / span).clamp(0.0, 1.0))
    }
}
