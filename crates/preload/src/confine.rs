//! The helper thread's confinement: no capability, no new privilege, and a list of system calls.
//!
//! A call that is not on the list fails with `EPERM`: whatever goes wrong in the helper, the program goes on. The filter
//! is on this thread alone.
//!
//! ```text
//!  machine is another one            ─► EPERM
//!  openat, to create or change a file ─► EPERM
//!  openat, mmap and the other calls of HELPER_CALLS ─► allowed
//!  anything else                     ─► EPERM
//! ```

use crate::sys::{self, Instruction};

const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const REFUSE: u32 = 0x0005_0000 | 1;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const THIRD_ARGUMENT: u32 = 16 + 2 * 8;

const OPENAT_PART: usize = 4;
const CALLS: usize = sys::HELPER_CALLS.len();
const LEN: usize = 4 + OPENAT_PART + 2 * CALLS + 1;

const fn step(code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, operand }
}

const PROGRAM: [Instruction; LEN] = {
    /// `O_RDWR`, `O_CREAT`, `O_TRUNC`. Writing alone is left: an internal error is said on `/proc/self/fd/2`.
    const WRITING: u32 = 2 | 0o100 | 0o1000;
    let mut program = [step(RETURN, REFUSE, 0, 0); LEN];
    program[0] = step(LOAD, ARCHITECTURE, 0, 0);
    program[1] = step(JUMP_EQUAL, sys::AUDIT_ARCH, 1, 0);
    // program[2] refuses.
    program[3] = step(LOAD, NUMBER, 0, 0);
    program[4] = step(JUMP_EQUAL, sys::OPENAT as u32, 0, 3);
    program[5] = step(LOAD, THIRD_ARGUMENT, 0, 0);
    program[6] = step(JUMP_ANY_BIT, WRITING, (LEN - 8) as u8, 0);
    program[7] = step(RETURN, ALLOW, 0, 0);
    let mut call = 0;
    while call < CALLS {
        let place = 8 + 2 * call;
        program[place] = step(JUMP_EQUAL, sys::HELPER_CALLS[call] as u32, 0, 1);
        program[place + 1] = step(RETURN, ALLOW, 0, 0);
        call += 1;
    }
    program
};

/// Confines the calling thread. Each step is best effort: a kernel that refuses one leaves the thread as it is.
pub(crate) fn confine() {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    sys::drop_capabilities();
    // SAFETY: a flag of the thread, no pointers.
    unsafe { sys::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    sys::install_filter(&PROGRAM);
}
