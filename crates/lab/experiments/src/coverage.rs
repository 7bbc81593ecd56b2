//! Which rows of the published tables no experiment here has a figure for, and why: a summary names them, so that
//! nothing that was published is silently missing.
//!
//! Always so: a row is either looked up for some table or claim here, or is of exactly one of [`NOT_RUN`]; the tests
//! below count the others. Each of [`NOT_RUN`] is in `docs/concepts/experiments.md`.

/// Whose experiments those on allocators are.
pub(crate) const MESH: &str = "Mesh";
/// The source of huge page policies.
pub(crate) const CBMM: &str = "CBMM";
/// The source of access traces.
pub(crate) const MOCA: &str = "Moca";
/// The source of placement on tiers.
pub(crate) const COLLOID: &str = "Colloid";
/// The source of scores of free memory.
pub(crate) const STUDY: &str = "fragmentation";

/// The published tables, each with whose figures it has: `experiment,subject,metric,unit,value,note`.
const TABLES: [(&str, &str); 5] = [
    (MESH, include_str!("../../../../experiments/published/mesh.csv")),
    (CBMM, include_str!("../../../../experiments/published/cbmm.csv")),
    (MOCA, include_str!("../../../../experiments/published/moca.csv")),
    (COLLOID, include_str!("../../../../experiments/published/colloid.csv")),
    (STUDY, include_str!("../../../../experiments/published/fragmentation.csv")),
];

/// Published figures that have none beside them here.
struct NotRun {
    source: &'static str,
    /// What they are.
    what: &'static str,
    /// Parts of the first three fields of their rows.
    fields: [&'static str; 3],
    /// Why they are not run.
    why: &'static str,
}

const NOT_RUN: [NotRun; 8] = [
    NotRun {
        source: MESH,
        what: "Redis: the slowdown that the artifact expects at most",
        fields: ["redis", "mesh", "expected slowdown"],
        why: "a bound for another library; here Redis has goals of its own",
    },
    NotRun {
        source: MESH,
        what: "Redis: total time of activedefrag",
        fields: ["redis", "activedefrag", "total time defragmenting"],
        why: "Redis does not tell the time; its CPU time is in the table",
    },
    NotRun {
        source: MOCA,
        what: "slowdown by Mitos at its shortest period",
        fields: ["slowdown", "", "Mitos tuned"],
        why: "needs loads sampled by the processor (PEBS)",
    },
    NotRun {
        source: MOCA,
        what: "pages and events found by it",
        fields: ["s", "", "Mitos tuned"],
        why: "needs loads sampled by the processor (PEBS)",
    },
    NotRun {
        source: MOCA,
        what: "slowdown by Moca on an AMD machine",
        fields: ["slowdown", "", "Moca AMD"],
        why: "one machine is measured at a time; figures of the other one are beside no run",
    },
    NotRun {
        source: MOCA,
        what: "how often Moca wakes up by default",
        fields: ["defaults", "Moca", ""],
        why: "settings, not results: the sweep runs them and others",
    },
    NotRun {
        source: COLLOID,
        what: "Silo (figure 8b): improvement in percent",
        fields: ["Silo", "TPP+colloid vs TPP", "improvement"],
        why: "follows from the two throughputs, which are compared",
    },
    NotRun {
        source: STUDY,
        what: "free memory under the study's reference program",
        fields: ["(reference program)", "", ""],
        why: "that program is not published; memory is fragmented by frag induce",
    },
];

impl NotRun {
    fn has(&self, line: &str) -> bool {
        let fields: Vec<&str> = line.split(',').collect();
        let alike = |(field, part): (&&str, &&str)| field.contains(part);
        let slowdown = self.fields[0] != "slowdown" && fields.first() == Some(&"slowdown");
        fields.len() >= 6 && !slowdown && fields.iter().zip(&self.fields).all(alike)
    }
}

/// The rows of a source's table.
fn rows(source: &str) -> impl Iterator<Item = &'static str> {
    let of = TABLES.into_iter().filter(move |(whose, _)| *whose == source);
    of.flat_map(|(_, text)| text.lines().skip(1))
}

/// What of a source is not run here: what its figures are, how many, and why.
pub(crate) fn not_run(
    source: &str,
) -> impl Iterator<Item = (&'static str, usize, &'static str)> + '_ {
    NOT_RUN.iter().filter(move |one| one.source == source).map(move |one| {
        let count = rows(one.source).filter(|line| one.has(line)).count();
        (one.what, count, one.why)
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
    pub(crate) fn is_complete(source: &'static str, tables: impl FnOnce()) {
        SEEN.with_borrow_mut(HashSet::clear);
        tables();
        let seen = SEEN.take();
        let counted = rows(source).map(|line| {
            let rules = NOT_RUN.iter().filter(|one| one.source == source && one.has(line)).count();
            (line, rules + usize::from(seen.contains(line)))
        });
        let wrong: Vec<(&str, usize)> = counted.filter(|(_, count)| *count != 1).collect();
        assert!(rows(source).count() > 0 && wrong.is_empty(), "{} rows: {wrong:#?}", wrong.len());
    }

    #[test]
    fn every_kind_that_is_not_run_has_rows_and_is_in_the_documentation() {
        let page = include_str!("../../../../docs/concepts/experiments.md");
        for one in &NOT_RUN {
            assert!(rows(one.source).any(|line| one.has(line)), "{}: no row", one.what);
            let line = format!("| {} | {} |", one.what, one.why);
            assert!(page.contains(&line), "the page lacks: {line}");
        }
        let all: usize = TABLES.iter().map(|(source, _)| not_run(source).count()).sum();
        assert_eq!(all, NOT_RUN.len());
    }

    #[test]
    fn what_is_not_run_is_told_with_how_much_it_is() {
        let counts: Vec<usize> = not_run(MOCA).map(|(_, count, _)| count).collect();
        assert_eq!(counts, [10, 20, 10, 2]);
    }
}
