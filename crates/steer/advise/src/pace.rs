//! Which levers run in the next round, so that all fits into the time: a pure function of what runs have taken.
//!
//! A run is reckoned to take what the last one of the same arm took; of an arm that has not run, the median of the
//! runs so far, those under levers included; before there are any, what the first look at the command took. That look
//! may be many times as long as what follows (files that are not cached, pages that are marked), so it is not held
//! against a lever for good: whoever is put off for lack of time is asked about again each round. A lever that fits
//! needs room for as many runs as it lacks, and for those of the command as it is beside them. Who promises most is
//! served first: with three runs, or where three show nothing ([`Runs::enough`](crate::rule::Runs::enough)) with all
//! five, before others that promise less have three. No run is begun that would not fit; but
//! those that the best so far lacks may take a bit longer than all the time, and come first where it is short.

use pagemill_analysis::statistics::median;

use crate::rule::LEAST;

/// Time is short for the best lever so far if there is less than so many times what the runs take that it lacks.
const SHORT: f64 = 3.0;

/// A lever that would run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its runs so far.
    pub runs: usize,
    /// The ratio to the command as it is that it has shown, or may bring at the best: less is better.
    pub promise: f64,
    /// What its last run took, seconds; none if it has not run.
    pub took: Option<f64>,
}

/// What is left of the time.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// Seconds.
    pub left: f64,
    /// Seconds more for the runs that the best lever so far lacks.
    pub grace: f64,
    /// Runs of the command as it is.
    pub base: usize,
    /// The lever in play whose runs so far look best, if they look worth it: its number.
    pub leader: Option<(usize, Candidate)>,
}

/// Time, and what runs have taken of it.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Runs that show something.
    pub enough: usize,
    /// What the last run of the command as it is took, seconds; none before there is one.
    pub base: Option<f64>,
    first: f64,
    took: Vec<f64>,
}

impl Pace {
    /// After a first look at the command that took `first` seconds.
    pub fn new(first: f64) -> Self {
        Self { enough: LEAST, base: None, first, took: Vec::new() }
    }

    /// One more run took so many seconds.
    pub fn took(&mut self, seconds: f64) {
        self.took.push(seconds);
    }

    /// What a run takes, seconds.
    pub fn each(&self) -> f64 {
        median(&self.took).unwrap_or(self.first)
    }

    /// What the next run of an arm takes whose last one took so long, seconds.
    pub fn next_run(&self, last: Option<f64>) -> f64 {
        last.unwrap_or_else(|| self.each())
    }

    /// What the runs take that the best lever so far lacks, and the command as it is beside it, seconds.
    fn lacks(&self, base: usize, leader: Candidate) -> f64 {
        let lacks = |runs: usize| LEAST.saturating_sub(runs);
        let (own, as_it_is) = (lacks(leader.runs), lacks(base).max(lacks(leader.runs)));
        own as f64 * self.next_run(leader.took) + as_it_is as f64 * self.next_run(self.base)
    }

    /// Seconds for the runs that the best lever so far lacks, and for the command as it is beside it: of several levers
    /// that had a run each nobody knows anything.
    pub fn for_leader(&self, rest: &Rest) -> f64 {
        let lacks = rest.leader.is_some_and(|(_, leader)| self.lacks(rest.base, leader) > 0.0);
        if lacks { rest.left + rest.grace } else { rest.left }
    }

    /// Whether a run is begun of a lever, or of the command as it is, whose last one took so long. One of another lever
    /// than the best has to leave the time for what that lacks.
    pub fn fits(&self, rest: &Rest, lever: Option<usize>, last: Option<f64>) -> bool {
        let run = self.next_run(last);
        match (rest.leader, lever) {
            (Some((first, leader)), Some(lever)) if first != lever => {
                run + self.lacks(rest.base, leader) <= rest.left
            }
            (None, Some(_)) => run <= rest.left,
            _ => run <= self.for_leader(rest),
        }
    }

    /// Puts the best lever so far first in a round, beside the command as it is (the arm beyond the last, so many), if
    /// it lacks runs and there is hardly more time than for these.
    pub fn sort(&self, rest: &Rest, order: &mut [usize], arms: usize) {
        let Some((first, leader)) = rest.leader else { return };
        if rest.left < SHORT * self.lacks(rest.base, leader) {
            order.sort_by_key(|arm| *arm != first && *arm != arms);
        }
    }

