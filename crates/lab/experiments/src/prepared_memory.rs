//! Free memory that the cells of an experiment bring into a state: fragmented, or compacted.
//!
//! Always true: settings that it changes are on loan, and [`PreparedMemory::give_back`] gives memory and settings back.

use std::time::Duration;

use anyhow::Result;
use pagemill_control::fragmentation::compact::{self, Caches, Step};
use pagemill_control::fragmentation::induce::{Fragmenter, Goal};
use pagemill_control::fragmentation::journals;
use pagemill_kernel::settings::loan::{Files, Loan};
use pagemill_kernel::{Linux, settings::thp};
use pagemill_model::Order;

/// The order of a huge page on x86-64, of which memory is to have many or none free.
pub(crate) const ORDER: Order = Order(9);

/// What keeps it as it is.
pub(crate) struct PreparedMemory {
    // Given back in this order: the fragmenter has borrowed some of the settings from this loan.
    pub(crate) fragmenter: Option<Fragmenter>,
    pub(crate) loan: Loan<Files>,
}

impl PreparedMemory {
    /// As it is, with settings of huge pages on loan.
    ///
    /// # Errors
    /// They are not to be had.
    pub(crate) fn borrow(linux: &Linux, settings: &[&str]) -> Result<Self> {
        let loan = Loan::files(linux, &journals(linux), thp::LOAN, settings)?;
        Ok(Self { fragmenter: None, loan })
    }

    /// A fragmenter that breaks up all free huge pages, once it runs; the one before gives its memory back first.
    ///
    /// # Errors
    /// It cannot have what it needs.
    pub(crate) fn fragmenter(
        &mut self,
        linux: &Linux,
        patience: Duration,
    ) -> Result<&mut Fragmenter> {
        self.fragmenter = None;
        let goal = Goal { order: ORDER, target: 1.0, pinned: false, patience };
        Ok(self.fragmenter.insert(Fragmenter::new(linux, goal)?))
    }

    /// Memory without a fragmenter, compacted as far as it goes.
    ///
    /// # Errors
    /// The kernel does not compact.
    pub(crate) fn compact(&mut self, linux: &Linux) -> Result<Vec<Step>> {
        self.fragmenter = None;
        compacted(linux, 0.05, true)
    }

    /// Compacted as the kernel does it by itself, whoever holds what.
    ///
    /// # Errors
    /// The kernel does not compact.
    pub(crate) fn compact_once(&self, linux: &Linux) -> Result<Vec<Step>> {
        compacted(linux, 0.0, false)
    }

    /// Gives all back.
    ///
    /// # Errors
    /// A setting could not be put back; the next start then does it.
    pub(crate) fn give_back(self) -> Result<()> {
        drop(self.fragmenter);
        Ok(self.loan.give_back()?)
    }
}

fn compacted(linux: &Linux, target: f64, sweep: bool) -> Result<Vec<Step>> {
    let goal = compact::Goal { order: ORDER, target, sweep, caches: Caches::Kept };
    compact::run(linux, goal, |_| {})
}
