use super::*;
use crate::tier::{Load, Loads};
use pagemill_model::random::Random;
use proptest::prelude::*;

/// The greatest part of the reads that moves in a quantum.
const PACE: f64 = 0.02;

fn loads(default_ns: f64, alternate_ns: f64) -> Loads {
    let load = |latency_ns| Load { latency_ns, reads_per_ns: 0.3 };
    Loads { default: load(default_ns), alternate: load(alternate_ns) }
}

/// Runs a search on a curve of the rate for so many quanta; returns the part of the best rate lost in each.
fn run(
    search: &mut Ucb,
    share: &mut f64,
    (low, high): (f64, f64),
    noise: f64,
    quanta: usize,
    default_ns: f64,
    rate: impl Fn(f64) -> f64,
) -> Vec<f64> {
    let mut random = Random::new(7);
    let best =
        (0..=1000).map(|at| rate(low + (high - low) * f64::from(at) / 1000.0)).fold(0.0, f64::max);
    let mut lost = Vec::new();
    for _ in 0..quanta {
        lost.push(1.0 - rate(*share) / best);
        quantum(search, share, (low, high), (noise, &mut random), default_ns, &rate);
    }
    lost
}

/// One quantum of it.
fn quantum(
    search: &mut Ucb,
    share: &mut f64,
    (low, high): (f64, f64),
    (noise, random): (f64, &mut Random),
    default_ns: f64,
    rate: impl Fn(f64) -> f64,
) {
    // About normal: the sum of twelve.
    let error = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
    let reading = Reading {
        loads: loads(default_ns, 140.0),
        share: *share,
        rate: rate(*share) * (1.0 + noise * error).max(0.01),
    };
    let shift = search.step(&reading);
    let size = shift.size.min(PACE);
    let to = if shift.from == Tier::Default { *share - size } else { *share + size };
    *share = to.clamp(low, high);
}

fn mean(lost: &[f64]) -> f64 {
    lost.iter().sum::<f64>() / lost.len() as f64
}

fn peak(at: f64) -> impl Fn(f64) -> f64 {
    move |share| 1.0 - 0.8 * (share - at).powi(2)
}

/// Both peaks of a run in which the load changes: parts lost once each has had its time.
fn two_loads(start: f64, first: f64, second: f64, noise: f64) -> [f64; 2] {
    let (mut search, mut share) = (Ucb::new(), start);
    let before = run(&mut search, &mut share, (0.0, 1.0), noise, 3000, 100.0, peak(first));
    // Another load has other latencies.
    let rate = |share| 1.3 * peak(second)(share);
    let after = run(&mut search, &mut share, (0.0, 1.0), noise, 4000, 150.0, rate);
    [mean(&before[2000..]), mean(&after[3000..])]
}

#[test]
fn one_peak_is_found_and_found_again_when_it_moves_whatever_the_noise() {
    let mut random = Random::new(1);
    let mut unit = || random.unit();
    let lost: Vec<[f64; 2]> = (0..12).map(|_| two_loads(unit(), unit(), unit(), 0.08)).collect();
    assert!(lost.iter().flatten().all(|lost| *lost < 0.03), "{lost:?}");
    // The load changes while it is away from where it rested, and the rate is the same by chance.
    let lost =
        two_loads(0.516_731_894_471_892_5, 0.393_265_578_280_866_06, 0.925_488_777_340_355_1, 0.08);
    assert!(lost[1] < 0.03, "{lost:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn one_peak_is_found_and_found_again_when_it_moves(
        start in 0.0_f64..1.0, first in 0.0_f64..1.0, second in 0.0_f64..1.0,
    ) {
        let lost = two_loads(start, first, second, 0.0);
        prop_assert!(lost.iter().all(|lost| *lost < 0.03), "{lost:?}");
    }

    #[test]
    fn a_bound_is_kept_to(start in 0.3_f64..0.6, beyond in 0.7_f64..1.0, below in any::<bool>()) {
        let (mut search, mut share) = (Ucb::new(), start);
        let at = if below { 1.0 - beyond } else { beyond };
        let lost = run(&mut search, &mut share, (0.3, 0.7), 0.0, 2000, 100.0, peak(at));
        prop_assert!(mean(&lost[1500..]) < 0.01, "{}", mean(&lost[1500..]));
    }

    #[test]
    fn any_readings_keep_the_share_in_range_and_give_the_same_shifts_again(
        readings in prop::collection::vec(
            (0.0_f64..=1.0, prop::sample::select(vec![0.0, 1e-300, 1.0, 2.0, 1e12, f64::NAN, f64::INFINITY]),
             0.0_f64..1e4),
            1..200),
    ) {
        let (mut search, mut again) = (Ucb::new(), Ucb::new());
        for (share, rate, default_ns) in readings {
            let reading = Reading { loads: loads(default_ns, 140.0), share, rate };
            let shift = search.step(&reading);
            prop_assert_eq!(shift, again.step(&reading));
            let most = if shift.from == Tier::Default { share } else { 1.0 - share };
            prop_assert!((0.0..=most + 1e-9).contains(&shift.size), "{shift:?} at {share}");
        }
    }

    #[test]
    fn the_account_is_overdrawn_by_no_more_than_a_way_home(at in 0.0_f64..1.0, steep in 0.5_f64..8.0) {
        let (mut search, mut share) = (Ucb::new(), 0.95);
        let rate = |share: f64| (-steep * (share - at).abs()).exp();
        for _ in 0..60 {
            run(&mut search, &mut share, (0.0, 1.0), 0.03, 100, 100.0, rate);
            prop_assert!(search.account() <= SWEEP + AGAIN);
            prop_assert!(search.account() > -1.0 / PACE, "{}", search.account());
        }
    }
}

