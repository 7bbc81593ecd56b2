//! The C functions. They answer as glibc's do, edge cases included; `docs/concepts/preload.md` lists them.
//!
//! - A request above `PTRDIFF_MAX`, and a product that overflows, is `ENOMEM`. A failure sets `errno`; success and
//!   `free` never touch it.
//! - `malloc(0)` is an object of its own. `realloc(p, 0)` frees `p` and returns null. `calloc` and `reallocarray` check
//!   their product.
//! - `memalign` and `aligned_alloc` round an alignment that is no power of two up to one; `posix_memalign` refuses it.
//!
//! None of these functions calls another by its C name: the compiler knows those names and might make
//! a function of itself.

use core::ffi::{c_char, c_int, c_void};
use core::fmt::Write;

use pagemill_heap::os::Os;
use pagemill_preload_sys::libc::{self, EINVAL, ENOMEM, set_errno};

use crate::heap::HEAP;
use crate::{interim, report, thread, tls};

/// What glibc's malloc aligns to.
const ALIGNMENT: usize = 16;

#[cold]
#[inline(never)]
fn no_memory() -> *mut u8 {
    set_errno(ENOMEM);
    core::ptr::null_mut()
}

#[inline(always)]
pub(crate) fn or_no_memory(object: *mut u8) -> *mut u8 {
    if object.is_null() { no_memory() } else { object }
}

/// Allocates; null, with `errno` as it was, on failure.
#[inline(always)]
pub(crate) fn allocate(size: usize) -> *mut u8 {
    // SAFETY: `tls` holds the thread's own cache.
    match unsafe { HEAP.allocate_cached(tls::cache(), size) } {
        Some(object) => object,
        None => allocate_uncached(size),
    }
}

/// Allocates what the thread's cache does not have. By itself, and the last thing that is done, so that the usual call
/// saves no registers.
#[cold]
#[inline(never)]
fn allocate_uncached(size: usize) -> *mut u8 {
    let cache = thread::cache();
    // SAFETY: the cache is this thread's own, and getting it has started the heap.
    let object = interim::within(|| unsafe { HEAP.allocate_uncached(cache, size) });
    object.unwrap_or_else(|| interim::allocate(ALIGNMENT, size))
}

/// As [`allocate_uncached`]; a failure sets `errno`.
#[cold]
#[inline(never)]
fn malloc_uncached(size: usize) -> *mut u8 {
    or_no_memory(allocate_uncached(size))
}

/// Allocates at a multiple of `align`, a power of two; null, with `errno` as it was, on failure.
pub(crate) fn allocate_aligned(align: usize, size: usize) -> *mut u8 {
    if align <= ALIGNMENT {
        return allocate(size);
    }
    if size > isize::MAX as usize - align {
        return core::ptr::null_mut();
    }
    let cache = thread::cache();
    // SAFETY: as for `allocate`; every caller makes sure of the power of two.
    let object = interim::within(|| unsafe { HEAP.allocate_aligned(cache, align, size) });
    object.unwrap_or_else(|| interim::allocate(align, size))
}

/// Frees; null is ignored.
///
/// # Safety
/// Nobody uses the object from now on.
#[inline(always)]
pub(crate) unsafe fn release(object: *mut u8) {
    // SAFETY: `tls` holds the thread's own cache; the rest is the caller's promise, which the heap checks as far as it
    // can.
    unsafe {
        if !HEAP.free_cached(tls::cache(), object) {
            release_uncached(object);
        }
    }
}

/// As [`release`], where the program names the size: hardened mode, where nothing goes to a cache, checks it.
///
/// # Safety
/// As for [`release`].
#[inline(always)]
pub(crate) unsafe fn release_sized(object: *mut u8, size: usize) {
    // SAFETY: as in `release`.
    unsafe {
        if !HEAP.free_cached(tls::cache(), object) {
            release_sized_uncached(object, size);
        }
    }
}

/// Checks the size, and frees what does not simply go to the thread's cache.
///
/// # Safety
/// As for [`release`].
#[cold]
#[inline(never)]
unsafe fn release_sized_uncached(object: *mut u8, size: usize) {
    if interim::size(object).is_none() {
        interim::within(|| HEAP.check_size(object, size));
    }
    // SAFETY: as for this function.
    unsafe { release_uncached(object) }
}

/// Frees what does not simply go to the thread's cache.
///
/// # Safety
/// As for [`release`].
#[cold]
#[inline(never)]
unsafe fn release_uncached(object: *mut u8) {
    if interim::free(object) {
        return;
    }
    let cache = thread::cache();
    // SAFETY: the cache is this thread's own, and getting it has started the heap; the rest is the caller's promise.
    interim::within(|| unsafe { HEAP.free_uncached(cache, object) });
}