    /// The candidates that run in the next round, by number, if `left` seconds are left and the command as it is has
    /// run `base` times. None if there is no time for a round, or nobody who needs one.
    pub fn next(&self, left: f64, base: usize, candidates: &[Candidate]) -> Option<Vec<usize>> {
        // Where not even the most promising can have as many, fewer are better than none: of two levers the first is
        // to have three runs before the second has one, for one and two choose nothing.
        let goals = if base == 0 { [LEAST, 2, 1] } else { [self.enough, LEAST, LEAST] };
        goals.into_iter().find_map(|runs| self.fitting(left, base, candidates, runs))
    }

    /// The same, where each is to have so many runs.
    fn fitting(
        &self,
        left: f64,
        base: usize,
        candidates: &[Candidate],
        wanted: usize,
    ) -> Option<Vec<usize>> {
        let lacks = |runs: usize| wanted.saturating_sub(runs);
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|a, b| candidates[*a].promise.total_cmp(&candidates[*b].promise));
        let as_it_is = self.next_run(self.base);
        let fits = |time: f64| time <= left + 1e-9;
        let (mut chosen, mut spent, mut rounds) = (Vec::new(), 0.0, lacks(base));
        for candidate in order {
            let lacks = lacks(candidates[candidate].runs).max(1);
            let more = spent + lacks as f64 * self.next_run(candidates[candidate].took);
            if fits(more + rounds.max(lacks) as f64 * as_it_is) {
                (spent, rounds) = (more, rounds.max(lacks));
                chosen.push(candidate);
            }
        }
        let alone = candidates.is_empty() && base < LEAST && fits(as_it_is);
        (alone || !chosen.is_empty()).then_some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use pagemill_analysis::statistics::Random;
    use proptest::prelude::*;

    use super::*;

    fn candidate(runs: usize, promise: f64) -> Candidate {
        Candidate { runs, promise, took: None }
    }

    /// A session of levers that nothing is shown of: runs of each and of the base, and the time that was taken. The
    /// clock is the sum of what the runs take, of which `length` tells the next. A run that would not fit is not begun.
    fn session(
        within: f64,
        first: f64,
        promises: &[f64],
        length: impl Fn(usize) -> f64,
    ) -> Session {
        let mut session = Session { levers: vec![0; promises.len()], base: 0, clock: first };
        let (mut pace, mut number) = (Pace::new(first), 0);
        loop {
            let waiting: Vec<usize> =
                (0..promises.len()).filter(|lever| session.levers[*lever] < LEAST).collect();
            let candidates: Vec<Candidate> = waiting
                .iter()
                .map(|lever| candidate(session.levers[*lever], promises[*lever]))
                .collect();
            let left = (within - session.clock).max(0.0);
            let Some(next) = pace.next(left, session.base, &candidates) else { return session };
            let before = number;
            for arm in next.iter().map(|next| Some(waiting[*next])).chain([None]) {
                if session.clock + pace.next_run(None) > within + 1e-6 {
                    continue;
                }
                *arm.map_or(&mut session.base, |lever| &mut session.levers[lever]) += 1;
                number += 1;
                pace.took(length(number));
                session.clock += length(number);
            }
            if number == before {
                return session;
            }
        }
    }

    #[derive(Debug, PartialEq)]
    struct Session {
        levers: Vec<usize>,
        base: usize,
        clock: f64,
    }

    const SIX: [f64; 6] = [0.9, 0.9, 0.5, 0.8, 0.9, 0.7];

    #[test]
    fn who_is_put_off_for_a_long_first_run_comes_back_when_the_next_are_short() {
        let session = session(60.0, 13.5, &SIX, |_| 0.65);
        assert_eq!(session.levers, [LEAST; 6]);
        assert!(session.base > LEAST && session.clock < 60.0, "{session:?}");
    }

    #[test]
    fn one_long_run_among_short_ones_puts_nobody_off() {
        let session = session(60.0, 0.65, &SIX, |run| if run == 3 { 13.5 } else { 0.65 });
        assert_eq!(session.levers, [LEAST; 6]);
    }

    #[test]
    fn where_three_runs_show_nothing_the_most_promising_have_five_before_others_have_three() {
        let levers = [(1, 0.98), (1, 0.5), (1, 1.02), (1, 0.7)];
        let candidates = levers.map(|(runs, promise)| candidate(runs, promise));
        let mut pace = Pace::new(4.0);
        assert_eq!(pace.next(48.0, 1, &candidates), Some(vec![1, 3, 0, 2]));
        pace.enough = 5;
        assert_eq!(pace.next(48.0, 1, &candidates), Some(vec![1, 3]));
    }

