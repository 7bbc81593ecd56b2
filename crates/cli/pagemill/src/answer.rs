//! What verbs answer as JSON: one object each, whose layout has a name and a version.
//!
//! `docs/schema/NAME.json` describes the layout; `docs/json.md` says what may change and what may not. A test runs
//! every verb that takes `--json` and holds what it prints against the description.

use std::ffi::OsString;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use pagemill_launch::exit::Exit;
use serde::Serialize;
use serde_json::{Value, json};

/// What an answer is called, and how it is laid out. Each stands in the file of its verb.
pub struct Layout {
    /// `docs/schema/NAME.json` describes it.
    name: &'static str,
    /// Changes when a member goes or changes its meaning; members are added without.
    version: u64,
    /// The table that `--csv` prints if none is named: of several, with commas, the first that the answer has; else the
    /// answer as a row.
    table: &'static str,
}

impl Layout {
    /// A layout of this name, version and table.
    pub const fn new(name: &'static str, version: u64, table: &'static str) -> Self {
        Self { name, version, table }
    }
}

/// Why there is no answer.
const ERROR: Layout = Layout::new("error", 1, "");

/// The answer with its layout's name and version, which stand first. What is no object becomes its `rows`.
fn named(layout: &Layout, value: Value) -> Value {
    let mut members = match value {
        Value::Object(members) => members,
        rows => [("rows".to_owned(), rows)].into_iter().collect(),
    };
    members.insert("layout".into(), json!(layout.name));
    members.insert("schema".into(), json!(layout.version));
    Value::Object(members)
}

/// The answer, named, as text with a line for each member; or a table of it as CSV, where that was asked for. One of
/// `several` stands on one line, and only the first (true) table has a header.
pub fn text(layout: &Layout, value: impl Serialize, several: Option<bool>) -> Result<String> {
    ANSWERED.store(true, Ordering::Relaxed);
    pagemill_launch::stdio::is_verbatim();
    let answer = named(layout, serde_json::to_value(value)?);
    match (CSV.get(), several) {
        (Some(table), _) => csv(layout, &answer, table, several.unwrap_or(true)),
        (None, Some(_)) => Ok(format!("{answer}\n")),
        (None, None) => Ok(format!("{answer:#}\n")),
    }
}

/// Prints it, alone.
pub fn print(layout: &Layout, value: impl Serialize) -> Result<()> {
    pagemill_launch::stdio::stdout(&text(layout, value, None)?);
    Ok(())
}

/// Answers as JSON, or as text.
pub fn tell<V: Serialize>(
    json: bool,
    layout: &Layout,
    value: impl FnOnce() -> V,
    text: impl FnOnce() -> String,
) -> Result<()> {
    if json {
        return print(layout, value());
    }
    pagemill_launch::stdio::stdout(&text());
    Ok(())
}

/// Whether there was an answer.
static ANSWERED: AtomicBool = AtomicBool::new(false);

/// Whether this command line asks for JSON, and its verb, if it names one.
fn asked(words: impl Iterator<Item = OsString>) -> (bool, Option<String>) {
    let words: Vec<OsString> = words.skip(1).take_while(|word| word != "--").collect();
    let verb = words.iter().find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    let verb = verb.map(|verb| verb.to_string_lossy().into_owned());
    (words.iter().any(|word| word == "--json"), verb)
}

/// Who asked for JSON and had no answer gets why: a verb that ends so has failed.
pub fn no_answer(exit: Exit) {
    let failed = matches!(exit.status(), 2..=4 | 125..=127);
    if failed {
        error(exit.status(), pagemill_launch::exit::said());
    }
}

/// The same, of an error and the exit status that it ends with.
pub fn error(status: u8, error: Option<&str>) {
    let (json, verb) = asked(std::env::args_os());
    if !json || ANSWERED.swap(true, Ordering::Relaxed) {
        return;
    }
    let answer = json!({ "verb": verb, "error": error, "exit_code": status });
    pagemill_launch::stdio::is_verbatim();
    pagemill_launch::stdio::stdout(&format!("{:#}\n", named(&ERROR, answer)));
}

