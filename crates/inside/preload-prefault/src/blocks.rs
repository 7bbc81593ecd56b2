//! The C library's `malloc` and its kin, passed through: what glibc maps for a large block comes by no other function.
//!
//! A small request goes to the next definition and on from there to the caller; nothing is looked at. A large one that
//! glibc has given a mapping of its own is noted as `mmap` notes what it maps. Other allocators (jemalloc, tcmalloc,
//! the compacting heap) map by `mmap`, which is watched, so of theirs nothing is looked at here.
//!
//! ```text
//!  mapping ─► │ size before │ size, flags │ block …            │
//!               start - 16    start - 8     start (page + 16, or more where it is aligned)
//! ```

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagemill_prefault::PAGE;

use pagemill_preload_sys::next::{Symbol, known, real};
use pagemill_preload_sys::{libc, sys};

use crate::calls::{self, LEAST, LEAST_ADVISED};

static MALLOC: Symbol = Symbol::new(core::ptr::null_mut());
static CALLOC: Symbol = Symbol::new(core::ptr::null_mut());
static REALLOC: Symbol = Symbol::new(core::ptr::null_mut());
static MEMALIGN: Symbol = Symbol::new(core::ptr::null_mut());
static ALIGNED_ALLOC: Symbol = Symbol::new(core::ptr::null_mut());
static POSIX_MEMALIGN: Symbol = Symbol::new(core::ptr::null_mut());

/// The functions that are passed through.
static PASSED: [(&Symbol, &CStr); 6] = [
    (&CALLOC, c"calloc"),
    (&REALLOC, c"realloc"),
    (&MEMALIGN, c"memalign"),
    (&ALIGNED_ALLOC, c"aligned_alloc"),
    (&POSIX_MEMALIGN, c"posix_memalign"),
    (&MALLOC, c"malloc"),
];

/// Whether all next definitions are known to be glibc's, whose blocks are as above. Other allocators bring its other
/// names too (`__libc_malloc`), so only the library's own symbols tell; and a library may replace one function alone.
static OF_GLIBC: AtomicBool = AtomicBool::new(false);

/// The thread that looks the next definitions up; 0: none.
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// Looks the next definitions up. The first who allocates does it, the loader or an initialiser that runs before this
/// library's; glibc's look-up itself may call `calloc` (before 2.34) and does without where that fails.
#[cold]
#[inline(never)]
pub(crate) fn find_real() {
    let me = sys::tid();
    if LOOKING.load(Ordering::Relaxed) == me {
        return;
    }
    LOOKING.store(me, Ordering::Relaxed);
    for (place, name) in PASSED {
        place.store(libc::next_definition(name), Ordering::Release);
    }
    LOOKING.store(0, Ordering::Relaxed);
}

/// From now on large blocks are looked at, if they are glibc's. Allocates.
pub(crate) fn start() {
    let of_glibc = |(place, name): &(&Symbol, &CStr)| {
        let glibc = libc::in_loaded(c"libc.so.6", name);
        !glibc.is_null() && glibc == place.load(Ordering::Relaxed)
    };
    OF_GLIBC.store(PASSED.iter().all(of_glibc), Ordering::Relaxed);
}

fn none() -> *mut c_void {
    libc::set_errno(libc::ENOMEM);
    core::ptr::null_mut()
}

/// The mapping that glibc has made for this block alone, from its first address to behind its last: whole pages, or it
/// is a glibc whose blocks are others than above.
///
/// # Safety
/// `block` is null or a live block of the next definition's.
unsafe fn mapping_of(block: *mut c_void) -> Option<(usize, usize)> {
    const IS_MAPPED: usize = 2;
    const FLAGS: usize = 7;
    if block.is_null() || !OF_GLIBC.load(Ordering::Relaxed) {
        return None;
    }
    let words: *const usize = block.cast();
    // SAFETY: glibc keeps two words before each block (malloc.c, `struct malloc_chunk`).
    let (before, size) = unsafe { (words.sub(2).read(), words.sub(1).read()) };
    let start = words.addr() - 2 * size_of::<usize>();
    let mapping = (start.wrapping_sub(before), start.wrapping_add(size & !FLAGS));
    let pages = mapping.0 < mapping.1 && (mapping.0 | mapping.1).is_multiple_of(PAGE as usize);
    (size & IS_MAPPED != 0 && pages).then_some(mapping)
}

