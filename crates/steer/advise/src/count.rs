//! What is counted in a run beside its time and its memory.

pagemill_model::named! {
    /// What the kernel and the processor count in a run, by the names that JSON has; the latter where it does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Count {
        /// CPU time in user mode, seconds.
        UserTime = "user_seconds",
        /// CPU time in the kernel, seconds.
        SystemTime = "system_seconds",
        /// Page faults.
        Faults = "page_faults",
        /// The most anonymous memory, MiB.
        AnonymousMemory = "anonymous_mib",
        /// The share of it that was on huge pages.
        HugeShare = "huge_share",
        /// Cycles.
        Cycles = "cycles",
        /// Instructions.
        Instructions = "instructions",
        /// Loads whose translation the first TLB did not have.
        DtlbLoadMisses = "dtlb_load_misses",
        /// The same of stores.
        DtlbStoreMisses = "dtlb_store_misses",
        /// The same of instructions.
        ItlbMisses = "itlb_misses",
        /// Misses of the last cache.
        CacheMisses = "cache_misses",
    }
}
