//! What the helper asks of Linux: where pages are, which mappings there are, and to move pages.
//!
//! All descriptors here live in the helper's own table. They are opened before the thread gives up its rights; none
//! needs any (the userfaultfd is one for user mode only, which handles no fault: it is there to move pages).

use core::sync::atomic::{AtomicBool, Ordering};

use pagemill_prefault::board::degraded;
use pagemill_prefault::frontier::Pages;
use pagemill_prefault::{HUGE, PAGE};
use pagemill_preload_sys::confine;
use pagemill_preload_sys::sys::{self, linux};

pub(crate) const EEXIST: i32 = 17;
pub(crate) const EAGAIN: i32 = 11;

/// Has the calling thread make way for whoever wakes up, at no loss of its share of the time: its turns are the longest
/// that there are, so anybody else's end sooner and come first (EEVDF, since Linux 6.12; before, it changes nothing).
/// The thread of a real-time program stays as it is.
pub(crate) fn lower_priority() {
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    const KEEP_POLICY: u64 = 0x08;
    const LONGEST_NS: u64 = 100_000_000;
    // SAFETY: no memory.
    let priority = unsafe { sys::call(linux::__NR_getpriority, []) };
    if sys::failed(priority) {
        return;
    }
    let mut attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: 0,
        flags: KEEP_POLICY,
        // The system call answers 20 less the niceness.
        nice: 20 - priority as i32,
        priority: 0,
        runtime: LONGEST_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the kernel reads a struct sched_attr of this size; where that is not a size it knows it writes the one
    // that is.
    unsafe { sys::call(linux::__NR_sched_setattr, [0, (&raw mut attributes).addr()]) };
}

/// Whether the process's address space is limited (`ulimit -v`).
pub(crate) fn has_limited_address_space() -> bool {
    const RLIMIT_AS: usize = 9;
    let mut limit = [u64::MAX; 2];
    // SAFETY: the kernel writes two words.
    unsafe { sys::call(linux::__NR_prlimit64, [0, RLIMIT_AS, 0, (&raw mut limit).addr()]) };
    limit[0] != u64::MAX
}

/// Whether more filters of system calls (seccomp) hold for the calling thread than so many. A kernel that does not
/// count them (before 5.9) is taken to have no more.
pub(crate) fn has_more_filters_than(known: u64) -> bool {
    const PR_GET_SECCOMP: usize = 21;
    const FILTERED: isize = 2;
    // SAFETY: the option takes numbers only.
    if unsafe { sys::prctl(PR_GET_SECCOMP, 0, 0, 0, 0) } != FILTERED {
        return false;
    }
    let fd = sys::open(c"/proc/thread-self/status", sys::O_RDONLY) as i32;
    let filters = confine::filters_in(fd);
    if fd >= 0 {
        sys::close(fd);
    }
    filters.is_some_and(|filters| filters >> 32 > known)
}

fn check(result: isize) -> Result<usize, i32> {
    if sys::failed(result) { Err(-result as i32) } else { Ok(result as usize) }
}

/// Linux, as the helper sees it.
#[derive(Debug)]
pub(crate) struct Linux {
    uffd: i32,
    pagemap: i32,
    maps: i32,
    statm: i32,
}

const PAGEMAP_SCAN: usize = 0xc060_6610;
const PROCMAP_QUERY: usize = 0xc068_6611;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_HUGE: u64 = 1 << 6;

/// A writable private anonymous mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The kernel's name for it is `[heap]`.
    pub(crate) heap: bool,
}

impl Linux {
    /// Opens what there is; the reasons why it is less than all, as bits of [`degraded`].
    pub(crate) fn open() -> (Self, u64) {
        let open = |path| sys::open(path, sys::O_RDONLY) as i32;
        let mut linux = Self {
            uffd: userfaultfd().unwrap_or(-1),
            pagemap: open(c"/proc/self/pagemap"),
            maps: open(c"/proc/self/maps"),
            statm: open(c"/proc/self/statm"),
        };
        let mut missing = 0;
        if linux.uffd < 0 {
            missing |= degraded::NO_MOVE;
        }
        let here = (&raw const missing).addr() as u64 / PAGE * PAGE;
        if linux.first_run(here, here + PAGE).is_none() {
            missing |= degraded::NO_SCAN;
        }
        if linux.mapping_from(0).is_none() {
            missing |= degraded::NO_QUERY;
        }
        (linux, missing)
    }

