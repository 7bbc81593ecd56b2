//! A program whose growth costs what a script says under each arm, driven as the live system drives one.

use pagemill_model::page::HUGE;
use pagemill_model::random::Random;
use proptest::prelude::*;

use super::super::trials::{ARMS, Counters, Course, Trials, arm};
use super::super::{Costs, find};
use super::*;

/// What a region costs under each arm, ns of the program and ns of the helper, in the order of [`ARMS`].
type Script = [(u64, u64); ARMS.len()];

/// A machine as measured once, one of two CPUs idle.
fn machine() -> View {
    let costs = Costs {
        base: Figure::Measured(1_100),
        base_cold: Figure::Measured(11_300),
        medium: Figure::Measured(4_500),
        huge: Figure::Measured(90_000),
        huge_cold: Figure::Measured(5_100_000),
        stall: Figure::Measured(460_000),
        fetch: Figure::Measured(30_000),
        walk: Figure::Measured(0),
        ..Costs::default()
    };
    View {
        moment: Moment::Ahead,
        cpus: 2,
        load: Figure::Measured(100),
        free_huge: Figure::Measured(100),
        costs,
        ..View::default()
    }
}

/// One epoch of a run.
#[derive(Clone, Copy, Debug)]
struct RunEpoch {
    action: Action,
    best: Action,
    view: View,
    decision: Decision,
    /// What it and its settling cost the program and the helper, in the policy's money, ns, and how many regions that
    /// were.
    cost: u64,
    regions: u64,
    /// What the growing thread waited for in it, ns.
    own: u64,
}

/// Grows by so many regions, `step` regions between two looks; costs vary by `noise` percent at most each way.
fn grow(
    policy: &'static dyn Policy,
    view: View,
    script: Script,
    regions: u64,
    step: u64,
    noise: u64,
    seed: u64,
) -> Vec<RunEpoch> {
    begun(Action::Base, policy, view, script, regions, (step, noise, seed))
}

/// The same, begun with an arm; steps, noise and seed at the end.
fn begun(
    first: Action,
    policy: &'static dyn Policy,
    view: View,
    script: Script,
    regions: u64,
    (step, noise, seed): (u64, u64, u64),
) -> Vec<RunEpoch> {
    let tries = policy.tries().unwrap();
    let mut random = Random::new(seed);
    let mut course = Course::new(Trials::of(|_| true).beginning_with(first));
    let mut now = Counters::default();
    let mut done: Vec<RunEpoch> = Vec::new();
    let price = tries.helper_price(&view);
    while now.grown < regions * HUGE {
        if course.advance(now, price, step) {
            let view = View { trials: course.trials(), ..view };
            let decision = policy.decide(&view);
            let (action, best) = (decision.action, tries.best(&view));
            course.begin((action, tries.stake(action, &view)), best, now, 0);
            done.push(RunEpoch { action, best, view, decision, cost: 0, regions: 0, own: 0 });
        }
        let last = done.last_mut().unwrap();
        let (own, helper) = script[arm(last.action).unwrap()];
        let varied = |ns: u64, random: &mut Random| {
            ns * step * (100 - noise + random.below(2 * noise + 1)) / 100
        };
        let (own, helper) = (varied(own, &mut random), varied(helper, &mut random));
        now.program += own;
        now.helper += helper;
        now.grown += step * HUGE;
        now.resident += step * HUGE;
        now.rounds += 1;
        last.cost += own + helper * price / 1000;
        last.own += own;
        last.regions += step;
    }
    done
}

fn flat(cost: u64) -> Script {
    [(cost, 0); ARMS.len()]
}

fn usual(script: Script) -> Vec<RunEpoch> {
    grow(&Auto::THROUGHPUT, machine(), script, 8_000, 1, 8, 7)
}

/// Share of the epochs in the last half that had this action.
fn late(done: &[RunEpoch], action: Action) -> f64 {
    let half = &done[done.len() / 2..];
    half.iter().filter(|epoch| epoch.action == action).count() as f64 / half.len() as f64
}

#[test]
fn each_arm_wins_where_it_is_cheapest() {
    for (at, action) in ARMS.into_iter().enumerate() {
        let mut script = flat(1_200_000);
        script[at] = (800_000, 0);
        if has_helper(action) {
            script[at].1 = 50_000;
        }
        let done = usual(script);
        assert!(late(&done, action) > 0.9, "{action:?}: {}", late(&done, action));
    }
}

