//! A program that brings its own allocator and calls it by the C names (Firefox and its mozjemalloc), on this heap all
//! the same: with `PAGEMILL_DETOUR=1` each allocation function that the program's file exports begins with a jump to
//! the heap's.
//!
//! ```text
//!  malloc of the program:   ff 25 00 00 00 00  address of the heap's   14 bytes, over its first instructions
//! ```
//!
//! The program's own definitions come before a preloaded library's, so preloading alone changes nothing there; half of
//! the names (the C++ operators that it does not export) would come from here, and the rest from the program. With the
//! detour all come from here.
//!
//! None of these functions is one that this library exports, and none calls one by its C name: the loader would find
//! the program's definition for it, which begins with a jump here. (`black_box` keeps the compiler from making one
//! function of two that do the same, which would be the exported one.)
//!
//! Always so: all or nothing, before the program's own code runs, and only functions of the program's file. What
//! libraries allocated before that from the program's allocator is told apart (`Heap::owns`): freed, it stays; resized,
//! it is copied.
#![cfg(target_arch = "x86_64")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::hint::black_box;

use pagemill_heap::os::Os as _;
use pagemill_preload_sys::libc::{self, ENOMEM, set_errno};
use pagemill_preload_sys::sys;

use crate::heap::HEAP;
use crate::{c, diagnostics, interim, settings};

/// Bytes of a jump; the functions of a program are at least 16 apart.
const JUMP: usize = 14;

/// Those without which the program's allocator would still be in use.
const NEEDED: usize = 12;

/// What of the program is replaced by what.
fn functions() -> [(&'static CStr, usize); 38] {
    [
        (c"malloc", allocate as *const () as usize),
        (c"calloc", zeroed as *const () as usize),
        (c"realloc", resize as *const () as usize),
        (c"free", release as *const () as usize),
        (c"memalign", aligned as *const () as usize),
        (c"posix_memalign", aligned_at as *const () as usize),
        (c"malloc_usable_size", usable_size as *const () as usize),
        (c"moz_arena_malloc", arena_malloc as *const () as usize),
        (c"moz_arena_calloc", arena_calloc as *const () as usize),
        (c"moz_arena_realloc", arena_realloc as *const () as usize),
        (c"moz_arena_free", arena_free as *const () as usize),
        (c"moz_arena_memalign", arena_memalign as *const () as usize),
        (c"aligned_alloc", aligned as *const () as usize),
        (c"valloc", whole_page as *const () as usize),
        (c"strdup", duplicate as *const () as usize),
        (c"strndup", duplicate_at_most as *const () as usize),
        (c"malloc_good_size", good_size as *const () as usize),
        (c"moz_malloc_size_of", usable_size as *const () as usize),
        (c"moz_malloc_usable_size", usable_size as *const () as usize),
        (c"moz_malloc_enclosing_size_of", usable_size as *const () as usize),
        (c"jemalloc_ptr_info", pointer_info as *const () as usize),
        (c"moz_xmalloc", must_malloc as *const () as usize),
        (c"moz_xcalloc", must_calloc as *const () as usize),
        (c"moz_xrealloc", must_realloc as *const () as usize),
        (c"moz_xmemalign", must_memalign as *const () as usize),
        (c"moz_xmemdup", must_duplicate_bytes as *const () as usize),
        (c"moz_xstrdup", must_duplicate as *const () as usize),
        (c"moz_xstrndup", must_duplicate_at_most as *const () as usize),
        (c"_Znwm", must_malloc as *const () as usize),
        (c"_Znam", must_malloc as *const () as usize),
        (c"_ZnwmRKSt9nothrow_t", allocate as *const () as usize),
        (c"_ZnamRKSt9nothrow_t", allocate as *const () as usize),
        (c"_ZdlPv", release as *const () as usize),
        (c"_ZdaPv", release as *const () as usize),
        (c"_ZdlPvRKSt9nothrow_t", release as *const () as usize),
        (c"_ZdaPvRKSt9nothrow_t", release as *const () as usize),
        (c"_ZdlPvm", release as *const () as usize),
        (c"_ZdaPvm", release as *const () as usize),
    ]
}

/// What `dladdr(3)` tells of an address.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: usize,
    symbol: *const c_char,
    address: usize,
}