    #[test]
    fn where_runs_stay_long_levers_stay_out_and_the_time_is_kept() {
        let session = session(150.0, 13.5, &SIX, |_| 13.5);
        assert!(session.levers.contains(&0) && session.levers[2] >= LEAST, "{session:?}");
        assert!(session.clock <= 150.0, "{session:?}");
    }

    #[test]
    fn the_first_round_has_the_most_promising_lever_once_if_no_more_fits_and_none_if_not_even_that()
    {
        let candidates = SIX.map(|promise| candidate(0, promise));
        let mut pace = Pace::new(13.5);
        assert_eq!(pace.next(2.0 * 13.5, 0, &candidates), Some(vec![2]));
        assert_eq!(pace.next(26.9, 0, &candidates), None, "a run that would not fit is not begun");
        assert_eq!(pace.next(13.5, 0, &[]), Some(vec![]), "the command as it is");
        assert_eq!(pace.next(13.4, 0, &[]), None);
        assert_eq!(pace.next(10.0 * 13.5, 0, &candidates), Some(vec![2, 5]), "three runs each");
        assert_eq!(pace.next(13.0, 1, &candidates), None);
        pace.took(0.5);
        assert_eq!(pace.next(13.0, 1, &candidates), Some(vec![2, 5, 3, 0, 1, 4]));
    }

    #[test]
    fn a_lever_that_lacks_one_run_fits_where_a_new_one_does_not() {
        let pace = Pace::new(1.0);
        let candidates = [candidate(0, 0.1), candidate(LEAST, 0.9)];
        assert_eq!(pace.next(2.0, LEAST, &candidates), Some(vec![1]));
        assert_eq!(pace.next(1.9, LEAST, &candidates), None);
        assert_eq!(pace.next(7.0, LEAST, &candidates), Some(vec![0, 1]));
        assert_eq!(pace.next(1e9, LEAST, &[]), None, "nobody needs a run");
    }

    /// Eight levers had a run each, no time was left for more, and nothing was known of any.
    #[test]
    fn where_time_is_short_few_levers_have_the_runs_that_it_takes() {
        let session = session(50.0, 4.5, &[0.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9], |_| 4.5);
        assert_eq!(session.levers[..3], [LEAST, LEAST, 0], "{session:?}");
        let mut pace = Pace::new(4.5);
        pace.enough = 5;
        let two = [candidate(1, 0.5), candidate(1, 0.6)];
        assert_eq!(pace.next(20.0, 1, &two), Some(vec![0]), "three runs of one at the least");
    }

    #[test]
    fn a_lever_that_makes_it_take_longer_is_reckoned_with_what_it_takes() {
        let mut pace = Pace::new(1.0);
        pace.took(1.0);
        pace.base = Some(1.0);
        let slow = Candidate { took: Some(9.0), ..candidate(1, 0.1) };
        assert_eq!(pace.next(12.0, 1, &[slow, candidate(1, 0.9)]), Some(vec![1]));
        assert_eq!(pace.next(22.0, 1, &[slow, candidate(1, 0.9)]), Some(vec![0, 1]));
    }

    /// Of 50 s, 13 were left, and a lever that had brought 92 % in its one run was not run again: others had one each.
    #[test]
    fn time_is_kept_for_the_best_so_far() {
        let pace = Pace { base: Some(3.0), ..Pace::new(4.0) };
        let leader = |runs: usize| Some((7, Candidate { took: Some(2.0), ..candidate(runs, 0.1) }));
        let rest = |left: f64, base: usize, leader| Rest { left, grace: 1.0, base, leader };
        let other = |left: f64, last, base: usize, leader| {
            pace.fits(&rest(left, base, leader), Some(0), last)
        };
        // Two more of it and of the command as it is take 10 s, another lever's run 4.
        assert!(other(14.0, None, 2, leader(1)) && !other(13.9, None, 2, leader(1)));
        assert!(other(4.0, None, LEAST, leader(LEAST)), "it has what it takes");
        assert!(other(4.0, None, 0, None) && !other(3.9, None, 0, None));
        assert!(other(10.0, Some(1.0), 0, leader(LEAST)), "the command as it is lacks three");
        assert!(!other(9.9, Some(1.0), 0, leader(LEAST)));
        // What it lacks may take a bit longer than all the time.
        let own =
            |left: f64, lever, base| pace.fits(&rest(left, base, leader(2)), lever, Some(2.0));
        assert!(own(1.0, Some(7), 2) && !own(0.9, Some(7), 2) && own(1.0, None, 2));
        let has_all = rest(1.0, LEAST, leader(LEAST));
        assert!(!pace.fits(&has_all, Some(7), Some(2.0)) && !pace.fits(&has_all, None, Some(2.0)));
        let order = |left: f64| {
            let mut order = [3, 9, 0, 7];
            pace.sort(&rest(left, 2, leader(1)), &mut order, 9);
            order
        };
        assert_eq!((order(30.0), order(29.9)), ([3, 9, 0, 7], [9, 7, 3, 0]));
    }

