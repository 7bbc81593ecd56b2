//! Memory for whom the heap cannot serve: a signal handler that interrupted its own thread within the heap, in the
//! process or in a child that it forked there. What that thread holds and was changing is so until the handler returns.
//!
//! ```text
//!  chunk   [ length, 16 | header | object | header | object | ... free ]
//!  header  [ the bytes of the chunk that were taken before, the object's size ]
//! ```
//!
//! - A thread is within the heap from `within` to its end, and has no cache meanwhile, so that the fast paths, a few
//!   instructions without a lock, serve nobody out of a cache that is being filled.
//! - An object belongs to one chunk, chunks are never unmapped, and all of them are known by their addresses.
//! - The memory of an object that is freed last first is used again; that of others is not.
//! - An object of the heap that such a handler frees stays allocated.

use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use pagemill_preload_sys::sys;

use crate::heap::HEAP;
use crate::tls;

/// Most chunks: sixteen that many handlers share, or objects that are larger.
const CHUNKS: usize = 64;
/// Bytes of a chunk, unless an object is larger.
const CHUNK: usize = 1 << 20;
/// Bytes of a header, and what objects are aligned to.
const UNIT: usize = 16;

#[repr(C)]
struct Chunk {
    len: usize,
    taken: AtomicUsize,
}

#[repr(C)]
struct Header {
    before: usize,
    size: usize,
}

static TABLE: [AtomicPtr<Chunk>; CHUNKS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS];

/// Works within the heap; `None`, and nothing done, if the calling thread is there already.
#[inline(always)]
pub(crate) fn within<T>(work: impl FnOnce() -> T) -> Option<T> {
    if tls::is_within() {
        return None;
    }
    let cache = tls::cache();
    tls::set_cache(core::ptr::null_mut());
    tls::set_within(true);
    let result = work();
    tls::set_within(false);
    tls::set_cache(cache);
    Some(result)
}

fn chunks() -> impl Iterator<Item = *mut Chunk> {
    TABLE.iter().map(|place| place.load(Ordering::Acquire)).take_while(|chunk| !chunk.is_null())
}

/// A chunk of at least `len` bytes in `place`, or what another handler put there meanwhile.
fn map(place: &AtomicPtr<Chunk>, len: usize) -> *mut Chunk {
    let chunk = sys::map_anonymous(len, sys::PROT_READ | sys::PROT_WRITE, 0).cast::<Chunk>();
    if chunk.is_null() {
        return chunk;
    }
    // SAFETY: new memory, page-aligned and longer than a chunk's beginning.
    unsafe { chunk.write(Chunk { len, taken: AtomicUsize::new(UNIT) }) };
    let null = core::ptr::null_mut();
    match place.compare_exchange(null, chunk, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => chunk,
        Err(other) => {
            // SAFETY: nobody knows the new one.
            unsafe { sys::unmap(chunk.cast(), len) };
            other
        }
    }
}

/// Takes an object out of a chunk, if there is room.
fn take(chunk: *mut Chunk, align: usize, size: usize) -> Option<*mut u8> {
    // SAFETY: chunks are never unmapped, and what is read of them is written before they are known.
    let (len, taken) = unsafe { ((*chunk).len, &(*chunk).taken) };
    let mut before = taken.load(Ordering::Relaxed);
    loop {
        let start = (chunk.addr() + before + UNIT).checked_next_multiple_of(align)? - chunk.addr();
        let after = start.checked_add(size)?.checked_next_multiple_of(UNIT)?;
        if after > len {
            return None;
        }
        match taken.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                let object = chunk.cast::<u8>().wrapping_add(start);
                // SAFETY: `before..after` of the chunk is the caller's now, and both addresses are aligned.
                unsafe { object.sub(UNIT).cast::<Header>().write(Header { before, size }) };
                return Some(object);
            }
            Err(seen) => before = seen,
        }
    }
}

/// An object of `size` bytes at a multiple of `align`, a power of two; null if there is no memory.
#[cold]
#[inline(never)]
pub(crate) fn allocate(align: usize, size: usize) -> *mut u8 {
    let align = align.max(UNIT);
    let Some(need) = size.checked_add(align + 3 * UNIT) else { return core::ptr::null_mut() };
    let Some(len) = need.max(CHUNK).checked_next_multiple_of(CHUNK) else {
        return core::ptr::null_mut();
    };
    for place in &TABLE {
        let mut chunk = place.load(Ordering::Acquire);
        if chunk.is_null() {
            chunk = map(place, len);
            if chunk.is_null() {
                break;
            }
        }
        if let Some(object) = take(chunk, align, size) {
            return object;
        }
    }
    core::ptr::null_mut()
}

/// As [`allocate`], and the bytes are zero.
pub(crate) fn zeroed(size: usize) -> *mut u8 {
    let object = allocate(UNIT, size);
    if !object.is_null() {
        // SAFETY: the object is that long.
        unsafe { object.write_bytes(0, size) };
    }
    object
}

/// The chunk and the header of an object that came from here.
#[inline(always)]
fn find(object: *const u8) -> Option<(*mut Chunk, *mut Header)> {
    if TABLE[0].load(Ordering::Relaxed).is_null() {
        return None;
    }
    find_among_chunks(object)
}

#[cold]
#[inline(never)]
fn find_among_chunks(object: *const u8) -> Option<(*mut Chunk, *mut Header)> {
    // SAFETY: as in `take`.
    let has =
        |chunk: *mut Chunk| object.addr().wrapping_sub(chunk.addr()) < unsafe { (*chunk).len };
    let chunk = chunks().find(|&chunk| has(chunk))?;
    Some((chunk, object.cast_mut().wrapping_sub(UNIT).cast()))
}

/// The size of an object that came from here.
#[inline(always)]
pub(crate) fn size(object: *const u8) -> Option<usize> {
    // SAFETY: each object has its header before it.
    find(object).map(|(_, header)| unsafe { (*header).size })
}

/// Frees an object that came from here; whether it did.
#[inline(always)]
pub(crate) fn free(object: *mut u8) -> bool {
    let Some((chunk, header)) = find(object) else { return false };
    // SAFETY: as in `size` and `take`.
    let (Header { before, size }, taken) = unsafe { (header.read(), &(*chunk).taken) };
    let after = (object.addr() - chunk.addr() + size).next_multiple_of(UNIT);
    // If another object came behind it the memory stays taken.
    let _ = taken.compare_exchange(after, before, Ordering::AcqRel, Ordering::Relaxed);
    true
}

/// Bytes that can be read at an object, here or in the heap, without a lock.
pub(crate) fn readable(object: *const u8) -> usize {
    size(object).unwrap_or_else(|| HEAP.readable(object))
}