/// # Safety
/// As for the C function.
pub(crate) unsafe fn resize(object: *mut u8, size: usize) -> *mut u8 {
    if object.is_null() {
        return or_no_memory(allocate(size));
    }
    if size == 0 {
        // SAFETY: the program gives the object up.
        unsafe { release(object) };
        return core::ptr::null_mut();
    }
    let cache = thread::cache();
    if interim::size(object).is_none()
        // SAFETY: as for `release` on success.
        && let Some(resized) = interim::within(|| unsafe { HEAP.reallocate(cache, object, size) })
    {
        return or_no_memory(resized);
    }
    let moved = or_no_memory(allocate(size));
    if !moved.is_null() {
        // SAFETY: both are at least that long, and they are two objects; the program gives the old one up.
        unsafe {
            moved.copy_from_nonoverlapping(object, interim::readable(object).min(size));
            release(object);
        }
    }
    moved
}

/// As `malloc_usable_size(3)`; 0 of an object of the heap, if it is not to be had without a lock that the calling
/// thread holds.
#[inline(always)]
pub(crate) fn usable_size(object: *const u8) -> usize {
    match HEAP.plain_size(object.addr()) {
        Some(size) => size,
        None => usable_size_of_other(object),
    }
}

#[cold]
#[inline(never)]
fn usable_size_of_other(object: *const u8) -> usize {
    let size = interim::size(object);
    size.or_else(|| interim::within(|| HEAP.usable_size(object))).unwrap_or(0)
}

pub(crate) fn zeroed(count: usize, size: usize) -> *mut u8 {
    match count.checked_mul(size) {
        Some(bytes) => {
            // SAFETY: as for `allocate`.
            if let Some(object) = unsafe { HEAP.allocate_cached(tls::cache(), bytes) } {
                // SAFETY: the object is at least this long.
                unsafe { object.write_bytes(0, bytes) };
                return object;
            }
            let cache = thread::cache();
            // SAFETY: as for `allocate`.
            let object = interim::within(|| unsafe { HEAP.allocate_zeroed(cache, bytes) });
            or_no_memory(object.unwrap_or_else(|| interim::zeroed(bytes)))
        }
        None => no_memory(),
    }
}

pub(crate) fn at_multiple(align: usize, size: usize) -> *mut u8 {
    match align.max(1).checked_next_power_of_two() {
        Some(align) => or_no_memory(allocate_aligned(align, size)),
        None => {
            set_errno(EINVAL);
            core::ptr::null_mut()
        }
    }
}

/// # Safety
/// As for `posix_memalign(3)`.
pub(crate) unsafe fn aligned_at(place: *mut Object, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return EINVAL;
    }
    let object = allocate_aligned(align, size);
    if object.is_null() {
        return ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *place = object };
    0
}

fn page_size() -> usize {
    crate::start::ensure();
    HEAP.os().page_size()
}

fn whole_pages(size: usize) -> *mut u8 {
    let page = page_size();
    match size.checked_next_multiple_of(page) {
        Some(size) => or_no_memory(allocate_aligned(page, size)),
        None => no_memory(),
    }
}