/// Where the object that an address is of begins; zero if it is of none.
fn base(address: usize) -> usize {
    type Tell = unsafe extern "C" fn(usize, *mut DlInfo) -> c_int;
    let mut place =
        DlInfo { file: core::ptr::null(), base: 0, symbol: core::ptr::null(), address: 0 };
    let Some(tell) = libc::function!("dladdr", Tell) else { return 0 };
    // SAFETY: any address may be asked for; the answer is a place of ours.
    if unsafe { tell(address, &raw mut place) } == 0 { 0 } else { place.base }
}

/// The first definition of a function in the order in which the loader looks: the program's own, if it has one.
fn first_definition(name: &CStr) -> usize {
    type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
    match libc::function!("dlsym", Lookup) {
        // SAFETY: the handle of the default order, and a string that ends in a zero byte.
        Some(lookup) => unsafe { lookup(core::ptr::null_mut(), name.as_ptr()).addr() },
        None => 0,
    }
}

/// Takes the program's allocator out of use, if the environment asks for that and the program has one.
pub(crate) fn set_up() {
    if !settings::get().detour {
        return;
    }
    let marker = first_definition(c"moz_arena_malloc");
    if marker == 0 {
        return;
    }
    let program = base(marker);
    let mut found = functions().map(|(name, to)| (first_definition(name), to));
    for one in &mut found {
        if program == 0 || base(one.0) != program {
            one.0 = 0;
        }
    }
    if found[..NEEDED].iter().any(|one| one.0 == 0) {
        diagnostics::line(format_args!(
            "PAGEMILL_DETOUR: this program does not export all of its allocator; it keeps its own"
        ));
        return;
    }
    let page = HEAP.os().page_size();
    let first = found.iter().filter(|one| one.0 != 0).map(|one| one.0).min().unwrap_or(marker);
    let last = found.iter().map(|one| one.0).max().unwrap_or(marker);
    let start = first & !(page - 1);
    let len = (last + JUMP).next_multiple_of(page) - start;
    if sys::failed(sys::allow(start, len)) {
        diagnostics::line(format_args!(
            "PAGEMILL_DETOUR: the program's code cannot be made writable; it keeps its allocator"
        ));
        return;
    }
    for (at, to) in found.into_iter().filter(|one| one.0 != 0) {
        let mut jump = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        jump[6..].copy_from_slice(&to.to_ne_bytes());
        // SAFETY: the code of a function of the program, just made writable, none of which runs: there is one thread
        // yet, and this is a constructor of a library that is called by the loader.
        unsafe { core::ptr::copy_nonoverlapping(jump.as_ptr(), at as *mut u8, JUMP) };
    }
    // SAFETY: the range is the program's code, which was so before.
    if sys::failed(unsafe { sys::make_code(start, len) }) {
        diagnostics::line(format_args!(
            "PAGEMILL_DETOUR: the program's code cannot be executed any more"
        ));
        sys::abort();
    }
}

fn ours(object: *const u8) -> bool {
    interim::size(object).is_some() || HEAP.owns(object)
}

/// # Safety
/// As for `free(3)`.
unsafe extern "C" fn release(object: *mut u8) {
    if ours(object) {
        // SAFETY: the caller's promise.
        unsafe { c::release(object) }
    }
}

extern "C" fn usable_size(object: *const u8) -> usize {
    if ours(object) { c::usable_size(object) } else { 0 }
}

extern "C" fn good_size(size: usize) -> usize {
    size
}

/// # Safety
/// As for `realloc(3)`.
unsafe extern "C" fn resize(object: *mut u8, size: usize) -> *mut u8 {
    if object.is_null() || ours(object) {
        // C leaves what an empty object is open; the program's allocator never answers null for one.
        // SAFETY: the caller's promise.
        return unsafe { c::resize(object, size.max(1)) };
    }
    let moved = c::allocate(size);
    if moved.is_null() {
        set_errno(ENOMEM);
        return moved;
    }
    // How long the object was only the program's allocator knows: what can be read of it is taken, up to the new size.
    // SAFETY: a fresh object of that size.
    unsafe { sys::copy_readable(object.addr(), moved, size) };
    moved
}

extern "C" fn allocate(size: usize) -> *mut u8 {
    c::or_no_memory(c::allocate(black_box(size)))
}

extern "C" fn zeroed(count: usize, size: usize) -> *mut u8 {
    c::zeroed(count, black_box(size))
}

