//! How long all of it may take.

use std::time::Duration;

/// Time for it all where none is given: this, or so many times what the shortest run of the command as it is takes.
pub(super) const TIME: Duration = Duration::from_secs(54);
const TIMES: f64 = 20.0;
/// Of a server, whose turns may be as long as its client likes, it is this; but so many turns are had in any case: a
/// first look, and what shows one lever.
pub const USUAL_FOR_A_SERVER: Duration = Duration::from_secs(160);
const TURNS: f64 = 8.0;
/// On a busy machine the former is up to so many times that.
const LONGER: f64 = 3.0;
/// So much more of it for the runs that the best lever so far lacks.
pub(super) const GRACE: f64 = 0.1;
/// The last part of the time, in which the lever that looks best, and is not shown yet, is compared alone.
pub(super) const CLOSING: f64 = 0.15;
/// Time where so many runs are asked for, and no time: as long as they take.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 30);

/// Time for it all. Where none is given, a multiple of the shortest run, or what is enough for most; that is so much
/// longer as a command takes that waits for CPUs for this share of the time that it is ready. Whether so many `rounds`
/// are asked for, and whether it is a server.
pub(super) fn time(
    within: Option<Duration>,
    [rounds, server]: [bool; 2],
    shortest: f64,
    waits: f64,
) -> Duration {
    match (within, rounds) {
        (Some(time), _) => time,
        (None, true) => FOREVER,
        // What was said before it began is kept.
        (None, false) if server => {
            USUAL_FOR_A_SERVER.max(Duration::from_secs_f64(shortest * TURNS))
        }
        (None, false) => {
            let longer = (1.0 / (1.0 - waits).max(f64::EPSILON)).min(LONGER);
            // What a run takes has the waiting in it.
            TIME.mul_f64(longer).max(Duration::from_secs_f64(shortest * TIMES))
        }
    }
}
