//! How much of the CPUs others have while runs are on: that a command waits for a CPU may be for its own threads.

use std::time::{Duration, Instant};

use pagemill_kernel::Linux;
use pagemill_kernel::process::{UsageScope, resources};
use pagemill_model::Pid;

/// The kernel's clock ticks (`USER_HZ`).
const TICKS_A_SECOND: f64 = 100.0;
/// The share of all CPUs that others have from which on the machine is busy.
pub(crate) const BUSY: f64 = 0.1;

/// CPU time since the first run, seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Crowd {
    others: f64,
    all: f64,
}

/// A moment before a run.
pub(crate) struct CrowdMoment {
    at: Instant,
    /// Idle time of all CPUs since boot, seconds.
    idle: f64,
    /// CPU time of this process and of all that it has waited for, seconds.
    own: f64,
}

impl CrowdMoment {
    /// Now; none where the kernel does not tell.
    pub(crate) fn now(linux: &Linux) -> Option<Self> {
        let idle = linux.idle_ticks().ok()? as f64 / TICKS_A_SECOND;
        let (itself, children) =
            (linux.stat(Pid::own()).ok()?, resources(UsageScope::EndedChildren));
        let own: Duration =
            [itself.user, itself.system, children.user, children.system].iter().sum();
        Some(Self { at: Instant::now(), idle, own: own.as_secs_f64() })
    }
}

impl Crowd {
    /// A run from then until now; nothing where the kernel does not tell.
    pub(crate) fn until_now(&mut self, linux: &Linux, from: Option<&CrowdMoment>) {
        if let (Some(from), Some(to), Ok(cpus)) =
            (from, CrowdMoment::now(linux), linux.processors())
        {
            self.add(from, &to, cpus.len());
        }
    }

    /// A run from then to now on so many CPUs.
    fn add(&mut self, from: &CrowdMoment, to: &CrowdMoment, cpus: usize) {
        let all = cpus as f64 * to.at.saturating_duration_since(from.at).as_secs_f64();
        // Each is counted by itself, and in ticks.
        self.others += (all - (to.idle - from.idle) - (to.own - from.own)).clamp(0.0, all);
        self.all += all;
    }

    /// Of all CPUs, what others have.
    pub(crate) fn share(&self) -> f64 {
        self.others / self.all.max(f64::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a command of 24 threads on two idle CPUs it was said that the machine is busy.
    #[test]
    fn what_a_command_uses_itself_is_no_others() {
        let begun = Instant::now();
        let at = |seconds: f64, idle: f64, own: f64| CrowdMoment {
            at: begun + Duration::from_secs_f64(seconds),
            idle,
            own,
        };
        let share = |idle: f64, own: f64| {
            let mut crowd = Crowd::default();
            crowd.add(&at(0.0, 7.0, 1.0), &at(2.0, 7.0 + idle, 1.0 + own), 2);
            crowd.share()
        };
        assert_eq!((share(0.0, 4.0), share(4.0, 0.0)), (0.0, 0.0), "its own, and nobody's");
        assert_eq!((share(0.0, 1.0), share(2.0, 1.0)), (0.75, 0.25));
        assert_eq!(share(4.1, 0.1), 0.0, "ticks are coarse");
        assert_eq!(Crowd::default().share(), 0.0);
    }

    #[test]
    fn the_kernel_tells() {
        let linux = Linux::live();
        let before = CrowdMoment::now(&linux).unwrap();
        let mut sum = 0_u64;
        while before.at.elapsed() < Duration::from_millis(300) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let mut crowd = Crowd::default();
        crowd.until_now(&linux, Some(&before));
        let after = CrowdMoment::now(&linux).unwrap();
        assert!(after.own > before.own && after.idle >= before.idle);
        assert!(crowd.all > 0.3 - 0.01 && (0.0..=1.0).contains(&crowd.share()), "{crowd:?}");
    }
}
