//! What a run came to, on one screen: how many published claims are so here, and a line for each that is not.
//!
//! ```text
//!  tables of each experiment ──► Entry { source, claim, published, here, state } ──► counts by source, what differs
//! ```
//!
//! | state | when |
//! |---|---|
//! | reproduced | what was published is so here, within the rule of the experiment |
//! | better | ours is better than what was published |
//! | differs | anything else that was measured |
//! | modelled | a simulator's figure is within [`CLOSE`] of the published one; beyond it is *differs* |
//! | not run here | nothing was measured, or the runs do not tell |
//!
//! Always so: each claim that an experiment judges is one entry, whatever of it ran, and so is each kind of published
//! figure that is not run here ([`coverage`]); what is not run here says why; the counts add up to the entries; targets
//! of our own are counted apart.

use std::fmt::Write as _;

use pagemill_report::draw::text;
use serde::Serialize;

use crate::claim::{ClaimRow, Verdict};
use crate::coverage::{self, MESH, Source};
use crate::reproduce::experiment;
use crate::reproduce::measured::Measured;
use crate::reproduce::summary::Summary;
use crate::reproduce::terminal;
use crate::reproduce::verdict::{self, Judged};
use crate::tabled::Outcomes;
use crate::{colloid, registry};

/// How far a modelled figure may be from the published one.
const CLOSE: f64 = 0.1;
/// Lines of what differs on a screen.
const LINES: usize = 12;
/// Columns of a line on a screen.
const WIDTH: usize = 118;

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// As published.
    Reproduced,
    /// Better than published.
    Better,
    /// Not as published.
    Differs,
    /// A simulator's figure near the published one.
    Modelled,
    /// Nothing was measured that would tell.
    NotRunHere,
}

/// All of them, with the word for each.
pub const STATES: [(State, &str); 5] = [
    (State::Reproduced, "reproduced"),
    (State::Better, "better"),
    (State::Differs, "differs"),
    (State::Modelled, "modelled"),
    (State::NotRunHere, "not run here"),
];

impl From<&Verdict> for State {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Reproduced(_) | Verdict::SoHere => Self::Reproduced,
            Verdict::Better(_) => Self::Better,
            Verdict::Smaller(_) | Verdict::NotReproduced(_) | Verdict::NotSoHere => Self::Differs,
            Verdict::Overlap | Verdict::NotMeasured(_) => Self::NotRunHere,
        }
    }
}

/// A published claim and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Whose claim.
    pub source: &'static str,
    /// What was claimed.
    pub claim: String,
    /// The published figure.
    pub published: String,
    /// Ours.
    pub here: String,
    /// What became of it.
    pub state: State,
}

/// What a run came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Scoreboard {
    /// Each claim.
    pub claims: Vec<Entry>,
    /// Targets of our own that were met, and all that could be held against one.
    pub targets: (usize, usize),
}

impl Scoreboard {
    /// Takes all claims that were judged.
    #[must_use]
    pub fn of(
        summary: Option<&Summary>,
        simulated: Option<&colloid::Report>,
        outcomes: &Outcomes,
    ) -> Self {
        let mut board = Self::default();
        summary.into_iter().for_each(|summary| board.allocators(summary));
        for (name, tables) in &outcomes.tables {
            registry::source(name).into_iter().for_each(|it| board.rows(it, tables.claims()));
            board.goals(tables.goals());
        }
        simulated.into_iter().for_each(|report| board.modelled(report));
        outcomes.absent.iter().for_each(|(name, why)| board.absent(name, why));
        for source in board.sources() {
            board.not_run(source);
        }
        board
    }

    fn allocators(&mut self, summary: &Summary) {
        // Of an experiment that could not run there are no figures, and no section.
        let ran = |name: &str| summary.sections.iter().any(|section| section.experiment == name);
        let skipped = |name: &str| {
            summary.of.skipped.iter().any(|skip| skip.experiment == name && skip.arm.is_none())
        };
        let all = experiment::all().unwrap_or_default();
        for one in all.iter().filter(|one| skipped(&one.name) && !ran(&one.name)) {
            let none = Measured::new(&[], &one.name, summary.of.seed);
            let claims = verdict::claims(one, &none, &summary.of.skipped).unwrap_or_default();
            self.judged(&one.name, &claims);
        }
        for section in &summary.sections {
            self.judged(&section.experiment, &section.claims);
            self.goals(section.goals.iter().filter_map(|goal| goal.verdict.met()));
        }
    }

