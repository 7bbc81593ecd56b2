//! Whether processes rest: together they use no more than a twentieth of a CPU, and none is ready to run.

use std::time::{Duration, Instant};

use super::Stat;

/// One in so many parts of a CPU is no rest.
const PART: u32 = 20;

/// Watches some processes for a rest.
#[derive(Clone, Copy, Debug)]
pub struct RestWatch {
    /// When they last worked, and their CPU time until then.
    worked: (Instant, Duration),
}

impl RestWatch {
    /// Watches from `now` on.
    pub fn begin(now: Instant) -> Self {
        Self { worked: (now, Duration::ZERO) }
    }

    /// For how long they have rested at `now`; zero if they have worked since the last look.
    pub fn rested(&mut self, processes: &[Stat], now: Instant) -> Duration {
        let cpu = processes.iter().map(|process| process.user + process.system).sum::<Duration>();
        let rested = now.saturating_duration_since(self.worked.0);
        // Of what has ended meanwhile the time is gone; who is ready to run waits for a CPU only.
        let works = cpu.abs_diff(self.worked.1) > rested / PART;
        if works || processes.iter().any(|process| process.state == 'R') {
            self.worked = (now, cpu);
            return Duration::ZERO;
        }
        rested
    }
}

#[cfg(test)]
mod tests {
    use pagemill_model::Pid;

    use super::*;
    use crate::Linux;

    #[test]
    fn who_works_or_is_ready_to_does_not_rest() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let process = |state: char, cpu: f64| Stat {
            state,
            user: Duration::from_secs_f64(cpu),
            system: Duration::ZERO,
            ..Linux::live().stat(Pid::own()).unwrap()
        };
        let mut watch = RestWatch::begin(begun);
        let mut look = |seconds: u32, processes: &[Stat]| {
            watch.rested(processes, begun + second * seconds).as_secs()
        };
        assert_eq!(look(10, &[process('S', 0.4)]), 10);
        assert_eq!(look(20, &[process('S', 0.4), process('S', 0.5)]), 20, "together 4.5 %");
        assert_eq!(look(30, &[process('S', 1.6)]), 0, "5.3 %");
        assert_eq!(look(40, &[process('S', 1.6)]), 10);
        assert_eq!(look(50, &[process('R', 1.6)]), 0);
        assert_eq!(look(55, &[process('S', 0.0)]), 0, "what had used 1.6 s has ended");
        assert_eq!(look(70, &[]), 15);
    }

    #[test]
    fn who_sleeps_for_longer_than_a_command_may_is_told_from_who_works() {
        let (linux, begun, minute) = (Linux::live(), Instant::now(), Duration::from_secs(60));
        let over = |words: &[&str]| {
            let mut child = std::process::Command::new(words[0]).args(&words[1..]).spawn().unwrap();
            let pid = Pid(child.id());
            let stat = || linux.stat(pid);
            while !stat().is_ok_and(|stat| stat.state == 'S' || !stat.user.is_zero()) {
                assert!(begun.elapsed() < minute);
                std::thread::sleep(Duration::from_millis(2));
            }
            let mut watch = RestWatch::begin(begun);
            let over = [59, 61].map(|seconds| {
                watch.rested(&[stat().unwrap()], begun + Duration::from_secs(seconds)) >= minute
            });
            child.kill().unwrap();
            child.wait().unwrap();
            over
        };
        assert_eq!(over(&["sleep", "1000"]), [false, true]);
        assert_eq!(over(&["sh", "-c", "while :; do :; done"]), [false; 2]);
    }
}