#[test]
fn it_begins_with_64_kib_where_half_of_them_would_do_and_leaves_them_where_they_do_not() {
    let first = |policy: &dyn Policy, medium, offered: bool| {
        let mut view = View { trials: Trials::of(|_| offered), ..machine() };
        view.costs.medium = medium;
        policy.tries().unwrap().first(&view)
    };
    let dear = Figure::Measured(8 * 1_100);
    assert_eq!(first(&Auto::THROUGHPUT, Figure::Measured(4_500), true), Action::Fault64k);
    assert_eq!(first(&Auto::TAIL, Figure::Absent, true), Action::Fault64k);
    assert_eq!(first(&Auto::THROUGHPUT, dear, true), Action::Base);
    assert_eq!(first(&Auto::THROUGHPUT, Figure::Absent, false), Action::Base);
    assert_eq!(first(&Auto::MEMORY, Figure::Measured(4_500), true), Action::Base);
    let untimed = View { trials: Trials::of(|_| true), costs: Costs::default(), ..machine() };
    assert_eq!(Auto::THROUGHPUT.first(&untimed), Action::Fault64k);
    for (at, action) in ARMS.into_iter().enumerate() {
        let mut script = flat(1_200_000);
        script[at] = (800_000, 0);
        let auto = &Auto::THROUGHPUT;
        let done = begun(Action::Fault64k, auto, machine(), script, 20_000, (1, 8, 7));
        assert!(done[..LEARNED].iter().all(|epoch| epoch.action == Action::Fault64k));
        assert!(late(&done, action) > 0.9, "{action:?}: {}", late(&done, action));
    }
}

#[test]
fn small_differences_are_found_in_time_and_none_is_left_alone() {
    let mut script = flat(1_200_000);
    script[1] = (1_050_000, 0);
    let done = grow(&Auto::THROUGHPUT, machine(), script, 16_000, 1, 3, 3);
    assert!(late(&done, Action::Fault64k) > 0.9);
    // All equal: what is in force may be any, and costs no more than any other.
    let done = usual(flat(1_200_000));
    let all: u64 = done.iter().map(|epoch| epoch.cost).sum();
    let regions: u64 = done.iter().map(|epoch| epoch.regions).sum();
    assert!(all < regions * 1_200_000 / 100 * 101);
}

/// Memory was warm when the costs were measured and cold when the program grew: the first trial of huge pages took 13
/// regions at 1.8 ms each from a program that had worked for half a second.
#[test]
fn huge_pages_that_were_never_seen_cold_wait_until_there_is_room_for_cold_ones() {
    let mut view = machine();
    (view.costs.base_cold, view.costs.huge_cold) = (Figure::Absent, Figure::Absent);
    let mut script = flat(400_000);
    script[arm(Action::Fault2m).unwrap()] = (1_800_000, 0);
    let done = begun(Action::Fault64k, &Auto::THROUGHPUT, view, script, 8_000, (1, 8, 7));
    let first = done.iter().find(|epoch| epoch.action.makes_huge()).unwrap();
    assert!(first.view.trials.spent >= 400_000_000, "{}", first.view.trials);
}

#[test]
fn what_nobody_has_timed_is_not_tried() {
    let view = View { costs: Costs::default(), ..machine() };
    let done = begun(Action::Fault64k, &Auto::THROUGHPUT, view, flat(400_000), 8_000, (1, 8, 7));
    assert!(done.iter().all(|epoch| epoch.action == Action::Fault64k));
}

#[test]
fn nothing_is_tried_before_it_is_known_what_being_left_alone_costs() {
    let mut script = flat(2_000_000);
    script[1] = (200_000, 0);
    let done = usual(script);
    assert!(done[..LEARNED].iter().all(|epoch| epoch.action == Action::Base));
    let first = done.iter().find(|epoch| epoch.action != Action::Base).unwrap();
    assert!(first.view.trials.tally(Action::Base).epochs() >= LEARNED);
}

