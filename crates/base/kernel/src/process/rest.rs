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
    use super::*;

    #[test]
    fn who_works_or_is_ready_to_does_not_rest() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let process = |state: char, cpu: f64| Stat {
            state,
            user: Duration::from_secs_f64(cpu),
            system: Duration::ZERO,
            ..crate::Linux::live().stat(pagemill_model::Pid::own()).unwrap()
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
}
