//! Names of policies for help and messages, from the registries.

use pagemill_policy::huge;
use pagemill_policy::tier::compose;
use pagemill_policy::tier::kind::Watches;

/// All huge page policies.
pub fn huge() -> String {
    huge::names().collect::<Vec<_>>().join(", ")
}

/// The huge page policies that work on a program that runs already.
pub fn from_outside() -> String {
    let with = |profile: bool| {
        let scanning = huge::POLICIES.iter().map(|one| (one.name(), one.mechanism()));
        scanning.filter(move |(_, one)| one.scans_with(true) && one.scans_with(false) != profile)
    };
    let names: Vec<String> = with(false)
        .map(|(name, _)| name.to_owned())
        .chain(with(true).map(|(name, _)| format!("{name} with --profile")))
        .collect();
    either(&names)
}

/// The placement policies under which the kernel moves pages as they fault.
pub fn by_faults() -> String {
    let by_faults = |name: &String| {
        compose::find(name)
            .is_some_and(|(tracker, _)| matches!(tracker.watches, Watches::HintFaults(_)))
    };
    compose::names().into_iter().filter(by_faults).collect::<Vec<_>>().join(", ")
}

/// The placers that balance, as they end a policy's name.
pub fn balancing() -> String {
    let placers = compose::PLACERS.iter().filter(|placer| placer.balances);
    placers.map(|placer| format!("+{}", placer.name)).collect::<Vec<_>>().join(", ")
}

/// `a, b, or c`.
fn either(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [before @ .., last] => format!("{}, or {last}", before.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_works_from_outside_is_asked_of_the_policies() {
        let outside = from_outside();
        assert!(
            outside.contains("ingens, ") && outside.contains("cbmm+ with --profile"),
            "{outside}"
        );
        assert!(!outside.contains("linux"), "{outside}");
        assert!(by_faults().contains("tpp, tpp+colloid") && !by_faults().contains("hemem"));
    }
}
