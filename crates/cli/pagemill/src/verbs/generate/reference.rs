//! The reference in Markdown: a page for each verb from the description that parses it, and one for the columns of
//! recordings from the row types.
//!
//! Lines have at most 120 columns, as all pages have; a test holds the committed pages to be those that are made here.

use clap::{Arg, Command};

use pagemill_model::event::SCHEMA;

/// What each page begins with.
const MADE: &str = "<!-- Made by: pagemill generate reference -o docs/reference -->\n";

/// Columns of a line.
const WIDTH: usize = 120;

/// The pages by their names.
pub fn pages(command: &Command) -> Vec<(String, String)> {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut pages: Vec<_> = verbs
        .map(|verb| {
            let mut page = MADE.to_owned();
            section(&mut page, verb, "#");
            let name = verb.get_name();
            page.push_str(&format!(
                "\nWhat it does, and its limits: [{name}](../verbs/{name}.md).\n"
            ));
            (format!("{name}.md"), page)
        })
        .collect();
    pages.push(("columns.md".into(), columns()));
    pages
}

/// A verb, and below it the verbs that it has.
fn section(page: &mut String, verb: &Command, level: &str) {
    let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
    let name = verb.get_bin_name().unwrap_or(verb.get_name());
    page.push_str(&format!("{level} `{name}`\n\n"));
    if let Some(about) = text(verb.get_long_about().or(verb.get_about())) {
        for paragraph in about.split("\n\n") {
            item(page, "", &format!("{}.", paragraph.trim_end_matches('.')));
            page.push('\n');
        }
    }
    let usage = verb.clone().render_usage().to_string();
    let usage: Vec<&str> = usage.lines().map(|line| line.trim_start_matches("Usage:")).collect();
    page.push_str("```\n");
    usage.iter().for_each(|line| page.push_str(&format!("{}\n", line.trim())));
    if let Some(examples) = text(verb.get_before_long_help().or(verb.get_before_help())) {
        page.push('\n');
        let examples = examples.lines().filter(|line| *line != "Examples:");
        examples.for_each(|line| page.push_str(&format!("{}\n", line.trim())));
    }
    page.push_str("```\n");
    let mut arguments: Vec<&Arg> = verb.get_arguments().filter(|arg| is_own(arg)).collect();
    arguments.sort_by_key(|arg| !arg.is_positional());
    if !arguments.is_empty() {
        page.push('\n');
        arguments.iter().for_each(|arg| argument(page, arg));
    }
    if let Some(after) = text(verb.get_after_long_help().or(verb.get_after_help())) {
        for paragraph in after.trim_end().split("\n\n") {
            page.push('\n');
            // Lines that are moved in are a list.
            let (words, list) = paragraph.split_once("\n  ").unwrap_or((paragraph, ""));
            item(page, "", &escaped(words));
            if !list.is_empty() {
                page.push('\n');
            }
            list.split("\n  ").filter(|one| !one.is_empty()).for_each(|one| {
                item(page, "- ", &escaped(one));
            });
        }
    }
    for inner in verb.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        page.push('\n');
        section(page, inner, &format!("{level}#"));
    }
}

/// Not what every verb takes.
fn is_own(arg: &Arg) -> bool {
    !arg.is_hide_set() && !["help", "version", "bytes"].contains(&arg.get_id().as_str())
}

fn argument(page: &mut String, arg: &Arg) {
    let takes = arg.get_action().takes_values();
    let values = arg.get_value_names().unwrap_or_default().join(" ");
    let optional = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    let value = match (takes, optional) {
        (true, false) => format!(" {values}"),
        (true, true) => format!(" [{values}]"),
        _ => String::new(),
    };
    let long = arg.get_long().map(|long| format!("`--{long}{value}`"));
    let short = arg.get_short().map(|short| match &long {
        Some(_) => format!("`-{short}`"),
        None => format!("`-{short}{value}`"),
    });
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    let aliases = aliases.into_iter().map(|alias| format!("`--{alias}{value}`"));
    let names: Vec<String> = short.into_iter().chain(long).chain(aliases).collect();
    let name = if names.is_empty() { format!("`{values}`") } else { names.join(", ") };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = format!("{name}: {}", escaped(help.trim_end_matches('.')));
    let default: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    if takes && !arg.is_hide_default_value_set() && !default.is_empty() {
        text.push_str(&format!("; default {}", default.join(", ")));
    }
    item(page, "- ", &text);
    if !takes || arg.is_hide_possible_values_set() {
        return;
    }
    let values: Vec<_> =
        arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
    if values.iter().all(|value| value.get_help().is_none()) {
        if !values.is_empty() {
            let names: Vec<String> =
                values.iter().map(|value| format!("`{}`", value.get_name())).collect();
            item(page, "  - ", &names.join(", "));
        }
        return;
    }
    for value in values {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        item(page, "  - ", &format!("`{}`: {}", value.get_name(), escaped(&help)));
    }
}

/// The columns of all datasets.
fn columns() -> String {
    let mut page = format!("{MADE}# Columns of a recording\n\n");
    item(
        &mut page,
        "",
        "A dataset is a directory of Parquet files in a [recording](../concepts/recordings.md). What was not \
         measured is \
         `NULL`, never 0.",
    );
    for dataset in SCHEMA {
        page.push_str(&format!("\n## `{}`\n\n", dataset.name));
        item(&mut page, "", dataset.about.trim());
        page.push('\n');
        for column in dataset.columns {
            let text =
                format!("`{}` ({}): {}", column.name, column.shape.sql(), column.meaning.trim());
            item(&mut page, "- ", &text);
        }
    }
    page
}

/// Text outside of code, so that no page takes it for markup.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| match at % 2 {
        0 => part.replace('<', "\\<").replace('*', "\\*"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Writes words in lines; all but the first are indented by as much as `mark` takes.
fn item(page: &mut String, mark: &str, text: &str) {
    let mut line = mark.to_owned();
    let mut begun = false;
    for word in text.split_whitespace() {
        if begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            page.push_str(&line);
            page.push('\n');
            line = " ".repeat(mark.len());
            begun = false;
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    page.push_str(&line);
    page.push('\n');
}
