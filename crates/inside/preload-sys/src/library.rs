//! What makes a library one that programs are made to load.

use core::ffi::{CStr, c_char};

/// The environment that the C library hands over: strings, then null.
#[derive(Debug)]
pub struct Environment(*const *const c_char);

impl Environment {
    /// The one at this place.
    ///
    /// # Safety
    /// Before [`variable`](Self::variable) is asked: it is null or an array of C strings that ends in null, which live
    /// as long as the process.
    pub const unsafe fn at(place: *const *const c_char) -> Self {
        Self(place)
    }

    /// The value of a variable.
    pub fn variable(&self, name: &[u8]) -> Option<&'static CStr> {
        let mut place = self.0;
        // SAFETY: the promise of `at`; the walk ends at the null.
        unsafe {
            while !place.is_null() && !(*place).is_null() {
                let entry = CStr::from_ptr(*place).to_bytes();
                if entry.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&b'=')) {
                    return Some(CStr::from_ptr((*place).add(name.len() + 1)));
                }
                place = place.add(1);
            }
        }
        None
    }
}

/// `pagemill_build`, by which a launcher tells what was built with it; and the start: `$at_load` is called when the
/// library is loaded, with the [`Environment`].
#[macro_export]
#[doc(hidden)]
macro_rules! library {
    ($at_load:path) => {
        /// The sources that it was built from: a launcher loads what was built with it.
        #[unsafe(no_mangle)]
        pub static pagemill_build: u64 = $crate::BUILD;

        type Strings = *const *const core::ffi::c_char;

        /// glibc hands every initialiser what it hands `main`.
        extern "C" fn loaded(_count: core::ffi::c_int, _arguments: Strings, environment: Strings) {
            // SAFETY: what the C library hands over. Others hand over nothing, and of those nobody asks.
            $at_load(&unsafe { $crate::library::Environment::at(environment) });
        }

        #[used]
        #[unsafe(link_section = ".init_array")]
        static LOADED: extern "C" fn(core::ffi::c_int, Strings, Strings) = loaded;
    };
}
pub use library;