#[test]
fn a_program_whose_faults_are_next_to_nothing_is_left_alone() {
    // 512 faults take 0.56 ms, and 5.8 ms from cold memory.
    let done = usual(flat(300_000_000));
    assert!(done.iter().all(|epoch| epoch.action == Action::Base));
    let done = usual(flat(60_000_000));
    assert!(done.iter().any(|epoch| epoch.action != Action::Base));
}

#[test]
fn no_helper_works_where_no_cpu_is_idle() {
    let mut script = flat(1_200_000);
    script[3] = (100_000, 0);
    for load in [Figure::Measured(150), Figure::Measured(200), Figure::Absent] {
        let done = grow(&Auto::THROUGHPUT, View { load, ..machine() }, script, 4_000, 1, 8, 7);
        assert!(done.iter().all(|epoch| !has_helper(epoch.action)), "{load:?}");
    }
    let idle = View { load: Figure::Measured(100), ..machine() };
    let done = grow(&Auto::THROUGHPUT, idle, script, 4_000, 1, 8, 7);
    assert!(late(&done, Action::Ahead2m) > 0.9);
}

#[test]
fn a_helper_counts_by_the_goal() {
    // It spares the program 0.3 ms a region and takes 0.8 itself.
    let mut script = flat(1_200_000);
    script[3] = (900_000, 800_000);
    let done = |policy| grow(policy, machine(), script, 8_000, 1, 4, 7);
    assert!(late(&done(&Auto::THROUGHPUT), Action::Base) > 0.9);
    assert!(late(&done(&Auto::TAIL), Action::Ahead2m) > 0.9);
    assert!(done(&Auto::MEMORY).iter().all(|epoch| !epoch.action.makes_huge()));
}

#[test]
fn where_the_tail_counts_no_fault_zeroes_for_long() {
    let mut script = flat(1_200_000);
    script[2] = (300_000, 0);
    let mut slow = machine();
    slow.costs.huge = Figure::Measured(STALL + 1);
    let tried = |policy, view| {
        let done = grow(policy, view, script, 4_000, 1, 4, 7);
        done.iter().any(|epoch| epoch.action == Action::Fault2m)
    };
    assert!(tried(&Auto::TAIL, machine()) && tried(&Auto::THROUGHPUT, slow));
    assert!(!tried(&Auto::TAIL, slow));
}

/// The latency of growth, ns a region, of the slowest epoch in a thousand of the last half.
fn slowest(done: &[RunEpoch]) -> u64 {
    let half = &done[done.len() / 2..];
    let mut latencies: Vec<u64> = half.iter().map(|epoch| epoch.own / epoch.regions).collect();
    latencies.sort_unstable();
    latencies[latencies.len() - 1 - latencies.len() / 1000]
}

#[test]
fn where_the_tail_counts_not_one_epoch_in_a_thousand_waits_longer_than_under_the_arm_that_waits_least()
 {
    // A helper spares the program a quarter and takes as much as that is worth; one arm is eight times as slow.
    let mut script = flat(1_200_000);
    script[arm(Action::Ahead2m).unwrap()] = (900_000, 800_000);
    script[arm(Action::Pool).unwrap()] = (9_600_000, 0);
    let done = |policy| grow(policy, machine(), script, 80_000, 1, 4, 7);
    let (tail, throughput) = (slowest(&done(&Auto::TAIL)), slowest(&done(&Auto::THROUGHPUT)));
    assert!(tail <= 900_000 / 100 * 104, "{tail}");
    assert!(throughput >= 1_200_000, "{throughput}");
}

/// Grows by so many regions, of which each has `touched` base pages in as many blocks of 64 KiB as can be; returns the
/// actions.
fn spread(course: &mut Course, now: &mut Counters, regions: u64, touched: u64) -> Vec<Action> {
    let policy = &Auto::MEMORY;
    let mut actions = Vec::new();
    for _ in 0..regions {
        if course.advance(*now, policy.helper_price(&machine()), 1) {
            let view = View { trials: course.trials(), ..machine() };
            let action = policy.decide(&view).action;
            course.begin((action, policy.stake(action, &view)), policy.best(&view), *now, 0);
            actions.push(action);
        }
        let (pages, cost) = match course.in_force() {
            Action::Base => (touched, 1_200_000),
            Action::Fault64k => ((touched * 16).min(PER_HUGE), 800_000),
            other => panic!("{other:?} takes more than is touched"),
        };
        now.program += cost;
        now.grown += HUGE;
        now.resident += pages * HUGE / PER_HUGE;
        now.rounds += 1;
    }
    actions
}

