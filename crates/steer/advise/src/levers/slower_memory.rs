//! Memory that is not accessed, in compressed memory or on a slower tier: modelled, not tried.

use crate::lever::{Estimate, Lever, Start, Target};
use crate::observation::RunObservation;

/// zram, zswap, or a tier of slower memory.
pub struct SlowerMemory;

impl Lever for SlowerMemory {
    fn words(&self) -> [&'static str; 3] {
        [
            "slower memory",
            "memory that is not accessed goes to zram, to swap or to a slower tier",
            "swap, or a second memory node",
        ]
    }

    fn start(&self, _: &Target) -> Result<Start, String> {
        Err("modelled only; what it would cost: pagemill record --with accesses -o rec, pagemill advise rec".into())
    }

    fn estimate(&self, seen: &RunObservation) -> Estimate {
        match seen.cold {
            Some(cold) => Estimate::up_to(
                seen.share(cold.bytes),
                0.0,
                format!("not accessed in the last {:.1} s", cold.seconds),
            ),
            None => Estimate::nothing(
                "what it accesses was not looked at: its memory is small, or it ends soon",
            ),
        }
    }
}
