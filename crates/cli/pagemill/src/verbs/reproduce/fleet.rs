//! `reproduce --on` and `--cell`: the cells of a run on many machines, and one of them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pagemill_kernel::{Linux, signal};
use pagemill_launch::exit::Exit;
use pagemill_launch::progress::minutes;

use pagemill_experiments::fleet::matrix::{self, Matrix};
use pagemill_experiments::fleet::scripts::Here;
use pagemill_experiments::fleet::{parallel, slurm};
use pagemill_experiments::reproduce::arm::Machine;
use pagemill_experiments::reproduce::cell::Cell;
use pagemill_experiments::reproduce::chosen::OTHERS;
use pagemill_experiments::reproduce::experiment;
use pagemill_experiments::reproduce::input::Inputs;
use pagemill_experiments::reproduce::keep::{self, Keep};
use pagemill_experiments::reproduce::outcome::Outcome;
use pagemill_experiments::reproduce::plan::{Options, Plan};
use pagemill_experiments::reproduce::series;
use pagemill_experiments::reproduce::target::{Interrupted, Stage};

use super::absent::{nothing_runs, say_skipped};
use super::arguments::Arguments;
use super::asked::Asked;
use super::stage::{ENDING, stage};

/// What runs cells on machines.
enum Engine {
    Slurm,
    Parallel(Vec<String>),
}

impl Engine {
    fn of(words: &[String]) -> Result<Self> {
        match words {
            [slurm] if slurm == "slurm" => Ok(Self::Slurm),
            [parallel] if parallel == "parallel" => {
                bail!("on whose machines? for example: --on parallel host1,host2 (: is this one)")
            }
            [parallel, hosts] if parallel == "parallel" => {
                let mut hosts: Vec<String> = hosts.split(',').map(str::to_owned).collect();
                hosts.retain(|host| !host.is_empty());
                // A host that begins so would be an option of ssh.
                let odd = hosts.iter().find(|host| host.starts_with('-'));
                let known = |host: &&String| {
                    let named = std::slice::from_ref(*host);
                    OTHERS.contains(&host.as_str()) || experiment::select(named, &[]).is_ok()
                };
                if let Some(name) = hosts.iter().find(known) {
                    bail!(
                        "{name} is an experiment and no host: --on parallel host1,host2 {name} (: is this one)"
                    );
                }
                ensure!(
                    odd.is_none() && !hosts.is_empty(),
                    "--on parallel HOST,…: no host is so called"
                );
                Ok(Self::Parallel(hosts))
            }
            _ => {
                let engine = words.first().map_or("", String::as_str);
                let meant = experiment::meant(engine, ["slurm", "parallel"].into_iter());
                bail!(
                    "there is no engine {:?}{meant}; valid: slurm, parallel HOST,…",
                    words.join(" ")
                )
            }
        }
    }
}

impl Arguments {
    /// Writes the cells of what was asked for and has an engine run those that are left.
    pub(super) fn submit(&self, on: &[String]) -> Result<Exit> {
        // `--on slurm NAME`: what follows is an experiment.
        let (on, more) = match on {
            [slurm, name] if slurm == "slurm" => (&on[..1], Some(name.clone())),
            _ => (on, None),
        };
        let engine = Engine::of(on)?;
        let experiments = self.experiments.iter().cloned().chain(more).collect();
        let matrix = Self { experiments, ..self.clone() }.matrix()?;
        if matrix.cells.is_empty() {
            return Ok(nothing_runs(&matrix.skipped, false));
        }
        let results = std::path::absolute(self.directory()).context("the results directory")?;
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let linux = Linux::live();
        let here = Here { linux: &linux, executable: &executable, results: &results };
        let left = match results.join(matrix::FILE).exists() {
            true => matrix.left(&results)?,
            false => (1..=matrix.cells.len()).collect(),
        };
        if self.dry_run {
            return dry(&engine, &here, &matrix, &left);
        }
        let holds = fs::read_dir(&results).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(
            !holds || self.force || results.join(matrix::FILE).exists(),
            "{} is not empty (choose another with -o, or write into it with -f)",
            results.display()
        );
        fs::create_dir_all(&results)
            .with_context(|| format!("cannot make {}", results.display()))?;
        matrix.write(&results)?;
        here.write()?;
        say_skipped(&matrix.skipped);
        if left.is_empty() {
            eprintln!("pagemill: all {} cells are finished", matrix.cells.len());
            next(&results);
            return Ok(Exit::Ok);
        }
        match engine {
            Engine::Slurm => to_slurm(&here, &matrix, &left),
            Engine::Parallel(hosts) => to_parallel(&here, &matrix, &left, &hosts),
        }
    }

    fn matrix(&self) -> Result<Matrix> {
        self.check(&self.experiments)?;
        let of = Asked::of(&self.experiments);
        let programs = of.programs();
        let experiments =
            if programs { experiment::select(&of.names, &OTHERS)? } else { Vec::new() };
        let options = self.options();
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let inputs = Inputs::new(executable.clone(), self.seed)?;
        let plan = Plan::new(experiments, &options, &mut Machine::detect(&executable), &inputs)?;
        let signals = signal::Signals::block(&[])?;
        let planned = self.planned(&of.apart, &plan, &stage(&signals, executable), &inputs)?;
        Ok(self.matrix_of(&planned))
    }

    /// Runs one cell of the matrix in the results directory, unless it is finished.
    pub(super) fn one_cell(&self, called: &str) -> Result<Exit> {
        let results = self.output.as_deref().context("--cell is of a results directory: -o DIR")?;
        let results = std::path::absolute(results).context("the results directory")?;
        let matrix = Matrix::read(&results)?;
        self.cell(&matrix, &results, &matrix.cell(called)?)
    }

