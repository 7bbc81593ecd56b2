//! Memory that is not accessed, in compressed memory or on a slower tier: modelled, not tried.

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::{Bounds, MUCH, RunObservation};

/// zram, zswap, or a tier of slower memory.
pub struct SlowerMemory;

impl Lever for SlowerMemory {
    fn description(&self) -> [&'static str; 3] {
        [
            "slower memory",
            "memory that is not accessed goes to zram, to swap or to a slower tier",
            "swap, or a second memory node",
        ]
    }

    fn keeps_elsewhere(&self) -> bool {
        true
    }

    fn start(&self, _: &Target) -> Result<Start, String> {
        Err("modelled only; what it would cost, and who holds its memory: pagemill record --with accesses -o rec, \
             pagemill advise rec"
            .into())
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        let small = seen.peak.anonymous < MUCH;
        match seen.cold_data() {
            _ if small => {
                Estimate::nothing("its memory is small: less than 8 MiB is not worth a lever")
            }
            Some(cold) => {
                let Bounds { low, high } =
                    cold.range.unwrap_or(Bounds { low: cold.bytes, high: cold.bytes });
                let why = format!("not accessed for {:.1} s", cold.seconds);
                Estimate::up_to(seen.share(high), 0.0, why).likely(seen.share(low))
            }
            None => Estimate::nothing(match &seen.not_marked {
                Some(why) => why,
                None => "it ends too soon to tell what it does not access",
            }),
        }
    }
}
