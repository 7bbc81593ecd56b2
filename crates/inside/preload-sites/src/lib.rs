//! `libpagemill_sites.so`: tells the recorder which code asks for memory. It replaces no allocator: every call goes on
//! to the definition that would have been used without it.
//!
//! ```text
//!  malloc, calloc, realloc, free, … ──► the program's own ──► note ──► ring (shared with the recorder)
//! ```
//!
//! Where the recorder traces the program's memory, plain calls of `mmap` and `munmap` are made by the recorder's own
//! code in the program (`kernel/src/process/injected`), which spares each of them the way to another process and back.
//!
//! A note has the time stamp counter (when memory is given back), address, size, process, and what the stack held: the
//! caller's address, and of the words above it those that may be addresses of code. Only words of the page that the
//! stack pointer is in are read, which is there for certain; which of them are callers is found out later from the
//! program's code. (A caller that has returned may have left its address behind: it cannot be told from one that has
//! not.)
//!
//! What always holds:
//! - Nothing here allocates, locks, unwinds or prints; a note costs no system call.
//! - A ring that ran over loses the oldest notes, which the recorder counts.
//! - Without a ring (the variable is not set, or the file is not one) calls are passed on and nothing else.
//! - A forked child writes to the same ring, as the process that it is; what it inherited keeps its parent's notes.
#![no_std]
#![cfg(target_arch = "x86_64")]

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use pagemill_preload_sys::library::Environment;
use pagemill_preload_sys::next::{next_definitions, real};
use pagemill_preload_sys::sys::{self, linux};
use pagemill_preload_sys::{libc, sites as layout};

/// Layout of the ring; also what the file is known by.
#[unsafe(no_mangle)]
pub static pagemill_sites_version: u64 = layout::VERSION;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}

/// Where the ring stands in the program: beside the tracer's own code, whose pages are nobody's accesses.
const PLACE: usize = 0x5500_8000_0000;
/// Allocations from here on are told with more of the stack.
const LARGE: usize = 4096;

/// How many slots ahead a line is asked for.
const AHEAD: usize = 16;

/// The ring's words; null: none.
static RING: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static PID: AtomicU64 = AtomicU64::new(0);
/// The recorder's code for mmap and munmap; null: none.
static INSIDE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// What is smaller is not noted; if there is such a size, what is given back is not either.
static LEAST: AtomicUsize = AtomicUsize::new(0);
/// Top bits of addresses in the program itself.
static PROGRAM: AtomicUsize = AtomicUsize::new(0);

// A look-up may allocate, which is served from [`EARLY`].
next_definitions! {
    MALLOC = c"malloc",
    CALLOC = c"calloc",
    REALLOC = c"realloc",
    FREE = c"free",
    MEMALIGN = c"memalign",
    ALIGNED_ALLOC = c"aligned_alloc",
    POSIX_MEMALIGN = c"posix_memalign",
    MMAP = c"mmap",
    MUNMAP = c"munmap",
}
/// Memory for what a look-up asks for while there is no allocator yet. Never given back.
#[repr(align(16))]
struct Early(core::cell::UnsafeCell<[u8; EARLY_BYTES]>);
const EARLY_BYTES: usize = 1 << 16;
// SAFETY: each byte is handed out once, by an atomic counter.
unsafe impl Sync for Early {}
static EARLY: Early = Early(core::cell::UnsafeCell::new([0; EARLY_BYTES]));
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

#[cold]
fn early(size: usize) -> *mut c_void {
    let Some(size) = size.checked_next_multiple_of(16) else { return core::ptr::null_mut() };
    let at = EARLY_USED.fetch_add(size, Ordering::Relaxed);
    match at.checked_add(size) {
        Some(end) if end <= EARLY_BYTES => EARLY.0.get().cast::<u8>().wrapping_add(at).cast(),
        _ => core::ptr::null_mut(),
    }
}

fn is_early(pointer: *mut c_void) -> bool {
    let start = EARLY.0.get().addr();
    (start..start + EARLY_BYTES).contains(&pointer.addr())
}

/// Notes that memory was taken or given back. `stack` is the stack pointer at the call: the caller's address is there.
#[inline(always)]
fn note(address: *mut c_void, size: usize, stack: *const usize) {
    let ring = RING.load(Ordering::Acquire);
    if ring.is_null() || address.is_null() {
        return;
    }
    let least = LEAST.load(Ordering::Relaxed);
    if least > 0 && (size < least || size as u64 >= layout::FREED) {
        return;
    }
    write(ring, address.addr() as u64, size, stack);
}

