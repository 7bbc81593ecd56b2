//! Namespaces that only a process of one thread may enter: the helper ends before the call and starts again after it.
//!
//! The kernel refuses `unshare` of a user namespace, of the address space and of signal handlers, and `setns` into a
//! user or time namespace, to a process of several threads. A program that has one thread of its own must not learn
//! that the heap has another. So the two functions are wrapped; a raw system call cannot be seen and is refused.
//!
//! What was merged stays merged without the helper. A new one starts when the heap next grows and takes the
//! engine over as a forked child does.

pagemill_preload_sys::interposed::namespace_calls!(crate::helper::state::without);
