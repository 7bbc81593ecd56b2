//! The definitions behind a library's own: of functions that it exports itself, those that would have been used without
//! it, looked up once.

use core::ffi::c_void;
use core::sync::atomic::AtomicPtr;

/// Where a next definition is; null until it was looked up, or if there is none.
pub type Symbol = AtomicPtr<c_void>;

/// A [`Symbol`] for each function, and `find_real`, which looks them up. A look-up may itself call what is looked up,
/// which then finds nothing yet.
#[macro_export]
#[doc(hidden)]
macro_rules! next_definitions {
    ($($place:ident = $name:literal,)*) => {
        $(static $place: $crate::next::Symbol = $crate::next::Symbol::new(core::ptr::null_mut());)*

        /// Looks up the next definitions.
        #[cold]
        pub(crate) fn find_real() {
            use core::sync::atomic::{AtomicBool, Ordering};
            static LOOKING: AtomicBool = AtomicBool::new(false);
            if LOOKING.swap(true, Ordering::Acquire) {
                return;
            }
            $($place.store($crate::libc::next_definition($name), Ordering::Release);)*
            LOOKING.store(false, Ordering::Release);
        }
    };
}
pub use next_definitions;

/// The next definition as a function of this type, if it is known.
#[macro_export]
#[doc(hidden)]
macro_rules! known {
    ($symbol:ident, $type:ty) => {{
        let address = $symbol.load(core::sync::atomic::Ordering::Acquire);
        // SAFETY: a symbol of this name is, by the C library's interface, a function of this type; `Option` of a
        // function pointer is null for none.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<$type>>(address) }
    }};
}
pub use known;

/// The same; looked up, by the module's `find_real`, if it was not yet.
#[macro_export]
#[doc(hidden)]
macro_rules! real {
    ($symbol:ident, $type:ty) => {{
        if $symbol.load(core::sync::atomic::Ordering::Acquire).is_null() {
            find_real();
        }
        $crate::next::known!($symbol, $type)
    }};
}
pub use real;
