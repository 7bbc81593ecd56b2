use pagemill_model::page::{HUGE, PER_HUGE};
use proptest::prelude::*;

use super::trials::{Counters, Course, Trials};
use super::*;

fn measured(costs: [u64; 8]) -> Costs {
    let [base, base_cold, medium, huge, huge_cold, collapse, deliver, stall] =
        costs.map(Figure::Measured);
    let (fetch, walk) = (Figure::Measured(0), Figure::Absent);
    Costs { base, base_cold, medium, huge, huge_cold, collapse, deliver, stall, fetch, walk }
}

/// A machine as measured once: warm 1.1 us and 90 us, cold 11.3 us and 5.1 ms.
fn machine(moment: Moment) -> View {
    View {
        moment,
        cpus: 2,
        mhz: 2600,
        batch: 4,
        free_huge: Figure::Measured(100),
        pool: Figure::Measured(0),
        load: Figure::Measured(50),
        used: Figure::Measured(300),
        cold: Figure::Measured(0),
        costs: measured([1_100, 11_300, 4_500, 90_000, 5_100_000, 620_000, 6_200, 460_000]),
        ..View::default()
    }
}

fn decides(name: &str, view: &View) -> Action {
    find(name).unwrap().decide(view).action
}

#[test]
fn every_name_is_a_policy_of_that_name() {
    for name in names() {
        assert_eq!(find(name).unwrap().name(), name);
    }
    assert!(find("tpp").is_none());
}

#[test]
fn linux_follows_its_setting_and_khugepaged_its_limit() {
    let fault = machine(Moment::Fault);
    assert_eq!(decides("linux-always", &fault), Action::Huge);
    assert_eq!(decides("linux-madvise", &fault), Action::Base);
    assert_eq!(decides("linux-madvise", &View { advised: true, ..fault }), Action::Huge);
    assert_eq!(decides("linux-never", &View { advised: true, ..fault }), Action::Base);
    let scan = |present| View { present: Figure::Measured(present), ..machine(Moment::Scan) };
    assert_eq!(decides("linux-always", &scan(1)), Action::Collapse);
    assert_eq!(decides("linux-always", &scan(0)), Action::Base);
    assert_eq!(decides("linux-always", &machine(Moment::Scan)), Action::Base);
}

#[test]
fn ingens_promotes_at_ninety_percent_and_never_at_a_fault() {
    let scan = |present| View { present: Figure::Measured(present), ..machine(Moment::Scan) };
    assert_eq!(decides("ingens", &scan(460)), Action::Base);
    assert_eq!(decides("ingens", &scan(461)), Action::Collapse);
    assert_eq!(
        decides("ingens", &View { pool: Figure::Measured(9), ..machine(Moment::Fault) }),
        Action::Base
    );
}

#[test]
fn hawkeye_takes_the_most_accessed_bin_first_and_gives_zeros_back_under_pressure() {
    let ranked = |accessed| {
        let view = View { accessed: Figure::Measured(accessed), ..machine(Moment::Scan) };
        find("hawkeye").unwrap().estimate(Action::Collapse, &view).unwrap().benefit()
    };
    assert_eq!(hawkeye::bin(0), 0);
    assert_eq!(hawkeye::bin(512), hawkeye::BINS - 1);
    assert!(ranked(512) > ranked(200) && ranked(200) > ranked(20) && ranked(0) == 0);
    let sparse = View { huge: true, zeros: Figure::Measured(300), ..machine(Moment::Scan) };
    assert_eq!(decides("hawkeye", &sparse), Action::Base);
    assert_eq!(decides("hawkeye", &View { used: Figure::Measured(900), ..sparse }), Action::Demote);
}

