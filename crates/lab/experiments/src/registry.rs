//! What the experiments with tables of their own say of themselves, by name: what is asked of one of them, of their
//! arms, and of what cells of them come to.

use std::sync::LazyLock;

use anyhow::Result;

use crate::TABLED;
use crate::coverage::{MESH, Source};
use crate::reproduce::arm;
use crate::reproduce::definition::{self, Definition};
use crate::reproduce::keep::CellKey;
use crate::reproduce::series::Finished;
use crate::tabled::{Choices, KeptTables, MeasuredExperiment, Outcomes, TabledExperiment, Tables};

/// Their files.
static DEFINITIONS: LazyLock<Vec<Definition<toml::Table>>> =
    LazyLock::new(|| TABLED.iter().map(|one| definition::read(one.file)).collect());

fn find(name: &str) -> Option<&'static TabledExperiment> {
    TABLED.into_iter().find(|one| one.name == name)
}

/// Their names, in the order in which they run.
pub fn names() -> [&'static str; TABLED.len()] {
    TABLED.map(|one| one.name)
}

/// The groups of those that one publication has several of: what it is called, and who they are.
pub(crate) fn groups() -> Vec<(String, Vec<&'static str>)> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for one in TABLED {
        let Some(source) = one.source else { continue };
        let called = source.name.to_lowercase();
        match groups.iter_mut().find(|(name, _)| *name == called) {
            Some((_, members)) => members.push(one.name),
            None => groups.push((called, vec![one.name])),
        }
    }
    groups.retain(|(_, members)| members.len() > 1);
    groups
}

/// Names of experiments, with the members of each of these groups in its place.
pub fn with_members(names: &[String]) -> Vec<String> {
    let groups = groups();
    let members = |name: &String| match groups.iter().find(|(group, _)| group == name) {
        Some((_, members)) => members.iter().map(|&one| one.to_owned()).collect(),
        None => vec![name.clone()],
    };
    names.iter().flat_map(members).collect()
}

/// The names of those that are so, in the order of the alphabet.
fn names_of(is_so: impl Fn(&TabledExperiment) -> bool) -> Vec<&'static str> {
    let mut names: Vec<&str> = TABLED.iter().filter(|one| is_so(one)).map(|one| one.name).collect();
    names.sort_unstable();
    names
}

/// Those that go by something of the command line.
pub(crate) fn with(goes_by: impl Fn(&Choices) -> bool) -> Vec<&'static str> {
    names_of(|one| goes_by(&one.choices))
}

/// Those that have a run whose figures are kept in this binary.
pub fn with_kept() -> Vec<&'static str> {
    names_of(|one| one.kept.is_some())
}

/// Those that have the sizes of the publication, too.
pub fn with_full_size() -> Vec<&'static str> {
    names_of(|one| definition(one.name).is_some_and(|file| file.full_size.is_some()))
}

/// Those that are root's.
pub(crate) fn of_root() -> Vec<&'static str> {
    names_of(|one| one.is_roots)
}

/// Whether one compares with no publication: it runs by name.
pub(crate) fn is_by_name(name: &str) -> bool {
    find(name).is_some_and(|one| one.source.is_none())
}

/// The file of the one of this name, if it is one of these.
pub(crate) fn definition(name: &str) -> Option<&'static Definition<toml::Table>> {
    DEFINITIONS.iter().find(|one| one.name == name)
}

/// The arm of this name, of any experiment.
pub(crate) fn arm(name: &str) -> Option<&'static str> {
    arms().find(|known| *known == name)
}

/// All arms of all experiments, in the order of tables.
pub(crate) fn arms() -> impl Iterator<Item = &'static str> {
    let own = DEFINITIONS.iter().flat_map(|one| one.arms.iter().map(String::as_str));
    arm::NAMES.into_iter().chain(own)
}

/// All sources.
pub(crate) fn sources() -> impl Iterator<Item = &'static Source> {
    TABLED.iter().filter_map(|one| one.source).chain([&MESH])
}

/// The source of an experiment with tables of its own; one that compares with no publication has none.
pub(crate) fn source(experiment: &str) -> Option<&'static Source> {
    find(experiment)?.source
}

/// How the one of this name runs on this machine.
pub(crate) fn measured(name: &str) -> Option<&'static MeasuredExperiment> {
    find(name)?.measured.as_ref()
}

/// Those of which nothing ran.
pub(crate) fn nothing(name: &str) -> Option<Box<dyn Tables>> {
    Some(measured(name)?.nothing?())
}

/// The tables of a run of the one of this name whose figures were kept: of these bytes, or of the run in this binary.
/// `None` for one that has no such run.
///
/// # Errors
/// For bytes that are no such run.
pub fn kept(name: &str, bytes: Option<&[u8]>) -> Option<Result<KeptTables>> {
    Some(find(name)?.kept?(bytes))
}

/// What cells that were run anywhere came to, in the order in which a run has them.
pub fn collected(
    of: impl Fn(&str) -> Option<(Vec<Finished>, CellKey)>,
    interrupted: bool,
) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for name in names() {
        let (Some(one), Some((cells, of))) = (measured(name), of(name)) else { continue };
        if let Ok(tables) = (one.collected)(&cells, of, interrupted) {
            outcomes.tables.push((name, tables));
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_called_as_its_file_says() {
        let files: Vec<&str> = DEFINITIONS.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(files, names());
    }

    #[test]
    fn what_a_publication_is_called_stands_for_all_of_its_experiments() {
        assert_eq!(groups(), [("cbmm".to_owned(), vec!["huge-slices", "huge-pages"])]);
        let asked = ["moca", "cbmm", "perl"].map(str::to_owned);
        let members = with_members(&asked);
        assert_eq!(members, ["moca", "huge-slices", "huge-pages", "perl"]);
        assert_eq!(with_members(&members), members);
    }
}
