//! The system's huge pages and this program: which of its own doing the kernel is left.
//!
//! | policy | the kernel gives huge pages | by |
//! |---|---|---|
//! | `linux-always` | at every first touch | the setting `always` |
//! | `linux-madvise` | where the program asks | `prctl(PR_SET_THP_DISABLE, EXCEPT_ADVISED)`, kernel 6.18 |
//! | `linux-64k` | where the program asks; elsewhere 64 KiB at every first touch | the setting `always` of that size |
//! | `linux-never` | nowhere | `prctl(PR_SET_THP_DISABLE)` |
//! | the others | where the program or the library asks | as `linux-madvise` |
//! | `auto` | as without this | nothing |
//! | the same, where programs begin with 64 KiB | those at every first touch | the setting `always` of that size |
//! | the same, where they begin with 2 MiB | those at every first touch | the setting `always` |
//! | `cbmm+`, `auto` besides | 64 KiB where asked for and no larger page fits | the setting `madvise` of that size |
//!
//! A setting that the system has otherwise is borrowed, by root (`madvise`, where it is `never`).
//!
//! The `prctl` is one of the program and its descendants and changes nothing for others. Where the kernel does not
//! have the flag, the system's setting `madvise` does as well; with `always` in force the kernel then takes part.

use anyhow::{Context, Result};
use pagemill_kernel::settings::loan::{self, Files, Loan};
use pagemill_kernel::settings::thp::{self, Disabled};
use pagemill_kernel::{Kind, Linux};
use pagemill_policy::huge::{Policy, ThpMode};

/// What is in force for as long as this lives.
#[derive(Debug)]
pub struct Isolation {
    loan: Option<Loan<Files>>,
    medium: Option<Loan<Files>>,
}

/// Borrows pages of 64 KiB for a policy that provides them, where it may and has to. What another has borrowed would be
/// gone when that one ends.
pub fn medium(linux: &Linux, policy: &dyn Policy) -> Option<Loan<Files>> {
    let directory = loan::directory(linux);
    let off = linux.thp_medium()?.active == "never";
    let lent = || loan::is_lent(&directory, thp::MEDIUM_LOAN);
    if !policy.mechanism().weighs_time || !(off || policy.tries().is_some() || lent()) {
        return None;
    }
    let loan = Loan::files(linux, &directory, thp::MEDIUM_LOAN, &[thp::MEDIUM]);
    // Without the right to it base pages do as well.
    let loan = loan.ok()?;
    if off {
        loan.set(thp::MEDIUM, "madvise").ok()?;
    }
    Some(loan)
}

/// Borrows pages of 64 KiB at every first touch, where the system does not give them by itself.
fn medium_everywhere(linux: &Linux) -> Result<Option<Loan<Files>>> {
    let setting = linux.thp_medium().context(
        "the policy linux-64k needs pages of 64 KiB, which this kernel does not have (6.8 does)",
    )?;
    let directory = loan::directory(linux);
    if setting.active == "always" && !loan::is_lent(&directory, thp::MEDIUM_LOAN) {
        return Ok(None);
    }
    let loan = Loan::files(linux, &directory, thp::MEDIUM_LOAN, &[thp::MEDIUM])
        .and_then(|loan| loan.set(thp::MEDIUM, "always").map(|()| loan))
        .map_err(|error| match error.kind() {
            Kind::Permission => error.advise("run as root, or have it set: echo always | sudo tee \
                                              /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"),
            _ => error,
        })
        .context("the policy linux-64k needs the system's setting of that size, which is not \"always\"")?;
    Ok(Some(loan))
}

impl Isolation {
    /// For a policy, with what [`medium`] borrowed for it. What is started from now on runs under it.
    ///
    /// # Errors
    /// The setting cannot be read or borrowed.
    pub fn of(linux: &Linux, policy: &dyn Policy, medium: Option<Loan<Files>>) -> Result<Self> {
        let mode = linux.thp_enabled().map(|choice| choice.active);
        match policy.mechanism().thp {
            ThpMode::Always => return Self::always(linux, &mode?),
            ThpMode::Medium => {
                thp::disable_here(Disabled::No)?;
                return Ok(Self { loan: None, medium: medium_everywhere(linux)? });
            }
            ThpMode::Never => {
                thp::disable_here(Disabled::Altogether)?;
                return Ok(Self { loan: None, medium });
            }
            ThpMode::Inherit => return Ok(Self { loan: None, medium }),
            ThpMode::Madvise => {}
        }
        match (thp::disable_here(Disabled::ExceptAdvised), mode.as_deref()) {
            (Ok(()), _) | (Err(_), Ok("madvise" | "never")) => {}
            (Err(error), _) => {
                notice!("the system's huge pages stay in force beside the policy: {error}");
            }
        }
        Ok(Self { loan: None, medium })
    }

