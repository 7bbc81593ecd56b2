//! A heap made of plain mappings, and the kernel through libc, for tests of the compaction engine on
//! real memory.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use pagemill_heap::compact::{
    BarrierSupport, Bits, Errno, Image, Kernel, Registration, SpanView, Spans, Sys,
};
use pagemill_heap::os::{Misuse, Os};

pub const PAGE: usize = 4096;
const CHUNK: usize = 2 << 20;

/// The operating system through libc.
pub struct LibcOs;

impl Os for LibcOs {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn map(&self, len: usize, align: usize) -> *mut u8 {
        assert!(align <= PAGE, "the engine asks for page alignment only");
        // SAFETY: a new private anonymous mapping replaces nothing.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED { ptr::null_mut() } else { start.cast() }
    }

    unsafe fn unmap(&self, start: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the range.
        unsafe { libc::munmap(start.cast(), len) };
    }

    unsafe fn decommit(&self, start: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the range.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_DONTNEED) };
    }

    unsafe fn remap(&self, start: *mut u8, old: usize, new: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the mapping.
        let moved = unsafe { libc::mremap(start.cast(), old, new, libc::MREMAP_MAYMOVE) };
        if moved == libc::MAP_FAILED { ptr::null_mut() } else { moved.cast() }
    }

    fn now_ns(&self) -> u64 {
        clock(libc::CLOCK_MONOTONIC)
    }

    fn wait(&self, _: &AtomicU64, _: u64) {
        std::thread::yield_now();
    }

    fn wake(&self, _: &AtomicU64) {}

    fn entropy(&self) -> u64 {
        7
    }

    fn misuse(&self, what: Misuse, object: *mut u8) -> ! {
        panic!("{what:?} of {object:?}")
    }
}

pub fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

const UFFD_API: u64 = 0xAA;
const FEATURE_WP: u64 = 1;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_MOVE: u64 = 1 << 16;

const fn ioc(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | 0xAA << 8 | number
}
const UFFDIO_API: u64 = ioc(3, 0x3F, 24);
const UFFDIO_REGISTER: u64 = ioc(3, 0, 32);
const UFFDIO_UNREGISTER: u64 = ioc(2, 1, 16);
const UFFDIO_WAKE: u64 = ioc(2, 2, 16);
const UFFDIO_MOVE: u64 = ioc(3, 5, 40);
const UFFDIO_WRITEPROTECT: u64 = ioc(3, 6, 24);

/// The kernel through libc and a userfaultfd of the test.
pub struct LibcKernel {
    uffd: RawFd,
    pagemap: fs::File,
    /// What a child uses instead of the two above, which are its parent's.
    child: OnceLock<(RawFd, fs::File)>,
    pub moves: bool,
    /// Says that something may be pinned, whatever the process holds.
    pub claim_pins: AtomicBool,
    /// Says that the caller is the only thread.
    pub alone: AtomicBool,
    pub moved: AtomicU64,
    pub refused: AtomicU64,
    /// Images closed.
    pub closed: AtomicU64,
    /// Fails one in this many calls that can fail, at random; 0 for none.
    pub fail_one_in: AtomicUsize,
    pub failed: AtomicU64,
    random: Mutex<Random>,
}

