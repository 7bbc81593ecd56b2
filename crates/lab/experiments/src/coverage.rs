//! Which rows of the published tables no experiment here has a figure for, and why: a summary names them, so that
//! nothing that was published is silently missing. Figures that are drawn, with no number to compare with, are named,
//! too.
//!
//! Always so: a row is either looked up for some table or claim here, or is of exactly one of [`NOT_RUN`]; the tests
//! below count the others. Each of [`NOT_RUN`], from `experiments/published/not-run.toml`, is in
//! `docs/concepts/experiments-published.md`.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;

/// A publication, with the table of its figures: `experiment,subject,metric,unit,value,note`.
#[derive(Debug, PartialEq)]
pub(crate) struct Source {
    /// What it is called in tables.
    pub(crate) name: &'static str,
    /// Its table.
    pub(crate) figures: &'static str,
}

/// Whose experiments those on allocators are.
pub(crate) static MESH: Source =
    Source { name: "Mesh", figures: include_str!("../../../../experiments/published/mesh.csv") };

/// Published figures that have none beside them here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NotRun {
    source: String,
    /// What they are.
    what: String,
    /// Parts of the first three fields of their rows; nothing where they are drawn, with no number to compare with.
    rows: Option<[String; 3]>,
    /// Why they are not run, or not compared.
    why: String,
}

/// All of them.
static NOT_RUN: LazyLock<Vec<NotRun>> = LazyLock::new(|| {
    let text = include_str!("../../../../experiments/published/not-run.toml");
    let mut all: HashMap<String, Vec<NotRun>> =
        toml::from_str(text).expect("the files of this binary are read by its tests");
    all.remove("figures").unwrap_or_default()
});

impl NotRun {
    fn has(&self, line: &str) -> bool {
        let (fields, Some(parts)) = (line.split(',').collect::<Vec<_>>(), &self.rows) else {
            return false;
        };
        let alike = |(field, part): (&&str, &String)| field.contains(part.as_str());
        let slowdown = parts[0] != "slowdown" && fields.first() == Some(&"slowdown");
        fields.len() >= 6 && !slowdown && fields.iter().zip(parts).all(alike)
    }
}

/// A published figure, as it was printed: of the experiment, subject and metric of its row.
pub(crate) fn figure(
    source: &Source,
    experiment: &str,
    subject: &str,
    metric: &str,
) -> Option<&'static str> {
    rows(source).find_map(|line| {
        let mut fields = line.splitn(6, ',');
        let is = [experiment, subject, metric].into_iter().all(|word| fields.next() == Some(word));
        let value = fields.nth(1).filter(|_| is && fields.next().is_some())?;
        looked_up(line);
        Some(value)
    })
}

/// The same, as a number.
pub(crate) fn number(
    source: &Source,
    experiment: &str,
    subject: &str,
    metric: &str,
) -> Option<f64> {
    figure(source, experiment, subject, metric)?.parse().ok()
}

/// The rows of a source's table.
fn rows(source: &Source) -> impl Iterator<Item = &'static str> + use<> {
    source.figures.lines().skip(1)
}

/// What of a source is not run here: what its figures are, how many (none are drawn), and why.
pub(crate) fn not_run(
    source: &Source,
) -> impl Iterator<Item = (&'static str, usize, &'static str)> + '_ {
    NOT_RUN.iter().filter(move |one| one.source == source.name).map(move |one| {
        let count = rows(source).filter(|line| one.has(line)).count();
        (one.what.as_str(), count, one.why.as_str())
    })
}

/// Notes, in tests, that a row was looked up.
#[cfg(not(test))]
pub(crate) fn looked_up(_line: &str) {}

#[cfg(test)]
pub(crate) use tests::looked_up;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::HashSet;

    thread_local! {
        static SEEN: RefCell<HashSet<String>> = RefCell::default();
    }

    pub(crate) fn looked_up(line: &str) {
        SEEN.with_borrow_mut(|seen| seen.insert(line.to_owned()));
    }

    /// Asserts that each row of a source is looked up by `tables`, or is not run, and not both.
    pub(crate) fn is_complete(source: &Source, tables: impl FnOnce()) {
        SEEN.with_borrow_mut(HashSet::clear);
        tables();
        let seen = SEEN.take();
        let counted = rows(source).map(|line| {
            let rules =
                NOT_RUN.iter().filter(|one| one.source == source.name && one.has(line)).count();
            (line, rules + usize::from(seen.contains(line)))
        });
        let wrong: Vec<(&str, usize)> = counted.filter(|(_, count)| *count != 1).collect();
        assert!(rows(source).count() > 0 && wrong.is_empty(), "{} rows: {wrong:#?}", wrong.len());
    }

    #[test]
    fn every_kind_that_is_not_run_has_rows_and_is_in_the_documentation() {
        let page = include_str!("../../../../docs/concepts/experiments-published.md");
        let tables: HashMap<&str, &Source> =
            crate::registry::sources().map(|source| (source.name, source)).collect();
        for one in NOT_RUN.iter() {
            let found = rows(tables[one.source.as_str()]).any(|line| one.has(line));
            assert_eq!(found, one.rows.is_some(), "{}: rows", one.what);
            let line = format!("| {} | {} |", one.what, one.why);
            assert!(page.contains(&line), "the page lacks: {line}");
        }
        let all: usize = tables.values().map(|source| not_run(source).count()).sum();
        assert_eq!(all, NOT_RUN.len());
    }

    /// Two of those with tables of their own were missing in a list of four.
    #[test]
    fn every_experiment_is_on_its_page() {
        let page = include_str!("../../../../docs/concepts/experiments.md");
        let own = crate::reproduce::experiment::all().unwrap();
        let own = own.iter().map(|one| one.name.as_str());
        for name in crate::registry::names().into_iter().chain(own) {
            let (plain, linked) = (format!("| `{name}` |"), format!("| [`{name}`]("));
            assert!(page.contains(&plain) || page.contains(&linked), "the page lacks {name}");
        }
    }

    #[test]
    fn what_is_not_run_is_told_with_how_much_it_is() {
        let counts: Vec<usize> = not_run(&crate::moca::SOURCE).map(|(_, count, _)| count).collect();
        assert_eq!(counts, [10, 20, 10, 2, 2]);
    }
}