    fn cell(&self, matrix: &Matrix, results: &Path, cell: &Cell) -> Result<Exit> {
        let keep = Keep::new(results)?;
        if keep.holds(cell) {
            eprintln!("pagemill: {} is finished", cell.name());
            return Ok(Exit::Ok);
        }
        // Before any other thread exists: signals are waited for.
        let signals = signal::Signals::block(ENDING)?;
        let executable = std::env::current_exe().context("cannot find this binary")?;
        let inputs = Inputs::new(executable.clone(), matrix.options.seed)?;
        let stage = stage(&signals, executable);
        // What was chosen for one experiment alone is not for another of the same matrix.
        let inner = Self::of(matrix);
        let run = match inner.series(&cell.experiment, &stage, &inputs)? {
            Some(mut series) => {
                let (kept, _) = keep::all(results)?;
                let so_far = kept.into_iter().filter(|(one, _)| one.experiment == cell.experiment);
                let so_far = so_far.map(|(one, kept)| (one, kept.outcome()));
                let so_far = so_far.collect::<Vec<_>>();
                let run = series::one(series.as_mut(), cell, &so_far, &stage, &keep);
                run.and_then(|run| run.context("it is no cell of its experiment here"))
            }
            None => program(matrix, cell, &stage, &inputs, &keep),
        };
        match run {
            Err(error) if error.is::<Interrupted>() => {
                eprintln!("pagemill: {} was interrupted, and is not finished", cell.name());
                Ok(Exit::Code(130))
            }
            Err(error) => Err(error),
            Ok(Err(why)) => {
                eprintln!("pagemill: {} failed: {why}", cell.name());
                Ok(Exit::Finding)
            }
            Ok(Ok(_)) => {
                eprintln!("pagemill: {} is finished", cell.name());
                Ok(Exit::Ok)
            }
        }
    }
}

/// A run of a program on an allocator.
fn program(
    matrix: &Matrix,
    cell: &Cell,
    stage: &Stage<'_>,
    inputs: &Inputs,
    keep: &Keep,
) -> Result<Result<Outcome, String>> {
    let options = Options { arms: Some(vec![cell.arm.to_owned()]), ..matrix.options.clone() };
    let experiments = experiment::select(std::slice::from_ref(&cell.experiment), &OTHERS)?;
    let named = experiments[0].clone();
    let mut machine = Machine::detect(&stage.executable);
    let plan = Plan::new(experiments, &options, &mut machine, inputs)?;
    plan.run_cell((cell, &named), stage, inputs, &options, keep)
}

fn dry(engine: &Engine, here: &Here<'_>, matrix: &Matrix, left: &[usize]) -> Result<Exit> {
    let results = here.results()?;
    match engine {
        Engine::Slurm => {
            print!("{}", slurm::script(results, matrix.cells.len(), left, slurm::most()));
        }
        Engine::Parallel(hosts) => {
            println!("{}", parallel::line(&parallel::words(results, hosts)));
        }
    }
    eprintln!("pagemill: {}; nothing was written or submitted", amount(matrix, left));
    Ok(Exit::Ok)
}

fn amount(matrix: &Matrix, left: &[usize]) -> String {
    let time = minutes(Duration::from_secs_f64(matrix.seconds(left)));
    format!("{} of {} cells, about {time} on one machine", left.len(), matrix.cells.len())
}

fn next(results: &Path) {
    eprintln!("next: pagemill collect {}", results.display());
}

fn to_slurm(here: &Here<'_>, matrix: &Matrix, left: &[usize]) -> Result<Exit> {
    let script = slurm::script(here.results()?, matrix.cells.len(), left, slurm::most());
    slurm::write(here.results, &script)?;
    for (node, state) in slurm::down() {
        eprintln!("pagemill: node {node} is {state}; its share goes to the others");
    }
    let job = slurm::submit(here.results)?;
    eprintln!("pagemill: job {job}: {}; logs in {}/log", amount(matrix, left), here.results()?);
    eprintln!("pagemill: to see it: squeue -j {job}; to end it: scancel {job}");
    next(here.results);
    Ok(Exit::Ok)
}

fn to_parallel(here: &Here<'_>, matrix: &Matrix, left: &[usize], hosts: &[String]) -> Result<Exit> {
    let signals = signal::Signals::block(ENDING)?;
    let (up, down) = parallel::answering(here.executable, hosts, &signals)?;
    for (host, why) in &down {
        eprintln!("pagemill: host {host} is down after three tries: {why}");
    }
    parallel::write(here.results, matrix, left)?;
    if up.is_empty() {
        eprintln!("pagemill: no host is up; not run:");
        left.iter().for_each(|number| eprintln!("  {}", matrix.cells[number - 1]));
        return Ok(Exit::Unsupported);
    }
    eprintln!("pagemill: {} on {}", amount(matrix, left), up.join(", "));
    let ended = parallel::run(&parallel::words(here.results()?, &up), &signals)?;
    let still = matrix.left(here.results)?;
    if !still.is_empty() {
        eprintln!("pagemill: not finished, each tried three times; the same command goes on with:");
    }
    for number in &still {
        let last = parallel::last(here.results, *number);
        let last = last.map_or(String::new(), |last| format!(" (last {last})"));
        eprintln!("  {}{last}", matrix.cells[number - 1]);
    }
    next(here.results);
    Ok(match (ended, still.is_empty()) {
        (true, _) => Exit::Code(130),
        (false, true) => Exit::Ok,
        (false, false) => Exit::Finding,
    })
}