/// Exports one function under one or more C names.
macro_rules! export {
    ($(
        $(#[$doc:meta])* $($name:literal as $function:ident),+
            = fn($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block
    )*) => {$(
        export!(@each [$(#[$doc])*] [$(($name, $function))+] ($($argument: $type),*) [$($result)?] $body);
    )*};
    (@each $docs:tt [$($pair:tt)+] $arguments:tt $result:tt $body:block) => {
        $(export!(@one $docs $pair $arguments $result $body);)+
    };
    (
        @one [$(#[$doc:meta])*] ($name:literal, $function:ident)
        ($($argument:ident: $type:ty),*) [$($result:ty)?] $body:block
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C function of this name.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function($($argument: $type),*) $(-> $result)? $body
    };
}

/// An untyped object.
type Object = *mut u8;

export! {
    /// `malloc(3)`.
    "malloc" as malloc, "__libc_malloc" as libc_malloc = fn(size: usize) -> Object {
        // SAFETY: `tls` holds the thread's own cache.
        match unsafe { HEAP.allocate_cached(tls::cache(), size) } {
            Some(object) => object,
            None => malloc_uncached(size),
        }
    }
    /// `free(3)`.
    "free" as free, "cfree" as cfree, "__libc_free" as libc_free = fn(object: Object) {
        // SAFETY: the program gives the object up.
        unsafe { release(object) }
    }
    /// `calloc(3)`.
    "calloc" as calloc, "__libc_calloc" as libc_calloc = fn(count: usize, size: usize) -> Object {
        zeroed(count, size)
    }
    /// `realloc(3)`.
    "realloc" as realloc, "__libc_realloc" as libc_realloc = fn(object: Object, size: usize) -> Object {
        // SAFETY: the caller's promise.
        unsafe { resize(object, size) }
    }
    /// `reallocarray(3)`.
    "reallocarray" as reallocarray = fn(object: Object, count: usize, size: usize) -> Object {
        match count.checked_mul(size) {
            // SAFETY: the caller's promise.
            Some(bytes) => unsafe { resize(object, bytes) },
            None => no_memory(),
        }
    }
    /// `memalign(3)` and `aligned_alloc(3)`, which glibc treats alike.
    "memalign" as memalign, "__libc_memalign" as libc_memalign, "aligned_alloc" as aligned_alloc
        = fn(align: usize, size: usize) -> Object {
        at_multiple(align, size)
    }
    /// `posix_memalign(3)`: returns the error instead of setting `errno`.
    "posix_memalign" as posix_memalign = fn(place: *mut Object, align: usize, size: usize) -> c_int {
        // SAFETY: the program's place for the result.
        unsafe { aligned_at(place, align, size) }
    }
    /// `valloc(3)`.
    "valloc" as valloc, "__libc_valloc" as libc_valloc = fn(size: usize) -> Object {
        or_no_memory(allocate_aligned(page_size(), size))
    }
    /// `pvalloc(3)`.
    "pvalloc" as pvalloc, "__libc_pvalloc" as libc_pvalloc = fn(size: usize) -> Object {
        whole_pages(size)
    }
    /// `free_sized(3)` of C23. The size is not needed, and hardened mode checks it.
    "free_sized" as free_sized = fn(object: Object, size: usize) {
        // SAFETY: the program gives the object up.
        unsafe { release_sized(object, size) }
    }
    /// `free_aligned_sized(3)` of C23.
    "free_aligned_sized" as free_aligned_sized = fn(object: Object, _align: usize, size: usize) {
        // SAFETY: the program gives the object up.
        unsafe { release_sized(object, size) }
    }
    /// `malloc_usable_size(3)`: all of the object may be used, and the answer does not change.
    "malloc_usable_size" as malloc_usable_size, "mesh_usable_size" as mesh_usable_size
        = fn(object: *const u8) -> usize {
        usable_size(object)
    }
    /// `malloc_trim(3)`: gives back everything that can be, whatever `pad` says. 1 if that was anything.
    "malloc_trim" as malloc_trim = fn(_pad: usize) -> c_int {
        let cache = thread::cache();
        // SAFETY: the cache is this thread's own, and getting it has started the heap.
        c_int::from(interim::within(|| unsafe { HEAP.trim(cache) }).is_some_and(|given| given > 0))
    }
    /// `mallopt(3)`: every parameter is taken and none changes anything, for they steer another allocator.
    "mallopt" as mallopt = fn(_parameter: c_int, _value: c_int) -> c_int {
        1
    }
    /// `mallinfo2(3)`.
    "mallinfo2" as mallinfo2 = fn() -> report::Info<usize> {
        report::info(|bytes| bytes)
    }
    /// `mallinfo(3)`: as `mallinfo2`, in numbers that may be too small for the truth; those stay at the largest.
    "mallinfo" as mallinfo = fn() -> report::Info<c_int> {
        report::info(|bytes| c_int::try_from(bytes).unwrap_or(c_int::MAX))
    }
    /// `malloc_stats(3)`: the statistics as text on standard error.
    "malloc_stats" as malloc_stats = fn() {
        report::print();
    }
    /// `malloc_info(3)`: the statistics as XML on a stream.
    "malloc_info" as malloc_info = fn(options: c_int, stream: *mut c_void) -> c_int {
        type Put = unsafe extern "C" fn(*const u8, usize, usize, *mut c_void) -> usize;
        if options != 0 {
            return EINVAL;
        }
        let Some(put) = libc::function!("fwrite", Put) else { return EINVAL };
        let mut stream = Stream { put, stream };
        // Writing to a stream that fails is the program's to notice, by ferror.
        let _ = report::xml(&mut stream);
        0
    }
    /// Mesh's name for "is this pointer in the heap".
    "mesh_in_bounds" as mesh_in_bounds = fn(pointer: *const u8) -> c_int {
        c_int::from(interim::size(pointer).is_some() || HEAP.owns(pointer))
    }
    /// Mesh's control function; see `report::control`.
    "mesh_mallctl" as mesh_mallctl = fn(
        name: *const c_char, old: *mut usize, old_len: *mut usize, new: *const usize, new_len: usize
    ) -> c_int {
        if name.is_null() {
            return -1;
        }
        // SAFETY: a C string; the pointers are null or the program's places for one word.
        unsafe {
            let name = core::ffi::CStr::from_ptr(name).to_bytes();
            let new = (!new.is_null() && new_len >= size_of::<usize>()).then(|| *new);
            let Some(value) = report::control(name, new) else { return -1 };
            if !old.is_null() && !old_len.is_null() && *old_len >= size_of::<usize>() {
                *old = value;
                *old_len = size_of::<usize>();
            }
        }
        0
    }
}

/// A C stream to write to.
struct Stream {
    put: unsafe extern "C" fn(*const u8, usize, usize, *mut c_void) -> usize,
    stream: *mut c_void,
}

impl Write for Stream {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // SAFETY: fwrite reads text.len() bytes; the stream is the program's.
        unsafe { (self.put)(text.as_ptr(), 1, text.len(), self.stream) };
        Ok(())
    }
}
