//! Free memory of the machine, as it is recorded: one row a zone and look.

use crate::dataset::row;
use crate::units::{Bytes, Nanos};

row! {
    /// One look at the free memory of a zone. It is the machine's, not the process's.
    pub struct FragSample in "frag" {
        /// Moment of the look, ns of the recording's clock. All zones of a look have the same.
        time: Nanos = "time_ns",
        /// The memory node.
        node: Option<u64> = "node",
        /// The zone's name, such as `Normal`.
        zone: Option<String> = "zone",
        /// Entry k: free blocks of 2^k pages (`/proc/buddyinfo`).
        free_blocks: Option<Vec<u64>> = "free_blocks",
        /// Free bytes on the lists of the processors, which are in no block.
        hidden: Option<Bytes> = "hidden_bytes",
        /// Bytes in the care of the page allocator.
        managed: Option<Bytes> = "managed_bytes",
    }
}
