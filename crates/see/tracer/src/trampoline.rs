//! Code that takes a thread back from a system call that it was made to make, when nobody who traces it does: the
//! *trampoline*, written anew for each time, with the registers and the blocked signals that it is to have.
//!
//! It stands in what is left of the vDSO's last page, which a tracer may write and which then is the process's own.
//! It begins with a `syscall` instruction, for calls before our own code is in the program, and is reached from that
//! code by `r15`.

use pagemill_kernel::process::ptrace::Registers;

/// Bytes of it.
pub(crate) const TRAMPOLINE: usize = 256;
/// What it begins with: `syscall`, `mov %rax, %rbx`, `mov $39, %eax` (getpid).
pub(crate) const BEGINNING: [u8; 10] = [0x0f, 0x05, 0x48, 0x89, 0xc3, 0xb8, 39, 0, 0, 0];
/// Where the call behind that ends, which changes nothing: a thread is seen to have done what it was to do.
pub(crate) const MARK: u64 = 12;
/// Where its numbers stand: blocked signals, flags, the address to go to.
const NUMBERS: usize = TRAMPOLINE - 24;

/// The registers with which a thread goes on that is not stopped by the kernel's way out of a system call: an
/// interrupted call is made again.
fn restarted(registers: &Registers) -> Registers {
    const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
    let mut now = *registers;
    if now.orig_rax as i64 >= 0 && RESTARTS.contains(&(now.rax as i64)) {
        (now.rax, now.rip) = (now.orig_rax, now.rip - 2);
    }
    now
}

/// The code for a thread with these registers and blocked signals.
pub(crate) fn trampoline(registers: &Registers, mask: u64) -> [u8; TRAMPOLINE] {
    let to = restarted(registers);
    let mut code = Vec::with_capacity(TRAMPOLINE);
    code.extend(BEGINNING);
    code.extend([0x0f, 0x05]);
    // A signal that was blocked may be delivered as soon as it is not: the stack is the thread's by then.
    set(&mut code, [0x48, 0xbc], to.rsp);
    // rt_sigprocmask(SIG_SETMASK, mask, NULL, 8)
    code.extend([0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0]);
    number(&mut code, &[0x48, 0x8d, 0x35], 0);
    code.extend([0x31, 0xd2, 0x41, 0xba, 8, 0, 0, 0, 0x0f, 0x05]);
    // Below what the thread may have under its stack pointer: lea -128(%rsp), %rsp; push; popf; lea 128(%rsp), %rsp
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]);
    number(&mut code, &[0xff, 0x35], 1);
    code.extend([0x9d, 0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
    for (register, value) in [
        ([0x48, 0xb8], to.rax),
        ([0x48, 0xb9], to.rcx),
        ([0x48, 0xba], to.rdx),
        ([0x48, 0xbb], to.rbx),
        ([0x48, 0xbd], to.rbp),
        ([0x48, 0xbe], to.rsi),
        ([0x48, 0xbf], to.rdi),
        ([0x49, 0xb8], to.r8),
        ([0x49, 0xb9], to.r9),
        ([0x49, 0xba], to.r10),
        ([0x49, 0xbb], to.r11),
        ([0x49, 0xbc], to.r12),
        ([0x49, 0xbd], to.r13),
        ([0x49, 0xbe], to.r14),
        ([0x49, 0xbf], to.r15),
    ] {
        set(&mut code, register, value);
    }
    // jmp *address
    number(&mut code, &[0xff, 0x25], 2);
    code.resize(NUMBERS, 0);
    let numbers = [mask, to.eflags, to.rip];
    code.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
    std::array::from_fn(|at| code[at])
}

/// `mov $value, register`.
fn set(code: &mut Vec<u8>, register: [u8; 2], value: u64) {
    code.extend(register);
    code.extend(value.to_ne_bytes());
}

/// An instruction whose operand is a number, by its distance from the instruction's end.
fn number(code: &mut Vec<u8>, instruction: &[u8], which: usize) {
    code.extend(instruction);
    let end = code.len() + 4;
    code.extend(((NUMBERS + 8 * which - end) as u32).to_ne_bytes());
}
