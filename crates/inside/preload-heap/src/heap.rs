//! The one heap.

use pagemill_heap::Heap;

use crate::os::Linux;

/// What the heap's system tells; `hooks.rs` says what comes of it. It knows the heap and all that is over it, so only
/// its name stands here.
#[derive(Debug)]
pub(crate) enum HeapHooks {}

/// The heap's operating system.
pub(crate) type System = Linux<HeapHooks>;

/// The one heap.
pub(crate) static HEAP: Heap<System> = Heap::new(System::new());
