//! What can be done with a region, and when.

use pagemill_model::named;

named! {
    /// Why a decision is due.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Moment {
        /// The program touches the region for the first time and waits.
        #[default]
        Fault = "fault",
        /// The region is mapped and not touched yet; a helper has time.
        Ahead = "ahead",
        /// A scan in the background looks at a region that is in use.
        Scan = "scan",
        /// Nothing in particular: what may be done for later?
        Idle = "idle",
    }
}

impl Moment {
    /// What can be done at this moment besides nothing, cheapest means first; of equal gains the first wins.
    #[must_use]
    pub const fn actions(self) -> &'static [Action] {
        match self {
            Self::Fault => &[Action::Pool, Action::Huge],
            Self::Ahead => &[
                Action::Fault64k,
                Action::Fault2m,
                Action::Ahead4k,
                Action::Ahead64k,
                Action::Ahead2m,
            ],
            Self::Scan => &[Action::Collapse, Action::Demote],
            Self::Idle => &[Action::Prezero, Action::Defragment],
        }
    }
}

named! {
    /// What can be done with a region.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Action {
        /// Nothing: the program's faults bring base pages.
        #[default]
        Base = "base",
        /// The fault takes a huge page and zeroes it while the program waits.
        Huge = "huge",
        /// A huge page of the pool is put in place.
        Pool = "pool",
        /// A helper touches the base pages before the program does.
        Ahead4k = "ahead-4k",
        /// The same with pages of 64 KiB.
        Ahead64k = "ahead-64k",
        /// A helper has the region backed by a huge page before the program touches it.
        Ahead2m = "ahead-2m",
        /// The kernel is asked to bring 64 KiB at each of the program's faults there.
        Fault64k = "fault-64k",
        /// The kernel is asked to bring huge pages at the program's faults there.
        Fault2m = "fault-2m",
        /// A helper copies the base pages in use into a huge page.
        Collapse = "collapse",
        /// The huge page is split and pages that hold only zeros are given back.
        Demote = "demote",
        /// Huge pages are zeroed for the pool.
        Prezero = "prezero",
        /// Memory is compacted so that huge pages become free.
        Defragment = "defragment",
    }
}

impl Action {
    /// Whether the region is on a huge page after it.
    #[must_use]
    pub const fn makes_huge(self) -> bool {
        matches!(self, Self::Huge | Self::Pool | Self::Ahead2m | Self::Fault2m | Self::Collapse)
    }
}
