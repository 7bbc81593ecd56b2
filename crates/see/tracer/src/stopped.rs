//! What a thread may be in the middle of that was asked to stop, by whoever may stop it: the tracer, or who lets the
//! program go without one.

use std::time::Duration;

use pagemill_kernel::process::injected;
use pagemill_kernel::process::ptrace;
use pagemill_model::Pid;

use crate::calls::NO_SUCH_CALL;

/// A call on the spot (`injected.c`) takes some microseconds.
const MOMENT: Duration = Duration::from_micros(50);

fn in_our_code(thread: Pid) -> bool {
    let ours = injected::CODE..injected::CONTROL;
    ptrace::registers(thread).is_ok_and(|registers| ours.contains(&registers.rip))
}

/// A thread that was asked to stop and is in our code may have begun to map memory as its process did until now, and
/// has what others wait for: it goes on for a moment and is asked again. Whether it is one.
pub(crate) fn comes_out(thread: Pid) -> bool {
    let inside = in_our_code(thread);
    if inside {
        let _ = ptrace::resume(thread, 0);
        std::thread::sleep(MOMENT);
        let _ = ptrace::interrupt(thread);
    }
    inside
}

/// A thread that has come back from a system call without having made it makes it again.
pub(crate) fn restart_call(thread: Pid) {
    if let Ok(mut registers) = ptrace::registers(thread)
        && registers.rax as i64 == NO_SUCH_CALL
        && registers.orig_rax as i64 >= 0
    {
        // Behind the instruction, which has two bytes.
        registers.rip -= 2;
        (registers.rax, registers.orig_rax) = (registers.orig_rax, u64::MAX);
        let _ = ptrace::set_registers(thread, &registers);
    }
}

/// Of stopped threads, one to make system calls by: best one that was in a call, and so in no sequence that
/// a move to another place would spoil (rseq(2)).
pub(crate) fn calm(threads: &[Pid]) -> Option<Pid> {
    let in_call = |thread: &Pid| {
        ptrace::registers(*thread).is_ok_and(|registers| registers.orig_rax as i64 >= 0)
    };
    threads.iter().copied().find(in_call).or_else(|| threads.first().copied())
}