    fn judged(&mut self, experiment: &str, claims: &[Judged]) {
        for one in claims {
            let against = one.against.as_deref().map_or(String::new(), |arm| format!(" / {arm}"));
            self.claims.push(Entry {
                source: MESH.name,
                claim: format!("{experiment}: {} ({}{against})", one.says, one.arm),
                published: one.published.clone(),
                here: match &one.measured {
                    Some(figure) => terminal::with_interval(figure),
                    None => one.verdict.to_string(),
                },
                state: State::from(&one.verdict),
            });
        }
    }

    /// The claims of an experiment of which nothing ran.
    fn absent(&mut self, name: &str, why: &str) {
        if name == colloid::NAME {
            return self.not_made(|_| true, why);
        }
        let (Some(source), Some(nothing)) = (registry::source(name), registry::nothing(name))
        else {
            return;
        };
        let not_measured = |row| ClaimRow { verdict: Verdict::NotMeasured(why.to_owned()), ..row };
        self.rows(source, nothing.claims().into_iter().map(not_measured));
    }

    /// Published cells of the simulated machine that were not made.
    fn not_made(&mut self, wanted: impl Fn(&colloid::Cell) -> bool, why: &str) {
        for cell in colloid::claims().into_iter().filter(|cell| !cell.input && wanted(cell)) {
            self.claims.push(Entry {
                source: colloid::SOURCE.name,
                claim: words(&cell),
                published: cell.published.map_or_else(String::new, colloid::value),
                here: format!("not made: {why}"),
                state: State::NotRunHere,
            });
        }
    }

    fn rows(&mut self, source: &Source, rows: impl IntoIterator<Item = ClaimRow>) {
        self.claims.extend(rows.into_iter().map(|row| Entry {
            source: source.name,
            state: State::from(&row.verdict),
            claim: row.claim,
            published: row.published,
            here: row.here.unwrap_or_else(|| row.verdict.to_string()),
        }));
    }

    fn goals(&mut self, met: impl IntoIterator<Item = bool>) {
        for met in met {
            self.targets.0 += usize::from(met);
            self.targets.1 += 1;
        }
    }

    fn modelled(&mut self, report: &colloid::Report) {
        for cell in &report.cells {
            let Some((error, published)) = cell.error().zip(cell.published) else { continue };
            let close = error.abs() <= CLOSE;
            self.claims.push(Entry {
                source: colloid::SOURCE.name,
                claim: words(cell),
                published: colloid::value(published),
                here: format!(
                    "{} modelled, {:+.1} %",
                    colloid::value(cell.modelled),
                    error * 100.0
                ),
                state: if close { State::Modelled } else { State::Differs },
            });
        }
        let made =
            |wanted: &colloid::Cell| report.cells.iter().any(|cell| cell.place() == wanted.place());
        self.not_made(|cell| !made(cell), "its figure is not among those of this run");
    }

    /// Published figures that have none beside them here: an entry for each kind.
    fn not_run(&mut self, source: &'static str) {
        let of = registry::sources().find(|known| known.name == source);
        let entry = |(what, count, why): (&str, usize, &str)| Entry {
            source,
            claim: what.to_owned(),
            published: match count {
                0 => "drawn".into(),
                1 => "1 figure".into(),
                more => format!("{more} figures"),
            },
            here: why.to_owned(),
            state: State::NotRunHere,
        };
        self.claims.extend(of.into_iter().flat_map(coverage::not_run).map(entry));
    }

    /// Claims of a source in a state.
    fn count(&self, source: &str, state: State) -> usize {
        self.claims.iter().filter(|entry| (entry.source, entry.state) == (source, state)).count()
    }