#[inline(always)]
fn write(ring: *mut AtomicU64, address: u64, size: usize, stack: *const usize) {
    let freed = size as u64 >= layout::FREED;
    let more = if size >= LARGE && !freed { layout::MORE } else { 0 };
    // SAFETY: the ring is mapped with WORDS words for as long as the process lives; all access is atomic.
    let word = |at: usize| unsafe { &*ring.add(at) };
    let ticket = word(1).fetch_add(1 + more as u64, Ordering::Relaxed);
    let slot = |n: usize| layout::HEADER + (ticket as usize + n) % layout::SLOTS * layout::SLOT;
    let put = |at: usize, value: u64| word(at).store(value, Ordering::Relaxed);
    let base = slot(0);
    // Slots that will be written soon: their lines are somewhere else by now.
    for n in 0..=more {
        let soon = ring.wrapping_add(slot(AHEAD + n)).cast::<i8>();
        // SAFETY: a hint, which reads nothing.
        unsafe { core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(soon) };
    }
    word(base).store(0, Ordering::Release);
    // The counter takes a third of a note's time. When memory is taken it may be left out: until then nobody had it.
    // SAFETY: reads a counter.
    put(base + 1, if freed { unsafe { core::arch::x86_64::_rdtsc() } } else { 0 });
    put(base + 2, address);
    put(base + 3, size.min(layout::FREED as usize) as u64 | (more as u64) << 56);
    put(base + 4, PID.load(Ordering::Relaxed));
    let mut kept = [0_u64; 3 + 7 * layout::MORE];
    if !freed {
        let (words, room) = if more > 0 { (65, kept.len()) } else { (9, 3) };
        // SAFETY: the stack pointer at a call points to the caller's address; `callers` stays in its page.
        unsafe { callers(stack, words, &mut kept[..room]) };
    }
    for (n, value) in kept[..3].iter().enumerate() {
        put(base + 5 + n, *value);
    }
    for n in 1..=more {
        let next = slot(n);
        word(next).store(0, Ordering::Release);
        for (at, value) in kept[3 + 7 * (n - 1)..][..7].iter().enumerate() {
            put(next + 1 + at, *value);
        }
        word(next).store(ticket + n as u64 + 1, Ordering::Release);
    }
    word(base).store(ticket + 1, Ordering::Release);
}

/// The caller's address, then of at most `words` words above it in the same page those that may be addresses of code.
///
/// # Safety
/// `stack` points into a page of the stack that may be read.
#[inline(always)]
unsafe fn callers(stack: *const usize, words: usize, into: &mut [u64]) {
    const PAGE: usize = 4096;
    let left = (PAGE - stack.addr() % PAGE) / size_of::<usize>();
    // SAFETY: the caller's promise; the page has `left` words from here on.
    let read = |at: usize| unsafe { stack.add(at).read() };
    let caller = read(0);
    let program = PROGRAM.load(Ordering::Relaxed);
    let mut found = 1;
    into[0] = caller as u64;
    let near = |value: usize| value >> 32 == caller >> 32 || value >> 32 == program;
    let end = words.min(left);
    let mut at = 1;
    while at < end {
        let group = (end - at).min(4);
        // Most words are no addresses of code: four are looked at together, by their upper halves.
        let mut found_here = match group {
            // SAFETY: words `at` to `at + 3` are before `end`, so in the page.
            4 => unsafe { which_near(stack.add(at), caller >> 32, program) },
            _ => (0..group).fold(0, |mask, word| mask | u32::from(near(read(at + word))) << word),
        };
        while found_here != 0 {
            let value = read(at + found_here.trailing_zeros() as usize);
            found_here &= found_here - 1;
            if value & !0xffff != 0 {
                into[found] = value as u64;
                found += 1;
                if found == into.len() {
                    return;
                }
            }
        }
        at += group;
    }
}

/// A bit for each of four words whose upper half is one of these two.
///
/// # Safety
/// Four words may be read at `words`.
#[inline(always)]
unsafe fn which_near(words: *const usize, one: usize, other: usize) -> u32 {
    use core::arch::x86_64::{
        _mm_castps_si128, _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_ps,
        _mm_or_si128, _mm_set1_epi32, _mm_shuffle_ps,
    };
    // SAFETY: the caller's promise; SSE2 is part of x86-64, and a load may be unaligned.
    unsafe {
        let low = _mm_castsi128_ps(_mm_loadu_si128(words.cast()));
        let high = _mm_castsi128_ps(_mm_loadu_si128(words.add(2).cast()));
        let upper = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(low, high));
        let is = |half: usize| _mm_cmpeq_epi32(upper, _mm_set1_epi32(half as i32));
        _mm_movemask_ps(_mm_castsi128_ps(_mm_or_si128(is(one), is(other)))) as u32
    }
}

