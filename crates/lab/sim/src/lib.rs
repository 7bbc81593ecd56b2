//! A small deterministic machine with two memory tiers. Everything it says is *modelled*.
//!
//! | module | holds |
//! |---|---|
//! | [`machine`] | the machine file: every parameter with its source |
//! | [`dram`] | one memory channel with DRAM timing, request by request |
//! | [`closed`] | cores in a closed loop over both tiers, request by request |
//! | [`stream`] | a core that reads consecutive lines, and its prefetcher |
//! | [`wheel`] | events in time order |
//! | [`surface`] | what `closed` says, tabulated over the share of the default tier |
//! | [`buddy`] | the page allocator of a zone: free blocks by order, mobility, compaction |
//! | [`cache`] | which page table reads miss the last level cache |
//! | [`workload`] | programs as classes of pages with a rate, and as a stream of requests |
//! | [`recorded`] | a recorded program as a workload |
//! | [`pages`] | every page of a run, where it is, and the kernel that moves it |
//! | [`split_pages`] | huge pages that have been split into base pages |
//! | [`frames`] | the frames that hold them, and their accessed bits, for a kernel that looks at those |
//! | [`tlb`], [`huge`] | a TLB; huge page policies on it and on the buddy allocator |
//! | [`run`] | a run: quanta of the page level under a policy |
//! | [`sweep`] | throughput by the size of the fast tier |
//!
//! No kernel, no clock, no floating point whose order depends on anything but the seed; threads only side by side, for
//! work whose pieces share nothing.
#![forbid(unsafe_code)]

pub mod buddy;
pub mod cache;
pub mod closed;
pub mod dram;
pub mod frames;
pub mod huge;
pub mod machine;
pub mod pages;
pub mod recorded;
pub mod run;
pub mod split_pages;
pub mod stream;
pub mod surface;
pub mod sweep;
pub mod tlb;
pub mod wheel;
pub mod workload;