/// The published estimator, action by action, in cycles.
#[test]
fn cbmm_prices_as_published() {
    let policy = cbmm::Cbmm;
    let view = |benefit, free, pool, load| View {
        profile_huge: Figure::Modelled(benefit),
        unit: Unit::Cycles,
        free_huge: Figure::Measured(free),
        pool: Figure::Measured(pool),
        pool_used: Figure::Measured(3),
        load: Figure::Measured(load),
        ..machine(Moment::Fault)
    };
    assert_eq!(policy.decide(&view(200_000, 1, 0, 0)).action, Action::Base);
    assert_eq!(policy.decide(&view(200_001, 1, 0, 0)).action, Action::Huge);
    assert_eq!(policy.decide(&view(1, 1, 1, 0)).action, Action::Pool);
    assert_eq!(policy.decide(&view(4_294_967_296, 0, 0, 0)).action, Action::Base);
    assert_eq!(policy.decide(&view(4_295_167_297, 0, 0, 0)).action, Action::Huge);
    let prezero = |load| policy.estimate(Action::Prezero, &view(0, 1, 0, load)).unwrap();
    assert_eq!((prezero(199).cost(), prezero(199).benefit()), (0, 3_000_000));
    assert_eq!((prezero(200).cost(), prezero(200).benefit()), (400_000, 3_000_000));
    let defragment = |load| policy.estimate(Action::Defragment, &view(0, 1, 0, load)).unwrap();
    assert!(!policy.worth(&defragment(0)) && defragment(200).cost() == cbmm::NO_BLOCK);
    let eager = |benefit| {
        let figure = Figure::Modelled(benefit);
        let view = View { profile_eager: figure, unit: Unit::Cycles, ..machine(Moment::Ahead) };
        policy.decide(&view).action
    };
    assert_eq!(
        (eager(1), eager(26_000), eager(26_001)),
        (Action::Base, Action::Base, Action::Ahead4k)
    );
}

#[test]
fn cbmm_plus_takes_a_dense_region_huge_without_a_profile_and_a_sparse_one_not_under_pressure() {
    let ahead = |expected, used| View {
        present: Figure::Measured(0),
        expected: Figure::Modelled(expected),
        used: Figure::Measured(used),
        ..machine(Moment::Ahead)
    };
    assert_eq!(decides("cbmm+", &ahead(512, 300)), Action::Ahead2m);
    assert_eq!(decides("cbmm+", &ahead(8, 850)), Action::Ahead64k);
    assert_eq!(decides("cbmm+", &ahead(0, 300)), Action::Base);
}

#[test]
fn cbmm_plus_lets_no_fault_wait_for_cold_or_scarce_memory() {
    let fault = View {
        present: Figure::Measured(0),
        expected: Figure::Modelled(512),
        ..machine(Moment::Fault)
    };
    assert_eq!(decides("cbmm+", &fault), Action::Huge);
    assert_eq!(decides("cbmm+", &View { cold: Figure::Measured(1000), ..fault }), Action::Base);
    assert_eq!(decides("cbmm+", &View { free_huge: Figure::Measured(0), ..fault }), Action::Base);
    assert_eq!(decides("cbmm+", &View { free_huge: Figure::Absent, ..fault }), Action::Base);
    assert_eq!(decides("cbmm+", &View { pool: Figure::Measured(1), ..fault }), Action::Pool);
}

#[test]
fn cbmm_plus_prefers_base_pages_ahead_where_a_huge_one_has_to_wait_long() {
    let ahead = |stall| {
        let view = View {
            present: Figure::Measured(0),
            expected: Figure::Modelled(512),
            free_huge: Figure::Measured(0),
            ..machine(Moment::Ahead)
        };
        View {
            costs: Costs { stall: Figure::Measured(stall), medium: Figure::Absent, ..view.costs },
            ..view
        }
    };
    assert_eq!(decides("cbmm+", &ahead(100_000)), Action::Ahead2m);
    assert_eq!(decides("cbmm+", &ahead(5_000_000)), Action::Ahead4k);
}

