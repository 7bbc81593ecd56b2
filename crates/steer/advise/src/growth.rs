//! Whether a process that is looked at grows: then no lever is the answer, but who keeps what it makes.

use std::fmt;

use pagemill_analysis::growth::{Growth, steady};
use pagemill_control::run_memory::Memory;
use pagemill_kernel::Linux;
use pagemill_model::sums::sum;
use pagemill_model::{Bytes, Nanos, Pid};
use serde_json::{Value, json};

/// Who grows for a shorter time sets itself up, as likely as not, s.
const SHORTEST: f64 = 2.0;

/// That a process grew steadily while it was looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessGrowth {
    pid: Pid,
    growth: Growth,
}

/// What these processes have of anonymous memory, in swap or not, bytes: the kernel counts that without a walk.
pub(crate) fn counted(linux: &Linux, pids: &[Pid]) -> Option<f64> {
    // Whoever ends meanwhile has none.
    let of = |pid: &Pid| linux.status(*pid).ok()?.anonymous;
    let all: Vec<u64> = pids.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| sum(all) as f64)
}

impl ProcessGrowth {
    /// By looks, and where they are too few, by what the kernel `counted`: seconds and bytes.
    pub(crate) fn of(pid: Pid, looks: &[Memory], counted: &[(f64, f64)]) -> Option<Self> {
        let own = |look: &Memory| sum([look.anonymous, look.shared, look.swap]) as f64;
        let looks: Vec<_> = looks.iter().map(|look| (look.seconds, own(look))).collect();
        let growth = steady(&looks).or_else(|| steady(counted))?;
        (growth.seconds() >= SHORTEST).then_some(Self { pid, growth })
    }

    /// As JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "bytes": self.growth.bytes as u64,
            "seconds": self.growth.seconds(),
            "given_back_bytes": self.growth.given_back as u64,
        })
    }
}

impl fmt::Display for ProcessGrowth {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, growth } = self;
        let size = |bytes: f64| Bytes(bytes as u64).plain();
        write!(
            out,
            "its memory grew by {} in {}, {} a second, steadily, and {} of it was given back: it leaks, keeps all data \
             that it makes, or is making its data still (pagemill record --with heap -p {pid} tells, looking for \
             longer)",
            size(growth.bytes),
            Nanos((growth.seconds() * 1e9) as u64).plain(),
            size(growth.rate()),
            if growth.given_back * 100.0 < growth.bytes { "nothing" } else { "next to nothing" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1048576.0;

    /// Looks, and what the kernel counted each 100 ms, at a process of so many MiB by the time.
    fn told(seconds: f64, apart: f64, of: impl Fn(f64) -> f64) -> Option<String> {
        let times = |apart: f64| (0..=(seconds / apart) as usize).map(move |at| at as f64 * apart);
        let look =
            |at: f64| Memory { seconds: at, anonymous: (of(at) * MIB) as u64, ..Memory::default() };
        let looks: Vec<Memory> = times(apart).map(look).collect();
        let counted: Vec<_> = times(0.1).map(|at| (at, of(at) * MIB)).collect();
        Some(ProcessGrowth::of(Pid(7), &looks, &counted)?.to_string())
    }

    /// Of a process that grew by 9 MiB a second it was said that a lever may bring most of what it has.
    #[test]
    fn who_grows_is_said_to_however_few_looks_there_are_and_who_rests_is_not() {
        for apart in [0.1, 2.0] {
            let says = told(4.0, apart, |at| 20.0 + 9.0 * at).unwrap();
            let begin = "its memory grew by 36.0 MiB in 4.0 s, 9.0 MiB a second, steadily, and nothing of it was given \
                         back: ";
            assert!(says.starts_with(begin), "{says}");
            assert!(says.contains("pagemill record --with heap -p 7"), "{says}");
            assert_eq!(told(4.0, apart, |_| 56.0), None);
            assert_eq!(told(4.0, apart, |at| (20.0 * at).min(36.0)), None, "a start");
        }
        assert_eq!(told(1.5, 0.1, |at| 50.0 * at), None, "too short to tell");
        let own = counted(&Linux::live(), &[Pid::own()]).unwrap();
        assert!(own > 65536.0, "{own}");
    }
}