    fn always(linux: &Linux, mode: &str) -> Result<Self> {
        thp::disable_here(Disabled::No)?;
        let directory = loan::directory(linux);
        // Who has it on loan puts it back at its end, unless we are a borrower, too.
        let lent = loan::is_lent(&directory, thp::LOAN);
        if mode == "always" && !lent {
            return Ok(Self { loan: None, medium: None });
        }
        let loan = Loan::files(linux, &directory, thp::LOAN, &[thp::ENABLED])
            .and_then(|loan| loan.set(thp::ENABLED, "always").map(|()| loan));
        let loan = match loan {
            Err(error) if mode == "always" && error.kind() == Kind::Permission => {
                notice!("huge pages everywhere are another run's loan, and end with it");
                return Ok(Self { loan: None, medium: None });
            }
            Err(error) if error.kind() == Kind::Permission => Err(error.advise(
                "run as root, or have it set: echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            )),
            loan => loan,
        };
        let loan = loan.context(
            "the policy linux-always needs the system's setting, which is not \"always\"",
        )?;
        Ok(Self { loan: Some(loan), medium: None })
    }

    /// Has pages of 64 KiB come at every first touch, where they were borrowed; whether they do.
    pub fn widen(&self, linux: &Linux) -> bool {
        let set = self.medium.as_ref().map(|loan| loan.set(thp::MEDIUM, "always"));
        match set {
            Some(set) => set.is_ok(),
            None => linux.thp_medium().is_some_and(|choice| choice.active == "always"),
        }
    }

    /// Borrows huge pages at every first touch, with pages of 64 KiB where none is free; whether they come.
    pub fn widen_to_huge(&mut self, linux: &Linux) -> bool {
        if self.loan.is_none() {
            let loan = Loan::files(linux, &loan::directory(linux), thp::LOAN, &[thp::ENABLED]);
            // Without the right to it the program begins with what else there is.
            self.loan = loan.ok();
        }
        self.loan.as_ref().is_some_and(|loan| loan.set(thp::ENABLED, "always").is_ok())
    }

    /// Ends it, and says whether that worked.
    ///
    /// # Errors
    /// A setting could not be put back.
    pub fn end(self) -> Result<()> {
        for loan in [self.loan, self.medium].into_iter().flatten() {
            loan.give_back()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_policy::huge::auto::Auto;
    use pagemill_policy::huge::cbmm::Cbmm;
    use pagemill_policy::huge::cbmm_plus::CbmmPlus;

    #[test]
    fn pages_of_64_kib_at_every_touch_are_borrowed_and_given_back() {
        let root = tempfile::tempdir().unwrap();
        let linux = Linux::at(root.path());
        let error = medium_everywhere(&linux).unwrap_err();
        assert!(format!("{error:#}").contains("this kernel does not have"), "{error:#}");
        let file = root.path().join(thp::MEDIUM.trim_start_matches('/'));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "[always] inherit madvise never").unwrap();
        assert!(medium_everywhere(&linux).unwrap().is_none(), "the system gives them");
        std::fs::write(&file, "always [inherit] madvise never").unwrap();
        let loan = medium_everywhere(&linux).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "always");
        drop(loan);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "inherit");
    }

    #[test]
    fn a_policy_that_begins_with_64_kib_has_the_system_give_them_and_gives_that_back() {
        for before in ["never", "madvise", "inherit", "always"] {
            let root = tempfile::tempdir().unwrap();
            let linux = Linux::at(root.path());
            let file = root.path().join(thp::MEDIUM.trim_start_matches('/'));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let line = "always inherit madvise never".replace(before, &format!("[{before}]"));
            std::fs::write(&file, &line).unwrap();
            let now = || std::fs::read_to_string(&file).unwrap();
            let medium = medium(&linux, &Auto::THROUGHPUT);
            assert_eq!(now(), if before == "never" { "madvise" } else { &line }, "{before}");
            let isolation = Isolation { loan: None, medium };
            assert!(isolation.widen(&linux), "{before}");
            assert_eq!(now(), "always", "{before}");
            isolation.end().unwrap();
            assert_eq!(now(), before);
        }
        let nothing = tempfile::tempdir().unwrap();
        let isolation = Isolation { loan: None, medium: None };
        assert!(!isolation.widen(&Linux::at(nothing.path())), "this kernel has none");
    }

    #[test]
    fn pages_of_64_kib_are_borrowed_where_they_are_off_and_given_back() {
        const SHOWN: &str = "always inherit [madvise] never";
        for (before, borrowed) in [("never", true), ("madvise", false), ("inherit", false)] {
            let root = tempfile::tempdir().unwrap();
            let linux = Linux::at(root.path());
            assert!(medium(&linux, &CbmmPlus::USUAL).is_none(), "this kernel has none");
            let file = root.path().join(thp::MEDIUM.trim_start_matches('/'));
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let line = "always inherit madvise never".replace(before, &format!("[{before}]"));
            std::fs::write(&file, &line).unwrap();
            assert!(medium(&linux, &Cbmm).is_none(), "another policy provides none");
            let loan = medium(&linux, &CbmmPlus::USUAL);
            assert_eq!(loan.is_some(), borrowed, "{before}");
            let now = || std::fs::read_to_string(&file).unwrap();
            assert_eq!(now(), if borrowed { "madvise" } else { &line });
            if borrowed {
                // As the kernel shows it.
                std::fs::write(&file, SHOWN).unwrap();
            }
            let second = medium(&linux, &CbmmPlus::USUAL);
            assert_eq!(second.is_some(), borrowed, "{before}");
            drop(loan);
            assert_eq!(now(), if borrowed { SHOWN } else { &line }, "the second still runs");
            drop(second);
            let after = std::fs::read_to_string(&file).unwrap();
            assert_eq!(after, if borrowed { "never" } else { &line });
        }
    }
}
