//! The name that may have been meant by a wrong one.

/// Names that are less alike than this are not meant for each other (Jaro-Winkler).
const ALIKE: f64 = 0.8;

/// The one of some names that may have been meant by a wrong one, as the end of a sentence; empty if none is like it.
pub fn meant<'a>(wrong: &str, names: impl Iterator<Item = &'a str>) -> String {
    let likeness = |name: &'a str| (strsim::jaro_winkler(wrong, name), name);
    let nearest = names.map(likeness).max_by(|a, b| a.0.total_cmp(&b.0));
    let nearest = nearest.filter(|(likeness, _)| *likeness > ALIKE);
    nearest.map_or(String::new(), |(_, name)| format!(" (did you mean {name:?}?)"))
}
