//! Who is hot: from hint faults ([`tpp`]), sampled counters ([`hemem`]) or a histogram of sampled
//! counters ([`memtis`]), which also says which huge pages to split ([`split`]).

pub mod hemem;
pub mod memtis;
pub mod split;
pub mod tpp;
