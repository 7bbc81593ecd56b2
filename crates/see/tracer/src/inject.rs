//! System calls made by a stopped thread, as if the program had made them.
//!
//! ```text
//!  before a call    its registers are noted, by the tracer and in code of ours (`trampoline`); signals are blocked
//!  at the call's end    it stops; registers and blocked signals are put back
//!  the tracer is killed meanwhile    it makes the call, and the code puts registers and blocked signals back
//! ```
//!
//! After each call, or list of them, the thread stands where a stop was asked for: if the tracer is killed it goes on
//! as if nothing had been. No trap and no single step is used: without a tracer either would end the program.

use pagemill_kernel::process::injected::{self, Control};
use pagemill_kernel::process::ptrace::{self, Registers, Stop};
use pagemill_kernel::{Error, Kind, Linux, Result, process::process_vm};
use pagemill_model::Pid;

use crate::PATIENCE;
use crate::calls::{CLONE, Call, call, failed};
use crate::trampoline::{BEGINNING, MARK, TRAMPOLINE, trampoline};

/// Bytes of a `syscall` instruction.
const INSTRUCTION: u64 = 2;

/// A stopped thread that does what it is told.
#[derive(Debug)]
pub(crate) struct Injection {
    thread: Pid,
    registers: Registers,
    mask: u64,
    /// Where its trampoline stands in the program; 0: it has none, and ends with the tracer.
    site: u64,
}

impl Injection {
    /// Takes over `thread`, which must be stopped outside a system call or at the exit of one, and which the kernel
    /// kills if the tracer dies.
    pub(crate) fn begin(thread: Pid) -> Result<Self> {
        let (registers, mask) = (ptrace::registers(thread)?, ptrace::signal_mask(thread)?);
        Ok(Self { thread, registers, mask, site: 0 })
    }

    /// Takes over `thread`, stopped as for [`Self::begin`], which finds back by itself if the tracer dies.
    pub(crate) fn with_trampoline(thread: Pid, site: &Site) -> Result<Self> {
        let plain = Self::begin(thread)?;
        ptrace::poke(thread, site.instruction, &trampoline(&plain.registers, plain.mask))?;
        Ok(Self { site: site.instruction, ..plain })
    }

    /// Makes the thread go on at another place until it leaves a system call whose instruction ends at `end`, and puts
    /// it back; the registers that it had there.
    fn run(&self, registers: &Registers, end: u64) -> Result<Registers> {
        // In this order: whenever the tracer dies, the trampoline puts right what has been changed.
        ptrace::set_registers(self.thread, registers)?;
        ptrace::set_signal_mask(self.thread, u64::MAX)?;
        let there = self.comes_to(end)?;
        ptrace::set_signal_mask(self.thread, self.mask)?;
        ptrace::interrupt(self.thread)?;
        ptrace::set_registers(self.thread, &self.registers)?;
        ptrace::resume(self.thread, 0)?;
        match ptrace::wait_for(self.thread, PATIENCE)? {
            Stop::Exited(_) | Stop::Killed(_) | Stop::Exit => Err(self.killed()),
            _ => Ok(there),
        }
    }

    fn killed(&self) -> Error {
        let object = format!("thread {}", self.thread);
        Error::new(Kind::Gone, "change", object, "it was killed meanwhile")
    }

