//! System calls made by a stopped thread, as if the program had made them.
//!
//! All signals but the trap's are blocked meanwhile, so the thread comes back by the trap it was sent to. After each
//! call, or list of them, registers and blocked signals are put back, and the thread stands where a stop was asked for:
//! if the tracer is killed it goes on as if nothing had been. (Out of the stop for the trap it would go on with that
//! signal.)

use pagemill_kernel::injected::{self, Control};
use pagemill_kernel::ptrace::{self, Registers, Stop};
use pagemill_kernel::{Error, Kind, Linux, Result, process_vm};

use crate::PATIENCE;

/// A stopped thread that does what it is told.
#[derive(Debug)]
pub(crate) struct Injection {
    thread: u32,
    registers: Registers,
    mask: u64,
}

impl Injection {
    /// Takes over `thread`, which must be stopped outside a system call or at the exit of one.
    pub(crate) fn begin(thread: u32) -> Result<Self> {
        let (registers, mask) = (ptrace::registers(thread)?, ptrace::signal_mask(thread)?);
        Ok(Self { thread, registers, mask })
    }

    /// Makes the thread go on at another place, by `go`, and waits until it has come back; what `rax` held then.
    fn run(&self, registers: &Registers, go: fn(u32) -> Result<()>) -> Result<i64> {
        // A blocked trap would cost the program its handler of that signal.
        const TRAP: u64 = 1 << 4;
        ptrace::set_signal_mask(self.thread, !TRAP)?;
        ptrace::set_registers(self.thread, registers)?;
        go(self.thread)?;
        let result = self.trapped(go)?;
        ptrace::set_registers(self.thread, &self.registers)?;
        ptrace::set_signal_mask(self.thread, self.mask)?;
        ptrace::interrupt(self.thread)?;
        resume(self.thread)?;
        match ptrace::wait_for(self.thread, PATIENCE)? {
            Stop::Exited(_) | Stop::Killed(_) | Stop::Exit => Err(self.killed()),
            _ => Ok(result),
        }
    }

    fn killed(&self) -> Error {
        let object = format!("thread {}", self.thread);
        Error::new(Kind::Gone, "change", object, "it was killed meanwhile")
    }

    fn call(&self, call: &[i64; 7], instruction: u64) -> Registers {
        let [number, a, b, c, d, e, f] = call.map(|value| value as u64);
        let mut registers = self.registers;
        registers.rax = number;
        // No system call is to be restarted.
        registers.orig_rax = u64::MAX;
        (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
        (registers.r10, registers.r8, registers.r9) = (d, e, f);
        registers.rip = instruction;
        registers
    }

    /// One system call at a `syscall` instruction of the program itself, before our code is there.
    pub(crate) fn step(&self, call: &[i64; 7], instruction: u64) -> Result<i64> {
        self.run(&self.call(call, instruction), ptrace::step)
    }

    /// Waits for the trap; what `rax` holds then. After another stop it goes on by `go`.
    fn trapped(&self, go: impl Fn(u32) -> Result<()>) -> Result<i64> {
        loop {
            match ptrace::wait_for(self.thread, PATIENCE)? {
                Stop::Signal(5) => return Ok(ptrace::registers(self.thread)?.rax as i64),
                Stop::Exited(_) | Stop::Killed(_) | Stop::Exit => return Err(self.killed()),
                // The call is one that a filter points out, or it was asked to stop twice.
                _ => go(self.thread)?,
            }
        }
    }

    /// One system call, at our own instruction.
    pub(crate) fn one(&self, call: &[i64; 7]) -> Result<i64> {
        self.run(&self.call(call, injected::SYSCALL), resume)
    }

    /// System calls in a row, each result; as many as are wanted.
    pub(crate) fn list(&self, control: &Control, calls: &[[i64; 7]]) -> Result<Vec<i64>> {
        let mut results = Vec::with_capacity(calls.len());
        for calls in calls.chunks(injected::COMMANDS) {
            control.set_list(calls);
            let mut registers = self.registers;
            registers.orig_rax = u64::MAX;
            registers.rip = injected::LIST;
            registers.rsp = injected::LIST_STACK;
            self.run(&registers, resume)?;
            results.extend(control.list_results(calls.len()));
        }
        Ok(results)
    }

    /// Starts a process that shares the memory and runs our code: the injector or the mapper.
    pub(crate) fn clone(&self, mapper: bool) -> Result<u32> {
        // CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED, no signal at its end: an ordinary wait()
        // of the program does not see it.
        const FLAGS: i64 = 0x100 | 0x200 | 0x400 | 0x0080_0000;
        let stack = if mapper { injected::MAPPER_STACK } else { injected::INJECTOR_STACK };
        let mut registers = self.call(&[56, FLAGS, stack as i64, 0, 0, 0, 0], injected::CLONE);
        registers.r12 = u64::from(mapper);
        let pid = self.run(&registers, resume)?;
        u32::try_from(pid).map_err(|_| refused("start a process beside", self.thread, pid))
    }
}

fn resume(thread: u32) -> Result<()> {
    ptrace::resume(thread, 0)
}

/// What an injected call returned, which must succeed.
pub(crate) fn checked(action: &'static str, thread: u32, result: i64) -> Result<i64> {
    if (-4095..0).contains(&result) { Err(refused(action, thread, result)) } else { Ok(result) }
}

/// The error of an injected call that returned `result`.
pub(crate) fn refused(action: &'static str, thread: u32, result: i64) -> Error {
    let error = std::io::Error::from_raw_os_error(-result as i32);
    Error::io(action, format_args!("process {thread}"), error)
}

/// What every program has in its vDSO.
#[derive(Debug)]
pub(crate) struct Site {
    /// A `syscall` instruction.
    pub(crate) instruction: u64,
    /// A byte 0: an empty text.
    pub(crate) empty_text: u64,
}

impl Site {
    /// Looks into the vDSO of `pid`.
    pub(crate) fn find(linux: &Linux, pid: u32) -> Result<Self> {
        let maps = linux.maps(pid)?;
        let missing =
            |why: &str| Error::new(Kind::Unsupported, "trace", format_args!("process {pid}"), why);
        let vdso = maps
            .iter()
            .find(|mapping| mapping.name == "[vdso]")
            .ok_or_else(|| missing("it has no vDSO (boot without vdso=0)"))?;
        let mut code = vec![0; vdso.len() as usize];
        process_vm::read(pid, vdso.start, &mut code)?;
        let instruction = code.windows(2).position(|pair| pair == [0x0f, 0x05]);
        let empty_text = code.iter().position(|&byte| byte == 0);
        match (instruction, empty_text) {
            (Some(instruction), Some(empty_text)) => Ok(Self {
                instruction: vdso.start + instruction as u64,
                empty_text: vdso.start + empty_text as u64,
            }),
            _ => Err(missing("its vDSO makes no system call")),
        }
    }
}
