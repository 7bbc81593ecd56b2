//! The summary as text: for each experiment memory and time side by side, then everything else, then
//! published claims and targets.

use pagemill_model::Bytes;
use pagemill_model::units::counted;

use super::experiment::Unit;
use super::measured::Figure;
use super::summary::{Column, Section, Summary, Table};
use pagemill_report::draw::text;

/// The whole report.
pub fn render(summary: &Summary) -> String {
    let mut out = String::new();
    if summary.of.quick {
        out.push_str(
            "Quick run: smaller sizes, fewer arms and few runs. Intervals are wide; see `pagemill \
             reproduce` for the full one.\n\n",
        );
    }
    for section in &summary.sections {
        out.push_str(&render_section(section));
    }
    let skipped: Vec<String> = skip_lines(summary);
    if !skipped.is_empty() {
        out.push_str("Skipped\n");
        for line in skipped {
            out.push_str(&format!("  {line}\n"));
        }
        out.push('\n');
    }
    if !summary.sections.is_empty() {
        out.push_str(FORMULA);
    }
    out
}

/// How the figures are made; stands under the tables.
pub const FORMULA: &str = "\
memory = sum over pages of page size / number of mappings of the page (Pss of smaps_rollup), and pages of memfds that no
page table has; cgroup = everything charged to a memory cgroup that holds only the program, kernel memory included.
Figures are medians; [low, high] is a 95 % bootstrap interval; ratios compare arms of this run. CPU includes our helper
thread, the KSM governor and ksmd.
";

/// What did not run, one line each.
pub fn skip_lines(summary: &Summary) -> Vec<String> {
    let line = |skip: &super::plan::Skipped| match &skip.arm {
        Some(arm) => format!("{} {arm}: {}", skip.experiment, skip.reason),
        None => format!("{}: {}", skip.experiment, skip.reason),
    };
    summary.of.skipped.iter().map(line).collect()
}

fn render_section(section: &Section) -> String {
    let mut out = format!("{}: {}\n", section.experiment, section.title);
    out.push_str(&format!("{}\n", section_facts(section)));
    for table in &section.tables {
        if section.tables.len() > 1 {
            out.push_str(&format!("\n  {}\n", table.case));
        } else {
            out.push('\n');
        }
        let (header, rows) = headline(section, table);
        out.push_str(&indented(&text::table(&as_strs(&header), &rows)));
        let (header, rows) = others(section, table);
        if header.len() > 1 {
            out.push('\n');
            out.push_str(&indented(&text::table(&as_strs(&header), &rows)));
        }
        for row in &table.rows {
            for note in &row.notes {
                out.push_str(&format!("  {}: {note}\n", row.arm));
            }
        }
    }
    let claims = claim_rows(section);
    if !claims.is_empty() {
        out.push_str("\n  Published and ours\n");
        out.push_str(&indented(&text::table(&CLAIM_HEADER, &claims)));
    }
    let goals = goal_rows(section);
    if !goals.is_empty() {
        out.push_str("\n  Targets\n");
        out.push_str(&indented(&text::table(&GOAL_HEADER, &goals)));
    }
    let unmeasured = unmeasured(section);
    if !unmeasured.is_empty() {
        out.push('\n');
        out.push_str(&indented(&(unmeasured.join("\n") + "\n")));
    }
    if let Some(warning) = noise(section) {
        out.push_str(&format!("\n  NOISE {warning}\n"));
    }
    for failed in &section.failed {
        out.push_str(&format!("  FAILED {failed}\n"));
    }
    out.push('\n');
    out
}

/// Half of an interval, as a part of its figure, from which on there is too much noise to tell arms apart.
const NOISY: f64 = 0.1;