/// Notes the mapping of a block that was just made.
///
/// # Safety
/// As for [`mapping_of`].
unsafe fn noted(block: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    if let Some((start, end)) = unsafe { mapping_of(block) } {
        calls::note_range(start, end - start);
    }
    block
}

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
/// `calloc`, `memalign` and `aligned_alloc`.
type TwoSizes = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;

/// `malloc`. In each of these a small request is a jump to the next definition.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    match known!(MALLOC, Malloc) {
        // SAFETY: the C library's function, with its own argument.
        Some(next) if size < LEAST_ADVISED => unsafe { next(size) },
        _ => malloc_large(size),
    }
}

#[cold]
#[inline(never)]
extern "C" fn malloc_large(size: usize) -> *mut c_void {
    match real!(MALLOC, Malloc) {
        // SAFETY: the C library's function, with its own argument; what it returns is what `noted` asks for.
        Some(next) => unsafe { noted(next(size)) },
        None => none(),
    }
}

/// A large request of `calloc`, `memalign` or `aligned_alloc`, whose next definition is at `next`.
#[cold]
#[inline(never)]
fn large_of_two(a: usize, b: usize, next: &Symbol) -> *mut c_void {
    match real!(next, TwoSizes) {
        // SAFETY: the C library's function, with its own arguments; what it returns is what `noted` asks for.
        Some(next) => unsafe { noted(next(a, b)) },
        None => none(),
    }
}

/// `realloc`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    match known!(REALLOC, Realloc) {
        // SAFETY: the caller's promise.
        Some(next) if size < LEAST_ADVISED => unsafe { next(block, size) },
        // SAFETY: the caller's promise.
        _ => unsafe { realloc_large(block, size) },
    }
}

/// A mapping that glibc has grown where it lies is noted again once it is a [`LEAST`] larger; what was advised of it
/// stays so.
///
/// # Safety
/// As for the C library's.
#[cold]
#[inline(never)]
unsafe extern "C" fn realloc_large(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(next) = real!(REALLOC, Realloc) else { return none() };
    // SAFETY: the caller's promise: the block lives until the next definition is called, its result from then on.
    unsafe {
        let before = mapping_of(block);
        let block = next(block, size);
        if let Some((start, end)) = mapping_of(block)
            && before.is_none_or(|(from, to)| from != start || end >= to + LEAST)
        {
            calls::note_range(start, end - start);
        }
        block
    }
}

/// The functions of two numbers, of which a request is as large as `$bytes`.
macro_rules! of_two {
    ($($name:ident($a:ident, $b:ident), $bytes:expr, by $next:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($a: usize, $b: usize) -> *mut c_void {
            match known!($next, TwoSizes) {
                // SAFETY: the C library's function, with its own arguments.
                Some(next) if $bytes < LEAST_ADVISED => unsafe { next($a, $b) },
                _ => large_of_two($a, $b, &$next),
            }
        }
    )*};
}
of_two! {
    calloc(count, size), count.saturating_mul(size), by CALLOC;
    memalign(align, size), size, by MEMALIGN;
    aligned_alloc(align, size), size, by ALIGNED_ALLOC;
}

/// `posix_memalign`.
///
/// # Safety
/// As for the C library's: `place` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    place: *mut *mut c_void,
    align: usize,
    size: usize,
) -> c_int {
    let Some(next) = real!(POSIX_MEMALIGN, PosixMemalign) else { return libc::ENOMEM };
    // SAFETY: the caller's promise.
    let result = unsafe { next(place, align, size) };
    if result == 0 && size >= LEAST_ADVISED {
        // SAFETY: on success there is a block at `place`.
        unsafe { noted(place.read()) };
    }
    result
}
