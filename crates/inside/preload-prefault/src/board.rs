//! This process's view of the board: the shared file that `PAGEMILL_PREFAULT` names.

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use pagemill_prefault::board::{Board, PROCESSES, Pid, Process, ProcessWord, WORDS};
use pagemill_preload_sys::sys;

static MAPPED: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// This process's number on the board; `PROCESSES`: none yet.
static NUMBER: AtomicUsize = AtomicUsize::new(PROCESSES);

const LEN: usize = WORDS * 8;

/// Maps the board at `path`; whether it is one.
pub(crate) fn open(path: &CStr) -> bool {
    let mapped = sys::map_file(path, LEN, 0);
    if mapped.is_null() {
        return false;
    }
    MAPPED.store(mapped.cast(), Ordering::Release);
    if whole_board().is_some_and(|board| board.is_founded()) {
        return true;
    }
    MAPPED.store(core::ptr::null_mut(), Ordering::Release);
    // SAFETY: the mapping is this function's and nothing refers to it.
    unsafe { sys::unmap(mapped, LEN) };
    false
}

/// The board, if there is one.
pub(crate) fn whole_board() -> Option<Board<'static>> {
    let words = MAPPED.load(Ordering::Acquire);
    if words.is_null() {
        return None;
    }
    // SAFETY: a mapping of WORDS aligned words that is never unmapped while it is stored here, of a file that is
    // that long; the launcher only ever removes its name. Every access is atomic.
    Board::new(unsafe { core::slice::from_raw_parts(words, WORDS) })
}

/// This process's part of the board, made at the first call in each process; `None` if there is no board or no room.
pub(crate) fn mine() -> Option<Process<'static>> {
    let board = whole_board()?;
    let pid = Pid(sys::pid());
    let is_mine = |number: usize| board.process(number).get(ProcessWord::Pid) == u64::from(pid.0);
    let number = NUMBER.load(Ordering::Relaxed);
    if number < PROCESSES && is_mine(number) {
        return Some(board.process(number));
    }
    // After exec the process is on the board already.
    let place = (0..PROCESSES).find(|&number| is_mine(number));
    let number = match place {
        Some(number) => {
            board.process(number).clear();
            number
        }
        None => board.join(pid)?,
    };
    NUMBER.store(number, Ordering::Relaxed);
    Some(board.process(number))
}