    const LEVERS: usize = 8;

    /// Whether the best of eight levers, which nobody knows before it has run, and the command as it is had their runs
    /// in 54 s, and when all ended. Runs take half to twice of what others did; the first look was shorter than all.
    fn told_of_the_best(seed: u64) -> (bool, f64) {
        let (mut random, mut lengths) = (Random::new(seed), Random::new(seed + 1000));
        let (mut pace, mut clock, mut base) = (Pace::new(2.2), 2.2, 0);
        let best = random.index(6);
        let mut runs: [Vec<f64>; LEVERS] = Default::default();
        let candidate = |runs: &[Vec<f64>], lever: usize| {
            let promise = match runs[lever].len() {
                0 => 0.3,
                _ if lever == best => 0.12,
                _ => 0.5,
            };
            Candidate { promise, runs: runs[lever].len(), took: runs[lever].last().copied() }
        };
        loop {
            let rest = |clock: f64, base: usize, runs: &[Vec<f64>]| {
                let ran = (0..LEVERS).filter(|lever| !runs[*lever].is_empty());
                let leader = ran.min_by_key(|lever| *lever != best);
                let leader = leader.map(|lever| (lever, candidate(runs, lever)));
                Rest { left: 54.0 - clock, grace: 5.4, base, leader }
            };
            let now = rest(clock, base, &runs);
            let all: Vec<Candidate> = (0..LEVERS).map(|lever| candidate(&runs, lever)).collect();
            let Some(mut order) = pace.next(pace.for_leader(&now), base, &all) else { break };
            order.resize(order.len() + 1 + usize::from(base == 0), LEVERS);
            random.shuffle(&mut order);
            pace.sort(&now, &mut order, LEVERS);
            let before = clock;
            for arm in order {
                let lever = (arm < LEVERS).then_some(arm);
                let last = lever.map_or(pace.base, |lever| runs[lever].last().copied());
                if !pace.fits(&rest(clock, base, &runs), lever, last) {
                    continue;
                }
                let took = 1.75 * 4.0_f64.powf(lengths.index(1000) as f64 / 1000.0);
                pace.took(took);
                clock += took;
                match lever {
                    Some(lever) => runs[lever].push(took),
                    None => (base, pace.base) = (base + 1, Some(took)),
                }
            }
            if clock == before {
                break;
            }
        }
        (runs[best].len() >= LEAST && base >= LEAST, clock)
    }

    /// Beside builds a lever that brought 88 % in each of its runs had two of them, and nothing was named.
    #[test]
    fn what_is_far_ahead_has_its_runs_before_time_is_over() {
        let all: Vec<(bool, f64)> = (0..1000).map(told_of_the_best).collect();
        let told = all.iter().filter(|(told, _)| *told).count();
        assert!(told > 900, "{told} of 1000");
        assert!(all.iter().all(|(_, clock)| *clock < 54.0 + 5.4 + 7.0), "the run that is on");
    }

    proptest! {
        #[test]
        fn time_is_kept(
            within in 1.0..500.0_f64,
            first in 0.01..30.0_f64,
            each in 0.01..30.0_f64,
            promises in prop::collection::vec(0.0..1.0_f64, 0..9),
        ) {
            let session = session(within, first, &promises, |_| each);
            let levers: usize = session.levers.iter().sum();
            // But for the run that is on, or the first look.
            prop_assert!(session.clock <= within + each.max(first) + 1e-6, "{:?}", session);
            let round = each * (promises.len() * LEAST + promises.len().max(2) + 2 * LEAST) as f64;
            // Whoever waits in vain waits for lack of time.
            if session.base > 0 && session.clock + round <= within {
                prop_assert_eq!(levers, promises.len() * LEAST);
            }
        }
    }
}