#[test]
fn where_memory_counts_nothing_is_resident_that_is_not_touched() {
    let beginning = || Course::new(Trials::of(|_| true));
    // One page of each 64 KiB, and all but one of eight of them.
    for touched in [32, 448] {
        let mut now = Counters::default();
        let actions = spread(&mut beginning(), &mut now, 8_000, touched);
        assert!(actions.iter().all(|action| *action == Action::Base));
        assert_eq!(now.resident, 8_000 * touched * HUGE / PER_HUGE);
    }
    // All of it for a while, then one page of each 64 KiB.
    let (mut course, mut now) = (beginning(), Counters::default());
    let dense = spread(&mut course, &mut now, 8_000, PER_HUGE);
    assert!(dense[dense.len() / 2..].iter().filter(|action| **action == Action::Base).count() < 10);
    assert!(dense.ends_with(&[Action::Fault64k]));
    let then = now;
    while now.program < 2 * then.program {
        spread(&mut course, &mut now, 1, 32);
    }
    let rest = spread(&mut course, &mut now, 100, 32);
    assert!(rest.iter().skip(1).all(|action| *action == Action::Base), "{rest:?}");
    let before = now;
    let rest = spread(&mut course, &mut now, 8_000, 32);
    assert!(rest.iter().all(|action| *action == Action::Base));
    assert_eq!(now.resident - before.resident, 8_000 * 32 * HUGE / PER_HUGE);
}

#[test]
fn an_arm_that_gets_worse_is_left() {
    let policy = &Auto::THROUGHPUT;
    let mut trials = Trials::of(|action| action == Action::Fault64k);
    trials.spent = 1_000_000_000;
    for cost in [900_000, 910_000, 920_000] {
        trials.tally_mut(Action::Base).unwrap().add(cost);
        trials.tally_mut(Action::Fault64k).unwrap().add(cost / 2);
    }
    let decided = |trials| policy.decide(&View { trials, ..machine() });
    assert_eq!(decided(trials).action, Action::Fault64k);
    (0..6).for_each(|_| trials.tally_mut(Action::Fault64k).unwrap().add(1_500_000));
    let left = decided(trials);
    assert_eq!(left.action, Action::Base, "{left}");
    assert!(left.to_string().starts_with("base, not fault-64k: first 900000"), "{left}");
}

#[test]
fn sparse_growth_gets_no_huge_pages() {
    let mut course = Course::new(Trials::of(|_| true));
    course.begin((Action::Base, 0), Action::Base, Counters::default(), 0);
    let grown = 4 * HUGE;
    for (resident, offered) in [(grown / 4, false), (grown / 4 + grown, true)] {
        let now = Counters {
            grown: if offered { 2 * grown } else { grown },
            resident,
            ..Counters::default()
        };
        assert!(course.advance(now, 500, 1));
        course.begin((Action::Base, 0), Action::Base, now, 0);
        assert_eq!(course.trials().tally(Action::Fault2m).is_offered(), offered);
        assert!(course.trials().tally(Action::Fault64k).is_offered());
    }
}

#[test]
fn growth_after_a_change_of_arm_counts_for_none_until_the_order_was_seen() {
    let mut course = Course::new(Trials::of(|_| true));
    let at = |regions: u64, rounds| Counters {
        grown: regions * HUGE,
        program: regions * 1_000,
        rounds,
        ..Counters::default()
    };
    course.begin((Action::Fault64k, u64::MAX), Action::Base, at(0, 0), HUGE);
    assert!(!course.advance(at(9, 1), 500, 1), "the library may not have seen it");
    assert!(!course.advance(at(10, 2), 500, 1), "from here on");
    assert!(!course.advance(at(13, 3), 500, 1));
    assert!(course.advance(at(14, 4), 500, 1));
    assert_eq!(course.trials().tally(Action::Fault64k).median(), Some(1_000));
    assert_eq!(course.trials().tally(Action::Base).epochs(), 0);
}

