//! What a session says: as text, as JSON, as a page.

mod json;

use pagemill_model::units;
use pagemill_report::draw::chart::{Bar, BarChart};
use pagemill_report::draw::html::Page;
use pagemill_report::draw::text;

use crate::arm::{Arm, State, given_up, memory_bounds};
use crate::count::Count;
use crate::estimates::grouped;
use crate::lever::Start;
use crate::observation::{RunObservation, bytes, part, percent, seconds};
use crate::rule::{
    Aim, Change, Criteria, Figures, GROSS, Goal, LEAST, Quantity, Runs, Standing, runs_to_tell,
};
use crate::session::{Advice, NOT_ASKED, SMALL};

/// Columns of the table: what they are called, here and in JSON.
const COLUMNS: [(Quantity, &str, &str); 7] = [
    (Quantity::Mean, "memory, mean", "memory_mean"),
    (Quantity::Peak, "peak", "memory_peak"),
    (Quantity::Charge, "cgroup, peak", "cgroup_peak"),
    (Quantity::Cpu, "CPU", "cpu"),
    (Quantity::Waited, "waited", "waited"),
    (Quantity::Wall, "wall", "wall"),
    (Quantity::Metric, "metric", "metric"),
];

/// A figure in words.
fn figure(quantity: Quantity, value: f64) -> String {
    match quantity {
        Quantity::Mean | Quantity::Whole | Quantity::Peak | Quantity::Charge => bytes(value),
        Quantity::Cpu | Quantity::Wall | Quantity::Waited => seconds(value),
        Quantity::Metric | Quantity::Counted(_) => pagemill_report::draw::chart::number(value),
    }
}

pub(crate) fn changed(change: &Change) -> String {
    let end = |ratio: f64| {
        let percent = (ratio - 1.0) * 100.0;
        let digits = usize::from(percent.abs() < 9.95);
        format!("{percent:+.digits$}")
    };
    match change.interval() {
        Some((low, high)) => format!("{} [{}, {}]", percent(change.ratio), end(low), end(high)),
        None => format!("{} (one run)", percent(change.ratio)),
    }
}

/// How often, in words.
fn times(count: usize) -> String {
    match count {
        0 => "not tried".into(),
        1 => "tried once".into(),
        2 => "tried twice".into(),
        _ => format!("tried {count} times"),
    }
}

/// More or less, in words: of a change that is told apart from none.
fn amount(change: &Change) -> String {
    let share = (change.ratio - 1.0).abs() * 100.0;
    let digits = usize::from(!(10.0..=99.0).contains(&share));
    format!("{share:.digits$} % {}", if change.ratio < 1.0 { "less" } else { "more" })
}

impl Advice {
    fn runs<'a>(&'a self, levers: &'a [Vec<Figures>]) -> Runs<'a> {
        Runs { base: &self.base, levers, ..Runs::default() }
    }

    /// Whether a lever is worth it.
    pub fn helps(&self) -> bool {
        self.judgement.choice.is_some()
    }

    /// The one command to use.
    pub fn command(&self) -> String {
        let start = self.judgement.choice.and_then(|(arm, _)| self.arms[arm].start.clone());
        start.unwrap_or_default().line(&self.words)
    }

    /// What is to fall, as the table is ordered by.
    fn ordered_by(&self) -> Quantity {
        let first = self.options.goal.aims()[0];
        match self.judgement.choice.map_or(first, |(_, aim)| aim) {
            Aim::Memory => Quantity::Mean,
            Aim::Time { .. } => self.judgement.time,
        }
    }

    /// The arms that ran, best first.
    fn order(&self, levers: &[Vec<Figures>]) -> Vec<usize> {
        let (runs, by) = (self.runs(levers), self.ordered_by());
        let more = self.more_is_better(by);
        let key = |arm: usize| {
            let ratio = runs.change(arm, by).map_or(f64::INFINITY, |change| change.ratio);
            if more { 1.0 / ratio } else { ratio }
        };
        let mut order: Vec<usize> =
            (0..self.arms.len()).filter(|arm| !levers[*arm].is_empty()).collect();
        order.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
        if let Some((choice, _)) = self.judgement.choice {
            order.retain(|arm| *arm != choice);
            order.insert(0, choice);
        }
        order
    }

