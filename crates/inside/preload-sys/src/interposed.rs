//! What several libraries put in the place of the C library's functions: `unshare`, `setns` and `prctl`.

/// `unshare(2)` and `setns(2)`, of which the kernel refuses a part to a process of several threads: those are made by
/// `$without`, which ends the library's own thread before. With `find_real`, which looks up the next definitions.
#[macro_export]
#[doc(hidden)]
macro_rules! namespace_calls {
    ($without:path) => {
        use core::ffi::c_int;

        use $crate::libc::answer;
        use $crate::next::known;
        use $crate::sys;

        $crate::next::next_definitions! {
            UNSHARE = c"unshare",
            SETNS = c"setns",
        }

        /// `unshare(2)`.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
            let call = || match known!(UNSHARE, unsafe extern "C" fn(c_int) -> c_int) {
                // SAFETY: the caller's promise.
                Some(real) => unsafe { real(flags) },
                None => answer(sys::unshare(flags)) as c_int,
            };
            if sys::unshare_needs_one_thread(flags) { $without(call) } else { call() }
        }

        /// `setns(2)`.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
            let call = || match known!(SETNS, unsafe extern "C" fn(c_int, c_int) -> c_int) {
                // SAFETY: the caller's promise.
                Some(real) => unsafe { real(fd, kind) },
                None => answer(sys::set_namespace(fd, kind)) as c_int,
            };
            if sys::set_namespace_needs_one_thread(fd, kind) { $without(call) } else { call() }
        }
    };
}
pub use namespace_calls;

/// `prctl(2)`, whose next definition is known as `PRCTL`: `$before` is called with its option and two arguments. The C
/// declaration takes any number of arguments, and passes them as here.
#[macro_export]
#[doc(hidden)]
macro_rules! prctl_after {
    ($before:path) => {
        /// `prctl(2)`.
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn prctl(
            option: c_int,
            a: c_ulong,
            b: c_ulong,
            c: c_ulong,
            d: c_ulong,
        ) -> c_int {
            type Control = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
            $before(option, a, b);
            match $crate::next::known!(PRCTL, Control) {
                // SAFETY: the caller's promise.
                Some(real) => unsafe { real(option, a, b, c, d) },
                None => {
                    let [a, b, c, d] = [a, b, c, d].map(|word| word as usize);
                    // SAFETY: the caller's promise.
                    let result = unsafe { $crate::sys::prctl(option as usize, a, b, c, d) };
                    $crate::libc::answer(result) as c_int
                }
            }
        }
    };
}
pub use prctl_after;

/// Whether a call of `prctl(2)` with this option makes a filter of system calls, or comes before one of whoever is not
/// root.
pub fn comes_before_filter(option: core::ffi::c_int) -> bool {
    const PR_SET_SECCOMP: core::ffi::c_int = 22;
    const PR_SET_NO_NEW_PRIVS: core::ffi::c_int = 38;
    matches!(option, PR_SET_SECCOMP | PR_SET_NO_NEW_PRIVS)
}