    /// Sources that have claims here, in the order in which they came.
    fn sources(&self) -> Vec<&'static str> {
        let mut sources: Vec<&'static str> = Vec::new();
        for entry in &self.claims {
            if !sources.contains(&entry.source) {
                sources.push(entry.source);
            }
        }
        sources
    }

    /// Header and rows of the counts by source.
    #[must_use]
    pub fn counts(&self) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let mut header = vec!["source", "claims"];
        header.extend(STATES.iter().map(|(_, word)| *word));
        let row = |name: &str, sources: &[&str]| {
            let of = |state| sources.iter().map(|source| self.count(source, state)).sum::<usize>();
            let counts: Vec<usize> = STATES.iter().map(|(state, _)| of(*state)).collect();
            let mut cells = vec![name.to_owned(), counts.iter().sum::<usize>().to_string()];
            cells.extend(counts.iter().map(ToString::to_string));
            cells
        };
        let sources = self.sources();
        let mut rows: Vec<_> = sources.iter().map(|source| row(source, &[source])).collect();
        if sources.len() > 1 {
            rows.push(row("all", &sources));
        }
        (header, rows)
    }

    /// Those that are not as published.
    pub fn differing(&self) -> impl Iterator<Item = &Entry> {
        self.claims.iter().filter(|entry| entry.state == State::Differs)
    }

    /// One screen; nothing where no claim was judged.
    #[must_use]
    pub fn text(&self) -> String {
        if self.claims.is_empty() {
            return String::new();
        }
        let (header, rows) = self.counts();
        let mut out = text::table(&header, &rows);
        let differing: Vec<&Entry> = self.differing().collect();
        if !differing.is_empty() {
            out.push_str("\nWhat differs:\n");
        }
        for entry in differing.iter().take(LINES) {
            let Entry { source, claim, published, here, .. } = entry;
            let figures = shortened(&format!(": published {published}, here {here}"), WIDTH / 2);
            let room = WIDTH - figures.chars().count();
            let _ = writeln!(out, "{}{figures}", shortened(&format!("  {source}, {claim}"), room));
        }
        if differing.len() > LINES {
            let more = differing.len() - LINES;
            let _ = writeln!(out, "  and {more} more, which report.html has");
        }
        if self.targets.1 > 0 {
            let (met, all) = self.targets;
            let _ = writeln!(out, "\nTargets of our own: {met} of {all} met.");
        }
        out
    }
}

/// What a cell of the simulated machine is of.
fn words(cell: &colloid::Cell) -> String {
    let [figure, row, column, metric] = cell.place();
    format!("figure {figure}: {row}, {column}, {metric}")
}

