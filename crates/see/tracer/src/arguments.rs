//! The words that a program was started with, kept readable for others: `/proc/PID/cmdline` and `environ`.
//!
//! The kernel shows them from the stack, and only from memory that is anonymous (`FOLL_ANON`); a converted stack is
//! not. Sanitizers read their own options there, `ps` and `pgrep -f` a command line. So a copy of the words is put into
//! anonymous memory in our part of the address space, and the kernel told that they stand there (`PR_SET_MM_MAP`); when
//! the program is let go, that they stand where they stood. What the program writes over them meanwhile (a title) is
//! not shown.

use pagemill_kernel::process::injected::{ARGUMENTS, ARGUMENTS_END, Control};
use pagemill_kernel::{Linux, Result, page_size, process::process_vm};
use pagemill_model::Pid;

use crate::calls::{
    ANONYMOUS, BRK, Call, FIXED_NOREPLACE, MMAP, MPROTECT, MUNMAP, PRCTL, PRIVATE, call,
};

const SET_MM: i64 = 35;
const SET_MM_MAP: i64 = 14;
/// Never over anything.
const KIND: i64 = PRIVATE | ANONYMOUS | FIXED_NOREPLACE;

/// Where the words of a program stood.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    words: [u64; 4],
    bytes: u64,
}

impl Arguments {
    /// Copies the words of process `pid`, which makes these calls by `list`. `None` where it cannot be done, which
    /// harms nobody: they are not shown then.
    pub(crate) fn keep(
        linux: &Linux,
        pid: Pid,
        list: impl Fn(&[Call]) -> Result<Vec<i64>>,
    ) -> Option<Self> {
        let layout = linux.layout(pid).ok()?;
        let [start, arguments_end, environment, end] = layout.words;
        let bytes = (end.checked_sub(start)?).next_multiple_of(page_size() as u64);
        if start == 0 || bytes == 0 || bytes > ARGUMENTS_END - ARGUMENTS {
            return None;
        }
        let mut text = vec![0; (end - start) as usize];
        process_vm::read(pid, start, &mut text).ok()?;
        let map = call(MMAP, [ARGUMENTS as i64, bytes as i64, 3, KIND, -1]);
        if list(&[map]).ok()? != [ARGUMENTS as i64] {
            return None;
        }
        process_vm::write(pid, ARGUMENTS, &text).ok()?;
        let moved = |address: u64| address - start + ARGUMENTS;
        let words = [start, arguments_end, environment, end].map(moved);
        // What cannot be written is not held against the program's limit of data.
        list(&[call(MPROTECT, [ARGUMENTS as i64, bytes as i64, 1])]).ok()?;
        let kept = Self { words: layout.words, bytes };
        tell(linux, pid, words, list).then_some(kept)
    }

    /// They stand where they stood.
    pub(crate) fn put_back(
        self,
        linux: &Linux,
        pid: Pid,
        list: impl Fn(&[Call]) -> Result<Vec<i64>>,
    ) {
        if tell(linux, pid, self.words, &list) {
            let _ = list(&[call(MUNMAP, [ARGUMENTS as i64, self.bytes as i64])]);
        }
    }
}

/// Tells the kernel where the words of a program stand, in its own name; whether it took it.
fn tell(
    linux: &Linux,
    pid: Pid,
    words: [u64; 4],
    list: impl Fn(&[Call]) -> Result<Vec<i64>>,
) -> bool {
    let place = Control::ranges_address();
    let done = || {
        let heap_end = *list(&[call(BRK, [0])])?.first().unwrap_or(&0) as u64;
        let mut layout = linux.layout(pid)?;
        layout.words = words;
        let bytes = layout.to_bytes(heap_end);
        process_vm::write(pid, place, &bytes)?;
        list(&[call(PRCTL, [SET_MM, SET_MM_MAP, place as i64, bytes.len() as i64])])
    };
    done().is_ok_and(|results| results == [0])
}