extern "C" fn aligned(align: usize, size: usize) -> *mut u8 {
    c::at_multiple(align, black_box(size))
}

/// # Safety
/// As for `posix_memalign(3)`.
unsafe extern "C" fn aligned_at(place: *mut *mut u8, align: usize, size: usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { c::aligned_at(place, align, black_box(size)) }
}

extern "C" fn whole_page(size: usize) -> *mut u8 {
    c::at_multiple(HEAP.os().page_size(), size)
}

extern "C" fn arena_malloc(_arena: usize, size: usize) -> *mut u8 {
    allocate(size)
}

extern "C" fn arena_calloc(_arena: usize, count: usize, size: usize) -> *mut u8 {
    zeroed(count, size)
}

/// # Safety
/// As for `realloc(3)`.
unsafe extern "C" fn arena_realloc(_arena: usize, object: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { resize(object, size) }
}

/// # Safety
/// As for `free(3)`.
unsafe extern "C" fn arena_free(_arena: usize, object: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { release(object) }
}

extern "C" fn arena_memalign(_arena: usize, align: usize, size: usize) -> *mut u8 {
    aligned(align, size)
}

/// What mozjemalloc says of a pointer: that it is of no object that it knows.
#[repr(C)]
struct PointerInfo {
    tag: u32,
    address: usize,
    size: usize,
}

/// # Safety
/// `info` is the program's place for the answer.
unsafe extern "C" fn pointer_info(_pointer: *const u8, info: *mut PointerInfo) {
    // SAFETY: the caller's promise.
    unsafe { info.write(PointerInfo { tag: 0, address: 0, size: 0 }) }
}

/// The functions that never fail end the program instead, as the program's own do.
fn must(object: *mut u8) -> *mut u8 {
    if object.is_null() {
        diagnostics::line(format_args!("no memory; the program is stopped (SIGABRT)"));
        sys::abort();
    }
    object
}

extern "C" fn must_malloc(size: usize) -> *mut u8 {
    must(c::allocate(size))
}

extern "C" fn must_calloc(count: usize, size: usize) -> *mut u8 {
    must(zeroed(count, size))
}

/// # Safety
/// As for `realloc(3)`.
unsafe extern "C" fn must_realloc(object: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    must(unsafe { resize(object, size) })
}

extern "C" fn must_memalign(align: usize, size: usize) -> *mut u8 {
    must(aligned(align, size))
}

/// A copy of `len` bytes with a zero byte behind them; null if there is no memory.
///
/// # Safety
/// That many bytes can be read.
unsafe fn text(from: *const u8, len: usize) -> *mut u8 {
    let copy = c::allocate(len + 1);
    if copy.is_null() {
        set_errno(ENOMEM);
        return copy;
    }
    // SAFETY: the caller's promise, and a fresh object that is one longer.
    unsafe {
        core::ptr::copy_nonoverlapping(from, copy, len);
        copy.add(len).write(0);
    }
    copy
}

/// # Safety
/// As for `strdup(3)`.
unsafe extern "C" fn duplicate(from: *const c_char) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { text(from.cast(), CStr::from_ptr(from).count_bytes()) }
}

/// # Safety
/// As for `strndup(3)`.
unsafe extern "C" fn duplicate_at_most(from: *const c_char, most: usize) -> *mut u8 {
    let from = from.cast::<u8>();
    // SAFETY: the caller's promise: bytes up to the first zero or `most` can be read.
    unsafe {
        let len = (0..most).position(|at| from.add(at).read() == 0).unwrap_or(most);
        text(from, len)
    }
}

/// # Safety
/// As for `strdup(3)`.
unsafe extern "C" fn must_duplicate(from: *const c_char) -> *mut u8 {
    // SAFETY: the caller's promise.
    must(unsafe { duplicate(from) })
}

/// # Safety
/// As for `strndup(3)`.
unsafe extern "C" fn must_duplicate_at_most(from: *const c_char, most: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    must(unsafe { duplicate_at_most(from, most) })
}

/// # Safety
/// `len` bytes can be read.
unsafe extern "C" fn must_duplicate_bytes(from: *const u8, len: usize) -> *mut u8 {
    let copy = must(c::allocate(len));
    // SAFETY: the caller's promise, and a fresh object of that length.
    unsafe { core::ptr::copy_nonoverlapping(from, copy, len) };
    copy
}
