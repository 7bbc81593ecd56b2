//! The system's huge pages and this program: which of its own doing the kernel is left.
//!
//! | policy | the kernel gives huge pages | by |
//! |---|---|---|
//! | `linux-always` | at every first touch | the setting `always`; borrowed (root) where the system has another |
//! | `linux-madvise` | where the program asks | `prctl(PR_SET_THP_DISABLE, EXCEPT_ADVISED)`, kernel 6.18 |
//! | `linux-never` | nowhere | `prctl(PR_SET_THP_DISABLE)` |
//! | the others | where the program or the agent asks | as `linux-madvise` |
//!
//! The `prctl` is one of the program and its descendants and changes nothing for others. Where the kernel does not
//! have the flag, the system's setting `madvise` does as well; with `always` in force the kernel then takes part.

use anyhow::{Context, Result};
use pagemill_kernel::loan::{self, Files, Loan};
use pagemill_kernel::thp::{self, Disabled};
use pagemill_kernel::{Kind, Linux};

/// What is in force for as long as this lives.
#[derive(Debug)]
pub struct Isolation {
    loan: Option<Loan<Files>>,
}

impl Isolation {
    /// For a policy of this name. What is started from now on runs under it.
    pub fn of(linux: &Linux, policy: &str) -> Result<Self> {
        let mode = linux.thp_enabled().map(|choice| choice.active);
        if policy == "linux-always" {
            return Self::always(linux, &mode?);
        }
        if policy == "linux-never" {
            thp::disable_here(Disabled::Altogether)?;
            return Ok(Self { loan: None });
        }
        match (thp::disable_here(Disabled::ExceptAdvised), mode.as_deref()) {
            (Ok(()), _) | (Err(_), Ok("madvise" | "never")) => {}
            (Err(error), _) => {
                eprintln!(
                    "pagemill: the system's huge pages stay in force beside the policy: {error}"
                );
            }
        }
        Ok(Self { loan: None })
    }

    fn always(linux: &Linux, mode: &str) -> Result<Self> {
        thp::disable_here(Disabled::No)?;
        if mode == "always" {
            return Ok(Self { loan: None });
        }
        let loan = Loan::files(linux, &loan::directory(linux), thp::LOAN, &[thp::ENABLED])
            .and_then(|loan| loan.set(thp::ENABLED, "always").map(|()| loan))
            .map_err(|error| match error.kind() {
                Kind::Permission => error.advise("run as root, or have it set: echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
                _ => error,
            })
            .context("the policy linux-always needs the system's setting, which is not \"always\"")?;
        Ok(Self { loan: Some(loan) })
    }

    /// Ends it, and says whether that worked.
    pub fn end(self) -> Result<()> {
        match self.loan {
            Some(loan) => Ok(loan.give_back()?),
            None => Ok(()),
        }
    }
}