/// What cannot be told from these runs because they differ too much, or because there is one of each; and the flag that
/// mends it.
pub fn noise(section: &Section) -> Option<String> {
    let runs = section.repetitions;
    if runs == 1 {
        return Some("one run an arm tells no difference from noise: --reps 3".to_owned());
    }
    let mut noisy: Vec<(f64, String)> = Vec::new();
    for table in &section.tables {
        for row in &table.rows {
            for column in [&section.memory, &section.time] {
                let Some(figure) = row.figures.get(&column.name) else { continue };
                let Some((low, high)) = figure.interval else { continue };
                let part = (high - low) / 2.0 / figure.value.abs().max(f64::MIN_POSITIVE);
                if part > NOISY {
                    noisy.push((part, format!("{} of {}, {}", column.label, table.case, row.arm)));
                }
            }
        }
    }
    let (part, which) = noisy.iter().max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!(
        "{} known to no better than +-{:.0} % (the worst: {which}, +-{:.0} %): end what else runs here, or --reps {}",
        counted(noisy.len() as u64, "figure is", "figures are"),
        100.0 * NOISY,
        100.0 * part,
        runs * 3
    ))
}

/// Runs, size and sampling in a line.
pub fn section_facts(section: &Section) -> String {
    let size = if section.scale == 1.0 {
        "full size".to_owned()
    } else {
        format!("{} of the full size", number(section.scale))
    };
    let runs = if section.repetitions == 1 { "run" } else { "runs" };
    format!(
        "{} {runs} an arm, {size}, memory read every {} ms",
        section.repetitions, section.sampled_every_ms
    )
}

