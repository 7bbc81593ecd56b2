//! The kernel operations of compaction, for the helper thread: userfaultfd, images, `/proc`.
//!
//! All descriptors here live in the helper's own table: the program neither sees nor closes them.
//! They are opened before the thread gives up its capabilities.

use core::cell::Cell;
use core::ffi::CStr;
use core::fmt::Write;

use pagemill_heap::compact::{BarrierSupport, Errno, Image, Kernel, Registration, Sys};
use pagemill_heap::size::CHUNK;
use pagemill_preload_sys::sys;

use crate::line::Line;

/// `EINTR`, `EAGAIN`, `ENOSPC`.
const INTERRUPTED: isize = -4;
const AGAIN: isize = -11;
const NO_SPACE: i32 = 28;

/// Sleep before a call that said `EAGAIN` is made again.
const AGAIN_NS: u64 = 20_000;

/// Work above which the search for pins takes too long while pages are frozen, in descriptors that are no files (some
/// 0.7 us each): the answer is then yes.
const SEARCH_MAX: usize = 384;

/// What looking at a file takes, in the same unit: three more calls.
const FILE_WORK: usize = 4;

fn check(result: isize) -> Sys<()> {
    if sys::failed(result) { Err(Errno(-result as i32)) } else { Ok(()) }
}

/// Linux, as the compactor sees it.
#[derive(Debug)]
pub(crate) struct Linux {
    uffd: Option<i32>,
    moves: bool,
    pagemap: i32,
    /// The count of pages that `ksmd` has merged.
    merged: i32,
    page_size: usize,
    settled: Cell<bool>,
    /// Whether the mappings told of something that pins when the pass began.
    rings: Cell<bool>,
}

impl Linux {
    /// Opens what needs rights. What cannot be opened is missing from [`Kernel::barrier`].
    pub(crate) fn open(page_size: usize) -> Self {
        let (uffd, moves) = userfaultfd().map_or((None, false), |(fd, moves)| (Some(fd), moves));
        let open = |path| sys::open(path, sys::O_RDONLY) as i32;
        Self {
            uffd,
            moves,
            pagemap: open(c"/proc/self/pagemap"),
            merged: open(c"/proc/self/ksm_merging_pages"),
            page_size,
            settled: Cell::new(false),
            rings: Cell::new(true),
        }
    }

    fn uffd_ioctl<T>(&self, request: usize, argument: &mut T) -> Sys<()> {
        let fd = self.uffd.ok_or(Errno(9))?;
        // SAFETY: each caller passes the structure of its request; its ranges are the heap's, and what a request does
        // to them is that caller's contract.
        check(unsafe { sys::ioctl(fd, request, core::ptr::from_mut(argument).addr()) })
    }
}

const FEATURE_WP: u64 = 1;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_MOVE: u64 = 1 << 16;

/// A userfaultfd that stops kernel writers too, and whether it can move pages. `None` without the
/// right to one, or where it cannot write-protect pages that were never touched.
fn userfaultfd() -> Option<(i32, bool)> {
    let (probe, offered) = new_userfaultfd(0)?;
    sys::close(probe);
    let wanted = FEATURE_WP | FEATURE_WP_UNPOPULATED;
    if offered & wanted != wanted {
        return None;
    }
    let moves = offered & FEATURE_MOVE;
    let (fd, _) = new_userfaultfd(wanted | moves)?;
    Some((fd, moves != 0))
}

/// A userfaultfd with these features, and all that the kernel offers. The system call needs `CAP_SYS_PTRACE` (or
/// `vm.unprivileged_userfaultfd`), the device needs leave to open it.
fn new_userfaultfd(features: u64) -> Option<(i32, u64)> {
    let mut fd = sys::userfaultfd(0);
    if sys::failed(fd) {
        let device = sys::open(c"/dev/userfaultfd", sys::O_RDWR);
        if sys::failed(device) {
            return None;
        }
        let flags = sys::O_CLOEXEC | sys::O_NONBLOCK;
        // SAFETY: makes a descriptor, touches no memory.
        fd = unsafe { sys::ioctl(device as i32, sys::USERFAULTFD_IOC_NEW, flags) };
        sys::close(device as i32);
    }
    if sys::failed(fd) {
        return None;
    }
    Some((fd as i32, sys::userfaultfd_features(fd as i32, features)?))
}

impl Kernel for Linux {
    fn now_ns(&self) -> u64 {
        sys::clock(sys::CLOCK_MONOTONIC)
    }

    fn cpu_ns(&self) -> u64 {
        sys::clock(sys::CLOCK_THREAD_CPUTIME_ID)
    }

