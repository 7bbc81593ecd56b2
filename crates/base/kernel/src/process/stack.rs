//! A stack as large as threads have, where a user may have less (`ulimit -s`).

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

use crate::memory::mapped::Mapped;
use crate::process::limits::Resource;

/// Bytes; what reads the command line takes a fifth of it in a build that is not optimised.
const ENOUGH: usize = 2 << 20;
/// Bytes below it that are no memory.
const GUARD: usize = 64 << 10;

thread_local! {
    /// Where the work of [`enter`] is, a `&mut dyn FnMut()`.
    static WORK: Cell<*mut libc::c_void> = const { Cell::new(null_mut()) };
}

/// Memory for a stack.
struct Stack(Mapped);

impl Stack {
    /// None where a user may have no more memory either.
    fn map() -> Option<Self> {
        let flags = libc::MAP_NORESERVE | libc::MAP_STACK;
        let stack = Mapped::anonymous(GUARD + ENOUGH, flags).ok()?;
        // SAFETY: the lowest part of the mapping, which nothing uses yet.
        let guarded = unsafe { libc::mprotect(stack.start().cast(), GUARD, libc::PROT_NONE) };
        (guarded == 0).then_some(Self(stack))
    }
}

/// Does the work, as the first function of its stack.
extern "C" fn enter() {
    let work = WORK.get().cast::<&mut dyn FnMut()>();
    // SAFETY: `on` has put there what it lends until this returns.
    unsafe { (*work)() };
}

/// Does the work on this stack, in this thread. It does not unwind.
fn on(stack: &Stack, mut work: &mut dyn FnMut()) {
    let mut here = MaybeUninit::<libc::ucontext_t>::zeroed();
    let mut there = MaybeUninit::<libc::ucontext_t>::zeroed();
    let _outer = WORK.replace((&raw mut work).cast());
    // SAFETY: zeroed is a valid context, and each call gets one that lives until the work is done: `there` goes on in
    // `here` when `enter` returns. The memory of the stack is nobody else's.
    unsafe {
        libc::getcontext(there.as_mut_ptr());
        let there = there.assume_init_mut();
        there.uc_stack.ss_sp = stack.0.start().add(GUARD).cast();
        there.uc_stack.ss_size = ENOUGH;
        there.uc_link = here.as_mut_ptr();
        libc::makecontext(there, enter, 0);
        libc::swapcontext(here.as_mut_ptr(), there);
    }
}

/// Does the work with room on the stack: on one of its own, in this thread, where this one may not grow that far.
pub fn with_room<T>(work: impl FnOnce() -> T) -> T {
    let little = Resource::Stack.limit().is_some_and(|bytes| bytes < ENOUGH as u64);
    let Some(stack) = little.then(Stack::map).flatten() else { return work() };
    let (mut work, mut done) = (Some(work), None);
    on(&stack, &mut || {
        done = work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
    });
    done.expect("the work was done").unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_on_another_stack_is_done_in_this_thread_and_panics_come_back() {
        let stack = Stack::map().unwrap();
        let (mut deep, mut who) = (0, None);
        on(&stack, &mut || {
            let mut room = [0_u8; ENOUGH / 2];
            std::hint::black_box(&mut room)[0] = 1;
            deep = room.as_ptr() as usize;
            who = Some(std::thread::current().id());
        });
        let lowest = stack.0.address() as usize;
        assert!((lowest + GUARD..lowest + GUARD + ENOUGH).contains(&deep));
        assert_eq!(who, Some(std::thread::current().id()));
        let mut panic = None;
        on(&stack, &mut || panic = catch_unwind(|| panic!("as it is to")).err());
        assert_eq!(panic.unwrap().downcast_ref(), Some(&"as it is to"));
    }
}