fn as_strs(header: &[String]) -> Vec<&str> {
    header.iter().map(String::as_str).collect()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// Memory and time with their ratios to the references that the table has.
pub fn headline(section: &Section, table: &Table) -> (Vec<String>, Vec<Vec<String>>) {
    let mut header = vec!["arm".to_owned()];
    for column in [&section.memory, &section.time] {
        header.push(column.label.clone());
        header.extend(table.references().map(|against| format!("/ {against}")));
    }
    let rows = table.rows.iter().map(|row| {
        let mut cells = vec![row.arm.clone()];
        for column in [&section.memory, &section.time] {
            cells.push(shown(column, row.figures.get(&column.name)));
            for against in table.references() {
                let ratio = row.ratios.get(&column.name).and_then(|ratios| ratios.get(against));
                cells.push(match ratio {
                    Some(ratio) => with_interval(ratio),
                    None if row.arm == against && row.figures.contains_key(&column.name) => {
                        "1".to_owned()
                    }
                    None => "-".to_owned(),
                });
            }
        }
        cells
    });
    (header, rows.collect())
}

/// The other figures; columns without a single value are left out.
pub fn others(section: &Section, table: &Table) -> (Vec<String>, Vec<Vec<String>>) {
    let columns: Vec<&Column> = section
        .others
        .iter()
        .filter(|column| table.rows.iter().any(|row| row.figures.contains_key(&column.name)))
        .collect();
    let header = std::iter::once("arm".to_owned())
        .chain(columns.iter().map(|column| column.label.clone()))
        .collect();
    let rows = table.rows.iter().map(|row| {
        let cells = columns.iter().map(|column| shown(column, row.figures.get(&column.name)));
        std::iter::once(row.arm.clone()).chain(cells).collect()
    });
    (header, rows.collect())
}

/// Header of [`claim_rows`].
pub const CLAIM_HEADER: [&str; 5] = ["claim", "published", "arm", "ours", "verdict"];

/// Published claims of which something was measured.
pub fn claim_rows(section: &Section) -> Vec<Vec<String>> {
    let row = |claim: &super::verdict::Judged| {
        let figure = claim.measured.as_ref()?;
        let ours = match &claim.against {
            Some(against) => {
                format!(
                    "{:+.1} % {} against {against}",
                    100.0 * (figure.value - 1.0),
                    percent(figure)
                )
            }
            None => with_interval(figure),
        };
        Some(vec![
            claim.says.clone(),
            claim.published.clone(),
            claim.arm.clone(),
            ours,
            claim.verdict.to_string(),
        ])
    };
    section.claims.iter().filter_map(row).collect()
}

/// Header of [`goal_rows`].
pub const GOAL_HEADER: [&str; 6] = ["target", "arm", "ours", "must", "aim", "verdict"];

/// Targets of which something was measured.
pub fn goal_rows(section: &Section) -> Vec<Vec<String>> {
    let row = |goal: &super::verdict::Reached| {
        Some(vec![
            goal.says.clone(),
            goal.arm.clone(),
            with_interval(goal.measured.as_ref()?),
            number(goal.must),
            number(goal.aim),
            goal.verdict.to_string(),
        ])
    };
    section.goals.iter().filter_map(row).collect()
}

/// Claims and targets of which nothing was measured, a line for each reason: how many, of which arms, and why.
pub fn unmeasured(section: &Section) -> Vec<String> {
    let claims = section.claims.iter().filter(|claim| claim.measured.is_none());
    let goals = section.goals.iter().filter(|goal| goal.measured.is_none());
    let all = (claims.map(|claim| (claim.verdict.to_string(), &claim.arm, [1, 0])))
        .chain(goals.map(|goal| (goal.verdict.to_string(), &goal.arm, [0, 1])));
    let mut lines: Vec<(String, Vec<&str>, [u64; 2])> = Vec::new();
    for (verdict, arm, [claims, goals]) in all {
        let at = lines.iter().position(|line| line.0 == verdict);
        let at = at.unwrap_or_else(|| {
            lines.push((verdict, Vec::new(), [0, 0]));
            lines.len() - 1
        });
        let (_, arms, counts) = &mut lines[at];
        if !arms.contains(&arm.as_str()) {
            arms.push(arm);
        }
        *counts = [counts[0] + claims, counts[1] + goals];
    }
    let line = |(verdict, arms, counts): (String, Vec<&str>, [u64; 2])| {
        let words = [("claim", "claims"), ("target", "targets")].iter().zip(counts);
        let words = words.filter(|(_, count)| *count > 0);
        let words: Vec<String> =
            words.map(|((one, more), count)| counted(count, one, more)).collect();
        format!("{} of {}: {verdict}", words.join(" and "), arms.join(", "))
    };
    lines.into_iter().map(line).collect()
}

fn percent(figure: &Figure) -> String {
    figure.interval.map_or(String::new(), |(low, high)| {
        format!("[{:+.1}, {:+.1}]", 100.0 * (low - 1.0), 100.0 * (high - 1.0))
    })
}

/// A figure with its interval, if it has one.
pub fn with_interval(figure: &Figure) -> String {
    match figure.interval {
        Some((low, high)) => {
            format!("{} [{}, {}]", number(figure.value), number(low), number(high))
        }
        None => number(figure.value),
    }
}

fn shown(column: &Column, figure: Option<&Figure>) -> String {
    figure.map_or("-".to_owned(), |figure| quantity(figure.value, column.unit))
}

/// A quantity with its unit.
pub fn quantity(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes if Bytes::prints_plain() => format!("{value:.0}"),
        Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
        Unit::Seconds if value == 0.0 => "0 s".to_owned(),
        Unit::Seconds if value < 1e-6 => format!("{:.1} ns", value * 1e9),
        Unit::Seconds if value < 1e-3 => format!("{:.1} us", value * 1e6),
        Unit::Seconds if value < 1.0 => format!("{:.1} ms", value * 1e3),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::Count if value >= 1e7 => format!("{:.1} M", value / 1e6),
        Unit::Count => format!("{value:.0}"),
    }
}