fn errno() -> Errno {
    Errno(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

impl LibcKernel {
    /// `Err` with the reason if this process may not have a userfaultfd that stops kernel writers.
    pub fn new() -> Result<Self, String> {
        // SAFETY: the call takes flags and returns a descriptor.
        let uffd =
            unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if uffd < 0 {
            return Err(format!("userfaultfd: {}", io::Error::last_os_error()));
        }
        let uffd = uffd as RawFd;
        let wanted = FEATURE_WP | FEATURE_WP_SHMEM | FEATURE_WP_UNPOPULATED;
        for features in [wanted | FEATURE_MOVE, wanted] {
            let mut api = [UFFD_API, features, 0u64];
            // SAFETY: `api` is a struct uffdio_api.
            if unsafe { libc::ioctl(uffd, UFFDIO_API, api.as_mut_ptr()) } == 0 {
                let pagemap = fs::File::open("/proc/self/pagemap").map_err(|e| e.to_string())?;
                return Ok(Self {
                    uffd,
                    pagemap,
                    child: OnceLock::new(),
                    moves: features & FEATURE_MOVE != 0,
                    claim_pins: AtomicBool::new(false),
                    alone: AtomicBool::new(false),
                    moved: AtomicU64::new(0),
                    refused: AtomicU64::new(0),
                    closed: AtomicU64::new(0),
                    fail_one_in: AtomicUsize::new(0),
                    failed: AtomicU64::new(0),
                    random: Mutex::new(Random(0xFA11)),
                });
            }
        }
        Err(format!("UFFDIO_API: {} (needs Linux 6.4)", io::Error::last_os_error()))
    }

    /// Gives a child of `fork` its own userfaultfd and page map.
    pub fn forked(&self) -> bool {
        Self::new().is_ok_and(|own| self.child.set((own.uffd, own.pagemap)).is_ok())
    }

    fn uffd(&self) -> RawFd {
        self.child.get().map_or(self.uffd, |(uffd, _)| *uffd)
    }

    /// `ENOMEM` now and then, if the test asked for it.
    fn fault(&self) -> Sys<()> {
        let one_in = self.fail_one_in.load(Relaxed);
        if one_in != 0 && self.random.lock().expect("no test thread panics").below(one_in) == 0 {
            self.failed.fetch_add(1, Relaxed);
            return Err(Errno(libc::ENOMEM));
        }
        Ok(())
    }

    fn ioctl<const N: usize>(&self, request: u64, mut argument: [u64; N]) -> Sys<[u64; N]> {
        // SAFETY: every request in this file is called with the words of its own struct.
        if unsafe { libc::ioctl(self.uffd(), request, argument.as_mut_ptr()) } == 0 {
            Ok(argument)
        } else {
            Err(errno())
        }
    }
}

impl Kernel for &LibcKernel {
    fn now_ns(&self) -> u64 {
        clock(libc::CLOCK_MONOTONIC)
    }

    fn cpu_ns(&self) -> u64 {
        clock(libc::CLOCK_THREAD_CPUTIME_ID)
    }

    fn barrier(&self) -> BarrierSupport {
        if self.alone.load(Relaxed) {
            return BarrierSupport::SingleThread;
        }
        BarrierSupport::WriteProtect { moves: self.moves }
    }

    fn register(&self, start: usize, len: usize, how: Registration) -> Sys<()> {
        self.fault()?;
        let mode = match how {
            Registration::WriteProtect => 2,
            Registration::Missing => 3,
        };
        self.ioctl(UFFDIO_REGISTER, [start as u64, len as u64, mode, 0]).map(drop)
    }

    fn unregister(&self, start: usize, len: usize) -> Sys<()> {
        self.ioctl(UFFDIO_UNREGISTER, [start as u64, len as u64]).map(drop)
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Sys<()> {
        if on {
            self.fault()?;
        }
        self.ioctl(UFFDIO_WRITEPROTECT, [start as u64, len as u64, u64::from(on)]).map(drop)
    }

    unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> usize {
        let mut argument = [to as u64, from as u64, len as u64, 2, 0u64];
        // SAFETY: a struct uffdio_move; the caller vouches for the ranges.
        let done = unsafe { libc::ioctl(self.uffd(), UFFDIO_MOVE, argument.as_mut_ptr()) };
        let moved = if done == 0 { len } else { (argument[4] as i64).max(0) as usize };
        self.moved.fetch_add(moved as u64, Relaxed);
        self.refused.fetch_add(u64::from(moved < len), Relaxed);
        moved
    }

    fn waiters(&self) -> usize {
        let mut messages = [0u64; 64];
        // SAFETY: the array is as long as the call is told.
        let read = unsafe {
            libc::read(self.uffd(), messages.as_mut_ptr().cast(), size_of_val(&messages))
        };
        // A struct uffd_msg is four words.
        read.max(0) as usize / 32
    }

    fn wait_for_space(&self, own: usize) {
        // SAFETY: the page is the engine's, which reads and writes it.
        unsafe { libc::mprotect(own as *mut _, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
    }

    fn wake(&self, start: usize, len: usize) {
        self.ioctl(UFFDIO_WAKE, [start as u64, len as u64]).expect("wake takes any range");
    }

    fn image_create(&self, len: usize) -> Sys<Image> {
        self.fault()?;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"test-image".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: `fd` is checked by the call itself.
        if fd < 0 || unsafe { libc::ftruncate(fd, len as i64) } != 0 {
            return Err(errno());
        }
        Ok(Image(fd))
    }

    fn image_write(&self, image: Image, offset: usize, from: &[u8]) -> Sys<()> {
        self.fault()?;
        // SAFETY: the slice is readable.
        let n = unsafe { libc::pwrite(image.0, from.as_ptr().cast(), from.len(), offset as i64) };
        if n == from.len() as isize { Ok(()) } else { Err(errno()) }
    }

    fn image_close(&self, image: Image) {
        self.closed.fetch_add(1, Relaxed);
        // SAFETY: the engine closes an image once.
        unsafe { libc::close(image.0) };
    }

    unsafe fn map_image(&self, at: usize, len: usize, image: Image, offset: usize) -> Sys<()> {
        self.fault()?;
        // SAFETY: the caller vouches for the range.
        let mapped = unsafe {
            libc::mmap(
                at as *mut _,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE,
                image.0,
                offset as i64,
            )
        };
        if mapped == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
    }

    unsafe fn map_anonymous(&self, at: usize, len: usize) -> Sys<()> {
        self.fault()?;
        // SAFETY: the caller vouches for the range.
        let mapped = unsafe {
            libc::mmap(
                at as *mut _,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(errno());
        }
        self.split_huge_pages(at, len);
        Ok(())
    }

    unsafe fn replace(&self, from: usize, at: usize, len: usize) -> Sys<()> {
        self.fault()?;
        // SAFETY: the caller vouches for both ranges.
        let moved = unsafe {
            libc::mremap(
                from as *mut _,
                len,
                len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                at as *mut libc::c_void,
            )
        };
        if moved == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
    }

    unsafe fn decommit(&self, start: usize, len: usize) {
        // SAFETY: the caller vouches for the range.
        unsafe { libc::madvise(start as *mut _, len, libc::MADV_DONTNEED) };
    }

    fn split_huge_pages(&self, start: usize, len: usize) {
        // SAFETY: advice about huge pages and reclaim changes no content. Cold advice for a part of a huge
        // page splits it.
        unsafe {
            libc::madvise(start as *mut _, len, libc::MADV_NOHUGEPAGE);
            if len >= CHUNK {
                libc::madvise(start as *mut _, PAGE, libc::MADV_COLD);
            }
        }
    }

    fn mergeable(&self, start: usize, len: usize) -> Sys<()> {
        self.fault()?;
        // SAFETY: merging changes no content.
        if unsafe { libc::madvise(start as *mut _, len, libc::MADV_MERGEABLE) } == 0 {
            Ok(())
        } else {
            Err(errno())
        }
    }

    fn pagemap(&self, start: usize, entries: &mut [u64]) -> Sys<()> {
        self.fault()?;
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; entries.len() * 8];
        let file = self.child.get().map_or(&self.pagemap, |(_, pagemap)| pagemap);
        file.read_exact_at(&mut bytes, (start / PAGE * 8) as u64).map_err(|_| errno())?;
        for (entry, bytes) in entries.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *entry = u64::from_le_bytes(*bytes);
        }
        Ok(())
    }

    fn pin_risk(&self) -> bool {
        self.claim_pins.load(Relaxed)
    }

    fn ksm_merged(&self) -> Option<u64> {
        fs::read_to_string("/proc/self/ksm_merging_pages").ok()?.trim().parse().ok()
    }

    fn map_count(&self) -> usize {
        fs::read_to_string("/proc/self/maps").expect("maps is readable").lines().count()
    }

    fn max_map_count(&self) -> usize {
        let text = fs::read_to_string("/proc/sys/vm/max_map_count").expect("sysctl is readable");
        text.trim().parse().expect("a number")
    }
}

#[derive(Default)]
struct State {
    live: Bits,
    /// Pages blocked.
    pages: u16,
    generation: u32,
}

/// Spans of one shape in one region.
pub struct Region {
    pub start: usize,
    pub slot_size: usize,
    pub pages: usize,
    pub slots: usize,
    spans: Vec<Mutex<State>>,
    pub blocks: AtomicUsize,
    /// The whole mapping.
    raw: (usize, usize),
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the region any more. Its mappings must go: a test process may hold as
        // few as any other.
        unsafe { LibcOs.unmap(self.raw.0 as *mut u8, self.raw.1) };
    }
}

impl Region {
    /// `count` spans of `pages` pages, nothing live.
    pub fn new(count: usize, pages: usize, slot_size: usize, huge: bool) -> Self {
        let len = (count * pages * PAGE).next_multiple_of(CHUNK) + CHUNK;
        let raw = LibcOs.map(len, PAGE) as usize;
        assert_ne!(raw, 0, "no memory for the test");
        let start = raw.next_multiple_of(CHUNK);
        // SAFETY: advice about huge pages changes no content.
        unsafe {
            let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            libc::madvise(raw as *mut _, len, advice)
        };
        let spans = (0..count).map(|_| Mutex::new(State::default())).collect();
        let slots = (pages * PAGE / slot_size).min(256);
        Self { start, slot_size, pages, slots, spans, blocks: AtomicUsize::new(0), raw: (raw, len) }
    }

    pub fn spans(&self) -> usize {
        self.spans.len()
    }

    pub fn at(&self, span: usize, slot: usize) -> *mut u64 {
        (self.start + span * self.pages * PAGE + slot * self.slot_size) as *mut u64
    }

    pub fn words(&self) -> usize {
        self.slot_size / 8
    }

    fn overlaps(&self, pages: u16) -> Bits {
        let mut bits = [0; 4];
        if pages == 0 {
            return bits;
        }
        for slot in 0..self.slots {
            let (first, last) =
                (slot * self.slot_size / PAGE, ((slot + 1) * self.slot_size - 1) / PAGE);
            if (first..=last).any(|page| pages >> page & 1 == 1) {
                bits[slot / 64] |= 1 << (slot % 64);
            }
        }
        bits
    }

    /// Makes a slot live if it is free and not blocked.
    pub fn take(&self, span: usize, slot: usize) -> bool {
        let mut state = self.spans[span].lock().expect("no test thread panics");
        let bit = 1 << (slot % 64);
        let free =
            state.live[slot / 64] & bit == 0 && self.overlaps(state.pages)[slot / 64] & bit == 0;
        if free {
            state.live[slot / 64] |= bit;
        }
        free
    }

    pub fn free(&self, span: usize, slot: usize) {
        let mut state = self.spans[span].lock().expect("no test thread panics");
        state.live[slot / 64] &= !(1 << (slot % 64));
    }

    pub fn blocked_pages(&self) -> u32 {
        self.spans
            .iter()
            .map(|span| span.lock().expect("no test thread panics").pages.count_ones())
            .sum()
    }
}

fn mask(pages: &Range<u8>) -> u16 {
    (((1u32 << (pages.end - pages.start)) - 1) << pages.start) as u16
}

// SAFETY: the region is private anonymous memory that lives as long as the test; `take` hands out no
// slot that overlaps a blocked page, and nothing else changes mappings or generations.
unsafe impl Spans for &Region {
    type Ref = u32;

    fn count(&self) -> usize {
        self.spans.len()
    }

    fn at(&self, index: usize) -> Option<u32> {
        Some(index as u32)
    }

    fn inspect(&self, span: u32) -> Option<SpanView> {
        let state = self.spans[span as usize].lock().expect("no test thread panics");
        Some(SpanView {
            start: self.start + span as usize * self.pages * PAGE,
            class: 3,
            slot_size: self.slot_size as u32,
            slots: self.slots as u16,
            pages: self.pages as u8,
            live: state.live,
            blocked: self.overlaps(state.pages),
            resident: u16::MAX,
            generation: state.generation,
        })
    }

    fn block(&self, span: u32, generation: u32, pages: Range<u8>) -> Option<Bits> {
        let mut state = self.spans[span as usize].lock().expect("no test thread panics");
        if state.generation != generation || state.pages & mask(&pages) != 0 {
            return None;
        }
        state.pages |= mask(&pages);
        self.blocks.fetch_add(1, Relaxed);
        Some(state.live)
    }

    fn unblock(&self, span: u32, generation: u32, pages: Range<u8>) {
        let mut state = self.spans[span as usize].lock().expect("no test thread panics");
        assert_eq!(state.generation, generation, "a blocked span keeps its generation");
        assert_eq!(state.pages & mask(&pages), mask(&pages), "only what is blocked is unblocked");
        state.pages &= !mask(&pages);
    }

    fn purge(&self, _: u64, _: bool) -> usize {
        0
    }
}

/// A seeded generator (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

/// A line of `/proc/self/smaps_rollup`, in bytes.
pub fn rollup(key: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("smaps_rollup is readable");
    let line = text.lines().find(|line| line.starts_with(key)).expect("the key exists");
    let kib: u64 = line.split_whitespace().nth(1).expect("a value").parse().expect("a number");
    kib * 1024
}