    fn barrier(&self) -> BarrierSupport {
        self.rings.set(maps_may_pin());
        if self.uffd.is_some() {
            BarrierSupport::WriteProtect { moves: self.moves }
        } else {
            BarrierSupport::Nothing
        }
    }

    fn register(&self, start: usize, len: usize, how: Registration) -> Sys<()> {
        const MISSING: u64 = 1;
        const WP: u64 = 2;
        let mode = match how {
            Registration::WriteProtect => WP,
            Registration::Missing => WP | MISSING,
        };
        self.uffd_ioctl(sys::UFFDIO_REGISTER, &mut [start as u64, len as u64, mode, 0])
    }

    fn unregister(&self, start: usize, len: usize) -> Sys<()> {
        self.uffd_ioctl(sys::UFFDIO_UNREGISTER, &mut [start as u64, len as u64])
    }

    fn write_protect(&self, start: usize, len: usize, on: bool) -> Sys<()> {
        let argument = [start as u64, len as u64, u64::from(on)];
        loop {
            // EAGAIN: the address space is being changed by another thread, which may need this processor; nothing was
            // done.
            match self.uffd_ioctl(sys::UFFDIO_WRITEPROTECT, &mut argument.clone()) {
                Err(Errno(error)) if -(error as isize) == AGAIN => sys::sleep(AGAIN_NS),
                other => return other,
            }
        }
    }

