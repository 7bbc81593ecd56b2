use super::*;
use crate::machine::ICELAKE;

fn chase(window: usize) -> Group {
    Group {
        cores: 1,
        kind: CoreKind::Window {
            window,
            front_ns: 0.0,
            issue_ns: 0.0,
            mispredicted: 0.0,
            penalty_ns: 0.0,
            walks: Walks::NONE,
            lines: 1.0,
        },
        default_share: 1.0,
        writes_per_read: 0.0,
    }
}

#[test]
fn a_pointer_chase_sees_the_unloaded_latency_of_each_tier() {
    let machine = Machine::parse(ICELAKE).unwrap();
    for (share, unloaded) in [(1.0, 70.0), (0.0, 135.0)] {
        let group = Group { default_share: share, ..chase(1) };
        let outcome = run(&machine, &[group], 2_000.0, 200_000.0, 1);
        let latency = 1.0 / outcome.ops_per_ns[0];
        assert!((0.96..1.04).contains(&(latency / unloaded)), "{latency} of {unloaded}");
    }
}

#[test]
fn in_order_retirement_costs_throughput_and_never_exceeds_the_window() {
    let machine = Machine::parse(ICELAKE).unwrap();
    let outcome = run(&machine, &[Group { cores: 15, ..chase(8) }], 5_000.0, 50_000.0, 1);
    let in_flight = outcome.ops_per_ns[0] * outcome.loads.default.latency_ns;
    assert!(in_flight <= 15.0 * 8.0 && in_flight > 15.0 * 4.0, "{in_flight}");
}

#[test]
fn no_tier_moves_more_than_its_bus() {
    let machine = Machine::parse(ICELAKE).unwrap();
    let stream = Group {
        cores: 20,
        kind: CoreKind::Stream {
            window: 88,
            buffers: 12,
            distance: 20,
            queue: 48,
            near_ns: 5.0,
            lag: 20_480,
        },
        default_share: 1.0,
        writes_per_read: 1.0,
    };
    let outcome = run(&machine, &[stream], 10_000.0, 20_000.0, 1);
    assert!(outcome.lines_per_ns[0] * 64.0 <= 204.8 * 1.001, "{outcome:?}");
}

/// A single rank of three bank groups has no pairs of them: lines of a stream were sent to banks that do not exist.
#[test]
fn banks_that_cannot_be_paired_off_serve_streams() {
    let machine = Machine::parse(ICELAKE).unwrap();
    let machine = machine.with("dram.ranks", 1.0).with("dram.bank_groups", 3.0);
    let outcome = run(&machine, &[crate::workload::antagonist(&machine, 1.0)], 1_000.0, 5_000.0, 1);
    assert!(outcome.ops_per_ns[0] > 0.0, "{outcome:?}");
}

#[test]
fn a_seed_is_an_outcome() {
    let machine = Machine::parse(ICELAKE).unwrap();
    let once = |seed| run(&machine, &[Group { cores: 4, ..chase(6) }], 1_000.0, 10_000.0, seed);
    assert_eq!(once(9), once(9));
    assert_ne!(once(9), once(10));
}

/// Refreshed whoever waits, two tiers were slower than one of them alone: cores that retire in order stood still for
/// twice as many refreshes.
#[test]
fn two_identical_tiers_at_half_share_are_never_slower_than_one_alone() {
    let machine = Machine::parse(ICELAKE).unwrap();
    let machine = machine.with("tier.alternate.unloaded_ns", 70.0).with("link.flits_per_ns", 1e3);
    let gups = crate::workload::gups(64.0);
    for (cores, walked) in [(15, false), (15, true), (6, false), (30, false)] {
        let walks = Walks { part: 1.0, miss: 0.1, hit_ns: 25.0, default_share: 0.5 };
        let rate = |share| {
            let walks = if walked { Walks { default_share: share, ..walks } } else { Walks::NONE };
            let group = Group { cores, ..gups.group(&machine, share, walks) };
            run(&machine, &[group], 4_000.0, 120_000.0, 1).ops_per_ns[0]
        };
        let (one, other, both) = (rate(1.0), rate(0.0), rate(0.5));
        assert!(both >= one.max(other), "{cores} cores: {both} on both, {one} and {other} on one");
    }
}
