//! One file a verb. A verb parses nothing and prints its own result; what it computes lives below.

pub mod advise;
pub mod collect;
pub mod compare;
pub mod doctor;
pub mod export;
pub mod frag;
pub mod generate;
pub mod heap;
pub mod hugepages;
pub mod live;
pub mod plan;
pub mod record;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod simulate;
pub mod tier;
#[cfg(target_arch = "x86_64")]
pub mod validate;
pub mod workload;