#[test]
fn cbmm_plus_counts_on_no_block_where_the_last_ones_are_the_kernels() {
    let ahead = |unusable| View {
        present: Figure::Measured(0),
        expected: Figure::Modelled(512),
        free_huge: Figure::Measured(80),
        unusable: Figure::Measured(unusable),
        ..machine(Moment::Ahead)
    };
    assert_eq!(decides("cbmm+", &ahead(900)), Action::Ahead2m);
    assert_eq!(decides("cbmm+", &ahead(995)), Action::Ahead64k);
    let none = View { free_huge: Figure::Measured(0), ..ahead(900) };
    let policy = find("cbmm+").unwrap();
    let fresh = |view| policy.estimate(Action::Ahead2m, &view).unwrap();
    assert_eq!(fresh(ahead(995)), fresh(none), "as if there were none");
}

/// A machine on which zeroing takes longer than the budget, a page of 64 KiB half as much for the same memory, and
/// fetching a third of it.
fn slow(load: u64, growth: Figure) -> View {
    let view = View {
        present: Figure::Measured(0),
        expected: Figure::Modelled(512),
        load: Figure::Measured(load),
        growth,
        ..machine(Moment::Ahead)
    };
    let costs = Costs {
        huge: Figure::Measured(350_000),
        medium: Figure::Measured(9_000),
        fetch: Figure::Measured(120_000),
        walk: Figure::Measured(80),
        ..view.costs
    };
    View { costs, ..view }
}

#[test]
fn cbmm_plus_leaves_rare_zeroing_to_the_program_and_spares_a_fast_one() {
    // 0.2 GB/s: 350 us in 10 ms. 1.6 GB/s: in 1.3 ms.
    let (rare, often) = (Figure::Measured(200_000), Figure::Measured(1_600_000));
    assert_eq!(decides("cbmm+", &slow(150, rare)), Action::Fault2m);
    assert_eq!(decides("cbmm+", &slow(100, often)), Action::Ahead2m);
    assert_eq!(decides("cbmm+", &slow(100, Figure::Absent)), Action::Ahead2m, "nobody knows");
    // Without a CPU for a helper, the faults that are short.
    assert_eq!(decides("cbmm+", &slow(150, often)), Action::Fault64k);
    // Where a helper's pages are as near as one's own they are the better bargain.
    let mut near = slow(100, rare);
    near.costs.fetch = Figure::Measured(0);
    assert_eq!(decides("cbmm+", &near), Action::Ahead2m);
}

#[test]
fn cbmm_plus_has_no_helper_for_a_program_that_was_not_seen_to_grow_or_hardly_does() {
    let begun = slow(0, Figure::Modelled(0));
    assert_eq!(decides("cbmm+", &begun), Action::Fault64k);
    let none = View { costs: Costs { medium: Figure::Absent, ..begun.costs }, ..begun };
    assert_eq!(decides("cbmm+", &none), Action::Base);
    // 10 MB/s: a hundred looks for a huge page, which the program waits for rarely.
    let hardly = View { growth: Figure::Measured(10_000), ..begun };
    assert_eq!(decides("cbmm+", &hardly), Action::Fault2m);
    let much = View { growth: Figure::Measured(1_600_000), ..none };
    assert_eq!(decides("cbmm+", &much), Action::Ahead2m);
}

#[test]
fn cbmm_plus_has_the_program_fault_64_kib_where_huge_pages_are_dear_and_no_cpu_is_idle() {
    let growth = Figure::Measured(1_600_000);
    let dear = |load| {
        let view = slow(load, growth);
        View { costs: Costs { huge: Figure::Measured(3_000_000), ..view.costs }, ..view }
    };
    assert_eq!(decides("cbmm+", &dear(200)), Action::Fault64k);
    assert_eq!(decides("cbmm+", &dear(100)), Action::Ahead64k);
}

#[test]
fn cbmm_plus_stops_making_sparse_regions_huge_where_bloat_is_spent() {
    let scan = |present, bloat| View {
        present: Figure::Measured(present),
        bloat: Figure::Measured(bloat),
        profile_huge: Figure::Modelled(1_000_000),
        unit: Unit::Nanos,
        ..machine(Moment::Scan)
    };
    assert_eq!(decides("cbmm+", &scan(100, 10)), Action::Collapse);
    assert_eq!(decides("cbmm+", &scan(100, 30)), Action::Base);
    assert_eq!(decides("cbmm+", &scan(512, 30)), Action::Collapse);
}

