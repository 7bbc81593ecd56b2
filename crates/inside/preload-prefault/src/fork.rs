//! Fork: the child has no helper and no pool (which it does not inherit); it gets its own when it first maps much
//! memory.
//!
//! `vfork` and `posix_spawn` share the parent's memory until they exec; nothing needs doing. A child of a raw `clone`
//! is not told of: it never gets a helper, and runs as without the library.

use pagemill_preload_sys::libc;

use crate::helper;

/// Registers the handler.
pub(crate) fn register() {
    libc::at_fork(nothing, nothing, in_child);
}

unsafe extern "C" fn nothing() {}

unsafe extern "C" fn in_child() {
    helper::forget();
}
