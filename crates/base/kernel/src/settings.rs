//! Settings of the system and of control groups, and their loan.

pub mod cgroup;
pub mod damon;
pub mod ksm_loan;
pub mod load;
pub mod loan;
pub(crate) mod mount;
pub mod thp;