/// Three significant digits, without trailing zeros; millions as such.
pub fn number(value: f64) -> String {
    if value.abs() >= 1e7 && value.is_finite() {
        return format!("{:.1} M", value / 1e6);
    }
    let digits = if value.abs() >= 100.0 { 0 } else { 3 };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::claim::{Attainment, Basis, Verdict};
    use crate::reproduce::experiment;
    use crate::reproduce::plan::Skipped;
    use crate::reproduce::summary::{ArmRow, Circumstances, Timeline, summarise};
    use crate::reproduce::verdict::{Judged, Reached};

    fn column(name: &str, label: &str, unit: Unit) -> Column {
        Column { name: name.into(), label: label.into(), unit }
    }

    fn one(value: f64) -> Figure {
        Figure { value, interval: Some((value * 0.9, value * 1.1)), runs: 3 }
    }

    /// A small summary with one of everything.
    pub fn summary() -> Summary {
        let row = |arm: &str, pss: f64, cpu: f64, ratio: Option<f64>| ArmRow {
            arm: arm.into(),
            figures: [("pss".to_owned(), one(pss)), ("cpu".to_owned(), one(cpu))].into(),
            ratios: ["pss", "cpu"]
                .into_iter()
                .map(|metric| {
                    let ratios = ratio.map(|ratio| ("jemalloc".to_owned(), one(ratio)));
                    (metric.to_owned(), ratios.into_iter().collect())
                })
                .collect(),
            notes: vec![format!("note on {arm}")],
        };
        let timeline =
            |arm: &str| Timeline { arm: arm.into(), pss: vec![(0.0, 1048576.0), (1.0, 2097152.0)] };
        Summary {
            schema: 1,
            of: Circumstances {
                quick: true,
                seed: 1,
                machine: vec!["a <machine>".into()],
                interrupted: false,
                skipped: vec![Skipped {
                    experiment: "tiny".into(),
                    arm: Some("mesh".into()),
                    reason: "MESH_LIB is not set".into(),
                }],
            },
            sections: vec![Section {
                experiment: "tiny".into(),
                title: "A tiny experiment".into(),
                about: "About <it>.".into(),
                scale: 0.5,
                repetitions: 3,
                sampled_every_ms: 50,
                memory: column("pss", "Pss", Unit::Bytes),
                time: column("cpu", "CPU", Unit::Seconds),
                others: vec![
                    column("none", "never measured", Unit::Count),
                    column("cpu", "again", Unit::Seconds),
                ],
                tables: vec![Table {
                    case: "tiny".into(),
                    rows: vec![
                        row("jemalloc", 104857600.0, 2.0, None),
                        row("1y-ksm", 52428800.0, 0.002, Some(0.5)),
                    ],
                    timelines: vec![timeline("jemalloc"), timeline("1y-ksm")],
                }],
                claims: vec![Judged {
                    says: "It saves".into(),
                    published: "-39 %".into(),
                    arm: "1y-ksm".into(),
                    against: Some("jemalloc".into()),
                    measured: Some(one(0.5)),
                    expected: Some(0.61),
                    verdict: Verdict::Better(Basis::Runs),
                }],
                goals: vec![Reached {
                    says: "Memory".into(),
                    arm: "1y-ksm".into(),
                    measured: None,
                    must: 0.55,
                    aim: 0.47,
                    verdict: Attainment::NotMeasured("why".into()),
                }],
                failed: vec!["tiny mesh #1: it crashed".into()],
            }],
        }
    }

    #[test]
    fn the_report_shows_memory_and_time_side_by_side_and_hides_nothing() {
        let text = render(&summary());
        let expected = "\
tiny: A tiny experiment
3 runs an arm, 0.5 of the full size, memory read every 50 ms

  arm             Pss          / jemalloc     CPU          / jemalloc
  jemalloc  100.0 MiB                   1  2.00 s                   1
  1y-ksm     50.0 MiB   0.5 [0.45, 0.55]  2.0 ms   0.5 [0.45, 0.55]
";
        let squeeze = |text: &str| {
            text.lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert!(squeeze(&text).contains(&squeeze(expected)), "{text}");
        for wanted in [
            "Quick run",
            "1y-ksm: note on 1y-ksm",
            "-50.0 % [-55.0, -45.0] against jemalloc",
            "better than published",
            "not measured: why",
            "FAILED tiny mesh #1: it crashed",
            "tiny mesh: MESH_LIB is not set",
            "kernel memory included",
        ] {
            assert!(text.contains(wanted), "{wanted:?} is missing in\n{text}");
        }
        assert!(!text.contains("never measured"), "an empty column is left out");
    }

    /// Of browsers the reader had to divide.
    #[test]
    fn a_browser_stands_beside_itself_with_its_own_allocator() {
        let cells = crate::reproduce::summary::tests::cells(
            "browsers",
            "firefox",
            "mean_pss",
            &[("own", &[4e8, 4.2e8, 4.1e8]), ("1y-remap", &[2e8, 2.1e8, 2.05e8])],
        );
        let shown = crate::reproduce::summary::ShownExperiment {
            experiment: experiment::select(&["browsers".into()], &[]).unwrap().remove(0),
            arms: vec!["own", "1y-remap"],
            repetitions: 3,
            scale: 1.0,
        };
        let summary = summarise(&[shown], &cells, Circumstances::default()).unwrap();
        let (header, rows) = headline(&summary.sections[0], &summary.sections[0].tables[0]);
        assert_eq!(header, ["arm", "mean memory", "/ own", "page", "/ own"]);
        assert_eq!(rows[0][2], "1");
        assert!(rows[1][2].starts_with("0.5 ["), "{rows:?}");
    }

    /// Runs that differed by half were shown as any others, and what mends it was not said.
    #[test]
    fn runs_that_differ_too_much_are_told_with_what_mends_it() {
        let mut summary = summary();
        let section = &mut summary.sections[0];
        for row in &mut section.tables[0].rows {
            let half = row.figures.get_mut("pss").unwrap();
            half.interval = Some((half.value * 0.95, half.value * 1.05));
            let wide = row.figures.get_mut("cpu").unwrap();
            wide.interval = Some((wide.value * 0.5, wide.value * 1.5));
        }
        let text = render(&summary);
        assert!(text.contains("NOISE 2 figures are known to no better than +-10 %"), "{text}");
        assert!(text.contains("CPU of tiny, 1y-ksm, +-50 %"), "{text}");
        assert!(text.contains("end what else runs here, or --reps 9"), "{text}");
        let section = &mut summary.sections[0];
        for figure in section.tables[0].rows.iter_mut().flat_map(|row| row.figures.values_mut()) {
            figure.interval = Some((figure.value * 0.95, figure.value * 1.05));
        }
        assert!(!render(&summary).contains("NOISE"));
        summary.sections[0].repetitions = 1;
        assert!(render(&summary).contains("NOISE one run an arm"));
    }

    /// Two of three targets were rows of dashes, each with the same reason.
    #[test]
    fn what_was_not_measured_is_a_line_for_each_reason() {
        let mut summary = summary();
        let section = &mut summary.sections[0];
        let (goal, claim) = (section.goals[0].clone(), section.claims[0].clone());
        let of = |arm: &str| Reached { arm: arm.into(), ..goal.clone() };
        section.goals = vec![of("0n"), Reached { measured: Some(one(0.5)), ..of("1y") }, of("2y")];
        let verdict = Verdict::NotMeasured("why".into());
        section.claims.push(Judged { measured: None, verdict, arm: "0n".into(), ..claim.clone() });
        let verdict = Verdict::NotMeasured("no root".into());
        section.claims.push(Judged { measured: None, verdict, ..claim });
        let lines = [
            "1 claim and 2 targets of 0n, 2y: not measured: why",
            "1 claim of 1y-ksm: not measured: no root",
        ];
        assert_eq!(unmeasured(section), lines);
        assert_eq!((claim_rows(section).len(), goal_rows(section).len()), (1, 1));
        let text = render(&summary);
        assert!(lines.iter().all(|line| text.contains(&format!("  {line}\n"))), "{text}");
    }

    #[test]
    fn quantities_read_well() {
        assert_eq!(quantity(3.5e-8, Unit::Seconds), "35.0 ns");
        assert_eq!(quantity(0.0224, Unit::Seconds), "22.4 ms");
        assert_eq!(quantity(0.0, Unit::Seconds), "0 s");
        assert_eq!(quantity(1048576.0 * 183.54, Unit::Bytes), "183.5 MiB");
        assert_eq!(quantity(34812.0, Unit::Count), "34812");
        assert_eq!(quantity(4.2e7, Unit::Count), "42.0 M");
        assert_eq!(
            (number(0.5), number(1.0), number(141.7)),
            ("0.5".into(), "1".into(), "142".into())
        );
        // On the screen of a whole run stood 606800000.
        assert_eq!([606_800_000.0, f64::INFINITY].map(number), ["606.8 M", "inf"]);
    }
}