#[test]
fn a_peak_at_the_lower_end_behind_a_slope_is_found() {
    // 14 of 90 random machines are fastest with nothing on the default tier, and much slower with a little.
    let rate = |share: f64| if share < 0.02 { 1.0 } else { 0.5 - 0.3 * share };
    let (mut search, mut share) = (Ucb::new(), 0.95);
    let lost = run(&mut search, &mut share, (0.0, 1.0), 0.03, 3000, 300.0, rate);
    assert!(mean(&lost[2000..]) < 0.01, "{}", mean(&lost[2000..]));
}

#[test]
fn an_empty_account_pays_for_no_visit_home_after_a_departure() {
    let (mut search, mut share) = (Ucb::new(), 0.5);
    run(&mut search, &mut share, (0.0, 1.0), 0.0, 2000, 100.0, peak(0.5));
    search.landmarks = vec![POINTS - 1];
    search.account = -1000.0;
    run(&mut search, &mut share, (0.0, 1.0), 0.0, 200, 100.0, peak(0.5));
    assert!(search.landmarks.is_empty() && (share - 0.5).abs() < 0.1, "{share}");
    // With something to spend it goes there.
    search.account = SWEEP;
    search.landmarks = vec![POINTS - 1];
    run(&mut search, &mut share, (0.0, 1.0), 0.0, 20, 100.0, peak(0.5));
    assert!(share > 0.8, "{share}");
}

#[test]
fn a_load_that_changes_nothing_but_the_reads_of_a_tier_is_seen() {
    let (mut rest, mut departed) = (OperatingPoint::NOTHING, None);
    for quantum in 0..400 {
        let mut loads = loads(100.0, 140.0);
        loads.default.reads_per_ns = if quantum < 200 { 0.006 } else { 0.0 };
        departed = departed.or(rest.read(loads, Some(0), 0.0).map(|_| quantum));
    }
    assert!(departed.is_some_and(|quantum| quantum > 200), "{departed:?}");
}

#[test]
fn an_empty_account_tries_nothing() {
    let (mut search, mut share) = (Ucb::new(), 0.5);
    run(&mut search, &mut share, (0.0, 1.0), 0.03, 1000, 100.0, peak(0.5));
    search.account = -1000.0;
    let lost = run(&mut search, &mut share, (0.0, 1.0), 0.03, 1000, 100.0, peak(0.5));
    assert!(lost[100..].iter().all(|lost| *lost < 0.02) && search.account() < 0.0);
}

/// 14 of 230 random machines at rest lost more than 3 % to departures that were none: next to nothing of the reads at
/// the lower end is twice as much one point farther on.
#[test]
fn what_the_way_from_a_neighbour_explains_of_the_reads_is_no_departure() {
    let at = |share: f64, others: f64| {
        let load = |latency_ns, reads_per_ns| Load { latency_ns, reads_per_ns };
        Loads {
            default: load(200.0, others + 0.5 * share),
            alternate: load(200.0, 0.5 - 0.5 * share),
        }
    };
    let step = 1.0 / (POINTS - 1) as f64;
    for (others, departs) in [(0.01, false), (0.1, true)] {
        let (mut rest, mut departed) = (OperatingPoint::NOTHING, None);
        (0..200).for_each(|_| departed = departed.or(rest.read(at(0.0, 0.01), Some(0), 0.0)));
        (0..200).for_each(|_| departed = departed.or(rest.read(at(step, others), Some(1), 0.0)));
        assert_eq!(departed.is_some(), departs, "{others}: {departed:?}");
    }
}

/// The median part lost in the last 500 of 2,500 quanta after a change of the load.
fn lost_after_a_step(start: f64, first: f64, second: f64, noise: f64) -> f64 {
    let (mut search, mut share) = (Ucb::new(), start);
    run(&mut search, &mut share, (0.0, 1.0), noise, 3000, 100.0, peak(first));
    let rate = |share| 1.3 * peak(second)(share);
    let mut after = run(&mut search, &mut share, (0.0, 1.0), noise, 2500, 150.0, rate);
    // Excursions may go on, for less than half of the time.
    let late = &mut after[2000..];
    late.sort_by(f64::total_cmp);
    late[late.len() / 2]
}