/// Functions of the C library: each passes its stack pointer on as one more argument.
macro_rules! entries {
    ($($name:ident($register:literal) => $inner:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                concat!("mov ", $register, ", rsp"),
                "jmp {inner}",
                inner = sym $inner
            )
        }
    )*};
}
entries! {
    malloc("rsi") => malloc_from;
    calloc("rdx") => calloc_from;
    realloc("rdx") => realloc_from;
    free("rsi") => free_from;
    memalign("rdx") => memalign_from;
    aligned_alloc("rdx") => aligned_alloc_from;
    posix_memalign("rcx") => posix_memalign_from;
}

type Stack = *const usize;
type Pointer = *mut c_void;

extern "C" fn malloc_from(size: usize, stack: Stack) -> Pointer {
    match real!(MALLOC, unsafe extern "C" fn(usize) -> Pointer) {
        Some(real) => {
            // SAFETY: the caller's promise.
            let memory = unsafe { real(size) };
            note(memory, size, stack);
            memory
        }
        None => early(size),
    }
}

extern "C" fn calloc_from(count: usize, size: usize, stack: Stack) -> Pointer {
    match real!(CALLOC, unsafe extern "C" fn(usize, usize) -> Pointer) {
        Some(real) => {
            // SAFETY: the caller's promise.
            let memory = unsafe { real(count, size) };
            note(memory, count.wrapping_mul(size), stack);
            memory
        }
        // Never handed out before, so it is zero.
        None => count.checked_mul(size).map_or(core::ptr::null_mut(), early),
    }
}

extern "C" fn realloc_from(memory: Pointer, size: usize, stack: Stack) -> Pointer {
    if is_early(memory) {
        let new = malloc_from(size, stack);
        if !new.is_null() {
            let left = EARLY.0.get().addr() + EARLY_BYTES - memory.addr();
            // SAFETY: early memory has `left` bytes; the new one has `size`.
            unsafe {
                core::ptr::copy_nonoverlapping(memory.cast::<u8>(), new.cast(), size.min(left))
            };
        }
        return new;
    }
    match real!(REALLOC, unsafe extern "C" fn(Pointer, usize) -> Pointer) {
        Some(real) => {
            // Before: the address may be another thread's a moment later.
            note(memory, layout::FREED as usize, stack);
            // SAFETY: the caller's promise.
            let new = unsafe { real(memory, size) };
            if new.is_null() && size > 0 {
                note(memory, 1, stack); // It stays what it was; how large is not known here.
            }
            note(new, size, stack);
            new
        }
        None => core::ptr::null_mut(),
    }
}

extern "C" fn free_from(memory: Pointer, stack: Stack) {
    if memory.is_null() || is_early(memory) {
        return;
    }
    note(memory, layout::FREED as usize, stack);
    if let Some(real) = real!(FREE, unsafe extern "C" fn(Pointer)) {
        // SAFETY: the caller's promise.
        unsafe { real(memory) };
    }
}

extern "C" fn memalign_from(alignment: usize, size: usize, stack: Stack) -> Pointer {
    aligned(real!(MEMALIGN, Aligned), alignment, size, stack)
}

extern "C" fn aligned_alloc_from(alignment: usize, size: usize, stack: Stack) -> Pointer {
    aligned(real!(ALIGNED_ALLOC, Aligned), alignment, size, stack)
}

type Aligned = unsafe extern "C" fn(usize, usize) -> Pointer;

fn aligned(real: Option<Aligned>, alignment: usize, size: usize, stack: Stack) -> Pointer {
    let Some(real) = real else { return core::ptr::null_mut() };
    // SAFETY: the caller's promise.
    let memory = unsafe { real(alignment, size) };
    note(memory, size, stack);
    memory
}

extern "C" fn posix_memalign_from(
    into: *mut Pointer,
    alignment: usize,
    size: usize,
    stack: Stack,
) -> c_int {
    type Real = unsafe extern "C" fn(*mut Pointer, usize, usize) -> c_int;
    let Some(real) = real!(POSIX_MEMALIGN, Real) else { return libc::ENOMEM };
    // SAFETY: the caller's promise.
    let result = unsafe { real(into, alignment, size) };
    if result == 0 {
        // SAFETY: the call has just written it.
        note(unsafe { *into }, size, stack);
    }
    result
}

/// Has the recorder's code make a call that maps; `None`: it is to be made as ever.
#[inline(always)]
fn inside(number: i64, arguments: [u64; 6]) -> Option<i64> {
    type Inside = unsafe extern "C" fn(i64, *const u64, *mut i64) -> c_int;
    let address = INSIDE.load(Ordering::Acquire);
    if address.is_null() {
        return None;
    }
    // SAFETY: the recorder said that its function of this type is there, and `find_inside` that memory is.
    let inside = unsafe { core::mem::transmute::<*mut c_void, Inside>(address) };
    let mut result = 0;
    // SAFETY: it reads the arguments and writes the result; mapping is what the caller wants.
    (unsafe { inside(number, arguments.as_ptr(), &raw mut result) } != 0).then_some(result)
}