    /// Header and rows of the table; a `narrow` one has one peak: the charge of the control group where there is one,
    /// for a look may miss a moment.
    fn table(
        &self,
        levers: &[Vec<Figures>],
        narrow: bool,
    ) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let runs = self.runs(levers);
        let seen = |quantity: Quantity| self.base.iter().any(|run| quantity.of(run).is_some());
        let second = if seen(Quantity::Charge) { Quantity::Peak } else { Quantity::Charge };
        let known = |(quantity, ..): &&(Quantity, &str, &str)| {
            seen(*quantity) && !(narrow && *quantity == second)
        };
        let columns: Vec<_> = COLUMNS.iter().filter(known).collect();
        let mut header = vec!["lever", "runs"];
        header.extend(columns.iter().map(|(_, name, _)| *name));
        let mut rows = vec![vec!["as it is".to_owned(), self.base.len().to_string()]];
        let base = |quantity: Quantity| runs.median(None, quantity);
        rows[0].extend(columns.iter().map(|(quantity, ..)| {
            base(*quantity).map_or_else(|| "-".into(), |value| figure(*quantity, value))
        }));
        for arm in self.order(levers) {
            let mut row =
                vec![self.arms[arm].lever.name().to_owned(), levers[arm].len().to_string()];
            row.extend(columns.iter().map(|(quantity, ..)| {
                let cell = match quantity {
                    Quantity::Waited => runs.median(Some(arm), *quantity).map(seconds),
                    _ => runs.change(arm, *quantity).map(|change| changed(&change)),
                };
                cell.unwrap_or_else(|| "-".into())
            }));
            rows.push(row);
        }
        (header, rows)
    }

    /// The conclusion, a sentence.
    pub fn conclusion(&self) -> String {
        let unused = self.unused().unwrap_or_default();
        match self.interrupted {
            None => self.concluded() + &unused,
            Some(_) => format!(
                "incomplete (interrupted {} and {}): {}{unused}",
                match self.runs {
                    1 => "in the first run".into(),
                    runs => format!("in run {runs}"),
                },
                format_args!("after {}", seconds(self.took.as_secs_f64())),
                self.concluded()
            ),
        }
    }

    fn concluded(&self) -> String {
        let levers = self.levers();
        let open = self.open();
        if let Some((arm, aim)) = self.judgement.choice {
            let mut text = self.sentence(&levers, arm, aim, "brings");
            if let Some((arm, aim)) = self.faster(&levers, arm, aim) {
                let sentence = self.sentence(&levers, arm, aim, "would bring");
                text.push_str(&format!("; {sentence} (--goal speed)"));
            }
            if let Some(open) = open {
                text.push_str(&format!("; {open}"));
            }
            return text;
        }
        let told = self.judgement.perhaps.map(|(arm, _)| arm);
        let perhaps = self.judgement.perhaps.map(|(arm, aim)| self.perhaps(&levers, arm, aim));
        let known = self.known(&levers, told);
        let mut open: Vec<String> = [perhaps, open].into_iter().flatten().collect();
        if self.interrupted.is_some() && open.is_empty() {
            let short = "what was tried had no time to tell".to_owned();
            open.push(self.unlikely().unwrap_or(short));
        }
        let mut text = verdict(&known, open, self.too_noisy(), self.options.worth);
        if !self.undecided() {
            text.extend(self.unlikely().map(|unlikely| format!(" ({unlikely})")));
            text.extend(known.open.then(|| self.time_not_told()).flatten());
            text.extend(self.ends_at_once());
        }
        let told_of = |(arm, _): &(usize, Aim)| told != Some(*arm) && self.too_noisy().is_none();
        if let Some((arm, aim)) = self.judgement.over_bound.filter(told_of) {
            text.push_str("; ");
            text.push_str(&self.sentence(&levers, arm, aim, "would bring"));
            if levers[arm].len() < LEAST {
                text.push_str(&format!(" ({})", times(levers[arm].len())));
            }
        }
        if let Some((arm, aim)) = self.judgement.nearest {
            let brings = self.sentence(&levers, arm, aim, "brings");
            text.push_str(&format!(
                "; {brings}, less than the {} that a lever is to be worth (--worth)",
                part(self.options.worth)
            ));
        }
        text
    }

    /// That it ends at once, if it does: what levers do there says little.
    fn ends_at_once(&self) -> Option<String> {
        let runs = Runs { base: &self.base, ..Runs::default() };
        let wall = runs.median(None, Quantity::Wall).filter(|_| self.batch > 1)?;
        let peak = self.seen.peak.bytes as f64;
        let memory = match peak {
            0.0 => String::new(),
            peak if peak < SMALL * self.options.worth => {
                format!(", and its memory, {}, is too little for a lever", bytes(peak))
            }
            peak => format!(", and its memory, {}, was seen in few moments", bytes(peak)),
        };
        Some(format!("; it ends in {}: to start a process costs as much{memory}", seconds(wall)))
    }

    /// Where a lever is chosen for memory, another that is known to take less time by more than it is to be worth, and
    /// less than that one takes.
    fn faster(&self, levers: &[Vec<Figures>], choice: usize, aim: Aim) -> Option<(usize, Aim)> {
        let time = Aim::Time { bounded: false };
        let criteria = Criteria { goal: Goal::Speed, ..self.criteria() };
        let (runs, out) = (self.runs(levers), given_up(&self.arms));
        let judgement = Runs { out: &out, ..runs }.judge(&criteria);
        let (faster, _) =
            judgement.choice.filter(|(arm, _)| aim == Aim::Memory && *arm != choice)?;
        let cost = |arm: usize| {
            let ratio = runs.change(arm, judgement.time)?.ratio;
            Some(if self.more_is_better(judgement.time) { 1.0 / ratio } else { ratio })
        };
        (cost(faster)? < cost(choice)? * (1.0 - self.options.worth)).then_some((faster, time))
    }

    /// Whether more of a quantity is better.
    fn more_is_better(&self, quantity: Quantity) -> bool {
        quantity == Quantity::Metric && self.criteria().more_is_better
    }

    /// That much of its memory is not accessed, if it is.
    fn unused(&self) -> Option<String> {
        let cold = self.seen.cold_data()?;
        let share = self.seen.share(cold.bytes);
        (share > self.options.worth).then(|| {
            format!("; {:.0} % of its memory could live in slower memory (modelled)", share * 100.0)
        })
    }

    /// That runs of the same differ so much that nothing can be told of a lever that is open yet, if so.
    pub(crate) fn too_noisy(&self) -> Option<String> {
        let levers = self.levers();
        if self.base.len() < LEAST || !self.may_help_yet(&levers) {
            return None;
        }
        let (noise, quantity) = self.runs(&levers).loudest(&self.criteria())?;
        let worth = self.options.worth;
        Some(format!(
            "runs of the same differ by {:.0} % in {}: too much to tell {}, for which it would take {:.0} runs of each \
             lever{LESSEN}",
            noise * 100.0,
            if quantity == Quantity::Mean { "memory" } else { "time" },
            part(worth),
            runs_to_tell(worth, noise)
        ))
    }

    /// Whether the runs of some lever that was tried leave it open whether it helps. Where runs of the same differ, one
    /// may have been given up for what the first few were by chance: by all that is known now.
    fn may_help_yet(&self, levers: &[Vec<Figures>]) -> bool {
        let told = self.judgement.perhaps.map(|(arm, _)| arm);
        let most = memory_bounds(&self.arms);
        let now = Runs { most: &most, ..self.runs(levers) }.judge(&self.criteria());
        let open = |arm: usize| {
            let tried = matches!(self.arms[arm].state, State::Tried | State::Out);
            tried && !levers[arm].is_empty() && now.standings[arm] == Standing::Open
        };
        self.known(levers, told).open || (0..self.arms.len()).any(open)
    }

    /// Where memory tells and is what is wanted, too: that no lever lowers it, and that of time nothing can be told.
    fn time_not_told(&self) -> Option<String> {
        let aims = self.criteria().goal.aims();
        let timed = aims.iter().any(|aim| matches!(aim, Aim::Time { .. }));
        let levers = self.levers();
        let runs = self.runs(&levers);
        let noise = runs.judged_noise().filter(|_| timed && aims.contains(&Aim::Memory))?;
        let worth = self.options.worth;
        (runs_to_tell(worth, noise) > MANY_RUNS).then(|| {
            let lower = |arm: usize| {
                let change = runs.change(arm, Quantity::Mean);
                change.is_some_and(|change| change.low < 1.0 - worth)
            };
            let memory = match (0..levers.len()).any(lower) {
                true => "",
                false => "memory is no lower under any; ",
            };
            format!(
                "; {memory}runs of the same differ by {:.0} % in time: too much to tell {} of that{LESSEN}",
                noise * 100.0,
                part(worth)
            )
        })
    }

    /// What is known of the levers of which enough was seen, but for this one. One that breaks the command is not
    /// among them, for its figures say nothing.
    fn known(&self, levers: &[Vec<Figures>], but: Option<usize>) -> Known {
        let seen = |(number, arm): &(usize, &Arm)| {
            let told = matches!(arm.state, State::Tried | State::Out) && !arm.runs.is_empty();
            told && Some(*number) != but
        };
        let open = |(number, _): (usize, &Arm)| {
            self.judgement.standings.get(number) == Some(&Standing::Open)
        };
        let seen: Vec<_> = self.arms.iter().enumerate().filter(seen).collect();
        let too = |(number, _): &(usize, &Arm)| self.helps_too(levers, *number, but);
        let too: Vec<String> = seen.iter().filter_map(too).collect();
        Known { levers: seen.len() - too.len(), open: seen.into_iter().any(open), too }
    }

    /// Of a lever that is not chosen, though all that its interval says is worth it: that it helps, and why it is not
    /// the one that is told of first, if there is one.
    fn helps_too(
        &self,
        levers: &[Vec<Figures>],
        arm: usize,
        first: Option<usize>,
    ) -> Option<String> {
        let runs = self.runs(levers);
        let fall = |arm: usize, quantity: Quantity| {
            let change = runs.change(arm, quantity).filter(|change| change.interval().is_some())?;
            Some(if self.more_is_better(quantity) { change.inverted() } else { change })
        };
        let aims = self.options.goal.aims().iter();
        aims.filter_map(|aim| {
            let (quantity, bound) = match aim {
                Aim::Memory => (Quantity::Mean, Some(self.judgement.time)),
                Aim::Time { bounded } => (self.judgement.time, bounded.then_some(Quantity::Mean)),
            };
            let falls = fall(arm, quantity)
                .filter(|falls| falls.ratio < 1.0 - self.options.worth && falls.high < 1.0)?;
            let costs = bound.and_then(|bound| Some((bound, fall(arm, bound)?)));
            let costs = costs.filter(|(_, costs)| costs.low > 1.0);
            let less = first
                .and_then(|first| fall(first, quantity))
                .is_some_and(|first| first.ratio <= falls.ratio);
            let why = match (costs, self.judgement.standings.get(arm)) {
                (Some((bound, costs)), _) => {
                    let of = if bound == Quantity::Mean { "memory" } else { "time" };
                    format!("but costs {} {of}", amount(&costs))
                }
                (None, Some(Standing::Open)) if less => "but no more than that one".into(),
                (None, Some(Standing::Open)) => "which is not certain yet".into(),
                _ => return None,
            };
            let (name, word) = (self.arms[arm].lever.name(), column(quantity));
            let change = changed(&runs.change(arm, quantity)?);
            let too = if first.is_some() { " too" } else { "" };
            Some(format!("{name} helps{too} ({word} {change}), {why}"))
        })
        .next()
    }

    /// What is to be said of levers that did not have the runs that it takes.
    fn open(&self) -> Option<String> {
        /// Levers that are named; of more their number is told.
        const NAMED: usize = 3;
        let [never, seldom] = self.untried(true);
        let levers = |names: &[&str]| match names {
            [name] => format!("{name} was"),
            names if names.len() <= NAMED => format!("{} were", names.join(", ")),
            names => format!("{} levers that may help were", names.len()),
        };
        let what = match (never.as_slice(), seldom.as_slice()) {
            ([], []) => return None,
            (never, []) => format!("{} not tried", levers(never)),
            ([], seldom) => format!("{} tried less than {LEAST} times", levers(seldom)),
            (never, seldom) => format!(
                "{} not tried and {} tried less than {LEAST} times",
                levers(never),
                levers(seldom)
            ),
        };
        Some(match self.interrupted {
            Some(_) => format!("{what} before that"),
            None => format!(
                "{what} for lack of time (--within {}s would give enough){}",
                self.wanted.as_secs(),
                self.best_so_far().unwrap_or_default()
            ),
        })
    }

    /// Of the levers that did not have their runs, the one that looks best, if nothing is chosen and it looks worth it.
    fn best_so_far(&self) -> Option<String> {
        let (levers, criteria) = (self.levers(), self.criteria());
        let runs = self.runs(&levers);
        let short =
            |arm: &usize| self.arms[*arm].state == State::NoTime && !levers[*arm].is_empty();
        let all = (0..self.arms.len()).filter(short).map(|arm| (arm, runs.promise(arm, &criteria)));
        let (best, promise) = all.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let looks = self.judgement.choice.is_none() && promise < 1.0 - self.options.worth;
        looks.then(|| {
            let name = self.arms[best].lever.name();
            let parts = [Quantity::Mean, self.judgement.time].map(|quantity| {
                Some(format!("{} {}", column(quantity), changed(&runs.change(best, quantity)?)))
            });
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            format!(
                "; best so far: {name} ({}; --levers '{name}' tries it alone)",
                parts.join(", ")
            )
        })
    }

    /// What is to be said of levers that did not have those runs, and that hardly help.
    fn unlikely(&self) -> Option<String> {
        let all = self.untried(false).iter().map(Vec::len).sum::<usize>() as u64;
        (all > 0).then(|| {
            let levers = units::counted(all, "lever that is", "levers that are");
            format!("{levers} not likely to help had no time for {LEAST} runs")
        })
    }

    /// What a lever may bring, for all that these runs tell.
    fn perhaps(&self, levers: &[Vec<Figures>], arm: usize, aim: Aim) -> String {
        let quantity = match aim {
            Aim::Memory => Quantity::Mean,
            Aim::Time { .. } => self.judgement.time,
        };
        let change = self.runs(levers).change(arm, quantity);
        if change.is_some_and(|change| change.high < 1.0 - self.options.worth) {
            let runs = times(levers[arm].len());
            let does = self.sentence(levers, arm, aim, "brings");
            return format!("{does}, which is not certain yet ({runs}; --within gives more)");
        }
        let change = change.as_ref().map(changed).unwrap_or_default();
        let (name, word) = (self.arms[arm].lever.name(), column(quantity));
        format!(
            "{name} may help ({word} {change}), and these runs differ too much to tell (--within gives more)"
        )
    }

    /// What a lever does to what it is for, and to what bounds it.
    fn sentence(&self, levers: &[Vec<Figures>], arm: usize, aim: Aim, brings: &str) -> String {
        let (runs, time) = (self.runs(levers), self.judgement.time);
        let name = self.arms[arm].lever.name();
        let [time_word, time_name] = match time {
            Quantity::Cpu => ["CPU time"; 2],
            Quantity::Metric => ["of the metric", "the metric"],
            _ => ["time"; 2],
        };
        let memory = |change: &Change| {
            let now = runs.median(Some(arm), Quantity::Mean).unwrap_or(0.0);
            let was = runs.median(None, Quantity::Mean).unwrap_or(0.0);
            format!("{} memory in the mean ({} of {})", amount(change), bytes(now), bytes(was))
        };
        let beside = |change: Option<Change>, word: &str, name: &str| match change {
            Some(change) if change.interval().is_none() => format!("; {name} {}", changed(&change)),
            Some(change) if change.low > 1.0 || change.high < 1.0 => {
                format!(" and {} {word}", amount(&change))
            }
            Some(change) => {
                format!("; {name} is the same as far as these runs tell ({})", changed(&change))
            }
            None => String::new(),
        };
        let (mean, clock) = (runs.change(arm, Quantity::Mean), runs.change(arm, time));
        let more = runs.change(arm, Quantity::Cpu).filter(|cpu| {
            let told = cpu.interval().is_some() && cpu.low > 1.0;
            time != Quantity::Cpu && told && cpu.ratio > 1.0 + self.options.slower
        });
        let more = more.map_or_else(String::new, |cpu| format!(", for {} CPU time", amount(&cpu)));
        match aim {
            Aim::Memory => {
                let first = mean.as_ref().map(memory).unwrap_or_default();
                format!("{name} {brings} {first}{more}{}", beside(clock, time_word, time_name))
            }
            Aim::Time { .. } => {
                let first = clock.map(|change| amount(&change)).unwrap_or_default();
                let memory = beside(mean, "memory", "memory");
                format!("{name} {brings} {first} {time_word}{more}{memory}")
            }
        }
    }

    /// As text.
    pub fn text(&self) -> String {
        let levers = self.levers();
        let mut text = format!("{}.\n\n", self.conclusion());
        text.push_str(&format!("{}\n", self.usual().text("as it is", self.live())));
        if !self.base.is_empty() {
            let (header, rows) = self.table(&levers, true);
            text.push_str(&format!("\n{}", text::table(&header, &rows)));
        }
        for (title, arms) in self.others() {
            text.push_str(&format!("\n{title}\n"));
            text.push_str(&listed(title, arms));
        }
        text.push('\n');
        self.notes.iter().for_each(|note| text.push_str(&format!("{note}\n")));
        text.push_str(&format!("{FORMULA}\n\n"));
        if let Some(colder) = self.colder() {
            text.push_str(&format!("{colder}\n"));
        }
        text.push_str(&format!("{}\n", self.ends()));
        text
    }

    /// What to type, and what that is.
    fn ends(&self) -> String {
        let about = |arm: usize| {
            let lever = self.arms[arm].lever;
            format!("{}: {}\n", lever.name(), lever.what())
        };
        match (self.judgement.choice, self.judgement.over_bound) {
            (Some((arm, _)), _) => format!("{}use: {}", about(arm), self.command()),
            (None, Some((arm, aim))) => {
                let start = self.arms[arm].start.clone().unwrap_or_default();
                let price = match aim {
                    Aim::Memory => "slower",
                    Aim::Time { .. } => "with more memory",
                };
                let line = start.line(&self.words);
                format!("{}as it is: {}\nor, {price}: {line}", about(arm), self.command())
            }
            _ if self.undecided() => format!("as it is: {}", self.command()),
            _ => format!("use: {}", self.command()),
        }
    }

    /// Live bytes at its fullest, if our heap has told.
    fn live(&self) -> Option<u64> {
        self.arms.iter().filter_map(|arm| arm.live).max().filter(|live| *live > 0)
    }

    /// What was seen of the command as it is, with the medians of its runs in place of the time of the first: as in the
    /// table.
    fn usual(&self) -> RunObservation {
        let median = |quantity, first| {
            Runs { base: &self.base, ..Runs::default() }.median(None, quantity).unwrap_or(first)
        };
        let seen = self.seen.clone();
        RunObservation {
            seconds: median(Quantity::Wall, seen.seconds),
            user: median(Quantity::Counted(Count::UserTime), seen.user),
            system: median(Quantity::Counted(Count::SystemTime), seen.system),
            // A median may be the mean of two counts.
            faults: median(Quantity::Counted(Count::Faults), seen.faults as f64).round() as u64,
            ..seen
        }
    }

    /// What could live in slower memory, if it is worth a word: modelled, for nothing of it was tried.
    fn colder(&self) -> Option<String> {
        let cold = self.seen.cold_data()?;
        (self.seen.share(cold.bytes) > self.options.worth).then(|| {
            let live = self.seen.live_of(cold);
            let what = match live < cold.bytes {
                true => format!("{} that hold {} of data", bytes(cold.bytes as f64), bytes(live as f64)),
                false => format!("{} of data", bytes(live as f64)),
            };
            format!(
                "modelled, not tried: {what}, of {}, were not accessed for {}, and could live in zram, swap or a \
                 slower tier (what it is: pagemill record --with accesses -o rec -- {}; pagemill report rec)",
                bytes(self.seen.peak.bytes as f64),
                seconds(cold.seconds),
                Start::default().line(&self.words)
            )
        })
    }

    /// Levers that have no figures, or whose figures do not count, by what became of them.
    fn others(&self) -> Vec<(&'static str, Vec<Vec<String>>)> {
        let levers = self.levers();
        let runs = self.runs(&levers);
        let row = |number: usize, arm: &Arm| {
            match &arm.state {
                // Who named some need not hear of the others.
                State::NotTried(why) if why == NOT_ASKED => None,
                State::Breaks(_) => Some(0),
                State::Starves(_) => Some(1),
                State::Out if arm.runs.len() < LEAST => Some(2),
                State::NoTime if !arm.runs.is_empty() => Some(3),
                State::NoTime => Some(4),
                State::NotTried(_) => Some(5),
                State::Tried | State::Out => None,
            }
            .and_then(|group| Some((group, self.why(&runs, number)?)))
        };
        let titles = [
            "it breaks the command",
            "it needs more memory than there is",
            "given up",
            "undecided",
            if self.interrupted.is_some() {
                "not tried before that"
            } else {
                "not tried, for time was short"
            },
            NOT_TRIED,
        ];
        let groups = titles.iter().enumerate().map(|(group, title)| {
            let rows = self.arms.iter().enumerate().filter_map(|(number, arm)| {
                let (of, why) = row(number, arm)?;
                (of == group).then(|| vec![format!("  {}", arm.lever.name()), why])
            });
            (*title, rows.collect::<Vec<_>>())
        });
        groups.filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// Why a lever stands as it does, where its figures alone do not say so.
    fn why(&self, runs: &Runs<'_>, number: usize) -> Option<String> {
        let arm = &self.arms[number];
        let tried = times(arm.runs.len());
        match &arm.state {
            State::NotTried(why) | State::Breaks(why) | State::Starves(why) => Some(why.clone()),
            State::NoTime if arm.runs.is_empty() => Some(match arm.estimate.memory * 100.0 {
                ..0.5 => "what it may bring of time is not known; hardly any memory".into(),
                _ if arm.estimate.unknown => {
                    format!("what it may bring is not known: {}", arm.estimate.why)
                }
                percent => format!("may bring up to {percent:.0} % of memory"),
            }),
            State::NoTime => Some(match self.so_far(runs, number).as_str() {
                "" => format!("{tried}, undecided"),
                so_far => format!("{tried}, undecided: {so_far}"),
            }),
            State::Out if arm.runs.len() < LEAST => {
                let why = self.gross(runs, number);
                let why = why.unwrap_or_else(|| {
                    format!("{}, and could not win any more", self.so_far(runs, number))
                });
                Some(format!("{tried}: {why}"))
            }
            State::Tried | State::Out => None,
        }
    }

    /// What memory and time are under a lever so far.
    fn so_far(&self, runs: &Runs<'_>, number: usize) -> String {
        let parts = [Quantity::Mean, self.judgement.time].map(|quantity| {
            let change = runs.change(number, quantity)?;
            Some(format!("{} {}", column(quantity), percent(change.ratio)))
        });
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// By how much a lever is worse, if that is so much that a run shows it.
    fn gross(&self, runs: &Runs<'_>, number: usize) -> Option<String> {
        let time = self.judgement.time;
        let ratio = |quantity| runs.change(number, quantity).map(|change| change.ratio);
        let better = time == Quantity::Metric && self.criteria().more_is_better;
        let slower = ratio(time).map(|ratio| if better { 1.0 / ratio } else { ratio });
        let than = match time {
            Quantity::Cpu => "the CPU time",
            _ => "as slow",
        };
        let gross = |ratio: Option<f64>, least: f64| ratio.filter(|ratio| *ratio >= least);
        let parts = [
            gross(slower, GROSS.time).map(|ratio| format!("{ratio:.1} times {than}")),
            gross(ratio(Quantity::Mean), GROSS.memory)
                .map(|ratio| format!("memory {}", percent(ratio))),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        // What it would have brought is worth knowing.
        let less = ratio(Quantity::Mean).filter(|ratio| *ratio < 1.0 - self.options.worth);
        let less = less.map_or_else(String::new, |ratio| format!(", memory {}", percent(ratio)));
        (!parts.is_empty()).then(|| format!("{}{less}", parts.join(", ")))
    }

    /// As a page.
    pub fn html(&self) -> String {
        let levers = self.levers();
        let runs = self.runs(&levers);
        let mut page = Page::new(&format!("Advice for {}", Start::default().line(&self.words)));
        page.paragraph(&format!("{}.", self.conclusion())).command(&self.ends());
        if let Some(colder) = self.colder() {
            page.paragraph(&colder);
        }
        let (header, rows) = self.table(&levers, false);
        page.heading("Levers").table(&header, &rows);
        for quantity in [Quantity::Mean, self.judgement.time] {
            let bars = self.order(&levers).into_iter().filter_map(|arm| {
                let change = runs.change(arm, quantity)?;
                Some(Bar {
                    label: self.arms[arm].lever.name().into(),
                    value: change.ratio,
                    interval: change.interval(),
                    colour: 0,
                })
            });
            let chart = BarChart {
                title: format!("{} by lever, as it is = 1", column(quantity)),
                unit: String::new(),
                bars: bars.collect(),
                reference: Some(1.0),
            };
            if !chart.bars.is_empty() {
                page.chart(&chart.svg());
            }
        }
        for (title, rows) in self.others() {
            page.heading(title).table(&["lever", "why"], &rows);
        }
        page.heading("The command as it is")
            .preformatted(&self.usual().text("as it is", self.live()));
        page.list(&self.notes).paragraph(FORMULA);
        page.finish()
    }
}

/// What makes noise less.
const LESSEN: &str = " (a fixed seed and input, longer runs, or a quieter machine would lessen it)";
/// Nobody waits for so many runs of each.
const MANY_RUNS: f64 = 50.0;
/// What those are called that could not matter, or cannot be tried.
const NOT_TRIED: &str = "not tried";

/// Levers by what became of them, as lines: one a lever; of those that were not tried, one a reason.
fn listed(title: &str, rows: Vec<Vec<String>>) -> String {
    if title != NOT_TRIED {
        return text::table(&[], &rows);
    }
    let says = rows.into_iter().map(|mut row| (row.remove(0).trim().to_owned(), row.remove(0)));
    let lines = grouped(says).into_iter().map(|(names, why)| format!("  {names}: {why}\n"));
    lines.collect()
}

/// What is known of the levers of which enough was seen.
#[derive(Default)]
struct Known {
    /// Those that are not seen to help.
    levers: usize,
    /// Whether one of them may still help: the runs differ too much to tell.
    open: bool,
    /// Others that help and are not chosen, each a sentence.
    too: Vec<String>,
}

/// What is to be said where no lever helps that was tried: `others` may help or had no time; or none can be told of,
/// for runs of the same are too different (`noisy`).
fn verdict(known: &Known, others: Vec<String>, noisy: Option<String>, worth: f64) -> String {
    let worth = part(worth);
    let (does_not, helps) = match known.open {
        true => ("is not shown to help", "is shown to help"),
        false => ("does not help", "helps"),
    };
    let fails = match (known.levers, !others.is_empty()) {
        (0, _) => None,
        (1, true) => Some(format!("the other that was tried {does_not} by {worth}")),
        (1, false) => Some(format!("the lever that was tried {does_not} by {worth}")),
        (others, true) => Some(format!("none of the other {others} {helps} by {worth}")),
        (all, false) => Some(format!("none of {all} levers that were tried {helps} by {worth}")),
    };
    let open: Vec<String> = others.into_iter().chain(noisy).collect();
    let fails = match (known.too.is_empty(), fails) {
        (true, fails) => fails,
        (false, fails) => {
            Some(known.too.iter().cloned().chain(fails).collect::<Vec<_>>().join("; "))
        }
    };
    match (open.is_empty(), fails) {
        (false, fails) => {
            let all: Vec<String> = open.into_iter().chain(fails).collect();
            format!("undecided: {}", all.join("; "))
        }
        (true, Some(fails)) => format!("{fails}: use the command as it is"),
        (true, None) => "no lever that could matter can be tried: use the command as it is".into(),
    }
}

/// What the columns are.
const FORMULA: &str = "memory: PSS of the command and all that it starts, each page of a memfd once; its mean counts \
                       from when it was first at nine tenths of its highest to where it is freed to end; cgroup, \
                       peak: the highest charge of its control group, files and the kernel's part included; peak: \
                       the highest of the looks; changes are of medians, with 99 % intervals, noise pooled over all \
                       arms; waited: for a CPU that others had, no change";

/// What a column is called.
fn column(quantity: Quantity) -> &'static str {
    COLUMNS.iter().find(|(known, ..)| *known == quantity).map_or("", |(_, name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lever::{Estimate, Lever};
    use crate::levers::REGISTRY;
    use crate::session::options;

    #[test]
    fn all_is_well_only_where_nothing_was_left_out_for_lack_of_time() {
        let short = || vec!["2 levers were not tried".to_owned()];
        let cases = [
            (0, Vec::new(), "no lever that could matter can be tried: use the command as it is"),
            (
                1,
                Vec::new(),
                "the lever that was tried does not help by 5 %: use the command as it is",
            ),
            (
                3,
                Vec::new(),
                "none of 3 levers that were tried helps by 5 %: use the command as it is",
            ),
            (0, short(), "undecided: 2 levers were not tried"),
            (
                1,
                short(),
                "undecided: 2 levers were not tried; the other that was tried does not help by 5 %",
            ),
            (2, short(), "undecided: 2 levers were not tried; none of the other 2 helps by 5 %"),
        ];
        for (levers, short, says) in cases {
            assert_eq!(verdict(&Known { levers, ..Known::default() }, short, None, 0.05), says);
        }
        let open = |levers| Known { levers, open: true, ..Known::default() };
        let says = "undecided: that one may; none of the other 3 is shown to help by 5 %";
        assert_eq!(verdict(&open(3), vec!["that one may".to_owned()], None, 0.05), says);
        let says = "the lever that was tried is not shown to help by 5 %: use the command as it is";
        assert_eq!(verdict(&open(1), Vec::new(), None, 0.05), says);
        let says = "undecided: too noisy; none of 2 levers that were tried is shown to help by 5 %";
        assert_eq!(verdict(&open(2), Vec::new(), Some("too noisy".to_owned()), 0.05), says);
    }

    /// Advice on a command of these runs, MiB and seconds: as it is, and under the first levers by state and runs.
    fn advice(base: &[(f64, f64)], levers: &[(State, &[(f64, f64)])]) -> Advice {
        let run = |(memory, cpu): &(f64, f64)| Figures {
            mean: Some(*memory * 1048576.0),
            peak: Some(*memory * 1048576.0),
            cpu: Some(*cpu),
            ..Figures::default()
        };
        let arm = |state: &State, runs: &[(f64, f64)], lever: &'static dyn Lever| Arm {
            runs: runs.iter().map(run).collect(),
            ..Arm::new(
                lever,
                Estimate::up_to(0.5, 0.0, "for a reason"),
                Some(Start::default()),
                state.clone(),
            )
        };
        let arms = levers.iter().zip(REGISTRY);
        let arms = arms.map(|((state, runs), lever)| arm(state, runs, *lever)).collect();
        let base = base.iter().map(run).collect();
        Advice::of(vec!["true".into()], &options(), RunObservation::default(), base, arms)
    }

    /// A server rested for most of its turn, so "time is the same" stood over 5.9 % more CPU time, and what opens a
    /// side channel was named without that.
    #[test]
    fn what_a_lever_costs_is_in_its_sentence_and_what_it_is_above_what_to_type() {
        let mut advice = advice(&[(100.0, 1.0); 3], &[(State::Tried, &[(60.0, 1.06); 3])]);
        let timed = |run: &Figures| Figures { wall: Some(10.0), waited: Some(0.0), ..*run };
        let base: Vec<Figures> = advice.base.iter().map(timed).collect();
        advice.arms[0].runs = advice.arms[0].runs.iter().map(timed).collect();
        let Advice { words, options, seen, arms, .. } = advice;
        let advice = Advice::of(words, &options, seen, base, arms);
        let says = "one arena brings 40 % less memory in the mean (60.0 MiB of 100.0 MiB), for 6.0 % more CPU time; \
                    time is the same as far as these runs tell";
        assert!(advice.conclusion().starts_with(says), "{}", advice.conclusion());
        let text = advice.text();
        let what = format!("\none arena: {}\nuse: ", REGISTRY[0].what());
        assert!(text.contains(&what), "{text}");
    }

    /// A lever of one run was "not tried for lack of time", however clear that run was.
    #[test]
    fn what_was_tried_is_not_called_untried() {
        let advice = advice(
            &[(100.0, 1.0), (100.0, 1.01), (101.0, 1.0)],
            &[
                (State::Out, &[(99.0, 2.3)]),
                (State::NoTime, &[(70.0, 1.0), (71.0, 1.0)]),
                (State::NoTime, &[]),
            ],
        );
        let text = advice.text();
        for part in [
            "given up\n  one arena  tried once: 2.3 times the CPU time\n",
            "undecided\n  early trim  tried twice, undecided: memory, mean -29.5 %, CPU +0.0 %\n",
            "not tried, for time was short\n  trim at rest  may bring up to 50 % of memory\n",
            "trim at rest was not tried and early trim was tried less than 3 times for lack of time (--within 0s \
             would give enough); best so far: early trim (memory, mean -29.5 % [",
            "; --levers 'early trim' tries it alone)",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!advice.helps() && advice.undecided(), "two runs choose nothing: {text}");
    }

    /// A lever that had run once had an interval like those that had run thrice, and the first line another time than
    /// the table.
    #[test]
    fn one_run_has_no_interval_and_the_first_line_has_the_medians_of_the_table() {
        let mut advice = advice(
            &[(100.0, 1.0), (100.0, 1.2), (101.0, 3.0)],
            &[
                (State::Tried, &[(50.0, 1.0), (50.0, 1.0), (50.5, 1.01)]),
                (State::Out, &[(99.0, 2.6)]),
            ],
        );
        let seen = RunObservation { seconds: 9.0, user: 8.0, system: 1.0, ..advice.seen.clone() };
        advice.seen = seen;
        for (run, user) in advice.base.iter_mut().zip([0.5, 0.6, 2.0]) {
            run.wall = run.cpu.map(|cpu| cpu + 0.1);
            run.counted[Count::UserTime as usize] = Some(user);
        }
        let text = advice.text();
        assert!(text.starts_with(&advice.conclusion()), "the conclusion is first: {text}");
        assert!(text.contains("\n\nas it is    1.30 s: 600.0 ms user, 1.00 s system"), "{text}");
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let [twice, once] = [REGISTRY[0].name(), REGISTRY[1].name()].map(row);
        assert!(twice.contains('[') && !twice.contains("one run"), "{text}");
        assert!(!once.contains('[') && once.contains("-1.0 % (one run)"), "{text}");
        let levers = &advice.json()["levers"];
        let mean = |lever: usize| levers[lever]["changes"]["memory_mean"].clone();
        assert_eq!(
            (mean(1)["low"].clone(), mean(1)["high"].clone()),
            (serde_json::Value::Null, serde_json::Value::Null)
        );
        assert!(mean(1)["ratio"].is_f64() && mean(0)["low"].is_f64(), "{levers:#}");
    }

    /// "None of the other 2 is shown to help" was said of one that took 12 to 34 % less CPU time.
    #[test]
    fn who_helps_too_and_is_not_chosen_is_not_among_those_that_do_not() {
        let base = [(100.0, 1.0), (100.0, 1.03), (100.0, 0.97)];
        let same = [(100.0, 1.0), (100.0, 1.02), (100.0, 0.99)];
        let (most, less) = (
            [(100.0, 0.70), (100.0, 0.72), (100.0, 0.71)],
            [(100.0, 0.76), (100.0, 0.78), (100.0, 0.77)],
        );
        fn tried(runs: &[(f64, f64)]) -> (State, &[(f64, f64)]) {
            (State::Tried, runs)
        }
        let two = advice(&base, &[tried(&most), tried(&less), tried(&same)]);
        let says = two.conclusion();
        let expected = "early trim helps too (CPU -23.0 % [-30, -15]), but no more than that one; the other that was \
                        tried is not shown to help by 5 %";
        assert!(says.starts_with("undecided: one arena brings 29 % less CPU time; "), "{says}");
        assert!(says.ends_with(expected), "{says}");
        // More memory is what it costs.
        let more = [(130.0, 0.70), (130.0, 0.72), (130.5, 0.71)];
        let says = advice(&base, &[(State::Out, &more), tried(&same)]).conclusion();
        assert!(
            says.contains("helps (CPU -29.0 %") && says.contains("but costs 30 % more memory"),
            "{says}"
        );
        assert!(!says.contains("none of 2"), "{says}");
    }

    /// "None of 2 levers that were tried helps", of which one printed something else.
    #[test]
    fn who_breaks_the_command_is_not_among_those_that_do_not_help() {
        let run = [(100.0, 1.0); 3];
        let breaks = State::Breaks("it prints something else, each time".into());
        let told = advice(&run, &[(State::Out, &run), (breaks, &run)]).conclusion();
        assert!(told.starts_with("the lever that was tried does not help by 5 %"), "{told}");
    }

    /// 3.7 % less memory were found, and "use the command as it is" was all that was said.
    #[test]
    fn what_brings_less_than_it_is_to_be_worth_is_told() {
        let runs = [(100.0, 1.0), (100.0, 1.01), (101.0, 1.0)];
        let advice = advice(&runs, &[(State::Out, &[(96.0, 1.0), (96.0, 1.0), (96.5, 1.01)])]);
        let conclusion = advice.conclusion();
        let says = "does not help by 5 %: use the command as it is; one arena brings 4.0 % less memory in the mean";
        assert!(conclusion.contains(says) && conclusion.ends_with("(--worth)"), "{conclusion}");
        assert_eq!(
            advice.json()["nearest"],
            serde_json::json!({ "lever": "one arena", "aim": "memory" })
        );
        assert!(!advice.helps() && !advice.undecided());
    }

    /// Of a command of 3 ms it was said that none of five levers helps, and what that says of it nowhere.
    #[test]
    fn that_a_command_ends_at_once_is_said_first() {
        let run = [(0.03, 0.002); 3];
        let mut advice = advice(&run, &[(State::Out, &run)]);
        advice.base.iter_mut().for_each(|run| run.wall = Some(0.0029));
        assert!(!advice.conclusion().contains("it ends in"), "{}", advice.conclusion());
        advice.batch = 35;
        let told = |advice: &Advice| advice.conclusion();
        let short = "use the command as it is; it ends in 2.9 ms: to start a process costs as much";
        assert!(told(&advice).ends_with(short), "{}", told(&advice));
        advice.seen.peak.bytes = 37 << 10;
        let little = format!("{short}, and its memory, 37.0 KiB, is too little for a lever");
        assert!(told(&advice).ends_with(&little), "{}", told(&advice));
    }

    /// Nineteen lines stood below a table of two, twelve of them with one of two reasons.
    #[test]
    fn levers_that_were_not_tried_for_one_reason_share_a_line() {
        let not_tried = |why: &str| (State::NotTried(why.into()), &[][..]);
        let advice = advice(&[(1.0, 1.0); 3], &["little", "other", "little"].map(not_tried));
        let text = advice.text();
        let lines = "\nnot tried\n  one arena, trim at rest: little\n  early trim: other\n\n";
        assert!(text.contains(lines), "{text}");
    }

    /// What took less time at more memory was offered as "or, slower".
    #[test]
    fn what_a_lever_beyond_the_bound_costs_is_called_by_its_name() {
        let runs = [(100.0, 1.0), (100.0, 1.01), (101.0, 1.0), (100.0, 1.0), (100.0, 1.01)];
        let ends = |lever: [(f64, f64); 5]| {
            let text = advice(&runs, &[(State::Tried, &lever)]).text();
            text.lines().last().unwrap_or_default().to_owned()
        };
        let (less, more) = ([(50.0, 1.5); 5], [(150.0, 0.5); 5]);
        assert!(ends(less).starts_with("or, slower: "), "{}", ends(less));
        assert!(ends(more).starts_with("or, with more memory: "), "{}", ends(more));
    }

    /// A program whose runs hold 10 to 120 MiB by chance was "well as it is".
    #[test]
    fn where_runs_of_the_same_differ_too_much_to_tell_anything_it_is_undecided() {
        let runs = [(100.0, 1.0), (20.0, 0.2), (60.0, 0.5), (120.0, 1.1), (30.0, 0.3)];
        let advice_of = advice;
        let noisy = advice(&runs, &[(State::Tried, &[(60.0, 0.5), (110.0, 1.0), (25.0, 0.3)])]);
        let says = noisy.conclusion();
        assert!(
            noisy.undecided() && says.starts_with("undecided: runs of the same differ by "),
            "{says}"
        );
        assert!(
            says.contains(" in memory: too much to tell 5 %, for which it would take "),
            "{says}"
        );
        assert!(says.contains("; the lever that was tried is not shown to help by 5 %"), "{says}");
        // Given up after one run that was long by chance: it was "use the command as it is" once, and undecided the
        // next time.
        let given_up = advice_of(&runs, &[(State::Out, &[(100.0, 1.5)])]).conclusion();
        assert!(given_up.starts_with("undecided: runs of the same differ by "), "{given_up}");
        // What is worse by far is so in spite of that.
        let far = advice_of(&runs, &[(State::Out, &[(9000.0, 90.0), (9000.0, 91.0)])]);
        assert!(!far.undecided(), "{}", far.conclusion());
        // Whoever differs by little is judged.
        let calm = super::tests::advice(&[(100.0, 1.0); 5], &[(State::Tried, &[(100.0, 1.0); 3])]);
        assert!(!calm.undecided(), "{}", calm.conclusion());
        // Where memory tells, noise in time leaves nothing open: one had exit status 0 there, and another 2.
        let times = [0.2, 1.0, 0.4, 1.9, 0.7].map(|time| (100.0, time));
        let lever = [0.3, 1.2, 0.6].map(|time| (100.0, time));
        let told = super::tests::advice(&times, &[(State::Tried, &lever)]);
        let says = told.conclusion();
        assert!(!told.undecided() && !says.contains("undecided"), "{says}");
        assert!(
            says.contains("; memory is no lower under any; runs of the same differ by "),
            "{says}"
        );
        // 2.6 standard errors of the medians of so many are 5 %.
        assert_eq!(runs_to_tell(0.05, 0.1), 90.0);
    }

    #[test]
    fn an_interrupted_answer_says_that_it_is_incomplete_and_names_what_is_beyond_doubt_only() {
        let runs = [(100.0, 1.0), (100.0, 1.01), (101.0, 1.0)];
        let less = [(50.0, 1.0), (50.0, 1.0), (50.5, 1.01)];
        let noisy = [(100.0, 0.8), (100.0, 0.9), (101.0, 1.0)];
        let told = |lever: &[(f64, f64)]| {
            let mut advice = advice(&runs, &[(State::Tried, lever), (State::NoTime, &[])]);
            advice.interrupt(2);
            (advice.helps(), advice.undecided(), advice.text())
        };
        let (helps, undecided, text) = told(&less);
        assert!(helps && !undecided && text.contains("incomplete (interrupted "), "{text}");
        assert!(text.contains("not tried before that\n"), "{text}");
        let (helps, undecided, text) = told(&noisy);
        assert!(!helps && undecided && text.contains(": undecided: "), "{text}");
        // "No lever that could matter can be tried" was said above a table of five that were undecided.
        let mut advice = advice(&runs, &[(State::NoTime, &[(120.0, 1.4), (121.0, 1.4)])]);
        advice.interrupt(2);
        let says = advice.conclusion();
        assert!(says.contains("undecided: ") && !says.contains("no lever that could"), "{says}");
    }
}
