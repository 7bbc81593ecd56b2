//! What the environment asks for, read without the C library.
//!
//! | variable | meaning |
//! |---|---|
//! | `PAGEMILL_HEAP`, `PAGEMILL_MESH` | the configuration: `0n 1n 2n 0y 1y 2y h` |
//! | `PAGEMILL_BACKEND` | `auto`, `remap`, `ksm` or `none` |
//! | `PAGEMILL_STATS`, `MALLOCSTATS` | 1: print the statistics at exit |
//! | `PAGEMILL_PERIOD_MS`, `MESH_PERIOD_MS` | least time between two passes of compaction; 0: only on request |
//! | `PAGEMILL_HELPER_MIN` | bytes of heap from which on the helper thread is worth starting |
//! | `PAGEMILL_DETOUR` | 1: a program's own allocator is taken out of use; see `detour` |
//! | `PAGEMILL_QUIET` | 1: degradations only stand in the statistics |

use core::ffi::CStr;

use pagemill_heap::config::Config;
use pagemill_preload_sys::{libc, sys};

/// Which back end the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// KSM if `ksmd` runs, else remapping.
    Auto,
    /// Remapping only.
    Remap,
    /// KSM only.
    Ksm,
    /// Neither: free pages are given back, nothing is merged.
    None,
}

/// A variable whose value cannot be used, so that the default holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unusable {
    /// Its name.
    pub(crate) variable: &'static str,
    /// What would be a value, and the default.
    pub(crate) valid: &'static str,
    value: [u8; VALUE],
    len: u8,
}

impl Unusable {
    /// The value, or the beginning of a long one.
    pub(crate) fn value(&self) -> &str {
        core::str::from_utf8(&self.value[..usize::from(self.len)]).unwrap_or("?")
    }
}

/// Longest part of an unusable value that is repeated to the user.
const VALUE: usize = 24;

/// How many variables can have unusable values: those of numbers and names.
const CHECKED: usize = 6;

const CONFIGURATIONS: &str = "1y; valid: 0n 1n 2n 0y 1y 2y h";
const BACKENDS: &str = "auto; valid: auto remap ksm none";
const PERIOD: &str = "100; valid: a number of milliseconds";
const HELPER_MIN: &str = "8388608; valid: a number of bytes";

/// What the user asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The configuration.
    pub(crate) config: Config,
    /// The back end.
    pub(crate) backend: Backend,
    /// Whether to print the statistics at exit.
    pub(crate) stats_at_exit: bool,
    /// Least time between two passes in milliseconds, if the user set one.
    pub(crate) period_ms: Option<u64>,
    /// Bytes of heap from which on the helper thread is started.
    pub(crate) helper_min: usize,
    /// Whether degradations are said on standard error.
    pub(crate) quiet: bool,
    /// Whether the allocator that a program brings is taken out of use.
    pub(crate) detour: bool,
    /// Whether the newer word for the configuration is set, which goes before the older one.
    heap_named: bool,
    unusable: [Option<Unusable>; CHECKED],
}

impl Settings {
    /// What holds if the environment says nothing.
    pub(crate) const DEFAULT: Self = Self {
        config: Config::DEFAULT,
        backend: Backend::Auto,
        stats_at_exit: false,
        period_ms: None,
        helper_min: 8 << 20,
        quiet: false,
        detour: false,
        heap_named: false,
        unusable: [None; CHECKED],
    };

    /// The variables whose values cannot be used.
    pub(crate) fn unusable(&self) -> impl Iterator<Item = &Unusable> {
        self.unusable.iter().flatten()
    }

    /// What `found` is, or the default and a note if it is nothing. A variable that is set to nothing
    /// counts as not set.
    fn checked<T>(
        &mut self,
        found: Option<T>,
        default: T,
        variable: &'static str,
        valid: &'static str,
        value: &[u8],
    ) -> T {
        if found.is_none()
            && !value.is_empty()
            && let Some(free) = self.unusable.iter_mut().find(|place| place.is_none())
        {
            let len = value.len().min(VALUE);
            let mut unusable = Unusable { variable, valid, value: [0; VALUE], len: len as u8 };
            unusable.value[..len].copy_from_slice(&value[..len]);
            *free = Some(unusable);
        }
        found.unwrap_or(default)
    }