/// A function of the C library with six arguments: its stack pointer is the seventh, on the stack.
macro_rules! entry_of_six {
    ($(#[doc = $about:literal])+ $name:ident => $inner:ident) => {
        $(#[doc = $about])+
        ///
        /// # Safety
        /// As for the C library's.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "mov rax, rsp",
                "push rax",
                "call {inner}",
                "add rsp, 8",
                "ret",
                inner = sym $inner
            )
        }
    };
}
entry_of_six! { /// `mmap(2)`.
mmap => mmap_from }
entry_of_six! { /// `mmap64(3)`: the same where offsets have 64 bits.
mmap64 => mmap_from }

extern "C" fn mmap_from(
    address: Pointer,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
    stack: Stack,
) -> Pointer {
    type Real = unsafe extern "C" fn(Pointer, usize, c_int, c_int, c_int, i64) -> Pointer;
    const MAP_PRIVATE_ANONYMOUS: c_int = 0x22;
    let words = [address.addr() as u64, length as u64, protection as u64, flags as u64];
    let [a, b, c, d] = words;
    if let Some(mapped) = inside(9, [a, b, c, d, fd as u64, offset as u64]) {
        return core::ptr::with_exposed_provenance_mut(mapped as usize);
    }
    let Some(real) = real!(MMAP, Real) else {
        return core::ptr::without_provenance_mut(usize::MAX);
    };
    // SAFETY: the caller's promise.
    let mapped = unsafe { real(address, length, protection, flags, fd, offset) };
    let memory = flags & MAP_PRIVATE_ANONYMOUS == MAP_PRIVATE_ANONYMOUS;
    if memory && mapped.addr() != usize::MAX && LEAST.load(Ordering::Relaxed) > 0 {
        note(mapped, length, stack);
    }
    mapped
}

/// `munmap(2)`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: Pointer, length: usize) -> c_int {
    if inside(11, [address.addr() as u64, length as u64, 0, 0, 0, 0]).is_some() {
        return 0;
    }
    match real!(MUNMAP, unsafe extern "C" fn(Pointer, usize) -> c_int) {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(address, length) },
        None => -1,
    }
}

/// AddressSanitizer's library asks for its options by this name, and ends a program in which it was not loaded first,
/// unless it is told that nobody minds: what is loaded before it here passes every call on to it. A program's own
/// options of that name come before ours; such a one is to be started with `--no-sites`.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Looks whether the recorder's code is in this program: it may have been executed after the trace ended.
fn find_inside(address: usize) {
    const PAGE: usize = 4096;
    let mut page = 0_u8;
    let call = [address / PAGE * PAGE, PAGE, (&raw mut page).expose_provenance(), 0, 0, 0];
    // SAFETY: the kernel writes one byte, for one page.
    if address != 0 && !sys::failed(unsafe { sys::call(linux::__NR_mincore, call) }) {
        INSIDE.store(core::ptr::with_exposed_provenance_mut(address), Ordering::Release);
    }
}

/// Maps the ring at `path`, if it is one.
fn open(path: &CStr) {
    const BYTES: usize = layout::WORDS * 8;
    let ring = sys::map_file(path, BYTES, PLACE).cast::<AtomicU64>();
    if ring.is_null() {
        return;
    }
    // SAFETY: a word of the ring that was just mapped; all access to it is atomic.
    let word = |at| unsafe { (*ring.add(at)).load(Ordering::Relaxed) };
    if word(0) != layout::VERSION {
        // SAFETY: the mapping is this function's, and nothing refers to it.
        unsafe { sys::unmap(ring.cast(), BYTES) };
        return;
    }
    PID.store(sys::pid().into(), Ordering::Relaxed);
    find_inside(word(layout::INSIDE) as usize);
    LEAST.store(word(layout::LEAST) as usize, Ordering::Relaxed);
    RING.store(ring, Ordering::Release);
}

unsafe extern "C" fn nothing() {}

unsafe extern "C" fn in_child() {
    PID.store(sys::pid().into(), Ordering::Relaxed);
}

pagemill_preload_sys::library::library!(at_load);

/// Runs when the library is loaded.
fn at_load(environment: &Environment) {
    const AT_ENTRY: usize = 9;
    find_real();
    type GetAux = unsafe extern "C" fn(usize) -> usize;
    if let Some(value) = libc::function!("getauxval", GetAux) {
        // SAFETY: a look-up in a table of the C library's.
        PROGRAM.store(unsafe { value(AT_ENTRY) } >> 32, Ordering::Relaxed);
    }
    if let Some(path) = environment.variable(b"PAGEMILL_SITES") {
        open(path);
        libc::at_fork(nothing, nothing, in_child);
    }
}