/// Where the new load is as fast at home as the old one, the curve kept the form of that: the share stayed where it
/// was, or on a way on which it had been taken for the best, with the account full.
#[test]
fn a_load_as_fast_at_home_as_the_last_is_followed() {
    for (start, first, second) in [
        (0.728_425_790, 0.821_276_102, 0.225_708_729),
        (0.373_445_135, 0.420_667_973, 0.974_491_511),
        (0.251_907_412, 0.259_467_144, 0.894_741_448),
    ] {
        let lost = lost_after_a_step(start, first, second, 0.03);
        assert!(lost < 0.03, "{start} {first} {second}: {lost}");
    }
}

/// After a departure nothing was known of the shares far off, so they were visited first: half of the range and back at
/// a half of the rate, and the account was empty before anything near had been looked at.
#[test]
fn no_visit_goes_farther_at_once_than_a_hop() {
    let (mut search, mut share) = (Ucb::new(), 0.5);
    run(&mut search, &mut share, (0.0, 1.0), 0.0, 3000, 100.0, peak(0.5));
    // The lower end may be anything, and the visit to the best is over.
    search.curve.covariance[0][0] += 4.0;
    (search.account, search.visit) = (SWEEP, u32::MAX / 2);
    let mut farthest = 0.0_f64;
    // A share moves by a fiftieth a quantum.
    for _ in 0..20 {
        run(&mut search, &mut share, (0.0, 1.0), 0.0, 1, 100.0, peak(0.5));
        farthest = farthest.max((share - 0.5).abs());
    }
    assert!(farthest < 0.16, "{farthest}");
}

/// Runs a search on loads that change every `period` quanta, to a peak and a level by chance: what was charged to its
/// account, and how often it was given [`AGAIN`].
fn restless(seed: u64, period: usize, quanta: usize, noise: f64) -> (f64, usize) {
    let mut random = Random::new(seed);
    let (mut search, mut share) = (Ucb::new(), random.unit());
    let (mut charged, mut grants) = (0.0, 0);
    for _ in 0..quanta / period {
        let (at, level) = (random.unit(), 0.5 + random.unit());
        let latency = 60.0 + 200.0 * random.unit();
        let rate = |share| level * peak(at)(share);
        for _ in 0..period {
            let before = search.account();
            let noisy = (noise, &mut random);
            quantum(&mut search, &mut share, (0.0, 1.0), noisy, latency, rate);
            let change = search.account() - before;
            // No quantum takes more than one, or gives as much.
            grants += usize::from(change > 1.0);
            charged += (-change).max(0.0);
        }
    }
    (charged, grants)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn however_often_the_load_changes_exploring_costs_no_more_than_the_account_is_given(
        seed: u64, period in 100_usize..3_000, noise in 0.0_f64..0.08,
    ) {
        let quanta = 12_000;
        let (charged, grants) = restless(seed, period, quanta, noise);
        prop_assert!(grants <= 1 + quanta / APART as usize, "{grants}");
        let given = SWEEP + AGAIN + quanta as f64 * (AGAIN / APART + TRICKLE);
        // What it was wrong about on the way back: one way of the whole range.
        prop_assert!(charged <= given + 1.0 / PACE, "{charged} of {given}");
    }

    #[test]
    fn a_step_is_answered_within_two_thousand_quanta(
        start in 0.0_f64..1.0, first in 0.0_f64..1.0, second in 0.0_f64..1.0,
    ) {
        let lost = lost_after_a_step(start, first, second, 0.0);
        prop_assert!(lost < 0.03, "{lost}");
    }

    #[test]
    fn noise_alone_does_not_move_it_for_long(
        at in 0.0_f64..1.0, noise in 0.01_f64..0.08, seed: u64,
    ) {
        let (mut search, mut share) = (Ucb::new(), 0.5);
        run(&mut search, &mut share, (0.0, 1.0), noise, 4000, 100.0, peak(at));
        let (mut moved, mut lost, mut random) = (0, 0.0, Random::new(seed));
        for _ in 0..4000 {
            let before = share;
            lost += 1.0 - peak(at)(share);
            quantum(&mut search, &mut share, (0.0, 1.0), (noise, &mut random), 100.0, peak(at));
            moved += usize::from((share - before).abs() > MOVES);
        }
        prop_assert!(moved < 1_000 && lost < 80.0, "{moved} quanta, {lost} lost");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1))]

    /// With noise a load that is as fast at home as the last may be taken for it: 2 of 4,500 were.
    #[test]
    fn with_noise_hardly_a_step_is_missed(seed: u64) {
        let mut random = Random::new(seed);
        let steps = (0..16).map(|_| [random.unit(), random.unit(), random.unit()]);
        let missed: Vec<_> = steps
            .filter(|[start, first, second]| lost_after_a_step(*start, *first, *second, 0.03) >= 0.03)
            .collect();
        prop_assert!(missed.len() <= 1, "{missed:?}");
    }
}
