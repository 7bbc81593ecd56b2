//! Which experiments go by chosen arms, programs and sizes; what nothing would go by is refused.

use anyhow::{Result, ensure};

use super::experiment::{self, Program};
use crate::registry;

/// What was chosen on the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chosen {
    /// `--arms`.
    pub arms: bool,
    /// `--programs`.
    pub programs: bool,
    /// `--scale`, other than 1.
    pub scale: bool,
    /// `--settle`.
    pub window: bool,
}

/// Refuses what was chosen and `experiments` would not go by; without a name that is all of them.
///
/// # Errors
/// See above, with what they are of.
pub fn check(experiments: &[String], chosen: Chosen) -> Result<()> {
    let with_arms = registry::with(|choices| choices.arms);
    let with_programs = registry::with(|choices| choices.programs);
    let with_scale = registry::with(|choices| choices.scale);
    let by_itself = |known: &[&str]| matches!(experiments, [one] if known.contains(&one.as_str()));
    let any =
        |takes: &dyn Fn(&String) -> bool| experiments.is_empty() || experiments.iter().any(takes);
    let compares = |name: &String| !registry::names().contains(&name.as_str());
    let asked = match experiments {
        [] => "all experiments".to_owned(),
        some => some.join(" "),
    };
    ensure!(
        !chosen.programs || by_itself(&with_programs),
        "--programs is not of {asked}, but of one of these by itself: {}",
        with_programs.join(", ")
    );
    ensure!(
        !chosen.arms || any(&compares) || by_itself(&with_arms),
        "--arms is not of {asked}, but of experiments that compare allocators (reproduce --list has them) and of one \
         of these by itself: {}",
        with_arms.join(", ")
    );
    ensure!(
        !chosen.scale || any(&|name| compares(name) || with_scale.contains(&name.as_str())),
        "--scale is not of {asked}, but of experiments that compare allocators (reproduce --list has them) and of {}; \
         --quick makes each of them small",
        with_scale.join(", ")
    );
    ensure!(
        !chosen.window || any(&is_of_redis),
        "--settle is not of {asked}, but of experiments on a Redis server: redis-fragmentation"
    );
    Ok(())
}

/// Whether an experiment, or one of a group, has a window in which a Redis server rests.
fn is_of_redis(name: &String) -> bool {
    let selected = experiment::select(std::slice::from_ref(name), &[]).unwrap_or_default();
    selected.iter().any(|one| matches!(one.program, Program::Redis(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{colloid, fragmentation, huge_pages, huge_slices, moca, overhead};

    const WITH_ARMS: [&str; 2] = [fragmentation::NAME, huge_pages::NAME];
    const WITH_PROGRAMS: [&str; 5] =
        [colloid::NAME, fragmentation::NAME, huge_pages::NAME, huge_slices::NAME, moca::NAME];

    #[test]
    fn what_nothing_would_go_by_is_refused_with_what_it_is_of() {
        let told = |experiments: &[&str], arms, programs| {
            let names: Vec<String> = experiments.iter().map(|name| (*name).to_owned()).collect();
            let chosen = Chosen { arms, programs, ..Chosen::default() };
            check(&names, chosen).err().map(|why| why.to_string()).unwrap_or_default()
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
    #[test]
    fn sizes_are_of_experiments_that_have_them() {
        let told = |experiments: &[&str], scale, window| {
            let names: Vec<String> = experiments.iter().map(|name| (*name).to_owned()).collect();
            let chosen = Chosen { scale, window, ..Chosen::default() };
            check(&names, chosen).err().map(|why| why.to_string()).unwrap_or_default()
        };
        for name in
            [moca::NAME, fragmentation::NAME, colloid::NAME, overhead::NAME, huge_slices::NAME]
        {
            let why = told(&[name], true, false);
            assert!(why.starts_with(&format!("--scale is not of {name}, but ")), "{why}");
            let why = told(&[name], false, true);
            assert!(why.starts_with(&format!("--settle is not of {name}, but ")), "{why}");
            assert_eq!(told(&[name, "mesh"], true, true), "");
        }
        for name in [huge_pages::NAME, "throughput", "mesh"] {
            assert_eq!(told(&[name], true, false), "");
        }
        assert!(told(&["throughput"], false, true).ends_with("redis-fragmentation"));
        for names in [&["redis-fragmentation"][..], &["mesh"], &[]] {
            assert_eq!(told(names, true, true), "", "{names:?}");
        }
    }
}