/// Arms of five times the cost were tried a second time and used up the budget before one of a third of the cost had
/// its second epoch, 10,000 epochs later.
#[test]
fn a_promising_arm_has_its_epochs_before_a_dear_one_is_tried_again() {
    let mut script =
        [579_000, 2_495_000, 1_953_000, 108_000, 2_073_000, 3_718_000].map(|cost| (cost, 0));
    script[arm(Action::Ahead2m).unwrap()].1 = 198_000;
    let done = grow(&Auto::THROUGHPUT, machine(), script, 40_000, 4, 5, 331);
    assert!(late(&done, Action::Ahead2m) > 0.9, "{}", done.last().unwrap().view.trials);
}

#[test]
fn arms_of_which_nothing_is_known_are_tried_in_the_order_of_what_their_faults_cost() {
    let mut view = machine();
    view.costs.huge_cold = view.costs.huge;
    let done = grow(&Auto::THROUGHPUT, view, flat(1_200_000), 8_000, 1, 0, 7);
    let mut order: Vec<Action> = Vec::new();
    for action in done.iter().map(|epoch| epoch.action) {
        if !order.contains(&action) {
            order.push(action);
        }
    }
    // 30 + 90/2, the same, 90, 30 + 144/2, and 144 us a region.
    let [base, medium, huge, ahead, ahead_medium, pool] = ARMS;
    assert_eq!(order, [base, ahead, pool, huge, ahead_medium, medium]);
}

#[test]
fn a_dear_arm_is_tried_again_when_no_other_is_open_from_half_of_the_budget() {
    let mut trials = Trials::of(|action| matches!(action, Action::Fault64k | Action::Fault2m));
    let mut epochs = |action, costs: &[u64]| {
        costs.iter().for_each(|cost| trials.tally_mut(action).unwrap().add(*cost));
    };
    epochs(Action::Base, &[1_000_000; KEPT]);
    epochs(Action::Fault2m, &[5_000_000]);
    epochs(Action::Fault64k, &[1_000_000; KEPT - 1]);
    trials.spent = 20_000_000_000;
    let decided = |trials: Trials| Auto::THROUGHPUT.decide(&View { trials, ..machine() }).action;
    assert_eq!(decided(trials), Action::Fault64k);
    trials.tally_mut(Action::Fault64k).unwrap().add(1_000_000);
    assert_eq!(decided(trials), Action::Fault2m);
    // 7 regions of 4 ms and what was charged are more than half of 200 ms.
    trials.charged = 75_000_000;
    assert_eq!(decided(trials), Action::Base);
    assert!(
        Auto::THROUGHPUT
            .weighed(Action::Fault2m, false, &View { trials, ..machine() })
            .is_some_and(|estimate| Auto::THROUGHPUT.worth(&estimate))
    );
}

#[test]
fn a_trial_that_has_cost_more_than_its_stake_ends_at_the_next_look() {
    let mut course = Course::new(Trials::of(|_| true));
    let at = |grown: u64, program: u64, rounds| Counters {
        grown: grown * HUGE / 4,
        resident: grown * HUGE / 4,
        program,
        rounds,
        ..Counters::default()
    };
    course.begin((Action::Base, 0), Action::Base, at(0, 0, 0), 0);
    assert!(course.advance(at(16, 4_000, 1), 500, 4));
    // While it settles: a region at 8,000 where the best takes 1,000.
    course.begin((Action::Fault2m, 7_000), Action::Base, at(16, 4_000, 1), 8 * HUGE);
    assert!(!course.advance(at(18, 11_600, 2), 500, 4), "half a region says nothing");
    assert!(!course.advance(at(20, 12_000, 3), 500, 4), "7,000 beyond the best is the stake");
    assert!(course.advance(at(22, 16_000, 4), 500, 4));
    assert_eq!(course.trials().tally(Action::Fault2m).median(), Some(8_000));
    assert_eq!(course.trials().charged, 10_500);
    // Settled: what came before does not count for it.
    course.begin((Action::Fault64k, 7_000), Action::Base, at(22, 16_000, 4), 0);
    assert!(!course.advance(at(26, 17_000, 6), 500, 4));
    assert!(course.advance(at(30, 27_000, 7), 500, 4));
    assert_eq!(course.trials().tally(Action::Fault64k).median(), Some(10_000));
    assert_eq!(course.trials().charged, 10_500 + 9_000);
    assert_eq!(course.trials().tally(Action::Base).epochs(), 1);
}