    /// Takes one `NAME=value` into account.
    fn apply(&mut self, entry: &[u8]) {
        let Some(equals) = entry.iter().position(|&byte| byte == b'=') else { return };
        let value = &entry[equals + 1..];
        match &entry[..equals] {
            name @ (b"PAGEMILL_HEAP" | b"PAGEMILL_MESH") => {
                let newer = name.ends_with(b"HEAP");
                if value.is_empty() || !newer && self.heap_named {
                    return;
                }
                self.heap_named |= newer;
                let name = if newer { "PAGEMILL_HEAP" } else { "PAGEMILL_MESH" };
                let (found, default) = (Config::parse(value), Config::DEFAULT);
                self.config = self.checked(found, default, name, CONFIGURATIONS, value);
            }
            b"PAGEMILL_BACKEND" => {
                let found = match value {
                    b"auto" => Some(Backend::Auto),
                    b"remap" => Some(Backend::Remap),
                    b"ksm" => Some(Backend::Ksm),
                    b"none" => Some(Backend::None),
                    _ => None,
                };
                self.backend =
                    self.checked(found, Backend::Auto, "PAGEMILL_BACKEND", BACKENDS, value);
            }
            b"PAGEMILL_STATS" | b"MALLOCSTATS" => {
                self.stats_at_exit = number(value).is_some_and(|level| level > 0);
            }
            name @ (b"PAGEMILL_PERIOD_MS" | b"MESH_PERIOD_MS") => {
                let name =
                    if name.starts_with(b"P") { "PAGEMILL_PERIOD_MS" } else { "MESH_PERIOD_MS" };
                self.period_ms = self.checked(number(value).map(Some), None, name, PERIOD, value);
            }
            b"PAGEMILL_HELPER_MIN" => {
                let default = Self::DEFAULT.helper_min as u64;
                let bytes =
                    self.checked(number(value), default, "PAGEMILL_HELPER_MIN", HELPER_MIN, value);
                self.helper_min = bytes as usize;
            }
            b"PAGEMILL_DETOUR" => self.detour = number(value).is_some_and(|level| level > 0),
            b"PAGEMILL_QUIET" => self.quiet = number(value).is_some_and(|level| level > 0),
            _ => {}
        }
    }
}

/// A decimal number and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// What the process was started with.
#[derive(Debug)]
pub(crate) struct StartParameters {
    /// What the environment asks for.
    pub(crate) settings: Settings,
    /// The kernel's page size.
    pub(crate) page_size: usize,
}

/// Reads the environment and the auxiliary vector.
pub(crate) fn read() -> StartParameters {
    // SAFETY: the loader keeps the initial stack pointer there; the kernel laid out what it points to.
    unsafe { from_stack() }.unwrap_or_else(from_proc)
}

const AT_NULL: usize = 0;
const AT_PAGESZ: usize = 6;

/// Reads the initial stack: `argc`, the arguments, null, the environment, null, the auxiliary vector.
/// `None` if the loader does not say where it is or it does not look like that.
///
/// # Safety
/// `__libc_stack_end`, if it exists, is glibc's.
unsafe fn from_stack() -> Option<StartParameters> {
    let variable = libc::weak!("__libc_stack_end") as *const *const usize;
    if variable.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; each step stays in the block whose layout the kernel fixes, and the
    // argument count is checked against the null that ends the arguments.
    unsafe {
        let stack = *variable;
        if stack.is_null() || !stack.is_aligned() {
            return None;
        }
        let count = *stack;
        if count > 1 << 20 || *stack.add(1 + count) != 0 {
            return None;
        }
        let mut place = stack.add(2 + count);
        let mut found = StartParameters { settings: Settings::DEFAULT, page_size: 0 };
        while *place != 0 {
            found.settings.apply(CStr::from_ptr(*place as *const _).to_bytes());
            place = place.add(1);
        }
        place = place.add(1);
        while *place != AT_NULL {
            if *place == AT_PAGESZ {
                found.page_size = *place.add(1);
            }
            place = place.add(2);
        }
        found.page_size.is_power_of_two().then_some(found)
    }
}

/// Reads `/proc/self/environ` and `/proc/self/auxv`; what cannot be read keeps its default.
fn from_proc() -> StartParameters {
    /// The longest environment that the kernel passes is longer; what is behind is not seen.
    const ROOM: usize = 2 << 20;
    let mut found = StartParameters { settings: Settings::DEFAULT, page_size: 4096 };
    let room = sys::map_anonymous(ROOM, sys::PROT_READ | sys::PROT_WRITE, sys::MAP_NORESERVE);
    if room.is_null() {
        return found;
    }
    // SAFETY: a fresh mapping of that many zero bytes that nobody else knows.
    let buffer = unsafe { core::slice::from_raw_parts_mut(room, ROOM) };
    let len = read_file(c"/proc/self/environ", buffer);
    for entry in buffer[..len].split(|&byte| byte == 0) {
        found.settings.apply(entry);
    }
    let len = read_file(c"/proc/self/auxv", buffer);
    let mut words = buffer[..len].chunks_exact(8).map(|bytes| {
        let mut word = [0; 8];
        word.copy_from_slice(bytes);
        usize::from_ne_bytes(word)
    });
    while let (Some(kind), Some(value)) = (words.next(), words.next()) {
        if kind == AT_PAGESZ && value.is_power_of_two() {
            found.page_size = value;
        }
    }
    // SAFETY: the slice is not used any more.
    unsafe { sys::unmap(room, ROOM) };
    found
}

/// Reads a file into the buffer as far as it fits; the number of bytes.
pub(crate) fn read_file(path: &CStr, buffer: &mut [u8]) -> usize {
    let fd = sys::open(path, sys::O_RDONLY);
    if sys::failed(fd) {
        return 0;
    }
    let mut len = 0;
    while len < buffer.len() {
        let got = sys::read(fd as i32, &mut buffer[len..]);
        if got <= 0 {
            break;
        }
        len += got as usize;
    }
    sys::close(fd as i32);
    len
}
