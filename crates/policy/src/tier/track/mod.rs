//! Who is hot: from hint faults ([`tpp`]), sampled counters ([`hemem`]) or a histogram of sampled
//! counters ([`memtis`]).

pub mod hemem;
pub mod memtis;
pub mod tpp;
