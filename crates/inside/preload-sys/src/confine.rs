//! The helper thread's confinement: no user, no group, no capability, no new privilege.
//!
//! A program that later gives up root (`setuid`) changes the threads that its C library knows. The helper is none of
//! them, and must not be left with rights that the program has given up: whoever takes over the program's memory takes
//! over the helper too. So a helper that starts as root becomes nobody, on its own thread:
//!
//! ```text
//!  bounding and ambient sets empty ─► no groups ─► ids ─► capability sets empty ─► no_new_privs ─► dumpable as before
//! ```
//!
//! - The ids are ones that no process runs as, and the effective one differs from the real and saved ones. The kernel
//!   lets a process trace a thread whose three ids are its own, and signal one whose real or saved id is: with `nobody`
//!   for all three, any process of that user could read and stop this program by way of its helper.
//! - A change of ids clears the address space's *dumpable* flag, by which the program's own user may read
//!   `/proc/<pid>`. It is set again if it was set before. A program that clears it on another thread within these
//!   few microseconds finds it set.
//! - There is no seccomp filter: the kernel refuses a filter for all threads (`SECCOMP_FILTER_FLAG_TSYNC`) while one
//!   thread has a filter of its own.
//!
//! What needs rights (userfaultfd, `pagemap`, the control group's files) is opened before. What is opened later under
//! `/proc/self` is open to every thread of the process, or to everybody.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::sys;

/// Real and saved id, and the effective one. Both pairs are in ranges that nothing assigns; the second is for user
/// namespaces, which commonly map 65536 ids.
const NOBODY: [(u32, u32); 2] = [(2_147_483_600, 2_147_483_601), (65_535, 65_533)];

/// Confines the calling thread. Each step is best effort: a kernel that refuses one leaves the thread as it is.
pub fn confine() {
    const PR_GET_DUMPABLE: usize = 3;
    const PR_SET_DUMPABLE: usize = 4;
    const PR_CAPBSET_DROP: usize = 24;
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    const PR_CAP_AMBIENT: usize = 47;
    const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
    const CAPABILITIES: usize = 64;

    let flag = |option, value| {
        // SAFETY: each of these options takes numbers only.
        unsafe { sys::prctl(option, value, 0, 0, 0) }
    };
    let root = sys::user_ids().contains(&0);
    if root {
        let dumpable = flag(PR_GET_DUMPABLE, 0);
        // A root that works under another effective id for a while has its capabilities asleep.
        sys::wake_capabilities();
        for capability in 0..CAPABILITIES {
            flag(PR_CAPBSET_DROP, capability);
        }
        sys::leave_groups();
        for (rest, effective) in NOBODY {
            if !sys::failed(sys::set_group_ids(rest, effective)) {
                break;
            }
        }
        for (rest, effective) in NOBODY {
            if !sys::failed(sys::set_user_ids(rest, effective)) {
                break;
            }
        }
        if dumpable == 1 {
            flag(PR_SET_DUMPABLE, 1);
        }
    }
    flag(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL);
    sys::drop_capabilities();
    flag(PR_SET_NO_NEW_PRIVS, 1);
}

/// An open `/proc/thread-self/status` of the helper, or -1.
static STATUS: AtomicI32 = AtomicI32::new(-1);

/// What [`filters`] said at the helper's start.
static FILTERS: AtomicU64 = AtomicU64::new(0);

/// Remembers the seccomp filters of the calling thread, the helper. They come from the program: it inherits those of
/// the thread that starts it, and gets one more when the program sets one for all its threads.
pub fn note_filters() {
    let fd = sys::open(c"/proc/thread-self/status", sys::O_RDONLY);
    STATUS.store(if sys::failed(fd) { -1 } else { fd as i32 }, Ordering::Relaxed);
    FILTERS.store(filters().unwrap_or(0), Ordering::Relaxed);
}

/// Whether the helper started under a filter, which may end the process for a call that few services make: those that
/// change a thread's priority.
pub fn filtered() -> bool {
    FILTERS.load(Ordering::Relaxed) != 0
}

/// Whether the helper has other filters now than at its start.
pub fn filters_changed() -> bool {
    filters().is_some_and(|now| now != FILTERS.load(Ordering::Relaxed))
}

/// What [`filters_in`] says of the helper.
///
/// It is read by a descriptor that was opened before: of all ways to ask, `pread` is the one that filters allow. A
/// filter may end the process for a call that it does not list.
fn filters() -> Option<u64> {
    filters_in(STATUS.load(Ordering::Relaxed))
}

/// The seccomp mode in an open `status` of `/proc`, and in the upper half the number of filters (a kernel before 5.9
/// does not say: 0).
pub fn filters_in(status: i32) -> Option<u64> {
    let mut buffer = [0; 2048];
    let text = sys::text_of(status, &mut buffer);
    let number = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse::<u32>().ok()
    };
    let count = number("Seccomp_filters:").unwrap_or(0);
    Some(u64::from(number("Seccomp:")?) | u64::from(count) << 32)
}