    fn call(&self, call: &Call, instruction: u64) -> Registers {
        let [number, a, b, c, d, e, f] = call.map(|value| value as u64);
        let mut registers = self.registers;
        registers.rax = number;
        // No system call is to be restarted.
        registers.orig_rax = u64::MAX;
        (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
        (registers.r10, registers.r8, registers.r9) = (d, e, f);
        registers.rip = instruction;
        // Where our code goes on afterwards.
        registers.r15 = self.site + INSTRUCTION;
        registers
    }

    /// One system call at a `syscall` instruction of the program itself, or of the trampoline.
    pub(crate) fn step(&self, call: &Call, instruction: u64) -> Result<i64> {
        let there = self.run(&self.call(call, instruction), instruction + INSTRUCTION)?;
        Ok(there.rax as i64)
    }

    /// Waits until it leaves the call at `end`; its registers then.
    fn comes_to(&self, end: u64) -> Result<Registers> {
        let mut entered = false;
        loop {
            ptrace::resume_to_system_call(self.thread, 0)?;
            match ptrace::wait_for(self.thread, PATIENCE)? {
                Stop::Exited(_) | Stop::Killed(_) | Stop::Exit => return Err(self.killed()),
                Stop::SystemCall => {
                    let registers = ptrace::registers(self.thread)?;
                    if registers.rip == end && std::mem::replace(&mut entered, true) {
                        return Ok(registers);
                    }
                }
                // The call is one that a filter points out, or it was asked to stop twice.
                _ => {}
            }
        }
    }

    /// One system call, at our own instruction.
    pub(crate) fn one(&self, call: &Call) -> Result<i64> {
        self.step(call, injected::SYSCALL)
    }

    /// System calls in a row, each result; as many as are wanted.
    pub(crate) fn list(&self, control: &Control, calls: &[Call]) -> Result<Vec<i64>> {
        let mut results = Vec::with_capacity(calls.len());
        for calls in calls.chunks(injected::COMMANDS) {
            control.set_list(calls);
            let mut registers = self.call(&[0; 7], injected::LIST);
            registers.rsp = injected::LIST_STACK;
            self.run(&registers, self.site + MARK)?;
            results.extend(control.list_results(calls.len()));
        }
        Ok(results)
    }

    /// Starts a process that shares the memory and runs our code: the injector or the mapper.
    pub(crate) fn clone(&self, mapper: bool) -> Result<Pid> {
        // CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED, no signal at its end: an ordinary wait()
        // of the program does not see it.
        const FLAGS: i64 = 0x100 | 0x200 | 0x400 | 0x0080_0000;
        let stack = if mapper { injected::MAPPER_STACK } else { injected::INJECTOR_STACK };
        let mut registers = self.call(&call(CLONE, [FLAGS, stack as i64]), injected::CLONE);
        registers.r12 = u64::from(mapper);
        let pid = self.run(&registers, injected::CLONE + INSTRUCTION)?.rax as i64;
        u32::try_from(pid).map(Pid).map_err(|_| refused("start a process beside", self.thread, pid))
    }
}

/// What an injected call returned, which must succeed.
pub(crate) fn checked(action: &'static str, thread: Pid, result: i64) -> Result<i64> {
    if failed(result) { Err(refused(action, thread, result)) } else { Ok(result) }
}

/// The error of an injected call that returned `result`.
pub(crate) fn refused(action: &'static str, thread: Pid, result: i64) -> Error {
    let error = std::io::Error::from_raw_os_error(-result as i32);
    Error::io(action, format_args!("process {thread}"), error)
}

/// What every program has in its vDSO, the last page of which is not full.
#[derive(Debug)]
pub(crate) struct Site {
    /// Where a trampoline stands or may be written, which begins with a `syscall` instruction.
    pub(crate) instruction: u64,
    /// A byte 0: an empty text.
    pub(crate) empty_text: u64,
}

impl Site {
    /// Looks into the vDSO of `pid`.
    pub(crate) fn find(linux: &Linux, pid: Pid) -> Result<Self> {
        let maps = linux.maps(pid)?;
        let missing =
            |why: &str| Error::new(Kind::Unsupported, "trace", format_args!("process {pid}"), why);
        let vdso = maps
            .iter()
            .find(|mapping| mapping.name == "[vdso]")
            .ok_or_else(|| missing("it has no vDSO (boot without vdso=0)"))?;
        let mut code = vec![0; vdso.len() as usize];
        process_vm::read(pid, vdso.start, &mut code)?;
        let room = code.len().checked_sub(TRAMPOLINE).filter(|&at| {
            let there = &code[at..];
            there.iter().all(|&byte| byte == 0) || there.starts_with(&BEGINNING)
        });
        let empty_text = code.iter().position(|&byte| byte == 0);
        match (room, empty_text) {
            (Some(room), Some(empty_text)) => Ok(Self {
                instruction: vdso.start + room as u64,
                empty_text: vdso.start + empty_text as u64,
            }),
            _ => Err(missing("its vDSO has no room for code of ours")),
        }
    }
}
