//! The published evaluation of Colloid on the simulated machine: each figure's cells, the published number
//! where there is one, ours, and the error. All of ours is *modelled*.
//!
//! | figure | what |
//! |---|---|
//! | 6a, 6b, 6c | GUPS under HeMem, MEMTIS, TPP: throughput with Colloid over throughput without, by unloaded latency of the alternate tier and background load |
//! | 7 | dynamics: the hot set moves, the antagonist starts; time to recover and regret against the best static placement |
//! | 8a, 8b, 8c | `PageRank`, Silo, `CacheLib` under TPP without and with Colloid |
//! | regret | Colloid's search against brute force over random machines and loads |
//!
//! Parameters live in the machine file and in `sim::workload`; nothing here adjusts any of them.

use anyhow::{Context, Result};
use pagemill_policy::tier::Tier;
use pagemill_policy::tier::place::colloid::Watermark;
use pagemill_sim::machine::{Machine, PARAMETERS, Parameter};
use pagemill_sim::random::Random;
use pagemill_sim::run::{Prepared, Setup};
use pagemill_sim::surface::{self, Effort, Surface};
use pagemill_sim::workload::{self, Workload};
use serde::Serialize;

/// The published numbers: `experiment,subject,metric,unit,value,note`.
const PUBLISHED: &str = include_str!("../../../../experiments/published/colloid.csv");

/// The figures, by name.
pub const FIGURES: &[&str] = &["6a", "6b", "6c", "7", "8a", "8b", "8c", "regret"];

const LATENCIES: [f64; 4] = [135.0, 148.0, 168.0, 192.0];
const LOADS: [f64; 4] = [0.0, 1.0, 2.0, 3.0];

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine.
    pub machine: Machine,
    /// Some of [`FIGURES`].
    pub figures: Vec<String>,
    /// Fewer pages and fewer random points.
    pub quick: bool,
    /// What a tenth more or less of each parameter does to each cell of 6c.
    pub sensitivity: bool,
    /// Seed.
    pub seed: u64,
}

/// One cell of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Its figure.
    pub figure: String,
    /// Its row.
    pub row: String,
    /// Its column.
    pub column: String,
    /// What it counts.
    pub metric: String,
    /// Ours, modelled.
    pub modelled: f64,
    /// The published number.
    pub published: Option<f64>,
    /// Whether a parameter was set from this very number, so that it says nothing.
    pub input: bool,
}

impl Cell {
    /// Relative error, where there is a published number that was not an input.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        self.published.filter(|_| !self.input).map(|published| self.modelled / published - 1.0)
    }
}

/// How the cells of a figure compare.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The figure and metric.
    pub what: String,
    /// Mean of the absolute errors.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
    /// What was aimed at: mean, greatest.
    pub goal: (f64, f64),
    /// Cells compared.
    pub cells: usize,
}

/// What one parameter does to the cells of 6c.
#[derive(Clone, Debug, Serialize)]
pub struct Influence {
    /// The parameter.
    pub key: String,
    /// Relative change of each cell at a tenth less and a tenth more: row, column, less, more.
    pub cells: Vec<(String, String, f64, f64)>,
}