    /// Resident bytes, and those of them that no file has; zero if the kernel does not say.
    pub(crate) fn resident(&self) -> (u64, u64) {
        let mut buffer = [0; 96];
        let text = sys::text_of(self.statm, &mut buffer);
        let mut pages = text.split(' ').skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
        let (all, of_files) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
        (all * PAGE, all.saturating_sub(of_files) * PAGE)
    }

    /// The first writable private anonymous mapping that ends behind `from`.
    pub(crate) fn mapping_from(&self, from: u64) -> Option<Mapping> {
        const WRITABLE: u64 = 2;
        const SHARED: u64 = 8;
        const COVERING_OR_NEXT: u64 = 0x10;
        let mut from = from;
        loop {
            let mut name = [0_u8; 32];
            // SAFETY: a structure of numbers.
            let mut query: linux::procmap_query = unsafe { core::mem::zeroed() };
            query.size = size_of_val(&query) as u64;
            query.query_flags = WRITABLE | COVERING_OR_NEXT;
            query.query_addr = from;
            query.vma_name_size = name.len() as u32;
            query.vma_name_addr = name.as_mut_ptr().addr() as u64;
            // SAFETY: struct procmap_query, whose name buffer is alive and as long as it says.
            let done = unsafe { sys::ioctl(self.maps, PROCMAP_QUERY, (&raw mut query).addr()) };
            const ENAMETOOLONG: i32 = 36;
            match check(done) {
                Ok(_) => {}
                // A file with a long name: the answer is there but for the name, in no kernel that we know; ask
                // without.
                Err(ENAMETOOLONG) => {
                    query.vma_name_size = 0;
                    query.vma_name_addr = 0;
                    // SAFETY: as above, without a buffer.
                    let done =
                        unsafe { sys::ioctl(self.maps, PROCMAP_QUERY, (&raw mut query).addr()) };
                    check(done).ok()?;
                }
                Err(_) => return None,
            }
            from = query.vma_end;
            let heap = name.starts_with(b"[heap]");
            let named = name[0] != 0 && !heap && !name.starts_with(b"[anon:");
            if query.vma_flags & SHARED == 0
                && query.inode == 0
                && query.dev_major | query.dev_minor == 0
                && !named
            {
                return Some(Mapping { start: query.vma_start, end: query.vma_end, heap });
            }
        }
    }

    fn uffd(&self, request: usize, argument: &mut [u64]) -> Result<usize, i32> {
        // SAFETY: each caller passes the words of its request.
        check(unsafe { sys::ioctl(self.uffd, request, argument.as_mut_ptr().addr()) })
    }

    /// Makes a range one that pages may be moved into, for [`Linux::place`]; an error if it is not one mapping of
    /// private anonymous memory, or is somebody else's with userfaultfd. No page in it is protected, so nothing that
    /// the program does there waits for us.
    pub(crate) fn register(&self, start: u64, len: u64) -> Result<(), i32> {
        const WRITE_PROTECT: u64 = 2;
        self.uffd(sys::UFFDIO_REGISTER, &mut [start, len, WRITE_PROTECT, 0]).map(drop)
    }

    /// Ends what [`Linux::register`] began; the mapping is then as it was.
    pub(crate) fn unregister(&self, start: u64, len: u64) {
        // Fails only if the range is gone meanwhile, and then there is nothing to end.
        let _ = self.uffd(sys::UFFDIO_UNREGISTER, &mut [start, len]);
    }