fn scripts() -> impl Strategy<Value = Script> {
    let cost = || (100_000..5_000_000_u64, 0..600_000_u64);
    prop::array::uniform6(cost()).prop_map(|mut script| {
        for (cost, action) in script.iter_mut().zip(ARMS) {
            cost.1 *= u64::from(has_helper(action));
        }
        script
    })
}

/// A program that ends after so many regions, again and again: costs of each run over those under the best arm, and
/// which arm it began with.
fn runs(
    script: Script,
    regions: u64,
    count: usize,
    (noise, seed): (u64, u64),
) -> Vec<(f64, Action)> {
    let (policy, view) = (&Auto::THROUGHPUT, machine());
    let mut random = Random::new(seed);
    let mut earlier: Option<Trials> = None;
    let best = script.iter().map(|(own, _)| *own).min().unwrap() * regions;
    let mut told = Vec::new();
    for _ in 0..count {
        let mut trials = Trials::of(|action| !has_helper(action)).beginning_with(Action::Fault64k);
        if let Some(known) = &earlier {
            trials.resume(known);
        }
        let first = policy.best_of(&View { trials, ..view });
        let mut course = Course::new(trials.beginning_with(first));
        let (mut now, mut action) = (Counters::default(), first);
        while now.grown < regions * HUGE {
            if course.advance(now, 1000, 1) {
                let view = View { trials: course.trials(), ..view };
                action = policy.decide(&view).action;
                course.begin((action, policy.stake(action, &view)), policy.best(&view), now, 0);
            }
            let own = script[arm(action).unwrap()].0;
            now.program += own * (100 - noise + random.below(2 * noise + 1)) / 100;
            now.grown += HUGE;
            now.resident += HUGE;
            now.rounds += 1;
        }
        told.push((now.program as f64 / best as f64, first));
        let mut known = course.trials();
        known.spent = earlier.map_or(0, |before| before.spent) + now.program;
        earlier = Some(known);
    }
    told
}