    unsafe fn move_pages(&self, to: usize, from: usize, len: usize) -> usize {
        const ALLOW_SRC_HOLES: u64 = 2;
        let mut done = 0;
        while done < len {
            let mut argument = [
                (to + done) as u64,
                (from + done) as u64,
                (len - done) as u64,
                ALLOW_SRC_HOLES,
                0_u64,
            ];
            let result = self.uffd_ioctl(sys::UFFDIO_MOVE, &mut argument);
            // The last word: bytes moved, or a negated error number if none were.
            done += usize::try_from(argument[4] as i64).unwrap_or(0);
            match result {
                Err(Errno(error)) if -(error as isize) == AGAIN => sys::sleep(AGAIN_NS),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        done.min(len)
    }

    fn waiters(&self) -> usize {
        /// Bytes of a struct uffd_msg.
        const MESSAGE: usize = 32;
        let mut messages = [0; 16 * MESSAGE];
        // The descriptor was opened not to wait; an error is that there is no message.
        let read = self.uffd.map_or(0, |fd| sys::read(fd, &mut messages));
        usize::try_from(read).unwrap_or(0) / MESSAGE
    }

    fn wait_for_space(&self, own: usize) {
        /// Longer than this takes when nobody has the address space.
        const QUICK_NS: u64 = 50_000;
        const TURNS: u32 = 4;
        const REST_NS: u64 = 500_000;
        for _ in 0..TURNS {
            let begin = self.now_ns();
            // Changes nothing, but takes its turn as every change of mappings does.
            sys::allow(own, self.page_size);
            if self.now_ns().wrapping_sub(begin) < QUICK_NS {
                break;
            }
            // A reader that let us through between two mappings goes on with the next one now.
            sys::sleep(REST_NS);
        }
    }

    fn wake(&self, start: usize, len: usize) {
        // Fails only for a range that is not page-aligned or without a userfaultfd.
        let _ = self.uffd_ioctl(sys::UFFDIO_WAKE, &mut [start as u64, len as u64]);
    }

    fn image_create(&self, len: usize) -> Sys<Image> {
        let fd = sys::memory_file(c"pagemill");
        check(fd)?;
        let fd = fd as i32;
        check(sys::set_length(fd, len)).inspect_err(|_| sys::close(fd))?;
        Ok(Image(fd))
    }

    fn image_write(&self, image: Image, offset: usize, from: &[u8]) -> Sys<()> {
        let mut done = 0;
        while done < from.len() {
            match sys::write_at(image.0, &from[done..], offset + done) {
                0 => return Err(Errno(NO_SPACE)),
                INTERRUPTED => {}
                result => {
                    check(result)?;
                    done += result as usize;
                }
            }
        }
        Ok(())
    }

    fn image_close(&self, image: Image) {
        sys::close(image.0);
    }

    unsafe fn map_image(&self, at: usize, len: usize, image: Image, offset: usize) -> Sys<()> {
        // SAFETY: the caller's promise.
        check(unsafe { sys::map_over(at, len, sys::MAP_NORESERVE, Some((image.0, offset))) })
    }

    unsafe fn map_anonymous(&self, at: usize, len: usize) -> Sys<()> {
        // SAFETY: the caller's promise.
        check(unsafe { sys::map_over(at, len, crate::vma_stripe::flags(at), None) })?;
        if self.settled.get() {
            // SAFETY: changes no byte; the range is the new mapping.
            unsafe { sys::advise(at as *mut u8, len, sys::MADV_NOHUGEPAGE) };
        }
        Ok(())
    }

    unsafe fn replace(&self, from: usize, at: usize, len: usize) -> Sys<()> {
        // SAFETY: the caller's promise.
        check(unsafe { sys::move_over(from, at, len) })
    }

    unsafe fn decommit(&self, start: usize, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { sys::advise(start as *mut u8, len, sys::MADV_DONTNEED) };
    }

    unsafe fn decommit_all(&self, ranges: &[(usize, usize)]) {
        // Linux 6.13 lets a process advise itself so, and 6.16 flushes once for all ranges.
        // SAFETY: the caller's promise, for each range.
        let done = unsafe { sys::advise_all(ranges, sys::MADV_DONTNEED) };
        let mut done = usize::try_from(done).unwrap_or(0);
        for &(start, len) in ranges {
            if done >= len {
                done -= len;
                continue;
            }
            // SAFETY: as above; a range advised in part is advised again.
            unsafe { self.decommit(start, len) };
            done = 0;
        }
    }

    fn split_huge_pages(&self, start: usize, len: usize) {
        self.settled.set(true);
        // SAFETY: neither advice changes a byte.
        unsafe {
            sys::advise(start as *mut u8, len, sys::MADV_NOHUGEPAGE);
            // A chunk is as large as a huge page.
            for page in (start.next_multiple_of(CHUNK)..start + len).step_by(CHUNK) {
                // On a part of a huge page this splits it, which is the point.
                sys::advise(page as *mut u8, self.page_size, sys::MADV_COLD);
            }
        }
    }

    fn mergeable(&self, start: usize, len: usize) -> Sys<()> {
        // SAFETY: changes no byte.
        check(unsafe { sys::advise(start as *mut u8, len, sys::MADV_MERGEABLE) })
    }

    fn pagemap(&self, start: usize, entries: &mut [u64]) -> Sys<()> {
        let (len, offset) = (size_of_val(entries), start / self.page_size * 8);
        // SAFETY: the kernel writes at most the whole slice.
        let got = unsafe { sys::read_at(self.pagemap, entries.as_mut_ptr().cast(), len, offset) };
        check(got)?;
        if got as usize == len { Ok(()) } else { Err(Errno(NO_SPACE)) }
    }

    fn pin_risk(&self) -> bool {
        // The mappings, thousands while much is merged, are read once a pass: a ring made since then moves data only
        // through descriptors, which are looked at each time.
        self.rings.get() || descriptors_may_pin()
    }

    fn ksm_merged(&self) -> Option<u64> {
        let mut buffer = [0; 24];
        sys::text_of(self.merged, &mut buffer).trim().parse().ok()
    }

    fn map_count(&self) -> usize {
        let mut lines = 0;
        each_chunk(c"/proc/self/maps", |bytes| {
            lines += bytes.iter().filter(|&&byte| byte == b'\n').count();
        });
        lines
    }

    fn max_map_count(&self) -> usize {
        /// The kernel's default.
        const DEFAULT: usize = 65_530;
        let mut buffer = [0; 24];
        let len = crate::environment::read_file(c"/proc/sys/vm/max_map_count", &mut buffer);
        let text = core::str::from_utf8(&buffer[..len]).unwrap_or_default();
        text.trim().parse().unwrap_or(DEFAULT)
    }
}

/// Calls `f` with a file's bytes, piece by piece; whether it could be read at all.
fn each_chunk(path: &CStr, mut f: impl FnMut(&[u8])) -> bool {
    let fd = sys::open(path, sys::O_RDONLY);
    if sys::failed(fd) {
        return false;
    }
    let mut buffer = [0; 8192];
    let mut any = false;
    loop {
        let got = sys::read(fd as i32, &mut buffer);
        if got <= 0 {
            break;
        }
        any = true;
        f(&buffer[..got as usize]);
    }
    sys::close(fd as i32);
    any
}

/// Whether a mapping tells of something that pins: rings of io_uring and AIO, devices. If the list
/// cannot be read, the answer is yes.
fn maps_may_pin() -> bool {
    let mut line = [0; 512];
    let mut len = 0;
    let mut found = false;
    let readable = each_chunk(c"/proc/self/maps", |bytes| {
        for &byte in bytes {
            if byte != b'\n' {
                if len < line.len() {
                    line[len] = byte;
                    len += 1;
                }
                continue;
            }
            // Of "address rights offset device inode path", the path begins at the first '/' or '['.
            if let Some(path) = line[..len].iter().position(|&byte| byte == b'/' || byte == b'[') {
                found |= line[path..len].starts_with(b"/[aio]") || pins(&line[path..len]);
            } else {
                found |= line[..len].ends_with(b"anon_inode:[io_uring]");
            }
            len = 0;
        }
    });
    found || !readable
}

/// Whether what a descriptor or mapping refers to can keep a program's pages pinned for writing.
fn pins(target: &[u8]) -> bool {
    /// Devices that move no data by themselves.
    const HARMLESS: [&[u8]; 12] = [
        b"null", b"zero", b"full", b"random", b"urandom", b"tty", b"pts/", b"ptmx", b"console",
        b"shm/", b"mqueue", b"fuse",
    ];
    if let Some(device) = target.strip_prefix(b"/dev/") {
        return !HARMLESS.iter().any(|name| device.starts_with(name));
    }
    target == b"anon_inode:[io_uring]" || target == b"[io_uring]"
}

/// Whether any of the program's descriptors may pin. If they cannot be listed, or are many, the
/// answer is yes.
fn descriptors_may_pin() -> bool {
    let directory = sys::open(c"/proc/self/fd", sys::O_RDONLY | sys::O_DIRECTORY);
    if sys::failed(directory) {
        return true;
    }
    let directory = directory as i32;
    let (mut seen, mut work) = (0, 0);
    let risk = 'search: {
        let mut buffer = [0; 4096];
        loop {
            let len = sys::directory_entries(directory, &mut buffer);
            if sys::failed(len) {
                break 'search true;
            }
            if len == 0 {
                break 'search false;
            }
            let mut rest = &buffer[..len as usize];
            // struct linux_dirent64: inode 8, offset 8, length 2, type 1, name.
            while rest.len() > 19 {
                let entry = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
                if entry < 19 || entry > rest.len() {
                    break 'search true;
                }
                let name = CStr::from_bytes_until_nul(&rest[19..entry]).unwrap_or(c".");
                rest = &rest[entry..];
                if name.to_bytes().starts_with(b".") {
                    continue;
                }
                seen += 1;
                match descriptor(directory, name) {
                    Descriptor::Harmless => work += 1,
                    Descriptor::File if !is_direct(name) => work += FILE_WORK,
                    Descriptor::File | Descriptor::Pins => break 'search true,
                }
                if work > SEARCH_MAX {
                    break 'search true;
                }
            }
        }
    };
    sys::close(directory);
    // A leader that has ended shows no descriptors, though other threads run on with theirs.
    risk || seen == 0 && leader_ended()
}

/// Whether the process's first thread has ended, so that `/proc/self` tells nothing about the rest.
fn leader_ended() -> bool {
    let mut buffer = [0; 256];
    let len = crate::environment::read_file(c"/proc/self/stat", &mut buffer);
    let stat = &buffer[..len];
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 2));
    state != Some(&b'S') && state != Some(&b'R') && state != Some(&b'D')
}