#[test]
fn a_profile_of_ours_holds_the_faults_and_a_published_one_does_not() {
    let ahead = |unit| View {
        present: Figure::Measured(0),
        expected: Figure::Modelled(512),
        profile_huge: Figure::Modelled(0),
        unit,
        ..machine(Moment::Ahead)
    };
    let benefit = |unit| {
        let policy = cbmm_plus::CbmmPlus::USUAL;
        policy.estimate(Action::Ahead2m, &ahead(unit)).unwrap().benefit()
    };
    assert_eq!((benefit(Unit::Cycles), benefit(Unit::Nanos)), (512 * 1_100, 0));
}

#[test]
fn a_why_reads_as_a_sum() {
    let view = View {
        profile_huge: Figure::Modelled(300_000),
        unit: Unit::Cycles,
        ..machine(Moment::Fault)
    };
    assert_eq!(
        cbmm::Cbmm.decide(&view).to_string(),
        "huge: walks 300000 > allocation 0 + preparation 200000 (cycles)"
    );
    let refused = cbmm::Cbmm.decide(&View { profile_huge: Figure::Modelled(5), ..view });
    assert_eq!(
        refused.to_string(),
        "base, not huge: walks 5 <= allocation 0 + preparation 200000 (cycles)"
    );
    assert_eq!(Decision::default().to_string(), "base: nothing to weigh");
}

fn figure() -> impl Strategy<Value = Figure> {
    prop_oneof![
        Just(Figure::Absent),
        (0..2000u64).prop_map(Figure::Measured),
        any::<u64>().prop_map(Figure::Modelled),
    ]
}

fn tried() -> impl Strategy<Value = Trials> {
    let costs = prop::collection::vec(0..3_000_000_u64, 0..10);
    let arms = prop::collection::vec((any::<bool>(), costs), trials::ARMS.len());
    (arms, 0..1_u64 << 40, 0..1_u64 << 30, 0..99_u64).prop_map(|(arms, spent, charged, size)| {
        let offered = |action| arms[trials::arm(action).unwrap()].0;
        let mut tried = Trials::of(offered);
        (tried.spent, tried.charged, tried.size) = (spent, charged, size);
        for (action, (_, costs)) in trials::ARMS.into_iter().zip(&arms) {
            costs.iter().for_each(|cost| tried.tally_mut(action).unwrap().add(*cost));
        }
        tried
    })
}

fn views() -> impl Strategy<Value = View> {
    (untried(), tried()).prop_map(|(view, trials)| View { trials, ..view })
}