/// Redis as memory came: 0.4 s of work, of which 64 KiB cost a fifth more than 2 MiB would.
#[test]
fn what_no_single_run_has_time_to_find_many_runs_do() {
    let mut script = flat(3_000_000);
    (script[0].0, script[1].0, script[2].0) = (3_600_000, 2_400_000, 2_000_000);
    let told = runs(script, 170, 200, (8, 3));
    assert_eq!(told[0].1, Action::Fault64k, "nothing is known");
    let late = &told[100..];
    let two = late.iter().filter(|(_, first)| *first == Action::Fault2m).count();
    assert!(two > 95, "{two} of 100 begin with 2 MiB");
    let mean = late.iter().map(|(ratio, _)| ratio).sum::<f64>() / 100.0;
    assert!(mean < 1.02, "{mean}");
    // And where 64 KiB are best they stay.
    script.swap(1, 2);
    let told = runs(script, 170, 200, (8, 3));
    assert!(told.iter().all(|(_, first)| *first == Action::Fault64k));
    let mean = told.iter().map(|(ratio, _)| ratio).sum::<f64>() / 200.0;
    assert!(mean < 1.02, "{mean}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Trials cost at most the budget, but for what the last of them takes between two looks; and nothing begins whose
    /// risk is above the budget.
    #[test]
    fn regret_is_bounded(script in scripts(), step in 1_u64..6, noise in 0_u64..20, seed: u64) {
        let policy = [&Auto::THROUGHPUT, &Auto::TAIL, &Auto::MEMORY][(seed % 3) as usize];
        let done = grow(policy, machine(), script, 3_000, step, noise, seed);
        let mut charged = 0;
        for (number, epoch) in done.iter().enumerate() {
            let trials = epoch.view.trials;
            prop_assert!(trials.charged >= charged, "what is charged never shrinks");
            let budget = trials.spent / 1000 * BUDGET;
            if epoch.action != epoch.best {
                prop_assert!(epoch.decision.action == epoch.action);
                let auto = [Auto::THROUGHPUT, Auto::TAIL, Auto::MEMORY][(seed % 3) as usize];
                let risk = auto.risk(epoch.action, &epoch.view).unwrap() * (trials.size + SETTLING);
                prop_assert!(trials.charged + risk < budget, "{epoch:?}");
            }
            // What a trial has cost beyond the best is in the next view's account.
            if let Some(next) = done.get(number + 1) {
                let more = next.view.trials.charged - trials.charged;
                prop_assert!(epoch.action != epoch.best || more == 0);
                prop_assert!(more <= epoch.cost);
                let (own, helper) = script[arm(epoch.action).unwrap()];
                let look = (own + helper * policy.helper_price(&machine()) / 1000 + 1) * step;
                let most = budget + look * (100 + noise) / 100;
                prop_assert!(more == 0 || next.view.trials.charged <= most, "{next:?}");
            }
            charged = trials.charged;
        }
    }

    /// In the long run it costs little more than the best arm: what noise hides, and the budget. The long run begins by
    /// the middle, or when the budget has had room for an epoch of each arm.
    #[test]
    fn in_the_long_run_it_costs_what_the_best_arm_costs(script in scripts(), seed: u64) {
        let policy = &Auto::THROUGHPUT;
        let price = policy.helper_price(&machine());
        let best = script.iter().map(|(own, helper)| own + helper * price / 1000).min().unwrap();
        let done = grow(policy, machine(), script, 40_000, 4, 5, seed);
        let all_tried = |epoch: &RunEpoch| ARMS.iter().all(|arm| epoch.view.trials.tally(*arm).epochs() > 0);
        let known = done.iter().position(all_tried).unwrap_or(done.len() - 1);
        for RunEpoch { view, action, best, .. } in &done[done.len() / 2..known.max(done.len() / 2)] {
            let Trials { charged, spent, size, .. } = view.trials;
            let risks = ARMS.into_iter().filter(|arm| view.trials.tally(*arm).epochs() == 0);
            let risks = risks.map(|arm| policy.risk(arm, view).unwrap() * (size + SETTLING));
            let waits = charged + risks.max().unwrap() >= spent / 1000 * BUDGET;
            prop_assert!(waits || action != best, "{}", view.trials);
        }
        let late = &done[known.max(done.len() / 2)..];
        let cost: u64 = late.iter().map(|epoch| epoch.cost).sum();
        let regions: u64 = late.iter().map(|epoch| epoch.regions).sum();
        // Mostly within 7 %; two arms of which one is a tenth dearer by its helper are not always told apart.
        prop_assert!(cost <= regions * best / 100 * 112, "{} of {best}", cost / regions);
    }

    /// What was decided on can be written down, and is decided again.
    #[test]
    fn trials_are_read_back_and_decide_the_same(script in scripts(), seed: u64) {
        for epoch in grow(&Auto::THROUGHPUT, machine(), script, 400, 2, 10, seed) {
            let again: Trials = epoch.view.trials.to_string().parse().unwrap();
            prop_assert_eq!(again, epoch.view.trials);
            let policy = find(Auto::THROUGHPUT.name()).unwrap();
            let decision = policy.decide(&View { trials: again, ..epoch.view });
            prop_assert_eq!(decision, epoch.decision);
        }
    }
}

#[test]
fn what_is_no_text_of_trials_is_refused() {
    for text in [
        "",
        "spent 1 charged 2",
        "spent 1 charged 2 size x first base",
        "spent 1 charged 2 size 3; base",
        "spent 1 charged 2 size 3 first none; base",
        "spent 1 charged 2 size 3 first base 4; base",
        "spent 1 charged 2 size 3 first base whole 4; base",
        "spent 1 charged 2 size 3 first base; never",
        "spent 1 charged 2 size 3 first base; base; base",
        "spent 1 charged 2 size 3 first base; base -1",
        "spent 1 charged 2 size 3 first base; base 1 2 3 4 5 6 7 8 9",
    ] {
        assert!(text.parse::<Trials>().is_err(), "{text:?}");
    }
    assert!(
        "spent 1 charged 2 size 3 first base whole; base"
            .parse::<Trials>()
            .is_ok_and(|trials| trials.whole)
    );
    assert!("spent 1 charged 2 size 3 first base; base 1 2; pool".parse::<Trials>().is_ok());
}
