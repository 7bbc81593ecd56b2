//! What verbs answer as JSON: one object each, whose layout has a name and a version.
//!
//! `docs/schema/NAME.json` describes the layout; `docs/json.md` says what may change and what may not. A test runs every verb
//! that takes `--json` and holds what it prints against the description.

use serde_json::{Value, json};

/// The layouts and their versions. A version changes when a member goes or changes its meaning; members are added without.
pub const LAYOUTS: [(&str, u64); 23] = [
    ("compare", 1),
    ("counters", 1),
    ("doctor", 1),
    ("frag-check", 1),
    ("frag-compact", 1),
    ("frag-induce", 1),
    ("frag-show", 1),
    ("heap", 1),
    ("hugepages", 1),
    ("plan", 1),
    ("plan-costs", 1),
    ("plan-measure", 1),
    ("plan-profile", 1),
    ("plan-replay", 1),
    ("report", 1),
    ("report-pftrace", 1),
    ("simulate", 1),
    ("simulate-figures", 1),
    ("simulate-huge", 1),
    ("tier-doctor", 1),
    ("tier-replay", 1),
    ("tier-status", 1),
    ("validate", 1),
];

/// The answer with its layout's name and version, which stand first. What is no object becomes its `rows`.
pub fn named(layout: &str, value: Value) -> Value {
    let version = LAYOUTS.iter().find(|(name, _)| *name == layout).map(|(_, version)| *version);
    let mut members = match value {
        Value::Object(members) => members,
        rows => [("rows".to_owned(), rows)].into_iter().collect(),
    };
    debug_assert!(version.is_some(), "{layout} is not listed");
    members.insert("layout".into(), json!(layout));
    members.insert("schema".into(), json!(version));
    Value::Object(members)
}

/// As [`named`], as text with a line for each member.
pub fn text(layout: &str, value: Value) -> String {
    format!("{:#}\n", named(layout, value))
}

/// Prints it.
pub fn print(layout: &str, value: Value) {
    crate::talk::stdout(&text(layout, value));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_bears_its_layout_and_a_list_becomes_its_rows() {
        let answer = named("plan-costs", json!({ "base_ns": 1, "schema": 7 }));
        assert_eq!(answer, json!({ "base_ns": 1, "layout": "plan-costs", "schema": 1 }));
        let answer = named("simulate", json!([1, 2]));
        assert_eq!(answer, json!({ "rows": [1, 2], "layout": "simulate", "schema": 1 }));
    }
}