/// The table that is to be printed as CSV; none is named: the layout's own.
static CSV: OnceLock<String> = OnceLock::new();

/// Answers are to be printed as CSV.
pub fn as_csv(table: &str) {
    // The command line is read once.
    let _ = CSV.set(table.to_owned());
}

/// A table of an answer.
fn csv(layout: &Layout, answer: &Value, table: &str, header: bool) -> Result<String> {
    let at = |name: &str| {
        name.split('.').filter(|part| !part.is_empty()).try_fold(answer, |at, part| at.get(part))
    };
    let own = layout.table.split(',').filter(|name| at(name).is_some_and(is_told));
    let table = if table.is_empty() { own.clone().next().unwrap_or_default() } else { table };
    let found = at(table);
    let rows = found.map(rows).unwrap_or_default();
    let others = || {
        let mut names = Vec::new();
        tables(answer, "", &mut names);
        names.retain(|name| name != table);
        names.join(", ")
    };
    if rows.is_empty() && !found.is_some_and(Value::is_array) {
        bail!("{} has no table {table:?}; --csv= takes one of: {}", layout.name, others());
    }
    // Data goes to standard output, and that there is none, or more, is no data.
    if rows.is_empty() {
        let others = Some(others()).filter(|names| !names.is_empty());
        let others = others.map_or(String::new(), |names| format!(" (--csv= takes also: {names})"));
        notice!("{table} has no rows{others}");
        return Ok(String::new());
    }
    if header && own.count() > 1 {
        notice!("this is {table} (--csv= takes also: {})", others());
    }
    let mut columns: Vec<&str> = Vec::new();
    for (column, _) in rows.iter().flatten() {
        if !columns.contains(&column.as_str()) {
            columns.push(column);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    if header {
        writer.write_record(&columns)?;
    }
    for row in &rows {
        let cell = |column: &&str| {
            row.iter().find(|(name, _)| name == column).map_or("", |(_, cell)| cell)
        };
        writer.write_record(columns.iter().map(cell))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// Whether there is something in a main table.
fn is_told(table: &Value) -> bool {
    // Samples of memory there are in any number.
    !table.is_null() && table.get("samples") != Some(&json!(0))
}

type Row = Vec<(String, String)>;

/// The rows of a table: of a list each item, of an object whose members are objects each member, else the object.
fn rows(table: &Value) -> Vec<Row> {
    let row = |value: &Value, key: Option<&str>| {
        let mut row: Row = key.map(|key| ("name".to_owned(), key.to_owned())).into_iter().collect();
        flat(value, "", &mut row);
        row
    };
    match table {
        Value::Array(items) => items.iter().map(|item| row(item, None)).collect(),
        Value::Object(members) if !members.is_empty() && members.values().all(Value::is_object) => {
            members.iter().map(|(key, member)| row(member, Some(key))).collect()
        }
        Value::Object(_) => vec![row(table, None)],
        _ => Vec::new(),
    }
}

/// Members of members as columns with a dot; lists of words and numbers as words.
fn flat(value: &Value, name: &str, row: &mut Row) {
    let word = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                flat(
                    member,
                    &if name.is_empty() { key.clone() } else { format!("{name}.{key}") },
                    row,
                );
            }
        }
        // Tables of their own, which no cell holds.
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {}
        Value::Array(items) => {
            row.push((name.to_owned(), items.iter().map(word).collect::<Vec<_>>().join(" ")));
        }
        other => row.push((if name.is_empty() { "value" } else { name }.to_owned(), word(other))),
    }
}

/// The names of the lists with rows, and of objects of objects.
fn tables(value: &Value, name: &str, names: &mut Vec<String>) {
    let Value::Object(members) = value else { return };
    let all_objects = !members.is_empty() && members.values().all(Value::is_object);
    let has_values = members.values().any(|member| !member.is_object() && !member.is_array());
    if !name.is_empty() && (has_values || all_objects) {
        names.push(name.to_owned());
    }
    if !name.is_empty() && all_objects {
        return;
    }
    for (key, member) in members {
        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        match member {
            Value::Array(items) if items.iter().any(Value::is_object) => names.push(name),
            other => tables(other, &name, names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAG_COMPACT: &Layout = &Layout::new("frag-compact", 1, "steps");
    const FRAG_SHOW: &Layout = &Layout::new("frag-show", 1, "zones");
    const PLAN_COSTS: &Layout = &Layout::new("plan-costs", 1, "");
    const REPORT: &Layout = &Layout::new(
        "report",
        1,
        "accesses.objects,faults.categories,hugepages.mappings,frag.timeline,decisions,view",
    );
    const SIMULATE: &Layout = &Layout::new("simulate", 1, "rows");

    #[test]
    fn json_is_asked_for_before_the_command_and_of_a_verb() {
        let asked = |line: &str| asked(line.split(' ').map(OsString::from));
        assert_eq!(asked("pagemill heap 7 --json"), (true, Some("heap".into())));
        assert_eq!(asked("pagemill --json"), (true, None));
        assert_eq!(asked("pagemill live -- jq --json"), (false, Some("live".into())));
    }

    #[test]
    fn an_answer_bears_its_layout_and_a_list_becomes_its_rows() {
        let answer = named(PLAN_COSTS, json!({ "base_ns": 1, "schema": 7 }));
        assert_eq!(answer, json!({ "base_ns": 1, "layout": "plan-costs", "schema": 1 }));
        let answer = named(SIMULATE, json!([1, 2]));
        assert_eq!(answer, json!({ "rows": [1, 2], "layout": "simulate", "schema": 1 }));
    }

    #[test]
    fn tables_are_lists_objects_of_objects_and_objects() {
        let answer = json!({
            "zones": [
                { "node": 0, "zone": "a,b", "free": [1, 2] },
                { "node": 1, "at": { "x": null, "y": 2.5, "of": [[1]] } }
            ],
            "kinds": { "heap": { "n": 1 }, "stack": { "n": 2 } },
        });
        let table = |name: &str| csv(FRAG_SHOW, &answer, name, true);
        assert_eq!(table("").unwrap(), "free,node,zone,at.x,at.y\n1 2,0,\"a,b\",,\n,1,,,2.5\n");
        assert_eq!(table("kinds").unwrap(), "name,n\nheap,1\nstack,2\n");
        assert_eq!(table("kinds.heap").unwrap(), "n\n1\n");
        // An empty table was a line with two quotation marks.
        let none = json!({ "zones": [] });
        assert_eq!(csv(FRAG_SHOW, &none, "", true).unwrap(), "");
        // A recording of a heap was its last sample, which the text does not have.
        let heap =
            json!({ "view": { "pss_bytes": { "peak": 7 }, "samples": 3 }, "last": { "x": 1 } });
        assert_eq!(csv(REPORT, &heap, "", true).unwrap(), "pss_bytes.peak,samples\n7,3\n");
        // A dry run has no steps.
        let dry = json!({ "order": 9, "layout": "frag-compact" });
        assert_eq!(csv(FRAG_COMPACT, &dry, "", true).unwrap(), "layout,order\nfrag-compact,9\n");
        let report = json!({ "accesses": null, "faults": { "categories": { "a": { "n": 1 }, "b": { "n": 2 } } } });
        assert_eq!(csv(REPORT, &report, "", true).unwrap(), "name,n\na,1\nb,2\n");
        let error = table("nothing").unwrap_err().to_string();
        assert!(error.ends_with("takes one of: kinds, zones"), "{error}");
    }
}
