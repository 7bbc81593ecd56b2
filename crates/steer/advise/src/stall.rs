//! Whether a command waits for what never comes: a terminal, clients, input.
//!
//! A command *rests* while it and all that it has started do ([`RestWatch`]). One that has rested for [`RESTS`] while
//! it was looked at for the first time is told of, with what it may wait for, and goes on: a program may sleep. One
//! that the kernel has stopped, for it wants the terminal from the background, or that waits for what somebody would
//! type, would never go on, and is given up. So is one that rests for [`IDLE`], whatever it waits for, where nobody has
//! said how long it may take.

use std::time::{Duration, Instant};

use pagemill_kernel::Linux;
use pagemill_kernel::process::rest::RestWatch;
use pagemill_model::Pid;

/// A rest that is told of.
pub const RESTS: Duration = Duration::from_secs(10);
/// A rest that ends the first look where no time was given.
pub const IDLE: Duration = Duration::from_secs(60);
/// Who is stopped for so long, while nothing else of it works, stays so.
const STOPPED: Duration = Duration::from_secs(2);

/// What a command seems to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Clients: it listens.
    Clients,
    /// Nobody knows: time, input, a terminal.
    Something,
}

/// What is told while a run goes on, now and then: that it does, or what it seems to wait for.
pub type Heartbeat<'a> = &'a mut dyn FnMut(Option<Waits>);

/// Watches a command for a rest.
pub(crate) struct Stall<'a> {
    linux: &'a Linux,
    pid: Pid,
    watch: RestWatch,
    told: bool,
    /// The longest rest that it may have; where its time is bounded, any.
    most: Duration,
}

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StallState {
    /// Nothing that is worth a word, or what has been told.
    Nothing,
    /// It has rested for a while.
    Rests(Waits),
    /// It was stopped, or waits for what somebody would type.
    Stopped,
    /// It has rested for longer than it may.
    Idle,
}

impl<'a> Stall<'a> {
    /// Watches a command that may rest for so long.
    pub fn begin(linux: &'a Linux, pid: Pid, most: Duration) -> Self {
        Self { linux, pid, watch: RestWatch::begin(Instant::now()), told: false, most }
    }

    /// One look, at `now`.
    pub fn sample(&mut self, now: Instant) -> StallState {
        let pids = self.linux.descendants(&[self.pid]);
        let stats: Vec<_> = pids.iter().filter_map(|pid| self.linux.stat(*pid).ok()).collect();
        let rested = self.watch.rested(&stats, now);
        if rested >= STOPPED && stats.iter().any(|stat| stat.state == 'T') {
            return StallState::Stopped;
        }
        if rested >= RESTS
            && pids.iter().any(|pid| self.linux.waits_for_typing(*pid).unwrap_or(false))
        {
            return StallState::Stopped;
        }
        if rested >= self.most {
            return StallState::Idle;
        }
        if self.told || rested < RESTS {
            return StallState::Nothing;
        }
        self.told = true;
        let listens = pids.iter().any(|pid| self.linux.listens(*pid).unwrap_or(false));
        StallState::Rests(if listens { Waits::Clients } else { Waits::Something })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command, Stdio};

    use pagemill_kernel::process::signal;

    use super::*;

    /// A command that sleeps, with this as its standard input.
    fn sleeper(input: Stdio) -> Child {
        let mut sleeper = Command::new("sleep").arg("1000").stdin(input).spawn().unwrap();
        let (pid, end) = (Pid(sleeper.id()), Instant::now() + Duration::from_secs(60));
        let sleeps = || {
            let comm = Linux::live().stat(pid).is_ok_and(|stat| stat.comm == "sleep");
            comm && Linux::live().stat(pid).is_ok_and(|stat| stat.state == 'S')
        };
        while !sleeps() {
            assert!(Instant::now() < end && sleeper.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        sleeper
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_rest_is_told_of_once_with_what_it_may_be_for() {
        let linux = Linux::live();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let inputs =
            [(Stdio::null(), Waits::Something), (OwnedFd::from(listener).into(), Waits::Clients)];
        for (input, waits) in inputs {
            let sleeper = sleeper(input);
            let mut stall = Stall::begin(&linux, Pid(sleeper.id()), IDLE);
            let later = |seconds| Instant::now() + Duration::from_secs(seconds);
            assert_eq!(stall.sample(later(5)), StallState::Nothing, "not long enough");
            assert_eq!(stall.sample(later(20)), StallState::Rests(waits));
            assert_eq!(stall.sample(later(40)), StallState::Nothing, "told once");
            assert_eq!(stall.sample(later(61)), StallState::Idle);
            end(sleeper);
        }
    }

    #[test]
    fn who_is_stopped_is_given_up_and_who_works_is_not() {
        let linux = Linux::live();
        let sleeper = sleeper(Stdio::null());
        let pid = Pid(sleeper.id());
        let mut stall = Stall::begin(&linux, pid, IDLE);
        signal::send(pid, 19).unwrap();
        let (begun, end_of_patience) = (Instant::now(), Duration::from_secs(60));
        while linux.stat(pid).unwrap().state != 'T' {
            assert!(begun.elapsed() < end_of_patience);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(stall.sample(Instant::now() + Duration::from_secs(5)), StallState::Stopped);
        end(sleeper);
        let busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut stall = Stall::begin(&linux, Pid(busy.id()), IDLE);
        while linux.stat(Pid(busy.id())).unwrap().user.is_zero() {
            assert!(begun.elapsed() < end_of_patience);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(stall.sample(Instant::now() + Duration::from_secs(20)), StallState::Nothing);
        end(busy);
    }
}
