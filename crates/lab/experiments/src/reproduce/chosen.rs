//! Which experiments go by chosen arms and programs; what nothing would go by is refused.

use anyhow::{Result, ensure};

use crate::{colloid, fragmentation, huge_pages, huge_slices, moca, overhead};

/// Experiments that are no programs to compare, and so are not among [`super::experiment::all`], in the order in which
/// they run: the last measured ones break up the memory that the others ran on.
pub const OTHERS: [&str; 6] = [
    overhead::NAME,
    moca::NAME,
    huge_slices::NAME,
    huge_pages::NAME,
    fragmentation::NAME,
    colloid::NAME,
];

/// Those of them that have arms to choose from, each by itself.
const WITH_ARMS: [&str; 2] = [fragmentation::NAME, huge_pages::NAME];

/// Those that have programs, kernels or figures to choose from, each by itself.
const WITH_PROGRAMS: [&str; 5] =
    [colloid::NAME, fragmentation::NAME, huge_pages::NAME, huge_slices::NAME, moca::NAME];

/// Refuses chosen arms or programs that `experiments` would not go by; without a name that is all of them.
///
/// # Errors
/// See above, with what they are of.
pub fn check(experiments: &[String], arms: bool, programs: bool) -> Result<()> {
    let by_itself = |known: &[&str]| matches!(experiments, [one] if known.contains(&one.as_str()));
    let asked = match experiments {
        [] => "all experiments".to_owned(),
        some => some.join(" "),
    };
    ensure!(
        !programs || by_itself(&WITH_PROGRAMS),
        "--programs is not of {asked}, but of one of these by itself: {}",
        WITH_PROGRAMS.join(", ")
    );
    let compares = |name: &String| !OTHERS.contains(&name.as_str());
    ensure!(
        !arms
            || experiments.is_empty()
            || experiments.iter().any(compares)
            || by_itself(&WITH_ARMS),
        "--arms is not of {asked}, but of experiments that compare allocators (reproduce --list has them) and of one \
         of \
         these by itself: {}",
        WITH_ARMS.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_would_go_by_is_refused_with_what_it_is_of() {
        let told = |experiments: &[&str], arms, programs| {
            let names: Vec<String> = experiments.iter().map(|name| (*name).to_owned()).collect();
            check(&names, arms, programs).err().map(|why| why.to_string()).unwrap_or_default()
        };
        for name in WITH_PROGRAMS {
            assert_eq!(told(&[name], false, true), "");
            assert!(told(&[name, "pauses"], false, true).contains("by itself"), "{name}");
        }
        for name in ["throughput", "mesh", overhead::NAME] {
            let why = told(&[name], false, true);
            assert!(why.starts_with(&format!("--programs is not of {name}, but ")), "{why}");
            assert!(why.ends_with("huge-pages, huge-slices, moca"), "{why}");
        }
        assert!(told(&[], false, true).contains("not of all experiments"));
        for names in [&["throughput"][..], &["mesh"], &["pauses", moca::NAME], &[], &WITH_ARMS[..1]]
        {
            assert_eq!(told(names, true, false), "", "{names:?}");
            assert_eq!(told(names, false, false), "", "{names:?}");
        }
        for name in [moca::NAME, colloid::NAME, overhead::NAME, huge_slices::NAME] {
            let why = told(&[name], true, false);
            assert!(why.starts_with(&format!("--arms is not of {name}, but ")), "{why}");
            assert!(why.ends_with("fragmentation, huge-pages"), "{why}");
            assert_eq!(told(&[name], false, false), "");
        }
        assert!(told(&WITH_ARMS, true, false).contains("by itself"));
    }
}