impl Influence {
    /// The greatest change of any cell.
    #[must_use]
    pub fn greatest(&self) -> f64 {
        self.cells.iter().flat_map(|cell| [cell.2.abs(), cell.3.abs()]).fold(0.0, f64::max)
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// All cells.
    pub cells: Vec<Cell>,
    /// How they compare.
    pub scores: Vec<Score>,
    /// Sensitivity, most influential first.
    pub sensitivity: Vec<Influence>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// Runs the figures. `progress` is told what begins and how much of all is done.
///
/// # Errors
/// For a figure that is none of [`FIGURES`].
pub fn run(options: &Options, progress: &mut dyn FnMut(&str, f64)) -> Result<Report> {
    let mut report = Report::default();
    let all = (options.figures.len() + usize::from(options.sensitivity)) as f64;
    for (at, figure) in options.figures.iter().enumerate() {
        let mut tick = |what: &str, part: f64| {
            progress(&format!("figure {figure}: {what}"), (at as f64 + part) / all);
        };
        match figure.as_str() {
            "6a" => gups(options, "6a", "hemem", &mut report, &mut tick),
            "6b" => gups(options, "6b", "memtis", &mut report, &mut tick),
            "6c" => gups(options, "6c", "tpp", &mut report, &mut tick),
            "7" => dynamics(options, &mut report, &mut tick),
            "8a" => application(options, "8a", "pagerank", &mut report, &mut tick),
            "8b" => application(options, "8b", "silo", &mut report, &mut tick),
            "8c" => application(options, "8c", "cachelib", &mut report, &mut tick),
            "regret" => regret(options, &mut report, &mut tick),
            other => anyhow::bail!("no figure '{other}'; valid: {}", FIGURES.join(", ")),
        }
    }
    if options.sensitivity {
        sensitivity(options, &mut report, &mut |what, part| {
            progress(&format!("sensitivity: {what}"), (all - 1.0 + part) / all);
        });
    }
    Ok(report)
}

fn setup(options: &Options, machine: &Machine, load: Workload, policy: &str, steps: f64) -> Setup {
    let huge = !policy.starts_with("tpp") && policy != "none";
    let scale = match (huge, options.quick) {
        (true, true) => 32.0,
        (true, false) => 8.0,
        (false, true) => 512.0,
        (false, false) => 64.0,
    };
    Setup {
        machine: machine.clone(),
        workload: load,
        policy: policy.to_owned(),
        steps,
        later_steps: None,
        moves_at: None,
        // The lengths of the published runs.
        seconds: if huge { 100.0 } else { 600.0 },
        scale,
        seed: options.seed,
        effort: Effort {
            seed: options.seed,
            // Thirty-two refresh intervals, or eight.
            measure_ns: if options.quick { 60_000.0 } else { 249_600.0 },
            ..Effort::default()
        },
    }
}

fn published(experiment: &str, subject: &str, metric: &str) -> Option<f64> {
    PUBLISHED.lines().find_map(|line| {
        let mut fields = line.rsplitn(6, ',').collect::<Vec<_>>();
        fields.reverse();
        (fields.len() == 6
            && fields[0].contains(experiment)
            && fields[1] == subject
            && fields[2] == metric)
            .then(|| fields[4].parse().ok())?
    })
}

fn gups(
    options: &Options,
    figure: &str,
    system: &str,
    report: &mut Report,
    tick: &mut dyn FnMut(&str, f64),
) {
    let first = report.cells.len();
    for (row, latency) in LATENCIES.into_iter().enumerate() {
        let machine = options.machine.with("tier.alternate.unloaded_ns", latency);
        for (column, steps) in LOADS.into_iter().enumerate() {
            tick(&format!("{latency} ns at {steps}x"), (row * 4 + column) as f64 / 16.0);
            let base = setup(options, &machine, workload::gups(64.0), system, steps);
            let prepared = base.prepare(&mut |_, _| {});
            let (without, with) = pair(&base, &prepared);
            let subject = format!("{latency}ns at {steps}x");
            let metric = "TPP+colloid throughput / TPP throughput";
            let cell = |metric: &str, modelled, published| Cell {
                figure: figure.to_owned(),
                row: format!("{latency} ns"),
                column: format!("{steps}x"),
                metric: metric.to_owned(),
                modelled,
                published,
                input: false,
            };
            let known = (figure == "6c").then(|| published("Fig 6c", &subject, metric)).flatten();
            report.cells.push(cell("with/without Colloid", with.0 / without.0, known));
            report.cells.push(cell("share without", without.1, None));
            report.cells.push(cell("share with", with.1, None));
        }
    }
    score(report, first, figure, "with/without Colloid", (0.03, 0.08));
}

/// Throughput and share, without and with Colloid: of the whole run for programs that end, of the last 30
/// seconds for those that do not, as in the published runs.
fn pair(base: &Setup, prepared: &Prepared) -> ((f64, f64), (f64, f64)) {
    let with = Setup { policy: format!("{}+colloid", base.policy), ..base.clone() };
    let [without, with] = [base, &with].map(|setup| {
        let report = setup.run(prepared, &mut |_| {});
        let ends = setup.workload.length.is_some();
        (if ends { report.whole } else { report.last.units_per_s }, report.last.share)
    });
    (without, with)
}

fn application(
    options: &Options,
    figure: &str,
    name: &str,
    report: &mut Report,
    tick: &mut dyn FnMut(&str, f64),
) {
    let first = report.cells.len();
    let Some(load) = workload::named(name, &options.machine) else {
        return;
    };
    for (at, steps) in LOADS.into_iter().enumerate() {
        tick(&format!("{steps}x"), at as f64 / 4.0);
        let base = setup(options, &options.machine, load.clone(), "tpp", steps);
        let prepared = base.prepare(&mut |_, _| {});
        let (without, with) = pair(&base, &prepared);
        for (system, value) in [("TPP", without), ("TPP+colloid", with)] {
            let subject = format!("{system} at {steps}x");
            let cell = |metric: &str, modelled, published| Cell {
                figure: figure.to_owned(),
                row: system.to_owned(),
                column: format!("{steps}x"),
                metric: metric.to_owned(),
                modelled,
                published,
                input: figure == "8b" && system == "TPP" && steps == 0.0,
            };
            let known = (figure == "8b").then(|| published("Fig 8b", &subject, "throughput"));
            report.cells.push(cell(load.unit, value.0, known.flatten()));
            report.cells.push(cell("share", value.1, None));
        }
    }
    score(report, first, figure, load.unit, (0.08, 0.08));
    if figure == "8b" {
        report.notes.push(
            "8b: Silo's computing time is set from the cell 'TPP at 0x'; that cell is an input and not scored"
                .to_owned(),
        );
    }
}

fn dynamics(options: &Options, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
    let systems = ["tpp+colloid", "hemem+colloid", "hemem+watermark", "memtis+colloid"];
    for (at, policy) in systems.into_iter().enumerate() {
        for (which, event) in ["hot set moves", "antagonist starts"].into_iter().enumerate() {
            tick(&format!("{policy}, {event}"), (at * 2 + which) as f64 / 8.0);
            let begins = if policy.starts_with("tpp") { 300.0 } else { 100.0 };
            let mut setup = setup(options, &options.machine, workload::gups(64.0), policy, 0.0);
            setup.seconds = begins * 2.0;
            if which == 0 {
                setup.moves_at = Some(begins);
            } else {
                setup.later_steps = Some((3.0, begins));
            }
            let prepared = setup.prepare(&mut |_, _| {});
            let outcome = setup.run(&prepared, &mut |_| {});
            let best = outcome.best.1;
            let after: Vec<_> =
                outcome.samples.iter().filter(|sample| sample.second > begins).collect();
            let recovered = after
                .iter()
                .find(|sample| sample.units_per_s >= 0.95 * best)
                .map_or(f64::INFINITY, |sample| sample.second - begins);
            let mean = after.iter().map(|s| s.units_per_s).sum::<f64>() / after.len().max(1) as f64;
            for (metric, modelled) in [
                ("s to 95 % of the best static placement", recovered),
                ("mean regret after", 1.0 - mean / best),
                ("regret at the end", 1.0 - outcome.last.units_per_s / best),
            ] {
                report.cells.push(Cell {
                    figure: "7".to_owned(),
                    row: policy.to_owned(),
                    column: event.to_owned(),
                    metric: metric.to_owned(),
                    modelled,
                    published: None,
                    input: false,
                });
            }
        }
    }
}

/// Colloid's watermark search, left to settle on the surface of a random machine under a random load,
/// against the best share by brute force.
fn regret(options: &Options, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
    let points = if options.quick { 40 } else { 200 };
    let mut random = Random::new(options.seed);
    let mut regrets = Vec::new();
    for point in 0..points {
        tick(&format!("point {} of {points}", point + 1), f64::from(point) / f64::from(points));
        let between = |random: &mut Random, a: f64, b: f64| a + (b - a) * random.unit();
        let machine = options
            .machine
            .with("tier.alternate.unloaded_ns", between(&mut random, 100.0, 300.0))
            .with("tier.default.unloaded_ns", between(&mut random, 60.0, 110.0))
            .with("tier.default.channels", between(&mut random, 2.0, 10.0).round())
            .with("tier.alternate.channels", between(&mut random, 1.0, 8.0).round())
            .with("tier.default.capacity_gib", between(&mut random, 8.0, 60.0))
            .with("link.flits_per_ns", between(&mut random, 1.0, 6.0));
        let steps = between(&mut random, 0.0, 3.0);
        let mut setup = setup(options, &machine, workload::gups(64.0), "hemem+watermark", steps);
        setup.effort.measure_ns = 20_000.0;
        let walks = setup.walks();
        let surface =
            Surface::build(&machine, &setup.workload, steps, walks, setup.effort, &mut |_, _| {});
        let (low, high) = setup.bounds();
        let (mut search, mut share) = (Watermark::default(), high);
        // The mean over the last steps, for a search at a bound keeps probing.
        let mut settled = 0.0;
        for step in 0..300 {
            let at = surface.at(share, 0.0);
            let loads = at.loads;
            let shift = search.step(share, loads.default.latency_ns, loads.alternate.latency_ns);
            // A quantum moves at most 2 % of the reads: the copy engine's limit.
            let size = shift.size.min(0.02);
            share = match shift.from {
                Tier::Default => share - size,
                Tier::Alternate => share + size,
            }
            .clamp(low, high);
            if step >= 250 {
                settled += surface.at(share, 0.0).reads_per_ns / 50.0;
            }
        }
        regrets.push((1.0 - settled / surface.best(low, high).1).max(0.0));
    }
    let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
    let max = regrets.iter().copied().fold(0.0, f64::max);
    for (metric, modelled) in [("mean regret", mean), ("greatest regret", max)] {
        report.cells.push(Cell {
            figure: "regret".to_owned(),
            row: format!("{points} random machines and loads"),
            column: "watermark search".to_owned(),
            metric: metric.to_owned(),
            modelled,
            published: None,
            input: false,
        });
    }
    report.scores.push(Score {
        what: "regret against the best static placement".to_owned(),
        mean,
        max,
        goal: (0.03, 0.08),
        cells: regrets.len(),
    });
}

/// The settled ratio of a cell of 6c, without page dynamics: packed share against balanced share.
fn steady(machine: &Machine, steps: f64, options: &Options, effort: Effort) -> f64 {
    let setup = setup(options, machine, workload::gups(64.0), "tpp", steps);
    let (walks, (mut low, high)) = (setup.walks(), setup.bounds());
    let at =
        |share: f64| surface::point(machine, &setup.workload, steps, walks, share, 0.0, effort).0;
    let packed = at(high);
    let over =
        |point: &surface::Point| point.loads.default.latency_ns > point.loads.alternate.latency_ns;
    if !over(&packed) {
        return 1.0;
    }
    let mut balanced = at(low);
    if !over(&balanced) {
        let mut upper = high;
        for _ in 0..6 {
            let middle = f64::midpoint(low, upper);
            balanced = at(middle);
            if over(&balanced) { upper = middle } else { low = middle }
        }
    }
    balanced.reads_per_ns / packed.reads_per_ns
}

fn sensitivity(options: &Options, report: &mut Report, tick: &mut dyn FnMut(&str, f64)) {
    let rows: &[f64] = if options.quick { &LATENCIES[..1] } else { &LATENCIES };
    let effort = Effort { warm_ns: 3_000.0, measure_ns: 124_800.0, seed: options.seed };
    let with = |machine: &Machine, latency: f64| {
        let unloaded = machine.get("tier.alternate.unloaded_ns");
        let frozen = options.machine.get("tier.alternate.unloaded_ns");
        // The row's latency, scaled as the machine's own was.
        machine.with("tier.alternate.unloaded_ns", latency * unloaded / frozen)
    };
    let cells: Vec<(f64, f64)> =
        rows.iter().flat_map(|&latency| LOADS.map(|steps| (latency, steps))).collect();
    let ratios = |machine: &Machine, effort: Effort| -> Vec<f64> {
        cells.iter().map(|&(l, s)| steady(&with(machine, l), s, options, effort)).collect()
    };
    let frozen = ratios(&options.machine, effort);
    let influence = |key: &str, less: &[f64], more: &[f64]| Influence {
        key: key.to_owned(),
        cells: cells
            .iter()
            .enumerate()
            .map(|(at, &(latency, steps))| {
                let change = |new: f64| new / frozen[at] - 1.0;
                (format!("{latency} ns"), format!("{steps}x"), change(less[at]), change(more[at]))
            })
            .collect(),
    };
    let [one, two] =
        [1, 2].map(|more| ratios(&options.machine, Effort { seed: options.seed + more, ..effort }));
    let noise = influence("(other seeds: the noise)", &one, &two);
    let keys: Vec<(String, bool)> = PARAMETERS
        .iter()
        .filter(|p| p.section != "kernel" && p.section != "hemem")
        .map(|p| (format!("{}.{}", p.section, p.key), whole(p)))
        .filter(|(key, _)| options.machine.get(key) != 0.0)
        .collect();
    for (at, (key, whole)) in keys.iter().enumerate() {
        tick(key, at as f64 / keys.len() as f64);
        let [less, more] = [-1.0_f64, 1.0].map(|sign| {
            let value = options.machine.get(key);
            let step = if *whole { (value * 0.1).round().max(1.0) } else { value * 0.1 };
            ratios(&options.machine.with(key, value + sign * step), effort)
        });
        report.sensitivity.push(influence(key, &less, &more));
    }
    report.sensitivity.sort_by(|a, b| b.greatest().total_cmp(&a.greatest()));
    report.sensitivity.insert(0, noise);
    report.notes.push(
        "sensitivity: cells of 6c at rest (packed share against balanced share), each parameter a tenth less and more, \
         small counts by at least one"
            .to_owned(),
    );
}

/// Whether a parameter counts things that cannot be split.
fn whole(parameter: &Parameter) -> bool {
    matches!(
        parameter.unit,
        "walks" | "ranks" | "groups" | "banks" | "channels" | "cores" | "clocks"
    ) || (parameter.section == "core" && parameter.unit == "lines")
}

fn score(report: &mut Report, first: usize, figure: &str, metric: &str, goal: (f64, f64)) {
    let errors: Vec<f64> = report.cells[first..]
        .iter()
        .filter(|cell| cell.metric == metric)
        .filter_map(Cell::error)
        .map(f64::abs)
        .collect();
    if errors.is_empty() {
        return;
    }
    report.scores.push(Score {
        what: format!("figure {figure}, {metric}"),
        mean: errors.iter().sum::<f64>() / errors.len() as f64,
        max: errors.iter().copied().fold(0.0, f64::max),
        goal,
        cells: errors.len(),
    });
}

impl Report {
    /// The report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out =
            String::from("All of ours is modelled: a simulated machine, not a measurement.\n");
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for cell in &self.cells {
            let table = (cell.figure.as_str(), cell.metric.as_str());
            if seen.contains(&table) {
                continue;
            }
            seen.push(table);
            out += &format!(
                "\nfigure {}: {} (modelled{})\n",
                table.0,
                table.1,
                if self.compared(table) { " / published / error" } else { "" }
            );
            out += &self.table(table.0, table.1);
        }
        for score in &self.scores {
            let met = score.mean <= score.goal.0 && score.max <= score.goal.1;
            out += &format!(
                "\n{}: mean {:.1} %, greatest {:.1} % over {} (goal {:.0} %, {:.0} %): {}\n",
                score.what,
                score.mean * 100.0,
                score.max * 100.0,
                score.cells,
                score.goal.0 * 100.0,
                score.goal.1 * 100.0,
                if met { "met" } else { "missed" },
            );
        }
        if !self.sensitivity.is_empty() {
            out += "\nsensitivity: change of each cell in % at -10 % / +10 % of a parameter, most influential first\n";
            for influence in &self.sensitivity {
                let cells: Vec<String> = influence
                    .cells
                    .iter()
                    .map(|c| format!("{} {} {:+.1}/{:+.1}", c.0, c.1, c.2 * 100.0, c.3 * 100.0))
                    .collect();
                out += &format!("{:<28} {}\n", influence.key, cells.join("; "));
            }
        }
        for note in &self.notes {
            out += &format!("\nnote: {note}\n");
        }
        out
    }

    fn compared(&self, table: (&str, &str)) -> bool {
        self.cells
            .iter()
            .any(|c| (c.figure.as_str(), c.metric.as_str()) == table && c.published.is_some())
    }

    fn table(&self, figure: &str, metric: &str) -> String {
        let cells: Vec<&Cell> =
            self.cells.iter().filter(|c| c.figure == figure && c.metric == metric).collect();
        let rows = unique(cells.iter().map(|cell| cell.row.as_str()));
        let columns = unique(cells.iter().map(|cell| cell.column.as_str()));
        let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let mut out = format!("{:width$}", "");
        for column in &columns {
            out += &format!("  {column:>28}");
        }
        out.push('\n');
        for row in rows {
            out += &format!("{row:width$}");
            for column in &columns {
                let text = cells
                    .iter()
                    .find(|cell| cell.row == row && cell.column == *column)
                    .map_or(String::new(), |cell| describe(cell));
                out += &format!("  {text:>28}");
            }
            out.push('\n');
        }
        out
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// None that a finite report can cause.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).context("cannot write the report as JSON")
    }
}

/// The names, each once, in order of appearance.
fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// A cell with its error, shaded by how large the error is.
fn describe(cell: &Cell) -> String {
    let value = |value: f64| {
        if !value.is_finite() {
            "not within the run".to_owned()
        } else if value.abs() >= 1e6 {
            format!("{:.2}M", value / 1e6)
        } else {
            format!("{value:.3}")
        }
    };
    match (cell.published, cell.error()) {
        (Some(published), Some(error)) => {
            let shade = match error.abs() {
                e if e <= 0.03 => ' ',
                e if e <= 0.08 => '░',
                e if e <= 0.15 => '▒',
                _ => '█',
            };
            format!(
                "{} / {} / {:+.1} % {shade}",
                value(cell.modelled),
                value(published),
                error * 100.0
            )
        }
        (Some(published), None) => {
            format!("{} / {} / input", value(cell.modelled), value(published))
        }
        _ => value(cell.modelled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagemill_sim::machine::ICELAKE;

    #[test]
    fn every_published_cell_of_6c_and_8b_is_found() {
        for latency in LATENCIES {
            for steps in LOADS {
                let metric = "TPP+colloid throughput / TPP throughput";
                assert!(published("Fig 6c", &format!("{latency}ns at {steps}x"), metric).is_some());
            }
        }
        for steps in LOADS {
            for system in ["TPP", "TPP+colloid"] {
                assert!(
                    published("Fig 8b", &format!("{system} at {steps}x"), "throughput").is_some()
                );
            }
        }
    }

    #[test]
    fn an_input_cell_has_no_error() {
        let mut cell = Cell {
            figure: "8b".into(),
            row: "TPP".into(),
            column: "0x".into(),
            metric: "transactions/s".into(),
            modelled: 2.0,
            published: Some(1.0),
            input: true,
        };
        assert_eq!(cell.error(), None);
        cell.input = false;
        assert_eq!(cell.error(), Some(1.0));
    }

    #[test]
    fn an_unknown_figure_lists_the_known_ones() {
        let options = Options {
            machine: Machine::parse(ICELAKE).unwrap(),
            figures: vec!["9z".into()],
            quick: true,
            sensitivity: false,
            seed: 1,
        };
        let error = run(&options, &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("6c") && error.contains("9z"), "{error}");
    }
}