/// What a descriptor can do to pages.
enum Descriptor {
    Harmless,
    /// Pins if it is open for direct I/O.
    File,
    Pins,
}

fn descriptor(directory: i32, name: &CStr) -> Descriptor {
    let mut target = [0; 256];
    let len = sys::link_target(directory, name, &mut target);
    if len <= 0 {
        // Closed meanwhile.
        return Descriptor::Harmless;
    }
    let target = &target[..len as usize];
    if pins(target) {
        return Descriptor::Pins;
    }
    // Only files can be opened for direct I/O: not sockets, pipes and the kernel's own objects.
    if target.starts_with(b"/") && !target.starts_with(b"/dev/") {
        Descriptor::File
    } else {
        Descriptor::Harmless
    }
}

/// Whether a descriptor was opened with `O_DIRECT`, by its `flags:` line in octal. If that cannot be read: yes.
fn is_direct(name: &CStr) -> bool {
    let mut path = Line::new();
    // A descriptor's number fits.
    let _ = write!(path, "/proc/self/fdinfo/{}\0", name.to_str().unwrap_or("-"));
    let Ok(path) = CStr::from_bytes_with_nul(path.bytes()) else { return true };
    let mut buffer = [0; 256];
    let len = crate::environment::read_file(path, &mut buffer);
    let text = core::str::from_utf8(&buffer[..len]).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    match flags.and_then(|octal| usize::from_str_radix(octal.trim(), 8).ok()) {
        Some(flags) => flags & sys::O_DIRECT != 0,
        None => len > 0,
    }
}