fn untried() -> impl Strategy<Value = View> {
    let figures = prop::array::uniform25(figure());
    let moment = prop::sample::select(Moment::ALL.to_vec());
    let unit = prop::sample::select(vec![Unit::Cycles, Unit::Nanos]);
    (figures, moment, unit, (any::<bool>(), any::<bool>()), (0..9u64, 0..5000u64, 0..99u64))
        .prop_map(|(f, moment, unit, (huge, advised), (cpus, mhz, batch))| View {
            moment,
            huge,
            advised,
            cpus,
            mhz,
            batch,
            unit,
            present: f[0],
            expected: f[1],
            accessed: f[2],
            zeros: f[3],
            profile_huge: f[4],
            profile_eager: f[5],
            free_huge: f[6],
            pool: f[7],
            pool_used: f[8],
            load: f[9],
            unusable: f[10],
            used: f[11],
            bloat: f[12],
            cold: f[13],
            costs: Costs {
                base: f[14],
                base_cold: f[15],
                medium: f[16],
                huge: f[17],
                huge_cold: f[18],
                collapse: f[19],
                deliver: f[20],
                stall: f[21],
                fetch: f[22],
                walk: f[23],
            },
            growth: f[24],
            ..View::default()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_decision_is_a_function_of_the_view_and_was_worth_it(view in views()) {
        for name in names() {
            let policy = find(name).unwrap();
            let decision = policy.decide(&view);
            prop_assert_eq!(decision, policy.decide(&view));
            if decision.action != Action::Base {
                let tried = policy.tries().is_some() && trials::arm(decision.action).is_some();
                prop_assert!(tried || view.moment.actions().contains(&decision.action));
                prop_assert_eq!(policy.estimate(decision.action, &view), Some(decision.estimate));
                prop_assert!(policy.worth(&decision.estimate));
                prop_assert!(decision.estimate.gain() > 0);
            }
        }
    }

    /// Less idle time never makes a helper's work more attractive.
    #[test]
    fn a_busier_machine_never_makes_the_helper_cheaper(view in views(), load in 0..400u64, more in 0..400u64) {
        let policy = cbmm_plus::CbmmPlus::USUAL;
        for action in [Action::Ahead4k, Action::Ahead64k, Action::Ahead2m] {
            let cost = |load| {
                let view = View { load: Figure::Measured(load), ..view };
                policy.estimate(action, &view).map(|estimate| estimate.cost())
            };
            prop_assert!(cost(load) <= cost(load + more));
        }
    }

    /// Whatever a huge page costs, the program zeroes beyond the budget only while that is rare.
    #[test]
    fn a_program_waits_beyond_the_budget_only_if_that_is_rare(view in views()) {
        let policy = cbmm_plus::CbmmPlus::USUAL;
        if let Some(estimate) = policy.estimate(Action::Fault2m, &view) {
            let (_, fresh) = estimate.costs.terms().next().unwrap();
            let growth = u128::from(view.growth.value().unwrap_or(u64::MAX));
            let rare = u128::from(fresh) * growth <= u128::from(HUGE) * 1_000 * u128::from(policy.stalled);
            prop_assert!(fresh <= policy.budget || rare);
        }
    }

    #[test]
    fn a_greater_profile_never_turns_a_huge_page_away(view in views(), more in 0..1u64 << 40) {
        for name in ["cbmm", "cbmm+"] {
            let policy = find(name).unwrap();
            let known = View { profile_huge: Figure::Modelled(view.profile_huge.value().unwrap_or(0)), ..view };
            let richer = Figure::Modelled(known.profile_huge.value().unwrap_or(0).saturating_add(more));
            if policy.decide(&known).action.makes_huge() {
                let richer = View { profile_huge: richer, ..known };
                prop_assert!(policy.decide(&richer).action.makes_huge());
            }
        }
    }
}

/// A replay of a changed recording and a board that a program wrote added and multiplied beyond 64 bits.
#[test]
fn figures_and_counters_at_their_limits_are_weighed() {
    let most = Figure::Measured(u64::MAX);
    let mut trials = Trials::of(|_| true);
    (trials.spent, trials.size) = (u64::MAX, u64::MAX);
    for action in [Action::Base, Action::Fault2m] {
        (0..4).for_each(|_| trials.tally_mut(action).unwrap().add(u64::MAX));
    }
    for moment in Moment::ALL {
        let view = machine(moment);
        let full = View { present: Figure::Measured(PER_HUGE), accessed: most, ..view };
        let grown = View { trials, growth: most, batch: u64::MAX, cpus: u64::MAX, ..full };
        let dear = View { costs: measured([u64::MAX; 8]), ..grown };
        for view in [full, grown, dear] {
            for policy in POLICIES {
                let decision = policy.decide(&view);
                let stake = policy.tries().map(|tries| tries.stake(decision.action, &view));
                let least = if view.trials.spent > 0 { u64::MAX } else { 0 };
                assert!(stake.is_none_or(|stake| stake >= least), "{}", policy.name());
            }
        }
    }
    let mut course = Course::new(trials);
    for count in [1, u64::MAX, u64::MAX - 1, 7] {
        let counters = Counters {
            grown: count,
            resident: count,
            program: count,
            waited: count,
            helper: count,
            rounds: count,
        };
        if course.advance(counters, u64::MAX, u64::MAX) {
            course.begin((Action::Fault2m, 1), Action::Base, counters, count);
        }
    }
    assert_eq!(course.in_force(), Action::Fault2m);
}