    /// Moves pages from the pool to where there are none; the bytes moved, and why it stopped before the end.
    pub(crate) fn place(&self, to: u64, from: u64, len: u64) -> (u64, Option<i32>) {
        const DONT_WAKE: u64 = 1;
        let mut words = [to, from, len, DONT_WAKE, 0];
        let result = self.uffd(sys::UFFDIO_MOVE, &mut words);
        let moved = u64::try_from(words[4] as i64).unwrap_or(0).min(len);
        (moved, result.err())
    }

    /// Whether one huge page lies there.
    pub(crate) fn is_huge(&self, chunk: u64) -> bool {
        self.scan(chunk, chunk + HUGE, PAGE_IS_HUGE) == Some((chunk, chunk + HUGE))
    }

    /// The first run of pages of any of these categories.
    fn scan(&self, start: u64, end: u64, categories: u64) -> Option<(u64, u64)> {
        let mut run = [0_u64; 3];
        // SAFETY: a structure of numbers.
        let mut argument: linux::pm_scan_arg = unsafe { core::mem::zeroed() };
        argument.size = size_of_val(&argument) as u64;
        argument.start = start;
        argument.end = end;
        argument.vec = run.as_mut_ptr().addr() as u64;
        argument.vec_len = 1;
        argument.category_anyof_mask = categories;
        argument.return_mask = categories & !PAGE_IS_SWAPPED;
        // SAFETY: struct pm_scan_arg, with room for one struct page_region.
        let found = unsafe { sys::ioctl(self.pagemap, PAGEMAP_SCAN, (&raw mut argument).addr()) };
        (found == 1).then_some((run[0], run[1]))
    }
}

impl Pages for Linux {
    fn is_present(&mut self, page: u64) -> bool {
        const THERE: u64 = 0b11 << 62;
        let mut entry = 0_u64;
        let place = (&raw mut entry).cast();
        // SAFETY: the kernel writes at most one word.
        unsafe { sys::read_at(self.pagemap, place, 8, (page / PAGE * 8) as usize) };
        entry & THERE != 0
    }

    fn first_run(&mut self, from: u64, to: u64) -> Option<(u64, u64)> {
        self.scan(from, to, PAGE_IS_PRESENT | PAGE_IS_SWAPPED)
    }
}

/// A userfaultfd that moves pages and handles no fault of the kernel's: every user may have one.
fn userfaultfd() -> Option<i32> {
    const FEATURE_MOVE: u64 = 1 << 16;
    let fd = sys::userfaultfd(linux::UFFD_USER_MODE_ONLY as usize);
    if sys::failed(fd) {
        return None;
    }
    sys::userfaultfd_features(fd as i32, FEATURE_MOVE).map(|_| fd as i32)
}

/// Touches every page of a range of the pool.
pub(crate) fn populate(start: u64, len: u64) -> bool {
    // SAFETY: changes no byte.
    !sys::failed(unsafe { sys::advise(start as *mut u8, len as usize, sys::MADV_POPULATE_WRITE) })
}

/// Whether some range was ever advised.
static ADVISED: AtomicBool = AtomicBool::new(false);

/// Whether mappings may be split because a part of them was advised.
pub(crate) fn has_advised() -> bool {
    ADVISED.load(Ordering::Relaxed)
}

/// Has the kernel use huge pages in a range, for the program's own faults too.
pub(crate) fn want_huge(start: u64, len: u64) -> bool {
    ADVISED.store(true, Ordering::Relaxed);
    // SAFETY: changes no byte.
    !sys::failed(unsafe { sys::advise(start as *mut u8, len as usize, sys::MADV_HUGEPAGE) })
}

/// Has the kernel use base pages in a range that [`want_huge`] was asked for.
pub(crate) fn want_base(start: u64, len: u64) {
    // SAFETY: changes no byte.
    unsafe { sys::advise(start as *mut u8, len as usize, sys::MADV_NOHUGEPAGE) };
}

/// Has the kernel make one huge page of a chunk of the program.
pub(crate) fn collapse(chunk: u64) -> bool {
    // SAFETY: changes no byte.
    !sys::failed(unsafe { sys::advise(chunk as *mut u8, HUGE as usize, sys::MADV_COLLAPSE) })
}