/// The text in `room` columns, without its end if it is longer.
fn shortened(text: &str, room: usize) -> String {
    match text.chars().count() <= room {
        true => text.to_owned(),
        false => text.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Basis;

    const MOCA: &Source = &moca::SOURCE;
    const CBMM: &str = huge_pages::SOURCE.name;
    use crate::reproduce::plan::Skipped;
    use crate::reproduce::summary::Circumstances;
    use crate::{fragmentation, huge_pages, huge_slices, moca};

    fn row(verdict: Verdict) -> ClaimRow {
        let (claim, published) = ("a claim".to_owned(), "1.00".to_owned());
        ClaimRow { claim, published, here: Some("1.10".to_owned()), verdict }
    }

    #[test]
    fn each_verdict_is_one_state_and_the_counts_add_up() {
        let verdicts = [
            (Verdict::Reproduced(Basis::Runs), "reproduced", State::Reproduced),
            (
                Verdict::Reproduced(Basis::OneRun),
                "reproduced (one run, no interval)",
                State::Reproduced,
            ),
            (Verdict::SoHere, "so here", State::Reproduced),
            (
                Verdict::Better(Basis::AnotherMachine),
                "better than published (another machine)",
                State::Better,
            ),
            (Verdict::Smaller(Basis::Runs), "same direction, smaller effect", State::Differs),
            (Verdict::NotReproduced(Basis::Runs), "not reproduced", State::Differs),
            (Verdict::NotSoHere, "not so here", State::Differs),
            (
                Verdict::NotMeasured("needs root".into()),
                "not measured: needs root",
                State::NotRunHere,
            ),
            (Verdict::Overlap, "cannot be told: the runs overlap", State::NotRunHere),
        ];
        let mut board = Scoreboard::default();
        board.rows(MOCA, verdicts.iter().map(|(verdict, ..)| row(verdict.clone())));
        for (entry, (verdict, text, state)) in board.claims.iter().zip(&verdicts) {
            assert_eq!((verdict.to_string().as_str(), entry.state), (*text, *state));
        }
        let (header, rows) = board.counts();
        assert_eq!(header.len(), rows[0].len());
        assert_eq!(rows, [["Moca", "9", "3", "1", "3", "0", "2"].map(str::to_owned)]);
    }

    #[test]
    fn goals_are_no_claims() {
        let mut board = Scoreboard::default();
        board.rows(MOCA, [row(Verdict::Reproduced(Basis::Runs))]);
        board.goals([true, false, false, true, true]);
        assert_eq!((board.claims.len(), board.targets), (1, (3, 5)));
        assert!(board.text().contains("3 of 5 met"));
    }

    #[test]
    fn a_modelled_figure_that_is_far_off_differs_and_an_input_is_no_claim() {
        let cell = |modelled, input| colloid::Cell {
            figure: "6c".into(),
            row: "135 ns".into(),
            column: "3x".into(),
            metric: "ratio".into(),
            modelled,
            published: Some(1.8),
            input,
        };
        let report = colloid::Report {
            cells: vec![
                cell(1.7, false),
                cell(1.2, false),
                cell(f64::INFINITY, false),
                cell(1.8, true),
            ],
            ..colloid::Report::default()
        };
        let board = Scoreboard::of(None, Some(&report), &Outcomes::default());
        let states: Vec<State> = board.claims.iter().map(|entry| entry.state).collect();
        assert_eq!(states[..3], [State::Modelled, State::Differs, State::Differs]);
        assert!(states[3..].iter().all(|state| *state == State::NotRunHere), "{states:?}");
        assert!(
            board.text().contains("published 1.800, here 1.200 modelled, -33.3 %"),
            "{}",
            board.text()
        );
    }

    #[test]
    fn each_claim_is_an_entry_where_nothing_ran_and_says_why() {
        let why = "that is root's".to_owned();
        let of =
            [moca::NAME, huge_slices::NAME, huge_pages::NAME, fragmentation::NAME, colloid::NAME];
        let absent = of.map(|name| (name, why.clone())).to_vec();
        let nothing = Scoreboard::of(None, None, &Outcomes { absent, ..Outcomes::default() });
        assert_eq!(nothing.sources(), ["Moca", "CBMM", "fragmentation", "Colloid"]);
        assert_eq!(nothing.targets, (0, 0));
        for entry in &nothing.claims {
            assert_eq!(entry.state, State::NotRunHere, "{entry:?}");
            assert!(entry.here.len() > 2, "{entry:?}");
        }
        let told = nothing.claims.iter().filter(|entry| entry.here.ends_with(&why)).count();
        assert_eq!(told, 11 + 2 + 28 + 7 + 32, "{:#?}", nothing.claims);
        let figures = nothing.claims.iter().filter(|entry| entry.claim.starts_with("figure"));
        for number in ["1", "2 and 4", "5", "6"] {
            let of = |entry: &&Entry| {
                entry.source == CBMM && entry.claim.contains(&format!(" {number}:"))
            };
            assert!(figures.clone().any(|entry| of(&entry)), "figure {number} of CBMM has no row");
        }
        // Of the simulated machine any part may have been made: the others say so.
        let mut cells = colloid::claims();
        let mut random = pagemill_model::random::Random::new(7);
        let said = |cells: &[colloid::Cell]| {
            let report = colloid::Report { cells: cells.to_vec(), ..colloid::Report::default() };
            let board = Scoreboard::of(None, Some(&report), &Outcomes::default());
            let mut said: Vec<String> =
                board.claims.iter().map(|entry| entry.claim.clone()).collect();
            said.sort();
            said
        };
        cells.iter_mut().for_each(|cell| cell.modelled = 1.0);
        let all = said(&cells);
        while !cells.is_empty() {
            cells.remove(random.index(cells.len()));
            assert_eq!(said(&cells), all);
        }
    }

    #[test]
    fn an_experiment_that_could_not_run_has_its_claims() {
        let summary = |skipped| Summary {
            schema: 1,
            of: Circumstances { seed: 1, skipped, ..Circumstances::default() },
            sections: Vec::new(),
        };
        let skip = |name: &str| Skipped {
            experiment: name.into(),
            arm: None,
            reason: "redis-server is not installed".into(),
        };
        let of = |skipped| Scoreboard::of(Some(&summary(skipped)), None, &Outcomes::default());
        assert!(of(Vec::new()).claims.is_empty());
        let board = of(vec![skip("redis-fragmentation"), skip("browsers firefox")]);
        let told = board.claims.iter().filter(|entry| entry.here.contains("is not installed"));
        assert!(told.count() > 5, "{:#?}", board.claims);
        assert!(board.claims.iter().all(|entry| entry.state == State::NotRunHere));
    }

    #[test]
    fn a_screen_is_a_screen() {
        let mut board = Scoreboard::default();
        let long = ClaimRow {
            claim: "x".repeat(300),
            published: "1".into(),
            here: Some("2".into()),
            verdict: Verdict::NotReproduced(Basis::Runs),
        };
        board.rows(&huge_pages::SOURCE, vec![long; 40]);
        let text = board.text();
        assert!(text.lines().count() <= 24, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        assert!(text.contains("and 28 more, which report.html has"), "{text}");
        assert!(text.contains("xxx…: published 1, here 2\n"), "figures are never cut off: {text}");
        assert_eq!(Scoreboard::default().text(), "");
    }
}
